"""Predictions of a network on a data set, its scores in the data's units, and the threshold of "not sure"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

    from pocketbayes.data import DataSet, Scaling
    from pocketbayes.likelihood import Likelihood
    from pocketbayes.prediction.answer import Predictive, Regression
    from pocketbayes.prediction.threshold import Selective

BATCH = 256
NORMAL_95 = 1.959964  # a Gaussian is within so many standard deviations with probability 0.95


def ask(
    model: nn.Module,
    data: DataSet,
    likelihood: Likelihood | None = None,
    *,
    samples: int = 30,
    seed: int = 0,
) -> Any:
    """The predictions for all inputs of a data set, under a bar: a `Predictive`, or a `Regression` with its draws."""
    from pocketbayes.likelihood import as_likelihood
    from pocketbayes.prediction.ensemble import Ensemble
    from pocketbayes.prediction.reduce import reducer
    from pocketbayes.runs.progress import track

    ensemble = Ensemble(model, samples=samples, seed=seed)
    reduce = reducer(as_likelihood(likelihood), keep=data.classes is None)
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
    from pocketbayes.prediction.score import class_scores, regression_scores
    from pocketbayes.prediction.threshold import selective

    if data.classes is None:
        return regression_scores(answer, data.y, data.target_scaling)
    found = class_scores(answer, data.y)
    return found if unsure is None else found | selective(answer, data.y, unsure)._asdict()


# --- the library's own, imported when they are used: torch takes seconds -----------------------------------------


def foreign_scores(answer: Predictive, foreign: Predictive) -> dict[str, float]:
    from pocketbayes.prediction.score import ood_scores

    return ood_scores(answer, foreign)


def in_units(answer: Regression, scaling: Scaling | None) -> Regression:
    from pocketbayes.prediction import answer as found

    return found.in_units(answer, scaling)


def choose_threshold(answer: Predictive, labels: Tensor, max_risk: float | None) -> float:
    from pocketbayes.prediction import threshold

    return threshold.choose_threshold(answer, labels, max_risk)


def selective(answer: Predictive, labels: Tensor, threshold: float) -> Selective:
    from pocketbayes.prediction import threshold as found

    return found.selective(answer, labels, threshold)


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
