"""Neurons moved about: other weights, the same function."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from pocketbayes.structure.automorphisms import IntArray
from pocketbayes.structure.network import NeuronAxis, NeuronGraph, NeuronLayer


def permute_weights(
    graph: NeuronGraph, tensors: Mapping[str, Tensor], permutation: IntArray, signs: IntArray | None = None
) -> dict[str, Tensor]:
    """The tensors (a state_dict) after neuron i has taken the place of neuron permutation[i], times signs[i].

    Within groups, and if ties are respected, the network's function stays the same.
    """
    signs = np.ones(graph.size, np.int64) if signs is None else signs
    moved = dict(tensors)
    for layer in graph.layers:
        moved[layer.weight.name] = _move_weight(layer, moved[layer.weight.name], permutation, signs)
    for rider in graph.riders:
        place = torch.from_numpy(_places(rider.name, rider.axis, permutation))
        flat = moved[rider.name].movedim(rider.dim, 0)  # [positions, *rest]
        sign = _sign_column(signs[rider.axis.neurons], flat) if rider.flips else 1
        moved[rider.name] = torch.empty_like(flat).index_copy_(0, place, flat * sign).movedim(0, rider.dim)
    return moved


def _move_weight(layer: NeuronLayer, weight: Tensor, permutation: IntArray, signs: IntArray) -> Tensor:
    inputs, outputs = layer.ends()
    entry = np.full((len(layer.inputs.neurons), len(layer.outputs.neurons)), -1)
    entry[inputs, outputs] = np.arange(len(inputs))
    name = layer.weight.name
    place = entry[
        _places(name, layer.inputs, permutation)[inputs], _places(name, layer.outputs, permutation)[outputs]
    ]
    if (place < 0).any():
        raise ValueError(f"{name}: the permutation tears the groups of this convolution apart.")
    flat = weight.flatten(0, 1)  # [entries, *kernel]
    sign = _sign_column(signs[layer.inputs.neurons[inputs]] * signs[layer.outputs.neurons[outputs]], flat)
    return torch.empty_like(flat).index_copy_(0, torch.from_numpy(place), flat * sign).reshape(weight.shape)


def _places(name: str, axis: NeuronAxis, permutation: IntArray) -> IntArray:
    """Where each position of the axis goes."""
    pairs = zip(axis.neurons.tolist(), axis.slots.tolist(), strict=True)
    position = {pair: place for place, pair in enumerate(pairs)}
    moved = zip(permutation[axis.neurons].tolist(), axis.slots.tolist(), strict=True)
    try:
        return np.array([position[pair] for pair in moved], np.int64)
    except KeyError as error:
        raise ValueError(f"{name}: the permutation moves a neuron out of its group.") from error


def _sign_column(signs: IntArray, like: Tensor) -> Tensor:
    return torch.as_tensor(signs, dtype=like.dtype).reshape(-1, *[1] * (like.ndim - 1))
