"""One pass, a number of draws, as many as needed: against plain forward passes and loops by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import pocketbayes as pb
from pocketbayes.likelihood import Categorical, Heteroscedastic, Homoscedastic
from pocketbayes.prediction.average import MOST, TOLERANCE
from pocketbayes.prediction.scales import Scale, Scales, give_scales, scales_of


def network(sigma: float = 0.1) -> nn.Module:
    torch.manual_seed(0)
    return pb.bayesianize(pb.nets.mlp([4, 16, 3]), sigma=pb.Absolute(sigma))


def inputs(n: int = 60) -> Tensor:
    return 3 * torch.randn(n, 4, generator=torch.Generator().manual_seed(1))


def by_hand(model: nn.Module, x: Tensor, samples: int, seed: int = 0) -> Tensor:
    """[S, N, C] probabilities, one forward pass of the converted model for each draw."""
    found = []
    with torch.no_grad():
        for s in range(samples):
            with pb.one_draw(model.eval(), seed, s):
                found.append(model(x).double().softmax(-1))
    return torch.stack(found)


def stopped(draws: Tensor, tolerance: float, modes: int = 1) -> tuple[Tensor, Tensor]:
    """Of one input, [S, C]: the mean of as many draws as it needs, and how many those are."""
    size = 2 * modes
    for n in range(size, len(draws) + 1, size):
        rounds = torch.stack([part.mean(0) for part in draws[:n].split(size)])
        within = sum(draws[m:n:modes].var(0, correction=0).sum().item() for m in range(modes)) / modes
        known = sum((one - rounds.mean(0)).square().sum().item() for one in rounds)
        variance = (known + 2 * 0.2 * within / modes) / (len(rounds) - 1 + 2)
        if math.sqrt(variance / len(rounds)) <= tolerance:
            return rounds.mean(0), torch.tensor(n)
    return draws.mean(0), torch.tensor(len(draws))


# --- one pass ----------------------------------------------------------------------------------------------------


def test_one_pass_is_the_plain_network_with_the_means() -> None:
    model, x = network(), inputs()
    with torch.no_grad():
        expected = pb.to_deterministic(model).eval()(x).double().softmax(-1)
    answer = pb.predict(model, x, samples="mean")
    torch.testing.assert_close(answer.probs, expected)
    torch.testing.assert_close(answer.epistemic, torch.zeros(60, dtype=torch.float64))
    assert answer.passes is not None
    assert answer.passes.tolist() == [1] * 60
    assert pb.evaluate(model, [(x, torch.zeros(60).long())], samples="mean").passes == 1
    assert not torch.allclose(pb.predict(model, x, samples=1).probs, expected, atol=0.01)  # a control


def test_one_pass_runs_the_network_once() -> None:
    calls: list[int] = []
    model = network()
    model[0].register_forward_hook(lambda module, args, output: calls.append(len(output)))
    pb.predict(model, inputs(), samples="mean")
    assert calls == [60]


def test_one_pass_of_a_regression_has_the_noise_alone() -> None:
    model, x = pb.bayesianize(pb.nets.mlp([4, 8, 1])), inputs()
    answer = pb.predict(model, x, samples="mean", likelihood=Homoscedastic(0.3))
    torch.testing.assert_close(answer.var, torch.full((60, 1), 0.09, dtype=torch.float64))
    assert not answer.epistemic_var.any()


# --- temperatures ------------------------------------------------------------------------------------------------


def test_logits_are_divided_by_the_temperature_of_the_way_of_answering() -> None:
    model, x = network(), inputs()
    give_scales(model, Scales(Scale(2.0), Scale(3.0)))
    with torch.no_grad():
        means = (pb.to_deterministic(model).eval()(x).double() / 2).softmax(-1)
    torch.testing.assert_close(pb.predict(model, x, samples="mean").probs, means)
    draws = (by_hand(model, x, 5).log() / 3).softmax(-1)
    torch.testing.assert_close(pb.predict(model, x, samples=5).probs, draws.mean(0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("likelihood", [Homoscedastic(0.3), Heteroscedastic()])
def test_a_regressions_noise_variance_is_multiplied_by_the_temperature(
    likelihood: Homoscedastic | Heteroscedastic,
) -> None:
    model, x = pb.bayesianize(pb.nets.mlp([4, 8, 2])), inputs()
    before = pb.predict(model, x, samples=6, likelihood=likelihood)
    give_scales(model, Scales(draws=Scale(4.0)))
    after = pb.predict(model, x, samples=6, likelihood=likelihood)
    noise = before.var - before.epistemic_var
    torch.testing.assert_close(after.var - after.epistemic_var, 4 * noise)
    torch.testing.assert_close(after.epistemic_var, before.epistemic_var)


def test_a_saved_model_answers_with_its_temperatures_and_sets(tmp_path: Path) -> None:
    model, x, scales = network(), inputs(), Scales(Scale(1.25, 0.75), Scale(0.5, 0.625), 0.25)
    give_scales(model, scales)
    pb.save(model, tmp_path / "a.pocket", metadata={"mine": 1}, precision=pb.artifact.FLOAT32)
    metadata = pb.artifact.decode(tmp_path / "a.pocket").metadata
    assert metadata == {
        "mine": 1,
        "logit_temperature": {"mean": 1.25, "draws": 0.5},
        "conformal": {"alpha": 0.25, "mean": 0.75, "draws": 0.625},
    }
    loaded = pb.load(tmp_path / "a.pocket", pb.nets.mlp([4, 16, 3]))
    assert scales_of(loaded) == scales
    for samples in ("mean", 3):
        mine, theirs = (pb.predict(m, x, samples=samples) for m in (model, loaded))
        torch.testing.assert_close(mine.probs, theirs.probs)
        assert mine.sets is not None and theirs.sets is not None
        assert torch.equal(mine.sets, theirs.sets)
    pb.save(network(), tmp_path / "b.pocket")
    assert pb.artifact.decode(tmp_path / "b.pocket").metadata == {}


@pytest.mark.parametrize(
    "metadata",
    [
        {"logit_temperature": 1.0},
        {"logit_temperature": {"mean": 1.0}},
        {"logit_temperature": {"mean": 1.0, "draws": 0}},
        {"logit_temperature": {"mean": 1.0, "draws": "2"}},
        {"conformal": {"mean": 1.0, "draws": 1.0}},
        {"conformal": {"alpha": 1, "mean": 1.0, "draws": 1.0}},
    ],
)
def test_a_file_with_other_scales_than_numbers_is_refused(tmp_path: Path, metadata: dict) -> None:
    pb.save(network(), tmp_path / "a.pocket", metadata=metadata)
    plain = pb.nets.mlp([4, 16, 3])
    with pytest.raises(ValueError, match=r"a\.pocket.*(logit_temperature|conformal)"):
        pb.load(tmp_path / "a.pocket", plain)
    assert not hasattr(plain[0], "parametrizations")


def test_training_undoes_the_temperatures() -> None:
    model, x = network(), inputs()
    give_scales(model, Scales(Scale(2.0), Scale(2.0)))
    pb.fit(model, [(x, torch.zeros(60).long())], epochs=1, progress=False)
    assert scales_of(model) == Scales()


# --- as many draws as needed --------------------------------------------------------------------------------------


@pytest.mark.parametrize("tolerance", [0.002, 0.01, 0.05])
def test_an_input_has_the_draws_that_it_needs(tolerance: float) -> None:
    model, x = network(), inputs()
    draws = by_hand(model, x, 20)
    expected = [stopped(draws[:, i], tolerance) for i in range(60)]
    answer = pb.predict(model, x, samples=20, tolerance=tolerance, batch_size=16)
    assert answer.passes is not None
    assert torch.equal(answer.passes, torch.stack([count for _, count in expected]))
    probs = torch.stack([p for p, _ in expected])
    torch.testing.assert_close(answer.probs, probs, rtol=1e-5, atol=1e-6)
    some = torch.stack(
        [
            draws[: int(n), i].log().mul(draws[: int(n), i]).sum(-1).neg().mean()
            for i, (_, n) in enumerate(expected)
        ]
    )
    torch.testing.assert_close(answer.aleatoric, some, rtol=1e-4, atol=1e-6)
    if tolerance == 0.01:  # a control: the rule is at work
        assert 2.5 < answer.passes.double().mean() < 19


@pytest.mark.parametrize("modes", [2, 3])
def test_of_several_modes_a_round_is_a_pair_of_each(modes: int) -> None:
    torch.manual_seed(0)
    model = pb.bayesianize([pb.nets.mlp([4, 16, 3]) for _ in range(modes)], sigma=pb.Absolute(0.1))
    x, draws = inputs(), by_hand(model, inputs(), 20)
    expected = [stopped(draws[:, i], 0.02, modes) for i in range(60)]
    answer = pb.predict(model, x, samples=20, tolerance=0.02)
    assert answer.passes is not None
    assert answer.passes.tolist() == [int(n) for _, n in expected]
    torch.testing.assert_close(answer.probs, torch.stack([p for p, _ in expected]), rtol=1e-5, atol=1e-6)
    assert {2 * modes, 4 * modes} <= set(answer.passes.tolist()) <= {*range(0, 20, 2 * modes), 20}


def test_auto_is_thirty_draws_at_most_with_its_own_tolerance() -> None:
    model, x = network(), inputs()
    auto = pb.predict(model, x, samples="auto")
    same = pb.predict(model, x, samples=MOST, tolerance=TOLERANCE)
    assert torch.equal(auto.probs, same.probs)
    assert auto.passes is not None and same.passes is not None
    assert torch.equal(auto.passes, same.passes)


def test_the_answer_of_an_input_does_not_depend_on_its_batch_mates() -> None:
    model, x = network(), inputs()
    together = pb.predict(model, x, samples=30, tolerance=0.01)
    for size in (1, 2, 7):
        apart = pb.predict(model, x, samples=30, tolerance=0.01, batch_size=size)
        torch.testing.assert_close(apart.probs, together.probs, rtol=0, atol=1e-5)
        assert torch.equal(apart.passes, together.passes)


def test_the_batch_shrinks_as_inputs_finish() -> None:
    model, sizes = network(), list[int]()
    model[0].register_forward_hook(lambda module, args, output: sizes.append(len(output)))
    passes = pb.predict(model, inputs(), samples=30, tolerance=0.01).passes
    assert passes is not None
    expected = [int((passes > number).sum()) for number in range(int(passes.max()))]
    assert sizes[-len(expected) :] == expected and expected[-1] < 60


def test_what_no_random_weight_touches_is_still_computed_once_for_all_draws() -> None:
    torch.manual_seed(0)
    model = pb.bayesianize(
        nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)), where="2.*", sigma=pb.Absolute(0.5)
    )
    x, draws = inputs(), by_hand(model, inputs(), 20)
    answer = pb.predict(model, x, samples=20, tolerance=0.01)
    expected = [stopped(draws[:, i], 0.01) for i in range(60)]
    assert answer.passes is not None
    assert answer.passes.tolist() == [int(n) for _, n in expected]
    torch.testing.assert_close(answer.probs, torch.stack([p for p, _ in expected]), rtol=1e-5, atol=1e-6)


def test_an_example_is_finished_when_all_its_positions_are() -> None:
    torch.manual_seed(0)
    model = pb.bayesianize(nn.Linear(4, 3), sigma=pb.Absolute(0.3))  # logits [N, T, C]
    x = inputs(40).view(10, 4, 4)
    draws = by_hand(model, x, 20)  # [S, N, T, C]
    answer = pb.predict(model, x, samples=20, tolerance=0.01, likelihood=Categorical(class_dim=-1))
    each = torch.stack([stopped(draws[:, i, t], 0.01)[1] for i in range(10) for t in range(4)]).view(10, 4)
    assert answer.passes is not None
    assert torch.equal(answer.passes.view(10, 4), answer.passes.view(10, 4)[:, :1].expand(10, 4))
    assert (answer.passes.view(10, 4)[:, 0] >= each.amax(1)).all()
    assert answer.probs.shape == (40, 3)


def test_a_plain_network_is_run_once_however_it_is_asked() -> None:
    plain, x = pb.nets.mlp([4, 16, 3]), inputs()
    answers = [pb.predict(plain, x, samples=samples) for samples in (30, "mean", "auto")]
    assert all(torch.equal(answer.probs, answers[0].probs) for answer in answers)
    assert all(answer.passes is not None and answer.passes.eq(1).all() for answer in answers)


def test_bad_ways_of_answering_are_refused() -> None:
    model, x = network(), inputs()
    with pytest.raises(ValueError, match="tolerance must be positive"):
        pb.predict(model, x, tolerance=0.0)
    with pytest.raises(ValueError, match="makes none"):
        pb.predict(model, x, samples="mean", tolerance=0.1)
    with pytest.raises(ValueError, match="for classes"):
        pb.predict(model, x, samples="auto", likelihood=Homoscedastic(0.1))
    with pytest.raises(ValueError, match="keeps no draws"):
        pb.predict(model, x, samples="auto", draws=True)
    with pytest.raises(ValueError, match='"mean", "auto" or a number'):
        pb.predict(model, x, samples="many")
