"""Energy distance: between samples, and exactly between a sum of noise terms and a Gaussian.

D^2(X, Y) = 2 E|X - Y| - E|X - X'| - E|Y - Y'|, zero only for equal laws.  (scipy.stats.energy_distance is its root.)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pocketbayes.noise.atoms import TwoPoint
from pocketbayes.noise.family import Law
from pocketbayes.noise.quadrature import panel_nodes

_BLOCK = 1 << 22  # distances held at once
_FAR = 1024.0  # where the characteristic function of a sum with a density is spent


def energy_distance(a: Tensor, b: Tensor) -> Tensor:
    """How far two laws are apart: the unbiased estimate of D^2 from samples a [n] and b [m], or [n, d] and [m, d].

    D^2 = 2 E |a - b| - E |a - a'| - E |b - b'|, zero for equal laws alone.  The estimate may come out negative: between
    samples of one law its mean is zero.  Its cost is n log n for scalars, n m for vectors.

    Args:
        a: samples of one law, one row each.
        b: samples of the other, with as many columns.

    Returns:
        D^2 in the samples' unit, a float64 scalar.

    Examples:
        >>> a, b = torch.tensor([0.0, 1.0]), torch.tensor([2.0, 3.0])
        >>> pb.energy_distance(a, b).item()  # 2 * 2 - 1 - 1
        2.0
    """
    a, b = _checked(a, "a"), _checked(b, "b")
    if a.ndim != b.ndim or a.shape[1:] != b.shape[1:]:
        raise ValueError(
            f"energy_distance: a and b differ in kind, shapes {tuple(a.shape)} and {tuple(b.shape)}."
        )
    if a.ndim > 2:
        raise ValueError(
            f"energy_distance: needs [n] or [n, d], got {tuple(a.shape)}. Flatten, or use marginal_distances."
        )
    if a.ndim == 2 and a.shape[1] > 1:
        return _by_pairs(a, b)
    return marginal_distances(a.reshape(-1), b.reshape(-1))


def marginal_distances(a: Tensor, b: Tensor) -> Tensor:
    """The unbiased D^2 of every column on its own: a [n, ...] and b [m, ...] give [...], float64; n log n.

    With predictive draws [S, N] these are the distances at the N inputs.
    """
    a, b = _checked(a, "a"), _checked(b, "b")
    if a.shape[1:] != b.shape[1:]:
        raise ValueError(f"marginal_distances: columns differ, shapes {tuple(a.shape)} and {tuple(b.shape)}.")
    n, m = a.shape[0], b.shape[0]
    centre = a.mean(0)
    own_a, own_b = _pair_sum(a - centre), _pair_sum(b - centre)
    across = _pair_sum(torch.cat([a, b]) - centre) - own_a - own_b
    return 2 * across / (n * m) - 2 * own_a / (n * (n - 1)) - 2 * own_b / (m * (m - 1))


def predictive_distances(a: Tensor, b: Tensor) -> Tensor:
    """The unbiased D^2 at every input: draws a [S, N, ...] and b [T, N, ...] give [N], float64.

    All outputs at one input are one vector, class probabilities for example; S T for vectors, n log n for scalars.
    """
    a, b = (x.flatten(2).squeeze(2) if x.ndim > 2 else x for x in (_checked(a, "a"), _checked(b, "b")))
    if a.ndim < 2 or a.shape[1:] != b.shape[1:]:
        raise ValueError(
            "predictive_distances: needs draws [S, N, ...] and [T, N, ...] at the same inputs, got shapes "
            f"{tuple(a.shape)} and {tuple(b.shape)}."
        )
    if a.ndim == 2:
        return marginal_distances(a, b)
    rows = max(1, _BLOCK // (max(len(a), len(b)) ** 2))
    parts = zip(a.movedim(1, 0).split(rows), b.movedim(1, 0).split(rows), strict=True)
    return torch.cat([_by_pairs(x, y) for x, y in parts])


def _pair_sum(x: Tensor) -> Tensor:
    """sum_{i < j} |x_i - x_j| down the columns: sorted, x_(i) counts 2i - n + 1 times."""
    n = x.shape[0]
    rank = 2 * torch.arange(n, dtype=x.dtype, device=x.device) - (n - 1)
    total: Tensor = torch.tensordot(rank, x.sort(0).values, dims=1)
    return total


def _by_pairs(a: Tensor, b: Tensor) -> Tensor:
    """From vectors a [..., n, d] and b [..., m, d]: [...]."""
    n, m = a.shape[-2], b.shape[-2]
    across, own_a, own_b = _all_distances(a, b), _all_distances(a, a), _all_distances(b, b)
    return 2 * across / (n * m) - own_a / (n * (n - 1)) - own_b / (m * (m - 1))


def _all_distances(a: Tensor, b: Tensor) -> Tensor:
    """sum_{i, j} |a_i - b_j|, block by block; differences, not inner products, which cancel."""
    rows = max(1, _BLOCK // b.shape[:-1].numel())
    blocks = [
        torch.cdist(part, b, compute_mode="donot_use_mm_for_euclid_dist").sum((-2, -1))
        for part in a.split(rows, dim=-2)
    ]
    return torch.stack(blocks).sum(0)


def _checked(x: Tensor, name: str) -> Tensor:
    x = torch.as_tensor(x).detach().double()
    if x.ndim < 1 or x.shape[0] < 2:
        raise ValueError(
            f"energy_distance: {name} needs at least two samples in its first dimension, got {tuple(x.shape)}."
        )
    if not bool(torch.isfinite(x).all()):
        raise ValueError(
            f"energy_distance: {name} holds NaN or infinite samples. Remove them, and ask why they are there."
        )
    return x


def sum_energy_distance(noise: Law, terms: int, coefficients: Tensor | None = None) -> float:
    """D^2 between (z_1 + ... + z_n) / sqrt n, z_i ~ noise, and N(0, 1), exact: (2 / pi) int |phi - psi|^2 / t^2 dt.

    With `coefficients` c [n] the sum is c_1 z_1 + ... + c_n z_n over |c|.  Sampling cannot see distances this small.
    A law of many atoms is slow (64 000 frequencies times the atoms): use a `QuantileTable` of the samples instead.
    """
    if terms < 1:
        raise ValueError(f"sum_energy_distance: needs at least one term, got {terms}.")
    if coefficients is None and isinstance(noise, TwoPoint):
        return _lattice_distance(terms)
    total, near = 0.0, 0.0
    for far in _FAR / torch.exp2(torch.arange(4.0, -1, -1)):  # octave by octave
        t, dt = panel_nodes(torch.arange(near, float(far) + 0.125, 0.25, dtype=torch.float64), 16)
        gap = _sum_characteristic(noise, t, terms, coefficients) - torch.exp(-0.5 * t.square())
        square = gap.abs().square()
        total += float((square / t.square() * dt).sum())
        if not noise.has_atoms and float(square.max()) < 1e-20:
            return 2 / math.pi * total
        near = float(far)
    # What is left beyond: nothing for a law with a density; atoms keep a constant average.
    rest = float((square * dt).sum() / (_FAR / 2)) / _FAR if noise.has_atoms else 0.0
    return 2 / math.pi * (total + rest)


def _sum_characteristic(noise: Law, t: Tensor, terms: int, coefficients: Tensor | None) -> Tensor:
    if coefficients is None:
        return noise.characteristic(t / math.sqrt(terms)) ** terms
    scaled = coefficients.detach().double() / torch.linalg.vector_norm(coefficients.double())
    product = torch.ones(t.shape, dtype=torch.complex128)
    for c in scaled:
        product *= noise.characteristic(t * c)
    return product


def _lattice_distance(terms: int) -> float:
    """+-1 terms: |cos(t / sqrt n)|^(2n) has period P = pi sqrt n and never decays.

    The first M periods, M P >= 12, are integrated as they are; after them the Gaussian is gone, and the periods add up
    to the trigamma function: sum_{k >= M} 1 / (t + k P)^2 = psi_1(M + t / P) / P^2.
    """
    from scipy.special import polygamma

    period = math.pi * math.sqrt(terms)
    first = math.ceil(12 / period)
    t, dt = panel_nodes(torch.linspace(0, period, 257, dtype=torch.float64), 16)
    own = (t / math.sqrt(terms)).cos() ** terms
    total = torch.zeros_like(t)
    for k in range(first):
        sign = -1.0 if (k * terms) % 2 else 1.0
        x = t + k * period
        total = total + (sign * own - torch.exp(-0.5 * x.square())).square() / x.square()
    later = torch.from_numpy(polygamma(1, (first + t / period).numpy())) / period**2
    return 2 / math.pi * float(((total + own.square() * later) * dt).sum())
