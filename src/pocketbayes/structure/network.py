"""A network as a graph of neurons: which weights join which, and which neurons must move together.

Neurons are the outputs of a linear layer, the channels of a convolution.  A permutation of neurons leaves the
function unchanged if every tensor that has them along an axis is permuted alike.  Elementwise parts keep neurons
where they are, a residual addition ties those of its two sides, and the network's inputs and outputs stay in
place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pocketbayes.structure.automorphisms import IntArray, connected
from pocketbayes.structure.schemes import Weight

Cell = tuple[int, tuple[int, ...]]  # a neuron, and which of its copies (pixels of a flattened channel)


class NeuronAxis(NamedTuple):
    """The neurons along one axis of a tensor; slots tell the copies of one neuron (flattened pixels) apart."""

    neurons: IntArray  # [positions]
    slots: IntArray  # [positions]


class NeuronLayer(NamedTuple):
    """A weight tensor and the neurons it reads and writes; in groups if a convolution is grouped."""

    weight: Weight
    inputs: NeuronAxis
    outputs: NeuronAxis
    groups: int

    def ends(self) -> tuple[IntArray, IntArray]:
        """(inputs, outputs): the positions that each kernel of the tensor joins, both [shape[0] * shape[1]]."""
        rows, columns = self.weight.shape[:2]
        row, column = np.divmod(np.arange(rows * columns), columns)
        column += row // (rows // self.groups) * columns
        return (row, column) if self.weight.transposed else (column, row)


class Tie(NamedTuple):
    """Neurons that move together, position by position; if signed, they also change sign together."""

    left: NeuronAxis
    right: NeuronAxis
    signed: bool


class Rider(NamedTuple):
    """A tensor that moves with the neurons along its axis `dim`: a bias, the scales of a norm ..."""

    name: str
    axis: NeuronAxis
    dim: int
    flips: bool  # changes sign with its neuron


class Group(NamedTuple):
    """Neurons that play the same part: a stream, or the piece of one that other streams share."""

    name: str
    neurons: IntArray
    distinguished: bool  # inputs and outputs of the network: they stay in place
    odd: bool  # only odd functions touch them, so a neuron may change its sign


@dataclass(frozen=True, kw_only=True, eq=False)
class NeuronGraph:
    """All neurons, numbered from zero and sorted into groups, with everything that joins them."""

    groups: tuple[Group, ...]
    layers: tuple[NeuronLayer, ...]
    ties: tuple[Tie, ...]
    riders: tuple[Rider, ...]

    @property
    def size(self) -> int:
        """How many neurons there are, inputs and outputs included."""
        return sum(len(group.neurons) for group in self.groups)

    @property
    def hidden(self) -> tuple[Group, ...]:
        """The groups whose neurons may move."""
        return tuple(group for group in self.groups if not group.distinguished)

    @property
    def weights(self) -> tuple[Weight, ...]:
        """The weight tensors in order from the input, as `fix_weights` wants them."""
        return tuple(layer.weight for layer in self.layers)

    def __str__(self) -> str:
        lines = [f"{len(self.layers)} layers, {self.size} neurons"]
        for group in self.groups:
            kind = "stays in place" if group.distinguished else "odd" if group.odd else "hidden"
            lines.append(f"  {group.name}: {len(group.neurons)} neurons, {kind}")
        return "\n".join(lines)


class Builder:
    """Collects neurons, layers and ties, and joins tied neurons into one where that loses nothing."""

    def __init__(self) -> None:
        self._born: list[str] = []  # [neurons] the layer that wrote each
        self._pinned: list[bool] = []
        self._odd: list[bool] = []
        self._layers: dict[str, tuple[Weight, int, list[Cell], list[Cell]]] = {}
        self._ties: list[tuple[list[Cell], list[Cell], bool]] = []
        self._riders: dict[str, tuple[list[Cell], int, bool]] = {}
        self._slots: dict[tuple[int, ...], int] = {(): 0}

    def fresh(self, name: str, count: int, pinned: bool = False) -> list[Cell]:
        """New neurons, odd until `not_odd` says otherwise."""
        start = len(self._born)
        self._born += [name] * count
        self._pinned += [pinned] * count
        self._odd += [True] * count
        return [(neuron, ()) for neuron in range(start, start + count)]

    def layer(self, weight: Weight, groups: int, inputs: list[Cell], outputs: list[Cell]) -> None:
        """A weight that reads and writes these; one used twice ties what it reads and what it writes."""
        if weight.name in self._layers:
            _, _, first_inputs, first_outputs = self._layers[weight.name]
            self.tie(first_inputs, inputs)
            self.tie(first_outputs, outputs)
        else:
            self._layers[weight.name] = (weight, groups, inputs, outputs)

    def tie(self, left: list[Cell], right: list[Cell], signed: bool = True) -> None:
        """These move together."""
        if left != right:
            self._ties.append((left, right, signed))

    def rider(self, name: str, cells: list[Cell], dim: int = 0, flips: bool = True) -> None:
        """A tensor that moves with these; one used twice ties them."""
        known, _, _ = self._riders.setdefault(name, (cells, dim, flips))
        self.tie(known, cells)

    def pin(self, cells: Iterable[Cell | None]) -> None:
        """These stay in place."""
        for cell in filter(None, cells):
            self._pinned[cell[0]] = True

    def not_odd(self, cells: Iterable[Cell | None]) -> None:
        """A function that is not odd touches these."""
        for cell in filter(None, cells):
            self._odd[cell[0]] = False

    def may_be_odd(self, cells: Iterable[Cell | None]) -> bool:
        return all(self._odd[cell[0]] for cell in filter(None, cells))

    def build(self) -> NeuronGraph:
        """The graph; the neurons of a signed tie become one, unless an axis would then hold one twice."""
        axes = [self._axis(cells) for _, _, *ends in self._layers.values() for cells in ends]
        ties = [(self._axis(left), self._axis(right)) for left, right, _ in self._ties]
        axes += [axis for tie in ties for axis in tie]
        joined, is_joined = self._join(axes, ties)

        def axis(cells: list[Cell]) -> NeuronAxis:
            neurons, slots = self._axis(cells)
            return NeuronAxis(joined[neurons], slots)

        return NeuronGraph(
            groups=self._groups(joined, [NeuronAxis(joined[neurons], slots) for neurons, slots in axes]),
            layers=tuple(
                NeuronLayer(w, axis(i), axis(o), groups) for w, groups, i, o in self._layers.values()
            ),
            ties=tuple(
                Tie(axis(left), axis(right), signed)
                for (left, right, signed), done in zip(self._ties, is_joined, strict=True)
                if not done
            ),
            riders=tuple(
                Rider(name, axis(cells), dim, flips) for name, (cells, dim, flips) in self._riders.items()
            ),
        )

    def _axis(self, cells: list[Cell]) -> NeuronAxis:
        slots = [self._slots.setdefault(slot, len(self._slots)) for _, slot in cells]
        return NeuronAxis(np.array([neuron for neuron, _ in cells], np.int64), np.array(slots, np.int64))

    def _join(
        self, axes: list[NeuronAxis], ties: list[tuple[NeuronAxis, NeuronAxis]]
    ) -> tuple[IntArray, list[bool]]:
        """[neurons] -> their number after joining, and for each tie whether it was used up by it."""
        joined = np.arange(len(self._born))
        is_joined = []
        for (left, right), (_, _, signed) in zip(ties, self._ties, strict=True):
            plain = not (left.slots.any() or right.slots.any())
            candidate = _union(joined, left.neurons, right.neurons) if signed and plain else joined
            keeps_apart = all(
                _distinct(candidate[axis.neurons], axis.slots) == _distinct(axis.neurons, axis.slots)
                for axis in axes
            )
            is_joined.append(signed and plain and keeps_apart)
            joined = candidate if is_joined[-1] else joined
        return joined, is_joined

    def _groups(self, joined: IntArray, axes: list[NeuronAxis]) -> tuple[Group, ...]:
        """Neurons on the same axes in the same slots, named after the first layer that writes them."""
        size = int(joined.max(initial=-1)) + 1
        pinned, odd = np.zeros(size, bool), np.ones(size, bool)
        np.logical_or.at(pinned, joined, self._pinned)
        np.logical_and.at(odd, joined, self._odd)
        parts: list[list[tuple[int, int]]] = [[] for _ in range(size)]
        for number, axis in enumerate(axes):
            for neuron, slot in zip(axis.neurons.tolist(), axis.slots.tolist(), strict=True):
                parts[neuron].append((number, slot))
        first = np.full(size, len(self._born))
        np.minimum.at(first, joined, np.arange(len(self._born)))
        members: dict[tuple[object, ...], list[int]] = {}
        for neuron in range(size):
            name = self._born[first[neuron]]
            kind = bool(pinned[neuron]), bool(odd[neuron] and not pinned[neuron])
            key = (name, *kind, frozenset(parts[neuron]))
            members.setdefault(key, []).append(neuron)
        names = _unique_names([str(key[0]) for key in members])
        return tuple(
            Group(name, np.array(neurons, np.int64), bool(key[1]), bool(key[2]))
            for name, (key, neurons) in zip(names, members.items(), strict=True)
        )


def _union(joined: IntArray, left: IntArray, right: IntArray) -> IntArray:
    labels = connected(len(joined), joined[left], joined[right])[joined]
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)


def _distinct(neurons: IntArray, slots: IntArray) -> int:
    return len(np.unique(neurons * (int(slots.max(initial=0)) + 1) + slots))


def _unique_names(names: Sequence[str]) -> list[str]:
    seen: dict[str, int] = {}
    unique = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        unique.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return unique
