"""Answers against the truth: the scores of classes, of numbers, and of telling OOD inputs."""

from __future__ import annotations

from torch import Tensor

from pocketbayes import metrics
from pocketbayes.data import Scaling
from pocketbayes.prediction.answer import Predictive, Regression, in_units

NORMAL_95 = 1.959964  # a Gaussian is within so many standard deviations with probability 0.95


def class_scores(answer: Predictive, labels: Tensor, *, ignore_index: int = -100) -> dict[str, float]:
    """Accuracy, NLL (nats), ECE, Brier, mean total and epistemic entropy (nats) and passes; with prediction sets also
    how often they hold the truth, and their mean size.  Ignored labels do not count.
    """
    labels = labels.flatten()
    counted = labels != ignore_index
    probs, labels = answer.probs[counted], labels[counted]
    found = {
        "accuracy": metrics.accuracy(probs, labels),
        "nll": metrics.nll(probs, labels),
        "ece": metrics.ece(probs, labels),
        "brier": metrics.brier(probs, labels),
        "entropy": answer.entropy[counted].mean().item(),
        "epistemic": answer.epistemic[counted].mean().item(),
    }
    if answer.between_modes is not None:
        found["between_modes"] = answer.between_modes[counted].mean().item()
    if answer.passes is not None:
        found["passes"] = answer.passes[counted].double().mean().item()
    if answer.sets is not None:
        sets = answer.sets[counted]
        found["set_coverage"] = sets.gather(1, labels[:, None]).double().mean().item()
        found["set_size"] = sets.sum(1).double().mean().item()
    return found


def regression_scores(
    answer: Regression, targets: Tensor, scaling: Scaling | None = None
) -> dict[str, float]:
    """RMSE, NLL (of all targets of an example together), mean sigmas, and how often 95 % intervals hold the truth; with
    conformal intervals also how often these hold all targets of an example.

    In the units of `targets`; with `scaling`, those of the data, which the answer has standardised.
    """
    answer = in_units(answer, scaling)
    assert answer.draws is not None and answer.sigmas is not None
    y, sigma = targets.to(answer.mean).reshape(answer.mean.shape), answer.var.sqrt()
    draws, sigmas = (t.flatten(2) if t.ndim > 2 else t for t in (answer.draws, answer.sigmas))
    density = metrics.log_predictive_density(draws, sigmas, y.flatten(1) if y.ndim > 1 else y)
    found = {
        "rmse": metrics.rmse(answer.mean, y),
        "nll": -density,
        "sigma": sigma.mean().item(),
        "epistemic_sigma": answer.epistemic_var.sqrt().mean().item(),
        "coverage95": ((y - answer.mean).abs() <= NORMAL_95 * sigma).double().mean().item(),
    }
    if answer.lower is not None and answer.upper is not None:
        inside = (answer.lower <= y) & (y <= answer.upper)
        found["interval_coverage"] = inside.reshape(len(y), -1).all(1).double().mean().item()
    return found


def ood_scores(inside: Predictive, outside: Predictive) -> dict[str, float]:
    """How well predictive entropy tells OOD inputs: AUROC, AUPR, false-positive rates at 85 and 95 % true ones."""
    pair = inside.entropy, outside.entropy
    return {
        "auroc": metrics.auroc(*pair),
        "aupr": metrics.aupr(*pair),
        "fpr85": metrics.fpr_at_tpr(*pair, 0.85),
        "fpr95": metrics.fpr_at_tpr(*pair, 0.95),
    }
