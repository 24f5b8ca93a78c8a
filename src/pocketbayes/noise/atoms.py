"""Laws with atoms: values that z takes with a probability of their own, such as the signs +-1."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pocketbayes.noise.family import Law
from pocketbayes.noise.quadrature import QuadratureRule
from pocketbayes.noise.sampling import sample_signs


class AtomicLaw(Law):
    """P(z = a_k) = p_k.  There is no density, the negentropy is infinite, and KL is that of the Gaussian."""

    @abstractmethod
    def atoms(self) -> QuadratureRule:
        """The values, increasing, and their probabilities."""

    @cached_property
    def rule(self) -> QuadratureRule:
        return self.atoms()

    @property
    def has_atoms(self) -> bool:
        return True

    def cdf(self, z: Tensor) -> Tensor:
        values, probabilities = self.rule
        below = torch.cat([probabilities.new_zeros(1), probabilities.cumsum(0)])
        return below[torch.searchsorted(values, z.double().contiguous(), right=True)].clamp_max(1.0).to(z)

    def icdf(self, u: Tensor) -> Tensor:
        values, probabilities = self.rule
        below = probabilities.cumsum(0).clamp_max(1.0)
        below[-1] = 1.0
        index = torch.searchsorted(below, u.double().contiguous())
        return values[index.clamp_max(values.numel() - 1)].to(u)

    def log_prob(self, z: Tensor) -> Tensor:
        raise ValueError(
            f"{type(self).__name__} has atoms and therefore no density. Use cdf, or for training the KL of a Gaussian "
            "with the same mean and variance, which is what kl_to_prior does."
        )

    def entropy(self) -> float:
        return -math.inf

    def characteristic(self, t: Tensor) -> Tensor:
        values, probabilities = self.rule
        return by_rows(lambda x: (probabilities * torch.exp(1j * x * values)).sum(-1), t, values.numel())

    def edges(self) -> Tensor:
        return self.rule.nodes

    def support(self) -> tuple[float, float]:
        return float(self.rule.nodes[0]), float(self.rule.nodes[-1])


def by_rows(function: Callable[[Tensor], Tensor], x: Tensor, width: int) -> Tensor:
    """function(x [N, 1]) in the shape of x, as many N at a time as [N, width] temporaries fit in memory."""
    flat = x.double().reshape(-1, 1)
    return torch.cat([function(part) for part in flat.split(max(1, (1 << 22) // width))]).view(x.shape)


@dataclass(frozen=True)
class TwoPoint(AtomicLaw):
    """z = -1 or +1, one random bit a draw: the cheapest noise with the right mean and variance."""

    def atoms(self) -> QuadratureRule:
        values = torch.tensor([-1.0, 1.0], dtype=torch.float64)
        return QuadratureRule(values, torch.full_like(values, 0.5))

    def sample_like(self, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return sample_signs(like, generator)

    def characteristic(self, t: Tensor) -> Tensor:
        return torch.complex(t.double().cos(), torch.zeros_like(t, dtype=torch.float64))
