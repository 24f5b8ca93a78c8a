"""The temperature that follows from what noise may cost."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import pocketbayes as pb
from pocketbayes import nets
from pocketbayes.compression import compress as stages
from pocketbayes.compression import job
from pocketbayes.likelihood import Custom, Homoscedastic
from pocketbayes.posterior.laplace import noise_cost
from pocketbayes.posterior.weights import stochastic_weights
from pocketbayes.training import loop
from pocketbayes.training import temperature as tempering
from pocketbayes.training.temperature import (
    TRIES,
    NoiseCost,
    chosen_temperature,
    held_out_fisher,
    implied_temperature,
    known_noise_cost,
    measured_noise_cost,
    start_sigmas,
)

TAU = 0.5  # observation noise of the linear model
N = 400


def line() -> tuple[nn.Module, Tensor, Tensor]:
    """A linear model without bias, in float64, and data of it."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(N, 3, generator=g, dtype=torch.float64)
    model = nn.Linear(3, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, -2.0, 0.5]]))
    y = (x @ model.weight.T).detach() + TAU * torch.randn(N, 1, generator=g, dtype=torch.float64)
    return model, x, y


def test_the_noise_cost_of_a_linear_model_is_the_closed_form() -> None:
    """E NLL(w) - NLL(mu) = 1/2 sum_i E(x_i^2) sigma_i^2 / tau^2, exactly; draws find it within standard errors."""
    model, x, y = line()
    sigma = {"weight": torch.tensor([[0.1, 0.02, 0.3]], dtype=torch.float64)}
    exact = 0.5 * float((x.square().mean(0) * sigma["weight"].square()).sum()) / TAU**2
    assert noise_cost({"weight": x.square().mean(0, keepdim=True) / TAU**2}, sigma) == pytest.approx(exact)
    posterior = pb.bayesianize(model, sigma=sigma)
    cost = measured_noise_cost(posterior, [(x, y)], likelihood=Homoscedastic(TAU), samples=400)
    assert abs(cost.nats - exact) < 3 * cost.error < 0.5 * exact
    control = measured_noise_cost(posterior, [(x, y)], likelihood=Homoscedastic(2 * TAU), samples=400)
    assert abs(control.nats - exact) > 3 * control.error


def test_the_fisher_information_of_held_out_data_is_the_closed_form() -> None:
    """Of one batch too, whose labels are drawn as often as is needed; labels as they are where none can be drawn."""
    model, x, y = line()
    exact = x.square().mean(0, keepdim=True) / TAU**2
    batch, common = [(x, 7 * y)], {"seed": 0, "progress": False}
    found = held_out_fisher(model, batch, likelihood=Homoscedastic(TAU), **common)["weight"]
    assert abs(found / exact - 1).max() < 4 * (2 / tempering.HELD_OUT_BATCHES) ** 0.5  # of a chi square
    custom = Custom(Homoscedastic(TAU).nll)
    of_labels = held_out_fisher(model, batch, likelihood=custom, **common)["weight"]
    torch.testing.assert_close(
        of_labels, pb.fisher_information(model, batch, likelihood=custom, progress=False)["weight"]
    )
    with pytest.raises(ValueError, match="loader for the Fisher information is empty"):
        held_out_fisher(model, [], likelihood=None, **common)


def test_more_draws_are_made_where_few_leave_it_open(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def measured(model, loader, *, samples: int, error: float) -> NoiseCost:
        asked.append(samples)
        return NoiseCost(0.05, error / samples**0.5)

    monkeypatch.setattr(tempering, "measured_noise_cost", measured)
    for error, expected in ((0.06, [8, 32]), (0.02, [8]), (0.015, [8])):  # .021, .0071, .0053 at 8 draws
        asked.clear()
        known_noise_cost(0.03, nn.Linear(1, 1), [], samples=8, error=error)
        assert asked == expected


def test_the_error_of_a_measured_cost_knows_that_draws_come_in_pairs() -> None:
    """Of one example, many times: the cost varies from seed to seed as the error says."""
    model, x, _ = line()
    x = x[:1].expand(20, -1)
    y = model(x).detach()  # no residual: both draws of a pair cost the same
    posterior = pb.bayesianize(model, sigma=pb.Absolute(0.2))
    costs = [
        measured_noise_cost(posterior, [(x, y)], likelihood=Homoscedastic(TAU), seed=seed)
        for seed in range(300)
    ]
    seen, said = torch.tensor([c.nats for c in costs]).var(), torch.tensor([c.error**2 for c in costs]).mean()
    assert 0.65 < said / seen < 1.5  # half of it, if the draws were taken for independent


def test_the_temperature_of_a_laplace_posterior_is_read_off_its_sigmas() -> None:
    model, x, _ = line()
    fisher = {"weight": x.square().mean(0, keepdim=True) / TAU**2}
    sigma = pb.laplace_sigma(model, fisher, N, prior=0.7, temperature=0.03)
    posterior = pb.bayesianize(copy.deepcopy(model), prior=pb.ZeroMean(0.7), sigma=sigma)
    assert implied_temperature(posterior, fisher, N) == pytest.approx(0.03, rel=1e-6)
    wide = pb.bayesianize(copy.deepcopy(model), prior=pb.ZeroMean(0.7), sigma=pb.Absolute(3.0))
    assert implied_temperature(wide, fisher, N) == 1.0


LAWS = {
    "as predicted": lambda t: 2 * t,
    "ten times dearer": lambda t: 20 * t,
    "three times cheaper": lambda t: 0.7 * t,
    "quadratic": lambda t: 4000 * t * t,
    "infinite where it is wide": lambda t: 6 * t if t < 0.01 else math.inf,
}


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_a_wrong_prediction_is_corrected_by_what_is_measured(law) -> None:
    asked: list[float] = []

    def measure(temperature: float) -> NoiseCost:
        asked.append(temperature)
        return NoiseCost(law(temperature), 0.0)

    found = chosen_temperature(0.03, 2.0, measure)
    assert asked[0] == pytest.approx(0.015) and len(asked) <= TRIES  # 0.03 / 2
    assert found.measured.nats == law(found.value)
    assert 0.03 / 1.5 <= found.measured.nats <= 0.03 * 1.5
    assert found.predicted == 2 * found.value


def test_a_cost_that_cannot_be_told_from_the_wanted_one_is_left() -> None:
    unclear = chosen_temperature(0.03, 2.0, lambda t: NoiseCost(0.1, 0.04))
    assert unclear.value == pytest.approx(0.015)
    clear = chosen_temperature(0.03, 2.0, lambda t: NoiseCost(20 / 3 * t, 0.01))
    assert clear.value == pytest.approx(0.0045)


@pytest.mark.parametrize("predicted", [0.0, 0.001])
def test_it_is_never_above_one(predicted: float) -> None:
    assert chosen_temperature(0.03, predicted, lambda t: NoiseCost(predicted * t, 0.0)).value == 1.0


def test_of_costs_that_are_all_wrong_the_nearest_is_chosen() -> None:
    found = chosen_temperature(0.03, 2.0, lambda t: NoiseCost(1.0 if t > 1e-6 else 0.9, 0.0))
    assert found.measured.nats == 0.9


# --- in the pipeline


def blobs(n: int, seed: int) -> TensorDataset:
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(4, (n,), generator=g)
    centres = torch.randn(4, 10, generator=torch.Generator().manual_seed(7))
    return TensorDataset(centres[y] + 0.7 * torch.randn(n, 10, generator=g), y)


TRAIN = DataLoader(blobs(512, 0), 64, shuffle=True)
VALIDATION = DataLoader(blobs(512, 1), 256)
PLAN = pb.Plan(epochs=1, finetune_epochs=0)


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    with torch.random.fork_rng():
        torch.random.default_generator.manual_seed(0)
        model = nets.mlp([10, 48, 4])
        pb.training.fit.fit_map(model, TRAIN, epochs=6, lr=1e-2, progress=False)
    return model


def run(model: nn.Module, path: Path, **options):
    settings = {
        "validation_loader": VALIDATION,
        "plan": PLAN,
        "max_bytes": 1500,
        "graph": False,
        "progress": False,
    }
    return pb.compress(model, TRAIN, path=path / "model.pocket", **{**settings, **options})


def posterior_note(report) -> str:
    return next(stage.note for stage in report.stages if stage.name == "posterior")


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """Copies of the posteriors that runs found, before they were shared."""
    seen: list[nn.Module] = []
    measure = stages._Stages.measure

    def spied(self, name, *rest):
        if name == "posterior":
            seen.append(copy.deepcopy(self.job.model))
        return measure(self, name, *rest)

    monkeypatch.setattr(stages._Stages, "measure", spied)
    return seen


def test_targets_of_the_fisher_information_are_drawn_if_the_plan_says_so(
    trained: nn.Module, tmp_path: Path, seen: list[nn.Module]
) -> None:
    for sampled in (True, False):
        plan = pb.Plan(epochs=1, finetune_epochs=0, temperature=0.05, sampled_fisher=sampled)
        run(copy.deepcopy(trained), tmp_path, plan=plan)
    fisher = pb.fisher_information(trained, TRAIN, sampled=True, progress=False)
    sigma = pb.laplace_sigma(trained, fisher, 512, temperature=0.05)
    of_sampled, of_labels = ({s.path: s.moments.sigma for s in stochastic_weights(m)} for m in seen)
    for name in sigma:
        torch.testing.assert_close(of_sampled[name], sigma[name])
    assert not all(torch.allclose(of_labels[name], sigma[name], rtol=0.1) for name in sigma)


@pytest.mark.parametrize("validation", [VALIDATION, None], ids=["validation", "training"])
def test_noise_costs_what_was_asked_for_and_the_report_tells(
    trained: nn.Module, tmp_path: Path, seen: list[nn.Module], validation
) -> None:
    """Draw by draw, through `one_draw`, on the data that it was to be measured on."""
    report = run(copy.deepcopy(trained), tmp_path, validation_loader=validation)
    x, y = (VALIDATION if validation else TRAIN).dataset.tensors
    with torch.no_grad():
        start = nn.functional.cross_entropy(trained(x), y)
        costs = []
        for s in range(60):
            with pb.one_draw(seen[0], s):
                costs.append(nn.functional.cross_entropy(seen[0](x), y) - start)
    cost = torch.stack(costs)
    assert 0.03 / 2 < cost.mean() < 0.03 * 2
    assert cost.std() / 60**0.5 < 0.01
    note = posterior_note(report)
    assert "temperature 0." in note and "noise costs" in note and "predicted" in note
    assert note in str(report)


def test_noise_is_predicted_for_data_that_the_network_has_not_learned_by_heart(
    tmp_path: Path, seen: list[nn.Module]
) -> None:
    """Within a factor of two of many draws, where the training data say a small part of it."""
    few, rest = DataLoader(blobs(60, 2), 20, shuffle=True), DataLoader(blobs(2000, 3), 500)
    with torch.random.fork_rng():
        torch.random.default_generator.manual_seed(0)
        model = nets.mlp([10, 48, 4])
        pb.training.fit.fit_map(model, few, epochs=60, lr=1e-2, progress=False)
    plain = copy.deepcopy(model)
    report = pb.compress(
        model,
        few,
        path=tmp_path / "model.pocket",
        validation_loader=rest,
        plan=PLAN,
        max_bytes=1500,
        graph=False,
        progress=False,
    )
    cost = measured_noise_cost(seen[0], rest, samples=64)
    predicted = float(posterior_note(report).rpartition(" ")[2])
    assert cost.nats / 2 < predicted < 2 * cost.nats
    sigma = {s.path: s.moments.sigma.detach() for s in stochastic_weights(seen[0])}
    control = noise_cost(pb.fisher_information(plain, few, progress=False), sigma)
    assert control < cost.nats / 100


def test_more_noise_is_allowed_or_the_temperature_given(trained: nn.Module, tmp_path: Path) -> None:
    notes = [
        posterior_note(
            run(copy.deepcopy(trained), tmp_path, plan=pb.Plan(epochs=1, finetune_epochs=0, **how))
        )
        for how in ({"noise_cost": 0.003}, {"noise_cost": 0.1}, {"temperature": 0.07})
    ]
    low, high = (float(note.split()[1].rstrip(":")) for note in notes[:2])
    assert 5 < high / low < 200
    assert notes[2].startswith("temperature 0.07, as asked for: noise costs ")


@pytest.mark.parametrize("given", [False, True], ids=["plain", "posterior"])
def test_an_interrupted_run_goes_on_with_the_temperature_that_it_had(
    trained: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: bool
) -> None:
    class Killed(Exception):
        pass

    def stop(self: loop.TrainingRun) -> None:
        raise Killed

    def never(*_, **__):
        raise AssertionError("measured again")

    def start() -> nn.Module:
        model = copy.deepcopy(trained)
        return pb.bayesianize(model, sigma=pb.Absolute(0.02)) if given else model

    (tmp_path / "whole").mkdir()
    plan = pb.Plan(epochs=2, finetune_epochs=1, rho_lr=1e-3)
    whole = run(start(), tmp_path / "whole", plan=plan)
    options = {"plan": plan, "checkpoints": tmp_path / "checkpoints"}
    with monkeypatch.context() as patch:
        patch.setattr(loop.TrainingRun, "step", stop)
        with pytest.raises(Killed):
            run(start(), tmp_path, **options)
    for name in ("fisher_information", "known_noise_cost"):
        monkeypatch.setattr(job, name, never)
    resumed = run(start(), tmp_path, **options)
    assert posterior_note(resumed) == posterior_note(whole)
    files = [next(folder.glob("*.pocket")).read_bytes() for folder in (tmp_path, tmp_path / "whole")]
    assert files[0] == files[1]


# --- where training starts --------------------------------------------------------------------------------------


def test_sigmas_that_nobody_gave_start_where_a_trained_network_bears_them() -> None:
    """All by one factor; those of an untrained network, those given and those that were trained stay as they are."""
    model, x, y = line()
    likelihood, data = Homoscedastic(0.02), [(x, (x @ model.weight.T).detach() + 0.02 * torch.randn_like(y))]

    def sigmas(posterior: nn.Module) -> Tensor:
        (site,) = stochastic_weights(posterior)
        start_sigmas(posterior, data, likelihood=likelihood, most=0.03, seed=0)
        return site.moments.sigma.detach().clone()

    wide = pb.Relative().delta * model.weight.detach().abs()
    posterior = pb.bayesianize(copy.deepcopy(model))
    narrow = sigmas(posterior)
    torch.testing.assert_close(narrow / wide, (narrow / wide)[0, 0].expand(1, 3))
    exact = 0.5 * float((x.square().mean(0) * narrow[0].square()).sum()) / 0.02**2
    assert 0.03 / 4 < exact < 0.03 * 4 < 0.5 * float((x.square().mean(0) * wide[0].square()).sum()) / 0.02**2
    likelihood = Homoscedastic(0.001)
    torch.testing.assert_close(sigmas(posterior), narrow)
    torch.testing.assert_close(sigmas(pb.bayesianize(copy.deepcopy(model), sigma=pb.Relative())), wide)
    likelihood = Homoscedastic(10.0)
    torch.testing.assert_close(sigmas(pb.bayesianize(copy.deepcopy(model))), wide)


def test_fit_starts_there_and_training_the_means_does_not_move_sigmas() -> None:
    model, x, y = line()
    data, sigma = [(x, (x @ model.weight.T).detach() + 0.01 * y)], {}
    for how in (pb.fit, pb.fit_map):
        posterior = pb.bayesianize(copy.deepcopy(model))
        how(posterior, data, epochs=1, lr=1e-9, likelihood=Homoscedastic(), progress=False)
        sigma[how] = stochastic_weights(posterior)[0].moments.sigma
    wide = pb.Relative().delta * model.weight.detach().abs()
    assert sigma[pb.fit].max() < 0.1 * wide.max()
    torch.testing.assert_close(sigma[pb.fit_map], wide)


# --- of training ---------------------------------------------------------------------------------------------------


def few_blobs() -> TensorDataset:
    g = torch.Generator().manual_seed(0)
    y = torch.randint(4, (300,), generator=g)
    return TensorDataset(torch.randn(4, 10, generator=g)[y] + 0.8 * torch.randn(300, 10, generator=g), y)


def test_training_finds_the_temperature_at_which_noise_costs_what_it_may() -> None:
    """Within a factor of two; at T = 1 it would cost several times that."""
    loader, cost = DataLoader(few_blobs(), 60), {}
    for temperature in ("auto", 1.0):
        torch.manual_seed(0)
        model = pb.bayesianize(nets.mlp([10, 64, 4]))
        options = {"lr": 3e-3, "rho_lr": 0.05, "noise_cost": 0.02, "progress": False}
        history = pb.fit(model, loader, epochs=60, temperature=temperature, **options)
        cost[temperature] = measured_noise_cost(model, loader, samples=16).nats
        assert (history[-1].temperature < 0.5) == (temperature == "auto")
    assert 0.01 < cost["auto"] < 0.04 < 0.08 < cost[1.0]


def test_training_whose_noise_costs_little_is_that_of_bayes() -> None:
    model, x, y = line()
    posterior = pb.bayesianize(model, prior=pb.ZeroMean(1.0), sigma=pb.Absolute(0.01))
    options = {"likelihood": Homoscedastic(TAU), "temperature": "auto", "progress": False}
    batches = list(
        zip(x.split(20), y.split(20), strict=True)
    )  # enough of them to know the Fisher information
    history = pb.fit(posterior, batches, epochs=3, anneal=0.0, **options)
    assert [epoch.temperature for epoch in history.epochs] == [1.0] * 3


def test_the_temperature_of_shared_weights_is_not_looked_for() -> None:
    model = pb.bayesianize(nets.mlp([10, 64, 4]))
    pb.share(model, pb.Rate(lambda_=4.0))
    with pytest.raises(ValueError, match=r"0\.weight is\. Pass a number"):
        pb.fit(model, DataLoader(few_blobs(), 60), epochs=1, temperature="auto", progress=False)
    with pytest.raises(ValueError, match="temperature must be a finite number"):
        pb.fit(model, DataLoader(few_blobs(), 60), epochs=1, temperature="cold", progress=False)  # type: ignore[arg-type]
