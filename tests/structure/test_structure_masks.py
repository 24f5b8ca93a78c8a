"""Masks written out by hand, and what schemes and fixed values promise."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketbayes.drawing import masks
from pocketbayes.structure import (
    MAP,
    Constant,
    Heavy,
    Light,
    Random,
    Weight,
    Zero,
    count_fixed,
    fix_weights,
    mask_from_rule,
    random_signs,
)

# Written [inputs][outputs]: a row per input, a column per output, 1 where the weight is fixed.
LIGHT = {
    ("square", 0): ["0100", "0010", "0001", "0000"],
    ("square", 1): ["0000", "0001", "0010", "0100"],
    ("square", 2): ["0100", "0010", "0001", "0000"],
    ("narrow", 0): ["010", "001", "000", "000", "000"],  # 5 inputs, 3 outputs: the block is in the first rows
    ("narrow", 3): ["000", "001", "010", "000", "000"],
    ("wide", 0): ["00010", "00001", "00000"],  # 3 inputs, 5 outputs: the block is in the last columns
    ("wide", 1): ["00000", "00001", "00010"],
}
HEAVY = {
    ("square", 0): ["0111", "0011", "0001", "0000"],
    ("square", 1): ["0000", "0001", "0011", "0111"],
    ("narrow", 2): ["011", "001", "000", "000", "000"],
    ("narrow", 1): ["000", "001", "011", "000", "000"],
    ("wide", 0): ["00011", "00001", "00000"],
    ("wide", 3): ["00000", "00001", "00011"],
}


def by_hand(rows: list[str]) -> np.ndarray:
    return np.array([[digit == "1" for digit in row] for row in rows])


@pytest.mark.parametrize(("case", "rows"), LIGHT.items())
def test_light_masks_are_those_written_by_hand(case: tuple[str, int], rows: list[str]) -> None:
    matrix = by_hand(rows)
    mask = Light().mask(case[1], Weight("w", matrix.T.shape))  # torch's layout is [out, in]
    np.testing.assert_array_equal(mask, matrix.T)


@pytest.mark.parametrize(("case", "rows"), HEAVY.items())
def test_heavy_masks_are_those_written_by_hand(case: tuple[str, int], rows: list[str]) -> None:
    matrix = by_hand(rows)
    mask = Heavy().mask(case[1], Weight("w", matrix.T.shape))
    np.testing.assert_array_equal(mask, matrix.T)


def test_convolutions_have_whole_kernels_fixed() -> None:
    mask = Light().mask(0, Weight("conv.weight", (5, 3, 2, 3)))
    expected = by_hand(LIGHT["wide", 0]).T
    for y in range(2):
        for x in range(3):
            np.testing.assert_array_equal(mask[:, :, y, x], expected)


def test_transposed_convolutions_have_inputs_first() -> None:
    mask = Heavy().mask(1, Weight("up.weight", (3, 5, 2), transposed=True))
    np.testing.assert_array_equal(mask[:, :, 1], by_hand(["00000", "00001", "00011"]))


@settings(deadline=None, derandomize=True)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 5), st.integers(1, 3))
def test_light_fixes_m_minus_one_and_heavy_a_triangle(
    rows: int, columns: int, layer: int, kernel: int
) -> None:
    weight, m = Weight("w", (rows, columns, kernel)), min(rows, columns)
    assert Light().mask(layer, weight).sum() == kernel * (m - 1)
    assert Heavy().mask(layer, weight).sum() == kernel * m * (m - 1) // 2


@settings(deadline=None, derandomize=True)
@given(st.integers(2, 9), st.integers(2, 9), st.integers(0, 3), st.integers(0, 2**40))
def test_the_random_control_fixes_as_many_whole_kernels(
    rows: int, columns: int, layer: int, seed: int
) -> None:
    weight = Weight("w", (rows, columns, 2, 2))
    mask = Random(like=Heavy(), seed=seed).mask(layer, weight)
    assert mask.sum() == Heavy().mask(layer, weight).sum()
    kernels = mask.reshape(rows, columns, 4)
    assert (kernels.all(2) == kernels.any(2)).all()


def test_random_places_are_spread_evenly() -> None:
    weight, draws = Weight("w", (4, 5)), 2000
    counts = sum(Random(count=5, seed=seed).mask(0, weight).astype(int) for seed in range(draws))
    error = math.sqrt(draws * 0.25 * 0.75)
    assert np.abs(counts - draws / 4).max() < 4.5 * error
    biased = sum(Light().mask(0, weight).astype(int) for _ in range(draws))
    assert np.abs(biased - draws / 4).max() > 4.5 * error


def test_random_places_and_signs_never_change() -> None:
    """Files carry the seed alone, so these bits must be the same for ever."""
    mask = Random(count=4, seed=0).mask(1, Weight("w", (4, 3)))
    np.testing.assert_array_equal(mask.T, by_hand(["0000", "1001", "0011"]))
    assert random_signs((2, 5), 1, 0).tolist() == [[1, -1, 1, -1, 1], [-1, -1, 1, -1, 1]]
    assert random_signs((70,), 2, 3)[60:].tolist() == [-1, 1, -1, -1, -1, -1, 1, 1, -1, 1]


@pytest.mark.parametrize("scheme", [Light(), Heavy(), Random(count=3, seed=7)])
def test_a_rule_survives_json(scheme: Light | Heavy | Random) -> None:
    for weight in (Weight("a", (4, 6, 3, 3)), Weight("b", (6, 4, 2), transposed=True)):
        rule = json.loads(json.dumps(scheme.rule(1, weight)))
        np.testing.assert_array_equal(mask_from_rule(rule), scheme.mask(1, weight))


def test_different_layers_and_seeds_have_different_places() -> None:
    weight = Weight("w", (20, 20))
    masks = [Random(count=100, seed=seed).mask(layer, weight) for seed, layer in ((0, 0), (0, 1), (1, 0))]
    assert not any((masks[i] == masks[j]).all() for i, j in ((0, 1), (0, 2), (1, 2)))


def test_constants_have_one_size_and_about_even_signs() -> None:
    weight = Weight("w", (100, 100))
    values = Constant(0.5, seed=3).of(2, weight)
    assert set(np.unique(values)) == {-0.5, 0.5}
    assert abs(values.mean() / 0.5) < 4 / math.sqrt(values.size)


def test_fixed_values_are_zero_constant_or_map_where_fixed() -> None:
    weights = [Weight("a", (4, 3)), Weight("b", (4, 4)), Weight("c", (1, 4))]
    trained = {name: torch.randn(shape, requires_grad=True) for name, shape, _ in weights}
    for name, part in fix_weights(weights, Heavy(), MAP(trained)).items():
        assert (part.values[~part.mask] == 0).all()
        expected = trained[name].detach().double().numpy()
        np.testing.assert_array_equal(part.values[part.mask], expected[part.mask])
    assert not any(part.values.any() for part in fix_weights(weights, Heavy(), Zero()).values())
    for part in fix_weights(weights, Light(), Constant(2.0)).values():
        assert set(np.abs(part.values[part.mask])) == {2.0}


def test_how_many_weights_each_scheme_fixes() -> None:
    weights = [Weight("a", (50, 8)), Weight("b", (50, 50)), Weight("c", (2, 50))]
    assert count_fixed(fix_weights(weights, Light(), Zero())) == {"a": 7, "b": 49, "c": 1}
    assert count_fixed(fix_weights(weights, Heavy(), Zero())) == {"a": 28, "b": 1225, "c": 1}
    assert count_fixed(fix_weights(weights, Random(like=Heavy()), Zero())) == {"a": 28, "b": 1225, "c": 1}


def test_weights_without_fixed_entries_are_left_out() -> None:
    weights = [Weight("a", (50, 1)), Weight("b", (50, 50)), Weight("c", (1, 50))]
    fixed = fix_weights(weights, Light(), Zero())
    assert list(fixed) == ["b"]
    assert fixed["b"].rule["layer"] == 1  # it counts all layers, not those with fixed entries


def test_meaningless_requests_say_which_layer_and_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"only.weight.*no hidden layer"):
        fix_weights([Weight("only.weight", (3, 3))], Light(), Zero())
    with pytest.raises(ValueError, match=r"Light.*fixes no entry of a \[50, 1\], b \[1, 50\]"):
        fix_weights([Weight("a", (50, 1)), Weight("b", (1, 50))], Light(), Zero())
    with pytest.raises(ValueError, match=r"^b: .*10 entries cannot be fixed in a 4 x 1"):
        fix_weights([Weight("a", (4, 4)), Weight("b", (1, 4))], Random(count=10), Zero())
    with pytest.raises(ValueError, match=r"b: MAP.*no entry"):
        fix_weights([Weight("a", (4, 4)), Weight("b", (3, 4))], Heavy(), MAP({"a": np.ones((4, 4))}))
    with pytest.raises(ValueError, match=r"a: MAP value of shape \(4, 5\)"):
        fix_weights([Weight("a", (4, 4)), Weight("b", (3, 4))], Heavy(), MAP({"a": np.ones((4, 5))}))
    with pytest.raises(ValueError, match=r"a: MAP value holds NaN"):
        fix_weights([Weight("a", (4, 4)), Weight("b", (3, 4))], Heavy(), MAP({"a": np.full((4, 4), np.nan)}))


@pytest.mark.parametrize(
    "rule",
    [
        {"rule": "medium", "layer": 0, "shape": [3, 3]},
        {"rule": ["light"], "layer": 0, "shape": [3, 3]},
        {"rule": "light", "layer": -1, "shape": [3, 3]},
        {"rule": "light", "layer": True, "shape": [3, 3]},
        {"rule": "light", "shape": [3, 3]},
        {"rule": "light", "layer": 0, "shape": [3]},
        {"rule": "light", "layer": 0, "shape": [3, -3]},
        {"rule": "light", "layer": 0, "shape": "33"},
        {"rule": "random", "layer": 0, "shape": [3, 3], "seed": 0},
        {"rule": "random", "layer": 0, "shape": [3, 3], "seed": 0, "count": 10},
        {},
    ],
)
def test_bad_rules_are_refused(rule: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="mask rule"):
        mask_from_rule(rule)


def test_bad_configurations_are_refused() -> None:
    for make in (
        lambda: Random(),
        lambda: Random(count=3, like=Light()),
        lambda: Random(count=-1),
        lambda: Random(count=1, seed=-1),
        lambda: Constant(0.0),
        lambda: Constant(float("nan")),
        lambda: Constant(1.0, seed=-1),
    ):
        with pytest.raises(ValueError, match=r"Random|Constant"):
            make()


def test_random_places_are_those_of_the_smallest_words_and_of_equal_ones_the_first(monkeypatch) -> None:
    words = np.random.default_rng(0).integers(0, 20, 60).astype(np.uint64)
    monkeypatch.setattr(masks, "_random_words", lambda count, key: words[:count])
    for count in range(61):
        expected = np.zeros(60, bool)
        expected[np.argsort(words, kind="stable")[:count]] = True
        np.testing.assert_array_equal(masks.scatter(count, 6, 10, 0, 0), expected.reshape(6, 10))
