"""Contexts within convolution kernels: a weight resembles its neighbours.

A weight is predicted from neighbours that are already decoded, each counted as its component's mean in integer steps,

    p = 2 left + 2 up - upper left,    context = number of t in (-3s, -s, s, 3s) with p >= t.

Cells of a kernel on one anti-diagonal do not need each other and are coded together, over all kernels at once.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pocketbayes.artifact.numbers import Array

MARKS = 2  # symbols after the codebook's: the outlier and the blend
CONTEXTS = 5
MAX_LEVEL = 4095
MAX_STEP = 6825  # 3 steps reach the largest prediction, 5 * MAX_LEVEL
MAX_KERNEL = 256  # cells; a bigger one is no kernel
MIN_KERNELS = 64  # fewer would cost more time than bytes


def kernel_of(shape: Sequence[int]) -> tuple[int, int]:
    """(height, width) of a convolution's kernel, [out, in, ..., height, width]; (1, 1) for matrices."""
    if len(shape) < 3:
        return 1, 1
    height, width = (shape[-2] if len(shape) > 3 else 1), shape[-1]
    return (height, width) if 1 < height * width <= MAX_KERNEL else (1, 1)


def levels_of(mu: Array) -> NDArray[np.int16]:
    """The codebook's means in integer steps, the largest |mu| at 4095, followed by zero for outliers and blends."""
    wide = mu.astype(np.float64)
    top = float(np.abs(wide).max(initial=0.0))
    steps = np.floor(wide * MAX_LEVEL / top + 0.5) if top else np.zeros_like(wide)
    return np.append(steps, [0] * MARKS).astype(np.int16)


class Slab(NamedTuple):
    """Cells y, x of a kernel with y + x = d: none is another's neighbour, so they are coded together.

    The neighbours are columns, [cells of the slab]; the column after the last stands for everything outside.
    """

    cells: slice  # among the columns
    left: list[int]
    up: list[int]
    corner: list[int]


@functools.cache
def slabs(kernel: tuple[int, int]) -> tuple[Slab, ...]:
    cells = _cells(kernel)
    index = {cell: i for i, cell in enumerate(cells)}
    left, up, corner = (
        [index.get((y - dy, x - dx), len(cells)) for y, x in cells] for dy, dx in ((0, 1), (1, 0), (1, 1))
    )
    starts = [i for i, (y, x) in enumerate(cells) if y == 0 or x == kernel[1] - 1]
    edges = [slice(i, j) for i, j in itertools.pairwise([*starts, len(cells)])]
    return tuple(Slab(edge, left[edge], up[edge], corner[edge]) for edge in edges)


@functools.cache
def _cells(kernel: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    """(y, x) by anti-diagonals, from the top of each."""
    return tuple(sorted(np.ndindex(*kernel), key=lambda cell: (cell[0] + cell[1], cell[0])))


def columns_of(labels: Array, kernel: tuple[int, int]) -> Array:
    """Labels [kernels * height * width] as [cells in coding order, kernels]."""
    order = [y * kernel[1] + x for y, x in _cells(kernel)]
    return np.ascontiguousarray(labels.reshape(-1, len(order)).T[order])


def flat_of(columns: Array, kernel: tuple[int, int]) -> Array:
    back = np.argsort([y * kernel[1] + x for y, x in _cells(kernel)])
    return np.ascontiguousarray(columns[back].T).reshape(-1)


def predictions(levels: Array, slab: Slab) -> NDArray[np.int16]:
    """2 left + 2 up - upper left: [cells of the slab * kernels]."""
    p = levels[slab.left]
    p += levels[slab.up]
    p += p
    p -= levels[slab.corner]
    return p.reshape(-1)


def levels_at(columns: Array, levels: NDArray[np.int16]) -> NDArray[np.int16]:
    """[cells + 1, kernels], the last row zero."""
    return np.concatenate([levels[columns], np.zeros((1, columns.shape[1]), np.int16)])


def contexts(p: NDArray[np.int16], step: int) -> NDArray[np.int8]:
    context = (p >= -step).view(np.int8) + (p >= step).view(np.int8)
    context += (p >= -3 * step).view(np.int8)
    context += (p >= 3 * step).view(np.int8)
    return context
