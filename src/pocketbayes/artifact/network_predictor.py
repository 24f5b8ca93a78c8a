"""A `Predictor` that runs a network in torch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn

from pocketbayes.arrays import Array
from pocketbayes.artifact.predictor import Asked, Predictor
from pocketbayes.data import DataSet
from pocketbayes.prediction.answer import Predictive, Regression
from pocketbayes.prediction.conformal import conformal
from pocketbayes.prediction.predict import predict
from pocketbayes.prediction.scales import scales_of


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


def with_sets(
    predictor: NetworkPredictor, validation: DataSet, alpha: float, *, samples: int = 30, seed: int = 0
) -> NetworkPredictor:
    """The same with prediction sets, or intervals, that miss the truth with probability alpha; the model is changed."""
    data = validation.batches(256)
    likelihood = predictor.card.likelihood()
    conformal(predictor.model, data, alpha=alpha, likelihood=likelihood, samples=samples, seed=seed)
    return replace(predictor, card=predictor.card._replace(scales=scales_of(predictor.model)))
