"""What sharing by rate needs to know of the weights: sums in which the distortion is linear."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from pocketbayes.sharing.histogram import SAMPLE, Grid, check_moments, make_axis
from pocketbayes.sharing.threads import operators_alone, spread

BINS = (512, 64)  # of mu and of sigma, in a layer too large to be kept weight by weight
GOLDEN = (math.sqrt(5) - 1) / 2
PIECE = 1 << 14  # weights handled at once: their temporaries stay in the second-level cache

Pair = tuple[Tensor, Tensor]  # (mu, sigma) of some weights


class Evidence(NamedTuple):
    """All that the minimum depends on: for each atom the sums over its weights, layer after layer."""

    phi: Tensor  # [B, 4] float64: 1, tau, tau mu, (tau mu^2 - 1 - ln tau) / 2, with tau = 1/sigma^2
    layer: Tensor  # [B] int64, non-decreasing
    layers: int

    @property
    def weights(self) -> Tensor:
        """[L] how many weights each layer has."""
        return self.phi.new_zeros(self.layers).index_add_(0, self.layer, self.phi[:, 0])

    @property
    def by_layer(self) -> list[Tensor]:
        """phi of each layer's atoms."""
        return list(self.phi.split(torch.bincount(self.layer, minlength=self.layers).tolist()))

    @classmethod
    def of(cls, phi: Sequence[Tensor]) -> Evidence:
        """From phi of each layer."""
        layer = torch.arange(len(phi)).repeat_interleave(torch.tensor([len(rows) for rows in phi]))
        return cls(torch.cat(list(phi)), layer, len(phi))


@operators_alone()
def gather_evidence(
    mu: Sequence[Tensor],
    sigma: Sequence[Tensor],
    *,
    exact_below: int = math.prod(BINS),
    bins: tuple[int, int] = BINS,
) -> Evidence:
    """The evidence of layers of weights; layers of more than `exact_below` weights are binned, with exact sums.

    Weights are read in pieces: besides the evidence, memory holds a few pieces only.
    """
    check(mu, sigma)

    def gather(layer: Pair) -> Tensor:
        pieces = zip(*(t.detach().reshape(-1).split(PIECE) for t in layer), strict=True)
        rows = (statistics(*piece) for piece in pieces)
        return torch.cat(list(rows)) if layer[0].numel() <= exact_below else _binned(rows, *layer, bins)

    return Evidence.of(spread(gather, list(zip(mu, sigma, strict=True))))


def statistics(mu: Tensor, sigma: Tensor) -> Tensor:
    """phi [N, 4] of weights [N], on the CPU and column by column in memory."""
    m, s = (t.to("cpu", torch.float64) for t in (mu, sigma))
    tau = s.square().reciprocal_()
    u = tau * m
    constant = (u * m).sub_(1.0).sub_(tau.log()).mul_(0.5)
    return torch.stack([torch.ones_like(m), tau, u, constant]).T


@operators_alone()
def coarsen(evidence: Evidence, bins: tuple[int, int] = (128, 16)) -> Evidence:
    """Fewer atoms, the same sums: layers of more than `bins` atoms binned.  For searches that fit many times."""

    def coarse(phi: Tensor) -> Tensor:
        return phi if len(phi) <= math.prod(bins) else _binned(phi.split(PIECE), *moments(phi), bins)

    return Evidence.of(spread(coarse, evidence.by_layer))


def moments(phi: Tensor) -> Pair:
    """The mean of each atom, weighted by precision, and the root of the harmonic mean of its variances."""
    n, tau, u, _ = phi.unbind(-1)
    return u / tau, (n / tau).sqrt_()


def sums_by_label(phi: Tensor, label: Tensor, labels: int) -> Tensor:
    """[labels, 4] the sums of phi [B, 4] by label [B]."""
    return torch.stack([torch.bincount(label, weights=c, minlength=labels) for c in phi.unbind(1)], 1)


def _binned(phi: Iterable[Tensor], mu: Tensor, sigma: Tensor, bins: tuple[int, int]) -> Tensor:
    """Sums of one layer's phi, given in pieces, over the occupied bins of a grid for its mu and sigma."""
    grid = _grid(mu.detach(), sigma.detach(), bins)
    sums = torch.zeros(4, grid.size, dtype=torch.float64)
    for rows in phi:
        bin_ = grid.bin_of(*(x.float() for x in moments(rows)))
        for total, column in zip(sums, rows.unbind(1), strict=True):
            total.index_add_(0, bin_, column)
    return sums[:, sums[0] > 0].T.contiguous()


def _grid(mu: Tensor, sigma: Tensor, bins: tuple[int, int]) -> Grid:
    axes = []
    for x, n in zip((mu, sigma), bins, strict=True):
        low, high = (float(end) for end in x.aminmax())
        axes.append(make_axis(sample(x.reshape(-1), SAMPLE).cpu(), low, high, n))
    return Grid(*axes)


def sample(x: Tensor, size: int) -> Tensor:
    """At most so many elements of x [N], the same for all x of that length."""
    return x if len(x) <= size else x[spots(len(x), size).to(x.device)]


@lru_cache(maxsize=1024)
def spots(n: int, size: int) -> Tensor:
    """[size] positions in n, evenly spread and without a period that might be that of rows or kernels."""
    return (torch.arange(size, dtype=torch.float64) * GOLDEN % 1 * n).long()


def check(mu: Sequence[Tensor], sigma: Sequence[Tensor]) -> None:
    """ValueError for layers that are empty, do not match, or hold what is no moment."""
    if len(mu) == 0 or len(mu) != len(sigma):
        raise ValueError(f"mu, sigma: need one tensor for each layer, got {len(mu)} and {len(sigma)}.")
    for i, (m, s) in enumerate(zip(mu, sigma, strict=True)):
        check_moments(f"layer {i}", m, s)
        if m.numel() == 0:
            raise ValueError(f"layer {i}: has no weights. Leave it out.")
        if not (s > 0).all():
            raise ValueError(f"layer {i}: sigma must be positive, got {float(s.min()):g}.")
