"""A `Predictor` that runs a network in torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from pocketbayes.arrays import Array
from pocketbayes.artifact.predictor import Asked, Predictor
from pocketbayes.prediction.answer import Predictive, Regression
from pocketbayes.prediction.predict import predict


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
