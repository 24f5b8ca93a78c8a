"""Plain data that all stages share, of numpy arrays or of tensors: moments, and the codebook that weights look up."""

from __future__ import annotations

from collections.abc import Sized
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T", bound=Sized)  # a torch.Tensor, or a numpy array where there is no torch


class Moments(NamedTuple, Generic[T]):
    """Mean and standard deviation, one pair for each element."""

    mu: T
    sigma: T


class Codebook(NamedTuple, Generic[T]):
    """The K components, each a pair (mu, sigma), that all shared weights of a network look up."""

    mu: T  # [K]
    sigma: T  # [K]

    @property
    def components(self) -> int:
        """K."""
        return len(self.mu)
