"""Weights too important to share: each keeps a (mu, sigma) of its own.  Masks are True at outliers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class AbsoluteMean:
    """Outlier where |mu| > tau."""

    tau: float = 0.2

    def __post_init__(self) -> None:
        if not self.tau >= 0:
            raise ValueError(f"AbsoluteMean: tau must not be negative, got {self.tau}.")

    def threshold(self, mu: Sequence[Tensor]) -> float:
        return self.tau


@dataclass(frozen=True)
class MeanQuantile:
    """Outlier where |mu| is above this quantile of all |mu|: independent of the network's scale."""

    quantile: float = 0.99

    def __post_init__(self) -> None:
        if not 0 < self.quantile <= 1:
            raise ValueError(f"MeanQuantile: quantile must be in (0, 1], got {self.quantile}.")

    def threshold(self, mu: Sequence[Tensor]) -> float:
        return quantile([m.abs() for m in mu], self.quantile)


@dataclass(frozen=True, kw_only=True)
class Outliers:
    """Which weights to leave unshared; None switches a rule off.  The defaults are the paper's."""

    mean: AbsoluteMean | MeanQuantile | None = AbsoluteMean(0.2)
    fisher_fraction: float | None = 0.01  # of all weights, those of largest fisher
    smallest_cluster: int | None = 20  # members of smaller clusters

    def __post_init__(self) -> None:
        if self.fisher_fraction is not None and not 0 <= self.fisher_fraction < 1:
            raise ValueError(f"Outliers: fisher_fraction must be in [0, 1), got {self.fisher_fraction}.")
        if self.smallest_cluster is not None and self.smallest_cluster < 0:
            raise ValueError(f"Outliers: smallest_cluster must not be negative, got {self.smallest_cluster}.")


def by_mean(mu: Sequence[Tensor], rule: AbsoluteMean | MeanQuantile) -> list[Tensor]:
    """|mu_i| > tau, one mask for each tensor."""
    tau = rule.threshold(mu)
    return [m.detach().abs() > tau for m in mu]


def by_fisher(fisher: Sequence[Tensor], fraction: float) -> list[Tensor]:
    """The weights of largest fisher g_i, at most a `fraction` of all; ties at the border stay inliers."""
    bound = quantile(fisher, 1 - fraction)
    return [g.detach() > bound for g in fisher]


def by_cluster_size(labels: Sequence[Tensor], smallest: int) -> list[Tensor]:
    """Members of clusters with fewer than `smallest` weights over all tensors."""
    counts = cluster_sizes(labels)
    return [(counts < smallest)[label.long()] for label in labels]


def cluster_sizes(labels: Sequence[Tensor], components: int = 0) -> Tensor:
    """[K] how many weights of all tensors carry each label; K is at least `components`."""
    counts = [torch.bincount(label.reshape(-1), minlength=components) for label in labels]
    sizes = torch.zeros(max((len(c) for c in counts), default=0), dtype=torch.int64)
    for c in counts:
        sizes[: len(c)] += c
    return sizes


def before_sharing(
    rules: Outliers, mu: Sequence[Tensor], fisher: Sequence[Tensor] | None = None
) -> list[Tensor]:
    """The outliers known before the mixture is fitted: by mean and by fisher."""
    masks = by_mean(mu, rules.mean or AbsoluteMean(math.inf))
    if rules.fisher_fraction is None:
        return masks
    if fisher is None:
        raise ValueError("fisher: needed by fisher_fraction. Pass it, or set fisher_fraction=None.")
    if [g.shape for g in fisher] != [m.shape for m in mu]:
        raise ValueError("fisher: its tensors must have the shapes of mu, one for one.")
    return [m | s for m, s in zip(masks, by_fisher(fisher, rules.fisher_fraction), strict=True)]


def quantile(values: Sequence[Tensor], q: float) -> float:
    """The smallest value that at least a fraction q of all values does not exceed."""
    flat = torch.cat([v.detach().reshape(-1).float() for v in values])
    if flat.numel() == 0:
        raise ValueError("values: hold no weights.")
    if not bool(flat.isfinite().all()):
        raise ValueError("values: hold NaN or infinity. Remove those weights or retrain.")
    rank = min(max(math.ceil(q * flat.numel() - 1e-9), 1), flat.numel())
    return float(flat.kthvalue(rank).values)
