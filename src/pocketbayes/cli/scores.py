"""Predictions of a network on a data set, its scores in the data's units, and the threshold of "not sure"."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor, nn

    from pocketbayes.data import DataSet, Scaling
    from pocketbayes.likelihood import Likelihood
    from pocketbayes.prediction.predict import Predictive, Regression

BATCH = 256
NORMAL_95 = 1.959964  # a Gaussian is within so many standard deviations with probability 0.95
STEPS = 10_000  # a threshold is a multiple of their inverse


class Selective(NamedTuple):
    """What becomes of a data set when only answers of at least this confidence are given."""

    answered: float  # share of the examples
    risk: float  # share of wrong ones among the answers, NaN without any


def ask(
    model: nn.Module,
    data: DataSet,
    likelihood: Likelihood | None = None,
    *,
    samples: int = 30,
    seed: int = 0,
) -> Any:
    """The predictions for all inputs of a data set, under a bar: a `Predictive`, or a `Regression` with its draws."""
    from pocketbayes.likelihood import Categorical
    from pocketbayes.prediction.ensemble import Ensemble
    from pocketbayes.prediction.predict import reducer
    from pocketbayes.runs.progress import track

    likelihood = likelihood if likelihood is not None else Categorical()
    ensemble = Ensemble(model, samples=samples, seed=seed)
    reduce = reducer(likelihood, keep=data.classes is None)
    return reduce.join([reduce(ensemble.outputs(x)) for x, _ in track(data.batches(BATCH), "predict")])


def score(
    model: nn.Module,
    data: DataSet,
    likelihood: Likelihood,
    *,
    samples: int = 30,
    seed: int = 0,
    unsure: float | None = None,
) -> dict[str, float]:
    """What `scores_of` finds in the predictions of a model."""
    return scores_of(ask(model, data, likelihood, samples=samples, seed=seed), data, unsure)


def scores_of(answer: Any, data: DataSet, unsure: float | None = None) -> dict[str, float]:
    """Accuracy, NLL, ECE, Brier, entropies, and what a threshold does; of a regression its own, in the data's units."""
    from pocketbayes import metrics

    if data.classes is None:
        return regression_scores(answer, data.y, data.target_scaling)
    found = {
        name: getattr(metrics, name)(answer.probs, data.y) for name in ("accuracy", "nll", "ece", "brier")
    }
    found |= {name: getattr(answer, name).mean().item() for name in ("entropy", "epistemic")}
    return found if unsure is None else found | selective(answer, data.y, unsure)._asdict()


def foreign_scores(answer: Predictive, foreign: Predictive) -> dict[str, float]:
    """How well predictive entropy tells foreign inputs from familiar ones."""
    from pocketbayes import metrics

    pair = answer.entropy, foreign.entropy
    return {
        "auroc": metrics.auroc(*pair),
        "aupr": metrics.aupr(*pair),
        "fpr85": metrics.fpr_at_tpr(*pair, 0.85),
        "fpr95": metrics.fpr_at_tpr(*pair, 0.95),
    }


def in_units(answer: Regression, scaling: Scaling | None) -> Regression:
    """A prediction of standardised targets in the units of the data, float64."""
    from dataclasses import replace

    if scaling is None:
        return answer
    mean, std = scaling.mean.double(), scaling.std.double()
    return replace(
        answer,
        mean=answer.mean * std + mean,
        var=answer.var * std.square(),
        epistemic_var=answer.epistemic_var * std.square(),
        draws=None if answer.draws is None else answer.draws * std + mean,
        sigmas=None if answer.sigmas is None else answer.sigmas * std,
    )


def regression_scores(answer: Regression, targets: Tensor, scaling: Scaling | None) -> dict[str, float]:
    """RMSE, NLL (of all targets of an example together), mean sigmas, and how often 95 % intervals hold the truth."""
    from pocketbayes import metrics

    answer, y = in_units(answer, scaling), targets.double()
    assert answer.draws is not None and answer.sigmas is not None
    sigma = answer.var.sqrt()
    return {
        "rmse": metrics.rmse(answer.mean, y),
        "nll": -metrics.log_predictive_density(answer.draws, answer.sigmas, y),
        "sigma": sigma.mean().item(),
        "epistemic_sigma": answer.epistemic_var.sqrt().mean().item(),
        "coverage95": ((y - answer.mean).abs() <= NORMAL_95 * sigma).double().mean().item(),
    }


# --- not sure --------------------------------------------------------------------------------------------------


def choose_threshold(answer: Predictive, labels: Tensor, max_risk: float | None) -> float:
    """The smallest confidence such that of the answers at or above it at most `max_risk` are wrong.

    Half the error rate by default.  Rounded up to four decimals; 1 where even the surest answers are too often
    wrong.
    """
    confidence, order = answer.confidence.sort(descending=True)
    wrong = (answer.labels != labels)[order].double()
    target = wrong.mean().item() / 2 if max_risk is None else max_risk
    count = wrong.new_ones(len(wrong)).cumsum(0)
    last_of_ties = confidence.diff(append=confidence.new_full((1,), -1.0)) != 0
    good = ((wrong.cumsum(0) / count <= target + 1e-12) & last_of_ties).nonzero()
    if not len(good):
        return 1.0
    return min(STEPS, math.ceil(float(confidence[good[-1, 0]]) * STEPS)) / STEPS


def selective(answer: Predictive, labels: Tensor, threshold: float) -> Selective:
    """How many answers are given at that threshold, and how many of them are wrong."""
    sure = answer.confidence >= threshold
    wrong = answer.labels != labels
    risk = wrong[sure].double().mean().item() if bool(sure.any()) else math.nan
    return Selective(sure.double().mean().item(), risk)


def target_spread(data: DataSet) -> float:
    """The standard deviation of the targets as a network sees them: where the noise of an untrained one starts."""
    return max(1e-3, data.targets().std().item())


def residual_sigma(network: nn.Module, data: DataSet) -> float:
    """The root mean square error of a regression network's output: where the noise of a likelihood starts."""
    import torch

    from pocketbayes.likelihood import output_tensor
    from pocketbayes.posterior.draws import mean_weights

    with torch.no_grad(), mean_weights(network.eval()):
        errors = [output_tensor(network(x)) - y for x, y in data.batches(BATCH)]
    return max(1e-3, torch.cat(errors).square().mean().sqrt().item())
