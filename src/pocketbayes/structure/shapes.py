"""Which functions keep neurons where they are, and where they go when axes are cut, joined, moved or padded."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from pocketbayes.structure.network import Cell

ADVICE = "Pass layers=[names in order] or layers={name: (stream read, stream written), ...} instead."
Cells = tuple[Cell | None, ...]

# Elementwise, or over pixels, tokens and batch alone: each neuron stays itself.  Names are those of functions and,
# in lower case, of modules, without underscores and dimensions (1d ...).  Odd functions let a sign through.
ODD_FUNCTIONS = frozenset(
    {"tanh", "softsign", "tanhshrink", "hardshrink", "softshrink", "sin", "sinh", "asinh", "atan", "erf"}
    | {"neg", "sign", "identity", "dropout", "contiguous", "clone", "detach", "to", "float", "double", "half"}
    | {"avgpool", "adaptiveavgpool", "interpolate", "upsample"}
    | {"zeropad", "reflectionpad", "replicationpad", "circularpad"}
)
OTHER_FUNCTIONS = frozenset(
    {"relu", "relu6", "leakyrelu", "prelu", "rrelu", "elu", "selu", "celu", "gelu", "silu", "mish"}
    | {"sigmoid", "hardsigmoid", "hardswish", "logsigmoid", "softplus", "softmin", "softmax", "logsoftmax"}
    | {"threshold", "exp", "abs", "square", "sqrt", "rsqrt", "log", "log1p", "pow"}
    | {"alphadropout", "maxpool", "adaptivemaxpool", "lppool"}
)
CLIPS = frozenset({"hardtanh", "clamp", "clip"})  # odd if their limits are


class Untraceable(Exception):
    """Neurons that cannot be followed, and why."""


@dataclass(frozen=True)
class Stream:
    """Where the neurons of a tensor are.  None is a channel of zeros; `spread` channels fill a run of positions."""

    cells: Cells
    axis: int  # of the neurons, counted from the end
    rank: int | None  # number of axes, batch included, where it is known
    spread: bool = False


def is_odd(name: str, limits: tuple[Any, ...] = ()) -> bool:
    """Whether f(-x) = -f(x), for a function that keeps each neuron where it is."""
    name = re.sub(r"[123]d$", "", name)
    if name not in ODD_FUNCTIONS | OTHER_FUNCTIONS | CLIPS:
        raise Untraceable(f"{name} cannot be followed.")
    if name in CLIPS:
        return bool(limits[0] == -limits[1]) if len(limits) == 2 else name == "hardtanh" and not limits
    return name in ODD_FUNCTIONS


def rank_of(stream: Stream) -> int:
    if stream.rank is None:
        raise Untraceable(
            "the number of axes of its input is not known. Pass example=, one batch of inputs, or:"
        )
    return stream.rank


def channel(stream: Stream) -> int:
    """The axis of the neurons, counted from the front."""
    return rank_of(stream) + stream.axis


def index_of(stream: Stream, dim: int) -> int:
    """An axis counted from the front."""
    return dim % rank_of(stream)


def numbered(cells: Cells) -> Cells:
    """The same neurons, those that appear again told apart by a slot."""
    seen: Counter[Cell | None] = Counter()
    result: list[Cell | None] = []
    for cell in cells:
        copy = seen[cell]
        result.append(cell if copy == 0 or cell is None else (cell[0], (*cell[1], -copy)))
        seen[cell] += 1
    return tuple(result)


def _placed(stream: Stream, axes: Sequence[int | None]) -> Stream:
    """The stream when its axes are these old ones, in this order (None: a new axis)."""
    if channel(stream) not in axes:
        raise Untraceable("it takes away the axis of the neurons.")
    return replace(stream, axis=axes.index(channel(stream)) - len(axes), rank=len(axes))


def flatten(stream: Stream, start_dim: int = 0, end_dim: int = -1) -> Stream:
    """Axes start_dim .. end_dim become one; a channel then fills a run of consecutive positions."""
    rank, start, end = rank_of(stream), index_of(stream, start_dim), index_of(stream, end_dim)
    if start < channel(stream) <= end:
        raise Untraceable("it mixes the neurons with the axes before them.")
    kept: list[int | None] = [axis for axis in range(rank) if not start < axis <= end]
    return replace(_placed(stream, kept), spread=stream.spread or (start == channel(stream) and end > start))


def view(stream: Stream, *sizes: Any) -> Stream:
    """Only the view that flattens everything behind the batch: view(n, -1)."""
    sizes = tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], list | tuple) else sizes
    if len(sizes) != 2 or channel(stream) != 1:
        raise Untraceable(f"only views of two axes, [batch, values], can be followed, not {len(sizes)}.")
    return flatten(stream, 1)


def mean(stream: Stream, dim: Any = None, keepdim: bool = False, **_: Any) -> Stream:
    """Average or sum over axes other than the neurons'."""
    if dim is None:
        raise Untraceable("it averages over the neurons.")
    gone = {index_of(stream, d) for d in (dim if isinstance(dim, list | tuple) else [dim])}
    if channel(stream) in gone:
        raise Untraceable("it averages over the neurons.")
    return stream if keepdim else _placed(stream, [d for d in range(rank_of(stream)) if d not in gone])


def squeeze(stream: Stream, dim: Any = None) -> Stream:
    """Without the axes `dim`, or without all pixel axes, which must then have size one."""
    if dim is None:
        return _placed(stream, [0, channel(stream)])
    return mean(stream, dim)


def unsqueeze(stream: Stream, dim: int) -> Stream:
    axes: list[int | None] = list(range(rank_of(stream)))
    axes.insert(dim % (len(axes) + 1), None)
    return _placed(stream, axes)


def transpose(stream: Stream, first: int, second: int) -> Stream:
    axes: list[int | None] = list(range(rank_of(stream)))
    first, second = index_of(stream, first), index_of(stream, second)
    axes[first], axes[second] = axes[second], axes[first]
    return _placed(stream, axes)


def permute(stream: Stream, *dims: Any) -> Stream:
    dims = tuple(dims[0]) if len(dims) == 1 and isinstance(dims[0], list | tuple) else dims
    return _placed(stream, [index_of(stream, d) for d in dims])


def getitem(stream: Stream, index: Any) -> Stream:
    """Numbers and slices; only a slice may cut the neurons' axis."""
    items = list(index) if isinstance(index, tuple) else [index]
    rank = rank_of(stream)
    used = sum(item is not None and item is not Ellipsis for item in items)
    full = [slice(None)] * (rank - used)
    at = items.index(Ellipsis) if Ellipsis in items else len(items)
    items = items[:at] + full + items[at + 1 :]
    axes: list[int | None] = []
    cells, axis = stream.cells, 0
    for item in items:
        if not (item is None or isinstance(item, int | slice)):
            raise Untraceable("only numbers and slices can be followed as an index.")
        if isinstance(item, slice) and axis == channel(stream):
            cells = _cut(stream, item)
        if not isinstance(item, int):
            axes.append(None if item is None else axis)
        axis += item is not None
    return replace(_placed(stream, axes), cells=cells)


def _cut(stream: Stream, cut: slice) -> Cells:
    if cut == slice(None):
        return stream.cells
    if stream.spread:
        raise Untraceable("it cuts through flattened channels.")
    return stream.cells[cut]


def chunk(stream: Stream, chunks: int, dim: int = 0) -> tuple[Stream, ...]:
    count = len(stream.cells)
    return split(stream, -(-count // chunks), dim)


def split(stream: Stream, size: Any, dim: int = 0) -> tuple[Stream, ...]:
    """Pieces along the neurons' axis."""
    if index_of(stream, dim) != channel(stream) or stream.spread:
        raise Untraceable("only pieces along the axis of the neurons can be followed.")
    count = len(stream.cells)
    sizes = list(size) if isinstance(size, list | tuple) else [size] * -(-count // size)
    ends = [sum(sizes[:number]) for number in range(len(sizes) + 1)]
    return tuple(replace(stream, cells=stream.cells[a:b]) for a, b in pairwise(ends))


def pad(stream: Stream, pads: Sequence[int], mode: str = "constant", value: float | None = None) -> Stream:
    """Zeros around pixels, or new channels of zeros before and after the others."""
    place = -stream.axis - 1  # pads come in pairs from the last axis on
    before, after = (*pads, 0, 0)[2 * place : 2 * place + 2] if 2 * place < len(pads) else (0, 0)
    if mode == "constant" and value:
        raise Untraceable("only padding with zeros can be followed.")
    if (before or after) and (stream.spread or mode != "constant" or before < 0 or after < 0):
        raise Untraceable("only new channels of zeros can be followed.")
    return replace(stream, cells=(None,) * before + stream.cells + (None,) * after)


_ALL = (flatten, view, mean, squeeze, unsqueeze, transpose, permute, getitem, chunk, split, pad)
MOVES: dict[str, Callable[..., Any]] = {move.__name__: move for move in _ALL}
MOVES |= {"reshape": view, "sum": mean}
