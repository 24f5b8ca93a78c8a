"""A start for rate-distortion sharing, and a way out of its local minima: groups of weights joined two by two.

Groups are sums [L, K, 4] of phi (see `evidence.py`), by layer and component.  Joining two of them changes
J by a closed form, so the best pair is found exactly (the pairwise nearest neighbour algorithm with an entropy term).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pocketbayes.sharing.evidence import Evidence, moments, sums_by_label

COVERED = 0.999  # fraction of the weights in the cells kept; the first assignment finds a place for the rest
FARTHEST = (1 << 31) - 1  # step of a lattice from zero


def lattice(evidence: Evidence, lambda_: float, limit: int, *, rare: bool) -> Tensor:
    """Groups [L, G, 4], G <= limit, of atoms in one cell of a lattice in mu and ln sigma, the fullest cells only.

    Uniform cells are best at high rate.  A width w in mu costs tau w^2 / 24 nats of distortion and saves ln w nats of
    label, so w = sqrt(12 lambda) sigma; likewise sqrt(6 lambda) in ln sigma.  Cells grow until few enough hold nearly
    all weights.  Without `rare` the others are left out even below the limit: they may be outliers instead.
    """
    phi, n = evidence.phi, evidence.phi[:, 0]
    mu, sigma = moments(phi)
    log_sigma, size = sigma.log(), math.sqrt(lambda_)
    while True:
        level = (log_sigma / (math.sqrt(6) * size)).round()
        step = (mu / (math.sqrt(12) * size) * (-level * math.sqrt(6) * size).exp()).round()
        key = level.long() * (1 << 32) + step.clamp(-FARTHEST, FARTHEST).long()
        _, cell = key.unique(return_inverse=True)
        held, fullest = torch.bincount(cell, weights=n).sort(descending=True, stable=True)
        needed = int((held.cumsum(0) < COVERED * n.sum()).sum()) + 1
        if needed <= limit:
            break
        size *= 1.2
    kept = fullest[: limit if rare else needed]
    number = torch.full_like(fullest, -1)
    number[kept] = torch.arange(len(kept))
    label = number[cell]
    inside = label >= 0
    return group(phi[inside], evidence.layer[inside], label[inside], evidence.layers, len(kept))


def group(phi: Tensor, layer: Tensor, label: Tensor, layers: int, components: int) -> Tensor:
    """[L, K, 4] the sums of phi [B, 4] by layer and label."""
    return sums_by_label(phi, layer * components + label, layers * components).view(layers, components, 4)


def join(groups: Tensor, lambda_: float, most: int) -> Tensor:
    """Groups with the best pair joined again and again, while that lowers J or more than `most` are left."""
    if groups.shape[1] <= 1:
        return groups
    groups = groups.clone()
    alive = groups[..., 0].sum(0) > 0
    change = torch.stack([changes(groups, k, lambda_) for k in range(groups.shape[1])])
    change[~alive], change[:, ~alive] = math.inf, math.inf
    for left in range(int(alive.sum()), 1, -1):
        a, b = divmod(int(change.argmin()), len(change))
        if left <= most and not change[a, b] < 0:
            break
        groups[:, a] += groups[:, b]
        groups[:, b], alive[b] = 0, False
        row = changes(groups, a, lambda_).masked_fill(~alive, math.inf)
        change[a], change[:, a], change[b], change[:, b] = row, row, math.inf, math.inf
    return groups[:, alive]


def changes(groups: Tensor, k: int, lambda_: float) -> Tensor:
    """[K] by how much J grows when group k is joined to each other one; infinite for itself.

    Distortion: 1/2 [ T_a T_b / (T_a + T_b) (m_a - m_b)^2 + N_a ln v_a + N_b ln v_b - (N_a + N_b) ln v ], with N and T
    the sums of 1 and tau.  Labels: lambda sum_l [ n_a ln n_a + n_b ln n_b - (n_a + n_b) ln(n_a + n_b) ].
    """
    n, t, u, _ = groups.sum(0).unbind(1)
    mean, log_var = u / t, (n / t).log()
    joint = n + n[k], t + t[k]
    means = t * t[k] / joint[1] * (mean - mean[k]).square()
    variances = n * log_var + n[k] * log_var[k] - joint[0] * (joint[0] / joint[1]).log()
    of_layer = groups[..., 0]
    own = of_layer[:, k : k + 1]
    nats = (_xlogx(of_layer) + _xlogx(own) - _xlogx(of_layer + own)).sum(0)
    change = 0.5 * (means + variances) + lambda_ * nats
    change[k] = math.inf
    return change.nan_to_num(nan=math.inf, posinf=math.inf)  # empty groups


def _xlogx(x: Tensor) -> Tensor:
    product: Tensor = torch.special.xlogy(x, x)
    return product
