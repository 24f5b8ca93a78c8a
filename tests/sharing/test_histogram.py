from __future__ import annotations

import weakref
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pocketbayes.sharing.histogram import (
    CHUNK,
    EXACT_BELOW,
    Distinct,
    Grid,
    make_axis,
    make_grid,
    make_histogram,
)
from pocketbayes.sharing.mixture import fit_mixture


def weights(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    mu = torch.empty(n).exponential_(generator=g) * torch.randn(n, generator=g).sign()
    return 0.03 * mu, 0.002 * (0.5 * torch.randn(n, generator=g)).exp()


def test_every_weight_is_counted_once_and_bins_keep_their_means() -> None:
    mu, sigma = weights(3 * CHUNK + 17)
    histogram = make_histogram(
        [(mu[:1000].view(10, 100), sigma[:1000].view(10, 100)), (mu[1000:], sigma[1000:])]
    )
    atoms = histogram.atoms()
    assert int(atoms.n.sum()) == len(mu)
    assert len(atoms.n) < len(mu) / 2
    expected = torch.stack([mu.double().mean(), sigma.double().mean()])
    torch.testing.assert_close((atoms.n[:, None] * atoms.mean).sum(0) / len(mu), expected, rtol=1e-10, atol=0)


def test_bins_with_their_scatter_keep_the_covariance() -> None:
    mu, sigma = weights(200_000)
    atoms = make_histogram([(mu, sigma)], bins=128).atoms()
    share = (atoms.n / atoms.n.sum())[:, None]
    mean = (share * atoms.mean).sum(0)
    between = (share * (atoms.mean - mean).square()).sum(0)
    within = (share * atoms.scatter).sum(0)
    true = torch.stack([mu.double().var(correction=0), sigma.double().var(correction=0)])
    torch.testing.assert_close(between + within, true, rtol=1e-4, atol=0)
    assert bool(((between - true).abs() > 3 * (between + within - true).abs()).all())  # the scatter is needed


def test_bins_are_narrow_where_weights_are_dense() -> None:
    mu, _ = weights(200_000)
    axis = make_axis(mu, float(mu.min()), float(mu.max()), 256)
    counts = np.histogram(mu.numpy(), axis.edges.numpy())[0]
    width = axis.edges.diff().numpy()
    assert width[counts.argmax()] < width[[0, -1]].min() / 4
    np.testing.assert_array_equal(np.bincount(axis.bin_of(mu).numpy(), minlength=axis.bins).sum(), len(mu))
    agree = np.searchsorted(axis.edges.numpy(), mu.double().numpy(), side="right") - 1
    same = (np.clip(agree, 0, axis.bins - 1) == axis.bin_of(mu).numpy()).mean()
    assert same > 0.999  # float32 rounding may move a weight on an edge


def test_cube_root_companding_beats_uniform_bins() -> None:
    mu, _ = weights(100_000)
    axis = make_axis(mu, float(mu.min()), float(mu.max()), 64)
    uniform = np.linspace(float(mu.min()), float(mu.max()), 65)

    def within(edges: np.ndarray) -> float:
        which = np.digitize(mu.numpy(), edges[1:-1])
        n = np.bincount(which, minlength=64)
        mean = np.bincount(which, mu.numpy(), minlength=64) / np.maximum(n, 1)
        return float(((mu.numpy() - mean[which]) ** 2).mean())

    assert within(axis.edges.numpy()) < within(uniform) / 3


def test_histograms_on_one_grid_add_up() -> None:
    a, b = weights(80_000, 1), weights(90_000, 2)
    grid = make_grid([a, b])
    whole = make_histogram([a, b], grid)
    summed = make_histogram([a], grid) + make_histogram([b], grid)
    torch.testing.assert_close(summed.n, whole.n)
    torch.testing.assert_close(summed.total, whole.total, rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match="different grids"):
        make_histogram([a]) + make_histogram([b])


def test_lookup_finds_the_bin_that_counted_the_weight() -> None:
    chunks = [weights(100_000, 1), weights(70_000, 2)]
    histogram = make_histogram(chunks)
    atoms = histogram.atoms()
    found = list(histogram.lookup(torch.arange(len(atoms.n), dtype=torch.int32), chunks))
    n = sum(torch.bincount(f, minlength=len(atoms.n)) for f in found)
    torch.testing.assert_close(n, atoms.n.long())
    widest = (histogram.grid.within_bin_variance() * 12).sqrt()[histogram.occupied()]
    for (mu, sigma), f in zip(chunks, found, strict=True):
        off = (torch.stack([mu, sigma], 1) - atoms.mean[f.long()]).abs()
        assert bool((off <= widest[f.long()] * 1.01).all())


def test_few_weights_are_kept_as_they_are() -> None:
    mu, sigma = torch.tensor([0.5, -0.0, 0.0, 0.5]), torch.tensor([1.0, 2.0, 2.0, 3.0])
    histogram = make_histogram([(mu, sigma)])
    assert isinstance(histogram.grid, Distinct)
    atoms = histogram.atoms()
    assert sorted(zip(atoms.mean.tolist(), atoms.n.tolist(), strict=True)) == [
        ([0.0, 2.0], 2.0),
        ([0.5, 1.0], 1.0),
        ([0.5, 3.0], 1.0),
    ]
    assert float(atoms.scatter.abs().max()) == 0.0
    with pytest.raises(ValueError, match="not among"):
        histogram.grid.bin_of(torch.tensor([0.7]), torch.tensor([1.0]))


@given(st.integers(1, 200), st.floats(-1e3, 1e3, width=32), st.floats(0, 1e3, width=32))
@settings(deadline=None, derandomize=True, max_examples=30)
def test_an_axis_holds_any_values(bins: int, low: float, width: float) -> None:
    x = torch.linspace(low, low + width, 300, dtype=torch.float32)
    axis = make_axis(x, float(x.min()), float(x.max()), bins)
    assert 1 <= axis.bins <= bins
    index = axis.bin_of(x)
    assert int(index.min()) == 0
    assert int(index.max()) == axis.bins - 1
    assert bool((index.diff() >= 0).all())
    assert axis.bin_of(torch.tensor([-1e9, 1e9])).tolist() == [0, axis.bins - 1]


def test_a_constant_axis_has_one_bin() -> None:
    n = EXACT_BELOW + 1
    grid = make_grid([(torch.linspace(0, 1, n), torch.full((n,), 0.1))])
    assert isinstance(grid, Grid)
    assert grid.sigma.bins == 1


def test_half_precision_and_gradients_are_welcome() -> None:
    mu, sigma = weights(1000)
    histogram = make_histogram([(mu.bfloat16().requires_grad_(), sigma.double())])
    assert int(histogram.n.sum()) == 1000


def test_bad_input_is_named() -> None:
    mu, sigma = weights(10)
    with pytest.raises(ValueError, match="only once"):
        make_histogram(iter([(mu, sigma)]))
    with pytest.raises(ValueError, match="chunk 1: mu has shape"):
        make_histogram([(mu, sigma), (mu, sigma[:5])])
    with pytest.raises(ValueError, match="mu holds NaN"):
        make_histogram([(mu * float("nan"), sigma)])
    with pytest.raises(ValueError, match="sigma holds NaN"):
        make_histogram([(mu, sigma / 0)])
    with pytest.raises(ValueError, match="negative"):
        make_histogram([(mu, -sigma)])
    with pytest.raises(ValueError, match="no weights"):
        make_histogram([])
    with pytest.raises(ValueError, match="floating point"):
        make_histogram([(mu.long(), sigma)])
    with pytest.raises(ValueError, match="bins"):
        make_histogram([(mu, sigma)], bins=0)


def test_weights_that_are_streamed_are_not_kept() -> None:
    """Each layer lives until the next one is made, however many there are."""
    living: list[weakref.ref[np.ndarray]] = []
    most = 0

    class Streamed:
        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            nonlocal most
            for layer in range(20):
                most = max(most, sum(ref() is not None for ref in living))
                pair = np.random.default_rng(layer).normal(size=(2, 5000)).astype(np.float32)
                living.append(weakref.ref(pair))
                tensor = torch.from_numpy(pair)
                del pair
                yield tensor[0], tensor[1].abs()

    plane = make_histogram(Streamed(), bins=32)
    fit = fit_mixture(plane.atoms(), 4)
    counts = [int(labels.numel()) for labels in plane.lookup(torch.arange(len(plane.atoms().n)), Streamed())]
    assert int(plane.n.sum()) == sum(counts) == 100_000 and fit.mixture.components == 4
    assert most <= 2
