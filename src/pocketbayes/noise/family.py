"""What every noise family is: a law f for z with zero mean and unit variance, so that w = mu + sigma z."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor


class Noise(ABC):
    """The shape of z in w = mu + sigma z.  Every family is standardised: E z = 0, Var z = 1."""

    @abstractmethod
    def sample_like(self, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Independent draws of z with the shape, dtype and device of `like`.

        With `generator=None` the draw uses plain torch ops on the global generator, so that
        `torch.export`, `torch.compile` and `vmap` can trace it.
        """

    @abstractmethod
    def negentropy(self) -> float:
        """J(f) = H(N(0, 1)) - H(f) >= 0 in nats; infinite for laws with atoms."""

    def draw(self, mu: Tensor, sigma: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """w = mu + sigma z, differentiable in mu and sigma."""
        return mu + sigma * self.sample_like(mu, generator)
