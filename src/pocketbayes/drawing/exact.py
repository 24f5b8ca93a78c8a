"""ln, exp and the normal distribution function from + - * / alone, so that every machine gets the same bits.

IEEE 754 leaves no choice in these four operations and in the square root; libraries differ in everything else.
Errors are a few units in the last place.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

LN2 = 0.6931471805599453
_LN2_HIGH = 0.693147180369123816490  # 32 bits, so that k * _LN2_HIGH is exact
_LN2_LOW = 1.90821492927058770002e-10
SQRT_2PI = 2.5066282746310002


def log(x: Array) -> Array:
    """ln x for x > 0: x = m 2^e with m in [sqrt 1/2, sqrt 2), ln m = 2 artanh((m - 1) / (m + 1))."""
    mantissa, exponent = np.frexp(x)
    small = mantissa < math.sqrt(0.5)
    mantissa, exponent = np.where(small, 2 * mantissa, mantissa), exponent - small
    return exponent * LN2 + _two_artanh((mantissa - 1) / (mantissa + 1))


def log1p(x: Array) -> Array:
    """ln(1 + x) for x >= 0, exact to its own size where x is small."""
    near = np.minimum(x, 0.5)
    return np.where(x < 0.5, _two_artanh(near / (2 + near)), log(1 + x))


def _two_artanh(s: Array) -> Array:
    """ln((1 + s) / (1 - s)) = 2 (s + s^3/3 + s^5/5 + ...) for |s| <= 1/5."""
    square, total = s * s, np.zeros_like(s)
    for k in range(27, 0, -2):
        total *= square
        total += 1 / k
    return 2 * s * total


def exp(x: Array) -> Array:
    """e^x for x <= 700, 0 far below: x = k ln 2 + r with |r| <= ln 2 / 2, and the power series of e^r."""
    x = np.maximum(x, -1100.0)
    k = np.rint(x / LN2)
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    total = np.ones_like(r)
    for n in range(15, 0, -1):  # 1 + r total / n
        total *= r
        total /= n
        total += 1
    return np.ldexp(total, k.astype(np.int64))


def normal_cdf(x: Array) -> Array:
    """P(N(0, 1) <= x), to its own size in the lower tail."""
    tail = np.minimum(np.abs(x), 40.0)
    density, near = exp(-0.5 * tail * tail) / SQRT_2PI, tail < 2
    lower = np.empty_like(tail)
    lower[near] = 0.5 - density[near] * tail[near] * _series(tail[near])
    lower[~near] = density[~near] / _fraction(tail[~near])
    return np.where(x < 0, lower, 1 - lower)


def _series(x: Array) -> Array:
    """1 + x^2/3 + x^4/(3 5) + ..., which is (P(N <= x) - 1/2) / (x phi(x))."""
    square, total = x * x, np.ones_like(x)
    for k in range(61, 1, -2):
        total *= square
        total /= k
        total += 1
    return total


def _fraction(x: Array) -> Array:
    """x + 1/(x + 2/(x + 3/(x + ...))), which is phi(x) / P(N > x)."""
    total = x.copy()
    for k in range(140, 0, -1):
        np.divide(k, total, out=total)
        total += x
    return total
