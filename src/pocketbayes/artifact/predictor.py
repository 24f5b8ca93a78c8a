"""`Predictor`: a posterior with its card; raw inputs in, class names or values in units out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pocketbayes.artifact.card import Card
from pocketbayes.data import DataSet
from pocketbayes.data.inputs import arranged
from pocketbayes.prediction.answer import Predictive, Regression, in_units
from pocketbayes.prediction.answering import Samples
from pocketbayes.prediction.conformal import conformal
from pocketbayes.prediction.evaluate import Evaluation
from pocketbayes.prediction.predict import predict
from pocketbayes.prediction.scales import scales_of
from pocketbayes.prediction.score import NORMAL_95, class_scores, ood_scores, regression_scores
from pocketbayes.prediction.threshold import selective


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
        return self.var.sqrt()

    @property
    def low(self) -> Tensor:
        """Lower ends of the intervals, [N, T]."""
        return self.mean - NORMAL_95 * self.sigma

    @property
    def high(self) -> Tensor:
        """Upper ends of the intervals, [N, T]."""
        return self.mean + NORMAL_95 * self.sigma


@dataclass(frozen=True, kw_only=True, eq=False)
class Predictor:
    """A network, and the card that says how it is used: raw inputs in, class names or values in their units out."""

    model: nn.Module
    card: Card

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
            samples, tolerance: draws of the weights, "mean" for one pass through the means, "auto" for as many draws as
                each input needs, as in `pb.predict`.
            seed: where their random numbers start.
        """
        card = self.card
        answer = predict(
            self.model,
            card.scaling.apply(_raw(x, card.shape)),
            samples=samples,
            tolerance=tolerance,
            seed=seed,
            likelihood=card.likelihood(),
            draws=card.classes is None,
            progress=progress,
        )
        if isinstance(answer, Regression):
            return ValueAnswers(**vars(in_units(answer, card.target_scaling)))
        assert isinstance(answer, Predictive)
        count = answer.probs.shape[1]
        known = card.classes if len(card.classes or ()) == count else tuple(map(str, range(count)))
        return ClassAnswers(**vars(answer), classes=known or (), threshold=card.unsure)

    def evaluate(
        self, x: Any, y: Any, *, ood: Any = None, samples: Samples = 30, seed: int = 0, progress: bool = False
    ) -> Evaluation:
        """How good and how honest the answers are: accuracy, NLL, ECE, Brier score ...; of a regression RMSE, NLL,
        sigmas and how often 95 % intervals hold the truth, in the units of the data.

        Args:
            x, y: raw inputs, and labels [N] or targets [N, T] in the units of the data.
            ood: raw inputs of another kind; adds how well predictive entropy tells them from x.
        """
        answer = self.predict(x, samples=samples, seed=seed, progress=progress)
        found = score(answer, torch.as_tensor(y))
        if ood is not None:
            if not isinstance(answer, ClassAnswers):
                raise ValueError("ood= ranks inputs by the entropy of their classes; this is a regression.")
            outside = self.predict(ood, samples=samples, seed=seed, progress=progress)
            assert isinstance(outside, ClassAnswers)
            found |= ood_scores(answer, outside)
        return found


def with_sets(
    predictor: Predictor, validation: DataSet, alpha: float, *, samples: int = 30, seed: int = 0
) -> Predictor:
    """The same with prediction sets, or intervals, that miss the truth with probability alpha; the model is changed."""
    data = validation.batches(256)
    likelihood = predictor.card.likelihood()
    conformal(predictor.model, data, alpha=alpha, likelihood=likelihood, samples=samples, seed=seed)
    return replace(predictor, card=predictor.card._replace(scales=scales_of(predictor.model)))


def score(answer: ClassAnswers | ValueAnswers, y: Tensor) -> Evaluation:
    """The metrics of answers that are there already, y in the units of the data."""
    if isinstance(answer, ValueAnswers):
        return Evaluation(regression_scores(answer, y))
    rule = {} if answer.threshold is None else selective(answer, y, answer.threshold)._asdict()
    return Evaluation(class_scores(answer, y) | rule)


def _raw(x: Any, shape: tuple[int, ...]) -> Tensor:
    """Inputs as the training data have them: bytes, or float32, [N, *shape]."""
    array = arranged("the inputs", np.asarray(x.cpu() if isinstance(x, Tensor) else x), shape)
    kept = array if array.dtype == np.uint8 else array.astype(np.float32, copy=False)
    return torch.from_numpy(np.require(kept, requirements=["C", "W"]))
