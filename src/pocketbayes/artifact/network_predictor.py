"""A `Predictor` that runs a network in torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from pocketbayes.arrays import Array
from pocketbayes.artifact.predictor import Predictor
from pocketbayes.prediction.answer import Predictive, Regression
from pocketbayes.prediction.predict import predict


@dataclass(frozen=True, kw_only=True, eq=False)
class NetworkPredictor(Predictor):
    """A posterior in torch, and the card that says how it is used."""

    model: nn.Module

    def ask(self, x: Array, *, samples: int, seed: int, progress: bool) -> Predictive | Regression:
        answer = predict(
            self.model,
            torch.from_numpy(x),
            samples=samples,
            seed=seed,
            likelihood=self.card.likelihood(),
            draws=self.card.classes is None,
            progress=progress,
        )
        assert isinstance(answer, Predictive | Regression)
        return answer
