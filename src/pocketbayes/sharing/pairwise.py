"""A start for rate-distortion sharing, and a way out of its local minima: groups of weights joined two by two.

Groups are sums [L, K, 5] of the statistics of `rate.py`, by layer and component.  Joining two of them changes
J by a closed form, so the best pair is found exactly (the pairwise nearest neighbour algorithm with an entropy term).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pocketbayes.sharing.evidence import Evidence

COVERED = 0.999  # share of the weights in the cells kept; the first assignment finds a place for the rest


def lattice(evidence: Evidence, lambda_: float, limit: int, *, rare: bool) -> Tensor:
    """Groups [L, G, 5], G <= limit, of atoms in one cell of a lattice in mu and ln sigma, the fullest cells only.

    Uniform cells are best at high rate.  A width w in mu costs tau w^2 / 24 nats of distortion and saves ln w nats of
    label, so w = sqrt(12 lambda) sigma; likewise sqrt(6 lambda) in ln sigma.  Cells grow until few enough hold nearly
    all weights.  Without `rare` the others are left out even below the limit: they may be outliers instead.
    """
    phi, n = evidence.phi, evidence.phi[:, 0]
    mu, log_sigma = phi[:, 3] / phi[:, 2], -0.5 * (phi[:, 2] / phi[:, 1]).log()
    size = math.sqrt(lambda_ * float(n.sum() / phi[:, 1].sum()))  # distortion is weighted by importance
    while True:
        level = (log_sigma / (math.sqrt(6) * size)).round()
        step = (mu / (math.sqrt(12) * size) * (-level * math.sqrt(6) * size).exp()).round()
        _, cell = torch.stack([level, step], 1).unique(dim=0, return_inverse=True)
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
    """[L, K, 5] the sums of phi [B, 5] by layer and label."""
    slot = layer * components + label
    columns = [torch.bincount(slot, weights=c, minlength=layers * components) for c in phi.unbind(1)]
    return torch.stack(columns, 1).view(layers, components, 5)


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

    Distortion: 1/2 [ T_a T_b / (T_a + T_b) (m_a - m_b)^2 + H_a ln v_a + H_b ln v_b - (H_a + H_b) ln v ], with H and T
    the sums of h and h tau.  Labels: lambda sum_l [ n_a ln n_a + n_b ln n_b - (n_a + n_b) ln(n_a + n_b) ].
    """
    _, h, t, u, _ = groups.sum(0).unbind(1)
    mean, log_var = u / t, (h / t).log()
    joint = h + h[k], t + t[k]
    spread = t * t[k] / joint[1] * (mean - mean[k]).square()
    width = h * log_var + h[k] * log_var[k] - joint[0] * (joint[0] / joint[1]).log()
    n = groups[..., 0]
    nats = (_xlogx(n) + _xlogx(n[:, k : k + 1]) - _xlogx(n + n[:, k : k + 1])).sum(0)
    change = 0.5 * (spread + width) + lambda_ * nats
    change[k] = math.inf
    return change.nan_to_num(nan=math.inf, posinf=math.inf)  # empty groups


def _xlogx(x: Tensor) -> Tensor:
    product: Tensor = torch.special.xlogy(x, x)
    return product
