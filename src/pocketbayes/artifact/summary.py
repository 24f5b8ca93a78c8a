"""What a pocket file holds and where its bytes go, without a model."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pocketbayes.artifact import codec, context, graph, numbers
from pocketbayes.artifact.graph import Port
from pocketbayes.artifact.pocket import Entry, Plain, Pocket, Shared, Tied, free_of, size_of
from pocketbayes.artifact.reader import Parsed, parse

SECTIONS = {  # and "frame", what surrounds them: what each holds
    "HEAD": "header",
    "FREQ": "label frequencies",
    "LABL": "labels",
    "CODE": "codebook",
    "OUTL": "outliers",
    "BLND": "blends",
    "NORM": "unshared weights",
    "MASK": "masks",
    "FIXD": "fixed weights",
    "PLAN": "biases, norms",
    "PRIO": "priors",
    "XTRA": "noise tables",
    "GRAF": "network graph",
    "frame": "checksums",
}


class TensorSummary(NamedTuple):
    """One tensor of all modes; `bits` are of its labels, numbers and blends; tables, masks and priors not counted."""

    name: str
    kind: str  # plain, mean-field, shared or tied
    shape: tuple[int, ...]
    dtype: str
    bits: float
    fixed: int
    outliers: int
    blends: int
    modes: int = 1

    @property
    def bits_per_weight(self) -> float:
        return self.bits / max(1, self.modes * math.prod(self.shape))


class GraphSummary(NamedTuple):
    """The network's graph."""

    bytes: int  # of its section
    nodes: int
    opset: int
    inputs: list[Port]
    outputs: list[Port]


class Summary(NamedTuple):
    """A file at a glance."""

    version: int
    library: str
    total_bytes: int
    sections: dict[str, int]  # bytes; "frame" is what surrounds them
    codebook: int  # K
    tables: int
    modes: int
    graph: GraphSummary | None
    tensors: list[TensorSummary]
    noise: dict[str, Any]
    architecture: dict[str, Any] | str
    options: dict[str, Any]
    metadata: dict[str, Any]


def inspect(source: bytes | str | os.PathLike[str], *, max_weights: int | None = None) -> Summary:
    """Sections, bits by tensor, codebook size and notes of a pocket file."""
    parsed = parse(source, max_weights=max_weights)
    pocket = parsed.pocket
    return Summary(
        version=parsed.version,
        library=pocket.library,
        total_bytes=sum(parsed.sizes.values()),
        sections=parsed.sizes,
        codebook=pocket.codebook.components if pocket.codebook else 0,
        tables=len(parsed.coded.tables),
        modes=len(pocket.modes),
        graph=_graph(pocket),
        tensors=_tensors(parsed),
        noise=pocket.noise,
        architecture=pocket.architecture,
        options=pocket.options,
        metadata=pocket.metadata,
    )


def _graph(pocket: Pocket) -> GraphSummary | None:
    if not pocket.graph:
        return None
    found = graph.read(pocket)
    return GraphSummary(len(pocket.graph), found.nodes, found.opset, found.inputs, found.outputs)


def _tensors(parsed: Parsed) -> list[TensorSummary]:
    costs, modes = _Costs(parsed), parsed.pocket.modes
    found = [[_tensor(*item, parsed, costs) for item in tensors.items()] for tensors in modes]
    return [
        _together([tensors[each[0].name] for tensors in modes], each) for each in zip(*found, strict=True)
    ]


def _together(entries: Sequence[Entry], each: Sequence[TensorSummary]) -> TensorSummary:
    """One tensor of all modes; what stands once, counts once."""
    apart = each[: len({id(entry) for entry in entries})]
    sums = {name: sum(getattr(t, name) for t in apart) for name in ("bits", "fixed", "outliers", "blends")}
    return each[0]._replace(**sums, modes=len(apart))


def _tensor(name: str, entry: Entry, parsed: Parsed, costs: _Costs) -> TensorSummary:
    at = parsed.pocket.precision
    if isinstance(entry, Tied):
        return TensorSummary(name, f"tied to {entry.target}", (), "", 0.0, 0, 0, 0)
    if isinstance(entry, Plain):
        bits = _plain_bits(entry, at.plain)
        return TensorSummary(name, "plain", entry.shape, entry.dtype, bits, 0, 0, 0)
    kind, fixed = ("mean-field", "shared")[isinstance(entry, Shared)], size_of(entry) - free_of(entry)
    pairs = entry.outlier_mu.size if isinstance(entry, Shared) else entry.mu.size
    bits = 8.0 * (numbers.nbytes(at.mu_code, pairs) + numbers.nbytes(at.sigma_code, pairs))
    if not isinstance(entry, Shared):
        return TensorSummary(name, kind, entry.shape, entry.dtype, bits, fixed, 0, 0)
    bits += costs.of_labels(entry) + costs.of_blends(entry)
    return TensorSummary(name, kind, entry.shape, entry.dtype, bits, fixed, pairs, len(entry.alphas))


def _plain_bits(entry: Plain, usual: int) -> float:
    if numbers.constant_of(entry.values, entry.dtype) is not None:
        return 0.0
    code = numbers.plain_code(entry.values, entry.dtype, entry.bits or usual)
    return 8.0 * numbers.nbytes(code, entry.values.size)


class _Costs:
    """What the symbols of shared tensors cost under their tables: the stream is longer by less than 64 bits in all."""

    def __init__(self, parsed: Parsed) -> None:
        counts = codec.count_of(parsed.coded.tables)
        self.bits = [codec.FrequencyTable(row, np.uint16).bits(len(row)) for row in counts]  # [T][K + 2]
        self.groupings = parsed.coded.groupings
        self.layers = iter(self.groupings)
        book = parsed.pocket.codebook
        self.levels = None if book is None else context.levels_of(book.mu)

    def of_labels(self, entry: Shared) -> float:
        """Those of the next shared tensor of the file."""
        assert self.levels is not None
        grouping = next(self.layers)
        layer = codec.layer_of(entry.shape, len(entry.labels))
        pieces = codec.pieces_of(entry.labels, layer, grouping.step, self.levels)
        return sum(float(self.bits[grouping.tables[group]][labels].sum()) for labels, group in pieces)

    def of_blends(self, entry: Shared) -> float:
        """Components under their table, and all weights but the last at 16 bits."""
        if not entry.components.size:
            return 0.0
        bits = self.bits[self.groupings[-1].tables[0]]
        return float(bits[entry.components].sum()) + 16.0 * (entry.alphas.size - len(entry.alphas))
