"""What a report tells: plain numbers and arrays, each part there or not, nothing that needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Row(NamedTuple):
    """A line of the table of before and after."""

    key: str
    before: float | None
    after: float
    error: float | None = None  # standard error of the difference, paired over the test examples


class Reliability(NamedTuple):
    """How often predictions of a given confidence are right; empty bins are left out."""

    confidence: Array  # [B]
    accuracy: Array  # [B]
    size: Array  # [B]


class ClassBox(NamedTuple):
    """Confidence on the test examples of one class."""

    name: str
    size: int
    quantiles: Array  # [5]: 5, 25, 50, 75 and 95 %
    mean: float
    right: float  # mean confidence of the right answers, NaN without any
    wrong: float
    accuracy: float


class Curve(NamedTuple):
    """y against x."""

    x: Array
    y: Array


class Histogram(NamedTuple):
    """Densities over common bins."""

    edges: Array  # [B + 1]
    before: Array | None  # [B]
    after: Array  # [B]


class Entropies(NamedTuple):
    """Predictive entropy of test data and of foreign inputs: shares of each over common bins, in nats."""

    edges: Array  # [B + 1]
    familiar: Array  # [B]
    foreign: Array  # [B]


class Layer(NamedTuple):
    """What one tensor takes in the file."""

    name: str
    kind: str
    weights: int
    bits: float
    outliers: int
    blends: int


class Cloud(NamedTuple):
    """Points of the (mu, sigma) plane; `total` counts those left out too."""

    mu: Array
    sigma: Array
    total: int


class Plane(NamedTuple):
    """Every law that a weight can have."""

    components: Cloud | None
    members: Array | None  # [K] weights that have this component's law
    outliers: Cloud | None
    blends: Cloud | None
    private: Cloud | None  # weights of an unshared posterior
    tails: tuple[float, float] | None = None  # 1 and 99 % of all means


class Intervals(NamedTuple):
    """Regression: a sample of the predictions, in the story's unit, and how often intervals hold the truth."""

    truth: Array
    mean: Array
    sigma: Array
    before: Curve | None  # share of targets inside against the interval's probability
    after: Curve


class Run(NamedTuple):
    """The training curve of one stage; NaN where a number is unknown."""

    stage: str
    epoch: Array
    nll: Array
    kl: Array
    validation: Array  # its NLL


class Stage(NamedTuple):
    """One stage of compression."""

    name: str
    seconds: float | None
    metrics: Mapping[str, float]
    note: str


class Picture(NamedTuple):
    """A test image with what was said about it."""

    pixels: Array  # uint8 [H, W] or [H, W, 3]
    truth: str
    predicted: str
    confidence: float
    right: bool


class Gallery(NamedTuple):
    """Test images by confidence."""

    surest: tuple[Picture, ...]
    least_sure: tuple[Picture, ...]
    sure_and_wrong: tuple[Picture, ...]


@dataclass(frozen=True, kw_only=True)
class Story:
    """All that is known of a pocket file; the page shows the parts that are there."""

    name: str = "model"  # of the file
    data: str = ""  # name of the test data
    examples: int = 0  # of them
    samples: int = 0  # draws in a prediction
    classes: tuple[str, ...] | None = None  # None for regression
    unit: str = ""  # of a regression's errors and predictions
    table: tuple[Row, ...] = ()
    sections: Mapping[str, int] | None = None  # bytes
    layers: tuple[Layer, ...] = ()
    plane: Plane | None = None
    weights: Histogram | None = None  # plain weights, and one draw of the posterior
    reliability_before: Reliability | None = None
    reliability: Reliability | None = None
    confidence: tuple[ClassBox, ...] = ()
    risk_before: Curve | None = None  # risk against coverage
    risk: Curve | None = None
    entropies: Entropies | None = None
    intervals: Intervals | None = None
    runs: tuple[Run, ...] = ()
    stages: tuple[Stage, ...] = ()
    gallery: Gallery | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(
        default_factory=dict
    )  # seed, versions, command, time, what the file says

    @property
    def has_before(self) -> bool:
        return any(row.before is not None for row in self.table)


def thinned(curve_x: Array, curve_y: Array, most: int = 200) -> Curve:
    """A curve of at most `most` points, its ends among them."""
    if len(curve_x) <= most:
        return Curve(np.asarray(curve_x), np.asarray(curve_y))
    at = np.unique(np.linspace(0, len(curve_x) - 1, most).round().astype(int))
    return Curve(np.asarray(curve_x)[at], np.asarray(curve_y)[at])
