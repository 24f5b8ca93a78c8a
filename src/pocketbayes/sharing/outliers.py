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
    sensitivity_share: float | None = 0.01  # of all weights, those of largest sensitivity
    smallest_cluster: int | None = 20  # members of smaller clusters

    def __post_init__(self) -> None:
        if self.sensitivity_share is not None and not 0 <= self.sensitivity_share < 1:
            raise ValueError(f"Outliers: sensitivity_share must be in [0, 1), got {self.sensitivity_share}.")
        if self.smallest_cluster is not None and self.smallest_cluster < 0:
            raise ValueError(f"Outliers: smallest_cluster must not be negative, got {self.smallest_cluster}.")


def by_mean(mu: Sequence[Tensor], rule: AbsoluteMean | MeanQuantile) -> list[Tensor]:
    """|mu_i| > tau, one mask for each tensor."""
    tau = rule.threshold(mu)
    return [m.detach().abs() > tau for m in mu]


def by_sensitivity(sensitivity: Sequence[Tensor], share: float) -> list[Tensor]:
    """The weights of largest sensitivity g_i, at most a `share` of all; ties at the border stay inliers."""
    bound = quantile(sensitivity, 1 - share)
    return [g.detach() > bound for g in sensitivity]


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
    rules: Outliers, mu: Sequence[Tensor], sensitivity: Sequence[Tensor] | None = None
) -> list[Tensor]:
    """The outliers known before the mixture is fitted: by mean and by sensitivity."""
    masks = (
        [torch.zeros_like(m, dtype=torch.bool) for m in mu] if rules.mean is None else by_mean(mu, rules.mean)
    )
    if rules.sensitivity_share is None:
        return masks
    if sensitivity is None:
        raise ValueError("sensitivity: needed by sensitivity_share. Pass it, or set sensitivity_share=None.")
    if [g.shape for g in sensitivity] != [m.shape for m in mu]:
        raise ValueError("sensitivity: its tensors must have the shapes of mu, one for one.")
    return [m | s for m, s in zip(masks, by_sensitivity(sensitivity, rules.sensitivity_share), strict=True)]


def quantile(values: Sequence[Tensor], q: float) -> float:
    """The smallest value that at least a share q of all values does not exceed."""
    flat = torch.cat([v.detach().reshape(-1).float() for v in values])
    if flat.numel() == 0:
        raise ValueError("values: hold no weights.")
    if not bool(flat.isfinite().all()):
        raise ValueError("values: hold NaN or infinity. Remove those weights or retrain.")
    rank = min(max(math.ceil(q * flat.numel() - 1e-9), 1), flat.numel())
    return float(flat.kthvalue(rank).values)
