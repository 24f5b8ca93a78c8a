"""A pocket file taken apart, and put together again with right lengths and checksums."""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from pocketbayes.artifact import VERSION, Pocket, encode

DEFLATED = ("HEAD", "FREQ", "MASK")


def sections_of(data: bytes) -> dict[str, bytes]:
    """The sections as they lie in the file."""
    (count,) = struct.unpack("<I", data[16:20])
    offset, found = 20 + 16 * count, {}
    for i in range(count):
        tag, size = struct.unpack("<4sQ", data[20 + 16 * i : 32 + 16 * i])
        found[tag.decode()] = data[offset : offset + size]
        offset += size
    return found


def squeeze(plain: bytes) -> bytes:
    """A section as it is deflated."""
    return struct.pack("<I", len(plain)) + zlib.compress(plain, 1)


def seal(sections: dict[str, bytes], version: int = VERSION, table: bytes | None = None) -> bytes:
    """A file with these sections and right checksums."""
    rows = b"".join(
        struct.pack("<4sQI", tag.encode(), len(part), zlib.crc32(part)) for tag, part in sections.items()
    )
    body = (table or rows) + b"".join(sections.values())
    body = struct.pack("<4sIQI", b"PKTB", version, 20 + len(body) + 32, len(sections)) + body
    return body + hashlib.sha256(body).digest()


def head_of(sections: dict[str, bytes]) -> Any:
    """The header's JSON."""
    return json.loads(zlib.decompress(sections["HEAD"][4:]))


def with_head(sections: dict[str, bytes], head: Any) -> dict[str, bytes]:
    """The same sections under another header."""
    return {**sections, "HEAD": squeeze(json.dumps(head, separators=(",", ":")).encode())}


def changed(data: bytes, change: Callable[[Any], object]) -> bytes:
    """The file after `change` has worked on its header in place."""
    sections = sections_of(data)
    head = head_of(sections)
    change(head)
    return seal(with_head(sections, head))


def unchecked(pocket: Pocket) -> bytes:
    """What a writer without conscience makes of a pocket: its arrays may hold anything."""
    with (
        patch("pocketbayes.artifact.format.check", lambda pocket: None),
        patch("pocketbayes.artifact.format._require_finite", lambda *_: None),
    ):
        return encode(pocket).data
