"""Gaussian noise: the family every other one is compared with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pocketbayes.noise.family import GAUSSIAN_ENTROPY, Law

LOG_SQRT_2PI = GAUSSIAN_ENTROPY - 0.5


@dataclass(frozen=True)
class Gaussian(Law):
    """z ~ N(0, 1)."""

    def sample_like(self, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        if generator is None:
            return torch.randn_like(like)
        return torch.empty_like(like).normal_(generator=generator)

    def cdf(self, z: Tensor) -> Tensor:
        level: Tensor = torch.special.ndtr(z)
        return level

    def icdf(self, u: Tensor) -> Tensor:
        z: Tensor = torch.special.ndtri(u)
        return z

    def log_prob(self, z: Tensor) -> Tensor:
        return -0.5 * z.square() - LOG_SQRT_2PI

    def characteristic(self, t: Tensor) -> Tensor:
        return torch.complex((-0.5 * t.square()).exp(), torch.zeros_like(t))

    def edges(self) -> Tensor:
        return torch.arange(-16, 17, 2, dtype=torch.float64)

    def entropy(self) -> float:
        return GAUSSIAN_ENTROPY
