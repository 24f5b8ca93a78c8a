"""Merging components that lie close together, by the Wasserstein-2 distance of Gaussians."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from pocketbayes.sharing.blend import component_moments
from pocketbayes.sharing.mixture import Mixture
from pocketbayes.sharing.threads import operators_alone


def sqrt_psd(a: Tensor) -> Tensor:
    """The square root of positive semi-definite matrices [..., 2, 2], by Cayley and Hamilton.

    (A + sqrt(det A) I) / sqrt(Tr A + 2 sqrt(det A))
    """
    root = _det(a).clamp_min(0).sqrt()
    norm = (_trace(a) + 2 * root).clamp_min(1e-300).sqrt()
    return (a + root[..., None, None] * torch.eye(2, dtype=a.dtype)) / norm[..., None, None]


def cross_root(a: Tensor, b: Tensor) -> Tensor:
    """(A^1/2 B A^1/2)^1/2 of covariances [..., 2, 2]."""
    root = sqrt_psd(a)
    return sqrt_psd(root @ b @ root)


def wasserstein2(m1: Tensor, s1: Tensor, m2: Tensor, s2: Tensor) -> Tensor:
    """Squared Wasserstein-2 distance of N(m1, S1) and N(m2, S2), [...].

    |m1 - m2|^2 + Tr(S1 + S2 - 2 (S1^1/2 S2 S1^1/2)^1/2); in two dimensions the last trace is
    sqrt(Tr(S1 S2) + 2 sqrt(det S1 det S2)).
    """
    product = (s1 * s2.mT).sum((-2, -1)) + 2 * (_det(s1) * _det(s2)).clamp_min(0).sqrt()
    spread = _trace(s1) + _trace(s2) - 2 * product.clamp_min(0).sqrt()
    return (m1 - m2).square().sum(-1) + spread.clamp_min(0)


def _det(a: Tensor) -> Tensor:
    return a[..., 0, 0] * a[..., 1, 1] - a[..., 0, 1] * a[..., 1, 0]


def _trace(a: Tensor) -> Tensor:
    return a[..., 0, 0] + a[..., 1, 1]


class Components(NamedTuple):
    """Gaussians over the plane with their relative sizes."""

    size: Tensor  # [P, 1]
    mean: Tensor  # [P, 2]
    cov: Tensor  # [P, 2, 2]


class MergeRule(Protocol):
    """How pairs of components, whose sizes add up to one, become one each: means [P, 2] and covariances [P, 2, 2]."""

    def __call__(self, a: Components, b: Components) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True)
class MomentMatch:
    """Mean and covariance of the two together: m = w1 m1 + w2 m2, S = w1 S1 + w2 S2 + w1 w2 d d^T with d = m1 - m2."""

    def __call__(self, a: Components, b: Components) -> tuple[Tensor, Tensor]:
        between = (a.size * b.size)[..., None] * _outer(a.mean - b.mean)
        within = a.size[..., None] * a.cov + b.size[..., None] * b.cov
        return a.size * a.mean + b.size * b.mean, within + between


@dataclass(frozen=True)
class Barycentre:
    """The Wasserstein-2 barycentre: S = (w1 I + w2 T) S1 (w1 I + w2 T) with the transport map T from N1 to N2."""

    def __call__(self, a: Components, b: Components) -> tuple[Tensor, Tensor]:
        inverse = torch.linalg.inv(sqrt_psd(a.cov))
        transport = inverse @ cross_root(a.cov, b.cov) @ inverse
        halfway = a.size[..., None] * torch.eye(2, dtype=a.cov.dtype) + b.size[..., None] * transport
        return a.size * a.mean + b.size * b.mean, halfway @ a.cov @ halfway


@dataclass(frozen=True)
class PaperEq6:
    """The published rule, sizes ignored: S = (S1 + S2)/2 + d d^T/8 + (S1^1/2 S2 S1^1/2)^1/2 / 2.

    Kept for comparison: two equal components give 1.5 S.
    """

    def __call__(self, a: Components, b: Components) -> tuple[Tensor, Tensor]:
        between = _outer(a.mean - b.mean) / 8
        return (a.mean + b.mean) / 2, (a.cov + b.cov) / 2 + between + cross_root(a.cov, b.cov) / 2


def _outer(d: Tensor) -> Tensor:
    return d[..., :, None] * d[..., None, :]


@dataclass(frozen=True)
class AbsoluteDistance:
    """Merge while W2^2 < tau_d, in the weights' units squared."""

    tau_d: float = 1.5e-7

    def __post_init__(self) -> None:
        if not self.tau_d > 0:
            raise ValueError(f"AbsoluteDistance: tau_d must be positive, got {self.tau_d}.")

    def bound(self, mixture: Mixture) -> float:
        return self.tau_d


@dataclass(frozen=True)
class RelativeDistance:
    """Merge while W2 < factor * the components' median sigma: independent of the network's scale."""

    factor: float = 0.1

    def __post_init__(self) -> None:
        if not self.factor > 0:
            raise ValueError(f"RelativeDistance: factor must be positive, got {self.factor}.")

    def bound(self, mixture: Mixture) -> float:
        return (self.factor * float(mixture.mean[:, 1].median())) ** 2


@dataclass(frozen=True, kw_only=True)
class Merge:
    """When and how components merge; None switches a condition off."""

    distance: AbsoluteDistance | RelativeDistance = RelativeDistance(0.1)
    gradient: float | None = None  # tau_g, on |g_i - g_j|
    variance: float | None = None  # tau_v, on the difference of the components' variances
    rule: MergeRule = MomentMatch()

    def __post_init__(self) -> None:
        for name in ("gradient", "variance"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"Merge: {name} must be positive or None, got {value}.")


class Merged(NamedTuple):
    """The mixture after merging, and for each old component the number of its new one."""

    mixture: Mixture
    new_of_old: Tensor  # [K] int64


@operators_alone()
def merge_components(mixture: Mixture, how: Merge, gradient: Tensor | None = None) -> Merged:
    """Merge closest pairs, mutual nearest neighbours at a time, until no pair is left that may merge.

    `gradient` [K] is needed with `how.gradient`: each component's mean Fisher information.
    """
    if how.gradient is not None and (gradient is None or gradient.shape != mixture.log_pi.shape):
        raise ValueError(
            f"gradient: Merge(gradient=...) needs one value for each of {mixture.components} components."
        )
    bound = how.distance.bound(mixture)
    state = mixture.log_pi.new_zeros(mixture.components) if gradient is None else gradient.double()
    new_of_old = torch.arange(mixture.components)
    while True:
        pairs = _mutual(*_close_pairs(mixture, state, bound, how), mixture.components)
        if len(pairs) == 0:
            return Merged(mixture, new_of_old)
        mixture, state, step = _join(mixture, state, pairs, how.rule)
        new_of_old = step[new_of_old]


def _close_pairs(mixture: Mixture, gradient: Tensor, bound: float, how: Merge) -> tuple[Tensor, Tensor]:
    """Pairs [P, 2] (i < j) that may merge and their W2^2 [P].  W2^2 >= |m_i - m_j|^2, so a k-d tree finds them all."""
    from scipy.spatial import cKDTree

    found = cKDTree(mixture.mean.numpy()).query_pairs(math.sqrt(bound), output_type="ndarray")
    i, j = torch.from_numpy(found).long().unbind(1)
    distance = wasserstein2(mixture.mean[i], mixture.cov[i], mixture.mean[j], mixture.cov[j])
    keep = distance < bound
    if how.gradient is not None:
        keep &= (gradient[i] - gradient[j]).abs() < how.gradient
    if how.variance is not None:
        var = component_moments(mixture).sigma.square()
        keep &= (var[i] - var[j]).abs() < how.variance
    return torch.stack([i, j], 1)[keep], distance[keep]


def _mutual(pairs: Tensor, distance: Tensor, components: int) -> Tensor:
    """The pairs whose members are each other's nearest.

    Ties go to the lower number, so the closest pair of all is always among them.
    """
    source, target = torch.cat([pairs, pairs.flip(1)]).unbind(1)
    order = torch.from_numpy(np.lexsort((target.numpy(), distance.repeat(2).numpy(), source.numpy())))
    source, target = source[order], target[order]
    first = torch.ones_like(source, dtype=torch.bool)
    first[1:] = source[1:] != source[:-1]
    nearest = torch.full((components,), -1)
    nearest[source[first]] = target[first]
    return pairs[(nearest[pairs[:, 0]] == pairs[:, 1]) & (nearest[pairs[:, 1]] == pairs[:, 0])]


def _join(
    mixture: Mixture, gradient: Tensor, pairs: Tensor, rule: MergeRule
) -> tuple[Mixture, Tensor, Tensor]:
    """The pairs merged into their first members, their gradients by size, and each component's new number."""
    i, j = pairs.unbind(1)
    log_pi, mean, cov, gradient = (t.clone() for t in (*mixture, gradient))
    together = torch.logaddexp(log_pi[i], log_pi[j])
    w1, w2 = ((log_pi[k] - together).exp()[:, None] for k in (i, j))
    mean[i], cov[i] = rule(Components(w1, mean[i], cov[i]), Components(w2, mean[j], cov[j]))
    gradient[i] = w1[:, 0] * gradient[i] + w2[:, 0] * gradient[j]
    log_pi[i] = together
    kept = torch.ones_like(log_pi, dtype=torch.bool)
    kept[j] = False
    number = kept.cumsum(0) - 1
    number[j] = number[i]
    return Mixture(log_pi[kept], mean[kept], cov[kept]), gradient[kept], number
