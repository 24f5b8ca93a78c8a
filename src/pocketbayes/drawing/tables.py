"""The 65,536 quantiles that 16 random bits choose from, for every law with a density.

Entry i is F^-1((i + 1/2) / 65536).  Where the support has no end, the first and the last entry are instead the root
mean square of z over their cell of probability 1/65536, so that heavy tails keep their variance.  The whole is then
shifted and scaled to zero mean and unit variance, and rounded to float32.

F is the integral of the density by four-point Gauss-Legendre on narrow panels, its inverse found by Newton's method.
With the arithmetic of exact.py the tables are the same bits everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from pocketbayes.drawing.exact import SQRT_2PI, Array, exp, log1p, normal_cdf

SIZE = 1 << 16
LEVELS = (np.arange(SIZE) + 0.5) / SIZE
_HALF = SIZE // 2
_FINE = 1 / 16  # width of a panel, in standard deviations of the narrowest feature
_REACH = np.arange(-9 * 16, 9 * 16 + 1) * _FINE  # what lies outside has a probability below 1e-18
_NEWTON = 6


class Density(NamedTuple):
    """A density up to a factor, centred, and where its panels meet: within one it is smooth and tame."""

    f: Callable[[Array], Array]
    edges: Array

    def mirrored(self) -> Density:
        return Density(lambda z: self.f(-z), -self.edges[::-1])


def standardised(values: Array) -> Array:
    """Zero mean and unit variance to the last bits of float64, then float32."""
    values = values - math.fsum(values.tolist()) / SIZE
    variance = math.fsum((values * values).tolist()) / SIZE
    if not 0 < variance < math.inf:
        raise ValueError(f"a table of quantiles has the variance {variance}")
    return (values / math.sqrt(variance)).astype(np.float32)


# --- quantiles of a density ------------------------------------------------------------------------------------


def quantiles(density: Density) -> Array:
    """[65536] from a density on the whole line; each half is found from its own tail."""
    with np.errstate(
        all="ignore"
    ):  # 0/0 where there is no probability; what comes of it is refused at the end
        return np.concatenate([_lower_half(density), -_lower_half(density.mirrored())[::-1]])


def _lower_half(density: Density) -> Array:
    low, high = density.edges[:-1], density.edges[1:]
    mass = _integral(density.f, low, high)
    below = np.concatenate([[0.0], np.cumsum(mass)])  # F at every edge, up to the factor
    total = math.fsum(mass.tolist())
    levels = np.concatenate([[1 / SIZE], LEVELS[1:_HALF]]) * total
    panel = np.minimum(np.searchsorted(below, levels, side="right") - 1, len(mass) - 1)
    start, end, wanted = low[panel], high[panel], levels - below[panel]
    z = start + (end - start) * wanted / mass[panel]
    active = np.arange(len(z))  # where a step still changes something
    for _ in range(_NEWTON):
        at, left = z[active], start[active]
        off = _integral(density.f, left, at) - wanted[active]
        z[active] = np.clip(at - off / density.f(at), left, end[active])
        active = active[z[active] != at]
    z[0] = -math.sqrt(_second_moment(density, z[0], int(panel[0])) / levels[0])
    quantile: Array = z
    return quantile


def _second_moment(density: Density, cut: float, panel: int) -> float:
    """The integral of z^2 f from the first edge to a cut in that panel."""
    low = density.edges[: panel + 1]
    high = np.append(density.edges[1 : panel + 1], cut)
    return math.fsum(_integral(lambda z: z * z * density.f(z), low, high).tolist())


def _integral(f: Callable[[Array], Array], low: Array, high: Array) -> Array:
    """Gauss-Legendre with four nodes, from every low to its high."""
    middle, half, total = 0.5 * (low + high), 0.5 * (high - low), np.zeros_like(low)
    for sign in (-1, 1):
        node = math.sqrt((3 + sign * 2 * math.sqrt(6 / 5)) / 7)
        weight = (18 - sign * math.sqrt(30)) / 36
        total = total + weight * (f(middle - half * node) + f(middle + half * node))
    return half * total


# --- the laws ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def gaussian() -> Array:
    return mixture((1.0,), (0.0,), (1.0,))


@lru_cache(maxsize=16)
def mixture(weights: Sequence[float], means: Sequence[float], sigmas: Sequence[float]) -> Array:
    """sum_k w_k N(m_k, s_k^2), of zero mean."""
    parts = [(w / s, m, s) for w, m, s in zip(weights, means, sigmas, strict=True)]

    def f(z: Array) -> Array:
        total = np.zeros_like(z)
        for height, m, s in parts:
            x = (z - m) / s
            total = total + height * exp(-0.5 * x * x)
        return total

    edges = np.unique(np.concatenate([m + s * _REACH for _, m, s in parts]))
    return standardised(quantiles(Density(f, edges)))


@lru_cache(maxsize=16)
def laplace() -> Array:
    edges = np.arange(-32 * 16, 32 * 16 + 1) * _FINE
    return standardised(quantiles(Density(lambda z: exp(-math.sqrt(2) * np.abs(z)), edges)))


@lru_cache(maxsize=16)
def logistic() -> Array:
    def f(x: Array) -> Array:
        tail = exp(-np.abs(x))
        density: Array = tail / ((1 + tail) * (1 + tail))
        return density

    return standardised(quantiles(Density(f, np.arange(-48 * 16, 48 * 16 + 1) * _FINE)))


@lru_cache(maxsize=16)
def student(df: float) -> Array:
    """t with df > 2 degrees of freedom; panels of the tail grow by 9 %."""
    near = np.arange(0, 16 * 16) * _FINE
    octave = np.ldexp(np.array([math.sqrt(math.sqrt(math.sqrt(2.0**k))) for k in range(8)]), 4)
    far = np.ldexp(octave, np.arange(330)[:, None]).reshape(-1)
    positive = np.concatenate([near[1:], far])
    edges = np.concatenate([-positive[::-1], [0.0], positive])
    return standardised(quantiles(Density(lambda t: exp(-0.5 * (df + 1) * log1p(t * t / df)), edges)))


@lru_cache(maxsize=16)
def skew_normal(alpha: float) -> Array:
    """Density 2 phi(x) Phi(alpha x), its mean delta sqrt(2 / pi) at zero."""
    mean = alpha / math.sqrt(1 + alpha * alpha) * 2 / SQRT_2PI
    edges = np.unique(np.concatenate([_REACH, _REACH / max(abs(alpha), 1.0)])) - mean

    def f(z: Array) -> Array:
        x = z + mean
        return exp(-0.5 * x * x) * normal_cdf(alpha * x)

    return standardised(quantiles(Density(f, edges)))


@lru_cache(maxsize=16)
def uniform() -> Array:
    return standardised(LEVELS - 0.5)


# --- measured laws: bounded, so that every entry is a quantile ---------------------------------------------


def samples(values: Array) -> Array:
    """Sorted samples, equally likely."""
    return standardised(values[(LEVELS * len(values)).astype(np.int64)])


def steps(values: Array) -> Array:
    """F^-1 linear between values at the levels 0, 1/K ... 1."""
    place = LEVELS * (len(values) - 1)
    cell = place.astype(np.int64)
    return standardised(values[cell] + (place - cell) * (values[cell + 1] - values[cell]))
