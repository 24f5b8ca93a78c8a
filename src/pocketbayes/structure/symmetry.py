"""Which permutations and sign flips of neurons remain once weights are fixed.

They are the automorphisms of a graph: vertices are neurons, edges the fixed weights labelled with their values;
free weights carry no label, inputs and outputs have colours of their own.  With odd activations each neuron becomes
a pair (+, -), joined by an edge, and a weight of value x joins equal signs with label x and unequal ones with -x:
automorphisms are then signed permutations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pocketbayes.structure.automorphisms import IntArray, Part, connected, count_automorphisms, undirected
from pocketbayes.structure.network import NeuronGraph, NeuronLayer
from pocketbayes.structure.schemes import FixedPart


@dataclass(frozen=True, kw_only=True)
class Symmetry:
    """How many symmetries a network has, as exact integers."""

    permutations: int  # of neurons, without sign changes
    flips: int  # of signs alone, neurons in place; 1 without odd activations
    signed: int  # permutations and flips together, at least their product

    @property
    def log10_permutations(self) -> float:
        return math.log10(self.permutations)

    @property
    def log10_flips(self) -> float:
        return math.log10(self.flips)

    @property
    def log10_signed(self) -> float:
        return math.log10(self.signed)

    def __str__(self) -> str:
        text = f"10^{self.log10_permutations:.2f} permutations"
        if self.signed == self.permutations:
            return text
        return f"{text}, 10^{self.log10_flips:.2f} sign flips, 10^{self.log10_signed:.2f} together"


def residual_symmetry(graph: NeuronGraph, fixed: Mapping[str, FixedPart] | None = None) -> Symmetry:
    """The symmetries that remain with these weights fixed, by name; of the bare network if none are."""
    fixed = fixed or {}
    if unknown := set(fixed) - {weight.name for weight in graph.weights}:
        raise ValueError(f"fixed: {sorted(unknown)} are not weights of this graph. It has {graph.weights}.")
    edges = fixed_edges(graph, fixed)
    permutations = count_automorphisms(labelled_graph(graph, edges, signed=False))
    if not any(group.odd for group in graph.groups):
        return Symmetry(permutations=permutations, flips=1, signed=permutations)
    signed = count_automorphisms(labelled_graph(graph, edges, signed=True))
    return Symmetry(permutations=permutations, flips=count_flips(graph, edges), signed=signed)


# --- from a network to a labelled graph ---------------------------------------------------------------------


class Edges(NamedTuple):
    """Fixed weights as edges between neurons.  Equal labels: same layer, same slots, same values."""

    tail: IntArray  # [E]
    head: IntArray  # [E]
    label: IntArray  # [E]
    negative: IntArray  # [E] the label that the values with their signs changed would have
    nonzero: NDArray[np.bool_]  # [E] a change of one end's sign changes the values


def fixed_edges(graph: NeuronGraph, fixed: Mapping[str, FixedPart]) -> Edges:
    """Fixed weights, and ties as weights fixed to one (to zero if the signs of the two ends are free)."""
    parts, offset = [_no_edges()], 0
    parts += [_layer_edges(layer, fixed.get(layer.weight.name)) for layer in graph.layers]
    for tie in graph.ties:
        ones = np.full((len(tie.left.neurons), 1), float(tie.signed))
        slots = np.stack([tie.left.slots, tie.right.slots], axis=1)
        parts.append(_edges(tie.left.neurons, tie.right.neurons, slots, np.ones_like(ones, bool), ones))
    for number, part in enumerate(parts):  # labels of different layers must differ
        parts[number] = part._replace(label=part.label + offset, negative=part.negative + offset)
        offset += int(max(part.label.max(initial=-1), part.negative.max(initial=-1))) + 1
    return Edges(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _no_edges() -> Edges:
    none = np.zeros(0, np.int64)
    return Edges(none, none, none, none, none.astype(bool))


def _layer_edges(layer: NeuronLayer, fixed: FixedPart | None) -> Edges:
    """One edge for each kernel with fixed entries.

    In a grouped convolution the absent kernels are zeros fixed for good.  These are nearly all, so there zero is
    what carries no label, and free kernels are labelled instead.
    """
    shape = layer.weight.shape
    if fixed is None and layer.groups == 1:
        return _no_edges()
    mask = np.zeros(shape, bool) if fixed is None else np.asarray(fixed.mask, bool)
    values = np.zeros(shape) if fixed is None else np.asarray(fixed.values, np.float64)
    if mask.shape != shape or values.shape != shape:
        raise ValueError(
            f"{layer.weight.name}: mask {mask.shape} and values {values.shape} must have shape {shape}."
        )
    mask, values = mask.reshape(shape[0] * shape[1], -1), values.reshape(shape[0] * shape[1], -1)
    values = np.where(mask, values, 0.0)
    chosen = np.flatnonzero(mask.any(1) if layer.groups == 1 else ~mask.all(1) | values.any(1))
    inputs, outputs = (ends[chosen] for ends in layer.ends())
    slots = np.stack([layer.inputs.slots[inputs], layer.outputs.slots[outputs]], axis=1)
    tail, head = layer.inputs.neurons[inputs], layer.outputs.neurons[outputs]
    return _edges(tail, head, slots, mask[chosen], values[chosen])


def _edges(
    tail: IntArray, head: IntArray, slots: IntArray, mask: NDArray[np.bool_], values: NDArray[np.float64]
) -> Edges:
    where = np.concatenate([slots, mask.astype(np.int64)], axis=1)  # [E, 2 + kernel]
    columns = [np.tile(column, 2) for column in where.T]
    columns += [np.concatenate([column, -column]) + 0.0 for column in values.T]  # + 0.0 turns -0.0 into 0.0
    label, negative = np.split(_row_numbers(columns, 2 * len(tail)), 2)
    return Edges(tail, head, label, negative, (values != 0).any(axis=1))


def _row_numbers(columns: list[IntArray | NDArray[np.float64]], rows: int) -> IntArray:
    """Equal numbers for equal rows of a table given by its columns."""
    numbers = np.zeros(rows, np.int64)
    for column in columns:
        kinds, values = np.unique(column, return_inverse=True)
        numbers = np.unique(numbers * len(kinds) + values, return_inverse=True)[1]
    return numbers


def count_flips(graph: NeuronGraph, edges: Edges) -> int:
    """2^n for n sets of odd neurons that non-zero fixed weights join, and join to no neuron that is not odd."""
    odd = _odd_neurons(graph)
    labels = connected(graph.size, edges.tail[edges.nonzero], edges.head[edges.nonzero])
    free = np.ones(graph.size, bool)
    np.logical_and.at(free, labels, odd)
    return 1 << len(np.unique(labels[free[labels]]))


def _odd_neurons(graph: NeuronGraph) -> NDArray[np.bool_]:
    odd = np.zeros(graph.size, bool)
    for group in graph.groups:
        odd[group.neurons] = group.odd
    return odd


def labelled_graph(graph: NeuronGraph, edges: Edges, signed: bool) -> Part:
    """The coloured graph whose automorphisms are the (signed) permutations that keep the fixed weights."""
    odd = _odd_neurons(graph) & signed
    minus = np.arange(graph.size)
    minus[odd] = graph.size + np.arange(odd.sum())  # the vertex of a neuron with its sign changed
    colours = np.zeros(graph.size + int(odd.sum()), np.uint64)
    for number, group in enumerate(graph.groups):
        colours[group.neurons] = number
        if group.distinguished:
            colours[group.neurons] = len(graph.groups) + group.neurons
    colours[minus] = colours[: graph.size]
    tail, head, antipode = (
        edges.tail,
        edges.head,
        int(max(edges.label.max(initial=0), edges.negative.max(initial=0))),
    )
    lifts = [(tail, head, edges.label)]
    lifts += [(minus[tail], head, edges.negative), (tail, minus[head], edges.negative)]
    lifts += [(minus[tail], minus[head], edges.label)]
    moved = [odd[tail] | True, odd[tail], odd[head], odd[tail] & odd[head]]
    lifts = [(t[keep], h[keep], label[keep]) for (t, h, label), keep in zip(lifts, moved, strict=True)]
    pairs = np.flatnonzero(odd)
    antipodal = np.full(len(pairs), antipode + 1)
    lifts += [(pairs, minus[pairs], antipodal), (minus[pairs], pairs, antipodal)]
    return undirected(colours, *(np.concatenate(column) for column in zip(*lifts, strict=True)))
