"""Residual symmetries: known numbers, and brute force over all signed permutations."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pocketbayes.structure import (
    MAP,
    Constant,
    FixedPart,
    Heavy,
    Light,
    NeuronGraph,
    Random,
    Scheme,
    Values,
    Zero,
    fix_weights,
    neuron_graph,
    residual_symmetry,
)


def mlp(*widths: int, activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    layers = [(nn.Linear(a, b), activation()) for a, b in itertools.pairwise(widths)]
    return nn.Sequential(*[module for pair in layers for module in pair][:-1])


def distinct(graph: NeuronGraph) -> MAP:
    """Values that are all different, in size too."""
    rng = np.random.default_rng(0)
    return MAP({w.name: 1 + rng.permutation(math.prod(w.shape)).reshape(w.shape) for w in graph.weights})


def log10_factorial(n: int) -> float:
    return math.lgamma(n + 1) / math.log(10)


# --- the numbers known beforehand -------------------------------------------------------------------------------


def test_bare_networks_have_all_permutations_and_flips() -> None:
    bare = residual_symmetry(neuron_graph(mlp(1, 50, 50, 1)))
    assert bare.log10_permutations == pytest.approx(128.97, abs=5e-3)
    assert bare.permutations == math.factorial(50) ** 2
    assert bare.flips == 2**100
    assert bare.signed == bare.permutations * bare.flips


def test_networks_without_odd_activations_have_no_flips() -> None:
    bare = residual_symmetry(neuron_graph(mlp(1, 50, 50, 1, activation=nn.ReLU)))
    assert (bare.flips, bare.signed) == (1, bare.permutations)


def test_light_zero_leaves_joint_permutations() -> None:
    graph = neuron_graph(mlp(1, 50, 50, 1))
    left = residual_symmetry(graph, fix_weights(graph.weights, Light(), Zero()))
    assert left.permutations == math.factorial(49)
    assert left.log10_permutations == pytest.approx(62.78, abs=5e-3)


@pytest.mark.parametrize("seed", range(3))
def test_light_with_random_signs_leaves_those_among_equal_signs(seed: int) -> None:
    graph = neuron_graph(mlp(1, 50, 50, 1))
    fixed = fix_weights(graph.weights, Light(), Constant(3.0, seed=seed))
    values = fixed["2.weight"].values
    positive, negative = (values > 0).sum(), (values < 0).sum()
    assert positive + negative == 49
    left = residual_symmetry(graph, fixed)
    assert left.log10_permutations == pytest.approx(log10_factorial(positive) + log10_factorial(negative))


def test_heavy_and_distinct_values_leave_no_permutation() -> None:
    graph = neuron_graph(mlp(1, 50, 50, 1))
    for scheme, values in [
        (Heavy(), Zero()),
        (Heavy(), Constant(1.0)),
        (Heavy(), distinct(graph)),
        (Light(), distinct(graph)),
    ]:
        assert residual_symmetry(graph, fix_weights(graph.weights, scheme, values)).permutations == 1


def test_wide_networks_keep_what_the_schemes_cannot_reach() -> None:
    graph = neuron_graph(mlp(8, 50, 50, 2))
    left = residual_symmetry(graph, fix_weights(graph.weights, Light(), Zero()))
    assert left.permutations == math.factorial(42)
    narrow = neuron_graph(mlp(8, 12, 1))
    for scheme in (Light(), Heavy()):
        assert residual_symmetry(narrow, fix_weights(narrow.weights, scheme, Zero())).permutations == 120


@pytest.mark.parametrize(
    ("scheme", "counts"), [(Light(), (1536, 192, 32)), (Heavy(), (256, 8, 8))], ids=["light", "heavy"]
)
def test_signed_permutations_of_a_small_network(scheme: Scheme, counts: tuple[int, int, int]) -> None:
    graph = neuron_graph(mlp(1, 4, 4, 1))
    for values, count in zip((Zero(), Constant(1.0), distinct(graph)), counts, strict=True):
        assert residual_symmetry(graph, fix_weights(graph.weights, scheme, values)).signed == count


# --- brute force --------------------------------------------------------------------------------------------------


def signed_permutations(size: int, signed: bool) -> tuple[np.ndarray, np.ndarray]:
    """All (permutation, signs) of `size` neurons, [G, size] each."""
    signs = list(itertools.product((1, -1) if signed else (1,), repeat=size))
    pairs = list(itertools.product(itertools.permutations(range(size)), signs))
    return np.array([p for p, _ in pairs]), np.array([s for _, s in pairs])


def brute_force(labels: list[np.ndarray], signed: bool) -> int:
    """Permutations of two hidden layers that keep all fixed entries; labels are [in, out], NaN where free."""
    first, second, third = labels
    left = signed_permutations(first.shape[1], signed)
    right = signed_permutations(third.shape[0], signed)
    keeps_first = [np.array_equal(first[:, p] * s, first, equal_nan=True) for p, s in zip(*left, strict=True)]
    keeps_third = [
        np.array_equal(third[p] * s[:, None], third, equal_nan=True) for p, s in zip(*right, strict=True)
    ]
    right = right[0][keeps_third], right[1][keeps_third]
    total = 0
    for p, s in zip(left[0][keeps_first], left[1][keeps_first], strict=True):
        moved = (second[p] * s[:, None])[:, right[0]].transpose(1, 0, 2) * right[1][
            :, None, :
        ]  # [G, in, out]
        same = (moved == second) | (np.isnan(moved) & np.isnan(second))
        total += int(same.all(axis=(1, 2)).sum())
    return total


def labels_of(graph: NeuronGraph, fixed: dict[str, FixedPart]) -> list[np.ndarray]:
    free = [np.full(weight.shape[::-1], np.nan) for weight in graph.weights]
    for number, weight in enumerate(graph.weights):
        if (part := fixed.get(weight.name)) is not None:
            free[number] = np.where(part.mask, part.values, np.nan).T
    return free


@pytest.mark.parametrize("widths", [(1, 4, 4, 1), (2, 3, 3, 1), (1, 3, 4, 2), (3, 4, 2, 2), (2, 4, 3, 3)])
@pytest.mark.parametrize("scheme", [Light(), Heavy(), Random(like=Light(), seed=1), Random(count=2, seed=2)])
def test_brute_force_agrees_on_every_scheme(widths: tuple[int, ...], scheme: Scheme) -> None:
    graph = neuron_graph(mlp(*widths))
    values: list[Values] = [Zero(), Constant(1.0, seed=4), distinct(graph)]
    for value in values:
        fixed = fix_weights(graph.weights, scheme, value)
        found = residual_symmetry(graph, fixed)
        assert found.permutations == brute_force(labels_of(graph, fixed), signed=False)
        assert found.signed == brute_force(labels_of(graph, fixed), signed=True)


@settings(deadline=None, derandomize=True, max_examples=150)
@given(st.data())
def test_brute_force_agrees_on_arbitrary_masks(data: st.DataObject) -> None:
    widths = [data.draw(st.integers(1, 3)) for _ in range(4)]
    graph = neuron_graph(mlp(*widths))
    entries = st.sampled_from([np.nan, np.nan, 0.0, 1.0, -1.0, 2.0])
    labels = [
        np.array([[data.draw(entries) for _ in range(b)] for _ in range(a)])
        for a, b in itertools.pairwise(widths)
    ]
    fixed = {
        weight.name: FixedPart({}, ~np.isnan(label.T), np.nan_to_num(label.T))
        for weight, label in zip(graph.weights, labels, strict=True)
    }
    found = residual_symmetry(graph, fixed)
    assert found.permutations == brute_force(labels, signed=False)
    assert found.signed == brute_force(labels, signed=True)
    assert found.flips <= found.signed
    assert found.signed % found.flips == 0
    assert found.signed % found.permutations == 0


def test_flips_alone_agree_with_brute_force() -> None:
    graph = neuron_graph(mlp(1, 4, 4, 1))
    for scheme, values in [(Light(), Constant(1.0)), (Heavy(), Constant(1.0)), (Light(), Zero())]:
        fixed = fix_weights(graph.weights, scheme, values)
        label = np.nan_to_num(labels_of(graph, fixed)[1])
        signs = list(itertools.product((1, -1), repeat=4))
        kept = sum(np.array_equal(label * np.outer(s, t), label) for s in signs for t in signs)
        assert residual_symmetry(graph, fixed).flips == kept


def cycles(*lengths: int) -> np.ndarray:
    """A square mask along disjoint cycles: each input is joined to two outputs, each output to two inputs."""
    size, start = sum(lengths), 0
    matrix = np.zeros((size, size), bool)
    for length in lengths:
        for i in range(length):
            matrix[start + i, start + i] = matrix[start + i, start + (i + 1) % length] = True
        start += length
    return matrix


@pytest.mark.parametrize(
    ("lengths", "count"), [((6,), 12), ((3, 3), 2 * 6**2), ((2, 4), 4 * 8), ((3, 2, 3), 2 * 6**2 * 4)]
)
def test_neurons_that_refinement_cannot_tell_apart_are_told_apart_by_search(
    lengths: tuple[int, ...], count: int
) -> None:
    """All neurons have two fixed weights, so colours never split.  A ring of n inputs and n outputs has n rotations

    and n reflections that keep inputs and outputs apart; equal rings also swap.
    """
    size = sum(lengths)
    graph = neuron_graph(mlp(1, size, size, 1, activation=nn.ReLU))
    mask = cycles(*lengths)
    fixed = {"2.weight": FixedPart({}, mask, np.zeros(mask.shape))}
    assert residual_symmetry(graph, fixed).permutations == count


def test_values_of_another_shape_or_name_are_refused() -> None:
    graph = neuron_graph(mlp(1, 3, 3, 1))
    with pytest.raises(ValueError, match=r"nowhere.*not weights"):
        residual_symmetry(graph, {"nowhere": FixedPart({}, np.ones((3, 3), bool), np.zeros((3, 3)))})
    with pytest.raises(ValueError, match=r"2\.weight: mask \(2, 3\)"):
        residual_symmetry(graph, {"2.weight": FixedPart({}, np.ones((2, 3), bool), np.zeros((3, 3)))})


def test_the_report_reads_well() -> None:
    graph = neuron_graph(mlp(1, 50, 50, 1, activation=nn.ReLU))
    assert str(residual_symmetry(graph)) == "10^128.97 permutations"
    odd = residual_symmetry(neuron_graph(mlp(1, 50, 50, 1)))
    assert str(odd) == "10^128.97 permutations, 10^30.10 sign flips, 10^159.07 together"


def test_a_network_of_two_thousand_neurons_takes_seconds() -> None:
    graph = neuron_graph(mlp(64, 1024, 1024, 10))
    start = time.perf_counter()
    left = residual_symmetry(graph, fix_weights(graph.weights, Light(), Constant(1.0)))
    assert time.perf_counter() - start < 10
    assert 0 < left.log10_permutations < 2 * log10_factorial(1024)
