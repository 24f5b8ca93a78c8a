"""Atoms of the plane in small tiles, each tile beside the few components that matter to it.

Gaussians are an exponential family: the log joint density of atom b and component k is a dot product of the atom's
expected sufficient statistics phi_b = E_b (1, x, y, x^2, xy, y^2) with natural parameters theta_k, and the maximisation
step needs only sums of r_bk phi_b.  Atoms are ordered along a Hilbert curve and cut into tiles of neighbours, so both
are batched products of small matrices.  The within-atom scatter enters through phi_b alone.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pocketbayes.sharing.histogram import Atoms
from pocketbayes.sharing.threads import spread

TILE = 64  # atoms in a tile
BATCH = 64  # tiles handled at once
PARTS = 8  # of the expectation step, each summed apart: the same for any number of threads
CANDIDATES = 32  # components a tile is compared with, and two more for each that a tile holds on average


class Standardisation(NamedTuple):
    """The standardised plane z = (x - shift) / scale; unscaled, sigma ~ 1e-4 would be invisible beside mu ~ 1e-2."""

    shift: Tensor  # [2]
    scale: Tensor  # [2], positive also where an axis is constant

    @classmethod
    def of(cls, atoms: Atoms) -> Standardisation:
        fraction = (atoms.n / atoms.n.sum())[:, None]
        shift = (fraction * atoms.mean).sum(0)
        scale = (fraction * ((atoms.mean - shift).square() + atoms.scatter)).sum(0).sqrt()
        size = torch.where(shift == 0, 1.0, shift.abs())
        return cls(shift, torch.where(scale > 1e-12 * size, scale, size))

    @property
    def log_volume(self) -> float:
        """What the change of units adds to minus the log density."""
        return float(self.scale.log().sum())


class Tiles(NamedTuple):
    """Atoms by tile, the last one padded with atoms of no weight."""

    order: Tensor  # [B] where each atom of the curve stood before
    phi: Tensor  # [T, TILE, 6] expected sufficient statistics, standardised
    n: Tensor  # [T, TILE]

    @classmethod
    def of(cls, atoms: Atoms, plane: Standardisation) -> Tiles:
        z = (atoms.mean - plane.shift) / plane.scale
        order = _along_curve(z)
        phi = statistics(z, atoms.scatter / plane.scale.square())[order]
        short = -len(order) % TILE
        phi = torch.cat([phi, phi[-1:].expand(short, 6)])
        count = torch.cat([atoms.n[order], atoms.n.new_zeros(short)])
        return cls(order, phi.view(-1, TILE, 6), count.view(-1, TILE))

    def batches(self) -> list[slice]:
        return [slice(i, i + BATCH) for i in range(0, len(self.phi), BATCH)]

    def restore(self, on_curve: Tensor) -> Tensor:
        """Values [T, TILE, ...] of the tiles in the atoms' own order, [B, ...]."""
        flat = on_curve.flatten(0, 1)[: len(self.order)]
        return torch.empty_like(flat).index_copy_(0, self.order, flat)


def statistics(mean: Tensor, scatter: Tensor) -> Tensor:
    """phi = E (1, x, y, x^2, xy, y^2), [B, 6], of atoms with means [B, 2] and variances [B, 2]."""
    x, y = mean.unbind(1)
    return torch.stack([torch.ones_like(x), x, y, x * x + scatter[:, 0], x * y, y * y + scatter[:, 1]], 1)


def moments(sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """From sums of phi [K, 6]: weight [K], mean [K, 2] and covariance [K, 3] as (xx, xy, yy)."""
    weight = sums[:, 0]
    e = sums / weight.clamp_min(1e-300)[:, None]
    x, y = e[:, 1], e[:, 2]
    return weight, e[:, 1:3], torch.stack([e[:, 3] - x * x, e[:, 4] - x * y, e[:, 5] - y * y], 1)


def natural(log_pi: Tensor, mean: Tensor, cov: Tensor) -> Tensor:
    """theta [K, 6] with theta_k . phi(z) = ln pi_k + ln N(z | m_k, S_k); cov is [K, 3]."""
    xx, xy, yy = cov.unbind(1)
    det = xx * yy - xy * xy
    a, b, c = yy / det, -xy / det, xx / det  # the precision matrix
    px, py = a * mean[:, 0] + b * mean[:, 1], b * mean[:, 0] + c * mean[:, 1]
    square = px * mean[:, 0] + py * mean[:, 1]
    constant = log_pi - math.log(2 * math.pi) - 0.5 * (det.log() + square)
    return torch.stack([constant, px, py, -0.5 * a, -b, -0.5 * c], 1)


def nearest_components(tiles: Tiles, log_pi: Tensor, mean: Tensor, cov: Tensor) -> Tensor:
    """[T, C] the components of largest overlap with each tile, pi_k times the integral of N_tile N_k; all when few.

    The overlap, unlike the tile's mean log density, keeps a narrow component that matters to a few atoms only.
    """
    few = CANDIDATES + 2 * TILE * len(log_pi) // len(tiles.order)
    if len(log_pi) <= few:
        return torch.arange(len(log_pi)).expand(len(tiles.phi), -1)
    _, tile_mean, tile_cov = moments((tiles.phi * tiles.n[..., None]).sum(1))
    mean, cov, log_pi = mean.float(), cov.float(), log_pi.float()

    def fullest(at: slice) -> Tensor:
        dx, dy = (tile_mean[at, None].float() - mean).unbind(2)  # [batch, K]
        xx, xy, yy = (tile_cov[at, None].float() + cov).unbind(2)
        det = torch.maximum(xx * yy - xy * xy, 1e-6 * xx * yy)  # rounding must not make it negative
        overlap = log_pi - 0.5 * (det.log() + (yy * dx * dx - 2 * xy * dx * dy + xx * dy * dy) / det)
        return overlap.topk(few, dim=1, sorted=False).indices

    return torch.cat(spread(fullest, tiles.batches()))


def log_joint(tiles: Tiles, at: slice, theta: Tensor, near: Tensor) -> Tensor:
    """[t, TILE, C] of ln pi_k N(atom | k), the mean over each atom, for a batch of tiles and their candidates."""
    own = theta[near[at]]  # [t, C, 6]
    return torch.bmm(tiles.phi[at], own.transpose(1, 2))


def expect(tiles: Tiles, theta: Tensor, near: Tensor) -> tuple[Tensor, Tensor]:
    """The expectation step: sums of r_bk n_b phi_b [K, 6], and each tile's log-likelihood [T]."""
    batches = tiles.batches()
    length = -(-len(batches) // PARTS)
    parts = [batches[i : i + length] for i in range(0, len(batches), length)]
    sums, likelihood = zip(*spread(lambda part: _expect(tiles, theta, near, part), parts), strict=True)
    return torch.stack(sums).sum(0), torch.cat(likelihood)


def _expect(tiles: Tiles, theta: Tensor, near: Tensor, batches: list[slice]) -> tuple[Tensor, Tensor]:
    sums, likelihood = torch.zeros_like(theta), []
    for at in batches:
        joint, n = log_joint(tiles, at, theta, near), tiles.n[at]
        top = joint.amax(2, keepdim=True)
        r = (joint - top).float().exp_()  # one rounding for all six sums: nothing cancels later
        norm = r.sum(2, keepdim=True)
        likelihood.append(((top + norm.log()).squeeze(2) * n).sum(1))
        r = (r * (n[..., None] / norm).float()).double()
        sums.index_add_(0, near[at].flatten(), torch.bmm(r.transpose(1, 2), tiles.phi[at]).flatten(0, 1))
    return sums, torch.cat(likelihood)


def _along_curve(z: Tensor) -> Tensor:
    """The order of points [B, 2] along a Hilbert curve through their ranks on both axes."""
    order = z.argsort(dim=0, stable=True)
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(len(z))[:, None].expand(-1, 2))
    x, y = (rank * 65535 // max(len(z) - 1, 1)).unbind(1)
    return hilbert_index(x, y, bits=16).argsort(stable=True)


def hilbert_index(x: Tensor, y: Tensor, *, bits: int) -> Tensor:
    """Distance along the Hilbert curve of order `bits` of integer points with 0 <= x, y < 2^bits."""
    distance, last = torch.zeros_like(x), (1 << bits) - 1
    for bit in reversed(range(bits)):
        right, up = (x >> bit) & 1, (y >> bit) & 1
        distance += ((3 * right) ^ up) << (2 * bit)
        turn, mirror = up == 0, (up == 0) & (right == 1)
        x, y = torch.where(mirror, last - x, x), torch.where(mirror, last - y, y)
        x, y = torch.where(turn, y, x), torch.where(turn, x, y)
    return distance
