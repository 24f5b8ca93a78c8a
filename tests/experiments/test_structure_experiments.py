"""The machinery of the structure experiments: batches of posteriors, their estimators, the NUTS reference."""

from __future__ import annotations

import json
import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import pocketbayes as pb
from experiments.record import kept, save_figure, summary
from experiments.structure import digits, native, one_dimension, uci, uci_report
from experiments.structure.batched import (
    START_SIGMA,
    Local,
    Means,
    Networks,
    Noise,
    Plan,
    Schedule,
    Step,
    Task,
    Trainer,
    Weights,
    nelbo,
    predict,
    score,
)
from experiments.structure.ordered import ordered_biases, ordered_kl, ordered_start
from experiments.structure.schemes import Sizes, deterministic_plans, plans, symmetries, weights_of
from pocketbayes.posterior.weights import stochastic_weights
from pocketbayes.structure import Constant, Fixed, Heavy, Light, Random, Scheme, Values, Zero, fix_weights

WIDTHS = (3, 6, 5, 2)


def toy_task(rows: int = 12, seed: int = 0) -> Task:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 3, generator=generator, dtype=torch.float64)
    return Task(x, torch.stack([x[:, 0], x[:, 1] * x[:, 2]], 1), 0.3)


def toy_networks(*given: Plan, seed: int = 0) -> Networks:
    return Networks(WIDTHS, given or (Plan(),), seed, torch.float64)


def fixed_by(scheme: Scheme, values: Values = Zero()) -> dict[str, Fixed]:
    return fix_weights(weights_of(WIDTHS), scheme, values)


def converted(networks: Networks) -> nn.Module:
    """The first network of the batch, built with the library."""
    model = pb.nets.mlp(list(WIDTHS), nn.Tanh).double()
    for number, layer in enumerate(networks.layers):
        linear = model[2 * number]
        assert isinstance(linear, nn.Linear)
        linear.weight.data, linear.bias.data = layer.mu[0].detach().clone(), layer.bias_mu[0].detach().clone()
    return pb.bayesianize(model, prior=pb.ZeroMean(1.0), sigma=pb.Constant(START_SIGMA), biases=True)


@pytest.mark.parametrize("values", [None, Zero(), Constant(1.5, trained=True, seed=2)])
def test_nelbo_and_gradient_of_a_batch_are_those_of_the_library_with_the_same_draw(
    values: Values | None,
) -> None:
    fixed = {} if values is None else fixed_by(Heavy(), values)
    task, networks = toy_task(), toy_networks(Plan(fixed, trained=isinstance(values, Constant)), Plan())
    model = converted(networks)
    if values is not None:
        pb.break_symmetry(model, Heavy(), values)
    with pb.one_draw(model, seed=3):
        result = pb.nelbo(model, task[:2], len(task.x), likelihood=pb.likelihood.Gaussian(task.noise))
        layers = [model.get_submodule(str(2 * number)) for number in range(3)]
        drawn = [(layer.weight.detach(), layer.bias.detach()) for layer in layers]
    result.loss.backward()
    noise = [
        Noise((weight - layer.mu[0])[None] / START_SIGMA, (bias - layer.bias_mu[0])[None] / START_SIGMA)
        for layer, (weight, bias) in zip(networks.layers, drawn, strict=True)
    ]
    losses = nelbo(
        networks, Weights(1), Step(task, [Noise(*(t.detach() for t in n)) for n in noise], torch.ones(()))
    )
    (losses / len(task.x)).sum().backward()
    close(losses[0] / len(task.x), result.loss)
    sites = {site.path: site for site in stochastic_weights(model)}
    for number, layer in enumerate(networks.layers):
        weight, bias = sites[f"{2 * number}.weight"], sites[f"{2 * number}.bias"]
        free = layer.free[0].bool()
        close(layer.mu.grad[0][free], weight.original.grad.flatten())
        close(layer.rho.grad[0][free], weight.weight.rho.grad.flatten())
        close(layer.bias_mu.grad[0], bias.original.grad)
        close(layer.bias_rho.grad[0], bias.weight.rho.grad)
    if isinstance(values, Constant):
        close(networks.c.grad[0], weight.weight.fixed.c.grad)
    assert not torch.isclose(losses[0], losses[1]) or values is None


@pytest.mark.skipif(not native.usable(), reason="needs a C++ compiler")
@pytest.mark.parametrize("widths", [(8, 50, 50, 2), (13, 21, 1), (1, 64, 33, 9, 3), (4, 2)])
@pytest.mark.parametrize("scale", [0.3, 30.0])
def test_squared_errors_and_gradients_are_those_of_autograd(widths: tuple[int, ...], scale: float) -> None:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    x, y = normal(133, widths[0]), normal(133, widths[-1])  # two blocks of rows and a part of one
    weights = [scale * normal(2, 3, outputs, inputs) for inputs, outputs in pairwise(widths)]
    biases = [scale * normal(2, 3, outputs) for outputs in widths[1:]]
    tensors = [t.requires_grad_() for t in (*weights, *biases)]
    hidden = x.double()
    for number, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        hidden = hidden @ weight.double().mT + bias.double()[..., None, :]
        hidden = hidden.tanh() if number + 2 < len(widths) else hidden
    exact = (hidden - y).square().sum((-1, -2))
    found = native.squared_errors(x, y, weights, biases)
    torch.testing.assert_close(found.double(), exact, rtol=1e-4 if scale > 1 else 1e-5, atol=0)
    upstream = torch.arange(1.0, 7.0).view(2, 3)  # a gradient of its own for every draw
    ours, theirs = (torch.autograd.grad((f * upstream).sum(), tensors) for f in (found, exact))
    for a, b in zip(ours, theirs, strict=True):
        assert (a - b).norm() < (5e-3 if scale > 1 else 1e-5) * b.norm()


def test_the_kernel_refuses_what_it_cannot_do() -> None:
    x, y = torch.zeros(5, 2), torch.zeros(5, 1)
    good = [torch.zeros(3, 1, 2)], [torch.zeros(3, 1)]
    with pytest.raises(TypeError, match="float32"):
        native.squared_errors(x.double(), y, *good)
    with pytest.raises(ValueError, match="64 wide"):
        native.squared_errors(x, torch.zeros(5, 65), [torch.zeros(3, 65, 2)], [torch.zeros(3, 65)])
    with pytest.raises(ValueError, match="after 2 inputs"):
        native.squared_errors(x, y, [torch.zeros(3, 1, 4)], [torch.zeros(3, 1)])
    with pytest.raises(ValueError, match="y must be"):
        native.squared_errors(x, y[:3], *good)


def close(ours: Tensor, theirs: Tensor) -> None:
    """Within what float32 leaves of the logarithm of the observation noise, which the library keeps in it."""
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


def mean_and_error(
    networks: Networks, task: Task, estimator: Local | Weights, repeats: int
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        values = torch.stack(
            [nelbo(networks, estimator, estimator.draw(networks, task, generator)) for _ in range(repeats)]
        )
    return values.mean(0), values.std(0) / math.sqrt(repeats)


@pytest.mark.parametrize("local", [Local(), Local(5)])
def test_local_reparameterisation_estimates_the_same_nelbo_as_draws_of_weights(local: Local) -> None:
    task = toy_task()
    given = (Plan(), Plan(fixed_by(Light(), Constant(2.0)), trained=True), Plan(ordered=True))
    networks, wider = toy_networks(*given), toy_networks(*given)
    for narrow, wide in zip(networks.layers, wider.layers, strict=True):
        narrow.rho.data.fill_(-0.5)
        narrow.bias_rho.data.fill_(-0.5)
        wide.rho.data.fill_(0.0)
        wide.bias_rho.data.fill_(-0.5)
    expected, error = mean_and_error(networks, task, Weights(100), 20)
    mean, other_error = mean_and_error(networks, task, local, 300)
    assert ((mean - expected).abs() < 4 * (error.square() + other_error.square()).sqrt()).all()
    wrong, wrong_error = mean_and_error(wider, task, local, 300)  # another posterior is told apart
    assert ((wrong - expected).abs() > 4 * (error.square() + wrong_error.square()).sqrt()).all()


def test_gradients_of_the_local_estimator_are_those_of_finite_differences() -> None:
    task, networks = (
        toy_task(),
        toy_networks(Plan(fixed_by(Light(), Constant(1.0)), trained=True), Plan(ordered=True)),
    )
    step = Local().draw(networks, task, torch.Generator().manual_seed(0))
    names = networks.parameters()

    def loss(*values: Tensor) -> Tensor:
        for tensor, value in zip(names, values, strict=True):
            tensor.data.copy_(value.data)
        return nelbo(networks, Local(), step).sum()

    loss(*names).backward()
    for tensor in names:
        analytic, index = (
            tensor.grad,
            int(torch.randint(tensor.numel(), (), generator=torch.Generator().manual_seed(1))),
        )
        assert analytic is not None
        base, shift = tensor.detach().clone(), torch.zeros(tensor.numel(), dtype=torch.float64)
        shift[index] = 1e-6
        values = []
        for sign in (1.0, -1.0):
            tensor.data.copy_(base + sign * shift.reshape(base.shape))
            values.append(nelbo(networks, Local(), step).sum().item())
        tensor.data.copy_(base)
        assert (values[0] - values[1]) / 2e-6 == pytest.approx(
            analytic.flatten()[index].item(), rel=1e-4, abs=1e-4
        )


def test_fixed_entries_have_no_gradient_no_kl_and_no_draw_and_a_trained_constant_has_a_gradient() -> None:
    task, fixed = toy_task(), fixed_by(Heavy(), Constant(1.5, seed=2))
    networks = toy_networks(Plan(fixed, trained=True), Plan(fixed))
    step = Local().draw(networks, task, torch.Generator().manual_seed(0))
    nelbo(networks, Local(), step).sum().backward()
    expected = torch.zeros((), dtype=torch.float64)
    standard = torch.distributions.Normal(torch.zeros((), dtype=torch.float64), 1.0)
    for number, layer in enumerate(networks.layers):
        part = fixed[f"{2 * number}.weight"]
        mask = torch.from_numpy(part.mask)
        assert layer.mu.grad is not None and layer.rho.grad is not None
        assert (layer.mu.grad[:, mask] == 0).all() and (layer.rho.grad[:, mask] == 0).all()
        assert (layer.mu.grad[:, ~mask] != 0).all()
        torch.testing.assert_close(networks.means(layer)[0][mask], torch.from_numpy(part.values)[mask])
        assert (networks.sigmas(layer)[:, mask] == 0).all()
        for mu in (layer.mu[0][~mask], layer.bias_mu[0]):
            q = torch.distributions.Normal(mu.detach(), START_SIGMA)
            expected += torch.distributions.kl_divergence(q, standard).sum()
    torch.testing.assert_close(networks.kl()[0].detach(), expected)
    assert networks.c.grad is not None and networks.c.grad[0] != 0 and networks.c.grad[1] == 0


def test_ordered_biases_rise_and_their_kl_is_that_of_sampling() -> None:
    generator = torch.Generator().manual_seed(0)
    bias = torch.randn(6, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(ordered_biases(ordered_start(bias)), bias.sort().values)
    mu = torch.randn(1, 6, generator=generator, dtype=torch.float64) * 0.5 - 0.5
    sigma = torch.rand(1, 6, generator=generator, dtype=torch.float64) * 0.5 + 0.1
    q = torch.distributions.Normal(mu[0], sigma[0])
    z = mu[0] + sigma[0] * torch.randn(200_000, 6, generator=generator, dtype=torch.float64)
    b = ordered_biases(z)
    assert (b.diff(dim=-1) > 0).all()
    jacobian = torch.autograd.functional.jacobian(ordered_biases, z[0])
    assert jacobian.slogdet().logabsdet == pytest.approx(z[0, 1:].sum().item())
    log_prior = math.lgamma(7) + torch.distributions.Normal(torch.zeros(6).double(), 1.0).log_prob(b).sum(1)
    terms = q.log_prob(z).sum(1) - z[:, 1:].sum(1) - log_prior
    error = terms.std().item() / math.sqrt(len(terms))
    assert ordered_kl(mu, sigma).item() == pytest.approx(terms.mean().item(), abs=4 * error)
    assert ordered_kl(mu, 1.1 * sigma).item() != pytest.approx(terms.mean().item(), abs=4 * error)


def test_networks_of_a_batch_train_as_they_would_alone() -> None:
    task, fixed = toy_task(), fixed_by(Random(like=Heavy(), seed=1))
    trainer = Trainer(Schedule(steps=20), Local(7))
    together, alone = toy_networks(Plan(), Plan(fixed)), toy_networks(Plan(fixed))
    curve, expected = trainer.train(together, task, seed=5), trainer.train(alone, task, seed=5)
    torch.testing.assert_close(curve[1], expected[0])
    for ours, theirs in zip(together.layers, alone.layers, strict=True):
        torch.testing.assert_close(ours.mu[1], theirs.mu[0])


def test_map_training_without_hidden_layers_finds_the_ridge_solution() -> None:
    task = toy_task(40)
    networks = Networks((3, 2), [Plan()], 0, torch.float64)
    Trainer(Schedule(steps=700, lr=3e-2, final_lr=1e-4), Means()).train(networks, task, seed=0)
    x = torch.cat([task.x, torch.ones(len(task.x), 1, dtype=torch.float64)], 1)
    ridge = torch.linalg.solve(x.T @ x + task.noise**2 * torch.eye(4, dtype=torch.float64), x.T @ task.y)
    torch.testing.assert_close(networks.layers[0].mu[0].detach(), ridge[:3].T, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(networks.layers[0].bias_mu[0].detach(), ridge[3], rtol=1e-3, atol=1e-3)


def test_scores_of_a_gaussian_predictive_are_the_closed_form() -> None:
    rng = np.random.default_rng(0)
    y = torch.tensor(rng.normal(size=(5, 2)))
    outputs = torch.tensor(rng.normal(0.3, 0.4, size=(200_000, 1, 2))).expand(-1, 5, -1)
    result = score(outputs, y, 0.5)
    expected = stats.norm(0.3, math.hypot(0.4, 0.5)).logpdf(y.numpy()).mean()
    assert result.lpp == pytest.approx(expected, abs=0.01)
    rmse = np.sqrt(((outputs.mean(0).numpy() - y.numpy()) ** 2).mean(0)).mean()
    assert result.rmse == pytest.approx(rmse)


def test_every_scheme_fixes_as_many_weights_as_the_one_it_controls() -> None:
    values = {weight.name: torch.randn(weight.shape) for weight in weights_of(WIDTHS)}
    counts = {
        name: sum(int(part.mask.sum()) for part in plan.fixed.values())
        for name, plan in plans(WIDTHS, 0, values, Sizes(4.0, 1.0)).items()
    }
    light, heavy = 2 + 4 + 1, 3 + 10 + 1
    assert {name: counts[name] for name in counts if "light" in name} == dict.fromkeys(
        ("light, 0", "light, ±c", "light, MAP", "random as light, 0"), light
    )
    assert {count for name, count in counts.items() if "heavy" in name} == {heavy}
    assert counts["vanilla"] == counts["ordered biases"] == 0
    assert next(iter(deterministic_plans(WIDTHS, 0))) == "vanilla"


def test_symmetries_are_the_known_ones_and_whole_rows_leave_most_of_them() -> None:
    left = {name: row["permutations"] for name, row in symmetries((1, 50, 50, 1), seed=0).items()}
    assert left["vanilla"] == pytest.approx(2 * math.lgamma(51) / math.log(10))
    assert left["light, 0"] == pytest.approx(math.lgamma(50) / math.log(10))
    assert left["heavy, 0"] == left["heavy, ±c"] == left["light, MAP"] == left["ordered biases"] == 0.0
    # 1225 zeros: 24 whole rows, 25 entries of another; 25 + 25 first neurons, 25 + 24 second ones still swap.
    rows = 3 * math.lgamma(26) + math.lgamma(25)
    assert left["rows as heavy, 0"] == pytest.approx(rows / math.log(10))


def test_predictions_are_draws_of_the_posterior_and_repeat_with_the_seed() -> None:
    networks, x = toy_networks(Plan(), Plan(ordered=True)), toy_task().x
    first, again, other = (predict(networks, x, 30, seed, chunk=7) for seed in (0, 0, 1))
    assert first.shape == (2, 30, 12, 2)
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert (first.std(1) > 0).all()


def write_data(folder: Path, rows: int = 40) -> None:
    rng = np.random.default_rng(0)
    for name in uci.DATASETS:
        np.savez(
            folder / f"{name}.npz", x=rng.normal(5.0, 3.0, size=(rows, 4)), y=rng.normal(2.0, 7.0, size=rows)
        )


def test_splits_test_every_row_once_and_take_scales_from_training_rows(tmp_path: Path) -> None:
    write_data(tmp_path)
    splits = [uci.load_split(tmp_path, "boston", split) for split in range(uci.SPLITS)]
    assert [len(split.x) for split in splits] == [8] * 5
    for split in splits:
        torch.testing.assert_close(split.train.x.mean(0), torch.zeros(4), atol=1e-5, rtol=0)
        torch.testing.assert_close(split.train.y.std(0, correction=0), torch.ones(1), atol=1e-5, rtol=0)
    whole = np.load(tmp_path / "boston.npz")["y"]
    order = np.random.default_rng(0).permutation(40)
    seen = [whole[np.isin(np.arange(40), order[i::5], invert=True)] for i in range(5)]
    back = [s.y[:, 0].numpy() * v.std() + v.mean() for s, v in zip(splits, seen, strict=True)]
    np.testing.assert_allclose(np.sort(np.concatenate(back)), np.sort(whole), rtol=1e-4)


@pytest.mark.parametrize("estimator", uci.ESTIMATORS)
def test_a_broken_run_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, estimator: str
) -> None:
    write_data(tmp_path)
    monkeypatch.setattr(uci, "DATASETS", {"boston": 1})
    monkeypatch.setattr(uci, "SPLITS", 2)
    monkeypatch.setattr(uci, "DRAWS", 20)

    def run() -> None:
        for chunk in uci.chunks():
            uci.run_chunk(tmp_path, tmp_path / "work", estimator, chunk, compiled=False, steps=3)

    run()
    paths = sorted((tmp_path / "work" / estimator).iterdir())
    assert [path.name for path in paths] == ["boston_0_0.json", "boston_1_0.json"]
    before, kept = paths[0].read_bytes(), paths[1].stat().st_mtime_ns
    paths[0].unlink()
    run()
    strip = b'"seconds"'
    assert paths[0].read_bytes().split(strip)[0] == before.split(strip)[0]
    assert paths[1].stat().st_mtime_ns == kept

    monkeypatch.setattr(uci, "RESULT", tmp_path / "result.json")
    result = uci.assemble(tmp_path, tmp_path / "work")
    uci.RESULT.write_text(json.dumps(result))
    uci.unpack(tmp_path / "elsewhere")
    assert uci.assemble(tmp_path, tmp_path / "elsewhere") == result
    assert torch.tensor(1e-40) * 1.0 > 0  # denormals are still there for everybody else


def test_the_gap_has_no_points_and_points_are_noisy_values_of_the_function() -> None:
    given = one_dimension.problem(0)
    size = given.task.x.abs()
    assert ((size >= 0.75) & (size <= 2.5)).all() and len(size) == 30
    near = np.interp(given.task.x[:, 0].numpy(), one_dimension.GRID, given.truth)
    residual = given.task.y[:, 0].numpy() - near
    assert 0.02 < np.sqrt((residual**2).mean()) < 0.12  # noise 0.05, and what lies between grid points
    assert sum(int(where.sum()) for where in one_dimension.regions().values()) == len(one_dimension.GRID)


@pytest.mark.slow
def test_nuts_without_hidden_layers_is_bayesian_linear_regression() -> None:
    pytest.importorskip("numpyro")
    from experiments.nuts import nuts_mlp

    rng = np.random.default_rng(0)
    x, at = rng.normal(size=(20, 2)), rng.normal(size=(5, 2))
    y = x @ np.array([[1.0], [-2.0]]) + 0.5 + 0.3 * rng.normal(size=(20, 1))
    exact = nuts_mlp([2, 1], x, y, 0.3, at=at, warmup=300, draws=1000, chains=2, seed=0)
    design, asked = (np.concatenate([v, np.ones((len(v), 1))], 1) for v in (x, at))
    covariance = np.linalg.inv(design.T @ design / 0.3**2 + np.eye(3))
    mean = covariance @ design.T @ y / 0.3**2
    sigma = np.sqrt(np.einsum("ni,ij,nj->n", asked, covariance, asked))
    assert exact.convergence.worst_rhat < 1.02
    error = sigma / math.sqrt(exact.convergence.least_ess)
    assert (np.abs(exact.mean[:, 0] - (asked @ mean)[:, 0]) < 4 * error).all()
    np.testing.assert_allclose(exact.sigma[:, 0], sigma, rtol=4 / math.sqrt(2 * exact.convergence.least_ess))


def test_the_reference_says_which_array_does_not_fit() -> None:
    from experiments.nuts import check_data

    x, y = np.zeros((4, 2)), np.zeros((4, 1))
    with pytest.raises(ValueError, match=r"y: must have shape \[N, 1\]"):
        check_data([2, 3, 1], x, y[:, 0], x, {})
    with pytest.raises(ValueError, match="4 and 3 rows"):
        check_data([2, 3, 1], x, y[:3], x, {})
    with pytest.raises(ValueError, match="no tensor of this network"):
        check_data([2, 3, 1], x, y, x, fix_weights(weights_of((2, 5, 1)), Light(), Zero()))


def test_a_summary_is_over_groups_and_clear_beyond_the_quantile_of_students_t() -> None:
    groups = [[1.0, 3.0], [4.0], [6.0, 6.0, 6.0]]  # means 2, 4, 6
    found = summary(groups)
    assert found.mean == pytest.approx(4.0) and found.error == pytest.approx(2.0 / math.sqrt(3))
    expected = stats.ttest_1samp([2.0, 4.0, 6.0], 0.0).pvalue < 0.05
    assert found.clear == expected
    assert summary([[2.0], [2.1], [1.9]]).clear and not summary([[2.0], [-2.0], [1.9]]).clear


def uci_rows(shift: float) -> list[dict[str, Any]]:
    """Two splits with two seeds each; heavy, ±c is better than vanilla by `shift` of LPP, the rest by nothing."""
    values = {weight.name: torch.zeros(weight.shape) for weight in weights_of(WIDTHS)}
    names = list(plans(WIDTHS, 0, values, Sizes(1.0, 1.0)))
    rows = []
    for split, seed in ((0, 0), (0, 1), (1, 0), (1, 1)):
        base = 0.5 * split + 0.1 * seed
        run = {
            name: {
                "fixed": 1,
                "rmse": 0.1,
                "lpp": base + shift * (name == "heavy, ±c"),
                "nelbo": [3.0, 2.0, 1.0],
            }
            for name in names
        }
        rows.append({"split": split, "seed": seed, "bayesian": run, "deterministic": run})
    return rows


def test_differences_are_paired_by_split_and_seed() -> None:
    rows = uci_rows(0.25)
    gap = uci_report.difference(rows, "heavy, ±c", "vanilla", "lpp")
    assert gap.mean == pytest.approx(0.25) and gap.error == pytest.approx(0.0, abs=1e-12)
    assert uci_report.mean_of(rows, "bayesian", "vanilla", "lpp").error == pytest.approx(0.25)
    assert uci_report.clearly(rows, "lpp", better=True) == ["heavy, ±c"]
    assert uci_report.clearly(rows, "lpp", better=False) == []
    assert uci_report.clearly(uci_rows(-0.25), "lpp", better=False) == ["heavy, ±c"]


def test_every_scheme_runs_on_the_convolutional_net_and_the_report_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(digits, "EPOCHS", 1)
    monkeypatch.setattr(digits, "SAMPLES", 2)
    rows = {name: digits.run(0, name) for name in digits.SCHEMES}
    assert rows["heavy, 0"]["fixed"] == rows["random as heavy, MAP"]["fixed"] > rows["light, 0"]["fixed"] > 0
    assert rows["heavy, MAP"]["permutations"] == 0.0 < rows["vanilla"]["permutations"]
    assert {name for name, row in rows.items() if "deterministic" in row} == {
        "vanilla",
        *(name for name in digits.SCHEMES if name.endswith(", 0")),
    }
    result = {
        "command": "c",
        "rows": [rows, rows],
        "images": [1, 2, 3],
        "seconds": 60,
        "versions": {"torch": "t"},
    }
    text = digits.section(result)
    assert all(f"| {name} |" in text for name in digits.SCHEMES)


def test_distances_between_predictions_are_the_known_ones() -> None:
    ones = [1.0] * len(one_dimension.GRID)
    exact = {"mean": [0.0] * len(ones), "sigma": ones}
    found = one_dimension.distance({"mean": [0.5] * len(ones), "sigma": [0.25] * len(ones)}, exact, "gap")
    assert found.mean == pytest.approx(0.5) and found.ratio == pytest.approx(0.25)


def test_what_was_made_before_is_not_made_again(tmp_path: Path) -> None:
    path = tmp_path / "part.json"
    assert kept(path, lambda: [1, 2])["value"] == [1, 2]
    assert kept(path, lambda: [3])["value"] == [1, 2]


def test_figures_are_the_same_bytes_each_time_with_short_coordinates_and_labels_as_they_are(
    tmp_path: Path,
) -> None:
    plt = pytest.importorskip("matplotlib.pyplot")
    texts = []
    for _ in range(2):
        with plt.rc_context({"svg.fonttype": "none"}):
            figure, ax = plt.subplots()
            ax.plot([0.123456, 1.0], [2.0, 3.14159])
            ax.set_xticks([0.125, 1.375])
            save_figure(figure, tmp_path / "figure.svg")
            plt.close(figure)
        texts.append((tmp_path / "figure.svg").read_text())
    assert texts[0] == texts[1]
    assert ">0.125<" in texts[0] and ">1.375<" in texts[0]
    tags = "".join(re.findall(r"<[^>]+>", texts[0]))
    assert not re.search(r"(?<![\d.])[1-9]\d*\.\d{2}", tags.partition("<defs>")[2])
