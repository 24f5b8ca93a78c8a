from __future__ import annotations

import copy
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import pocketbayes as pb
from pocketbayes import nets, noise
from pocketbayes.data.loaders import count_examples
from pocketbayes.errors import ArtifactError, NonFiniteError, ReproducibilityWarning
from pocketbayes.likelihood import Heteroscedastic, Homoscedastic
from pocketbayes.posterior.weights import stochastic_weights
from pocketbayes.runs.checkpoint import load_checkpoint, save_checkpoint
from scenarios import linear_gaussian, prior_matters


def blobs(n: int = 96, seed: int = 0) -> TensorDataset:
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (n,), generator=g)
    return TensorDataset(torch.eye(3)[y] @ torch.ones(3, 4).triu() + 0.3 * torch.randn(n, 4, generator=g), y)


def loader(n: int = 96, batch_size: int = 16, shuffle: bool = True) -> DataLoader:
    return DataLoader(blobs(n), batch_size=batch_size, shuffle=shuffle)


def model(**options) -> nn.Module:
    with torch.random.fork_rng():
        torch.random.default_generator.manual_seed(3)
        return pb.bayesianize(nets.mlp([4, 8, 3]), **options)


def numbers(m: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in m.parameters()])


def test_training_finds_the_closed_form_optimum_of_mean_field_inference() -> None:
    """Linear-Homoscedastic: sigma within 2 %, the means of five runs within three standard errors, and the NELBO."""
    truth = linear_gaussian()
    data = [(truth.x, truth.y)]
    fitted = []
    for seed in range(5):
        m = pb.bayesianize(truth.model(), prior=pb.ZeroMean(truth.prior_sigma), sigma=pb.Absolute(0.03))
        options = {"lr": 0.02, "rho_lr": 0.03, "samples": 4, "anneal": 0.0, "seed": seed}
        pb.fit(m, data, epochs=1200, likelihood=Homoscedastic(truth.noise), **options)
        fitted.append(m)
    mu = torch.stack([stochastic_weights(m)[0].moments.mu[0].detach() for m in fitted])
    sigma = torch.stack([stochastic_weights(m)[0].moments.sigma[0].detach() for m in fitted]).mean(0)
    assert ((mu.mean(0) - truth.mu).abs() < 3 * mu.std(0) / 5**0.5 + 1e-3 * truth.sigma).all()
    assert (sigma / truth.sigma - 1).abs().max() < 0.02
    exact_posterior = truth.precision.inverse().diagonal().sqrt()
    assert (
        exact_posterior / truth.sigma - 1
    ).abs().max() > 0.03  # the control: another posterior would be told apart
    losses = torch.stack(
        [
            pb.nelbo(fitted[0], data[0], len(truth.x), likelihood=Homoscedastic(truth.noise)).loss.detach()
            for _ in range(400)
        ]
    )
    assert abs(losses.mean() - truth.nelbo) < 4 * losses.std() / 400**0.5 + 1e-3


def test_nelbo_is_nll_plus_scaled_kl() -> None:
    m, batch = model(), (torch.randn(5, 4), torch.randint(3, (5,)))
    parts = pb.nelbo(m, batch, 50, temperature=0.5)
    torch.testing.assert_close(parts.kl, pb.kl_divergence(m))
    torch.testing.assert_close(parts.loss, parts.nll + 0.5 / 50 * parts.kl)
    with pb.one_draw(m, 1):
        expected = nn.functional.cross_entropy(m(batch[0]), batch[1])
        torch.testing.assert_close(pb.nelbo(m, batch, 50).nll, expected)


def test_several_draws_make_one_loss_whose_parts_can_be_taken_one_by_one() -> None:
    """Their gradients add up to that of the loss, and each draw is open until its part is taken."""
    m, batch = model(), (torch.randn(5, 4), torch.randint(3, (5,)))
    options = {"samples": 3, "temperature": 0.5, "draw": lambda s: pb.one_draw(m, s)}
    whole = pb.nelbo(m, batch, 50, **options)
    by_hand = []
    for s in range(3):
        with pb.one_draw(m, s):
            by_hand.append(nn.functional.cross_entropy(m(batch[0]), batch[1]))
    torch.testing.assert_close(whole.loss, sum(by_hand) / 3 + 0.5 / 50 * pb.kl_divergence(m))
    expected = torch.autograd.grad(whole.loss, list(m.parameters()))
    parts = pb.nelbo(m, batch, 50, backward=lambda loss: loss.backward(), **options)
    assert not parts.loss.requires_grad
    torch.testing.assert_close(parts.loss, whole.loss.detach())
    torch.testing.assert_close([p.grad for p in m.parameters()], list(expected))


def test_another_penalty_may_stand_in_the_place_of_the_kl() -> None:
    m, batch = model(), (torch.randn(5, 4), torch.randint(3, (5,)))
    parts = pb.nelbo(m, batch, 50, temperature=2.0, penalty=lambda _: torch.tensor(7.0))
    assert parts.kl == 7.0
    torch.testing.assert_close(parts.loss, parts.nll + 2.0 * 7.0 / 50)


def test_fit_learns_and_reports_nll_and_kl_apart() -> None:
    m = model()
    history = pb.fit(m, loader(), epochs=15, lr=4e-2, temperature=0.02, validation=loader(48, shuffle=False))
    assert history[-1].nll < 0.5 * history[0].nll
    assert history[-1].kl > 0
    assert history[-1].temperature == pytest.approx(0.02)
    assert pb.evaluate(m, loader(shuffle=False)).accuracy > 0.9
    assert history.best_epoch is not None
    assert "kl" in str(history)


def test_the_callers_random_numbers_are_left_alone() -> None:
    before = (torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate())  # noqa: NPY002
    pb.fit(model(), loader(), epochs=1, validation=loader(32))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == np.random.get_state()[1].tolist()  # noqa: NPY002
    assert before[2] == random.getstate()


def test_the_seed_decides_everything() -> None:
    runs = []
    for seed in (1, 1, 2):
        m = model()
        torch.rand(3)
        pb.fit(m, loader(), epochs=2, seed=seed)
        runs.append(numbers(m))
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


@pytest.mark.parametrize("batches", [1, 6])
def test_the_kl_counts_once_however_many_batches(batches: int) -> None:
    """The optimum of the ELBO does not depend on the batch size."""
    truth = prior_matters()
    data = [(truth.x[i::batches], truth.y[i::batches]) for i in range(batches)]
    m = pb.bayesianize(truth.model(), prior=pb.ZeroMean(truth.prior_sigma), sigma=pb.Absolute(0.1))
    pb.fit(
        m,
        data,
        epochs=1200 // batches,
        likelihood=Homoscedastic(truth.noise),
        lr=0.02,
        rho_lr=0.02,
        anneal=0.0,
    )
    sigma = stochastic_weights(m)[0].moments.sigma[0]
    assert (sigma / truth.sigma - 1).abs().max() < 0.15
    counted_six_times = (truth.precision.diagonal() + 5 / truth.prior_sigma**2).rsqrt()
    assert (counted_six_times / truth.sigma - 1).abs().min() > 0.3  # the control: that would be told apart


def test_annealing_rises_to_its_end_and_patience_waits_for_it() -> None:
    history = pb.fit(
        model(), loader(), epochs=8, anneal=0.5, patience=1, validation=loader(16), lr=0.0, rho_lr=0.0
    )
    temperatures = [e.temperature for e in history.epochs]
    assert temperatures[0] == pytest.approx(0.25)
    assert temperatures == sorted(temperatures)
    assert len(history) == 5  # the temperature reaches 1 at the end of epoch 4, epoch 5 is no better: stop


def test_the_model_ends_at_its_best_epoch() -> None:
    """Trained on wrong labels it gets worse and worse: the first epoch is the best."""
    x, y = blobs().tensors
    wrong = DataLoader(TensorDataset(x, (y + 1) % 3), 16)
    m, validation = model(), loader(48, shuffle=False)
    history = pb.fit(
        m, wrong, epochs=4, lr=2e-2, anneal=0.0, validation=validation, validation_samples=4, seed=9
    )
    scores = [e.validation["nll"] for e in history.epochs]
    assert history.best_epoch == 0
    assert pb.evaluate(m, validation, samples=4, seed=9).nll == pytest.approx(scores[0]) != scores[-1]


@pytest.mark.parametrize("learned", [False, True])
def test_gaussian_noise_is_given_or_learned(learned: bool) -> None:
    truth = linear_gaussian(256)
    likelihood = Homoscedastic(1.0, learned=learned)
    m = pb.bayesianize(truth.model(), sigma=pb.Absolute(0.05))
    pb.fit(m, [(truth.x, truth.y)], epochs=800, likelihood=likelihood, lr=0.03, anneal=0.0)
    assert likelihood.sigma.item() == pytest.approx(truth.noise if learned else 1.0, rel=0.12)


def test_a_heteroscedastic_head_learns_noise_that_depends_on_x() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.rand(512, 1, generator=g)
    y = x + (0.05 + 0.5 * x) * torch.randn(512, 1, generator=g)
    m, likelihood = pb.bayesianize(nets.mlp([1, 16, 2])), Heteroscedastic()
    pb.fit(m, [(x, y)], epochs=300, likelihood=likelihood, lr=1e-2, temperature=0.1)
    sigma = pb.predict(m, torch.tensor([[0.1], [0.9]]), likelihood=likelihood).var.sqrt()
    assert sigma[1] > 2 * sigma[0]


def test_a_users_own_likelihood_and_dict_batches_work() -> None:
    class Dictionary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, features: Tensor) -> dict[str, Tensor]:
            return {"logits": self.layer(features)}

    batches = [{"features": x, "labels": y} for x, y in loader(shuffle=False)]
    first, second = pb.bayesianize(Dictionary()), None
    second = copy.deepcopy(first)
    pb.fit(first, batches, epochs=2)
    pb.fit(second, batches, epochs=2, likelihood=lambda out, y: nn.functional.cross_entropy(out["logits"], y))
    torch.testing.assert_close(numbers(first), numbers(second))
    assert 0 <= pb.evaluate(first, batches).accuracy <= 1


def test_any_optimizer_and_schedule_clip_accumulation_and_autocast() -> None:
    m = model()
    pb.fit(
        m,
        loader(),
        epochs=3,
        optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9),
        schedule=lambda o: torch.optim.lr_scheduler.StepLR(o, 5),
        clip=0.5,
        accumulate=2,
        autocast=torch.bfloat16,
    )
    assert torch.isfinite(numbers(m)).all()


def test_accumulated_batches_are_one_large_batch() -> None:
    """Without noise (vanishing sigma) two half batches give the step of the whole."""
    results = []
    for batch_size, accumulate in ((32, 1), (16, 2)):
        m = pb.bayesianize(pb.to_deterministic(model()), sigma=pb.Absolute(1e-7))
        pb.fit(
            m,
            loader(96, batch_size, shuffle=False),
            epochs=2,
            accumulate=accumulate,
            anneal=0.0,
            rho_lr=0.0,
            optimizer=lambda g: torch.optim.SGD(g, lr=0.1),
        )
        results.append(numbers(m))
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)


def test_batches_that_do_not_fill_a_step_make_one_of_their_own() -> None:
    """Five batches, two a step: as if the last were alone in its step, and nothing is left for the next epoch."""
    results = []
    for batches, accumulate in (((32, 32, 32, 32, 32), 2), ((64, 64, 32), 1)):
        x, y = blobs(160).tensors
        parts = list(zip(x.split(list(batches)), y.split(list(batches)), strict=True))
        m = pb.bayesianize(pb.to_deterministic(model()), sigma=pb.Absolute(1e-7))
        settings = {"anneal": 0.0, "rho_lr": 0.0, "optimizer": lambda g: torch.optim.SGD(g, lr=0.1)}
        pb.fit(m, parts, epochs=2, accumulate=accumulate, **settings)
        assert all(p.grad is None for p in m.parameters())
        results.append(numbers(m))
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("loader", "expected"),
    [
        (DataLoader(range(100), 10), 100),
        (DataLoader(range(100), 10, sampler=SubsetRandomSampler(range(30))), 30),
        (DataLoader(range(100), 10, sampler=RandomSampler(range(100), num_samples=20)), 100),
        (DataLoader(range(100), 10, sampler=WeightedRandomSampler(torch.ones(100), 500)), 100),
        (DataLoader(range(100), 10, sampler=DistributedSampler(range(100), 4, 0)), 100),
        (DataLoader(range(100), batch_size=None, sampler=BatchSampler(range(40), 10, False)), 40),
    ],
    ids=["all", "a part", "short epochs", "weighted", "distributed", "indices of batches"],
)
def test_n_is_the_number_of_examples_there_are_to_train_on(loader: DataLoader, expected: int) -> None:
    assert count_examples(loader) == expected


def test_the_best_epoch_has_its_own_noise() -> None:
    """Ten examples overfit: sigma goes on falling when the best epoch is long past."""
    g = torch.Generator().manual_seed(0)
    x, v = torch.randn(10, 4, generator=g), torch.randn(50, 4, generator=g)
    y, w = (t[:, :1] + 0.5 * torch.randn(len(t), 1, generator=g) for t in (x, v))
    noise, sigmas = Homoscedastic(1.0, learned=True), []
    m = pb.bayesianize(nets.mlp([4, 32, 1]))
    history = pb.fit(
        m,
        [(x, y)],
        epochs=150,
        lr=0.02,
        temperature=0.01,
        anneal=0.0,
        likelihood=noise,
        validation=[(v, w)],
        on_epoch=lambda _: sigmas.append(noise.sigma.item()),
    )
    assert sigmas[-1] < 0.8 * sigmas[history.best_epoch]
    found = pb.evaluate(m, [(v, w)], likelihood=noise, samples=8).nll
    then = pb.evaluate(m, [(v, w)], likelihood=Homoscedastic(sigmas[history.best_epoch]), samples=8).nll
    assert then == pytest.approx(history[history.best_epoch].validation["nll"])
    assert found < then  # sigma is fitted again at the end, to the validation data


# --- what can go wrong -------------------------------------------------------------------------------------------


class Stream(IterableDataset):
    def __iter__(self):
        yield from blobs(32)


def with_nan() -> DataLoader:
    x, y = blobs().tensors
    x = x.clone()
    x[40, 2] = torch.nan
    return DataLoader(TensorDataset(x, y), 16)


def fit_on(batches, **options) -> None:
    pb.fit(model(), batches, epochs=1, **options)


X = torch.ones(2, 4)
BAD = {
    "an empty loader": (lambda: fit_on([]), ValueError, "is empty"),
    "an empty loader of a known number": (lambda: fit_on([], num_data=5), ValueError, "is empty"),
    "a loader of ready batches": (
        lambda: fit_on(DataLoader([(X, X)], batch_size=None)),
        ValueError,
        "num_data",
    ),
    "a label between two classes": (lambda: fit_on([(X, torch.tensor([0, 0.5]))]), ValueError, "Label 0.5"),
    "a label that is NaN": (lambda: fit_on([(X, torch.tensor([0, torch.nan]))]), NonFiniteError, "target"),
    "one class": (
        lambda: pb.fit(pb.bayesianize(nn.Linear(4, 1)), [(X, X[:, :1])], epochs=1),
        ValueError,
        "single class",
    ),
    "patience with nothing": (
        lambda: fit_on(loader(), patience=0, validation=loader()),
        ValueError,
        "patience",
    ),
    "patience for nothing": (lambda: fit_on(loader(), patience=2), ValueError, "validation"),
    "a folder that is not there": (
        lambda: fit_on(loader(), checkpoint="no/such/folder/fit.safetensors"),
        FileNotFoundError,
        "no such folder",
    ),
    "labels out of range": (lambda: fit_on([(X, torch.tensor([0, 7]))]), ValueError, "Label 7"),
    "no number of data": (lambda: fit_on(DataLoader(Stream(), 8)), ValueError, "num_data"),
    "a plain model": (lambda: pb.fit(nn.Linear(4, 3), loader(), epochs=1), ValueError, "pb.bayesianize"),
    "float16": (
        lambda: pb.fit(pb.bayesianize(nets.mlp([4, 3]).half()), loader(), epochs=1),
        ValueError,
        "too coarse for Adam.*bfloat16",
    ),
    "half an epoch": (lambda: pb.fit(model(), loader(), epochs=1.5), ValueError, "epochs must be a whole"),
    "no epochs": (lambda: pb.fit(model(), loader(), epochs=0), ValueError, "epochs"),
    "NaN in the data": (lambda: fit_on(with_nan()), NonFiniteError, "batch 2.*input 0"),
    "targets that broadcast": (
        lambda: fit_on([(X, torch.ones(2))], likelihood=Homoscedastic()),
        ValueError,
        "do not fit",
    ),
    "a batch that is no pair": (lambda: fit_on([X], num_data=2), ValueError, "batch must be"),
    "a dict without labels": (lambda: fit_on([{"x": X}], num_data=2), ValueError, "labels"),
}


@pytest.mark.parametrize(("attempt", "error", "message"), BAD.values(), ids=BAD)
def test_bad_input_gets_an_error_that_teaches(attempt, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        attempt()


def test_an_exploding_step_names_itself_and_leaves_the_model_sound() -> None:
    m = model()
    with torch.no_grad():
        stochastic_weights(m)[1].original.fill_(3e38)
    with pytest.raises(NonFiniteError, match="epoch 0, batch 0"):
        pb.fit(m, loader(), epochs=1)
    with torch.no_grad():
        stochastic_weights(m)[1].original[0, 0] = torch.nan
    with pytest.raises(NonFiniteError, match=r"2\.parametrizations\.weight\.original"):
        pb.fit(m, loader(), epochs=1)


@pytest.mark.parametrize(("value", "message"), [(torch.nan, "input 0"), (1e30, r"1\.running_var")])
def test_a_bad_batch_leaves_no_trace_in_a_norm(value: float, message: str) -> None:
    """NaN, or values so large that only the running variance overflows."""
    m = pb.bayesianize(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)))
    m.register_buffer("mask", torch.tensor([0.0, -torch.inf]))  # not finite, and nobody's fault
    (x, y), before = blobs(16).tensors, {name: t.clone() for name, t in m.named_buffers()}
    bad = x.clone()
    bad[3, 1] = value
    with pytest.raises(NonFiniteError, match=message):
        pb.fit(m, [(bad, y)], epochs=1)
    assert all(torch.equal(t, before[name]) for name, t in m.named_buffers())
    pb.fit(m, [(x, y)], epochs=1)
    assert not torch.equal(m[1].running_mean, before["1.running_mean"])


def test_gradients_that_the_caller_left_do_not_count() -> None:
    models = [model(), model()]
    for p in models[0].parameters():
        p.grad = torch.full_like(p, torch.nan)
    for m in models:
        pb.fit(m, loader(), epochs=1)
    assert all(torch.equal(*pair) for pair in zip(*(m.state_dict().values() for m in models), strict=True))


# --- checkpoints -------------------------------------------------------------------------------------------------


class Stop(Exception):
    pass


def interrupted(path: Path, after: int, **options) -> None:
    """Train until `after` batches were read, then die."""
    seen = 0

    def count(*_: object) -> None:
        nonlocal seen
        seen += 1
        if seen > after:
            raise Stop

    m = model()
    m.register_forward_pre_hook(count)
    with pytest.raises(Stop):
        pb.fit(m, loader(), checkpoint=path, checkpoint_seconds=0, **options)


@pytest.mark.parametrize("after", [1, 5, 6, 7, 11, 17])
@pytest.mark.parametrize(
    "options", [{}, {"accumulate": 2, "samples": 1}, {"accumulate": 4}, {"validation": True}], ids=str
)
def test_a_resumed_run_ends_with_the_same_bits(tmp_path: Path, after: int, options: dict) -> None:
    settings = {"epochs": 3, "lr": 1e-2, **options}
    if "validation" in options:
        settings["validation"] = loader(32, shuffle=False)
    whole = model()
    expected = pb.fit(whole, loader(), **settings)
    interrupted(tmp_path / "run.safetensors", after, **settings)
    resumed = model()
    history = pb.fit(resumed, loader(), checkpoint=tmp_path / "run.safetensors", **settings)
    assert torch.equal(numbers(resumed), numbers(whole))
    assert [e[:5] for e in history.epochs] == [e[:5] for e in expected.epochs]


def test_a_compiled_network_goes_on_too_and_shares_checkpoints_with_the_one_inside(tmp_path: Path) -> None:
    first, second = (torch.compile(model(), backend="eager") for _ in range(2))
    pb.fit(first, loader(), epochs=2, checkpoint=tmp_path / "c")
    plain = model()
    for other in (second, plain):
        pb.fit(other, loader(), epochs=2, checkpoint=tmp_path / "c")
    assert torch.equal(numbers(first), numbers(second))
    assert torch.equal(numbers(first), numbers(plain))


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    first, second = model(), model()
    pb.fit(first, loader(), epochs=2, checkpoint=tmp_path / "c")
    again = pb.fit(second, loader(), epochs=2, checkpoint=tmp_path / "c")
    assert len(again) == 2
    assert torch.equal(numbers(first), numbers(second))


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c"
    pb.fit(model(), loader(), epochs=1, checkpoint=path)
    with pytest.raises(ArtifactError, match="epochs was 1, is 2"):
        pb.fit(model(), loader(), epochs=2, checkpoint=path)
    with pytest.raises(ArtifactError, match="shape"):
        pb.fit(pb.bayesianize(nets.mlp([4, 9, 3])), loader(), epochs=1, checkpoint=path)
    for prior, complaint in (
        (pb.ZeroMean(0.7), "sigma in .* was 0.* is 0.7"),
        (pb.Pretrained(1.0), "prior_mu is missing"),
    ):
        with pytest.raises(ArtifactError, match=complaint):
            pb.fit(model(prior=prior), loader(), epochs=1, checkpoint=path)
    with pytest.raises(ArtifactError, match="number of batches was 6, is 3"):
        pb.fit(model(), loader(batch_size=32), epochs=1, checkpoint=path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ArtifactError, match="damaged"):
        pb.fit(model(), loader(), epochs=1, checkpoint=path)


MALFORMED = {
    "nothing": lambda tree: {},
    "a number": lambda tree: 3,
    "no optimizer": lambda tree: {k: v for k, v in tree.items() if k != "optimizer"},
    "another optimizer": lambda tree: {**tree, "optimizer": {"state": {}, "param_groups": []}},
    "no weights": lambda tree: {**tree, "trained": {}},
    "an empty best epoch": lambda tree: {**tree, "state": {**tree["state"], "best": {}}},
    "nothing for weights": lambda tree: {**tree, "trained": None},
    "random numbers from far away": lambda tree: {
        **tree,
        "random": {**tree["random"], "numpy": (*tree["random"]["numpy"][:2], 1 << 40, 0, 0.0)},
    },
    "random numbers of another type": lambda tree: {
        **tree,
        "random": {
            **tree["random"],
            "numpy": ("MT19937", torch.zeros(624, dtype=torch.complex64), *tree["random"]["numpy"][2:]),
        },
    },
    "a list of weights": lambda tree: {**tree, "trained": [1, 2]},
    "a state of something else": lambda tree: {**tree, "state": {**tree["state"], "moon": 1}},
    "no random numbers": lambda tree: {**tree, "random": {"torch": torch.zeros(3)}},
}


@pytest.mark.parametrize("change", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_checkpoint_is_refused_before_the_model_is_touched(tmp_path: Path, change) -> None:
    path, m = tmp_path / "run.safetensors", model()
    pb.fit(model(), loader(), epochs=2, checkpoint=path)
    save_checkpoint(path, change(load_checkpoint(path)))
    before = numbers(m)
    with pytest.raises(ArtifactError, match=r"run\.safetensors"):
        pb.fit(m, loader(), epochs=2, checkpoint=path)
    assert torch.equal(numbers(m), before)


def batches(**changes) -> pb.data.BatchLoader:
    g = torch.Generator().manual_seed(changes.get("seed", 0))
    x, y = torch.randn(32, 4, generator=g), torch.randint(3, (32,), generator=g)
    return pb.data.BatchLoader(x.to(changes.get("dtype", torch.float32)), y, 8)


OTHERS = {
    "data of equal length": ({}, batches(seed=1), {}, "the data was"),
    "noise": ({"noise": noise.Laplace()}, batches(), {}, "the noise of .* was Gaussian, is Laplace"),
    "a noise of the family": ({"noise": noise.Bimodal(0.5)}, batches(), {}, "the noise of"),
    "a likelihood": ({}, batches(), {"likelihood": lambda out, y: out.square().mean()}, "likelihood"),
    "a schedule": (
        {},
        batches(),
        {"schedule": lambda o: torch.optim.lr_scheduler.ConstantLR(o)},
        "the schedule was LambdaLR, is ConstantLR",
    ),
    "a type": ({"dtype": torch.float64}, batches(dtype=torch.float64), {}, "float32, is .*float64"),
}


@pytest.mark.parametrize(("made", "data", "options", "message"), OTHERS.values(), ids=OTHERS)
def test_a_run_with_another_setting_is_refused_and_the_model_left_alone(
    tmp_path: Path, made: dict, data: pb.data.BatchLoader, options: dict, message: str
) -> None:
    pb.fit(model(), batches(), epochs=1, checkpoint=tmp_path / "c")
    other = pb.bayesianize(nets.mlp([4, 8, 3]).to(made.pop("dtype", torch.float32)), **made)
    before = numbers(other)
    with pytest.raises(ArtifactError, match=message):
        pb.fit(other, data, epochs=1, checkpoint=tmp_path / "c", **options)
    assert torch.equal(numbers(other), before)


RISKS = {
    "workers that stay": ({"num_workers": 1, "persistent_workers": True}, 1, "persistent_workers"),
    "a generator": ({"shuffle": True, "generator": torch.Generator()}, 1, "generator of its own"),
    "more threads": ({}, 2, "it ran on 1 threads, now on 2"),
}


@pytest.mark.parametrize(("options", "threads", "message"), RISKS.values(), ids=RISKS)
def test_resuming_warns_where_the_bits_may_differ(
    tmp_path: Path, options: dict, threads: int, message: str
) -> None:
    def run() -> None:
        pb.fit(model(), DataLoader(batches().dataset, 8, **options), epochs=1, checkpoint=tmp_path / "c")

    run()
    torch.set_num_threads(threads)
    try:
        with pytest.warns(ReproducibilityWarning, match=message):
            run()
    finally:
        torch.set_num_threads(1)


def test_resuming_a_stream_warns(tmp_path: Path) -> None:
    class Counted(DataLoader):
        def __len__(self) -> int:
            return 4

    def run() -> None:
        pb.fit(model(), Counted(Stream(), 8), epochs=2, num_data=32, checkpoint=tmp_path / "c")

    run()
    with pytest.warns(ReproducibilityWarning, match="map-style"):
        run()


KILLED = """
import os, random, signal, sys, time, torch
torch.set_num_threads(1)
sys.path[:0] = {tests}
import pocketbayes as pb
from test_fit import loader, model, numbers

def train(folder):
    m = model()
    pb.fit(m, loader(), epochs=12, checkpoint=folder + "/run", checkpoint_seconds=0.0, progress=False)
    torch.save(numbers(m), folder + "/done.tmp")
    os.replace(folder + "/done.tmp", folder + "/done")

def child(folder):
    pid = os.fork()
    if pid == 0:
        train(folder)
        os._exit(0)
    return pid

reference, folder = sys.argv[1], sys.argv[2]
train(reference)  # undisturbed; also warms up, so that children are quick
started = time.monotonic()
os.waitpid(child(reference + "/twin"), 0)
span = time.monotonic() - started
expected = torch.load(reference + "/done")
dice, killed = random.Random(0), 0
for trial in range(int(sys.argv[3])):
    place = folder + "/" + str(trial)
    os.mkdir(place)
    while not os.path.exists(place + "/done"):
        pid = child(place)
        time.sleep(dice.uniform(0, span))
        os.kill(pid, signal.SIGKILL)
        killed += os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    assert torch.equal(torch.load(place + "/done"), expected), trial
print("killed", killed)
"""


def test_a_run_killed_at_random_moments_ends_with_the_same_weights(tmp_path: Path) -> None:
    for name in ("reference", "reference/twin", "runs"):
        (tmp_path / name).mkdir()
    script = KILLED.format(tests=[str(Path(__file__).parent), str(Path(__file__).parent.parent)])
    command = [sys.executable, "-c", script, str(tmp_path / "reference"), str(tmp_path / "runs"), "20"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) >= 10  # most of the runs were really killed
