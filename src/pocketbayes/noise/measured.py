"""Laws made of measured values: a device's own samples, a table of quantiles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pocketbayes.drawing.tables import LEVELS
from pocketbayes.noise.atoms import AtomicLaw, by_rows
from pocketbayes.noise.family import ArrayFields, Law, frozen_array
from pocketbayes.noise.quadrature import QuadratureRule

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, eq=False)
class Empirical(ArrayFields, AtomicLaw):
    """A device's samples themselves, equally likely, standardised and sorted on construction."""

    values: Array

    def __post_init__(self) -> None:
        values = np.sort(frozen_array("Empirical", self.values))
        object.__setattr__(self, "values", _standardised("Empirical", values))

    def atoms(self) -> QuadratureRule:
        values = torch.from_numpy(self.values.copy())
        return QuadratureRule(values, torch.full_like(values, 1 / values.numel()))

    @cached_property
    def quantiles(self) -> Tensor:
        """The samples as they are; those of the file format are scaled anew, since 65536 / n is rounded."""
        return torch.from_numpy(self.values[(LEVELS * len(self.values)).astype(int)].astype(np.float32))


@dataclass(frozen=True, eq=False)
class QuantileTable(ArrayFields, Law):
    """F^-1 linear between `values` at the equally spaced levels 0, 1/K ... 1: a density of K equal steps."""

    values: Array

    order = 4  # the density is constant within a panel

    def __post_init__(self) -> None:
        values = frozen_array("QuantileTable", self.values)
        if values.size < 2:
            raise ValueError(f"QuantileTable: needs at least two values, got {values.size}.")
        if not (np.diff(values) > 0).all():
            first = int(np.argmax(np.diff(values) <= 0))
            raise ValueError(
                f"QuantileTable: values must increase strictly, but number {first + 1}, {values[first + 1]:g}, "
                f"follows {values[first]:g}. Sort the table, or make one from raw samples: QuantileTable.of(samples)."
            )
        object.__setattr__(self, "values", self._scaled(values))

    @staticmethod
    def of(samples: Any, size: int | None = None) -> QuantileTable:
        """The table of some samples, with `size` cells (by default one per 32 samples, 16 to 512).

        Equal readings are spread half way to their neighbours.  The two outermost cells keep the mean of their
        samples, for a step as wide as the largest outlier would be far too heavy a tail.
        """
        samples = np.sort(frozen_array("QuantileTable.of", samples))
        values, counts = np.unique(samples, return_counts=True)
        if values.size < 2:
            raise ValueError("QuantileTable.of: the samples are constant. Noise needs at least two values.")
        ends = values[[0, -1]] + 0.5 * np.array([values[0] - values[1], values[-1] - values[-2]])
        middle = (np.cumsum(counts) - 0.5 * counts) / counts.sum()
        levels, points = np.concatenate([[0], middle, [1]]), np.concatenate([ends[:1], values, ends[1:]])
        cells = size if size is not None else min(512, max(16, samples.size // 32))
        table = np.interp(np.linspace(0, 1, cells + 1), levels, points)
        for end, inner, outside in ((0, 1, samples < table[1]), (-1, -2, samples > table[-2])):
            if outside.any():
                table[end] = 2 * samples[outside].mean() - table[inner]
        return QuantileTable(table)

    @staticmethod
    def _scaled(values: Array) -> Array:
        low, high = values[:-1], values[1:]
        mean = float(np.mean(low + high)) / 2
        sd = math.sqrt(np.mean((low - mean) ** 2 + (low - mean) * (high - mean) + (high - mean) ** 2) / 3)
        return _moved(values, mean, sd)

    @cached_property
    def _knots(self) -> Tensor:
        return torch.from_numpy(self.values.copy())

    def _cell(self, z: Tensor) -> Tensor:
        knots = self._knots.to(z)
        return (torch.searchsorted(knots, z.detach().contiguous(), right=True) - 1).clamp(
            0, knots.numel() - 2
        )

    def cdf(self, z: Tensor) -> Tensor:
        knots, cell = self._knots.to(z), self._cell(z)
        inside = ((z - knots[cell]) / (knots[cell + 1] - knots[cell])).clamp(0.0, 1.0)
        return (cell + inside) / (knots.numel() - 1)

    def icdf(self, u: Tensor) -> Tensor:
        knots = self._knots.to(u)
        scaled = u * (knots.numel() - 1)
        cell = scaled.detach().long().clamp(0, knots.numel() - 2)
        return torch.lerp(knots[cell], knots[cell + 1], scaled - cell)

    def log_prob(self, z: Tensor) -> Tensor:
        knots = self._knots.to(z)
        log = -(knots.diff() * (knots.numel() - 1)).log()
        inside = (z >= knots[0]) & (z <= knots[-1])
        return torch.where(inside, log[self._cell(z)] + 0.0 * z, -math.inf)

    def characteristic(self, t: Tensor) -> Tensor:
        middle, width = 0.5 * (self._knots[1:] + self._knots[:-1]), self._knots.diff()

        def mean(x: Tensor) -> Tensor:
            return (torch.exp(1j * x * middle) * torch.sinc(x * width / (2 * math.pi))).mean(-1)

        return by_rows(mean, t, middle.numel())

    def edges(self) -> Tensor:
        return self._knots

    def support(self) -> tuple[float, float]:
        return float(self.values[0]), float(self.values[-1])

    def kinks(self) -> tuple[float, ...]:
        return tuple(self.values.tolist())

    def entropy(self) -> float:
        return float(np.mean(np.log(np.diff(self.values) * (self.values.size - 1))))


def _standardised(where: str, values: Array) -> Array:
    if values.size < 2 or values[0] == values[-1]:
        raise ValueError(f"{where}: needs at least two different values, got {values.size} with no spread.")
    return _moved(values, float(values.mean()), float(values.std()))


def _moved(values: Array, mean: float, sd: float) -> Array:
    """(values - mean) / sd, read-only; left alone if standard already, so that reading back changes no bit."""
    if abs(mean) > 1e-12 or abs(sd - 1) > 1e-12:
        values = (values - mean) / sd
    values.flags.writeable = False
    return values
