"""The structure experiments: posteriors by the library, their estimators, the NUTS reference, the reports."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import pocketbayes as pb
from experiments.structure import digits, one_dimension, uci, uci_report
from experiments.structure.ordered import Rising, ordered_kl
from experiments.structure.schemes import DETERMINISTIC, Choice, Sizes, schemes, symmetries, weights_of
from experiments.structure.training import (
    START_SIGMA,
    Draws,
    Estimator,
    Local,
    Schedule,
    Task,
    kl,
    layers_of,
    posterior,
    score,
    sigma_of,
    train,
    train_means,
    trained_constant,
)
from pocketbayes.structure import Constant, Light, Zero, fix_weights

WIDTHS = (3, 6, 5, 2)
CHOICES = {
    "vanilla": Choice(),
    "light, ±c": Choice(Light(), Constant(2.0, trained=True)),
    "rows": Choice(rows=True),
    "ordered biases": Choice(ordered=True),
}


def toy_task(rows: int = 12, seed: int = 0) -> Task:
    x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed))
    return Task(x, torch.stack([x[:, 0], x[:, 1] * x[:, 2]], 1), 0.3)


def widened(choice: Choice, rho: float = -0.5) -> nn.Sequential:
    """A posterior whose sigma matters; that of the weights is softplus(rho)."""
    model = posterior(WIDTHS, choice, 0)
    for weight, bias in layers_of(model):
        weight.weight.rho.data.fill_(rho)
        bias.weight.rho.data.fill_(-0.5)
    return model


@torch.no_grad()
def mean_and_error(model: nn.Sequential, estimator: Estimator, repeats: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(7)
    values = torch.stack([estimator.nll(model, toy_task()) for _ in range(repeats)])
    return values.mean(), values.std() / math.sqrt(repeats)


@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES)
def test_vmapped_draws_estimate_the_nll_of_the_library(choice: Choice) -> None:
    model, task = widened(choice), toy_task()
    likelihood = pb.likelihood.Homoscedastic(task.noise)
    found, error = mean_and_error(model, Draws(16), 200)
    torch.manual_seed(1)
    with torch.no_grad():
        each = torch.stack(
            [
                len(task.x) * pb.nelbo(model, task[:2], len(task.x), likelihood=likelihood).nll
                for _ in range(3000)
            ]
        )
    expected_error = each.std() / math.sqrt(len(each))
    assert abs(found - each.mean()) < 4 * (error.square() + expected_error.square()).sqrt()
    wrong, wrong_error = mean_and_error(widened(choice, rho=0.0), Draws(16), 200)
    assert abs(wrong - each.mean()) > 4 * (wrong_error.square() + expected_error.square()).sqrt()


@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES)
@pytest.mark.parametrize("local", [Local(), Local(5)], ids=["all rows", "5 rows"])
def test_local_reparameterisation_estimates_the_same_nll_as_draws_of_weights(
    local: Local, choice: Choice
) -> None:
    expected, error = mean_and_error(widened(choice), Draws(100), 50)
    found, other_error = mean_and_error(widened(choice), local, 600)
    assert abs(found - expected) < 4 * (error.square() + other_error.square()).sqrt()
    wrong, wrong_error = mean_and_error(widened(choice, rho=0.0), local, 600)
    assert abs(wrong - expected) > 4 * (error.square() + wrong_error.square()).sqrt()


def test_schemes_of_a_seed_start_alike_and_fixed_weights_have_no_sigma() -> None:
    plain, other = posterior(WIDTHS, Choice(), 0), posterior(WIDTHS, Choice(), 1)
    for choice in (CHOICES["light, ±c"], CHOICES["rows"]):
        fixed = choice.fixed(WIDTHS)
        for (weight, _), (start, _), (another, _) in zip(
            *map(layers_of, (posterior(WIDTHS, choice, 0), plain, other)), strict=True
        ):
            free = torch.from_numpy(~fixed[weight.path].mask)
            torch.testing.assert_close(weight.moments.mu, start.original[free])
            assert not torch.isclose(weight.moments.mu, another.original[free]).any()
            assert (sigma_of(weight)[~free] == 0).all()
            torch.testing.assert_close(sigma_of(weight)[free], torch.full([int(free.sum())], START_SIGMA))
    assert trained_constant(posterior(WIDTHS, CHOICES["light, ±c"], 0)) == 2.0
    assert trained_constant(plain) is None


def test_only_ordered_biases_change_the_kl_of_the_library() -> None:
    for name, choice in CHOICES.items():
        model = widened(choice)
        same = torch.isclose(kl(model), pb.kl_divergence(model))
        assert bool(same) == (name != "ordered biases")


def test_training_lowers_the_nelbo_and_repeats_with_its_seed() -> None:
    task, schedule = toy_task(), Schedule(steps=60)
    curves = [
        train(posterior(WIDTHS, Choice(ordered=True), 0), task, Draws(4), schedule, seed, points=6)
        for seed in (0, 0, 1)
    ]
    assert torch.equal(curves[0], curves[1]) and not torch.equal(curves[0], curves[2])
    assert curves[0][-1] < curves[0][0]


def test_ordered_biases_rise_and_their_kl_is_that_of_sampling() -> None:
    generator = torch.Generator().manual_seed(0)
    bias = torch.randn(6, generator=generator, dtype=torch.float64)
    rising = Rising()
    torch.testing.assert_close(rising(rising.right_inverse(bias)), bias.sort().values)
    mu = torch.randn(6, generator=generator, dtype=torch.float64) * 0.5 - 0.5
    sigma = torch.rand(6, generator=generator, dtype=torch.float64) * 0.5 + 0.1
    q = torch.distributions.Normal(mu, sigma)
    z = mu + sigma * torch.randn(200_000, 6, generator=generator, dtype=torch.float64)
    b = rising(z)
    assert (b.diff(dim=-1) > 0).all()
    jacobian = torch.autograd.functional.jacobian(rising, z[0])
    assert jacobian.slogdet().logabsdet == pytest.approx(z[0, 1:].sum().item())
    log_prior = math.lgamma(7) + torch.distributions.Normal(torch.zeros(6).double(), 1.0).log_prob(b).sum(1)
    terms = q.log_prob(z).sum(1) - z[:, 1:].sum(1) - log_prior
    error = terms.std().item() / math.sqrt(len(terms))
    assert ordered_kl(mu, sigma).item() == pytest.approx(terms.mean().item(), abs=4 * error)
    assert ordered_kl(mu, 1.1 * sigma).item() != pytest.approx(terms.mean().item(), abs=4 * error)


def test_map_training_without_hidden_layers_finds_the_ridge_solution() -> None:
    task, model = toy_task(40), posterior((3, 2), Choice(), 0)
    train_means(model, task, Schedule(steps=700, lr=3e-2, final_lr=1e-4), seed=0)
    x = torch.cat([task.x, torch.ones(len(task.x), 1)], 1).double()
    ridge = torch.linalg.solve(x.T @ x + task.noise**2 * torch.eye(4).double(), x.T @ task.y.double()).float()
    ((weight, bias),) = layers_of(model)
    torch.testing.assert_close(weight.moments.mu.detach(), ridge[:3].T, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(bias.moments.mu.detach(), ridge[3], rtol=1e-3, atol=1e-3)


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
    counts = {name: choice.count(WIDTHS) for name, choice in schemes(0, values, Sizes(4.0, 1.0)).items()}
    light, heavy = 2 + 4 + 1, 3 + 10 + 1
    assert {name: counts[name] for name in counts if "light" in name} == dict.fromkeys(
        ("light, 0", "light, ±c", "light, MAP", "random as light, 0"), light
    )
    assert {count for name, count in counts.items() if "heavy" in name} == {heavy}
    assert counts["vanilla"] == counts["ordered biases"] == 0
    assert set(DETERMINISTIC) < set(counts)


def test_symmetries_are_the_known_ones_and_whole_rows_leave_most_of_them() -> None:
    left = {name: row["permutations"] for name, row in symmetries((1, 50, 50, 1), seed=0).items()}
    assert left["vanilla"] == pytest.approx(2 * math.lgamma(51) / math.log(10))
    assert left["light, 0"] == pytest.approx(math.lgamma(50) / math.log(10))
    assert left["heavy, 0"] == left["heavy, ±c"] == left["light, MAP"] == left["ordered biases"] == 0.0
    # 1225 zeros: 24 whole rows, 25 entries of another; 25 + 25 first neurons, 25 + 24 second ones still swap.
    rows = 3 * math.lgamma(26) + math.lgamma(25)
    assert left["rows as heavy, 0"] == pytest.approx(rows / math.log(10))


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

    for name in ("BAYESIAN", "MAP_TRAINING"):
        monkeypatch.setattr(uci, name, Schedule(steps=3))

    def run() -> None:
        for chunk in uci.chunks():
            uci.run_chunk(tmp_path, tmp_path / "work", estimator, chunk)

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


def uci_rows(shift: float) -> list[dict[str, Any]]:
    """Two splits with two seeds each; heavy, ±c is better than vanilla by `shift` of LPP, the rest by nothing."""
    values = {weight.name: torch.zeros(weight.shape) for weight in weights_of(WIDTHS)}
    names = list(schemes(0, values, Sizes(1.0, 1.0)))
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
