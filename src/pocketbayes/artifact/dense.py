"""Dense weights from a Pocket, for devices without torch: means, standard deviations, draws."""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from pocketbayes.artifact.noise import noise_description, noise_shape
from pocketbayes.artifact.numbers import Array, as_numpy
from pocketbayes.artifact.pocket import (
    JSON,
    Fixed,
    MeanField,
    Plain,
    Pocket,
    Shared,
    Signs,
    Stochastic,
    Tied,
    resolve,
)
from pocketbayes.drawing import Shape, WhichDraw, WordStream, tensor_number
from pocketbayes.drawing.masks import mask_from_rule, random_signs
from pocketbayes.errors import ArtifactError
from pocketbayes.moments import Codebook, Moments

Expand: TypeAlias = Callable[[JSON, tuple[int, ...]], Array]  # (rule, shape) -> mask, True where fixed


def expand_rule(rule: JSON, shape: tuple[int, ...]) -> Array:
    """The mask of a rule that `break_symmetry` follows."""
    return mask_from_rule({**rule, "shape": list(shape)})


def moments_of(pocket: Pocket, name: str, expand: Expand = expand_rule) -> Moments[Array]:
    """A tensor's moments in its own shape; sigma is 0 where a weight is fixed.

    `expand` makes the mask of fixed weights that follow a rule.
    """
    entry = resolve(pocket, name)
    if isinstance(entry, Plain):
        return Moments(entry.values, np.zeros(entry.shape, as_numpy(entry.dtype)))
    mu, sigma = (part.astype(as_numpy(entry.dtype)) for part in free_moments(entry, pocket.codebook))
    return Moments(_whole(entry, mu, name, expand), _whole(entry, sigma, name, expand, constants=0.0))


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


def free_moments(entry: Stochastic, codebook: Codebook[Array] | None) -> Moments[Array]:
    """Those of the free weights, [free].

    A blend has the moments of its mixture: m = sum a_k m_k, v = sum a_k (v_k + m_k^2) - m^2.
    """
    if not isinstance(entry, Shared):
        return Moments(entry.mu, entry.sigma)
    assert codebook is not None  # a Pocket with shared entries has one
    outliers = entry.outlier_mu, entry.outlier_sigma
    parts = zip(codebook, outliers, _blended(entry, codebook), strict=True)
    return Moments(*(_assemble(entry.labels, *part) for part in parts))


def _assemble(labels: Array, book: Array, outliers: Array, blends: Array) -> Array:
    """Values of all free weights from those of the components, the outliers and the blends."""
    values = np.append(book, [0, 0]).astype(book.dtype)[labels]
    values[labels == len(book)] = outliers
    values[labels == len(book) + 1] = blends
    return values


def _blended(entry: Shared, codebook: Codebook[Array]) -> Moments[Array]:
    """Those of the blended weights, [blends]."""
    mu, sigma = (part.astype(np.float64)[entry.components] for part in codebook)
    alphas = entry.alphas.astype(np.float64)
    m = (alphas * mu).sum(1)
    var = (alphas * (sigma**2 + (mu - m[:, None]) ** 2)).sum(1)  # the same v, without cancellation
    return Moments(m, np.sqrt(var))


def fixed_mask(fixed: Fixed, shape: tuple[int, ...], name: str, expand: Expand = expand_rule) -> Array:
    """[*shape] bool: True where a weight is fixed."""
    if not isinstance(fixed.mask, dict):
        return fixed.mask
    try:
        mask = np.asarray(expand(fixed.mask, shape), bool)
    except ValueError as error:
        raise ArtifactError(
            f"{name}: cannot expand the rule {reprlib.repr(fixed.mask)} of its fixed weights: {error}"
        ) from error
    if mask.shape != shape or int(np.count_nonzero(mask)) != fixed.count:
        raise ArtifactError(
            f"{name}: the rule {reprlib.repr(fixed.mask)} should fix {fixed.count} weights of {shape}"
        )
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
        raise ArtifactError(f"the rule {reprlib.repr(rule)} needs whole numbers for its signs and its layer")
    return random_signs(shape, layer, seed).reshape(-1)


def mean_weights(pocket: Pocket, expand: Expand = expand_rule, *, mode: int = 0) -> dict[str, Array]:
    """Every tensor of a mode at the mean that its device gives it; a tied name is the same array as its owner."""
    pocket = pocket.mode(mode)
    shape, stream = noise_shape(noise_description(pocket)), WordStream(WhichDraw.of(0, 0), tensor=0)

    def mean(name: str) -> Array:
        entry = pocket.tensors[name]
        if not isinstance(entry, MeanField | Shared):
            return moments_of(pocket, name).mu
        kind = as_numpy(entry.dtype)
        q = Moments(*(part.astype(kind) for part in free_moments(entry, pocket.codebook)))
        return _whole(entry, shape.program(stream, q).mu.astype(kind, copy=False), name, expand)

    return _each(pocket, mean)


def sample_weights(
    pocket: Pocket, seed: int, number: int = 0, expand: Expand = expand_rule
) -> dict[str, Array]:
    """Draw `number` of a seed: w = mu + sigma z for every tensor, the draw that torch's predictions use.

    It is of mode number mod M.  Each tensor depends on seed, number and its name alone; see docs/format.md.
    """
    which = WhichDraw.of(seed, number, len(pocket.modes))
    pocket = pocket.mode(which.mode)
    shape = noise_shape(noise_description(pocket))

    def draw(name: str) -> Array:
        entry = pocket.tensors[name]
        if not isinstance(entry, MeanField | Shared):
            return moments_of(pocket, name).mu
        free = _draw_free(pocket, name, shape, which).astype(as_numpy(entry.dtype))
        return _whole(entry, free, name, expand)

    return _each(pocket, draw)


def _draw_free(pocket: Pocket, name: str, shape: Shape, which: WhichDraw) -> Array:
    """The free weights [free] of a tensor in one draw."""
    entry = pocket.tensors[name]
    assert isinstance(entry, MeanField | Shared)
    kind = as_numpy(entry.dtype)

    def drawn(tensor: str, mu: Array, sigma: Array) -> Array:
        stream = WordStream(which, tensor=tensor_number(tensor))
        q = Moments(mu.astype(kind), sigma.astype(kind))
        with np.errstate(over="ignore"):  # in a narrow type, a draw far out may be infinite
            w: Array = shape.place(stream, q, shape.z(stream, q).astype(kind, copy=False))
        return w

    if not (isinstance(entry, Shared) and pocket.options.get("tied_draws", False)):
        return drawn(name, *free_moments(entry, pocket.codebook))
    assert pocket.codebook is not None
    components = drawn("", pocket.codebook.mu, pocket.codebook.sigma)  # [K] one draw for each component
    outliers = drawn(name, entry.outlier_mu, entry.outlier_sigma)
    return _assemble(entry.labels, components, outliers, (entry.alphas * components[entry.components]).sum(1))


def _each(pocket: Pocket, values: Callable[[str], Array]) -> dict[str, Array]:
    owned = {name: values(name) for name, entry in pocket.tensors.items() if not isinstance(entry, Tied)}
    return {
        name: owned[entry.target] if isinstance(entry, Tied) else owned[name]
        for name, entry in pocket.tensors.items()
    }
