"""A full-covariance Gaussian mixture over the (mu, sigma) plane by expectation maximisation on atoms."""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from pocketbayes.errors import ConvergenceWarning
from pocketbayes.sharing import tiles as tile
from pocketbayes.sharing.histogram import Atoms, Chunks, WeightHistogram
from pocketbayes.sharing.threads import operators_alone, spread
from pocketbayes.sharing.tiles import Standardisation, Tiles

POINT_FLOOR = 1e-12  # variance of a component that is one point, standardised


class Mixture(NamedTuple):
    """p(mu, sigma) = sum_k pi_k N((mu, sigma) | m_k, S_k), in the weights' own units, float64."""

    log_pi: Tensor  # [K]
    mean: Tensor  # [K, 2]
    cov: Tensor  # [K, 2, 2]

    @property
    def components(self) -> int:
        return len(self.log_pi)


class Fit(NamedTuple):
    """A mixture, how it was reached, and ln p(mu, sigma) per weight in nats: at the end and after each iteration."""

    mixture: Mixture
    log_likelihood: float
    history: tuple[float, ...]
    converged: bool

    @property
    def iterations(self) -> int:
        return len(self.history)


class _Standard(NamedTuple):
    """A mixture on the standardised plane; cov [K, 3] holds (xx, xy, yy)."""

    log_pi: Tensor
    mean: Tensor
    cov: Tensor


@operators_alone()
def fit_mixture(
    atoms: Atoms,
    components: int,
    *,
    start: Mixture | None = None,
    tolerance: float = 1e-4,
    max_iterations: int = 200,
    floor: float = 1e-6,
) -> Fit:
    """Maximum likelihood over the atoms' weights, from `start` or from equal stretches of a Hilbert curve.

    Maximises sum_b n_b ln sum_k pi_k exp E_b[ln N_k] over each tile's nearest components: a lower bound on the weights'
    log-likelihood, tight as bins shrink, which never falls.  Stops when an iteration gains less than `tolerance` times
    its size.  `floor` bounds the eigenvalues of S_k from below on the standardised plane.  With no more atoms than
    components every atom is a component; components that lose all their weights are dropped.
    """
    _check(atoms, components, tolerance, max_iterations, floor)
    plane = Standardisation.of(atoms)
    if start is None and components >= len(atoms.n):
        return _one_each(atoms, plane)
    tiles = Tiles.of(atoms, plane)
    first = _stretches(tiles, components, floor) if start is None else _standardise(start, plane)
    mixture, history, converged = _maximise(tiles, first, tolerance, max_iterations, floor)
    if not converged:
        warnings.warn(
            f"fit_mixture: still gaining after {max_iterations} iterations. Raise max_iterations or tolerance.",
            ConvergenceWarning,
            stacklevel=2,
        )
    shifted = tuple(value - plane.log_volume for value in history)
    return Fit(_restore(mixture, plane), shifted[-1], shifted, converged)


def _check(atoms: Atoms, components: int, tolerance: float, max_iterations: int, floor: float) -> None:
    if components < 1:
        raise ValueError(f"components: must be at least 1, got {components}.")
    if len(atoms.n) == 0 or not bool((atoms.n > 0).all()):
        raise ValueError("atoms: need positive counts, at least one. Are all weights outliers?")
    if not all(bool(t.isfinite().all()) for t in atoms):
        raise ValueError("atoms: hold NaN or infinity. Remove those weights or retrain.")
    if not (tolerance > 0 and floor > 0 and max_iterations >= 1):
        raise ValueError(
            f"tolerance, floor and max_iterations must be positive, got {tolerance}, {floor}, {max_iterations}."
        )


def _maximise(
    tiles: Tiles, mixture: _Standard, tolerance: float, max_iterations: int, floor: float
) -> tuple[_Standard, list[float], bool]:
    """Expectation maximisation; the history belongs to the mixtures before each maximisation step."""
    total, near, history = float(tiles.n.sum()), tile.nearest_components(tiles, *mixture), list[float]()
    while True:
        theta = tile.natural(*mixture)
        sums, likelihood = tile.expect(tiles, theta, near)
        if len(history).bit_count() == 1 and near.shape[1] < len(theta):  # candidates move less and less
            near = _renew(tiles, mixture, near, likelihood)
            sums, likelihood = tile.expect(tiles, theta, near)
        history.append(float(likelihood.sum()) / total)
        gain = history[-1] - history[-2] if len(history) > 1 else math.inf
        converged = gain <= tolerance * max(1.0, abs(history[-1]))
        if converged or len(history) == max_iterations:
            return _drop_empty(mixture), history, converged
        mixture = _maximum(sums, mixture, total, floor)


def _renew(tiles: Tiles, mixture: _Standard, near: Tensor, likelihood: Tensor) -> Tensor:
    """Candidates anew for the tiles whose likelihood they raise, so that the whole never falls."""
    fresh = tile.nearest_components(tiles, *mixture)
    _, with_fresh = tile.expect(tiles, tile.natural(*mixture), fresh)
    return torch.where((with_fresh > likelihood)[:, None], fresh, near)


def _maximum(sums: Tensor, before: _Standard, total: float, floor: float) -> _Standard:
    """The maximisation step; a component without weights stays where it was, with pi = 0."""
    weight, mean, cov = tile.moments(sums)
    alive = (weight > 1e-9)[:, None]
    log_pi = (weight / total).log().clamp_min(-700.0)
    return _Standard(
        log_pi, torch.where(alive, mean, before.mean), torch.where(alive, _floored(cov, floor), before.cov)
    )


def _floored(cov: Tensor, floor: float) -> Tensor:
    """Eigenvalues of [K, 3] covariances raised to `floor`: the constrained maximum of the likelihood."""
    xx, xy, yy = cov.unbind(1)
    middle, half = (xx + yy) / 2, torch.hypot((xx - yy) / 2, xy)  # eigenvalues middle +- half
    low, high = (middle - half).clamp_min(floor), (middle + half).clamp_min(floor)
    stretch = torch.where(half > 0, (high - low) / (2 * half).clamp_min(1e-300), 0.0)
    shift = low - stretch * (middle - half)
    return torch.stack([stretch * xx + shift, stretch * xy, stretch * yy + shift], 1)


def _drop_empty(mixture: _Standard) -> _Standard:
    used = mixture.log_pi > -600.0
    return _Standard(*(t[used] for t in mixture))


def _stretches(tiles: Tiles, components: int, floor: float) -> _Standard:
    """A start: the Hilbert curve cut into stretches of equal sum of sqrt(n), each one component.

    The square root spreads components over the plane as k-means does, rather than one to so many weights.
    """
    phi, count = (t.flatten(0, 1)[: len(tiles.order)] for t in (tiles.phi, tiles.n))
    size = count.sqrt()
    for _ in range(64):  # no atom may fill more than one stretch
        size = size.clamp_max(float(size.sum()) / components)
    reached = size.cumsum(0)
    stretch = (reached * (components / reached[-1]) - 1e-9).ceil().clamp(1, components).long()
    stretch = stretch.unique_consecutive(return_inverse=True)[1]
    sums = phi.new_zeros(int(stretch[-1]) + 1, 6).index_add_(0, stretch, phi * count[:, None])
    weight, mean, cov = tile.moments(sums)
    return _Standard((weight / count.sum()).log(), mean, _floored(cov, floor))


def _one_each(atoms: Atoms, plane: Standardisation) -> Fit:
    """Every atom a component, its variance that within the atom."""
    fraction = atoms.n / atoms.n.sum()
    z, var = (atoms.mean - plane.shift) / plane.scale, atoms.scatter / plane.scale.square() + POINT_FLOOR
    cov = torch.stack([var[:, 0], torch.zeros_like(fraction), var[:, 1]], 1)
    mixture = _Standard(fraction.log(), z, cov)
    own = fraction.log() - math.log(2 * math.pi) - 0.5 * var.log().sum(1)
    value = float((fraction * own).sum()) - plane.log_volume
    return Fit(_restore(mixture, plane)._replace(mean=atoms.mean), value, (value,), True)


def _standardise(mixture: Mixture, plane: Standardisation) -> _Standard:
    cov = mixture.cov.double() / (plane.scale[:, None] * plane.scale)
    packed = torch.stack([cov[:, 0, 0], cov[:, 0, 1], cov[:, 1, 1]], 1)
    return _Standard(mixture.log_pi.double(), (mixture.mean.double() - plane.shift) / plane.scale, packed)


def _restore(mixture: _Standard, plane: Standardisation) -> Mixture:
    cov = mixture.cov[:, [0, 1, 1, 2]].view(-1, 2, 2) * (plane.scale[:, None] * plane.scale)
    return Mixture(mixture.log_pi, mixture.mean * plane.scale + plane.shift, cov)


@operators_alone()
def log_joint(mixture: Mixture, points: Tensor) -> Tensor:
    """ln pi_k + ln N(x_i | m_k, S_k) of every point [N, 2] and component, [N, K]: exact, and as large as that."""
    plane = Standardisation(mixture.mean.mean(0), mixture.cov.diagonal(dim1=1, dim2=2).mean(0).sqrt())
    z = (points.double() - plane.shift) / plane.scale
    theta = tile.natural(*_standardise(mixture, plane))
    return tile.statistics(z, torch.zeros_like(z)) @ theta.T - plane.log_volume


@operators_alone()
def top_components(mixture: Mixture, atoms: Atoms, k: int) -> tuple[Tensor, Tensor]:
    """The k components of largest responsibility for each atom, best first: numbers [B, k] and log joints [B, k].

    Looks at the components nearest to the atom's tile only, so fewer than K of them can be asked for when K is large.
    """
    plane = Standardisation.of(atoms)
    tiles, standard = Tiles.of(atoms, plane), _standardise(mixture, plane)
    theta, near = tile.natural(*standard), tile.nearest_components(tiles, *standard)
    if not 1 <= k <= near.shape[1]:
        raise ValueError(f"k: must be between 1 and {near.shape[1]} components, got {k}.")

    def best(at: slice) -> tuple[Tensor, Tensor]:
        joint, place = tile.log_joint(tiles, at, theta, near).topk(k, dim=2)
        return near[at, None].expand(-1, place.shape[1], -1).gather(2, place), joint

    component, joint = (torch.cat(part) for part in zip(*spread(best, tiles.batches()), strict=True))
    return tiles.restore(component), tiles.restore(joint) - plane.log_volume


def assign(mixture: Mixture, histogram: WeightHistogram, chunks: Chunks) -> list[Tensor]:
    """For each chunk the most probable component of each weight, through the table bin -> component."""
    best = top_components(mixture, histogram.atoms(), 1)[0].squeeze(1)
    return list(histogram.lookup(best.to(label_dtype(mixture.components)), chunks))


def label_dtype(labels: int) -> torch.dtype:
    """The smallest integer type that numbers so many labels."""
    return torch.uint8 if labels <= 1 << 8 else torch.int16 if labels <= 1 << 15 else torch.int32
