"""A histogram of the (mu, sigma) plane, counted in one streaming pass.

After the pass, cost depends on bins and not on weights.  Bins are rectangles of a product grid.  Along each axis they
are narrow where weights are dense: bin density is proportional to the cube root of the marginal density, the companding
that minimises the mean square within a bin.  Every bin keeps its count and its exact mean, so expectation
maximisation on bins sees the weights' own first moments.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import reduce
from operator import add
from typing import NamedTuple

import torch
from torch import Tensor

from pocketbayes.sharing.threads import operators_alone, spread

CHUNK = 1 << 17  # weights handled at once: their temporaries stay in the second-level cache
CELLS = 1 << 15  # uniform cells an axis is looked up through
SAMPLE = 1 << 18  # weights that shape the grid
PARTS = 4  # into which a chunk is split to be counted
EXACT_BELOW = 1 << 16  # so few weights are kept as they are, one bin for each distinct one

NARROWEST = 1e-30  # an axis; cells of a narrower one would overflow float32
Chunks = Iterable[tuple[Tensor, Tensor]]


class Atoms(NamedTuple):
    """Weighted points of the plane: `n` weights each, their mean (mu, sigma) and their variance around it."""

    n: Tensor  # [B] float64, positive
    mean: Tensor  # [B, 2]
    scatter: Tensor  # [B, 2] variance of mu and of sigma within the atom


class BinnedAxis(NamedTuple):
    """One axis of the grid.  A value lies in the uniform cell (x - low) * cells_per_unit; bins are groups of cells."""

    low: float
    cells_per_unit: float
    bin_of_cell: Tensor  # [CELLS] int32, non-decreasing
    edges: Tensor  # [bins + 1] float64

    @property
    def bins(self) -> int:
        return len(self.edges) - 1

    def bin_of(self, x: Tensor) -> Tensor:
        """The bin of each value, int32; values beyond the ends belong to the end bins."""
        cell = (x - self.low).mul_(self.cells_per_unit).clamp_(0, len(self.bin_of_cell) - 1).int()
        return self.bin_of_cell.index_select(0, cell)


class Grid(NamedTuple):
    """A product of two companded axes; bins are numbered row by row, mu first."""

    mu: BinnedAxis
    sigma: BinnedAxis

    @property
    def size(self) -> int:
        return self.mu.bins * self.sigma.bins

    def bin_of(self, mu: Tensor, sigma: Tensor) -> Tensor:
        """The bin of each weight, int32 [N]."""
        return self.mu.bin_of(mu).mul_(self.sigma.bins).add_(self.sigma.bin_of(sigma))

    def within_bin_variance(self) -> Tensor:
        """[size, 2] variance of a uniform law over each bin: width^2 / 12."""
        widths = torch.cartesian_prod(self.mu.edges.diff(), self.sigma.edges.diff())
        return widths.square() / 12


class Distinct(NamedTuple):
    """One bin for every distinct weight: the exact grid of small models."""

    keys: Tensor  # [size] int64, sorted: the bits of mu and sigma side by side

    @property
    def size(self) -> int:
        return len(self.keys)

    def bin_of(self, mu: Tensor, sigma: Tensor) -> Tensor:
        """The bin of each weight, int32 [N]; ValueError for a weight the grid was not made from."""
        key = _key(mu, sigma)
        bin_ = torch.searchsorted(self.keys, key).clamp_(max=self.size - 1)
        if not torch.equal(self.keys[bin_], key):
            raise ValueError(
                "mu, sigma: not among the weights this grid was made from. Make the grid from all chunks."
            )
        return bin_.int()

    def within_bin_variance(self) -> Tensor:
        return torch.zeros(self.size, 2, dtype=torch.float64)


def _key(mu: Tensor, sigma: Tensor) -> Tensor:
    """An int64 for each (mu, sigma) in float32; -0 and 0 are one value."""
    bits = [(x.float() + 0.0).contiguous().view(torch.int32).long() for x in (mu, sigma)]
    return (bits[0] << 32) | (bits[1] & 0xFFFFFFFF)


class WeightHistogram(NamedTuple):
    """Counts and sums of (mu, sigma) for each bin of a grid.  Histograms on one grid add up with `+`."""

    grid: Grid | Distinct
    n: Tensor  # [size] int64
    total: Tensor  # [2, size] float64: sums of mu and of sigma

    @classmethod
    def empty(cls, grid: Grid | Distinct) -> WeightHistogram:
        size = grid.size
        return cls(grid, torch.zeros(size, dtype=torch.int64), torch.zeros(2, size, dtype=torch.float64))

    def __add__(self, other: object) -> WeightHistogram:
        """The histogram of both sets of weights, so that files, devices and ranks reduce with one sum."""
        if not isinstance(other, WeightHistogram):
            return NotImplemented
        if not _same(self.grid, other.grid):
            raise ValueError("histograms: made on different grids. Make one grid and pass it to both.")
        return WeightHistogram(self.grid, self.n + other.n, self.total + other.total)

    def occupied(self) -> Tensor:
        """[B] the numbers of the bins that hold weights, in order."""
        return self.n.nonzero().squeeze(1)

    def atoms(self) -> Atoms:
        """The occupied bins as weighted points.

        The mean is exact.  The scatter is that of n uniform points in the bin around their own mean,
        width^2/12 (1 - 1/n): a bin with one weight is that weight.
        """
        bins = self.occupied()
        count = self.n[bins].double()
        scatter = self.grid.within_bin_variance()[bins] * (1 - 1 / count)[:, None]
        return Atoms(count, (self.total[:, bins] / count).T.contiguous(), scatter)

    def lookup(self, of_atom: Tensor, chunks: Chunks) -> Iterator[Tensor]:
        """For each chunk the value of `of_atom` [B] at each weight's bin, in the chunk's shape."""
        table = of_atom.new_zeros(self.grid.size)
        table[self.occupied()] = of_atom
        return (_look_up(table, self.grid, chunk) for chunk in chunks)


@operators_alone()
def _look_up(table: Tensor, grid: Grid | Distinct, chunk: tuple[Tensor, Tensor]) -> Tensor:
    """table[bin] of each weight of a chunk."""
    found = torch.empty(chunk[0].numel(), dtype=table.dtype)
    pieces = list(zip(_pieces([chunk]), found.split(CHUNK), strict=True)) if len(found) else []

    def fill(start: int) -> None:
        for (mu, sigma), out in pieces[start::PARTS]:
            torch.index_select(table, 0, grid.bin_of(mu, sigma), out=out)

    spread(fill, range(min(PARTS, len(pieces))))
    return found.view(chunk[0].shape)


def _same(a: Grid | Distinct, b: Grid | Distinct) -> bool:
    if isinstance(a, Distinct) and isinstance(b, Distinct):
        return torch.equal(a.keys, b.keys)
    if isinstance(a, Grid) and isinstance(b, Grid):
        return all(torch.equal(p.edges, q.edges) for p, q in zip(a, b, strict=True))
    return False


@operators_alone()
def make_histogram(
    chunks: Chunks, grid: Grid | Distinct | None = None, *, bins: int = 512
) -> WeightHistogram:
    """Count the weights of all chunks on `grid` (by default one made from them), reading each weight once.

    `chunks` are (mu, sigma) tensors of equal shapes, such as those of a model's parameters; they are read again to make
    the grid and to look labels up.
    """
    grid = make_grid(chunks, bins=bins) if grid is None else grid
    parts = [WeightHistogram.empty(grid) for _ in range(PARTS)]
    for chunk in chunks:
        pieces = list(_pieces([chunk]))
        jobs = [(part, pieces[i::PARTS]) for i, part in enumerate(parts) if i < len(pieces)]
        spread(_count, jobs)
    return reduce(add, parts)


def _count(job: tuple[WeightHistogram, list[tuple[Tensor, Tensor]]]) -> None:
    """Add weights to a histogram, in place."""
    histogram, pieces = job
    for mu, sigma in pieces:
        bin_ = histogram.grid.bin_of(mu, sigma)
        histogram.n.index_add_(0, bin_, torch.ones_like(bin_, dtype=torch.int64))
        histogram.total[0].index_add_(0, bin_, mu.double())
        histogram.total[1].index_add_(0, bin_, sigma.double())


@operators_alone()
def make_grid(chunks: Chunks, *, bins: int = 512) -> Grid | Distinct:
    """A grid for these weights: exact for few of them, `bins` x `bins` companded rectangles otherwise."""
    if iter(chunks) is chunks:
        raise ValueError("chunks: an iterator can be read only once. Pass a list of (mu, sigma) tensors.")
    if bins < 1:
        raise ValueError(f"bins: must be at least 1, got {bins}.")
    n, low, high = _count_and_range(chunks)
    if n <= EXACT_BELOW:
        keys = torch.cat([_key(mu, sigma) for mu, sigma in _pieces(chunks)])
        return Distinct(keys.unique())
    step = -(-n // SAMPLE)
    # Copies, since views would keep all chunks in memory.
    sample = torch.cat([torch.stack([x[::step] for x in pair]) for pair in _pieces(chunks)], 1)
    return Grid(*(make_axis(x, lo, hi, bins) for x, lo, hi in zip(sample, low, high, strict=True)))


def make_axis(sample: Tensor, low: float, high: float, bins: int) -> BinnedAxis:
    """An axis over [low, high] with at most `bins` bins, dense where the sample is: bin density ~ density^(1/3)."""
    if not high - low > NARROWEST:
        return BinnedAxis(
            low, 0.0, torch.zeros(1, dtype=torch.int32), torch.tensor([low, high], dtype=torch.float64)
        )
    per_unit = CELLS / (high - low)
    cell = ((sample.double() - low) * per_unit).clamp(0, CELLS - 1).long()
    counts = torch.bincount(cell, minlength=CELLS).double()
    filled = _smooth(counts).pow(1 / 3).cumsum(0)
    bin_of_cell = (filled * (bins / filled[-1])).ceil().clamp(1, bins).int() - 1
    _, bin_of_cell = bin_of_cell.unique_consecutive(return_inverse=True)  # a cell may be wider than a bin
    first = torch.cat([torch.ones(1, dtype=torch.bool), bin_of_cell.diff() > 0]).nonzero().squeeze(1)
    edges = torch.cat([low + first.double() / per_unit, torch.tensor([high], dtype=torch.float64)])
    return BinnedAxis(low, per_unit, bin_of_cell.int(), edges)


def _smooth(counts: Tensor, width: int = 65) -> Tensor:
    """A moving average plus a small constant, so that empty stretches keep a few bins."""
    mean = torch.nn.functional.avg_pool1d(counts[None, None], width, 1, width // 2)[0, 0]
    return mean + 1e-3 * counts.mean()


def _pieces(chunks: Chunks) -> Iterator[tuple[Tensor, Tensor]]:
    """The chunks flat, in float32 on the CPU and cut to CHUNK weights."""
    for pair in chunks:
        mu, sigma = (x.detach().reshape(-1).split(CHUNK) for x in pair)
        for m, s in zip(mu, sigma, strict=True):
            yield m.to("cpu", torch.float32), s.to("cpu", torch.float32)


def _count_and_range(chunks: Chunks) -> tuple[int, list[float], list[float]]:
    """Number of weights, lowest and highest (mu, sigma); checks every chunk."""
    n, low, high = 0, [math.inf] * 2, [-math.inf] * 2
    for i, pair in enumerate(chunks):
        if not all(x.is_floating_point() for x in pair):
            kinds = " and ".join(str(x.dtype) for x in pair)
            raise ValueError(f"chunk {i}: mu and sigma must be floating point, got {kinds}.")
        check_moments(f"chunk {i}", *pair)
        n += pair[0].numel()
        for axis, x in enumerate(pair):
            if x.numel():
                a, b = (float(v) for v in x.detach().aminmax())
                low[axis], high[axis] = min(low[axis], a), max(high[axis], b)
    if n == 0:
        raise ValueError("chunks: hold no weights. Pass at least one non-empty (mu, sigma) pair.")
    return n, low, high


def check_moments(where: str, mu: Tensor, sigma: Tensor) -> None:
    """ValueError for tensors that do not match or hold what is no moment."""
    if mu.shape != sigma.shape:
        raise ValueError(f"{where}: mu has shape {tuple(mu.shape)} but sigma {tuple(sigma.shape)}.")
    for name, x in (("mu", mu), ("sigma", sigma)):
        if not x.numel():
            continue
        low, high = (float(end) for end in x.detach().aminmax())  # passes NaN on
        if not (math.isfinite(low) and math.isfinite(high)):
            raise ValueError(f"{where}: {name} holds NaN or infinity. Remove those weights or retrain.")
        if name == "sigma" and low < 0:
            raise ValueError(
                f"{where}: sigma must not be negative, got {low:g}. Pass standard deviations, not rho."
            )
