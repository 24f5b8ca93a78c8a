"""The outside of the file: magic, version, sections with lengths and checksums, and how it reaches the disk.

    magic "PKTB" | u32 version | u64 length of the file | u32 number of sections
    for each section: 4-byte tag | u64 length | u32 CRC-32
    the sections, one after the other
    SHA-256 of everything before it

Numbers are little-endian.  Nothing inside is used before the SHA-256 agrees; the CRCs say where the damage is.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

from pocketbayes.errors import ArtifactError

VERSION = 2  # that is written; all from 1 on are read
MAGIC = b"PKTB"
TAGS = (
    "HEAD",
    "FREQ",
    "LABL",
    "CODE",
    "OUTL",
    "BLND",
    "NORM",
    "MASK",
    "FIXD",
    "PLAN",
    "PRIO",
    "XTRA",
    "GRAF",
)
MAX_HEADER = 1 << 22  # bytes of JSON: thousands of tensors, and room for the user's notes
_PREAMBLE = struct.Struct("<4sIQI")
_SECTION = struct.Struct("<4sQI")
_DIGEST = 32


def assemble(sections: dict[str, bytes]) -> bytes:
    """The file's bytes; empty sections are left out, the others follow in the order of TAGS."""
    parts = [(tag, sections[tag]) for tag in TAGS if sections.get(tag)]
    table = b"".join(_SECTION.pack(tag.encode(), len(part), zlib.crc32(part)) for tag, part in parts)
    length = _PREAMBLE.size + len(table) + sum(len(part) for _, part in parts) + _DIGEST
    body = b"".join([_PREAMBLE.pack(MAGIC, VERSION, length, len(parts)), table, *(part for _, part in parts)])
    return body + hashlib.sha256(body).digest()


def disassemble(data: bytes, where: str) -> dict[str, memoryview]:
    """The sections by tag, after every length and checksum was found right."""
    count = _check_preamble(data[: _PREAMBLE.size], len(data), where)
    sections = _slice(data, count, where)
    view = memoryview(data)
    if hashlib.sha256(view[:-_DIGEST]).digest() != data[-_DIGEST:]:
        broken = [tag for tag, (part, crc) in sections.items() if zlib.crc32(part) != crc]
        place = f"section {', '.join(broken)}" if broken else "its preamble or checksum"
        raise ArtifactError(f"{where}: damaged in {place}. Copy the file again")
    if any(zlib.crc32(part) != crc for part, crc in sections.values()):
        raise ArtifactError(f"{where}: a section's checksum disagrees with the file's")
    return {tag: part for tag, (part, _) in sections.items()}


def version_of(data: bytes) -> int:
    """The format version that a file's bytes claim."""
    return int(_PREAMBLE.unpack_from(data)[1])


def _check_preamble(start: bytes, length: int, where: str) -> int:
    """The number of sections, if a pocket file of `length` bytes that we can read begins so."""
    if start[:4] != MAGIC[: len(start)] or len(start) < 4:
        raise ArtifactError(f"{where}: not a pocket file (it starts with {start[:4]!r}, not {MAGIC!r})")
    if len(start) < _PREAMBLE.size:
        raise ArtifactError(f"{where}: cut off after {length} bytes")
    _, version, declared, count = _PREAMBLE.unpack(start)
    if version > VERSION:
        raise ArtifactError(
            f"{where}: format version {version}, this library reads up to {VERSION}. Update pocketbayes"
        )
    if version < 1:
        raise ArtifactError(f"{where}: format version {version} does not exist")
    if declared != length:
        raise ArtifactError(f"{where}: {length} bytes long, but it says {declared}. Copy the file again")
    if not 1 <= count <= len(TAGS):
        raise ArtifactError(f"{where}: 1 to {len(TAGS)} sections, got {count}")
    return int(count)


def _slice(data: bytes, count: int, where: str) -> dict[str, tuple[memoryview, int]]:
    """(bytes, CRC) of each section; tags ascend in the order of TAGS, lengths fill the file exactly."""
    offset = _PREAMBLE.size + count * _SECTION.size
    if offset + _DIGEST > len(data):
        raise ArtifactError(f"{where}: cut off in the table of sections")
    view, sections, last = memoryview(data), {}, -1
    for tag, length, crc in _SECTION.iter_unpack(data[_PREAMBLE.size : offset]):
        name = tag.decode("latin-1")
        if name not in TAGS[last + 1 :]:
            raise ArtifactError(f"{where}: section {name!r} is unknown, doubled or out of order")
        if length > len(data) - _DIGEST - offset:
            raise ArtifactError(f"{where}: section {name} claims {length} bytes, more than the file has")
        sections[name] = (view[offset : offset + length], crc)
        last, offset = TAGS.index(name), offset + length
    if offset != len(data) - _DIGEST:
        raise ArtifactError(f"{where}: {len(data) - _DIGEST - offset} bytes belong to no section")
    return sections


def deflate(data: bytes) -> bytes:
    """u32 length, then a zlib stream; nothing for nothing."""
    return struct.pack("<I", len(data)) + zlib.compress(data, 9) if data else b""


def inflate(data: bytes | memoryview, limit: int, where: str) -> bytes:
    """The bytes deflated, at most `limit` of them: a bomb is refused before it swells."""
    if not len(data):
        return b""
    if len(data) < 4:
        raise ArtifactError(f"{where}: too short for a compressed section")
    (declared,) = struct.unpack("<I", data[:4])
    if declared > limit:
        raise ArtifactError(f"{where}: inflates to {declared} bytes, expected at most {limit}")
    engine = zlib.decompressobj()
    try:
        plain = engine.decompress(data[4:], declared + 1)
    except zlib.error as error:
        raise ArtifactError(f"{where}: not a zlib stream ({error})") from error
    if len(plain) != declared or not engine.eof or engine.unused_data:
        raise ArtifactError(f"{where}: does not inflate to the {declared} bytes it promises")
    return plain


def read_file(path: str | os.PathLike[str]) -> bytes:
    """The whole file, once its first bytes agree with its length on the disk."""
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # a pipe would keep the next line waiting
        raise ArtifactError(f"{path}: not a regular file")
    with Path(path).open("rb") as file:
        status = os.fstat(file.fileno())
        start = file.read(_PREAMBLE.size)
        _check_preamble(start, status.st_size, str(path))
        return start + file.read(status.st_size)


def sizes_of(length: int, sections: Mapping[str, bytes | memoryview]) -> dict[str, int]:
    """Bytes by section, in file order; what surrounds them is called "frame"."""
    sizes = {tag: len(sections[tag]) for tag in TAGS if sections.get(tag)}
    return {**sizes, "frame": length - sum(sizes.values())}
