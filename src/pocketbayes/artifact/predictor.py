"""`Predictor`: what answers by a file and its card; raw inputs in, class names or values in units out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pocketbayes.arrays import Array, to_numpy
from pocketbayes.artifact.card import Card
from pocketbayes.data.inputs import arranged
from pocketbayes.prediction.answer import Predictive, Regression, in_units
from pocketbayes.prediction.average import Samples
from pocketbayes.prediction.score import NORMAL_95, Evaluation, class_scores, ood_scores, regression_scores
from pocketbayes.prediction.threshold import selective

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class ClassAnswers(Predictive):
    """A `Predictive` that knows the names of its classes and which answers are sure."""

    classes: tuple[str, ...]
    threshold: float | None  # the smallest confidence that counts as sure

    @property
    def names(self) -> list[str]:
        """The name of each input's most probable class, N of them."""
        return [self.classes[label] for label in self.labels.tolist()]

    @property
    def sure(self) -> Tensor | None:
        """Whether each answer is at least as confident as the threshold, bool [N]; None without a threshold."""
        return None if self.threshold is None else self.confidence >= self.threshold


@dataclass(frozen=True, kw_only=True)
class ValueAnswers(Regression):
    """A `Regression` in the units of the data, with 95 % intervals."""

    @property
    def sigma(self) -> Tensor:
        """Standard deviation of each prediction, [N, T]."""
        return self.var**0.5

    @property
    def epistemic_sigma(self) -> Tensor:
        """That of the weights' part in it, [N, T]."""
        return self.epistemic_var**0.5

    @property
    def low(self) -> Tensor:
        """Lower ends of the intervals, [N, T]."""
        return self.mean - NORMAL_95 * self.sigma

    @property
    def high(self) -> Tensor:
        """Upper ends of the intervals, [N, T]."""
        return self.mean + NORMAL_95 * self.sigma


class Asked(NamedTuple):
    """How an answer is wanted."""

    samples: Samples
    tolerance: float | None
    seed: int
    progress: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Predictor(ABC):
    """What answers by a file: raw inputs in, class names or values in their units out, as its card says.

    `pb.open` returns one.

    Args:
        card: what the file says about its use: input shape and scaling, classes or units, the "not sure" threshold.

    Examples:
        >>> import pocketbayes as pb, torch
        >>> card = {"net": "mlp:8", "args": {"in_features": 2, "out_features": 3}, "shape": [2],
        ...         "classes": ["a", "b", "c"], "scale": [[5.0, 5.0], [2.0, 2.0], 1.0]}
        >>> network = pb.bayesianize(torch.nn.Sequential(torch.nn.Flatten(), *pb.nets.mlp([2, 8, 3])))
        >>> _ = pb.save(network, "small.pocket", metadata=card)
        >>> predictor = pb.open("small.pocket")
        >>> predictor.predict([[4.0, 6.5], [5.0, 1.0]], samples="mean").probs.shape
        torch.Size([2, 3])
        >>> 0 <= predictor.evaluate([[4.0, 6.5], [5.0, 1.0]], [0, 2], samples="mean")["accuracy"] <= 1
        True
    """

    card: Card

    @abstractmethod
    def ask(self, x: Array, how: Asked) -> Predictive | Regression:
        """The answer to scaled inputs [N, *shape], in the units of the network's output."""

    def predict(
        self,
        x: Any,
        *,
        samples: Samples = 30,
        tolerance: float | None = None,
        seed: int = 0,
        progress: bool = False,
    ) -> ClassAnswers | ValueAnswers:
        """What the network says about raw inputs: a `ClassAnswers`, or a `ValueAnswers` for regression.

        Args:
            x: an array or tensor of inputs in the units of the training data, [N, *shape] or one of them; images may
                have their channels last. They are scaled as the card says.
            samples, tolerance: draws of the weights, as in `pb.predict`; "mean" for one pass, "auto" for as many as
                each input needs.
            seed: where their random numbers start.
        """
        card = self.card
        scaled = card.scaling.apply(_raw(x, card.shape))
        answer = self.ask(scaled, Asked(samples, tolerance, seed, progress))
        if isinstance(answer, Regression):
            return ValueAnswers(**vars(in_units(answer, card.target_scaling)))
        count = answer.probs.shape[1]
        known = card.classes if len(card.classes or ()) == count else tuple(map(str, range(count)))
        return ClassAnswers(**vars(answer), classes=known or (), threshold=card.unsure)

    def predict_all(self, x: Any, **how: Any) -> ClassAnswers | ValueAnswers:
        """The same, by as many processes as work together."""
        return self.predict(x, **how)

    def evaluate(
        self,
        x: Any,
        y: Any,
        *,
        ood: Any = None,
        samples: Samples = 30,
        tolerance: float | None = None,
        seed: int = 0,
        progress: bool = False,
    ) -> Evaluation:
        """How good and how honest the answers are: accuracy, NLL, ECE, Brier score ...; of a regression RMSE, NLL,
        sigmas and how often 95 % intervals hold the truth, in the units of the data.

        Args:
            x, y: raw inputs, and labels [N] or targets [N, T] in the units of the data.
            ood: raw inputs of another kind; adds how well predictive entropy tells them from x.
        """
        how: dict[str, Any] = {"samples": samples, "tolerance": tolerance, "seed": seed, "progress": progress}
        answer = self.predict_all(x, **how)
        found = score(answer, y)
        if ood is not None:
            if not isinstance(answer, ClassAnswers):
                raise ValueError("ood= ranks inputs by the entropy of their classes; this is a regression.")
            outside = self.predict_all(ood, **how)
            assert isinstance(outside, ClassAnswers)
            found |= ood_scores(answer, outside)
        return found


def score(answer: ClassAnswers | ValueAnswers, y: Any) -> Evaluation:
    """The metrics of answers that are there already, y in the units of the data."""
    if isinstance(answer, ValueAnswers):
        return Evaluation(regression_scores(answer, y))
    rule = {} if answer.threshold is None else selective(answer, y, answer.threshold)._asdict()
    return Evaluation(class_scores(answer, y) | rule)


def _raw(x: Any, shape: tuple[int, ...]) -> Array:
    """Inputs as the training data have them: bytes, or float32, [N, *shape]."""
    array = arranged("the inputs", to_numpy(x), shape)
    kept = array if array.dtype == np.uint8 else array.astype(np.float32, copy=False)
    return np.require(kept, requirements=["C", "W"])
