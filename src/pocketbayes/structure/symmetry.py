"""Which permutations and sign flips of neurons remain once weights are fixed.

They are the automorphisms of a graph: vertices are neurons, edges the fixed weights labelled with their values;
free weights carry no label, inputs and outputs have colours of their own.  Refined colours only bound the orbits
from above, so they are not trusted:

* edges that join two whole colour classes alike restrict nothing; without them the graph falls into components;
* |Aut| is the product, over classes of k isomorphic components, of  k! |Aut(component)|^k;
* in a component that does not fall apart one vertex v is singled out:  |Aut| = |orbit of v| |Aut fixing v|, and
  w is in the orbit only if an isomorphism from (component, v) to (component, w) is found, by the same steps with
  backtracking.

Counts are exact integers.  With odd activations each neuron becomes a pair (+, -), joined by an edge, and a
weight of value x joins equal signs with label x and unequal ones with -x: automorphisms are then signed
permutations.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pocketbayes.structure.network import IntArray, NeuronGraph, NeuronLayer
from pocketbayes.structure.schemes import FixedPart

Colours = NDArray[np.uint64]


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
    labels = _components(graph.size, edges.tail[edges.nonzero], edges.head[edges.nonzero])
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
    return _undirected(colours, *(np.concatenate(column) for column in zip(*lifts, strict=True)))


# --- automorphisms of a labelled graph ----------------------------------------------------------------------


class Part(NamedTuple):
    """A coloured graph with labelled edges, each edge stored once in each direction."""

    colours: Colours  # [V]
    tail: IntArray  # [E]
    head: IntArray  # [E]
    label: IntArray  # [E]


class Pieces(NamedTuple):
    """What a graph falls into."""

    fingerprint: bytes  # equal for isomorphic graphs: colours, and the edges that were dropped
    singles: tuple[list[int], list[int]]  # colours of the vertices left alone, and how many have each
    parts: list[Part]  # connected, two vertices or more


def _undirected(colours: Colours, tail: IntArray, head: IntArray, label: IntArray) -> Part:
    """Both directions of each edge under labels of their own; loops become part of a vertex's colour."""
    loop = tail == head
    colours = colours.copy()
    np.add.at(colours, tail[loop], _mix(label[loop].astype(np.uint64) + np.uint64(1)))
    tail, head, label = tail[~loop], head[~loop], label[~loop]
    ends = (
        np.concatenate([tail, head]),
        np.concatenate([head, tail]),
        np.concatenate([2 * label, 2 * label + 1]),
    )
    return Part(_mix(colours), *ends)


def _mix(words: Colours) -> Colours:
    """A 64-bit hash (splitmix64): a colour's name depends on what it stands for, not on vertex numbers."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def refine(part: Part) -> Colours:
    """Colours split by the labels and colours around each vertex until no class splits further."""
    colours, classes = part.colours, len(np.unique(part.colours))
    label = _mix(part.label.astype(np.uint64))
    while True:
        around = np.zeros_like(colours)
        np.add.at(around, part.tail, _mix(label ^ colours[part.head]))
        finer = _mix(colours + _mix(around))
        split = len(np.unique(finer))
        if split == classes:
            return colours
        colours, classes = finer, split


def decompose(part: Part) -> Pieces:
    """Refine, drop edges that join two whole colour classes under one label, and split into components."""
    colours = refine(part)
    names, class_of, sizes = np.unique(colours, return_inverse=True, return_counts=True)
    labels, label = np.unique(part.label, return_inverse=True)
    key = (class_of[part.tail] * len(names) + class_of[part.head]) * len(labels) + label
    keys, kind, counts = np.unique(key, return_inverse=True, return_counts=True)
    ends, kind_label = np.divmod(keys, max(len(labels), 1))
    tail, head = np.divmod(ends, len(names))
    whole = counts == sizes[tail] * (sizes[head] - (tail == head))  # no edge from a vertex to itself
    dropped = np.stack([names[tail[whole]], names[head[whole]], labels[kind_label[whole]].astype(np.uint64)])
    fingerprint = names.tobytes() + sizes.tobytes() + dropped.tobytes()
    kept = ~whole[kind]
    rest = Part(colours, part.tail[kept], part.head[kept], part.label[kept])
    alone = np.ones(len(colours), bool)
    alone[rest.tail] = False
    single, count = np.unique(colours[alone], return_counts=True)
    return Pieces(fingerprint, (single.tolist(), count.tolist()), _split(rest, alone))


def _split(part: Part, alone: NDArray[np.bool_]) -> list[Part]:
    """The connected components, without the vertices that are alone."""
    labels = _components(len(part.colours), part.tail, part.head)
    order = np.argsort(labels, kind="stable")
    order = order[~alone[order]]
    by_edge = np.argsort(labels[part.tail], kind="stable")
    place = np.zeros(len(part.colours), np.int64)
    parts = []
    for vertices in _runs(order, labels[order]):
        place[vertices] = np.arange(len(vertices))
        parts.append(part.colours[vertices])
    edges = _runs(by_edge, labels[part.tail[by_edge]])
    return [
        Part(colours, place[part.tail[edge]], place[part.head[edge]], part.label[edge])
        for colours, edge in zip(parts, edges, strict=True)
    ]


def _runs(values: IntArray, labels: IntArray) -> list[IntArray]:
    """`values` cut where the sorted labels change."""
    if len(values) == 0:
        return []
    return np.split(values, np.flatnonzero(np.diff(labels)) + 1)


def _components(size: int, tail: IntArray, head: IntArray) -> IntArray:
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(tail), np.int8), (tail, head)), shape=(size, size))
    return np.asarray(connected_components(graph, directed=False)[1], np.int64)


def count_automorphisms(part: Part) -> int:
    """The number of permutations of the vertices that keep colours and labelled edges."""
    pieces = decompose(part)
    total = math.prod(math.factorial(count) for count in pieces.singles[1])
    for piece, copies in _isomorphism_classes(pieces.parts):
        falls_apart = len(piece.colours) < len(part.colours)
        inside = count_automorphisms(piece) if falls_apart else _count_by_orbit(piece)
        total *= math.factorial(copies) * inside**copies
    return total


def _count_by_orbit(part: Part) -> int:
    """|orbit of v| |Aut fixing v| for a vertex v of the smallest class that has several."""
    first, *others = _smallest_class(part)
    chosen = _individualised(part, first)
    orbit = 1 + sum(is_isomorphic(chosen, _individualised(part, other)) for other in others)
    return orbit * count_automorphisms(chosen)


def is_isomorphic(left: Part, right: Part) -> bool:
    """Whether some bijection carries colours and labelled edges of one graph to those of the other."""
    if len(left.colours) != len(right.colours) or len(left.label) != len(right.label):
        return False
    one, two = decompose(left), decompose(right)
    if one.fingerprint != two.fingerprint or one.singles != two.singles or len(one.parts) != len(two.parts):
        return False
    if len(one.parts) == 1 and len(one.parts[0].colours) == len(left.colours):
        return _matches_by_orbit(one.parts[0], two.parts[0])
    classes = _isomorphism_classes(one.parts)
    return all(sum(is_isomorphic(piece, other) for other in two.parts) == copies for piece, copies in classes)


def _matches_by_orbit(left: Part, right: Part) -> bool:
    """Send one vertex of `left` to each vertex of `right` with its colour until the rest follows."""
    vertex = _smallest_class(left)[0]
    candidates = np.flatnonzero(right.colours == left.colours[vertex]).tolist()
    chosen = _individualised(left, vertex)
    return any(is_isomorphic(chosen, _individualised(right, other)) for other in candidates)


def _isomorphism_classes(parts: list[Part]) -> list[tuple[Part, int]]:
    """One of each kind, and how many of it there are; parts that look the same need no search."""
    looks = Counter(_look(part) for part in parts)
    examples = {_look(part): part for part in parts}
    buckets: dict[bytes, list[tuple[Part, int]]] = {}
    for (colours, edges), count in looks.items():
        part, kinds = examples[colours, edges], buckets.setdefault(colours, [])
        for number, (piece, copies) in enumerate(kinds):
            if is_isomorphic(piece, part):
                kinds[number] = (piece, copies + count)
                break
        else:
            kinds.append((part, count))
    return [kind for kinds in buckets.values() for kind in kinds]


def _look(part: Part) -> tuple[bytes, bytes]:
    """Colours and edges with the vertices in the order of their colours; equal looks are isomorphic."""
    order = np.argsort(part.colours, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    edges = np.stack([place[part.tail], place[part.head], part.label])
    return part.colours[order].tobytes(), edges[:, np.lexsort(edges)].tobytes()


def _smallest_class(part: Part) -> list[int]:
    names, class_of, sizes = np.unique(part.colours, return_inverse=True, return_counts=True)
    smallest = np.argmin(np.where(sizes > 1, sizes, len(class_of) + 1))
    return [int(vertex) for vertex in np.flatnonzero(part.colours == names[smallest])]


def _individualised(part: Part, vertex: int) -> Part:
    colours = part.colours.copy()
    colours[vertex] = _mix(colours[vertex : vertex + 1])[0]
    return part._replace(colours=colours)
