"""Dense weights from a Pocket, for devices without torch: means, standard deviations, draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

from pocketbayes.artifact.numbers import Array, as_numpy
from pocketbayes.artifact.pocket import (
    JSON,
    Codebook,
    Fixed,
    Normal,
    Plain,
    Pocket,
    Shared,
    Signs,
    Stochastic,
    Tied,
    noise_of,
    resolve,
)
from pocketbayes.drawing import Moments, Shape, Stream, shape_of, tensor_number
from pocketbayes.errors import ArtifactError
from pocketbayes.structure.masks import mask_from_rule, random_signs

Expand: TypeAlias = Callable[[JSON, tuple[int, ...]], Array]  # (rule, shape) -> mask, True where fixed


def expand_rule(rule: JSON, shape: tuple[int, ...]) -> Array:
    """The mask of a rule that `break_symmetry` follows."""
    return mask_from_rule({**rule, "shape": list(shape)})


class Law(NamedTuple):
    """Mean and standard deviation of every weight of a tensor; sigma is 0 where a weight is fixed."""

    mu: Array  # [*shape]
    sigma: Array  # [*shape]


def law_of(pocket: Pocket, name: str, expand: Expand = expand_rule) -> Law:
    """A stochastic tensor's dense (mu, sigma).  `expand` makes the mask of fixed weights that follow a rule."""
    entry = resolve(pocket, name)
    if isinstance(entry, Plain):
        return Law(entry.values, np.zeros(entry.shape, as_numpy(entry.dtype)))
    mu, sigma = (part.astype(as_numpy(entry.dtype)) for part in free_law(entry, pocket.codebook))
    return Law(_whole(entry, mu, name, expand), _whole(entry, sigma, name, expand, constants=0.0))


def _whole(
    entry: Stochastic, free: Array, name: str, expand: Expand, constants: Array | float | None = None
) -> Array:
    """The tensor [*shape] around its free numbers [free]; its fixed ones are their values if not given."""
    if entry.fixed is None:
        return free.reshape(entry.shape)
    mask = fixed_mask(entry.fixed, entry.shape, name, expand).reshape(-1)
    if constants is None:
        constants = fixed_values(entry.fixed, mask, entry.shape)
    values = np.empty(mask.size, free.dtype)
    values[~mask] = free
    values[mask] = constants
    return values.reshape(entry.shape)


def free_law(entry: Stochastic, codebook: Codebook | None) -> tuple[Array, Array]:
    """(mu, sigma) of the free weights, [free].

    A blend has the moments of its mixture: m = sum a_k m_k, v = sum a_k (v_k + m_k^2) - m^2.
    """
    if not isinstance(entry, Shared):
        return entry.mu, entry.sigma
    assert codebook is not None  # a Pocket with shared entries has one
    m, v = _blend(entry, codebook)
    mu = _spread(entry, codebook.mu, entry.outlier_mu, m)
    return mu, _spread(entry, codebook.sigma, entry.outlier_sigma, np.sqrt(v))


def _spread(entry: Shared, components: Array, outliers: Array, blends: Array) -> Array:
    """[free] numbers from those of the components [K], the outliers and the blends."""
    k = len(components)
    values = np.append(components, [0, 0]).astype(components.dtype)[entry.labels]
    values[entry.labels == k] = outliers
    values[entry.labels == k + 1] = blends
    return values


def _blend(entry: Shared, codebook: Codebook) -> tuple[Array, Array]:
    """Mean and variance of the blended weights, [blends]."""
    mu, sigma = (part.astype(np.float64)[entry.components] for part in (codebook.mu, codebook.sigma))
    alphas = entry.alphas.astype(np.float64)
    m = (alphas * mu).sum(1)
    return m, (alphas * (sigma**2 + (mu - m[:, None]) ** 2)).sum(1)  # the same v, without cancellation


def fixed_mask(fixed: Fixed, shape: tuple[int, ...], name: str, expand: Expand = expand_rule) -> Array:
    """[*shape] bool: True where a weight is fixed."""
    if not isinstance(fixed.mask, dict):
        return fixed.mask
    try:
        mask = np.asarray(expand(fixed.mask, shape), bool)
    except ValueError as error:
        raise ArtifactError(
            f"{name}: cannot expand the rule {fixed.mask} of its fixed weights: {error}"
        ) from error
    if mask.shape != shape or int(np.count_nonzero(mask)) != fixed.count:
        raise ArtifactError(f"{name}: the rule {fixed.mask} should fix {fixed.count} weights of {shape}")
    return mask


def fixed_values(fixed: Fixed, mask: Array, shape: tuple[int, ...]) -> Array | float:
    """The constants [fixed], or one for all."""
    values = fixed.values
    if isinstance(values, Signs):
        return np.where(values.positive, values.scale, -values.scale)
    if isinstance(fixed.mask, dict) and "signs" in fixed.mask and isinstance(values, float):
        return values * fixed_signs(fixed.mask, shape)[mask.reshape(-1)]
    return values


def fixed_signs(rule: JSON, shape: tuple[int, ...]) -> Array:
    """[size] +1 or -1 for every weight, from the seed `signs` of a rule: no bit of the file is spent on them."""
    seed, layer = rule["signs"], rule.get("layer", -1)
    if not all(type(n) is int and n >= 0 for n in (seed, layer)):
        raise ArtifactError(f"the rule {rule} needs whole numbers for its signs and its layer")
    return random_signs(shape, layer, seed).reshape(-1)


def mean_weights(pocket: Pocket, expand: Expand = expand_rule) -> dict[str, Array]:
    """Every tensor at its mean; a tied name is the same array as its owner."""
    return _each(pocket, lambda name: law_of(pocket, name, expand).mu)


def sample_weights(
    pocket: Pocket, seed: int, number: int = 0, expand: Expand = expand_rule
) -> dict[str, Array]:
    """Draw `number` of a seed: w = mu + sigma z for every tensor, the draw that torch's predictions use.

    Each tensor depends on seed, number and its name alone; see docs/format.md.
    """
    try:
        shape = shape_of(noise_of(pocket))
    except ValueError as error:
        raise ArtifactError(str(error)) from error

    def draw(name: str) -> Array:
        entry = pocket.tensors[name]
        if not isinstance(entry, Normal | Shared):
            return law_of(pocket, name).mu
        free = _draw_free(pocket, name, shape, seed, number).astype(as_numpy(entry.dtype))
        return _whole(entry, free, name, expand)

    return _each(pocket, draw)


def _draw_free(pocket: Pocket, name: str, shape: Shape, seed: int, number: int) -> Array:
    """The free weights [free] of a tensor in one draw."""
    entry = pocket.tensors[name]
    assert isinstance(entry, Normal | Shared)
    kind = as_numpy(entry.dtype)

    def drawn(tensor: str, mu: Array, sigma: Array) -> Array:
        stream = Stream(seed, number, tensor=tensor_number(tensor))
        q = Moments(mu.astype(kind), sigma.astype(kind))
        w: Array = shape.place(stream, q, shape.z(stream, q).astype(kind, copy=False))
        return w

    if not (isinstance(entry, Shared) and pocket.options.get("tied_draws", False)):
        return drawn(name, *free_law(entry, pocket.codebook))
    assert pocket.codebook is not None
    components = drawn("", pocket.codebook.mu, pocket.codebook.sigma)  # [K] one draw for each component
    outliers = drawn(name, entry.outlier_mu, entry.outlier_sigma)
    return _spread(entry, components, outliers, (entry.alphas * components[entry.components]).sum(1))


def _each(pocket: Pocket, values: Callable[[str], Array]) -> dict[str, Array]:
    owned = {name: values(name) for name, entry in pocket.tensors.items() if not isinstance(entry, Tied)}
    return {
        name: owned[entry.target] if isinstance(entry, Tied) else owned[name]
        for name, entry in pocket.tensors.items()
    }
