"""What a pocket file holds and where its bytes go, without a model."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from pocketbayes.artifact import codec, context, numbers
from pocketbayes.artifact.pocket import Entry, Plain, Shared, Tied, free_of, size_of
from pocketbayes.artifact.reader import MAX_WEIGHTS, Parsed, parse


class TensorSummary(NamedTuple):
    """One tensor; `bits` are those of its labels, numbers and blends; tables, masks and priors not counted."""

    name: str
    kind: str  # plain, mean-field, shared or tied
    shape: tuple[int, ...]
    dtype: str
    bits: float
    fixed: int
    outliers: int
    blends: int

    @property
    def bits_per_weight(self) -> float:
        return self.bits / max(1, math.prod(self.shape))


class Summary(NamedTuple):
    """A file at a glance."""

    version: int
    library: str
    total_bytes: int
    sections: dict[str, int]  # bytes; "frame" is what surrounds them
    codebook: int  # K
    tables: int
    tensors: list[TensorSummary]
    noise: dict[str, Any]
    architecture: dict[str, Any] | str
    options: dict[str, Any]
    metadata: dict[str, Any]


def inspect(source: bytes | str | os.PathLike[str], *, max_weights: int = MAX_WEIGHTS) -> Summary:
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
        tensors=_tensors(parsed),
        noise=pocket.noise,
        architecture=pocket.architecture,
        options=pocket.options,
        metadata=pocket.metadata,
    )


def _tensors(parsed: Parsed) -> list[TensorSummary]:
    groupings = iter(parsed.coded.groupings)
    return [_tensor(name, entry, parsed, groupings) for name, entry in parsed.pocket.tensors.items()]


def _tensor(name: str, entry: Entry, parsed: Parsed, groupings: Iterator[codec.Grouping]) -> TensorSummary:
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
    bits += _label_bits(entry, next(groupings), parsed) + _blend_bits(entry, parsed)
    return TensorSummary(name, kind, entry.shape, entry.dtype, bits, fixed, pairs, len(entry.alphas))


def _plain_bits(entry: Plain, usual: int) -> float:
    if numbers.constant_of(entry.values, entry.dtype) is not None:
        return 0.0
    code = numbers.plain_code(entry.values, entry.dtype, entry.bits or usual)
    return 8.0 * numbers.nbytes(code, entry.values.size)


def _label_bits(entry: Shared, grouping: codec.Grouping, parsed: Parsed) -> float:
    """What the labels cost under their tables: the stream is longer by less than 64 bits in all."""
    assert parsed.pocket.codebook is not None
    layer = codec.layer_of(entry.shape, len(entry.labels))
    levels = context.levels_of(parsed.pocket.codebook.mu)
    counts = codec.group_counts(entry.labels, layer, grouping.step, levels)
    rows = codec.count_of(parsed.coded.tables[list(grouping.tables)])
    return sum(codec.FrequencyTable(row, np.uint16).bits(c) for row, c in zip(rows, counts, strict=True))


def _blend_bits(entry: Shared, parsed: Parsed) -> float:
    """Components under their table, and all weights but the last at 16 bits."""
    if not entry.components.size:
        return 0.0
    row = codec.count_of(parsed.coded.tables[parsed.coded.groupings[-1].tables[0]])
    counts = np.bincount(entry.components.reshape(-1), minlength=len(row))
    return codec.FrequencyTable(row, np.uint16).bits(counts) + 16.0 * (entry.alphas.size - len(entry.alphas))
