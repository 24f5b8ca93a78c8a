"""Two networks brought neuron by neuron as near as they can be."""

from __future__ import annotations

import copy
import doctest
import importlib
from itertools import permutations

import numpy as np
import pytest
import torch
from torch import nn

from pocketbayes import nets
from pocketbayes.structure import neuron_graph
from pocketbayes.structure.alignment import align, movable
from pocketbayes.structure.permute import permute_weights


class Gated(nn.Module):
    """Value times gate: neuron i of one goes with neuron i of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.gate, self.out = nn.Linear(3, 5), nn.Linear(3, 5), nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.value(x) * torch.sigmoid(self.gate(x)))


def normed() -> nn.Module:
    return nn.Sequential(
        nn.Linear(5, 12), nn.LayerNorm(12), nn.ReLU(), nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 3)
    )


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 7, 3),
        nn.Flatten(),
        nn.Linear(7 * 16, 3),
    )


ANIMALS = {
    "a perceptron with layer norm": (normed, (4, 5)),
    "convolutions, flattened": (convolutional, (4, 2, 8, 8)),
    "a residual network": (nets.resnet20, (2, 3, 16, 16)),
}


def shaken(model: nn.Module) -> nn.Module:
    """In evaluation mode, with norms that tell their neurons apart."""
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and tensor.ndim == 1:
            tensor.copy_(torch.rand_like(tensor) + (0.5 if "var" in name or "weight" in name else -0.5))
    return model.eval()


@pytest.mark.parametrize(("build", "shape"), ANIMALS.values(), ids=ANIMALS)
def test_a_network_whose_neurons_were_shuffled_is_brought_back(build, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model, rng, x = shaken(build()), np.random.default_rng(0), torch.randn(shape)
    graph, state = neuron_graph(model, example=x), model.state_dict()
    shuffle = np.arange(graph.size)
    for group in movable(graph):
        shuffle[group.neurons] = rng.permutation(group.neurons)
    assert (shuffle != np.arange(graph.size)).sum() > 10
    shuffled = permute_weights(graph, state, shuffle)
    found = align(graph, shuffled, state)
    assert found.after == pytest.approx(1.0) and found.before < 0.5
    back = permute_weights(graph, shuffled, found.permutation)
    assert all(torch.equal(back[name], tensor) for name, tensor in state.items())


@pytest.mark.parametrize(("build", "shape"), ANIMALS.values(), ids=ANIMALS)
def test_the_function_stays_and_the_likeness_rises(build, shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    model, other, x = shaken(build()), shaken(build()), torch.randn(shape)
    graph = neuron_graph(model, example=x)
    found = align(graph, other.state_dict(), model.state_dict())
    assert found.after > found.before
    moved = copy.deepcopy(other)
    moved.load_state_dict(permute_weights(graph, other.state_dict(), found.permutation))
    torch.testing.assert_close(moved(x), other(x), atol=1e-4, rtol=1e-4)


def test_one_hidden_layer_is_matched_as_well_as_by_trying_every_permutation() -> None:
    torch.manual_seed(2)
    ours, theirs = (nets.mlp([3, 5, 2]) for _ in range(2))
    graph = neuron_graph(ours)

    def likeness(order: tuple[int, ...]) -> float:
        pairs = [
            (ours[0].weight.detach()[list(order)], theirs[0].weight.detach()),
            (ours[2].weight.detach()[:, list(order)], theirs[2].weight.detach()),
        ]
        return sum(float(nn.functional.cosine_similarity(a.flatten(), b.flatten(), 0)) for a, b in pairs) / 2

    best = max(likeness(order) for order in permutations(range(5)))
    assert align(graph, ours.state_dict(), theirs.state_dict()).after == pytest.approx(best, abs=1e-6)
    assert likeness(tuple(range(5))) < best - 0.1


def test_neurons_that_others_would_have_to_follow_stay_in_place() -> None:
    torch.manual_seed(3)
    model, other = Gated(), Gated()
    graph = neuron_graph(model)
    assert movable(graph) == []
    found = align(graph, other.state_dict(), model.state_dict())
    assert (found.permutation == np.arange(graph.size)).all() and found.after == found.before


def test_the_example_gives_what_it_shows() -> None:
    found = doctest.testmod(importlib.import_module("pocketbayes.structure.alignment"))
    assert found.attempted >= 4 and found.failed == 0
