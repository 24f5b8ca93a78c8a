"""What a report tells: plain numbers and arrays, each part there or not, nothing that needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pocketbayes.artifact.summary import TensorSummary

Array = NDArray[Any]


class Comparison(NamedTuple):
    """A line of the table of before and after."""

    key: str
    before: float | None
    after: float
    error: float | None = None  # standard error of the difference, paired over the test examples


class ReliabilityBins(NamedTuple):
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


class Threshold(NamedTuple):
    """The confidence below which an answer is "not sure", and what it does on the test data."""

    confidence: float
    answered: float  # fraction of the inputs
    risk: float  # fraction of wrong ones among the answers


class Densities(NamedTuple):
    """Histograms over common bins, by what they are of."""

    edges: Array  # [B + 1]
    heights: Mapping[str, Array]  # [B] each


class Cloud(NamedTuple):
    """Points of the (mu, sigma) plane; `total` counts those left out too."""

    mu: Array
    sigma: Array
    total: int


class WeightPlane(NamedTuple):
    """Every Gaussian that a weight can have."""

    components: Cloud | None
    members: Array | None  # [K] weights that have this component's Gaussian
    outliers: Cloud | None
    blends: Cloud | None
    unshared: Cloud | None  # weights of a posterior that shares nothing
    tails: tuple[float, float] | None = None  # 1 and 99 % of all means

    def clouds(self) -> dict[str, Cloud]:
        """Those that are there, by name, in the order of drawing."""
        named = {
            "unshared weights": self.unshared,
            "outliers": self.outliers,
            "blends": self.blends,
            "components": self.components,
        }
        return {name: cloud for name, cloud in named.items() if cloud is not None}

    def size(self, cloud: Cloud) -> Array:
        """How many weights each point of a cloud stands for."""
        return (
            self.members if cloud is self.components and self.members is not None else np.ones(len(cloud.mu))
        )


class Intervals(NamedTuple):
    """Regression: a sample of the predictions, in the story's unit, and how often intervals hold the truth."""

    truth: Array
    mean: Array
    sigma: Array
    coverage: Mapping[str, Curve]  # fraction of the targets inside against the interval's probability


class TrainingCurve(NamedTuple):
    """The epochs of one stage; NaN where a number is unknown."""

    stage: str
    nll: Array
    kl: Array
    validation: Array  # its NLL


class StageScores(NamedTuple):
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
    """All that is known of a pocket file; the page shows the parts that are there.

    A mapping of curves has "after", the pocket file, and "before", the plain network, where that is known.
    """

    name: str = "model"  # of the file
    data: str = ""  # name of the test data
    examples: int = 0  # of them
    samples: int | str = 0  # draws in a prediction, or how else inputs were answered
    classes: tuple[str, ...] | None = None  # None for regression
    unit: str = ""  # of a regression's figures
    table: tuple[Comparison, ...] = ()
    sections: Mapping[str, int] | None = None  # bytes
    layers: tuple[TensorSummary, ...] = ()
    plane: WeightPlane | None = None
    weights: Densities | None = None  # of the plain weights, and of one draw of the posterior
    reliability: Mapping[str, ReliabilityBins] = field(default_factory=dict)
    confidence: tuple[ClassBox, ...] = ()
    risk: Mapping[str, Curve] = field(default_factory=dict)  # against coverage
    threshold: Threshold | None = None
    entropies: Densities | None = None  # nats; fractions of the test data and of out-of-distribution inputs
    intervals: Intervals | None = None
    runs: tuple[TrainingCurve, ...] = ()
    stages: tuple[StageScores, ...] = ()
    gallery: Gallery | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(
        default_factory=dict
    )  # seed, versions, command, time, what the file says

    @property
    def has_before(self) -> bool:
        return any(row.before is not None for row in self.table)


def thinned(x: Array, y: Array, most: int = 200) -> Curve:
    """A curve of at most `most` points, its ends among them."""
    at = np.unique(np.linspace(0, len(x) - 1, min(most, len(x))).round().astype(int))
    return Curve(np.asarray(x)[at], np.asarray(y)[at])
