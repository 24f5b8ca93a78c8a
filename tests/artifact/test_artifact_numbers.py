from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pocketbayes.artifact import numbers
from pocketbayes.errors import ArtifactError

quick = settings(deadline=None, derandomize=True, max_examples=60)
floats = hnp.arrays(np.float32, st.integers(0, 30), elements=st.floats(-(2.0**100), 2.0**100, width=32))
positives = hnp.arrays(np.float32, st.integers(0, 30), elements=st.floats(2.0**-126, 2.0**127, width=32))


@quick
@given(floats, st.sampled_from(numbers.SHORT))
def test_short_floats_keep_their_stated_precision(values: np.ndarray, bits: int) -> None:
    back = numbers.unpack(numbers.pack(values, f"h{bits}"), f"h{bits}").astype(np.float64)
    wide = values.astype(np.float64)
    allowed = np.maximum(2.0 ** (5 - bits) * np.abs(wide), 2.0 ** (-22 - bits) * np.abs(wide).max(initial=0))
    assert (np.abs(back - wide) <= np.maximum(allowed, 2.0**-149)).all()


def test_the_stated_precision_is_not_generous() -> None:
    values = (1 + np.arange(4096) / 4096).astype(np.float32)
    back = numbers.unpack(numbers.pack(values, "h16"), "h16")
    assert np.abs(back / values - 1).max() > 0.9 * 2.0**-11


@quick
@given(positives, st.sampled_from(numbers.POSITIVE))
def test_positive_floats_stay_positive_within_their_precision(values: np.ndarray, bits: int) -> None:
    back = numbers.unpack(numbers.pack(values, f"p{bits}"), f"p{bits}").astype(np.float64)
    assert (back > 0).all()
    assert (np.abs(back / values - 1) <= 2.0 ** (7 - bits)).all()


@quick
@given(floats, st.sampled_from([f"h{b}" for b in numbers.SHORT]))
def test_rounding_twice_changes_nothing(values: np.ndarray, code: str) -> None:
    once = numbers.pack(values, code)
    assert numbers.pack(numbers.unpack(once, code), code) == once


@quick
@given(positives, st.sampled_from([f"p{b}" for b in numbers.POSITIVE]))
def test_rounding_positive_floats_twice_changes_nothing(values: np.ndarray, code: str) -> None:
    once = numbers.pack(values, code)
    assert numbers.pack(numbers.unpack(once, code), code) == once


@pytest.mark.parametrize("largest", [1.0, 0.99999, 2.0**-130, 3.0e38])
def test_a_largest_number_that_rounds_to_the_next_power_of_two_is_stable(largest: float) -> None:
    values = np.float32([largest, largest * 1e-9, -largest / 3])
    once = numbers.pack(values, "h16")
    assert numbers.pack(numbers.unpack(once, "h16"), "h16") == once


def test_tiny_sigmas_beside_large_ones_keep_their_precision() -> None:
    sigma = np.float32([1e-6, 3e-12, 0.5, 7.0])
    back = numbers.unpack(numbers.pack(sigma, "p16"), "p16")
    assert np.allclose(back, sigma, rtol=2.0**-9, atol=0)
    assert (sigma.astype(np.float16)[:2] == [np.float16(1e-6), 0]).all()  # what a plain float16 does to them


@quick
@given(hnp.arrays(np.int64, st.integers(0, 9), elements=st.integers(-(2**63), 2**63 - 1)))
def test_integers_are_exact_in_the_narrowest_width(values: np.ndarray) -> None:
    code = numbers.plain_code(values, "int64", 16)
    back = numbers.read(numbers.pack(values, code), code, values.shape, "int64", "x")
    assert (back == values).all()
    narrower = {"1": None, "2": "1", "4": "2", "8": "4"}[code[1]]
    if narrower is not None:
        info = np.iinfo(np.dtype(code[0] + narrower))
        assert values.min() < info.min or values.max() > info.max


@pytest.mark.parametrize(
    ("size", "code", "taken"), [(0, "h16", 0), (3, "h16", 7), (3, "h12", 6), (9, "t1", 2), (2, "c16", 32)]
)
def test_the_bytes_an_array_takes_are_known_beforehand(size: int, code: str, taken: int) -> None:
    assert numbers.nbytes(code, size) == taken
    assert len(numbers.pack(np.ones(size, "complex128" if code[0] == "c" else "float32"), code)) == taken


def test_buffers_with_infinities_are_kept_as_they_are() -> None:
    mask = np.float32([[0, -np.inf], [0, 0]])
    assert numbers.plain_code(mask, "float32", 16) == "f4"
    assert numbers.plain_code(np.float32([0, np.finfo(np.float32).min]), "float32", 16) == "f4"
    assert numbers.plain_code(np.float32([0, 1]), "float32", 16) == "h16"


def test_a_number_too_large_for_its_type_is_refused() -> None:
    with pytest.raises(ArtifactError, match="does not fit int8"):
        numbers.read(numbers.pack(np.array([300]), "u2"), "u2", (1,), "int8", "x")
