"""Words and bits: Philox's own, the same in torch's integers, whole or in slices, independent of one another."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import scipy.stats
import torch

from pocketbayes.drawing import WhichDraw, WordStream, tables, tensor_number
from pocketbayes.noise.counter import DeviceStream, HostStream, stream_on

CPU = torch.device("cpu")
RAMP = np.arange(1 << 16, dtype=np.float32)  # a table that shows which word was drawn
WEIGHT = tensor_number("layer1.0.conv1.weight")


def stream(
    seed: int = 3, pair: int = 1, mode: int = 0, tensor: int = WEIGHT, mirrored: bool = False
) -> WordStream:
    return WordStream(WhichDraw(seed, pair, mirrored, mode), tensor=tensor)


def on_device(**place: int) -> DeviceStream:
    here = stream(**place)
    which = WhichDraw(*here.key, here.mirrored, here.where[1])
    return DeviceStream(which, tensor=here.where[0], device=CPU)


def test_the_first_block_is_the_known_answer_of_philox4x64_10() -> None:
    """kat_vectors of Random123: counter and key all zero."""
    words = stream(0, 0, 0, 0).words(0, 0, 16).view("<u8")
    assert [f"{word:016x}" for word in words] == [
        "16554d9eca36314c",
        "db20fe9d672d0fdc",
        "d7e772cee186176b",
        "7e68b68aec7ba23b",
    ]


def plain_philox(key: list[int], counter: list[int]) -> list[int]:
    """Philox4x64-10 in Python's own integers, from the paper: ten rounds, the key raised between them."""
    a, b, c, d = counter
    for turn in range(10):
        left, right = (
            (key[0] + turn * 0x9E3779B97F4A7C15) % 2**64,
            (key[1] + turn * 0xBB67AE8584CAA73B) % 2**64,
        )
        first, second = 0xD2E7470EE14C6C93 * a, 0xCA5A826395121157 * c
        a, b, c, d = second >> 64 ^ b ^ left, second % 2**64, first >> 64 ^ d ^ right, first % 2**64
    return [a, b, c, d]


@pytest.mark.parametrize("modes", [1, 2, 3])
@pytest.mark.parametrize("kind", [WordStream, HostStream, DeviceStream])
def test_words_and_bits_are_those_of_the_specification(kind: type[WordStream], modes: int) -> None:
    """By hand, as docs/format.md says: draw s of seed 1 of fc.weight."""
    tensor = int.from_bytes(hashlib.sha256(b"fc.weight").digest()[:8], "little")
    for s in range(4 * modes + 1):
        ours = kind(WhichDraw.of(1, s, modes), tensor=tensor)
        for part, block in ((0, 0), (3, 2**40)):
            words = plain_philox([1, s // modes // 2], [block, part, tensor, s % modes])
            bits = sum(word << 64 * i for i, word in enumerate(words))
            if (s // modes) % 2:
                bits = 2**256 - 1 - bits
            sixteens = [bits >> 16 * j & 0xFFFF for j in range(16)]
            assert ours.words(part, 16 * block, 16).tolist() == sixteens
            assert ours.look_up(RAMP, part, 16 * block, 16).tolist() == sixteens
            signs = [2 * (bits >> j & 1) - 1 for j in range(256)]
            assert ours.signs(part, 256 * block, 256).tolist() == signs


def test_key_and_counter_are_laid_out_as_the_format_says() -> None:
    """numpy counts up before each block, so that block 5 follows counter 4."""
    seed, pair, mode, tensor, part = 11, 22, 33, 2**64 - 5, 4
    generator = np.random.Philox(
        key=np.array([seed, pair], np.uint64), counter=np.array([4, part, tensor, mode], np.uint64)
    )
    expected = generator.random_raw(8).astype("<u8").view("<u2")
    np.testing.assert_array_equal(stream(seed, pair, mode, tensor).words(part, 5 * 16, 32), expected)


def test_the_number_of_a_tensor_comes_from_its_name() -> None:
    """The first eight bytes of the SHA-256 of "abc", FIPS 180-2, appendix B.1."""
    assert tensor_number("abc") == int.from_bytes(bytes.fromhex("ba7816bf8f01cfea"), "little")


SLICES = [(0, 1), (0, 100), (5, 1000), (17, 70_000), (32_768, 32_768), (99_991, 100_003), (7, 0)]


@pytest.mark.parametrize(("start", "count"), SLICES)
def test_a_slice_drawn_alone_is_that_slice_of_the_whole(start: int, count: int) -> None:
    whole, end = stream(), start + count
    for part in (0, 2):
        words, signs = whole.words(part, 0, end), whole.signs(part, 0, end)
        np.testing.assert_array_equal(whole.words(part, start, count), words[start:])
        np.testing.assert_array_equal(whole.look_up(RAMP, part, start, count), words[start:])
        np.testing.assert_array_equal(whole.signs(part, start, count), signs[start:])
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")  # the same words, read bit by bit
        kept = min(len(bits), end)
        np.testing.assert_array_equal(signs[:kept], 2.0 * bits[:kept] - 1)


@pytest.mark.parametrize(("start", "count"), SLICES)
@pytest.mark.parametrize(
    "place",
    [{}, {"mirrored": True}, {"seed": 2**64 - 1, "pair": 2**63, "mode": 2**64 - 1, "tensor": 2**63}],
)
def test_torchs_integers_are_numpys(start: int, count: int, place: dict[str, int]) -> None:
    numpy, torchs = stream(**place), on_device(**place)
    for part in (0, 3):
        assert torchs.words(part, start, count).tolist() == numpy.words(part, start, count).tolist()
        z = torchs.look_up(tables.gaussian(), part, start, count)
        assert z.numpy().tobytes() == numpy.look_up(tables.gaussian(), part, start, count).tobytes()
        assert torchs.signs(part, start, count).numpy().tobytes() == numpy.signs(part, start, count).tobytes()


def test_the_cpu_takes_numpys_words_and_other_devices_make_their_own() -> None:
    which = WhichDraw.of(0, 0)
    assert type(stream_on(CPU, which, tensor=1)) is HostStream
    assert type(stream_on(torch.device("meta"), which, tensor=1)) is DeviceStream


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.corrcoef(a, b)[0, 1]) * len(a) ** 0.5  # in standard errors


N = 1 << 20
OTHERS = [
    {},
    {"seed": 4},
    {"seed": 3 + 2**63},
    {"pair": 2},
    {"pair": 1 + 2**40},
    {"mode": 1},
    {"tensor": WEIGHT + 1},
    {"tensor": tensor_number("layer1.0.conv2.weight")},
    {"seed": 1, "pair": 3},  # swapped
]


def test_streams_of_other_seeds_pairs_modes_tensors_and_parts_are_independent() -> None:
    table = tables.gaussian()
    z = [stream(**place).look_up(table, 0, 0, N) for place in OTHERS]
    z += [stream().look_up(table, 1, 0, N), stream().look_up(table, 0, N, N)]
    for i, a in enumerate(z):
        for b in z[:i]:
            assert abs(correlation(a, b)) < 4.5
            assert abs(correlation(a**2, b**2)) < 4.5
    mixed = 0.01 * z[0] + z[1]  # the control: one per cent of another stream is seen
    assert abs(correlation(mixed, z[0])) > 4.5


def test_one_element_over_many_pairs_and_seeds_is_a_sample_of_the_law() -> None:
    """What a Monte Carlo average over draws s = 0, 1, 2 ... stands on."""
    for step in ({"pair": 1}, {"seed": 1}):
        places = [{key: value * i for key, value in step.items()} for i in range(20_000)]
        z = np.stack(
            [stream(**place).look_up(tables.gaussian(), 0, 0, 16) for place in places]
        )  # [draws, elements]
        count = len(z)
        level = scipy.stats.norm.cdf(np.sort(z, 0)) - ((np.arange(count) + 0.5) / count)[:, None]
        assert np.abs(level).max() < 2.6 / count**0.5  # Kolmogorov, for the worst of 16 elements
        assert np.abs(np.corrcoef(z.T) - np.eye(16)).max() < 4.5 / count**0.5
        for lag in (1, 2, 8):
            assert max(abs(correlation(a[lag:], a[:-lag])) for a in z.T) < 4.5


def test_neighbouring_elements_are_independent() -> None:
    z, signs = stream().look_up(tables.gaussian(), 0, 0, N), stream().signs(0, 0, N)
    for x in (z, z**2, signs):
        for lag in (1, 2, 3, 4, 7, 8, 15, 16, 63, 64, 256, 1 << 15, 1 << 16):
            assert abs(correlation(x[lag:], x[:-lag])) < 4.5


def test_words_and_signs_are_uniform() -> None:
    counts = np.bincount(stream().words(0, 0, 64 * N) >> 4, minlength=4096)
    chi = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
    assert abs(chi - 4095) < 4.5 * (2 * 4095) ** 0.5
    assert abs(stream().signs(0, 0, 64 * N).sum(dtype=np.float64)) < 4.5 * (64 * N) ** 0.5
    for low, high in pairwise(range(0, 17, 4)):  # every bit of a word
        bits = (stream().words(0, 0, N)[:, None] >> np.arange(low, high)) & 1
        assert (abs(bits.sum(0) - N / 2) < 4.5 * (N / 4) ** 0.5).all()


def test_drawing_needs_no_torch_and_no_scipy() -> None:
    script = (
        "import sys; sys.modules['torch'] = sys.modules['scipy'] = None\n"
        "from pocketbayes.drawing import WhichDraw, WordStream, shape_of, tensor_number\n"
        "stream = WordStream(WhichDraw.of(0, 0), tensor=tensor_number('w'))\n"
        "assert len(stream.look_up(shape_of({'family': 'StudentT', 'df': 3.0}).values, 0, 0, 9)) == 9\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
