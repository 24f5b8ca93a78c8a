"""Mixtures of Gaussians: the bimodal noise of a two-state device, and the general one that fits most devices."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pocketbayes.noise.family import Law
from pocketbayes.noise.gaussian import LOG_SQRT_2PI


class NormalMixture(Law):
    """sum_k w_k N(m_k, s_k^2), standardised."""

    @abstractmethod
    def components(self) -> tuple[Tensor, Tensor, Tensor]:
        """Weights, means and standard deviations, each [K] float64."""

    def cdf(self, z: Tensor) -> Tensor:
        w, m, s = (part.to(z) for part in self.components())
        levels: Tensor = torch.special.ndtr((z.unsqueeze(-1) - m) / s)
        return (w * levels).sum(-1)

    def icdf(self, u: Tensor) -> Tensor:
        _, m, s = self.components()
        return self.invert(u, float((m - 40 * s).min()), float((m + 40 * s).max()))

    def log_prob(self, z: Tensor) -> Tensor:
        w, m, s = (part.to(z) for part in self.components())
        x = (z.unsqueeze(-1) - m) / s
        return torch.logsumexp(w.log() - s.log() - LOG_SQRT_2PI - 0.5 * x.square(), -1)

    def characteristic(self, t: Tensor) -> Tensor:
        w, m, s = self.components()
        x = t.double().unsqueeze(-1)
        return (w * torch.exp(1j * m * x - 0.5 * (s * x).square())).sum(-1)

    def edges(self) -> Tensor:
        """Around every component, in units of its standard deviation: fine in the middle, coarse in the tails."""
        _, m, s = self.components()
        near, far = torch.arange(0, 4, 0.5), torch.tensor([4, 5, 6, 7, 8, 10, 12, 14, 16])
        steps = torch.cat([near, far]).double()
        steps = torch.cat([-steps.flip(0), steps[1:]])
        edges: Tensor = (m.unsqueeze(1) + s.unsqueeze(1) * steps).flatten().unique()
        return edges


@dataclass(frozen=True)
class Bimodal(NormalMixture):
    """1/2 N(-m, 1 - m^2) + 1/2 N(m, 1 - m^2), 0 <= m < 1; excess kurtosis -2 m^4."""

    m: float

    def __post_init__(self) -> None:
        if not 0 <= self.m < 1:
            raise ValueError(f"Bimodal: m must be in [0, 1), got {self.m}. For m = 1 use TwoPoint().")

    def components(self) -> tuple[Tensor, Tensor, Tensor]:
        means = torch.tensor([-self.m, self.m], dtype=torch.float64)
        return torch.full_like(means, 0.5), means, torch.full_like(means, math.sqrt(1 - self.m**2))


@dataclass(frozen=True)
class GaussianMixture(NormalMixture):
    """sum_k w_k N(m_k, s_k^2), shifted and scaled on construction to zero mean and unit variance."""

    weights: tuple[float, ...]
    means: tuple[float, ...]
    sigmas: tuple[float, ...]

    def __post_init__(self) -> None:
        w, m, s = (self._part(name) for name in ("weights", "means", "sigmas"))
        if not (len(w) == len(m) == len(s) > 0):
            raise ValueError(
                f"GaussianMixture: {len(w)} weights, {len(m)} means, {len(s)} sigmas: give equal numbers."
            )
        if min(w) <= 0 or min(s) <= 0:
            raise ValueError(f"GaussianMixture: weights and sigmas must be positive, got {w} and {s}.")
        total = math.fsum(w)
        w = tuple(x / total for x in w) if abs(total - 1) > 1e-12 else w
        mean = math.fsum(a * b for a, b in zip(w, m, strict=True))
        sd = math.sqrt(math.fsum(a * (b - mean) ** 2 + a * c**2 for a, b, c in zip(w, m, s, strict=True)))
        # Left alone if standard already, so that reading back what was written changes no bit.
        if abs(mean) > 1e-12 or abs(sd - 1) > 1e-12:
            m, s = tuple((b - mean) / sd for b in m), tuple(c / sd for c in s)
        for name, value in (("weights", w), ("means", m), ("sigmas", s)):
            object.__setattr__(self, name, value)

    def _part(self, name: str) -> tuple[float, ...]:
        given: Sequence[float] = getattr(self, name)
        values = tuple(float(x) for x in given)
        if not all(math.isfinite(x) for x in values):
            raise ValueError(f"GaussianMixture: {name} must be finite, got {values}.")
        return values

    def components(self) -> tuple[Tensor, Tensor, Tensor]:
        w, m, s = (torch.tensor(x, dtype=torch.float64) for x in (self.weights, self.means, self.sigmas))
        return w, m, s
