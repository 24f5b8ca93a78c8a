"""Maximum likelihood for the parameters of each noise family, given standardised reads."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from pocketbayes.noise.family import Law
from pocketbayes.noise.gaussian import Gaussian
from pocketbayes.noise.mixtures import Bimodal, GaussianMixture
from pocketbayes.noise.shapes import Laplace, Logistic, SkewNormal, StudentT, Uniform

Array = np.ndarray[Any, np.dtype[np.float64]]
_NARROWEST = 0.02  # of a component, against spikes on repeated readings
_GROUPS, _SINGLE = 512, 64


class Groups(NamedTuple):
    """Reads in groups of neighbours: the cost of a fit does not depend on how many reads there are."""

    z: Array  # [G] group means, increasing
    fraction: Array  # [G] of all reads, sums to one
    var: Array  # [G] within the group


def group(reads: Array) -> Groups:
    """About six hundred groups of equally many neighbours; the outermost reads stay single, for tails matter."""
    z = np.sort(reads)
    inner = max(z.size - 2 * _SINGLE, 0)
    size = max(1, inner // _GROUPS)
    starts = np.arange(_SINGLE, _SINGLE + inner, size)
    ends = np.unique(
        np.concatenate([np.arange(min(_SINGLE, z.size)), starts, np.arange(_SINGLE + inner, z.size)])
    )
    counts = np.diff(np.append(ends, z.size))
    mean = np.add.reduceat(z, ends) / counts
    var = np.add.reduceat((z - np.repeat(mean, counts)) ** 2, ends) / counts
    return Groups(mean, counts / z.size, var)


def mean_log_likelihood(law: Law, z: Array, slack: float = 0.0) -> float:
    """The mean of ln f over the reads, in nats; -inf where the law does not cover them.

    A read outside of the support by less than the fraction `slack` counts as being at its end: the reads were
    standardised by estimated numbers.
    """
    low, high = law.support()
    ends = np.clip(z, low, high)
    inside = np.where(np.abs(z - ends) <= slack * np.abs(ends), ends, z)
    return float(law.log_prob(torch.from_numpy(inside)).mean())


def _score(law: Law, reads: Groups) -> float:
    return float(law.log_prob(torch.from_numpy(reads.z)) @ torch.from_numpy(reads.fraction))


def fit_student(reads: Groups) -> StudentT:
    """StudentT with df = 2 + exp(x)."""
    return StudentT(
        2 + math.exp(_best(lambda x: StudentT(2 + math.exp(x)), reads, math.log(0.02), math.log(500.0)))
    )


def fit_skew_normal(reads: Groups) -> SkewNormal:
    """SkewNormal with alpha = sinh(x); the likelihood is flat at zero, so both signs are tried."""
    ends = [_best(lambda x: SkewNormal(math.sinh(x)), reads, low, low + 5.0) for low in (-5.0, 0.0)]
    return max((SkewNormal(math.sinh(x)) for x in ends), key=lambda law: _score(law, reads))


def fit_bimodal(reads: Groups) -> Bimodal:
    """Bimodal over 0 <= m < 1."""
    return Bimodal(_best(Bimodal, reads, 0.0, 0.9998))


def _best(family: Callable[[float], Law], reads: Groups, low: float, high: float) -> float:
    from scipy.optimize import minimize_scalar

    found = minimize_scalar(lambda x: -_score(family(x), reads), bounds=(low, high), method="bounded")
    return float(found.x)


def fit_mixture(reads: Groups, components: int, steps: int = 200) -> GaussianMixture:
    """GaussianMixture by expectation-maximisation, the better of two starts: neighbouring quantiles, and one centre.

    At its fixed point EM keeps the mean and the variance of the reads, so that standardising changes nothing.
    """
    middles = np.interp((np.arange(components) + 0.5) / components, np.cumsum(reads.fraction), reads.z)
    ring = np.geomspace(0.3, 2.0, components)
    starts = [(middles, np.full(components, 1 / components)), (np.linspace(-0.1, 0.1, components), ring)]
    fits = [_em(reads, means, sigmas, steps) for means, sigmas in starts]
    return max(fits, key=lambda law: _score(law, reads))


def _em(reads: Groups, means: Array, sigmas: Array, steps: int) -> GaussianMixture:
    z, fraction, var = (part[:, None] for part in reads)  # [G, 1]
    weights = np.full(means.size, 1 / means.size)
    before = -math.inf
    for _ in range(steps):
        logs = np.log(weights / sigmas) - 0.5 * ((z - means) / sigmas) ** 2  # [G, K]
        top = logs.max(1, keepdims=True)
        masses = np.exp(logs - top)
        total = masses.sum(1, keepdims=True)
        now = float(np.sum(fraction * (np.log(total) + top)))
        mass = fraction * masses / total
        weights = np.maximum(mass.sum(0), 1e-9)
        means = np.sum(mass * z, axis=0) / weights
        spread = np.sum(mass * ((z - means) ** 2 + var), axis=0) / weights
        sigmas = np.sqrt(np.maximum(spread, _NARROWEST**2))
        if now - before < 1e-6:
            break
        before = now
    return GaussianMixture(tuple(weights), tuple(means), tuple(sigmas))


# How each candidate is fitted, with its number of free parameters.
CANDIDATES: dict[str, tuple[Callable[[Groups], Law], int]] = {
    "Gaussian": (lambda reads: Gaussian(), 0),
    "Uniform": (lambda reads: Uniform(), 0),
    "Laplace": (lambda reads: Laplace(), 0),
    "Logistic": (lambda reads: Logistic(), 0),
    "Bimodal": (fit_bimodal, 1),
    "StudentT": (fit_student, 1),
    "SkewNormal": (fit_skew_normal, 1),
    "GaussianMixture 2": (lambda reads: fit_mixture(reads, 2), 3),
    "GaussianMixture 3": (lambda reads: fit_mixture(reads, 3), 6),
    "GaussianMixture 4": (lambda reads: fit_mixture(reads, 4), 9),
}
