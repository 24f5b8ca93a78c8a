"""Conformal sets and intervals: their guarantee on real data, the quantile by brute force, what undoes them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, load_digits
from sklearn.linear_model import LogisticRegression, Ridge
from torch import Tensor, nn

import pocketbayes as pb
from pocketbayes.likelihood import Categorical, Heteroscedastic, Homoscedastic
from pocketbayes.prediction.conformal import conformal_quantile
from pocketbayes.prediction.scales import scales_of

SPLITS = 20


def digits() -> tuple[nn.Module, Tensor, Tensor, None]:
    """A posterior around logistic regression on a few images, and all others."""
    x, y = load_digits(return_X_y=True)
    x, order = x / 16, np.random.default_rng(0).permutation(len(y))
    first, rest = order[:200], order[200:]
    fitted = LogisticRegression(C=0.05, max_iter=500).fit(x[first], y[first])
    model = nn.Linear(64, 10)
    with torch.no_grad():
        model.weight.copy_(torch.tensor(fitted.coef_))
        model.bias.copy_(torch.tensor(fitted.intercept_))
    pb.bayesianize(model, sigma=pb.Absolute(0.2))
    return model, torch.tensor(x[rest], dtype=torch.float32), torch.tensor(y[rest]), None


def diabetes() -> tuple[nn.Module, Tensor, Tensor, Homoscedastic]:
    """The same around a ridge regression, whose noise is stated much too small."""
    x, y = load_diabetes(return_X_y=True)
    x, y = x / x.std(0), (y - y.mean()) / y.std()
    order = np.random.default_rng(0).permutation(len(y))
    first, rest = order[:42], order[42:]
    fitted = Ridge(10.0).fit(x[first], y[first])
    model = nn.Linear(10, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor(fitted.coef_))
        model.bias.fill_(fitted.intercept_)
    pb.bayesianize(model, sigma=pb.Absolute(0.05))
    y = y[:, None]
    noise = Homoscedastic(0.3)
    return (
        model,
        torch.tensor(x[rest], dtype=torch.float32),
        torch.tensor(y[rest], dtype=torch.float32),
        noise,
    )


def coverages(
    case: Callable[[], tuple[nn.Module, Tensor, Tensor, Homoscedastic | None]],
    alpha: float,
    samples: int | str,
) -> np.ndarray:
    """How often the truth is in the set, over splits into validation and test data: a mean, and its standard error."""
    model, x, y, noise = case()
    found = []
    for seed in range(SPLITS):
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
        known, new = order[: len(y) // 2], order[len(y) // 2 :]
        pb.conformal(model, [(x[known], y[known])], alpha=alpha, likelihood=noise, samples=8)
        scores = pb.evaluate(model, [(x[new], y[new])], likelihood=noise, samples=samples)
        found.append(scores["set_coverage" if noise is None else "interval_coverage"])
    return np.array([np.mean(found), np.std(found, ddof=1) / math.sqrt(SPLITS)])


@pytest.mark.parametrize("samples", ["mean", 8])
@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.3])
@pytest.mark.parametrize("case", [digits, diabetes])
def test_coverage_over_splits_is_what_was_asked_for(
    case: Callable[[], tuple[nn.Module, Tensor, Tensor, Homoscedastic | None]],
    alpha: float,
    samples: int | str,
) -> None:
    mean, error = coverages(case, alpha, samples)
    assert abs(mean - (1 - alpha)) <= 2 * error


def test_without_it_the_same_answers_miss_too_often() -> None:
    """The control: intervals of the Gaussian that the network predicts."""
    model, x, y, noise = diabetes()
    assert pb.evaluate(model, [(x, y)], likelihood=noise, samples=8).coverage95 < 0.7


@pytest.mark.parametrize("n", [9, 10, 19, 200])
def test_the_quantile_is_exceeded_by_a_new_score_with_at_most_alpha(n: int) -> None:
    """Of n + 1 scores that might each be the new one, brute force."""
    alpha = 0.1
    pool = torch.rand(n + 1, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    missed = [
        float(pool[i]) > conformal_quantile(torch.cat([pool[:i], pool[i + 1 :]]), alpha) for i in range(n + 1)
    ]
    assert np.mean(missed) <= alpha < np.mean(missed) + 1 / (n + 1) + 1e-9


def test_sets_hold_the_classes_whose_score_is_within_the_quantile() -> None:
    model, x, y, _ = digits()
    found = pb.conformal(model, [(x, y)], alpha=0.2, samples=8)
    answer = pb.predict(model, x, samples=8)
    assert answer.sets is not None
    assert torch.equal(answer.sets, answer.probs >= 1 - found.draws)
    inside = answer.sets.gather(1, y[:, None]).sum().item()
    assert inside == math.ceil(0.8 * (len(y) + 1)) and found.examples == len(y)
    scores = pb.evaluate(model, [(x, y)], samples=8)
    assert scores.set_coverage == pytest.approx(inside / len(y))
    assert scores.set_size == pytest.approx(answer.sets.double().sum(1).mean().item())


@pytest.mark.parametrize("heteroscedastic", [False, True])
def test_intervals_hold_all_targets_of_an_example_together(heteroscedastic: bool) -> None:
    g = torch.Generator().manual_seed(0)
    model = pb.bayesianize(nn.Linear(3, 4 if heteroscedastic else 2), sigma=pb.Absolute(0.1))
    x, y = torch.randn(200, 3, generator=g), torch.randn(200, 2, generator=g)
    likelihood = Heteroscedastic() if heteroscedastic else Homoscedastic(0.5)
    found = pb.conformal(model, [(x, y)], alpha=0.25, likelihood=likelihood, samples=5)
    answer = pb.predict(model, x, samples=5, likelihood=likelihood)
    assert answer.lower is not None and answer.upper is not None
    inside = ((answer.lower <= y) & (y <= answer.upper)).all(1)
    assert int(inside.sum()) == math.ceil(0.75 * 201)
    torch.testing.assert_close(answer.upper - answer.mean, found.draws * answer.var.sqrt())


def test_positions_count_one_by_one_and_ignored_ones_do_not() -> None:
    torch.manual_seed(0)
    model, likelihood = pb.bayesianize(nn.Linear(4, 3)), Categorical(class_dim=-1)
    x, y = torch.randn(20, 5, 4), torch.randint(3, (20, 5))
    y[:, 4] = -100
    assert pb.conformal(model, [(x, y)], likelihood=likelihood).examples == 80


def test_a_file_keeps_its_sets_and_calibration_and_training_undo_them(tmp_path: Path) -> None:
    model, x, y, _ = digits()
    pb.conformal(model, [(x[:800], y[:800])], alpha=0.2, samples=8)
    pb.save(model, tmp_path / "digits.pocket", precision=pb.artifact.FLOAT32)
    loaded = pb.load(tmp_path / "digits.pocket", nn.Linear(64, 10))
    assert scales_of(loaded).alpha == 0.2
    others = x[800:]  # one of the first 800 lies on the border of its set, and rounding decides
    mine, theirs = (pb.predict(m, others, samples=8).sets for m in (model, loaded))
    assert mine is not None and theirs is not None
    assert torch.equal(mine, theirs)
    assert pb.predict(copy.deepcopy(loaded), x).sets is not None
    pb.calibrate(loaded, [(x, y)], sigmas=False)
    assert pb.predict(loaded, x).sets is None
    pb.fit(model, [(x, y)], epochs=1, progress=False)
    assert pb.predict(model, x).sets is None


def test_a_plain_network_has_sets_too() -> None:
    model, x, y, _ = digits()
    plain = pb.to_deterministic(model)
    found = pb.conformal(plain, [(x, y)])
    assert found.mean == found.draws
    assert pb.predict(plain, x).sets is not None


def test_bad_calls_are_refused_and_change_nothing() -> None:
    model, x, y, _ = digits()
    with pytest.raises(ValueError, match="between 0 and 1"):
        pb.conformal(model, [(x, y)], alpha=1.0)
    with pytest.raises(ValueError, match="Pass at least 19"):
        pb.conformal(model, [(x[:18], y[:18])], alpha=0.05)
    with pytest.raises(ValueError, match="empty"):
        pb.conformal(model, [])
    with pytest.raises(ValueError, match="sets are of classes"):
        pb.conformal(
            model, [(x, y)], likelihood=lambda out, y: nn.functional.cross_entropy(out, y, reduction="none")
        )
    assert scales_of(model) == type(scales_of(model))()
    pb.conformal(model, [(x[:19], y[:19])], alpha=0.05)
