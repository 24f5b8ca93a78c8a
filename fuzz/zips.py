"""Zip and gzip files whose members lie, under checksums that are right."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from random import Random
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

from fuzz import mutate


def members(data: bytes) -> dict[str, bytes]:
    with ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(parts: dict[str, bytes], method: int = ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with ZipFile(buffer, "w", method) as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    return buffer.getvalue()


def broken(data: bytes, rng: Random, change: Callable[[bytes, Random], bytes] = mutate.bytes_) -> bytes:
    """One member changed, renamed, lost or swollen; or the directory of the archive changed."""
    try:
        parts = members(data)
    except BadZipFile:
        return mutate.bytes_(data, rng)
    name, kind = rng.choice(list(parts)), rng.random()
    if kind < 0.1:
        parts.pop(name)
    elif kind < 0.2:
        parts = {rng.choice([n + "x", "../" + n, n]): p for n, p in parts.items()}
    elif kind < 0.25:
        parts[name] += bytes(1 << 22)
    else:
        parts[name] = change(parts[name], rng)
    whole = packed(parts, rng.choice([ZIP_STORED, ZIP_DEFLATED]))
    if rng.random() < 0.15:  # the directory lies at the end
        return whole[:-80] + mutate.bytes_(whole[-80:], rng)
    return whole


def broken_gzip(data: bytes, rng: Random) -> bytes:
    plain = gzip.decompress(data)
    plain = plain + bytes(1 << 24) if rng.random() < 0.02 else mutate.bytes_(plain, rng)
    return gzip.compress(plain, 1)
