"""The parts of a story that come from predictions on test data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from pocketbayes import metrics
from pocketbayes.data import DataSet
from pocketbayes.likelihood import Likelihood
from pocketbayes.prediction.answer import Predictive, Regression, in_units
from pocketbayes.prediction.answering import Samples
from pocketbayes.prediction.predict import predict
from pocketbayes.prediction.score import class_scores, regression_scores
from pocketbayes.report.story import (
    Array,
    ClassBox,
    Comparison,
    Curve,
    Densities,
    Gallery,
    Intervals,
    Picture,
    ReliabilityBins,
    Threshold,
    thinned,
)

Side = TypeVar("Side")
Sides: TypeAlias = Mapping[str, Side]  # "after", and where it is known "before"
Answer = TypeVar("Answer", Predictive, Regression)
PICTURES = 8  # in a row of the gallery
SHOWN = 400  # predictions of a regression in its figure
BINS = 30
LEVELS = np.linspace(0.05, 0.95, 19)  # probabilities of intervals


# --- classification --------------------------------------------------------------------------------------------


def classification(
    nets: Sides[nn.Module],
    test: DataSet,
    ood: Tensor | None,
    unsure: float | None,
    samples: Samples,
    seed: int,
) -> dict[str, Any]:
    """The parts of a `Story` about a classifier, from `samples` draws; a plain network in one pass."""
    test, classes = _labelled(test), test.classes
    assert classes is not None
    asked = {side: _classes(net, test.inputs(), samples, seed, len(classes)) for side, net in nets.items()}
    new, outside = asked["after"], None
    scores = {side: class_scores(answer, test.y) for side, answer in asked.items()}
    if ood is not None:
        outside = {side: _classes(net, ood, samples, seed, len(classes)) for side, net in nets.items()}
        for side, answer in asked.items():
            scores[side]["auroc"] = metrics.auroc(answer.entropy, outside[side].entropy)
    each = {side: _of_each(answer, test.y) for side, answer in asked.items()}
    return {
        "examples": len(test),
        "table": _compared(
            scores, each, ("accuracy", "nll", "ece", "brier", "auroc", "set_coverage", "set_size")
        ),
        "reliability": {side: _reliability(answer, test.y) for side, answer in asked.items()},
        "risk": {side: _risk(answer, test.y) for side, answer in asked.items()},
        "threshold": None if unsure is None else _threshold(new, test.y, unsure),
        "confidence": _boxes(new, test.y, classes),
        "entropies": None if outside is None else _entropies(new, outside["after"]),
        "gallery": _gallery(new, test),
    }


def _labelled(test: DataSet) -> DataSet:
    known = (test.y >= 0).nonzero()[:, 0]
    if not len(known):
        raise ValueError(f"{test.name}: no labels, so there is nothing to judge by. Give labelled test data.")
    return test.subset(known)


def _classes(model: nn.Module, x: Tensor, samples: Samples, seed: int, classes: int) -> Predictive:
    answer: Predictive = predict(model, x, samples=samples, seed=seed)
    if answer.probs.shape != (len(x), classes):
        raise ValueError(
            f"report: the network gives predictions of shape {tuple(answer.probs.shape)} for {len(x)} examples of "
            f"{classes} classes. Give the test data that the network was trained for."
        )
    return _on_cpu(answer)


def _of_each(answer: Predictive, labels: Tensor) -> dict[str, Tensor]:
    """The scores that are means over examples, example by example, [N]: for paired standard errors."""
    at = answer.probs.gather(1, labels[:, None])[:, 0]
    return {
        "accuracy": (answer.labels == labels).double(),
        "nll": -at.clamp_min(torch.finfo(at.dtype).tiny).log(),
        "brier": answer.probs.square().sum(1) - 2 * at + 1,
    }


def _compared(
    scores: Sides[dict[str, float]], each: Sides[dict[str, Tensor]], keys: Iterable[str]
) -> tuple[Comparison, ...]:
    """The scores of both sides, and the standard error of the difference where a score is a mean over examples."""
    before, after = scores.get("before", {}), scores["after"]
    return tuple(
        Comparison(key, before.get(key), after[key], _paired_error(each, key)) for key in keys if key in after
    )


def _paired_error(each: Sides[dict[str, Tensor]], key: str) -> float | None:
    if "before" not in each or key not in each["after"] or len(each["after"][key]) < 2:
        return None
    difference = each["after"][key] - each["before"][key]
    return difference.std().item() / math.sqrt(len(difference))


def _reliability(answer: Predictive, labels: Tensor) -> ReliabilityBins:
    table = metrics.reliability(answer.probs, labels)
    kept = table.size > 0
    return ReliabilityBins(*(_array(part[kept]) for part in (table.confidence, table.accuracy, table.size)))


def _risk(answer: Predictive, labels: Tensor) -> Curve:
    curve = metrics.risk_coverage(answer.probs, labels)
    return thinned(_array(curve.coverage), _array(curve.risk))


def _threshold(answer: Predictive, labels: Tensor, unsure: float) -> Threshold:
    """Where the file's threshold stands on the risk-coverage curve."""
    answered = int((answer.confidence >= unsure).sum())
    risk = metrics.risk_coverage(answer.probs, labels).risk[answered - 1].item() if answered else math.nan
    return Threshold(unsure, answered / len(labels), risk)


def _boxes(answer: Predictive, labels: Tensor, classes: tuple[str, ...]) -> tuple[ClassBox, ...]:
    table, boxes = metrics.class_confidence(answer.probs, labels), []
    right = answer.labels == labels
    for c in table.size.nonzero()[:, 0].tolist():
        of_class = labels == c
        box = ClassBox(
            name=classes[c],
            size=int(table.size[c]),
            quantiles=_array(table.quantiles[c]),
            mean=table.mean[c].item(),
            right=answer.confidence[of_class & right].mean().item(),
            wrong=answer.confidence[of_class & ~right].mean().item(),
            accuracy=table.accuracy[c].item(),
        )
        boxes.append(box)
    return tuple(boxes)


def _entropies(test: Predictive, ood: Predictive) -> Densities:
    edges = np.linspace(0.0, math.log(test.probs.shape[1]), BINS + 1)
    heights = {}
    for name, answer in (("test data", test), ("out-of-distribution inputs", ood)):
        inside = np.clip(_array(answer.entropy), edges[0], edges[-1])  # rounding can pass ln C
        heights[name] = np.histogram(inside, edges)[0] / len(inside)
    return Densities(edges, heights)


# --- images ----------------------------------------------------------------------------------------------------


def _gallery(answer: Predictive, test: DataSet) -> Gallery | None:
    """The surest and the least sure images, and the surest of the mistakes; None for data that are no images."""
    if test.x.ndim != 4 or test.x.shape[1] not in (1, 3):
        return None
    order = answer.confidence.argsort(descending=True, stable=True)
    wrong = order[(answer.labels != test.y)[order]]
    rows = (order[:PICTURES], order.flip(0)[:PICTURES], wrong[:PICTURES])
    return Gallery(*(tuple(_picture(answer, test, i) for i in row.tolist()) for row in rows))


def _picture(answer: Predictive, test: DataSet, i: int) -> Picture:
    assert test.classes is not None
    truth, said = int(test.y[i]), int(answer.labels[i])
    confidence = answer.confidence[i].item()
    return Picture(_pixels(test, i), test.classes[truth], test.classes[said], confidence, truth == said)


def _pixels(test: DataSet, i: int) -> Array:
    """uint8 [H, W] or [H, W, 3]; images of floats are stretched to their own range."""
    image = test.x[i].float()
    low, high = (0.0, test.scaling.full) if test.x.dtype == torch.uint8 else (image.min(), image.max())
    grey = ((image - low) / max(float(high - low), 1e-12)).clamp(0, 1) * 255
    pixels = _array(grey.round().to(torch.uint8)).transpose(1, 2, 0)
    return pixels[..., 0] if pixels.shape[2] == 1 else pixels


# --- regression ------------------------------------------------------------------------------------------------


def regression(
    nets: Sides[nn.Module], test: DataSet, likelihood: Likelihood, samples: Samples, seed: int
) -> dict[str, Any]:
    """The parts of a `Story` about a regression, in the units of the data.

    Several targets have several units, so that figures which show them together are of standardised ones.
    """
    asked = {side: _normals(net, test, likelihood, samples, seed) for side, net in nets.items()}
    shown = {side: in_units(answer, test.target_scaling) for side, answer in asked.items()}
    targets, unit = test.y.double(), "units of the data"
    scores = {side: regression_scores(answer, targets) for side, answer in shown.items()}
    each = {side: {"nll": _nll_of_each(answer, targets)} for side, answer in shown.items()}
    if test.num_outputs > 1 and test.target_scaling is not None:
        shown, targets, unit = asked, test.targets().double(), "standardised"
    return {
        "examples": len(test),
        "unit": unit,
        "table": _compared(scores, each, ("rmse", "nll", "interval_coverage")),
        "risk": {side: _error_by_certainty(answer, targets) for side, answer in shown.items()},
        "intervals": _intervals(shown, targets, seed),
    }


def _normals(
    model: nn.Module, test: DataSet, likelihood: Likelihood, samples: Samples, seed: int
) -> Regression:
    answer = predict(model, test.inputs(), samples=samples, seed=seed, likelihood=likelihood, draws=True)
    if not isinstance(answer, Regression) or answer.mean.shape != test.y.shape:
        raise ValueError(
            f"report: the network's predictions do not fit targets of shape {tuple(test.y.shape)}. Give its own "
            "test data, and a Homoscedastic or Heteroscedastic likelihood."
        )
    return _on_cpu(answer)


def _nll_of_each(answer: Regression, targets: Tensor) -> Tensor:
    """-ln of the mean density over the draws, outputs jointly: [N], for a paired standard error."""
    log_p: Tensor = _mixture(answer).log_prob(targets).flatten(2).sum(2)  # [S, N]
    return math.log(len(log_p)) - log_p.logsumexp(0)


def _mixture(answer: Regression) -> torch.distributions.Normal:
    """The Gaussian of each draw, [S, N, ...]."""
    assert answer.draws is not None and answer.sigmas is not None
    return torch.distributions.Normal(answer.draws, answer.sigmas)


def _error_by_certainty(answer: Regression, targets: Tensor) -> Curve:
    """RMSE of the examples kept when the least certain are left out."""
    squares = (answer.mean - targets).square().flatten(1).mean(1)
    curve = metrics.loss_coverage(squares, -answer.var.flatten(1).sum(1))
    return thinned(_array(curve.coverage), _array(curve.risk.sqrt()))


def _intervals(shown: Sides[Regression], targets: Tensor, seed: int) -> Intervals:
    new = shown["after"]
    truth, mean, sigma = (_array(t).reshape(-1) for t in (targets, new.mean, new.var.sqrt()))
    at = np.sort(np.random.default_rng(seed).permutation(len(truth))[:SHOWN])
    coverage = {side: _coverage(answer, targets) for side, answer in shown.items()}
    return Intervals(truth[at], mean[at], sigma[at], coverage)


def _coverage(answer: Regression, targets: Tensor) -> Curve:
    """Fraction of the targets inside the central interval of each probability, by the mixture's own distribution."""
    below = _mixture(answer).cdf(targets).mean(0)  # P(Y < y)
    needed = _array((2 * below - 1).abs()).reshape(-1)  # probability of the smallest interval that holds y
    return Curve(LEVELS, (needed[:, None] <= LEVELS).mean(0))


def _on_cpu(answer: Answer) -> Answer:
    """Beside the test labels, wherever the network ran."""
    parts = {f.name: getattr(answer, f.name) for f in fields(answer)}
    moved: dict[str, Any] = {name: part.cpu() for name, part in parts.items() if isinstance(part, Tensor)}
    return replace(answer, **moved)


def _array(tensor: Tensor) -> Array:
    array: Array = tensor.detach().numpy()
    return array
