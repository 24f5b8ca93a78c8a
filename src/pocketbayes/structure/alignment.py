"""Two networks of one architecture, neuron by neuron: the permutation that brings one nearest to the other.

Trained twice from scratch, a network finds the same features in another order.  Permuted within its groups it keeps its
function, and as much of the difference as the order makes goes away: what remains is cheap to say given the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pocketbayes.structure.automorphisms import IntArray
from pocketbayes.structure.network import Group, NeuronAxis, NeuronGraph
from pocketbayes.structure.permute import permute_weights

LEAST = 1e-9  # of the likeness: less is rounding


class Alignment(NamedTuple):
    """Where each neuron goes, and how like the weights are before and after: the mean cosine over the layers."""

    permutation: IntArray  # [neurons], for `permute_weights`
    before: float
    after: float


class _WeightSide(NamedTuple):
    """One axis of a weight tensor and the neurons along it."""

    name: str
    dim: int
    axis: NeuronAxis


def align(graph: NeuronGraph, tensors: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> Alignment:
    """The permutation of neurons that makes one network most like another of the same architecture.

    It maximises the sum over layers of <w, w_ref> / (|w| |w_ref|), group after group: while all others stay, the best
    permutation of one group is an assignment problem, solved exactly.  So the sum never falls, and the end is a local
    optimum.  Inputs, outputs, neurons that are tied one by one to others (attention, gates) and those of grouped
    convolutions stay in place.

    Args:
        graph: of the architecture, from `neuron_graph`.
        tensors: the state_dict of the network to move.
        reference: that of the network to move it towards.

    Returns:
        The permutation for `permute_weights`, with how like the networks are
        before and after: 1 is equal but for scales.

    Examples:
        >>> import torch, pocketbayes as pb
        >>> net = pb.nets.mlp([4, 16, 3])
        >>> graph, state = pb.structure.neuron_graph(net), net.state_dict()
        >>> shuffled = {"0.weight": state["0.weight"].flip(0), "2.weight": state["2.weight"].flip(1)}
        >>> found = pb.structure.align(graph, {**state, **shuffled}, state)
        >>> round(found.after, 4)
        1.0
    """
    from scipy.optimize import linear_sum_assignment

    sides, permutation = list(_sides(graph)), np.arange(graph.size)
    ours, theirs = ({side.name: _unit(state[side.name]) for side in sides} for state in (tensors, reference))
    before = _likeness(ours, theirs)
    moving = True
    while moving:
        moving = False
        for group in movable(graph):
            gain = _gains(group, sides, ours, theirs)
            rows, columns = linear_sum_assignment(gain, maximize=True)
            if gain[rows, columns].sum() > np.trace(gain) + LEAST:
                step = np.arange(graph.size)
                step[group.neurons[rows]] = group.neurons[columns]
                ours, permutation, moving = _moved(graph, ours, step), step[permutation], True
    return Alignment(permutation, before, _likeness(ours, theirs))


def movable(graph: NeuronGraph) -> list[Group]:
    """The groups whose neurons may change places without any other neuron having to follow."""
    stuck = np.zeros(graph.size, bool)
    for tie in graph.ties:
        for one, other in ((tie.left, tie.right), (tie.right, tie.left)):
            stuck[one.neurons] |= len(np.unique(other.neurons)) > 1
    for layer in graph.layers:
        if layer.groups > 1:
            stuck[layer.inputs.neurons] = stuck[layer.outputs.neurons] = True
    return [group for group in graph.hidden if len(group.neurons) > 1 and not stuck[group.neurons].any()]


def _sides(graph: NeuronGraph) -> Iterator[_WeightSide]:
    for layer in graph.layers:
        if layer.groups == 1:
            inputs = 0 if layer.weight.transposed else 1
            yield _WeightSide(layer.weight.name, inputs, layer.inputs)
            yield _WeightSide(layer.weight.name, 1 - inputs, layer.outputs)


def _unit(weight: Tensor) -> Tensor:
    flat = weight.detach().cpu().double()
    unit: Tensor = flat / flat.norm().clamp_min(1e-300)
    return unit


def _likeness(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> float:
    return sum(float((w * theirs[name]).sum()) for name, w in ours.items()) / max(1, len(ours))


def _gains(
    group: Group, sides: list[_WeightSide], ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]
) -> NDArray[np.float64]:
    """[n, n]: how like neuron i of ours is to neuron j of theirs, over all tensors that hold the group."""
    gain = torch.zeros(len(group.neurons), len(group.neurons), dtype=torch.float64)
    for side in sides:
        places = _places_of(group, side.axis)
        if places.numel():
            ours_at, theirs_at = (
                state[side.name].movedim(side.dim, 0)[places].flatten(1) for state in (ours, theirs)
            )
            gain += ours_at @ theirs_at.T
    return gain.numpy()


def _places_of(group: Group, axis: NeuronAxis) -> Tensor:
    """[n, slots]: the positions of each neuron of the group along the axis; empty where it is not there."""
    number = np.full(1 + max(int(axis.neurons.max()), int(group.neurons.max())), -1)
    number[group.neurons] = np.arange(len(group.neurons))
    mine = number[axis.neurons]
    order = np.lexsort((axis.slots, mine))
    return torch.from_numpy(order[mine[order] >= 0].reshape(len(group.neurons), -1))


def _moved(graph: NeuronGraph, weights: Mapping[str, Tensor], step: IntArray) -> dict[str, Tensor]:
    """`permute_weights` for the weights of the layers alone."""
    layers = tuple(layer for layer in graph.layers if layer.weight.name in weights)
    return permute_weights(replace(graph, layers=layers, riders=()), weights, step)
