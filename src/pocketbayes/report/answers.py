"""The parts of a story that come from predictions on test data."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from pocketbayes import metrics
from pocketbayes.data import DataSet
from pocketbayes.likelihood import Likelihood
from pocketbayes.prediction.predict import Predictive, Regression, predict
from pocketbayes.report.story import (
    Array,
    ClassBox,
    Curve,
    Entropies,
    Gallery,
    Intervals,
    Picture,
    Reliability,
    Row,
    thinned,
)

Answer = TypeVar("Answer", Predictive, Regression)
PICTURES = 8  # in a row of the gallery
SHOWN = 400  # predictions of a regression in its figure
BINS = 30
LEVELS = np.linspace(0.05, 0.95, 19)  # probabilities of intervals


# --- classification --------------------------------------------------------------------------------------------


def classification(
    model: nn.Module, before: nn.Module | None, test: DataSet, ood: Tensor | None, samples: int, seed: int
) -> dict[str, Any]:
    """The parts of a `Story` about a classifier, from `samples` draws; the plain network in one pass."""
    test, classes = _labelled(test), test.classes
    assert classes is not None

    def ask(network: nn.Module | None, x: Tensor | None) -> Predictive | None:
        return None if network is None or x is None else _classes(network, x, samples, seed, len(classes))

    old, new, strangers = ask(before, test.inputs()), ask(model, test.inputs()), ask(model, ood)
    assert new is not None
    return {
        "examples": len(test),
        "table": _class_table(old, new, test.y, ask(before, ood), strangers),
        "reliability_before": None if old is None else _reliability(old, test.y),
        "reliability": _reliability(new, test.y),
        "risk_before": None if old is None else _risk(old, test.y),
        "risk": _risk(new, test.y),
        "confidence": _boxes(new, test.y, classes),
        "entropies": None if strangers is None else _entropies(new, strangers),
        "gallery": _gallery(new, test),
    }


def _labelled(test: DataSet) -> DataSet:
    known = (test.y >= 0).nonzero()[:, 0]
    if not len(known):
        raise ValueError(f"{test.name}: no labels, so there is nothing to judge by. Give labelled test data.")
    return test.subset(known)


def _classes(model: nn.Module, x: Tensor, samples: int, seed: int, classes: int) -> Predictive:
    answer: Predictive = predict(model, x, samples=samples, seed=seed)
    if answer.probs.shape != (len(x), classes):
        raise ValueError(
            f"report: the network gives predictions of shape {tuple(answer.probs.shape)} for {len(x)} examples of "
            f"{classes} classes. Give the test data that the network was trained for."
        )
    return _on_cpu(answer)


def _class_table(
    old: Predictive | None,
    new: Predictive,
    labels: Tensor,
    old_foreign: Predictive | None,
    new_foreign: Predictive | None,
) -> tuple[Row, ...]:
    rows = []
    for key in ("accuracy", "nll", "ece", "brier"):
        score = getattr(metrics, key)
        value = None if old is None else score(old.probs, labels)
        rows.append(Row(key, value, score(new.probs, labels), _paired_error(key, old, new, labels)))
    if new_foreign is not None:
        value = (
            None if old is None or old_foreign is None else metrics.auroc(old.entropy, old_foreign.entropy)
        )
        rows.append(Row("auroc", value, metrics.auroc(new.entropy, new_foreign.entropy)))
    return tuple(rows)


def _paired_error(key: str, old: Predictive | None, new: Predictive, labels: Tensor) -> float | None:
    """The standard error of a mean's difference; none for ECE, which is no mean over examples."""
    if old is None or key == "ece" or len(labels) < 2:
        return None
    return _standard_error(_each(key, new.probs, labels) - _each(key, old.probs, labels))


def _standard_error(difference: Tensor) -> float:
    return difference.std().item() / math.sqrt(len(difference))


def _each(key: str, probs: Tensor, labels: Tensor) -> Tensor:
    """The measure example by example, [N]."""
    at = probs.gather(1, labels[:, None])[:, 0]
    if key == "accuracy":
        return (probs.argmax(1) == labels).double()
    if key == "nll":
        return -at.clamp_min(torch.finfo(probs.dtype).tiny).log()
    return probs.square().sum(1) - 2 * at + 1


def _reliability(answer: Predictive, labels: Tensor) -> Reliability:
    table = metrics.reliability(answer.probs, labels)
    kept = table.size > 0
    return Reliability(*(_array(part[kept]) for part in (table.confidence, table.accuracy, table.size)))


def _risk(answer: Predictive, labels: Tensor) -> Curve:
    curve = metrics.risk_coverage(answer.probs, labels)
    return thinned(_array(curve.coverage), _array(curve.risk))


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
            right=_mean(answer.confidence[of_class & right]),
            wrong=_mean(answer.confidence[of_class & ~right]),
            accuracy=table.accuracy[c].item(),
        )
        boxes.append(box)
    return tuple(boxes)


def _mean(values: Tensor) -> float:
    return values.mean().item() if len(values) else math.nan


def _entropies(familiar: Predictive, foreign: Predictive) -> Entropies:
    edges = np.linspace(0.0, math.log(familiar.probs.shape[1]), BINS + 1)
    shares = []
    for answer in (familiar, foreign):
        inside = np.clip(_array(answer.entropy), edges[0], edges[-1])  # rounding can pass ln C
        shares.append(np.histogram(inside, edges)[0] / len(inside))
    return Entropies(edges, *shares)


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
    return Picture(
        _pixels(test, i), test.classes[truth], test.classes[said], answer.confidence[i].item(), truth == said
    )


def _pixels(test: DataSet, i: int) -> Array:
    """uint8 [H, W] or [H, W, 3]; images of floats are stretched to their own range."""
    image = test.x[i].float()
    low, high = (0.0, test.scaling.full) if test.x.dtype == torch.uint8 else (image.min(), image.max())
    grey = ((image - low) / max(float(high - low), 1e-12)).clamp(0, 1) * 255
    pixels = _array(grey.round().to(torch.uint8)).transpose(1, 2, 0)
    return pixels[..., 0] if pixels.shape[2] == 1 else pixels


# --- regression ------------------------------------------------------------------------------------------------


class Unit(NamedTuple):
    """How standardised numbers are shown: in the data's own unit where there is one target."""

    name: str
    scale: float
    shift: float


def _unit(test: DataSet) -> Unit:
    scaling = test.target_scaling
    if scaling is None or test.num_outputs != 1:
        return Unit("standardised", 1.0, 0.0)
    return Unit(
        "units of the data", (scaling.std * scaling.full).item(), (scaling.mean * scaling.full).item()
    )


def regression(
    model: nn.Module,
    before: nn.Module | None,
    test: DataSet,
    likelihood: Likelihood,
    samples: int,
    seed: int,
) -> dict[str, Any]:
    """The parts of a `Story` about a regression.  The NLL is that of the standardised targets."""
    targets, unit = test.targets().double(), _unit(test)
    old = None if before is None else _normals(before, test.inputs(), likelihood, targets, samples, seed)
    new = _normals(model, test.inputs(), likelihood, targets, samples, seed)
    return {
        "examples": len(test),
        "unit": unit.name,
        "table": _regression_table(old, new, targets, unit),
        "risk_before": None if old is None else _error_by_certainty(old, targets, unit),
        "risk": _error_by_certainty(new, targets, unit),
        "intervals": _intervals(old, new, targets, unit, seed),
    }


def _normals(
    model: nn.Module, x: Tensor, likelihood: Likelihood, targets: Tensor, samples: int, seed: int
) -> Regression:
    answer = predict(model, x, samples=samples, seed=seed, likelihood=likelihood, draws=True)
    if not isinstance(answer, Regression) or answer.mean.shape != targets.shape:
        raise ValueError(
            f"report: the network's predictions do not fit targets of shape {tuple(targets.shape)}. Give its own "
            "test data, and a Homoscedastic or Heteroscedastic likelihood."
        )
    return _on_cpu(answer)


def _regression_table(
    old: Regression | None, new: Regression, targets: Tensor, unit: Unit
) -> tuple[Row, ...]:
    rmse = [None if a is None else unit.scale * metrics.rmse(a.mean, targets) for a in (old, new)]
    each = [None if a is None else _nll_each(a, targets) for a in (old, new)]
    nll = [None if e is None else e.mean().item() for e in each]
    assert rmse[1] is not None and nll[1] is not None and each[1] is not None
    error = None if each[0] is None or len(targets) < 2 else _standard_error(each[1] - each[0])
    return Row("rmse", rmse[0], rmse[1]), Row("nll", nll[0], nll[1], error)


def _nll_each(answer: Regression, targets: Tensor) -> Tensor:
    """-ln of the mean density over the draws, outputs jointly: [N]."""
    assert answer.draws is not None and answer.sigmas is not None
    normal = torch.distributions.Normal(answer.draws, answer.sigmas)
    log_p: Tensor = normal.log_prob(targets).flatten(2).sum(2)  # [S, N]
    return math.log(len(log_p)) - log_p.logsumexp(0)


def _error_by_certainty(answer: Regression, targets: Tensor, unit: Unit) -> Curve:
    """RMSE of the examples kept when the least certain are left out."""
    squares = (answer.mean - targets).square().flatten(1).mean(1)
    doubt, order = answer.var.flatten(1).sum(1).sort()
    # Examples of one certainty, all of them where the noise is constant, are taken in random order, in expectation.
    group, size = torch.unique_consecutive(doubt, return_inverse=True, return_counts=True)[1:]
    expected = (torch.bincount(group, squares[order]) / size)[group]  # [N]
    rank = torch.arange(1, len(order) + 1, dtype=torch.float64)
    return thinned(_array(rank / len(order)), _array(unit.scale * (expected.cumsum(0) / rank).sqrt()))


def _intervals(old: Regression | None, new: Regression, targets: Tensor, unit: Unit, seed: int) -> Intervals:
    truth, mean, sigma = (_array(t).reshape(-1) for t in (targets, new.mean, new.var.sqrt()))
    at = np.sort(np.random.default_rng(seed).permutation(len(truth))[:SHOWN])
    return Intervals(
        truth[at] * unit.scale + unit.shift,
        mean[at] * unit.scale + unit.shift,
        sigma[at] * unit.scale,
        None if old is None else _coverage(old, targets),
        _coverage(new, targets),
    )


def _coverage(answer: Regression, targets: Tensor) -> Curve:
    """Share of the targets inside the central interval of each probability, by the mixture's own distribution."""
    assert answer.draws is not None and answer.sigmas is not None
    below = torch.special.ndtr((targets - answer.draws) / answer.sigmas).mean(0)  # P(Y < y)
    needed = _array((2 * below - 1).abs()).reshape(-1)  # probability of the smallest interval that holds y
    return Curve(LEVELS, (needed[:, None] <= LEVELS).mean(0))


def _on_cpu(answer: Answer) -> Answer:
    """Beside the test labels, wherever the network ran."""
    parts = {f.name: getattr(answer, f.name) for f in fields(answer)}
    moved: dict[str, Any] = {name: part.cpu() for name, part in parts.items() if part is not None}
    return replace(answer, **moved)


def _array(tensor: Tensor) -> Array:
    array: Array = tensor.detach().numpy()
    return array
