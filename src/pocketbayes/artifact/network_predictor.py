"""A `Predictor` that runs a network in torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from pocketbayes.arrays import Array
from pocketbayes.artifact.predictor import Asked, ClassAnswers, Predictor, ValueAnswers
from pocketbayes.data import DataSet
from pocketbayes.prediction.answer import Predictive, Regression
from pocketbayes.prediction.average import join
from pocketbayes.prediction.conformal import conformal
from pocketbayes.prediction.predict import predict
from pocketbayes.prediction.scales import scales_of
from pocketbayes.prediction.threshold import choose_threshold
from pocketbayes.runs import ranks


@dataclass(frozen=True, kw_only=True, eq=False)
class NetworkPredictor(Predictor):
    """A posterior in torch, and the card that says how it is used."""

    model: nn.Module

    def ask(self, x: Array, how: Asked) -> Predictive | Regression:
        answer = predict(
            self.model,
            torch.from_numpy(x),
            **how._asdict(),
            likelihood=self.card.likelihood(),
            draws=self.card.classes is None,
        )
        assert isinstance(answer, Predictive | Regression)
        return answer

    def predict_all(self, x: Any, **how: Any) -> ClassAnswers | ValueAnswers:
        if ranks.count() == 1 or len(x) < ranks.count():
            return self.predict(x, **how)
        start, end = (len(x) * rank // ranks.count() for rank in (ranks.number(), ranks.number() + 1))
        parts: list[Any] = ranks.gather(self.predict(x[start:end], **how))
        return join(parts)  # type: ignore[no-any-return]


def with_rules(
    predictor: NetworkPredictor,
    validation: DataSet,
    *,
    alpha: float | None = None,
    max_risk: float | None = None,
    samples: int = 30,
    seed: int = 0,
) -> tuple[NetworkPredictor, ClassAnswers | ValueAnswers]:
    """The same with the rules that validation data choose, and its answers about these data.

    With alpha, prediction sets or intervals that miss the truth with that probability, for which the model is changed;
    and for classes the threshold of "not sure".
    """
    if alpha is not None:
        data, likelihood = validation.batches(256), predictor.card.likelihood()
        conformal(predictor.model, data, alpha=alpha, likelihood=likelihood, samples=samples, seed=seed)
        predictor = replace(predictor, card=predictor.card._replace(scales=scales_of(predictor.model)))
    answer = predictor.predict(validation.x, samples=samples, seed=seed, progress=True)
    if isinstance(answer, ClassAnswers):
        unsure = choose_threshold(answer, validation.y, max_risk)
        predictor = replace(predictor, card=predictor.card._replace(unsure=unsure))
    return predictor, answer
