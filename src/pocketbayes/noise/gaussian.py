"""Gaussian noise: the family every other one is compared with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pocketbayes.noise.family import Noise


@dataclass(frozen=True)
class Gaussian(Noise):
    """z ~ N(0, 1)."""

    def sample_like(self, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        if generator is None:
            return torch.randn_like(like)
        return torch.empty_like(like).normal_(generator=generator)

    def negentropy(self) -> float:
        return 0.0
