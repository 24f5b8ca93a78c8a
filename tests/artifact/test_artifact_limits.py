"""What a file may ask for: a small one cannot make its reader work long, or fill its memory."""

from __future__ import annotations

import time
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from artifact_pockets import small_pocket
from hypothesis import given
from hypothesis import strategies as st

import pocketbayes as pb
from fuzz.defects import BOMBS, shared
from fuzz.pockets import changed, seal, sections_of, squeeze, unchecked
from pocketbayes.artifact import (
    Codebook,
    MeanField,
    Pocket,
    Shared,
    decode,
    encode,
    inspect,
    numbers,
    sample_weights,
)
from pocketbayes.artifact.header import MAX_NESTING, MAX_ROWS
from pocketbayes.artifact.reader import FREE_WEIGHTS, PER_BYTE
from pocketbayes.errors import ArtifactError

DATA = encode(small_pocket()).data


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
    "many components": {"family": "GaussianMixture", "weights": [1.0] * 31, "means": [], "sigmas": []},
    "many tables": {"family": "StateDependent", "laws": [{"family": "SkewNormal", "alpha": 1.0}] * 5},
    "many within each other": within(300),
    "many devices": {"family": "Averaged", "noise": {"family": "Laplace"}, "devices": 2000},
}
SENSELESS = {
    "a word": {"family": "Bimodal", "m": "much"},
    "an endless drift": {"family": "Drifted", "noise": {}, "time": 2.0, "reference": 1e-300}
    | {"exponent": -1.5, "shift": 0.0},
    "no law": {"family": "Averaged", "noise": [], "devices": 2},
}


@pytest.mark.parametrize("family", ["Empirical", "QuantileTable"])
@pytest.mark.parametrize("values", [[-1e308, 1e308], [0.0, np.inf], [0.0, np.nan], [1.0]], ids=str)
def test_measured_values_are_checked_where_the_file_is_read(family: str, values: list[float]) -> None:
    noise = {"family": family, "values": {"array": "measured"}}
    good = Pocket(tensors={}, noise=noise, extras={"measured": np.array([-1.0, 1.0])})
    pocket = replace(good, extras={"measured": np.array(values)})
    assert decode(encode(good).data).noise == noise
    with pytest.raises(ArtifactError, match=r"noise: .*two or more numbers, at most 2\^127"):
        decode(unchecked(pocket))


@pytest.mark.parametrize("name", [*NOISES, *SENSELESS])
def test_noise_is_checked_where_the_file_is_read(name: str) -> None:
    noise = {**NOISES, **SENSELESS}[name]
    with pytest.raises(ArtifactError, match="noise: "):
        decode(changed(DATA, lambda head: head.__setitem__("noise", noise)))


def test_what_a_file_says_is_quoted_in_part() -> None:
    one: Any = {"w": MeanField(shape=(1,), mu=np.zeros(1), sigma=np.ones(1))}
    pocket = decode(encode(Pocket(tensors=one, noise={"family": "é" * 5000})).data)
    with pytest.raises(ArtifactError, match="unknown family") as error:
        sample_weights(pocket, seed=0, number=0)
    assert len(str(error.value)) < 500


SLOWEST = {
    "a mixture": {"family": "GaussianMixture", "weights": [1 / 30] * 30}
    | {"means": [i - 14.5 for i in range(30)], "sigmas": [1.0 + i / 99 for i in range(30)]},
    "skew normal laws": {"family": "StateDependent", "mus": [*range(4)], "sigmas": [1.0] * 4}
    | {"laws": [{"family": "SkewNormal", "alpha": 1.0 + i} for i in range(4)]},
    "two peaks": {"family": "StateDependent", "mus": [*range(8)], "sigmas": [1.0] * 8}
    | {"laws": [{"family": "Bimodal", "m": i / 30} for i in range(8)]},
}


@pytest.mark.parametrize("name", SLOWEST)
def test_the_tables_that_a_file_may_ask_for_take_little_time(name: str) -> None:
    """A header of 436 bytes once asked for 4.3 seconds of them."""
    one: Any = {"w": MeanField(shape=(1,), mu=np.zeros(1), sigma=np.ones(1))}
    pocket = decode(encode(Pocket(tensors=one, noise=SLOWEST[name])).data)
    started = time.process_time()
    sample_weights(pocket, seed=0, number=0)
    assert time.process_time() - started < 3  # a loaded machine; alone it is below 1 s


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
