"""What a device does to a programmed weight besides being noisy: levels and drift.

Each piece wraps a noise family and is one itself, so that they compose:
`Drifted(Programmed(averaged(Bimodal(0.9), 4), mu_levels=(-1.0, 0.0, 1.0)), time=3600.0, exponent=0.05)`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from pocketbayes.drawing.shapes import drift
from pocketbayes.noise.family import Noise


@dataclass(frozen=True)
class Device(Noise):
    """A noise family with something done to (mu, sigma); the shape of z stays that of `noise`."""

    noise: Noise

    @abstractmethod
    def told(self, mu: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
        """What `noise` is told to be programmed to."""

    def program(self, mu: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
        return self.noise.program(*self.told(mu, sigma))

    def sample_like(self, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.noise.sample_like(like, generator)

    def sample_at(self, mu: Tensor, sigma: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.noise.sample_at(*self.told(mu, sigma), generator)

    def place(self, mu: Tensor, sigma: Tensor, z: Tensor) -> Tensor:
        return self.noise.place(*self.told(mu, sigma), z)

    def negentropy(self) -> float:
        return self.noise.negentropy()

    def negentropy_at(self, mu: Tensor, sigma: Tensor) -> Tensor:
        return self.noise.negentropy_at(*self.told(mu, sigma))

    @property
    def has_atoms(self) -> bool:
        return self.noise.has_atoms


@dataclass(frozen=True)
class Programmed(Device):
    """A device that can be set to certain levels only: mu and sigma go to the nearest ones.

    An empty tuple means any value.  Gradients pass straight through the rounding.
    """

    mu_levels: tuple[float, ...] = ()
    sigma_levels: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in ("mu_levels", "sigma_levels"):
            levels = tuple(float(x) for x in getattr(self, name))
            if not all(math.isfinite(x) for x in levels) or any(a >= b for a, b in pairwise(levels)):
                raise ValueError(
                    f"Programmed: {name} must be finite and increase strictly, got {levels}. Sort them."
                )
            object.__setattr__(self, name, levels)
        if self.sigma_levels and self.sigma_levels[0] <= 0:
            raise ValueError(f"Programmed: sigma_levels must be positive, got {self.sigma_levels[0]}.")

    def told(self, mu: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
        return _nearest(mu, self.mu_levels), _nearest(sigma, self.sigma_levels)


def _nearest(x: Tensor, levels: tuple[float, ...]) -> Tensor:
    """The nearest level, with the gradient of the identity."""
    if not levels:
        return x
    table = torch.tensor(levels, dtype=x.dtype, device=x.device)
    index = torch.bucketize(x.detach(), 0.5 * (table[1:] + table[:-1]))
    return table[index] + (x - x.detach())


@dataclass(frozen=True)
class Drifted(Device):
    """The weight a time after programming: w(t) = (t / t0)^(-exponent) w(t0) + shift ln(t / t0).

    `exponent` is the power law of drifting conductance, `shift` a common offset per e-fold of time, and t0
    (`reference`, in the unit of `time`) the moment at which the device had the values it was programmed to.
    """

    time: float
    reference: float = 1.0
    exponent: float = 0.0
    shift: float = 0.0

    def __post_init__(self) -> None:
        for name in ("time", "reference"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"Drifted: {name} must be positive and finite, got {getattr(self, name)}.")
        if not (math.isfinite(self.exponent) and math.isfinite(self.shift)):
            raise ValueError(
                f"Drifted: exponent and shift must be finite, got {self.exponent} and {self.shift}."
            )

    def at(self, time: float) -> Drifted:
        """The same device at another time."""
        return replace(self, time=time)

    def _affine(self) -> tuple[float, float]:
        return drift(self.time / self.reference, self.exponent, self.shift)

    def told(self, mu: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
        return mu, sigma

    def program(self, mu: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
        scale, shift = self._affine()
        mu, sigma = self.noise.program(mu, sigma)
        return scale * mu + shift, scale * sigma

    def place(self, mu: Tensor, sigma: Tensor, z: Tensor) -> Tensor:
        scale, shift = self._affine()
        return scale * self.noise.place(mu, sigma, z) + shift
