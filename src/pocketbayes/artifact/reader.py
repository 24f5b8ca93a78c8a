"""The bytes of a pocket file as a Pocket.  Needs numpy and constriction only."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from pocketbayes.artifact import codec, context, header, numbers
from pocketbayes.artifact.container import (
    MAX_HEADER,
    disassemble,
    inflate,
    read_file,
    sizes_of,
    version_of,
)
from pocketbayes.artifact.header import HeaderRow
from pocketbayes.artifact.noise import check_noise
from pocketbayes.artifact.numbers import Array
from pocketbayes.artifact.pocket import (
    ALPHA_STEPS,
    Entry,
    Fixed,
    MeanField,
    Plain,
    Pocket,
    Prior,
    Shared,
    Signs,
    Tied,
    check,
    check_moments,
)
from pocketbayes.errors import ArtifactError
from pocketbayes.moments import Codebook, Moments

MAX_WEIGHTS = 1 << 28
FREE_WEIGHTS, PER_BYTE = 1 << 20, 256  # without `max_weights`, what a file may unfold to


def allowed(length: int, max_weights: int | None = None) -> int:
    """How many elements a file of `length` bytes may have: an honest one spends a bit on a few of them."""
    return min(MAX_WEIGHTS, FREE_WEIGHTS + PER_BYTE * length) if max_weights is None else max_weights


class Parsed(NamedTuple):
    """A file taken apart: what it means, and how its labels were coded."""

    pocket: Pocket
    coded: codec.Coded
    sizes: dict[str, int]  # bytes by section
    version: int  # of the format


def decode(source: bytes | str | os.PathLike[str], *, max_weights: int | None = None) -> Pocket:
    """The Pocket in a file, or in its bytes.  Raises ArtifactError for anything but a whole, sane file.

    Time and memory are bounded by the file's length and `max_weights` elements: about 0.1 us and 32 bytes for each.
    By default, a file may have 2^20 elements and 256 more for each of its bytes, at most 2^28.
    """
    return parse(source, max_weights=max_weights).pocket


def parse(source: bytes | str | os.PathLike[str], *, max_weights: int | None = None) -> Parsed:
    """What `decode` gives, with the tables of the label streams and the sizes of the sections."""
    data, where = (source, "data") if isinstance(source, bytes) else (read_file(source), str(source))
    parts = disassemble(data, where)
    head = read_header(parts, len(data), where, max_weights)
    reader = _Reader(parts, head, where)
    codebook = reader.codebook()
    coded, labels, components = reader.labels(codebook)
    streams = zip(labels, components, strict=True)
    modes = [{row.name: reader.entry(row, codebook, streams) for row in rows} for rows in head.modes]
    extras = {row.name: reader.plain("XTRA", row).values for row in head.extras}
    reader.finish()
    pocket = Pocket(
        tensors=modes[0],
        others=tuple(modes[1:]),
        codebook=codebook,
        extras=extras,
        precision=head.precision,
        graph=bytes(parts.get("GRAF", b"")),
        **head.notes,
    )
    check(pocket)
    check_noise(pocket)
    return Parsed(pocket, coded, sizes_of(len(data), parts), version_of(data))


def read_header(
    parts: Mapping[str, memoryview], length: int, where: str, max_weights: int | None = None
) -> header.Header:
    """The header of a file of that length, checked before anything else is read."""
    text = inflate(parts.get("HEAD", b""), MAX_HEADER, f"{where}, header")
    return header.parse(text, allowed(length, max_weights))


class _Reader:
    """Takes arrays off the sections, front to back."""

    def __init__(self, parts: dict[str, memoryview], head: header.Header, where: str) -> None:
        masks = sum((row.size + 7) // 8 for row in head.rows if row.masked)
        self.parts: dict[str, bytes | memoryview] = dict(parts)
        self.parts["MASK"] = inflate(parts.get("MASK", b""), masks, f"{where}, MASK")
        self.offset = dict.fromkeys(self.parts, 0)
        self.offset |= {tag: len(parts.get(tag, b"")) for tag in ("HEAD", "GRAF")}  # read elsewhere
        self.head, self.where = head, where
        self.common: dict[str, Plain] = {}  # to all modes

    def take(self, tag: str, size: int, what: str) -> bytes | memoryview:
        """The next `size` bytes of a section."""
        part, start = self.parts.get(tag, b""), self.offset.get(tag, 0)
        if start + size > len(part):
            raise ArtifactError(f"{self.where}: section {tag} ends within {what}")
        self.offset[tag] = start + size
        return part[start : start + size]

    def array(self, tag: str, code: str, shape: tuple[int, ...], dtype: str, what: str) -> Array:
        data = self.take(tag, numbers.nbytes(code, math.prod(shape)), what)
        return numbers.read(data, code, shape, dtype, f"{self.where}, {what}")

    def numbers(self, tag: str, code: str, size: int, what: str) -> Array:
        """Floats in the type that holds them all, [size]."""
        return self.array(tag, code, (size,), "float64" if code == "f8" else "float32", what)

    def finish(self) -> None:
        for tag, part in self.parts.items():
            if self.offset.get(tag, 0) != len(part):
                raise ArtifactError(
                    f"{self.where}: section {tag} has {len(part) - self.offset[tag]} bytes too many"
                )

    def moments(self, tag: str, size: int, what: str) -> Moments[Array]:
        at = self.head.precision
        return Moments(*(self.numbers(tag, code, size, what) for code in (at.mu_code, at.sigma_code)))

    def codebook(self) -> Codebook[Array] | None:
        if not self.head.codebook:
            return None
        book = Codebook(*self.moments("CODE", self.head.codebook, "the codebook"))
        check_moments(*book, self.head.codebook, f"{self.where}, codebook")  # contexts depend on it
        return book

    def labels(self, codebook: Codebook[Array] | None) -> tuple[codec.Coded, list[Array], list[Array]]:
        """(tables, labels of each shared tensor of each mode, components of its blends [blends, k])."""
        rows = [row for row in self.head.rows if row.kind == "s"]
        if codebook is None:
            if rows:
                raise ArtifactError(f"{self.where}: {rows[0].name} is shared, but there is no codebook")
            return codec.Coded([], np.zeros((0, 0), np.uint8), np.zeros(0, np.uint32)), [], []
        layers = [codec.layer_of(row.shape, row.free) for row in rows]
        blended = any(row.blend for row in rows)
        coded = self._coded(layers + [codec.LabelLayout(0, (1, 1))] * blended)
        decoder = codec.Decoder(coded, context.levels_of(codebook.mu))
        labels = [decoder.layer(layer, g) for layer, g in zip(layers, coded.groupings, strict=False)]
        counts = [int(np.count_nonzero(part == codebook.components + 1)) for part in labels]
        components = [np.zeros((0, 0), decoder.dtype)] * len(rows)
        if blended:
            self._check_blends(rows, counts)
            sizes = [count * row.blend for count, row in zip(counts, rows, strict=True)]
            together = decoder.take(sum(sizes), coded.groupings[-1].tables[0])
            pieces = np.split(together, list(itertools.accumulate(sizes))[:-1])
            components = [
                part.reshape(count, row.blend) for part, count, row in zip(pieces, counts, rows, strict=True)
            ]
        decoder.finish()
        return coded, labels, components

    def _check_blends(self, rows: list[HeaderRow], counts: list[int]) -> None:
        """Before components are taken off the stream: their weights must be there."""
        need = sum(2 * count * max(row.blend - 1, 0) for count, row in zip(counts, rows, strict=True))
        if need != len(self.parts.get("BLND", b"")):
            raise ArtifactError(f"{self.where}: section BLND should have {need} bytes")

    def _coded(self, layers: list[codec.LabelLayout]) -> codec.Coded:
        """Steps, table numbers and tables of these layers, and the stream's words."""
        symbols, count = self.head.codebook + context.MARKS, self.head.tables
        limit = (2 + context.CONTEXTS) * len(layers) + symbols * count
        data = inflate(self.parts.get("FREQ", b""), limit, f"{self.where}, FREQ")
        self.offset["FREQ"] = len(self.parts.get("FREQ", b""))
        groupings, start = [], 0
        for layer in layers:
            step = int.from_bytes(data[start : start + 2], "little")
            ids = tuple(data[start + 2 : start + 2 + (context.CONTEXTS if step else 1)])
            start += 2 + len(ids)
            if step > context.MAX_STEP or (step and layer.kernel == (1, 1)) or not ids or max(ids) >= count:
                raise ArtifactError(f"{self.where}: section FREQ gives a layer step {step} and tables {ids}")
            groupings.append(codec.Grouping(step, ids))
        if len(data) != start + symbols * count:
            raise ArtifactError(
                f"{self.where}: section FREQ does not hold {count} tables of {symbols} symbols"
            )
        tables = np.frombuffer(data, np.uint8, offset=start).reshape(symbols, count).T
        return codec.Coded(groupings, np.ascontiguousarray(tables), self._words())

    def _words(self) -> Array:
        part = self.parts.get("LABL", b"")
        if len(part) % 4:
            raise ArtifactError(f"{self.where}: section LABL is not made of 32-bit words")
        self.offset["LABL"] = len(part)
        return np.frombuffer(part, "<u4")

    def entry(
        self, row: HeaderRow, codebook: Codebook[Array] | None, streams: Iterator[tuple[Array, Array]]
    ) -> Entry:
        if row.kind == "t":
            return Tied(target=row.target)
        if row.kind == "p":
            return self.plain("PLAN", row)
        if row.kind == "c":
            if row.name not in self.common:
                self.common[row.name] = self.plain("PLAN", row)
            return self.common[row.name]
        if row.kind == "n":
            mu, sigma = self.moments("NORM", row.free, row.name)
            return MeanField(shape=row.shape, mu=mu, sigma=sigma, dtype=row.dtype, **self.parts_of(row))
        labels, components = next(streams)
        k = self.head.codebook
        mu, sigma = self.moments("OUTL", int(np.count_nonzero(labels == k)), row.name)
        return Shared(
            shape=row.shape,
            labels=labels,
            outlier_mu=mu,
            outlier_sigma=sigma,
            components=components,
            alphas=self.alphas(components.shape, row.name),
            dtype=row.dtype,
            **self.parts_of(row),
        )

    def plain(self, tag: str, row: HeaderRow) -> Plain:
        if row.constant is not None:
            values = np.full(row.shape, row.constant, numbers.as_numpy(row.dtype))
            return Plain(values=values, dtype=row.dtype)
        values = self.array(tag, row.code, row.shape, row.dtype, row.name)
        if row.code[0] in "hp" and not np.isfinite(values).all():
            raise ArtifactError(f"{self.where}: {row.name} has a short float that is not finite")
        usual = not numbers.is_float(row.dtype) or row.code == f"h{self.head.precision.plain}"
        usual = usual or row.code == numbers.plain_code(values, row.dtype, self.head.precision.plain)
        return Plain(values=values, dtype=row.dtype, bits=None if usual else numbers.bits_of(row.code))

    def alphas(self, shape: tuple[int, int], name: str) -> Array:
        if not shape[0]:
            return np.zeros(shape, np.float32)
        steps = self.array("BLND", "u2", (shape[0], shape[1] - 1), "int64", name)
        last = ALPHA_STEPS - steps.sum(1, keepdims=True)
        if (last < 0).any():
            raise ArtifactError(f"{self.where}: {name} has a blend whose weights exceed one")
        return (np.concatenate([steps, last], axis=1) / ALPHA_STEPS).astype(np.float32)

    def parts_of(self, row: HeaderRow) -> dict[str, Any]:
        """The fixed weights and the prior of a stochastic tensor."""
        return {"fixed": self.fixed(row), "prior": self.prior(row)}

    def fixed(self, row: HeaderRow) -> Fixed | None:
        found = row.more.get("fixed")
        if found is None:
            return None
        count = int(found["count"])
        mask = found["rule"] if "rule" in found else self.array("MASK", "t1", row.shape, "bool", row.name)
        if "signs" in found:
            signs = self.array("FIXD", "t1", (count,), "bool", row.name)
            values: float | Signs | Array = Signs(scale=found["signs"], positive=signs)
        elif "code" in found:
            values = self.numbers("FIXD", found["code"], count, row.name)
        else:
            values = float(found["value"])
        fixed = Fixed(mask=mask, values=values, count=count)
        if fixed.count != count:
            raise ArtifactError(
                f"{self.where}: {row.name} says {count} fixed weights, its mask has {fixed.count}"
            )
        return fixed

    def prior(self, row: HeaderRow) -> Prior | None:
        found = row.more.get("prior")
        if found is None:
            return None
        parts = {
            key: value if isinstance(value, float) else self.numbers("PRIO", value, row.free, row.name)
            for key, value in found.items()
        }
        return Prior(**parts)
