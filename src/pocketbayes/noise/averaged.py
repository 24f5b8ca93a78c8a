"""Several devices per weight: the mean of independent draws, scaled back to unit variance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pocketbayes.noise.atoms import AtomicLaw, by_rows
from pocketbayes.noise.family import Law, Noise
from pocketbayes.noise.gaussian import Gaussian
from pocketbayes.noise.quadrature import QuadratureRule

_TERMS = 1 << 14  # of the cosine series
_ATOMS = 1 << 20


def averaged(noise: Noise, devices: int) -> Law:
    """The standardised law of the mean of that many independent devices: (z_1 + ... + z_m) / sqrt m.

    The weight's sigma is then that of the mean, 1 / sqrt(m) of a single device's.
    """
    if not isinstance(noise, Law):
        raise ValueError(
            f"averaged: {type(noise).__name__} has no single law. Average the laws of its states instead."
        )
    if devices == 1 or isinstance(noise, Gaussian):
        return noise
    return AveragedAtoms(noise, devices) if isinstance(noise, AtomicLaw) else Averaged(noise, devices)


@dataclass(frozen=True)
class _Mean:
    """What the mean of `devices` independent z, times sqrt(devices), has in closed form."""

    noise: Law
    devices: int

    def __post_init__(self) -> None:
        if isinstance(self.devices, bool) or not isinstance(self.devices, int) or self.devices < 1:
            raise ValueError(
                f"averaged: the number of devices must be a positive integer, got {self.devices}."
            )
        if self.noise.has_atoms != isinstance(self, AtomicLaw):
            raise ValueError(
                f"{type(self).__name__} does not fit {type(self.noise).__name__}. Use averaged(noise, m)."
            )

    def sample_like(self, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        total = self.noise.sample_like(like, generator)
        for _ in range(self.devices - 1):
            total = total + self.noise.sample_like(like, generator)
        return total / math.sqrt(self.devices)

    def skewness(self) -> float:
        return self.noise.skewness() / math.sqrt(self.devices)

    def excess_kurtosis(self) -> float:
        return self.noise.excess_kurtosis() / self.devices

    def characteristic(self, t: Tensor) -> Tensor:
        return self.noise.characteristic(t / math.sqrt(self.devices)) ** self.devices

    def moment_order(self) -> float:
        return self.noise.moment_order()


@dataclass(frozen=True)
class AveragedAtoms(_Mean, AtomicLaw):
    """The mean of devices whose law has atoms: again atoms, the sums of atoms."""

    def atoms(self) -> QuadratureRule:
        own = self.noise.rule
        total = QuadratureRule(own.nodes.new_zeros(1), own.nodes.new_ones(1))
        for _ in range(self.devices):
            if total.nodes.numel() * own.nodes.numel() > _ATOMS:
                raise ValueError(
                    f"averaged: {self.devices} devices of {own.nodes.numel()} atoms each have too many sums to list. "
                    "Draws and moments work; for the rest use a law with a density, such as QuantileTable.of(samples)."
                )
            total = _sums(total, own)
        return QuadratureRule(total.nodes / math.sqrt(self.devices), total.weights)


def _sums(a: QuadratureRule, b: QuadratureRule) -> QuadratureRule:
    """The law of the sum of two independent atomic variables; sums that agree to 1e-12 are one atom."""
    sums = (a.nodes.unsqueeze(1) + b.nodes).flatten()
    masses = (a.weights.unsqueeze(1) * b.weights).flatten()
    _, index = (sums * 1e12).round().unique(return_inverse=True)
    count = int(index.max()) + 1
    weights = masses.new_zeros(count).index_add(0, index, masses)
    return QuadratureRule(sums.new_zeros(count).index_copy(0, index, sums), weights)


@dataclass(frozen=True)
class Averaged(_Mean, Law):
    """The mean of devices whose law has a density, through its characteristic function phi(t / sqrt m)^m.

    Density and distribution function are cosine series on [-reach, reach] (Fang and Oosterlee), accurate to about
    1e-13 absolutely where the single law is smooth, less where it jumps and m is 2 or 3.  In the far tail of a
    heavy-tailed law one device alone is large: f(z) = m^(3/2) f_1(sqrt(m) z), good to a part in a thousand.
    """

    @property
    def _heavy(self) -> bool:
        return math.isfinite(self.noise.moment_order())

    @property
    def _reach(self) -> float:
        bound = max(abs(end) for end in self.noise.support()) * math.sqrt(self.devices)
        return 400.0 if self._heavy else min(bound, 12 + 16 / math.sqrt(self.devices))

    @property
    def _cut(self) -> float:
        """Where the tail formula takes over from the series, which mirrors heavy tails at its ends."""
        return self._reach / 4 if self._heavy else self._reach

    @cached_property
    def _series(self) -> tuple[Tensor, Tensor]:
        """Frequencies k pi / (2 reach) and cosine coefficients, cut where the rest is below rounding."""
        k = torch.arange(_TERMS, dtype=torch.float64)
        frequencies = k * (math.pi / (2 * self._reach))
        phi = self.characteristic(frequencies)
        last = int(torch.nonzero(phi.abs() > 1e-15)[-1]) + 1
        coefficients = (phi * torch.exp(0.5j * math.pi * k)).real / self._reach
        coefficients[0] *= 0.5
        return frequencies[:last], coefficients[:last]

    def _sum(self, z: Tensor, integrated: bool) -> Tensor:
        """The series for f, or for F, at every z within the reach."""
        t, a = self._series
        inside = z.detach().double().clamp(-self._reach, self._reach) + self._reach

        def series(x: Tensor) -> Tensor:
            angle = x * t
            if integrated:
                return a[0] * x.squeeze(1) + angle[:, 1:].sin() @ (a[1:] / t[1:])
            return angle.cos() @ a

        return by_rows(series, inside, t.numel())

    def cdf(self, z: Tensor) -> Tensor:
        inside = self._sum(z, integrated=True).clamp(0.0, 1.0)
        if not self._heavy:
            return inside.to(z)
        single = self.noise.cdf(math.sqrt(self.devices) * -z.double().abs()) * self.devices
        tail = torch.where(z < 0, single, 1 - single)
        return torch.where(z.abs() <= self._cut, inside, tail).to(z)

    def icdf(self, u: Tensor) -> Tensor:
        bracket = 1e12 if self._heavy else self._reach
        return self.invert(u, -bracket, bracket)

    def log_prob(self, z: Tensor) -> Tensor:
        """ln f(z); without gradients."""
        inside = self._sum(z, integrated=False).clamp_min(1e-300).log()
        if self._heavy:
            tail = 1.5 * math.log(self.devices) + self.noise.log_prob(math.sqrt(self.devices) * z.double())
        else:
            tail = torch.full_like(inside, -math.inf)
        return torch.where(z.abs() <= self._cut, inside, tail).to(z)

    def edges(self) -> Tensor:
        """Panels about as wide as the highest frequencies that matter allow, split at the kinks."""
        grid = torch.linspace(0, min(self._reach, 16.0), 257, dtype=torch.float64)
        real = (self._sum(grid, False) > 1e-13) | (self._sum(-grid, False) > 1e-13)  # below, rounding errors
        reach = float(grid[real][-1])
        frequencies = self._series[0]
        highest = float(frequencies[self.characteristic(frequencies).abs() > 1e-6][-1])
        width = min(0.25, max(0.05, 8.0 / highest))
        kinks = torch.tensor([k for k in self.kinks() if abs(k) < reach], dtype=torch.float64)
        parts = [torch.linspace(-reach, reach, 2 * math.ceil(reach / width) + 1, dtype=torch.float64), kinks]
        if self._heavy:
            octaves = torch.cat([torch.arange(4.25, 8.5, 0.25), torch.arange(9.0, 400)])
            far = torch.exp2(octaves.double())
            parts += [far, -far, torch.tensor([-self._cut, self._cut], dtype=torch.float64)]
        edges: Tensor = torch.cat(parts).unique()
        return edges

    def support(self) -> tuple[float, float]:
        low, high = self.noise.support()
        return low * math.sqrt(self.devices), high * math.sqrt(self.devices)

    def kinks(self) -> tuple[float, ...]:
        """Sums of kinks, listed while they are few; the more devices, the smoother they are."""
        sums = {0.0}
        for _ in range(self.devices):
            sums = {round(a + b, 12) for a in sums for b in self.noise.kinks()}
            if len(sums) > 64:
                return ()
        return tuple(sorted(s / math.sqrt(self.devices) for s in sums))
