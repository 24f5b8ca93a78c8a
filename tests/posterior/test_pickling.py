"""Bayesian models go through pickle, and so into other processes, whole."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import pocketbayes as pb
from pocketbayes import nets, noise
from pocketbayes.posterior.weights import kl_divergence, stochastic_weights


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())


def recurrent() -> nn.Module:
    model = pb.bayesianize(nn.LSTM(4, 3))
    model(torch.ones(2, 4))  # keeps a list of its last draw
    return model


def shared() -> nn.Module:
    model = pb.bayesianize(nn.Sequential(nn.Conv1d(1, 8, 3), nn.Flatten(), nn.Linear(16, 3)))
    pb.share(model, pb.Rate(lambda_=0.1))
    return nn.Sequential(nn.Unflatten(1, (1, 4)), model)


def fixed() -> nn.Module:
    model = pb.bayesianize(nets.mlp([4, 5, 5, 3]))
    pb.break_symmetry(model, pb.structure.Light(), pb.structure.Zero())
    return model


MODELS = {
    "plain": lambda: pb.bayesianize(nets.mlp([4, 8, 3])),
    "tied": lambda: pb.bayesianize(Tied()),
    "recurrent": recurrent,
    "shared": shared,
    "fixed": fixed,
    "modes": lambda: pb.bayesianize([nets.mlp([4, 8, 3]) for _ in range(2)]),
    "a device": lambda: pb.bayesianize(
        nets.mlp([4, 3]),
        noise=noise.Programmed(noise.Bimodal(0.5), mu_levels=(-0.5, 0.5), sigma_levels=(0.1,)),
    ),
}


def drawn(model: nn.Module, x: Tensor) -> Tensor:
    with pb.one_draw(model, 3):
        out = model(x)
    return out[0] if isinstance(out, tuple) else out


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_a_model_comes_back_from_pickle_whole(make) -> None:
    model, x = make(), torch.randn(2, 4)
    twin = pickle.loads(pickle.dumps(model))
    assert str(twin) == str(model)
    assert twin.state_dict().keys() == model.state_dict().keys()
    assert torch.equal(drawn(twin, x), drawn(model, x))
    assert torch.equal(kl_divergence(twin), kl_divergence(model))
    assert len(stochastic_weights(twin)) == len(stochastic_weights(model))
    again = pickle.loads(pickle.dumps(copy.deepcopy(twin)))
    assert torch.equal(drawn(again, x), drawn(model, x))
    assert not torch.equal(twin(x)[0], twin(x)[0])  # every pass is a draw of its own
    plain = pb.to_deterministic(twin)
    assert str(pickle.loads(pickle.dumps(plain))) == str(plain)


def test_a_model_that_came_back_learns_on_its_own() -> None:
    model = pb.bayesianize(nets.mlp([4, 8, 3]))
    twin, loader = pickle.loads(pickle.dumps(model)), [(torch.randn(6, 4), torch.arange(6) % 3)]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    pb.fit(twin, loader, epochs=1, progress=False)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not torch.equal(
        twin[0].parametrizations.weight.original, before["0.parametrizations.weight.original"]
    )


def test_torch_saves_and_loads_a_whole_model(tmp_path: Path) -> None:
    model, x = pb.bayesianize(nets.mlp([4, 8, 3])), torch.randn(2, 4)
    torch.save(model, tmp_path / "model.pt")
    assert torch.equal(drawn(torch.load(tmp_path / "model.pt", weights_only=False), x), drawn(model, x))


def answer(model: nn.Module, x: Tensor) -> bytes:
    torch.set_num_threads(1)
    return pb.predict(model, x, samples=3, seed=1).probs.numpy().tobytes()


def test_a_spawned_process_predicts_the_same_bits() -> None:
    model, x = pb.bayesianize(nets.mlp([4, 8, 3])), torch.randn(5, 4)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(answer, (model, x)) == answer(model, x)
