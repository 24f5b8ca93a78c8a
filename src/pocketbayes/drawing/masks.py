"""Which entries of a weight tensor are fixed, from the rule of a few numbers that a file carries.

A weight matrix with D_in inputs and D_out outputs has an m x m block, m = min(D_in, D_out).  `light` fixes the
entries (r, r + 1) of the block, `heavy` its strict upper triangle, `random` as many at random places.  Layers
are counted from zero and odd ones have the block flipped upside down; the block sits in the first rows (inputs)
and the last columns (outputs).  In torch's layout the matrix is transposed, [out, in, *kernel], and a fixed
entry is a whole kernel.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

BoolArray = NDArray[np.bool_]
MaskRule = dict[str, Any]


BLOCKS = {  # [size, size]
    "light": lambda size: np.eye(size, k=1, dtype=bool),
    "heavy": lambda size: np.triu(np.ones((size, size), dtype=bool), k=1),
}


def place(block: BoolArray, inputs: int, outputs: int, layer: int) -> BoolArray:
    """[inputs, outputs]: the block, upside down in odd layers, in the first rows and last columns."""
    size = len(block)
    matrix = np.zeros((inputs, outputs), dtype=bool)
    matrix[:size, outputs - size :] = block[::-1] if layer % 2 else block
    return matrix


def scatter(count: int, inputs: int, outputs: int, layer: int, seed: int) -> BoolArray:
    """An [inputs, outputs] mask with `count` entries at random places, a function of (seed, layer) alone.

    The places come from the raw words of PCG64, which numpy promises to keep, and not from a `Generator` method,
    whose draws may change with numpy.
    """
    words = _random_words(inputs * outputs, (seed, layer, 0))
    if not count:
        return np.zeros((inputs, outputs), dtype=bool)
    last = np.partition(words, count - 1)[count - 1]
    matrix: BoolArray = words < last
    equal = np.flatnonzero(words == last)  # of equal words the first
    matrix[equal[: count - np.count_nonzero(matrix)]] = True
    return matrix.reshape(inputs, outputs)


def random_signs(shape: Sequence[int], layer: int, seed: int) -> NDArray[np.int8]:
    """A sign, +1 or -1, for each entry of a tensor, a function of (seed, layer) alone."""
    size = math.prod(shape)
    words = _random_words(-(-size // 64), (seed, layer, 1))
    bits = (words[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)  # [words, 64]
    return (1 - 2 * bits.reshape(-1)[:size].astype(np.int8)).reshape(tuple(shape))


def _random_words(count: int, key: tuple[int, ...]) -> NDArray[np.uint64]:
    return np.random.PCG64(np.random.SeedSequence(key)).random_raw(count).astype(np.uint64)


def mask_from_rule(rule: Mapping[str, Any]) -> BoolArray:
    """The mask of fixed entries, True where fixed, of shape rule["shape"].

    A rule is {"rule": "light" | "heavy" | "random", "layer": l, "shape": [out, in, *kernel]}, for "random" also
    "count" (entries of the matrix, that is kernels) and "seed"; "transposed" is True if the shape is
    [in, out, *kernel].
    """
    kind, layer, shape = rule.get("rule"), _natural(rule, "layer"), _shape(rule)
    inputs, outputs = shape[:2] if rule.get("transposed", False) else shape[1::-1]
    if not isinstance(kind, str):
        raise ValueError(f"mask rule: a rule has a name, not {reprlib.repr(kind)}.")
    if kind in BLOCKS:
        matrix = place(BLOCKS[kind](min(inputs, outputs)), inputs, outputs, layer)
    elif kind == "random":
        count, seed = _natural(rule, "count"), _natural(rule, "seed")
        if count > inputs * outputs:
            raise ValueError(f"mask rule: {count} entries cannot be fixed in a {inputs} x {outputs} matrix.")
        matrix = scatter(count, inputs, outputs, layer, seed)
    else:
        raise ValueError(
            f"mask rule: unknown rule {reprlib.repr(kind)}. Known are 'light', 'heavy' and 'random'."
        )
    oriented = matrix if rule.get("transposed", False) else matrix.T  # [shape[0], shape[1]]
    kernel = (1,) * (len(shape) - 2)
    return np.broadcast_to(oriented.reshape(*oriented.shape, *kernel), shape).copy()


def _natural(rule: Mapping[str, Any], key: str) -> int:
    value = rule.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"mask rule: {key!r} must be an integer >= 0, got {value!r}.")
    return value


def _shape(rule: Mapping[str, Any]) -> tuple[int, ...]:
    shape = rule.get("shape")
    if not isinstance(shape, list | tuple) or len(shape) < 2:
        raise ValueError(
            f"mask rule: 'shape' must list two or more sizes, [out, in, *kernel], got {shape!r}."
        )
    if any(not isinstance(size, int) or size < 1 for size in shape):
        raise ValueError(f"mask rule: 'shape' must hold positive integers, got {shape!r}.")
    return tuple(shape)
