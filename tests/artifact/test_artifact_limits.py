"""What a file may ask for: a small one cannot make its reader work long, or fill its memory."""

from __future__ import annotations

import json
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_artifact_attacks import DATA, seal, sections_of, squeeze, with_head

import pocketbayes as pb
from pocketbayes.artifact import Codebook, Pocket, Shared, decode, encode, inspect, numbers
from pocketbayes.artifact.header import MAX_NESTING, MAX_ROWS
from pocketbayes.artifact.reader import FREE_WEIGHTS, PER_BYTE
from pocketbayes.errors import ArtifactError

MEGA = 1 << 28
ONE_PAIR = numbers.pack(np.ones(1), "h16") + numbers.pack(np.ones(1), "p16")


def tables(layers: bytes, count: int, symbols: int, *certain: int) -> bytes:
    """FREQ with tables that each name one symbol for certain."""
    codes = np.zeros((count, symbols), np.uint8)
    codes[range(len(certain)), certain] = 1
    return squeeze(layers + codes.T.tobytes())


def bomb(tensors: list[Any], **more: Any) -> bytes:
    sections = {tag: more.pop(tag) for tag in ("FREQ", "CODE") if tag in more}
    head = {"precision": [16, 16, 16], "tensors": tensors, **more}
    return seal({"HEAD": squeeze(json.dumps(head).encode()), **sections})


def shared(shape: list[int], layers: bytes, *certain: int, **more: Any) -> bytes:
    """One shared tensor whose labels take no bits."""
    row = ["w", "s", shape, "float32", *([more] if more else [])]
    freq = tables(layers, len(certain), 3, *certain)
    return bomb([row], codebook=1, tables=len(certain), FREQ=freq, CODE=ONE_PAIR)


def ruled(rule: str, **more: int) -> bytes:
    fixed = {"count": MEGA // 2, "rule": {"rule": rule, "layer": 0, **more}, "value": 0.0}
    return bomb([["w", "n", [1 << 14, 1 << 14], "float32", {"fixed": fixed}]])


WIDE = 65534
WIDE_CODE = numbers.pack(np.ones(WIDE), "h16") + numbers.pack(np.ones(WIDE), "p16")
EMPTY = [[f"{i:x}", "s", [0], "float32"] for i in range(5000)]
BOMBS = {
    "one symbol": (shared([MEGA], bytes(3), 0), "elements, more than"),
    "blends of one": (shared([MEGA], bytes(5) + b"\1", 2, 0, blend=1), "elements, more than"),
    "kernels": (shared([1 << 20, 16, 16], b"\1" + bytes(6), 0), "elements, more than"),
    "a rule": (ruled("random", count=MEGA // 2, seed=1), "elements, more than"),
    "many tensors": (bomb([[f"{i:x}", "p", [0], "float32", "f4"] for i in range(10**5)]), "at most 16384"),
    "wide tables": (
        bomb([], codebook=WIDE, tables=256, FREQ=tables(b"", 256, WIDE + 2), CODE=WIDE_CODE),
        "tables hold more",
    ),
    "empty tensors and a wide codebook": (
        bomb(EMPTY, codebook=WIDE, tables=1, FREQ=tables(bytes(15000), 1, WIDE + 2, 0), CODE=WIDE_CODE),
        "",
    ),
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("opened", [decode, inspect])
def test_a_small_file_cannot_make_its_reader_work_long(name: str, opened: Any) -> None:
    data, message = BOMBS[name]
    started = time.process_time()
    if message:
        with pytest.raises(ArtifactError, match=message):
            opened(data)
    else:
        opened(data)
    assert time.process_time() - started < 3  # a loaded machine; alone it is below 0.6 s


def test_what_a_file_may_unfold_to_depends_on_its_length() -> None:
    book = Codebook(mu=np.ones(1), sigma=np.ones(1))
    filler = {"x": "".join(chr(33 + i * i % 90) for i in range(500))}

    def file(size: int, metadata: dict[str, str]) -> bytes:
        tensors: Any = {"w": Shared(shape=(size,), labels=np.zeros(size, np.uint8))}
        return encode(Pocket(tensors=tensors, codebook=book, metadata=metadata)).data

    size = FREE_WEIGHTS + 300 * PER_BYTE
    with pytest.raises(ArtifactError, match="Raise it if you trust"):
        decode(file(size, {}))
    assert decode(file(size, filler)).tensors["w"].shape == (size,)
    assert decode(file(size, {}), max_weights=size).tensors["w"].shape == (size,)


@pytest.mark.parametrize("elements", [FREE_WEIGHTS])
def test_an_element_takes_a_few_bytes_while_it_is_read(elements: int) -> None:
    for data in (
        shared([elements], bytes(3), 0),
        shared([elements], bytes(5) + b"\1", 2, 0, blend=1),
        shared([elements // 256, 16, 16], b"\1" + bytes(6), 0),
    ):
        tracemalloc.start()
        decode(data)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 40 * elements + 5_000_000


TEXTS = {
    "1e999": ('{"metadata":{"x":1e999}}', "no finite number"),
    "half a character": ('{"metadata":{"x":"\\ud800"}}', "surrogates"),
    "a key twice": ('{"tables":0,"tables":1}', "twice"),
    "a deep note": ('{"metadata":{"x":' + "[" * 99 + "]" * 99 + "}}", "within each other"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_json_that_could_not_be_written_again_is_refused(name: str) -> None:
    text, message = TEXTS[name]
    with pytest.raises(ArtifactError, match=message):
        decode(seal({**sections_of(DATA), "HEAD": squeeze(text.encode())}))


def test_bits_after_the_last_number_are_zero() -> None:
    sections = sections_of(DATA)
    assert sections["FIXD"][0] & 3 == 0  # six signs and two spare bits come first
    broken = bytes([sections["FIXD"][0] | 1]) + sections["FIXD"][1:]
    with pytest.raises(ArtifactError, match="2 bits after its last number must be zero"):
        decode(seal({**sections, "FIXD": broken}))


@given(size=st.integers(1, 40), code=st.sampled_from(["t1", "h9", "h13", "p12", "p15"]))
def test_every_spare_bit_counts(size: int, code: str) -> None:
    data = numbers.pack(np.ones(size), code)
    spare = 8 * len(data) - size * int(code[1:]) - (8 if code[0] == "h" else 0)
    for bit in range(spare):
        with pytest.raises(ArtifactError, match=f"{spare} bits after"):
            numbers.read(data[:-1] + bytes([data[-1] | 1 << bit]), code, (size,), "float32", "x")


def within(depth: int) -> dict[str, Any]:
    noise: dict[str, Any] = {"family": "Gaussian"}
    for _ in range(depth):
        noise = {"family": "Programmed", "noise": noise, "mu_levels": [], "sigma_levels": []}
    return noise


NOISES = {
    "many families": {"family": "StateDependent", "laws": [{}] * 300, "mus": [], "sigmas": []},
    "many components": {"family": "GaussianMixture", "weights": [1.0] * 65, "means": [], "sigmas": []},
    "many tables": {"family": "StateDependent", "laws": [{"family": "SkewNormal", "alpha": 1.0}] * 9},
    "many within each other": within(300),
    "many devices": {"family": "Averaged", "noise": {"family": "Laplace"}, "devices": 2000},
}
SENSELESS = {
    "a word": {"family": "Bimodal", "m": "much"},
    "an endless drift": {"family": "Drifted", "noise": {}, "time": 2.0, "reference": 1e-300}
    | {"exponent": -1.5, "shift": 0.0},
    "no law": {"family": "Averaged", "noise": [], "devices": 2},
}


@pytest.mark.parametrize("name", [*NOISES, *SENSELESS])
def test_noise_is_checked_where_the_file_is_read(name: str) -> None:
    noise = {**NOISES, **SENSELESS}[name]
    with pytest.raises(ArtifactError, match="noise: "):
        decode(with_head(lambda head: head.__setitem__("noise", noise)))


def test_a_large_array_that_many_laws_name_is_counted_each_time() -> None:
    law = {"family": "QuantileTable", "values": {"array": "big"}}
    noise = {"family": "StateDependent", "laws": [law] * 100, "mus": list(map(float, range(100)))}
    pocket = Pocket(
        tensors={},
        noise={**noise, "sigmas": [1.0] * 100},
        extras={"big": np.linspace(-1, 1, 20_000)},
    )
    data = encode(pocket).data
    started = time.process_time()
    with pytest.raises(ArtifactError, match="more than 1048576 numbers"):
        decode(data)
    assert time.process_time() - started < 1


def test_a_writer_keeps_the_limits_too(tmp_path: Path) -> None:
    entry = Shared(shape=(0,), labels=np.zeros(0, np.uint8))
    many: Any = {f"{i:x}": entry for i in range(MAX_ROWS + 1)}
    with pytest.raises(ArtifactError, match="at most 16384"):
        encode(Pocket(tensors=many, codebook=Codebook(mu=np.ones(1), sigma=np.ones(1))))
    deep: Any = 1
    for _ in range(MAX_NESTING):
        deep = [deep]
    with pytest.raises(ArtifactError, match="within each other"):
        pb.save(pb.bayesianize(pb.nets.mlp([2, 2])), tmp_path / "a", metadata={"x": deep})
    assert not list(tmp_path.iterdir())


def test_a_wide_codebook_has_few_tables() -> None:
    """Labels that differ from tensor to tensor would each want a table of their own."""
    rng, k = np.random.default_rng(0), 20_000
    tensors: Any = {
        f"{i}": Shared(shape=(4000,), labels=rng.integers(200 * i, 200 * i + 50, 4000)) for i in range(99)
    }
    data = encode(Pocket(tensors=tensors, codebook=Codebook(mu=np.arange(1.0, k + 1), sigma=np.ones(k)))).data
    assert inspect(data).tables <= (1 << 20) // (k + 2)
    assert np.array_equal(decode(data).tensors["98"].labels, tensors["98"].labels)
