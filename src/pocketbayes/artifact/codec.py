"""Label streams: asymmetric numeral systems over frequency tables that are integers in the file.

A layer's labels form one group, or one for each context of context.py; each group has a table, and groups share a
table where that is cheaper.  On ResNet-20 at 2.3 to 3 bits a weight, contexts save 7 to 9 % of all label bytes.

The decoder meets integers only: constriction's quantiser is given frequencies less one, whose sum is exactly what
it wants to distribute, and has nothing left to round.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import constriction
import numpy as np
from numpy.typing import NDArray

from pocketbayes.artifact.context import (
    CONTEXTS,
    MAX_STEP,
    MIN_KERNELS,
    columns_of,
    contexts,
    flat_of,
    kernel_of,
    levels_at,
    predictions,
    slabs,
)
from pocketbayes.artifact.numbers import Array
from pocketbayes.errors import ArtifactError

TOTAL = 1 << 24  # a table's probabilities are multiples of 1 / TOTAL
MAX_TABLES = 256
MAX_COUNTS = 1 << 20  # numbers in all tables
MAX_COUNT = 1 << 38  # keeps cumulative count * TOTAL within 63 bits


class LabelLayout(NamedTuple):
    """How many labels, and the kernel (height, width) they form; (1, 1) if there is none."""

    size: int
    kernel: tuple[int, int]


class Grouping(NamedTuple):
    """A layer's step s (0: one group, no context) and the table of each of its groups."""

    step: int
    tables: tuple[int, ...]


class Coded(NamedTuple):
    """Everything a decoder needs besides the layers' sizes."""

    groupings: list[Grouping]  # one for each layer
    tables: NDArray[np.uint8]  # [T, K + 2] counts as `count_of` understands them
    words: NDArray[np.uint32]  # the stream, its last word decoded first


def layer_of(shape: Sequence[int], free: int) -> LabelLayout:
    """A tensor's labels; it has kernels if no weight is fixed (that tears holes) and there are enough of them."""
    kernel = kernel_of(shape)
    whole = free == math.prod(shape) and free >= MIN_KERNELS * math.prod(kernel)
    return LabelLayout(free, kernel if whole else (1, 1))


# --- tables --------------------------------------------------------------------------------------------------


def count_of(code: Array) -> NDArray[np.int64]:
    """Codes 0..255 to counts: exact up to 15, then three bits after the leading one."""
    wide = code.astype(np.int64)
    return np.where(wide < 16, wide, (8 + (wide & 7)) << (np.maximum(wide >> 3, 1) - 1))


def code_of(count: Array) -> NDArray[np.uint8]:
    """The nearest code; a positive count never becomes zero."""
    wide = count.astype(np.int64)
    shift = np.maximum(np.frexp(wide.astype(np.float64))[1] - 4, 0)
    mantissa = (wide + ((1 << shift) >> 1)) >> shift  # 8..16
    carry = mantissa == 16
    return np.where(wide < 16, wide, ((shift + carry + 1) << 3) + np.where(carry, 0, mantissa & 7)).astype(
        np.uint8
    )


class FrequencyTable:
    """Symbols with a count, their exact frequencies, and the model constriction builds from them."""

    def __init__(self, counts: NDArray[np.int64], dtype: Any) -> None:
        used = np.flatnonzero(counts)
        sums = np.cumsum(counts[used])
        if not (used.size and 0 < sums[-1] <= MAX_COUNT):
            raise ArtifactError("frequency table: counts must sum to 1..2^38")
        edges = sums * (TOTAL - used.size) // sums[-1]
        edges[1:] -= edges[:-1].copy()
        self.alphabet = used.astype(dtype)  # [n]
        self.frequencies = edges + 1  # [n] at least 1, sum 2^24
        self.model: Any = None
        if used.size > 1:
            self.model = constriction.stream.model.Categorical(edges.astype(np.float64), perfect=False)

    def bits(self, symbols: int) -> NDArray[np.float64]:
        """-log2 probability of each of so many symbols, 0 for one that does not occur."""
        found = np.zeros(symbols)
        found[self.alphabet.astype(np.intp)] = -np.log2(self.frequencies / TOTAL)
        return found


# --- decoding ------------------------------------------------------------------------------------------------


class Decoder:
    """Takes labels off the stream, layer by layer, in the order of the file."""

    def __init__(self, coded: Coded, levels: NDArray[np.int16]) -> None:
        self.dtype = np.min_scalar_type(len(levels) - 1)  # uint8 or uint16
        self.levels = levels
        self.tables = [FrequencyTable(counts, self.dtype) for counts in count_of(coded.tables)]
        try:
            self.coder = constriction.stream.stack.AnsCoder(np.ascontiguousarray(coded.words, np.uint32))
        except ValueError as error:
            raise ArtifactError(
                f"labels: the stream is not one that an encoder ends with ({error})"
            ) from error

    def take(self, size: int, table: int) -> Array:
        """`size` labels that share a table."""
        entry = self.tables[table]
        if entry.model is None:
            return np.full(size, entry.alphabet[0], self.dtype)
        symbols: Array = self.coder.decode(entry.model, size)
        return entry.alphabet[symbols]

    def layer(self, layer: LabelLayout, grouping: Grouping) -> Array:
        """A layer's labels, flat."""
        if grouping.step == 0:
            return self.take(layer.size, grouping.tables[0])
        cells = math.prod(layer.kernel)
        columns = np.zeros((cells, layer.size // cells), self.dtype)
        levels = np.zeros((cells + 1, columns.shape[1]), np.int16)  # the last row is the outside
        for slab in slabs(layer.kernel):
            context = contexts(predictions(levels, slab), grouping.step)
            labels = columns[slab.cells].reshape(-1)  # a view
            for c, table in enumerate(grouping.tables):
                rows = np.flatnonzero(context == c)
                if rows.size:
                    labels[rows] = self.take(rows.size, table)
            levels[slab.cells] = self.levels[columns[slab.cells]]
        return flat_of(columns, layer.kernel)

    def finish(self) -> None:
        """A whole stream leaves nothing behind."""
        if not self.coder.is_empty():
            raise ArtifactError("labels: the stream goes on after the last label")


def pieces_of(
    labels: Array, layer: LabelLayout, step: int, levels: NDArray[np.int16]
) -> Iterator[tuple[Array, int]]:
    """(labels, group) in the order in which they are decoded."""
    if step == 0:
        yield labels, 0
        return
    columns = columns_of(labels, layer.kernel)
    means = levels_at(columns, levels)
    for slab in slabs(layer.kernel):
        context, flat = contexts(predictions(means, slab), step), columns[slab.cells].reshape(-1)
        yield from ((flat[context == c], c) for c in range(CONTEXTS))


def group_counts(
    labels: Array, layer: LabelLayout, step: int, levels: NDArray[np.int16]
) -> NDArray[np.int64]:
    """How often each symbol occurs in each group: [1 or 5, K + 2]."""
    counts = np.zeros((CONTEXTS if step else 1, len(levels)), np.int64)
    for piece, group in pieces_of(labels, layer, step, levels):
        counts[group] += np.bincount(piece, minlength=len(levels))
    return counts


# --- encoding ------------------------------------------------------------------------------------------------


def encode(layers: list[tuple[Array, LabelLayout]], levels: NDArray[np.int16]) -> Coded:
    """Choose contexts and tables, and write the labels of all layers as one stream."""
    steps, counts = [], []
    for labels, layer in layers:
        step, groups = choose_step(labels, layer, levels)
        steps.append(step)
        counts.append(groups)
    assigned, tables = _share_tables(
        np.concatenate(counts) if counts else np.zeros((0, len(levels)), np.int64)
    )
    groupings, start = [], 0
    for step, groups in zip(steps, counts, strict=True):
        groupings.append(Grouping(step, tuple(assigned[start : start + len(groups)])))
        start += len(groups)
    return Coded(groupings, tables, _write(layers, groupings, tables, levels))


def _write(
    layers: list[tuple[Array, LabelLayout]],
    groupings: list[Grouping],
    codes: NDArray[np.uint8],
    levels: NDArray[np.int16],
) -> NDArray[np.uint32]:
    """The stream is a stack: what is decoded first is pushed last."""
    tables = [FrequencyTable(counts, np.uint16) for counts in count_of(codes)]
    ranks = [np.cumsum(row > 0, dtype=np.int32) - 1 for row in codes]
    coder = constriction.stream.stack.AnsCoder()
    for (labels, layer), grouping in reversed(list(zip(layers, groupings, strict=True))):
        for piece, context in reversed(list(pieces_of(labels, layer, grouping.step, levels))):
            table = grouping.tables[context]
            if tables[table].model is not None and piece.size:
                coder.encode_reverse(ranks[table][piece], tables[table].model)
    words: NDArray[np.uint32] = coder.get_compressed()
    return words


def choose_step(
    labels: Array, layer: LabelLayout, levels: NDArray[np.int16]
) -> tuple[int, NDArray[np.int64]]:
    """(step, counts of its groups): half the mean |p| if five tables then cost less than one, else 0."""
    single = group_counts(labels, layer, 0, levels)
    if layer.kernel == (1, 1) or not labels.size:
        return 0, single
    means = levels_at(columns_of(labels, layer.kernel), levels)
    total = sum(int(np.abs(predictions(means, slab), dtype=np.int64).sum()) for slab in slabs(layer.kernel))
    step = max(1, min(MAX_STEP, total // (2 * labels.size)))
    split = group_counts(labels, layer, step, levels)
    return (step, split) if _cost(split).sum() < _cost(single).sum() else (0, single)


def _cost(counts: Array) -> NDArray[np.float64]:
    """Bits of labels with these counts plus those of their table, about 6 a used symbol: [groups]."""
    used = counts > 0
    total = np.maximum(counts.sum(-1, keepdims=True), 1)
    shannon = -(counts * np.log2(np.where(used, counts, total) / total)).sum(-1)
    return np.asarray(shannon + 6.0 * used.sum(-1) + 0.2 * (~used).sum(-1))


def _share_tables(groups: NDArray[np.int64]) -> tuple[list[int], NDArray[np.uint8]]:
    """(table of each group, codes [T, K + 2]): the largest first, each opens a table or joins one.

    The eight tables that code a group best are tried in earnest, so the work is linear in the groups.
    """
    symbols = groups.shape[1]
    tables = np.zeros((min(len(groups), MAX_TABLES, MAX_COUNTS // symbols), symbols), np.int64)
    logs = np.zeros(tables.shape)
    assigned, opened = np.zeros(len(groups), np.int64), 0
    for g in np.argsort(-groups.sum(1), kind="stable"):
        near = np.argsort(-(logs[:opened] @ groups[g]), kind="stable")[:8]
        extra = _cost(tables[near] + groups[g]) - _cost(tables[near])
        join = len(near) and (opened == len(tables) or extra.min() <= _cost(groups[g]))
        t = int(near[extra.argmin()]) if join else opened
        opened += 0 if join else 1
        tables[t] += groups[g]
        logs[t] = np.log2((tables[t] + 0.1) / (tables[t].sum() + 0.1 * symbols))
        assigned[g] = t
    order = np.argsort([assigned.tolist().index(t) for t in range(opened)], kind="stable")  # by first use
    rank = np.argsort(order)
    codes = code_of(tables[:opened][order])
    codes[codes.sum(1) == 0, 0] = 1  # a table of no labels still names one symbol
    return [int(rank[t]) for t in assigned], codes
