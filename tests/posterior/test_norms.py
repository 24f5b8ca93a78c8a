"""Norms folded to a scale and a shift."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import pocketbayes as pb
from pocketbayes.posterior.norms import fold_statistics, is_folded


def network() -> nn.Sequential:
    """Norms of two kinds that have seen data."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8), nn.ReLU(), nn.Flatten(), nn.Linear(32, 5))
    net.append(nn.BatchNorm1d(5, eps=0.1, momentum=None))
    for norm in (net[1], net[5]):
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    for _ in range(3):
        net(images() * 3 + 1)
    return net


def images() -> Tensor:
    return torch.randn(64, 3, 6, generator=torch.Generator().manual_seed(1))


def test_folding_keeps_the_function_to_float_precision() -> None:
    net = network().eval()
    before = net(images())
    fold_statistics(net)
    assert torch.allclose(net(images()), before, rtol=1e-5, atol=1e-5)
    assert not torch.equal(net[1].weight, network()[1].weight)
    for norm in (net[1], net[5]):
        assert norm.running_mean.eq(0).all() and norm.running_var.eq(1).all()


def test_folding_twice_changes_nothing() -> None:
    net = network()
    fold_statistics(net)
    once = copy.deepcopy(net.state_dict())
    fold_statistics(net)
    assert all(torch.allclose(t, once[name], rtol=1e-6) for name, t in net.state_dict().items())


def test_a_norm_without_numbers_of_its_own_stays() -> None:
    weight = nn.Parameter(torch.rand(8))
    stay = nn.ModuleDict(
        {"bare": nn.BatchNorm1d(8, affine=False), "a": nn.BatchNorm1d(8), "b": nn.BatchNorm1d(8)}
    )
    stay["batch"] = nn.BatchNorm1d(8, track_running_stats=False)
    stay["a"].weight = stay["b"].weight = weight
    for name in ("bare", "a", "b"):
        stay[name](torch.randn(32, 8))
    before = copy.deepcopy(stay.state_dict())
    fold_statistics(stay)
    assert all(torch.equal(t, before[name]) for name, t in stay.state_dict().items())


def test_a_stochastic_norm_stays() -> None:
    net = pb.bayesianize(network(), norms=True)
    fold_statistics(net)
    assert not net[1].running_var.eq(1).any()


def test_only_folding_looks_like_folding() -> None:
    net = network()
    assert not is_folded(net[1])
    assert not is_folded(nn.BatchNorm1d(8))  # new: it will learn its statistics
    fold_statistics(net)
    assert is_folded(net[1]) and is_folded(net[5])


@pytest.mark.parametrize("folded", [True, False])
def test_training_leaves_a_folded_norm_a_scale_and_a_shift(folded: bool) -> None:
    net = pb.bayesianize(network())
    if folded:
        fold_statistics(net)
    weight, mean = net[1].weight.detach().clone(), net[1].running_mean.clone()
    loader = DataLoader(TensorDataset(images(), torch.arange(64) % 5), 16)
    pb.fit(net, loader, epochs=1, progress=False)
    assert torch.equal(net[1].running_mean, mean) == folded
    assert not torch.equal(net[1].weight, weight)
