"""Bytes are law: what a version wrote can be read for ever, and this version writes the same bytes every day."""

from __future__ import annotations

import hashlib
import importlib.util
import struct
import zlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from pocketbayes.artifact import VERSION, Plain, Shared, decode, encode, inspect

GOLDEN = Path(__file__).parents[1] / "golden"
DIGESTS = {
    "v1/dense.pocket": "bca29ec02d82a75c6b5483575b1b199e84d35853c138828b51961ced54b94246",
    "v1/plain.pocket": "7f23a97022982fe524712a64be116ed4ea0f633632f2a674b9ade951407b0b35",
    "v1/shared.pocket": "be3ac021a87216ebcb0b5116190b4a87b5bd0e0182b259b75dfddcf703d58097",
    "v1/shared_float32.pocket": "5999a2504de3f5dc6e5b23f6764ffa925a773c0a297baa3294496a767f741f14",
    "v2/constant.pocket": "1510eaae2f48c96620c55ec47071ca2387566b3ff93ba92ef32fbb1f6fac6955",
    "v2/dense.pocket": "f6f17b4c972e2bc55cd187e446604b77bcd84d645e5b9eeebfd8dbbb717ed739",
    "v2/plain.pocket": "a928683d8771b600d562e1addedae90b9622d7e81f830cf4cc6cd7f49ace38c1",
    "v2/shared.pocket": "ada5800e1b64e30064f639a8b4409b5742b608f8d490721b7288be7b8705260e",
    "v2/shared_float32.pocket": "a19a8271a0e7b92f40edc2ebf66375696d93f41d1789b1e282db75159d4f89a6",
    "v2/two_modes.pocket": "5d990558cf0228d89a07f563e64c1ee64a5398ccb6734328056cabbe5ef32b7d",
}
NAMES = [name for name in DIGESTS if name.startswith(f"v{VERSION}/")]


def makers() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_golden", GOLDEN / "make_golden.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def inflated(data: bytes) -> dict[bytes, bytes]:
    """The sections with deflated ones inflated: these do not depend on the zlib at hand."""
    (count,) = struct.unpack("<I", data[16:20])
    offset, found = 20 + 16 * count, {}
    for i in range(count):
        tag, size = struct.unpack("<4sQ", data[20 + 16 * i : 32 + 16 * i])
        part = data[offset : offset + size]
        found[tag] = zlib.decompress(part[4:]) if tag in (b"HEAD", b"FREQ", b"MASK") else part
        offset += size
    return found


@pytest.mark.parametrize("name", DIGESTS)
def test_a_golden_file_was_not_touched(name: str) -> None:
    assert hashlib.sha256((GOLDEN / name).read_bytes()).hexdigest() == DIGESTS[name]


def test_every_golden_file_is_listed() -> None:
    assert {f"{path.parent.name}/{path.name}" for path in GOLDEN.glob("v*/*.pocket")} == set(DIGESTS)


@pytest.mark.parametrize("name", NAMES)
def test_bytes_do_not_change_without_a_new_version(name: str) -> None:
    golden = (GOLDEN / name).read_bytes()
    written = encode(makers().MAKERS[Path(name).stem]()).data
    assert inflated(written) == inflated(golden), (
        "the format changed: raise VERSION and add golden files for it"
    )
    if "ng" not in zlib.ZLIB_RUNTIME_VERSION:  # zlib-ng deflates the same bytes to others
        assert written == golden


@pytest.mark.parametrize("name", DIGESTS)
def test_a_golden_file_is_read_and_written_again_bit_by_bit(name: str) -> None:
    golden = (GOLDEN / name).read_bytes()
    again = encode(decode(GOLDEN / name)).data
    assert inflated(again) == inflated(golden)
    assert int.from_bytes(again[4:8], "little") == VERSION


def test_golden_numbers_are_what_they_were() -> None:
    pocket = decode(GOLDEN / "v1" / "shared.pocket")
    conv, matrix = pocket.tensors["conv.weight"], pocket.tensors["fc.weight"]
    assert isinstance(conv, Shared)
    assert isinstance(matrix, Shared)
    assert pocket.codebook is not None
    made = makers().shared()
    assert (conv.labels == made.tensors["conv.weight"].labels).all()
    assert (matrix.labels == made.tensors["fc.weight"].labels).all()
    assert np.allclose(pocket.codebook.mu, made.codebook.mu, rtol=2.0**-11, atol=0)
    assert np.allclose(matrix.alphas, made.tensors["fc.weight"].alphas, rtol=0, atol=2.0**-16)
    plain = decode(GOLDEN / "v1" / "plain.pocket").tensors
    assert isinstance(plain["steps"], Plain)
    assert plain["steps"].values == 78200
    assert isinstance(plain["mask"], Plain)
    assert plain["mask"].values[0, 1] == -np.inf


@pytest.mark.parametrize("name", DIGESTS)
def test_a_file_says_which_version_it_is(name: str) -> None:
    assert inspect(GOLDEN / name).version == int(name[1])
