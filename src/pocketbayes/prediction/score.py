"""Answers against the truth: the scores of classes, of numbers, and of telling OOD inputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from pocketbayes import metrics
from pocketbayes.arrays import Array, to_numpy
from pocketbayes.data import Scaling
from pocketbayes.prediction.answer import Predictive, Regression, in_units

NORMAL_95 = 1.959964  # a Gaussian is within so many standard deviations with probability 0.95

TITLES = {
    "accuracy": "accuracy",
    "nll": "NLL (nats)",
    "ece": "calibration error (ECE)",
    "brier": "Brier score",
    "passes": "passes for an input",
    "entropy": "mean entropy (nats)",
    "epistemic": "of it epistemic",
    "rmse": "RMSE",
    "sigma": "mean predictive sigma",
    "epistemic_sigma": "of it epistemic",
    "coverage95": "within the 95 % interval",
    "set_coverage": "prediction sets with the truth",
    "set_size": "classes in a set",
    "interval_coverage": "within the conformal interval",
    "auroc": "AUROC, test data or OOD",
    "aupr": "AUPR",
    "fpr85": "FPR at 85 % TPR",
    "fpr95": "FPR at 95 % TPR",
    "answered": "sure enough to answer",
    "risk": "wrong among these",
    "bytes": "bytes",
}


class Evaluation(dict[str, float]):
    """Scores by name; also as attributes, and printable."""

    def __getattr__(self, name: str) -> float:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no metric {name!r}; there are {', '.join(self)}") from None

    def __str__(self) -> str:
        return "  ".join(f"{name} {value:.4f}" for name, value in self.items())


def class_scores(answer: Predictive, labels: Any, *, ignore_index: int = -100) -> dict[str, float]:
    """Accuracy, NLL (nats), ECE, Brier, mean total and epistemic entropy (nats) and passes; with prediction sets also
    how often they hold the truth, and their mean size.  Ignored labels do not count.
    """
    labels = to_numpy(labels).reshape(-1)
    counted = labels != ignore_index
    probs, labels = to_numpy(answer.probs)[counted], labels[counted]
    found = {
        "accuracy": metrics.accuracy(probs, labels),
        "nll": metrics.nll(probs, labels),
        "ece": metrics.ece(probs, labels),
        "brier": metrics.brier(probs, labels),
        "entropy": float(to_numpy(answer.entropy)[counted].mean()),
        "epistemic": float(to_numpy(answer.epistemic)[counted].mean()),
    }
    if answer.between_modes is not None:
        found["between_modes"] = answer.between_modes[counted].mean().item()
    if answer.passes is not None:
        found["passes"] = float(to_numpy(answer.passes)[counted].mean())
    if answer.sets is not None:
        sets = to_numpy(answer.sets)[counted]
        found["set_coverage"] = float(sets[np.arange(len(labels)), labels].mean())
        found["set_size"] = float(sets.sum(1).mean())
    return found


def regression_scores(answer: Regression, targets: Any, scaling: Scaling | None = None) -> dict[str, float]:
    """RMSE, NLL (of all targets of an example together), mean sigmas, and how often 95 % intervals hold the truth; with
    conformal intervals also how often these hold all targets of an example.

    In the units of `targets`; with `scaling`, those of the data, which the answer has standardised.
    """
    answer = in_units(answer, scaling)
    assert answer.draws is not None and answer.sigmas is not None
    mean, var, epistemic = (to_numpy(t) for t in (answer.mean, answer.var, answer.epistemic_var))
    y, sigma = to_numpy(targets).astype(mean.dtype).reshape(mean.shape), np.sqrt(var)
    draws, sigmas = (_flat(to_numpy(t), 2) for t in (answer.draws, answer.sigmas))
    found = {
        "rmse": metrics.rmse(mean, y),
        "nll": -metrics.log_predictive_density(draws, sigmas, _flat(y, 1)),
        "sigma": float(sigma.mean()),
        "epistemic_sigma": float(np.sqrt(epistemic).mean()),
        "coverage95": float((np.abs(y - mean) <= NORMAL_95 * sigma).mean()),
    }
    if answer.lower is not None and answer.upper is not None:
        inside = (to_numpy(answer.lower) <= y) & (y <= to_numpy(answer.upper))
        found["interval_coverage"] = float(inside.reshape(len(y), -1).all(1).mean())
    return found


def _flat(values: Array, axes: int) -> Array:
    """All but the first `axes` axes as one; as it is if there are no others."""
    return values.reshape(*values.shape[:axes], -1) if values.ndim > axes else values


def ood_scores(inside: Predictive, outside: Predictive) -> dict[str, float]:
    """How well predictive entropy tells OOD inputs: AUROC, AUPR, false-positive rates at 85 and 95 % true ones."""
    pair = inside.entropy, outside.entropy
    return {
        "auroc": metrics.auroc(*pair),
        "aupr": metrics.aupr(*pair),
        "fpr85": metrics.fpr_at_tpr(*pair, 0.85),
        "fpr95": metrics.fpr_at_tpr(*pair, 0.95),
    }
