"""Data sets, pictures, tables and records: small good files of every kind that is read, and lies about them."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import pocketbayes as pb
from fuzz import mutate, zips
from pocketbayes.data import formats
from pocketbayes.data.inputs import read_inputs
from pocketbayes.report.record import from_record

PICTURES = (".png", ".jpg", ".gif", ".bmp", ".tiff", ".webp", ".ppm")
KINDS = (*PICTURES, ".npy", ".npz", ".csv", ".idx", ".idx.gz", ".tar.gz", ".json")
# Not .mat: broken ones crash scipy, which is given only the published file of SVHN, by its SHA-256.


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def tar(parts: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, part in parts.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(part)
            archive.addfile(entry, io.BytesIO(part))
    return buffer.getvalue()


def picture(suffix: str) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    kind = {".jpg": "JPEG", ".tiff": "TIFF"}.get(suffix, suffix[1:].upper())
    Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3)).save(buffer, kind)
    return buffer.getvalue()


@cache
def good(kind: str) -> bytes:
    """A small file of that kind."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (12, 4, 4), dtype=np.uint8), np.arange(12) % 3
    idx = struct.pack(">HBBII", 0, 8, 2, 3, 4) + bytes(12)
    if kind in PICTURES:
        return picture(kind)
    if kind == ".npz":
        split = {"x_train": x, "y_train": y, "x_test": x, "y_test": y, "classes": np.array(["a", "b", "c"])}
        return zips.packed({f"{name}.npy": npy(array) for name, array in split.items()})
    made: dict[str, Callable[[], bytes]] = {
        ".npy": lambda: npy(x),
        ".csv": lambda: b"a,b,c\n" + b"".join(b"%d,%d.5,-1e3\n" % (i, i) for i in range(8)),
        ".idx": lambda: idx,
        ".idx.gz": lambda: gzip.compress(idx),
        ".tar.gz": lambda: gzip.compress(tar({"folder/test_batch.bin": bytes(2 * 3073)})),
        ".json": lambda: json.dumps(RECORD).encode(),
    }
    return made[kind]()


RECORD: dict[str, Any] = {
    "histories": {"train": [{"nll": 1.0, "kl": 2.0, "validation": {"nll": 1.5}}]},
    "stages": [{"name": "start", "seconds": 1.0, "metrics": {"nll": 0.5, "accuracy": 0.9}, "note": "x"}],
    "settings": {"lr": 0.1, "data": "digits"},
    "seed": 0,
    "time": "today",
}


def broken(kind: str, rng: Random) -> bytes:
    """A lie about that kind of file; where the format has checksums they are put right."""
    data = good(kind)
    if kind == ".npz":
        return zips.broken(data, rng, header_or_bytes)
    if kind == ".npy":
        return header_or_bytes(data, rng)
    if kind == ".png" and rng.random() < 0.8:
        return png(data, rng)
    if kind == ".idx.gz":
        return zips.broken_gzip(data, rng)
    if kind == ".tar.gz":
        return gzip.compress(resealed(mutate.bytes_(gzip.decompress(data), rng), rng))
    if kind == ".json":
        return json.dumps(mutate.json_(RECORD, rng)).encode()
    if kind == ".csv" and rng.random() < 0.5:
        cells = [b"1e999", b"nan", b"", b"9" * 5000, b"=cmd", b"\xff", b"\0", b",,,,", b"\n\n", b'"', b"1_0"]
        return data.replace(
            rng.choice([b"1", b"a", b",", b"\n", b"-1e3"]), rng.choice(cells), rng.choice([1, -1])
        )
    return mutate.bytes_(data, rng)


def header_or_bytes(data: bytes, rng: Random) -> bytes:
    """An npy file whose header promises another array."""
    if data[:6] != b"\x93NUMPY" or rng.random() < 0.3:
        return mutate.bytes_(data, rng)
    size = int.from_bytes(data[8:10], "little")
    shape = rng.choice([(), (0,), (1 << 40,), (1 << 62, 4), (3, 4, 4), (12, 4, 4, 1), (-1,), (12, 1 << 50)])
    kinds = ["|O", "<U1000000", "<f8", "|u1", ">i8", "<M8[s]", "|V7", "<c16", "|b1", "<f2", [("a", "<f4")]]
    told = {"descr": rng.choice(kinds), "fortran_order": rng.random() < 0.2, "shape": shape}
    text = (repr(told).ljust(rng.choice([60, 117])) + "\n").encode()
    return data[:8] + len(text).to_bytes(2, "little") + text + data[10 + size :]


def png(data: bytes, rng: Random) -> bytes:
    """Chunks changed, their CRCs right."""
    at, chunks = 8, []
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        chunks.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + size]))
        at += 12 + size
    n = rng.randrange(len(chunks))
    tag, part = chunks[n]
    if tag == b"IDAT" and rng.random() < 0.5:
        part = zlib.compress(bytes(1 << rng.choice([4, 24])))
    elif tag == b"IHDR" and rng.random() < 0.5:
        width, height = (rng.choice([1, 4, 5000, 60_000, 1 << 31]) for _ in range(2))
        part = struct.pack(">II", width % (1 << 32), height % (1 << 32)) + part[8:]
    else:
        part = mutate.bytes_(part, rng)
    chunks[n] = tag, part
    body = (struct.pack(">I", len(p)) + t + p + struct.pack(">I", zlib.crc32(t + p)) for t, p in chunks)
    return data[:8] + b"".join(body)


def resealed(data: bytes, rng: Random) -> bytes:
    """The first header of a tar archive with its sum put right."""
    if len(data) < 512:
        return data
    head = bytearray(data[:512])
    if rng.random() < 0.4:
        head[124:136] = rng.choice([b"77777777777\0", b"00000000000\0", b"\x80" + b"\xff" * 11])
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + data[512:]


def read(kind: str, data: bytes, folder: Path) -> None:
    """By every function that reads files of that kind."""
    path = folder / f"mutant{kind.removeprefix('.idx') if kind == '.idx.gz' else kind}"
    path.write_bytes(data)
    if kind in PICTURES:
        (images := folder / "images" / "class").mkdir(parents=True, exist_ok=True)
        (images / f"a{kind}").write_bytes(data)
        try:
            formats.read_images(images.parent, ["class"], (4, 4))
        finally:
            (images / f"a{kind}").unlink()
        read_inputs([path], (3, 4, 4))
    elif kind in (".npz", ".csv"):
        for split in ("train", "test"):
            pb.data.load(path, split=split)
        read_inputs([path], (1, 4, 4) if kind == ".npz" else (3,))
    elif kind == ".npy":
        read_inputs([path], (1, 4, 4))
    elif kind in (".idx", ".idx.gz"):
        formats.read_idx(path)
    elif kind == ".tar.gz":
        formats.read_cifar(path, ["test_batch.bin"], 1)
    else:
        from_record(json.loads(data))
