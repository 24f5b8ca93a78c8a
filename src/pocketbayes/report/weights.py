"""The parts of a story that come from the posterior itself and from the bytes of its file."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from pocketbayes.posterior.convert import to_deterministic
from pocketbayes.posterior.gaussian import sigma_from_rho
from pocketbayes.posterior.weights import require_bayesian
from pocketbayes.report.story import Array, Cloud, Densities, WeightPlane
from pocketbayes.sharing.shared import SharedWeight

FEW = 2000  # points of each kind that are shown
MANY = 200_000  # weights that stand for all of a density
BINS = 80


@torch.no_grad()
def plane(model: nn.Module, seed: int) -> WeightPlane:
    """Components with their members, outliers, blends, and unshared weights."""
    outliers, blends, unshared, means = [], [], [], []
    components, members = None, None
    for site in require_bayesian(model):
        mu, sigma = (part.reshape(-1) for part in site.moments)
        means.append(_array(mu))
        weight = site.weight
        if not isinstance(weight, SharedWeight):
            unshared.append((mu, sigma))
            continue
        outliers.append((site.original.reshape(-1), sigma_from_rho(weight.rho)))
        at = weight.blend_position.long()
        blends.append((mu[at], sigma[at]))
        book = weight.codebook.values()
        components = Cloud(_array(book.mu), _array(book.sigma), book.components)
        count = _array(weight.derived.members)
        members = count if members is None else members + count
    rng = np.random.default_rng(seed)
    return WeightPlane(
        components,
        members,
        _cloud(outliers, FEW, rng),
        _cloud(blends, FEW, rng),
        _cloud(unshared, FEW, rng),
        _tails(np.concatenate(means), rng),
    )


def _tails(mu: Array, rng: np.random.Generator) -> tuple[float, float]:
    low, high = np.quantile(mu[_some(len(mu), MANY, rng)], [0.01, 0.99])
    return float(low), float(high)


def _cloud(parts: list[tuple[Tensor, Tensor]], most: int, rng: np.random.Generator) -> Cloud | None:
    """A sample of the weights that are random; those fixed to a constant have no place in the plane."""
    if not parts:
        return None
    mu, sigma = (np.concatenate([_array(p[i]) for p in parts]) for i in (0, 1))
    mu, sigma = mu[sigma > 0], sigma[sigma > 0]
    at = _some(len(mu), most, rng)
    return Cloud(mu[at], sigma[at], len(mu)) if len(mu) else None


@torch.no_grad()
def density(model: nn.Module, before: nn.Module | None, seed: int) -> Densities:
    """How the plain network's weights are spread, and those of one draw of the posterior."""
    names = [site.path for site in require_bayesian(model)]
    drawn = _values(to_deterministic(model, seed=seed), names, seed)
    plain = None if before is None else _values(before, names, seed)
    everything = drawn if plain is None else np.concatenate([drawn, plain])
    low, high = np.quantile(everything, [0.002, 0.998])
    if not high > low:
        low, high = low - 1e-6, high + 1e-6
    edges = np.linspace(low, high, BINS + 1)
    values = {"before": plain, "after": drawn}
    return Densities(edges, {side: _density(v, edges) for side, v in values.items() if v is not None})


def _values(model: nn.Module, names: list[str], seed: int) -> Array:
    parameters = dict(model.named_parameters(remove_duplicate=False))
    missing = [name for name in names if name not in parameters]
    if missing:
        raise ValueError(f"before: the plain network has no {missing[0]}. Give the one the file came from.")
    flat = np.concatenate([_array(parameters[name]).reshape(-1) for name in names])
    chosen: Array = flat[_some(len(flat), MANY, np.random.default_rng(seed))].astype(np.float64)
    return chosen


def _density(values: Array, edges: Array) -> Array:
    """Counts over the number of all values, so that tails beyond the edges are not forgotten."""
    counts: Array = np.histogram(values, edges)[0] / (len(values) * np.diff(edges))
    return counts


def _some(count: int, most: int, rng: np.random.Generator) -> Array | slice:
    """All places, or `most` of them at random."""
    return slice(None) if count <= most else rng.integers(count, size=most)


def _array(tensor: Tensor) -> Array:
    array: Array = tensor.detach().float().cpu().numpy()
    return array
