"""What rate-distortion sharing needs to know of the weights: sums in which the distortion is linear."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pocketbayes.sharing.histogram import SAMPLE, Grid, make_axis
from pocketbayes.sharing.threads import operators_alone

BINS = (512, 64)  # of mu and of sigma, in a layer too large to be kept weight by weight
PIECE = 1 << 18  # weights handled at once


class Evidence(NamedTuple):
    """What the minimum depends on: for each atom the sums over its weights, layer after layer."""

    phi: Tensor  # [B, 5] float64: 1, h, h tau, h tau mu, h (tau mu^2 - 1 - ln tau) / 2
    layer: Tensor  # [B] int64, non-decreasing
    layers: int

    @property
    def weights(self) -> Tensor:
        """[L] how many weights each layer has."""
        return self.phi.new_zeros(self.layers).index_add_(0, self.layer, self.phi[:, 0])


@operators_alone()
def gather_evidence(
    mu: Sequence[Tensor],
    sigma: Sequence[Tensor],
    importance: Sequence[Tensor] | None = None,
    *,
    exact_below: int = 1 << 17,
    bins: tuple[int, int] = BINS,
) -> Evidence:
    """The evidence of layers of weights; layers of more than `exact_below` weights are binned, with exact sums."""
    check(mu, sigma, importance)
    phi = []
    for m, s, rows in zip(mu, sigma, all_statistics(mu, sigma, importance), strict=True):
        exact = m.numel() <= exact_below
        phi.append(
            torch.cat(list(rows)) if exact else _binned(rows, m.detach().cpu(), s.detach().cpu(), bins)
        )
    return _evidence(phi)


def all_statistics(
    mu: Sequence[Tensor], sigma: Sequence[Tensor], importance: Sequence[Tensor] | None
) -> Iterator[Iterator[Tensor]]:
    """For each layer phi [PIECE, 5] of its weights, piece by piece; importance is one where it is not given."""
    ones = [torch.ones((), dtype=m.dtype).expand(m.shape) for m in mu] if importance is None else importance
    return (_statistics(*layer) for layer in zip(mu, sigma, ones, strict=True))


def _statistics(*layer: Tensor) -> Iterator[Tensor]:
    for piece in zip(*(t.detach().reshape(-1).split(PIECE) for t in layer), strict=True):
        m, s, h = (t.to("cpu", torch.float64) for t in piece)
        tau = s.square().reciprocal()
        constant = 0.5 * h * (tau * m * m - 1 - tau.log())
        yield torch.stack([torch.ones_like(m), h, h * tau, h * tau * m, constant], 1)


@operators_alone()
def coarsen(evidence: Evidence, bins: tuple[int, int] = (128, 16)) -> Evidence:
    """Fewer atoms, the same sums: layers of more than `bins` atoms binned.  For searches that fit many times."""
    return _evidence(
        [phi if len(phi) <= math.prod(bins) else _coarse(phi, bins) for phi in by_layer(evidence)]
    )


def _coarse(phi: Tensor, bins: tuple[int, int]) -> Tensor:
    _, h, t, u, _ = phi.unbind(1)
    return _binned(phi.split(PIECE), u / t, (h / t).sqrt(), bins)


def by_layer(evidence: Evidence) -> list[Tensor]:
    """phi of each layer's atoms."""
    return list(evidence.phi.split(torch.bincount(evidence.layer, minlength=evidence.layers).tolist()))


def _evidence(phi: list[Tensor]) -> Evidence:
    layer = torch.arange(len(phi)).repeat_interleave(torch.tensor([len(rows) for rows in phi]))
    return Evidence(torch.cat(phi), layer, len(phi))


def _binned(phi: Iterable[Tensor], mu: Tensor, sigma: Tensor, bins: tuple[int, int]) -> Tensor:
    """Sums of one layer's phi, given in pieces, over the occupied bins of its own grid."""
    flat = [t.reshape(-1) for t in (mu, sigma)]
    step = -(-mu.numel() // SAMPLE)
    axes = [make_axis(x[::step], float(x.min()), float(x.max()), n) for x, n in zip(flat, bins, strict=True)]
    grid = Grid(*axes)
    sums = torch.zeros(5, grid.size, dtype=torch.float64)
    for rows, m, s in zip(phi, *(t.split(PIECE) for t in flat), strict=True):
        bin_ = grid.bin_of(m.float(), s.float())
        for total, column in zip(sums, rows.unbind(1), strict=True):
            total.index_add_(0, bin_, column)
    return sums[:, sums[0] > 0].T.contiguous()


def check(mu: Sequence[Tensor], sigma: Sequence[Tensor], importance: Sequence[Tensor] | None) -> None:
    if len(mu) == 0 or len(mu) != len(sigma) or (importance is not None and len(importance) != len(mu)):
        raise ValueError(
            f"mu, sigma, importance: need one tensor for each layer, got {len(mu)} and {len(sigma)}."
        )
    for i, layer in enumerate(zip(mu, sigma, importance or sigma, strict=True)):
        if len({t.shape for t in layer}) != 1:
            raise ValueError(f"layer {i}: shapes differ: {[tuple(t.shape) for t in layer]}.")
        if layer[0].numel() == 0:
            raise ValueError(f"layer {i}: has no weights. Leave it out.")
        for name, t in zip(("mu", "sigma", "importance"), layer, strict=True):
            if not bool(t.isfinite().all()):
                raise ValueError(f"layer {i}: {name} holds NaN or infinity. Remove those weights or retrain.")
            if name != "mu" and not bool((t > 0).all()):
                raise ValueError(f"layer {i}: {name} must be positive, got {float(t.min()):g}.")
