"""A second reader, written from docs/format.md with struct and numpy alone, and a file put together by hand."""

from __future__ import annotations

import hashlib
import json
import math
import struct
import zlib
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
from artifact_pockets import pockets, same, small_pocket
from hypothesis import given, settings

from pocketbayes.artifact import Codebook, MeanField, Plain, Pocket, Shared, Signs, Tied, decode, encode


class SpecReader:
    """Reads a file as the specification tells, one weight at a time."""

    def __init__(self, data: bytes) -> None:
        magic, version, length, count = struct.unpack("<4sIQI", data[:20])
        assert (magic, version, length) == (b"PKTB", 2, len(data))
        assert hashlib.sha256(data[:-32]).digest() == data[-32:]
        offset, self.section = 20 + 16 * count, {}
        for i in range(count):
            tag, size, crc = struct.unpack("<4sQI", data[20 + 16 * i : 36 + 16 * i])
            self.section[tag.decode()] = data[offset : offset + size]
            assert zlib.crc32(data[offset : offset + size]) == crc
            offset += size
        assert offset == len(data) - 32
        for tag in ("HEAD", "FREQ", "MASK"):
            if tag in self.section:
                packed = self.section[tag]
                self.section[tag] = zlib.decompress(packed[4:])
                assert struct.unpack("<I", packed[:4])[0] == len(self.section[tag])
        self.head = json.loads(self.section.pop("HEAD"))
        _, mu, sigma = self.head["precision"]
        self.mu_code = f"h{mu}" if mu <= 16 else f"f{mu // 8}"
        self.sigma_code = f"p{sigma}" if sigma <= 16 else f"f{sigma // 8}"

    def take(self, tag: str, code: str, n: int) -> list[Any]:
        kind, width = code[0], int(code[1:])
        if kind in "thp":
            if n == 0:
                return []
            shift = struct.unpack("<b", self.cut(tag, 1))[0] if kind == "h" else 0
            bits = "".join(f"{byte:08b}" for byte in self.cut(tag, -(-n * width // 8)))
            patterns = [int(bits[width * i : width * (i + 1)], 2) for i in range(n)]
            if kind == "t":
                return [p == 1 for p in patterns]
            if kind == "h":
                return [
                    struct.unpack("<e", struct.pack("<H", p << (16 - width)))[0] * 2.0**shift
                    for p in patterns
                ]
            return [struct.unpack("<f", struct.pack("<I", p << (31 - width)))[0] for p in patterns]
        raw = self.cut(tag, width * n)
        if kind == "b":
            return [struct.unpack("<f", b"\0\0" + raw[2 * i : 2 * i + 2])[0] for i in range(n)]
        letter = {
            "f2": "e",
            "f4": "f",
            "f8": "d",
            "c8": "f",
            "c16": "d",
            "i1": "b",
            "i2": "h",
            "i4": "i",
            "i8": "q",
        }
        letter |= {"u1": "B", "u2": "H", "u4": "I", "u8": "Q"}
        flat = struct.unpack(f"<{n * (2 if kind == 'c' else 1)}{letter[code]}", raw)
        return [complex(*flat[2 * i : 2 * i + 2]) for i in range(n)] if kind == "c" else list(flat)

    def cut(self, tag: str, size: int) -> bytes:
        part = self.section.get(tag, b"")
        assert len(part) >= size
        self.section[tag] = part[size:]
        return part[:size]

    def law(self, tag: str, n: int) -> tuple[list[float], list[float]]:
        return self.take(tag, self.mu_code, n), self.take(tag, self.sigma_code, n)

    def read(self) -> dict[str, Any]:
        k = self.head.get("codebook", 0)
        self.book = self.law("CODE", k)
        modes = [
            [self.of_mode(row, m) for row in self.head["tensors"]] for m in range(self.head.get("modes", 1))
        ]
        shared = [row for rows in modes for row in rows if row[1] == "s"]
        streams = iter(zip(*self.labels(shared, k), strict=True) if k else ())
        found: list[dict[str, Any]] = []
        for rows in modes:
            found.append({})
            for row in rows:
                common = row[1] == "c" and len(found) > 1
                found[-1][row[0]] = found[0][row[0]] if common else self.tensor(row, k, streams)
        extras = {row[0]: self.plain("XTRA", row) for row in self.head.get("extras", [])}
        assert not any(self.section.values())
        return {"modes": found, "extras": extras, "codebook": self.book}

    @staticmethod
    def of_mode(row: list[Any], mode: int) -> list[Any]:
        return [*row[:4], row[4][mode]] if len(row) == 5 and isinstance(row[4], list) else row

    def plain(self, tag: str, row: list[Any]) -> list[Any]:
        size = math.prod(row[2])
        return self.take(tag, row[4], size) if isinstance(row[4], str) else [row[4]] * size

    def tensor(self, row: list[Any], k: int, streams: Iterator[Any]) -> dict[str, Any]:
        kind = row[1]
        if kind == "t":
            return {"target": row[2]}
        if kind in "pc":
            return {"values": self.plain("PLAN", row)}
        more = row[4] if len(row) == 5 else {}
        found: dict[str, Any] = {}
        if kind == "s":
            labels, components = next(streams)
            found = {"labels": labels, "components": components}
            found["outliers"] = self.law("OUTL", labels.count(k))
            found["alphas"] = [self.weights(more["blend"]) for _ in components]
        else:
            found["law"] = self.law("NORM", self.free(row))
        if "fixed" in more:
            fixed = more["fixed"]
            found["mask"] = fixed.get("rule") or self.take("MASK", "t1", math.prod(row[2]))
            if "signs" in fixed:
                found["fixed"] = [
                    fixed["signs"] * (1 if s else -1) for s in self.take("FIXD", "t1", fixed["count"])
                ]
            else:
                found["fixed"] = (
                    self.take("FIXD", fixed["code"], fixed["count"]) if "code" in fixed else fixed["value"]
                )
        for part, value in more.get("prior", {}).items():
            found[f"prior {part}"] = (
                value if isinstance(value, float) else self.take("PRIO", value, self.free(row))
            )
        return found

    def weights(self, k: int) -> list[float]:
        steps = self.take("BLND", "u2", k - 1)
        return [step / 65535 for step in [*steps, 65535 - sum(steps)]]

    def free(self, row: list[Any]) -> int:
        return math.prod(row[2]) - (row[4].get("fixed", {}).get("count", 0) if len(row) == 5 else 0)

    def labels(self, shared: list[Any], k: int) -> tuple[list[list[int]], list[list[list[int]]]]:
        blend = [row[4].get("blend", 0) if len(row) == 5 else 0 for row in shared]
        groups = []
        for _ in range(len(shared) + any(blend)):
            (step,) = struct.unpack("<H", self.cut("FREQ", 2))
            groups.append((step, list(self.cut("FREQ", 5 if step else 1))))
        count = self.head.get("tables", 0)
        codes = np.frombuffer(self.cut("FREQ", count * (k + 2)), np.uint8).reshape(k + 2, count)
        self.edges = [self.table([int(c) for c in codes[:, t]]) for t in range(count)]
        raw = self.cut("LABL", len(self.section.get("LABL", b"")))
        self.words = list(struct.unpack(f"<{len(raw) // 4}I", raw))
        self.state = 0
        while self.words and self.state < 2**32:
            self.state = self.state * 2**32 + self.words.pop()
        labels = [self.layer(row, *group) for row, group in zip(shared, groups, strict=False)]
        components = [
            [[self.label(groups[-1][1][0]) for _ in range(size)] for _ in range(found.count(k + 1))]
            for found, size in zip(labels, blend, strict=True)
        ]
        assert (self.state, self.words) == (0, [])
        return labels, components

    @staticmethod
    def table(codes: list[int]) -> tuple[list[int], list[int]]:
        counts = [c if c < 16 else (8 + c % 8) << (c // 8 - 1) for c in codes]
        symbols = [i for i, c in enumerate(counts) if c]
        total, n, sums, edges = sum(counts), len(symbols), 0, [0]
        for j, symbol in enumerate(symbols):
            sums += counts[symbol]
            edges.append(j + 1 + math.floor(Fraction(sums * (2**24 - n), total)))
        return symbols, edges

    def label(self, table: int) -> int:
        symbols, edges = self.edges[table]
        if len(symbols) == 1:
            return symbols[0]
        q = self.state % 2**24
        j = next(j for j in range(len(symbols)) if edges[j] <= q < edges[j + 1])
        self.state = (self.state // 2**24) * (edges[j + 1] - edges[j]) + q - edges[j]
        if self.state < 2**32 and self.words:
            self.state = self.state * 2**32 + self.words.pop()
        return symbols[j]

    def layer(self, row: list[Any], step: int, tables: list[int]) -> list[int]:
        if step == 0:
            return [self.label(tables[0]) for _ in range(self.free(row))]
        shape = row[2]
        height, width = (shape[-2] if len(shape) > 3 else 1), shape[-1]
        kernels = math.prod(shape) // (height * width)
        grid = np.zeros((kernels, height, width), int)
        top = max(abs(mu) for mu in self.book[0])
        level = [math.floor(mu * 4095 / top + 0.5) if top else 0 for mu in self.book[0]] + [0, 0]
        for d in range(height + width - 1):
            cells = [(r, y, d - y) for y in range(height) if 0 <= d - y < width for r in range(kernels)]
            contexts = [self.context(grid, cell, level, step) for cell in cells]
            for c in range(5):
                for cell, found in zip(cells, contexts, strict=True):
                    if found == c:
                        grid[cell] = self.label(tables[c])
        return [int(label) for label in grid.reshape(-1)]

    @staticmethod
    def context(grid: np.ndarray, cell: tuple[int, int, int], level: list[int], step: int) -> int:
        r, y, x = cell
        at = lambda i, j: level[grid[r, i, j]] if i >= 0 and j >= 0 else 0  # noqa: E731
        p = 2 * at(y, x - 1) + 2 * at(y - 1, x) - at(y - 1, x - 1)
        return sum(t <= p for t in (-3 * step, -step, step, 3 * step))


def compare(pocket: Pocket, found: dict[str, Any]) -> None:
    """Our decoder and the specification's agree bit by bit."""
    items = [
        (name, mode, entry) for mode, tensors in enumerate(pocket.modes) for name, entry in tensors.items()
    ]
    assert len(found["modes"]) == len(pocket.modes)
    for name, mode, entry in items:
        other = found["modes"][mode][name]
        if isinstance(entry, Tied):
            assert other["target"] == entry.target
        elif isinstance(entry, Plain):
            assert same(entry.values.reshape(-1), np.array(other["values"], entry.values.dtype).reshape(-1))
        elif isinstance(entry, MeanField):
            assert entry.mu.tolist() == other["law"][0]
            assert entry.sigma.tolist() == other["law"][1]
        else:
            compare_shared(entry, other)
        if isinstance(entry, MeanField | Shared):
            compare_parts(entry, other)


def compare_shared(entry: Shared, other: dict[str, Any]) -> None:
    assert entry.labels.tolist() == other["labels"]
    assert entry.outlier_mu.tolist() == other["outliers"][0]
    assert entry.outlier_sigma.tolist() == other["outliers"][1]
    assert entry.components.tolist() == other["components"]
    assert same(entry.alphas.reshape(-1), np.array(other["alphas"], np.float32).reshape(-1))


def compare_parts(entry: MeanField | Shared, other: dict[str, Any]) -> None:
    if entry.fixed is not None:
        mask, values = entry.fixed.mask, entry.fixed.values
        assert (mask if isinstance(mask, dict) else mask.reshape(-1).tolist()) == other["mask"]
        if isinstance(values, Signs):
            values = np.where(values.positive, values.scale, -values.scale)
        assert (values.tolist() if isinstance(values, np.ndarray) else values) == other["fixed"]
    if entry.prior is not None:
        for part, value in (("mu", entry.prior.mu), ("sigma", entry.prior.sigma)):
            assert (value.tolist() if isinstance(value, np.ndarray) else value) == other[f"prior {part}"]


@settings(deadline=None, derandomize=True, max_examples=100)
@given(pockets)
def test_a_reader_written_from_the_specification_agrees(pocket: Pocket) -> None:
    data = encode(pocket).data
    compare(decode(data), SpecReader(data).read())


def test_the_specification_covers_contexts_and_every_section() -> None:
    data, sizes, _ = encode(small_pocket())
    reader = SpecReader(data)
    assert struct.unpack("<H", reader.section["FREQ"][:2])[0] > 0
    assert len(sizes) == 13
    compare(decode(data), reader.read())


def test_the_specification_covers_kernels_of_any_form() -> None:
    rng = np.random.default_rng(5)
    for shape in ((60, 7), (40, 9, 5), (12, 9, 2, 4), (4, 4, 5, 4, 2)):
        cells = math.prod(shape[3 if len(shape) == 5 else 2 :])
        labels = np.repeat(rng.integers(0, 12, math.prod(shape) // max(cells, 1)), cells)
        labels = np.where(rng.random(labels.size) < 0.1, rng.integers(0, 13, labels.size), labels)
        outliers = np.ones(int((labels == 12).sum()), np.float32)
        entry = Shared(shape=shape, labels=labels, outlier_mu=outliers, outlier_sigma=outliers)
        book = Codebook(mu=rng.standard_normal(12), sigma=np.ones(12))
        data = encode(Pocket(tensors={"w": entry}, codebook=book)).data
        reader = SpecReader(data)
        assert (reader.section["FREQ"][:2] != b"\0\0") == (len(shape) > 2)
        compare(decode(data), reader.read())


def test_a_file_put_together_by_hand_is_read() -> None:
    """Two components, labels 0 1 1 0 in a 2 x 2 tensor, counts 1 and 3: edges 0, 1 + floor((2^24 - 2) / 4), 2^24."""
    head = {"precision": [16, 32, 32], "codebook": 2, "tables": 1, "tensors": [["w", "s", [2, 2], "float32"]]}
    text = json.dumps(head).encode()
    edges = [0, 4194304, 16777216]
    state = 0
    for label in (0, 1, 1, 0):  # reversed: the first label is pushed last
        frequency = edges[label + 1] - edges[label]
        state = (state // frequency) * 2**24 + state % frequency + edges[label]
    assert 0 < state < 2**64
    words = [state % 2**32, state // 2**32] if state >= 2**32 else [state]
    freq = struct.pack("<HB", 0, 0) + bytes([1, 3, 0, 0])
    sections = [
        (b"HEAD", struct.pack("<I", len(text)) + zlib.compress(text)),
        (b"FREQ", struct.pack("<I", len(freq)) + zlib.compress(freq)),
        (b"LABL", struct.pack(f"<{len(words)}I", *words)),
        (b"CODE", struct.pack("<4f", -0.5, 0.75, 0.125, 0.25)),
    ]
    body = b"".join(struct.pack("<4sQI", tag, len(part), zlib.crc32(part)) for tag, part in sections)
    body += b"".join(part for _, part in sections)
    body = struct.pack("<4sIQI", b"PKTB", 2, 20 + len(body) + 32, len(sections)) + body
    pocket = decode(body + hashlib.sha256(body).digest())
    entry = pocket.tensors["w"]
    assert isinstance(entry, Shared)
    assert entry.labels.tolist() == [0, 1, 1, 0]
    assert pocket.codebook is not None
    assert pocket.codebook.mu.tolist() == [-0.5, 0.75]
    assert pocket.codebook.sigma.tolist() == [0.125, 0.25]
