from __future__ import annotations

import struct
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from artifact_pockets import same, small_pocket

from fuzz.pockets import changed, seal, sections_of, squeeze
from pocketbayes.artifact import Codebook, Pocket, Shared, decode, encode
from pocketbayes.errors import ArtifactError

DATA = encode(small_pocket()).data


def with_head(change: Callable[[dict[str, Any]], object]) -> bytes:
    return changed(DATA, change)


def row(head: dict[str, Any], name: str) -> list[Any]:
    return next(item for item in head["tensors"] if item[0] == name)


def test_the_attackers_tools_make_valid_files() -> None:
    assert same(decode(seal(sections_of(DATA))), decode(DATA))
    assert same(decode(with_head(lambda head: None)), decode(DATA))


def test_every_truncation_is_refused() -> None:
    for length in range(len(DATA)):
        with pytest.raises(ArtifactError):
            decode(DATA[:length])


def test_every_flipped_bit_is_refused() -> None:
    for position in range(8 * len(DATA)):
        broken = bytearray(DATA)
        broken[position // 8] ^= 1 << (position % 8)
        with pytest.raises(ArtifactError):
            decode(bytes(broken))


def test_damage_is_located() -> None:
    sections = sections_of(DATA)
    at = len(DATA) - 32 - sum(len(part) for part in sections.values())
    for tag, part in sections.items():
        broken = DATA[:at] + bytes([part[0] ^ 255]) + DATA[at + 1 :]
        with pytest.raises(ArtifactError, match=f"damaged in section {tag}. Copy"):
            decode(broken)
        at += len(part)


def test_bytes_after_the_end_are_refused() -> None:
    with pytest.raises(ArtifactError, match="bytes long, but it says"):
        decode(DATA + b"\0")


def test_a_splice_of_two_files_is_refused() -> None:
    other = encode(Pocket(tensors=small_pocket().tensors, codebook=small_pocket().codebook)).data
    for cut in range(0, min(len(DATA), len(other)), 37):
        for spliced in (DATA[:cut] + other[cut:], other[:cut] + DATA[cut:]):
            if spliced not in (DATA, other):
                with pytest.raises(ArtifactError):
                    decode(spliced)


def test_a_newer_version_says_so() -> None:
    with pytest.raises(ArtifactError, match=r"version 3, this library reads up to 2. Update"):
        decode(seal(sections_of(DATA), version=3))
    with pytest.raises(ArtifactError, match="version 0"):
        decode(seal(sections_of(DATA), version=0))


@pytest.mark.parametrize("start", [b"", b"PK", b"PKTB", b"\x89PNG\r\n\x1a\n" * 9, b"PKTB\1\0\0\0"])
def test_what_is_no_pocket_file_is_refused(start: bytes) -> None:
    with pytest.raises(ArtifactError, match=r"not a pocket file|cut off"):
        decode(start)


BOMB = zlib.compress(bytes(1 << 26), 9)
SECTIONS: dict[str, tuple[dict[str, bytes], str]] = {
    "a bomb that says so": ({"HEAD": struct.pack("<I", 1 << 26) + BOMB}, "header: inflates to 67108864"),
    "a bomb that lies": ({"HEAD": struct.pack("<I", 100) + BOMB}, "does not inflate to the 100"),
    "a bomb of masks": ({"MASK": struct.pack("<I", 1 << 26) + BOMB}, "MASK: inflates to 67108864"),
    "a bomb of tables": ({"FREQ": struct.pack("<I", 1 << 26) + BOMB}, "FREQ: inflates to"),
    "no stream": ({"HEAD": b"\1\0\0\0xyz"}, "not a zlib stream"),
    "a short stream": ({"HEAD": b"\1"}, "too short"),
    "two streams": ({"MASK": squeeze(b"\1\2") + b"more"}, "does not inflate"),
    "no JSON": ({"HEAD": squeeze(b"{")}, "not JSON"),
    "JSON of lists": ({"HEAD": squeeze(b"[]")}, "must be a JSON object"),
    "deep JSON": ({"HEAD": squeeze(b"[" * 100_000)}, "not JSON"),
    "long numbers": ({"HEAD": squeeze(b'{"tables":' + b"9" * 10_000 + b"}")}, "not JSON"),
    "infinite JSON": ({"HEAD": squeeze(b'{"metadata":{"x":Infinity}}')}, "not JSON"),
    "no UTF-8": ({"HEAD": squeeze(b'{"library":"\xff"}')}, "not JSON"),
    "odd words": ({"LABL": b"\0" * 7}, "32-bit words"),
    "other labels": ({"LABL": b"\1\2\3\4" * 40}, "labels|outliers|OUTL|blended|BLND"),
    "labels that end in zero": ({"LABL": bytes(8)}, "not one that an encoder"),
    "more outliers": ({"OUTL": bytes(100)}, "OUTL has|sigma"),
    "fewer outliers": ({"OUTL": bytes(1)}, "OUTL ends within fc.weight"),
    "more weights of blends": ({"BLND": bytes(60)}, "BLND should have 8 bytes"),
    "heavy blends": ({"BLND": b"\xff" * 8}, "exceed one"),
    "zero sigmas": ({"NORM": bytes(41)}, "sigma must be positive"),
    "infinite means": ({"CODE": b"\0" + b"\x7c\0" * 6 + b"\x7f\0" * 6}, "codebook: mu must be finite"),
    "infinite sigmas": ({"CODE": b"\0" + b"\0\0" * 6 + b"\xff\0" * 6}, "codebook: sigma"),
    "infinite norms": ({"PLAN": b"\0" + b"\x7c\0" * 3 + b"\1\1"}, "not finite"),
}


@pytest.mark.parametrize("case", SECTIONS)
def test_a_section_that_lies_is_refused(case: str) -> None:
    changed, message = SECTIONS[case]
    tracemalloc.start()
    with pytest.raises(ArtifactError, match=message):
        decode(seal({**sections_of(DATA), **changed}))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000


HEADS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "huge": (lambda h: row(h, "fc.weight").__setitem__(2, [1 << 40]), "more than max_weights"),
    "huge with a zero": (lambda h: row(h, "bn.weight").__setitem__(2, [0, 1 << 62]), "more than max_weights"),
    "overflow": (lambda h: row(h, "bn.weight").__setitem__(2, [1 << 32, 1 << 32]), "more than max_weights"),
    "negative": (lambda h: row(h, "bn.weight").__setitem__(2, [-3]), "whole numbers"),
    "fractional": (lambda h: row(h, "bn.weight").__setitem__(2, [3.0]), "whole numbers"),
    "true": (lambda h: row(h, "bn.weight").__setitem__(2, [True]), "whole numbers"),
    "many sizes": (lambda h: row(h, "bn.weight").__setitem__(2, [1] * 33), "at most 32"),
    "another shape": (lambda h: row(h, "bn.weight").__setitem__(2, [4]), "PLAN ends within"),
    "kind": (lambda h: row(h, "bn.weight").__setitem__(1, "x"), "unknown kind"),
    "type": (lambda h: row(h, "bn.weight").__setitem__(3, "object"), "unknown type"),
    "code": (lambda h: row(h, "bn.weight").__setitem__(4, "O8"), "needs a code"),
    "code of another kind": (lambda h: row(h, "bn.weight").__setitem__(4, "i2"), "cannot be stored as"),
    "a number of another type": (lambda h: row(h, "bn.weight").__setitem__(4, 1), "a code or a number"),
    "a number too large": (lambda h: row(h, "bn.weight").__setitem__(4, 1e39), "a code or a number"),
    "a number too exact": (lambda h: row(h, "bn.weight").__setitem__(4, 0.1), "a code or a number"),
    "a number no byte holds": (
        lambda h: row(h, "bn.weight").__setitem__(slice(3, 5), ["uint8", 256]),
        "a code or a number",
    ),
    "a number and a section": (lambda h: row(h, "bn.weight").__setitem__(4, 0.5), "bytes too many"),
    "a number for too many": (
        lambda h: row(h, "bn.weight").__setitem__(slice(2, 5), [[1 << 40], "float32", 0.5]),
        "more than max_weights",
    ),
    "doubled": (lambda h: h["tensors"].append(row(h, "bn.weight")), "occurs twice"),
    "dangling tie": (lambda h: row(h, "tied.weight").__setitem__(2, "nobody"), "tied to 'nobody'"),
    "tie to itself": (lambda h: row(h, "tied.weight").__setitem__(2, "tied.weight"), "tied to 'tied.weight'"),
    "no codebook": (lambda h: h.pop("codebook"), "is shared, but there is no codebook"),
    "larger codebook": (lambda h: h.__setitem__("codebook", 65000), "CODE ends within"),
    "largest codebook": (lambda h: h.__setitem__("codebook", 1 << 60), "codebook must be"),
    "tables": (lambda h: h.__setitem__("tables", 257), "tables must be"),
    "fewer tables": (lambda h: h.__setitem__("tables", 0), "FREQ"),
    "precision": (lambda h: h.__setitem__("precision", [1, 2, 3]), "precision.plain"),
    "no precision": (lambda h: h.pop("precision"), "precision must be"),
    "unknown field": (lambda h: h.__setitem__("run", "rm"), "unknown field 'run'"),
    "more fixed": (lambda h: row(h, "fc.weight")[4]["fixed"].__setitem__("count", 17), "more weights fixed"),
    "fewer fixed": (lambda h: row(h, "fc.weight")[4]["fixed"].__setitem__("count", 5), "."),
    "no fixed values": (lambda h: row(h, "fc.weight")[4]["fixed"].pop("signs"), "signs, code or value"),
    "whole sign": (lambda h: row(h, "fc.weight")[4]["fixed"].__setitem__("signs", 1), "decimal point"),
    "prior": (lambda h: row(h, "head.weight")[4].__setitem__("prior", {"mu": 0.0}), "mu and sigma"),
    "prior sigma": (
        lambda h: row(h, "head.weight")[4]["prior"].__setitem__("sigma", -1.0),
        "prior: sigma must be",
    ),
    "blend": (lambda h: row(h, "fc.weight")[4].__setitem__("blend", 256), "bad blend"),
    "no blend": (lambda h: row(h, "fc.weight")[4].pop("blend"), "FREQ"),
    "metadata": (lambda h: h.__setitem__("metadata", []), "metadata must be an object"),
    "tensors": (lambda h: h.pop("tensors"), "must be lists"),
    "extras": (lambda h: h["extras"].append(["z", "t", "table"]), "extras must be plain"),
}


@pytest.mark.parametrize("case", HEADS)
def test_a_header_that_lies_is_refused(case: str) -> None:
    change, message = HEADS[case]
    data = with_head(change)
    tracemalloc.start()
    with pytest.raises(ArtifactError, match=message):
        decode(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000


def test_tables_of_sections_that_lie_are_refused() -> None:
    sections = sections_of(DATA)
    rows = [struct.pack("<4sQI", tag.encode(), len(part), zlib.crc32(part)) for tag, part in sections.items()]
    swapped = b"".join([rows[1], rows[0], *rows[2:]])
    doubled = b"".join([rows[0], rows[0], *rows[2:]])
    unknown = b"".join([b"EVIL" + rows[0][4:], *rows[1:]])
    longer = b"".join([rows[0][:4] + struct.pack("<Q", 1 << 63) + rows[0][12:], *rows[1:]])
    shorter = b"".join([*rows[:-1], rows[-1][:4] + struct.pack("<Q", 1) + rows[-1][12:]])
    wrong = b"".join([rows[0][:-1] + b"\0", *rows[1:]])
    for table, message in (
        (swapped, "out of order"),
        (doubled, "doubled"),
        (unknown, "unknown"),
        (longer, "more than the file has"),
        (shorter, "belong to no section"),
        (wrong, "checksum disagrees"),
    ):
        with pytest.raises(ArtifactError, match=message):
            decode(seal(sections, table=table))


def test_the_most_weights_are_the_callers_choice() -> None:
    book = Codebook(mu=np.ones(1), sigma=np.ones(1))
    data = encode(
        Pocket(tensors={"w": Shared(shape=(1 << 20,), labels=np.zeros(1 << 20, int))}, codebook=book)
    ).data
    assert len(data) < 300  # a million weights in nothing: the length says nothing about the size
    with pytest.raises(ArtifactError, match="1048576 elements, more than max_weights = 1048575"):
        decode(data, max_weights=(1 << 20) - 1)
    assert len(decode(data, max_weights=1 << 20).tensors) == 1


def test_paths_that_are_no_files_are_the_errors_they_are(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        decode(tmp_path)
    with pytest.raises(FileNotFoundError):
        decode(tmp_path / "none.pocket")
    with pytest.raises(ArtifactError, match="/dev/zero: not a regular file"):
        decode("/dev/zero")
    long = tmp_path / "long"
    with long.open("wb") as file:
        file.truncate(1 << 40)  # a terabyte of nothing
    with pytest.raises(ArtifactError, match="not a pocket file"):
        decode(long)
