"""How many permutations of its vertices a coloured graph with labelled edges has: exact integers.

Refined colours only bound the orbits from above, so they are not trusted:

* edges that join two whole colour classes alike restrict nothing; without them the graph falls into components;
* |Aut| is the product, over classes of k isomorphic components, of  k! |Aut(component)|^k;
* in a component that does not fall apart one vertex v is singled out:  |Aut| = |orbit of v| |Aut fixing v|, and
  w is in the orbit only if an isomorphism from (component, v) to (component, w) is found, by the same steps with
  backtracking.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
Colours = NDArray[np.uint64]


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


def undirected(colours: Colours, tail: IntArray, head: IntArray, label: IntArray) -> Part:
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
    labels = connected(len(part.colours), part.tail, part.head)
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


def connected(size: int, tail: IntArray, head: IntArray) -> IntArray:
    """[size] the number of the connected component of every vertex."""
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
