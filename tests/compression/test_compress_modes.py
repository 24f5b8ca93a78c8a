"""Several networks into one file, within one budget."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import pocketbayes as pb
from pocketbayes.artifact import inspect
from pocketbayes.compression.stages import CompressionReport
from pocketbayes.posterior.weights import stochastic_weights
from pocketbayes.training.temperature import measured_noise_cost

PLAN = pb.Plan(epochs=4, finetune_epochs=1, temperature=0.01)


def rings(n: int, seed: int) -> TensorDataset:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=g)
    return TensorDataset(x, (x.square().sum(1) > 5.35).long() + 2 * (x[:, 0] > 0).long())


TRAIN = DataLoader(rings(512, 0), 64, shuffle=True)
VALIDATION = DataLoader(rings(512, 1), 256)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 4))


@pytest.fixture(scope="module")
def trained() -> list[nn.Module]:
    with torch.random.fork_rng():
        torch.random.default_generator.manual_seed(0)
        nets = [net() for _ in range(2)]
    for seed, network in enumerate(nets):
        pb.fit_map(network, TRAIN, epochs=15, lr=1e-2, seed=seed, progress=False)
    return nets


def states(nets: list[nn.Module]) -> list[dict[str, Tensor]]:
    return [copy.deepcopy(dict(network.state_dict())) for network in nets]


def equal(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return set(a) == set(b) and all(torch.equal(a[name], b[name]) for name in a)


def run(nets: list[nn.Module], path: Path, **options: object) -> CompressionReport:
    settings = {"validation_loader": VALIDATION, "plan": PLAN, "progress": False, **options}
    return pb.compress(nets, TRAIN, path=path / "modes.pocket", **settings)


def test_two_modes_keep_one_budget_and_beat_each_alone(trained: list[nn.Module], tmp_path: Path) -> None:
    nets = copy.deepcopy(trained)
    report = run(nets, tmp_path, max_bytes=1500)
    assert 0.9 * 1500 < report.bytes <= 1500
    assert inspect(tmp_path / "modes.pocket").modes == 2
    loaded = pb.load(tmp_path / "modes.pocket", net())
    both = pb.evaluate(loaded, VALIDATION, samples=8)
    alone = [pb.evaluate(mode, VALIDATION, samples=8) for mode in loaded]
    assert both.nll < sum(each.nll for each in alone) / 2  # Jensen, strictly
    assert both.nll < pb.evaluate(pb.Modes(trained), VALIDATION).nll + 0.1
    assert all(stochastic_weights(network) for network in nets)  # changed in place
    assert report.plain_bytes == 2 * 4 * sum(
        t.numel() for t in (*trained[0].parameters(), *trained[0].buffers())
    )
    assert len(report.sharing.layers) == 4


def test_a_budget_that_the_modes_cannot_meet_names_the_smallest_size(
    trained: list[nn.Module], tmp_path: Path
) -> None:
    nets = copy.deepcopy(trained)
    before = states(nets)
    with pytest.raises(ValueError, match=r"max_bytes=900 cannot be met.*takes [\d,]+ bytes") as refused:
        run(nets, tmp_path, max_bytes=900)
    smallest = int(str(refused.value).split("takes ")[1].split(" ")[0].replace(",", ""))
    assert all(map(equal, states(nets), before))
    assert not (tmp_path / "modes.pocket").exists()
    assert run(nets, tmp_path, max_bytes=smallest + 50).bytes <= smallest + 50
    assert run([copy.deepcopy(trained[0])], tmp_path, max_bytes=900).bytes <= 900  # one of them has room


def test_networks_that_are_not_alike_are_refused_unchanged(trained: list[nn.Module], tmp_path: Path) -> None:
    other = nn.Sequential(nn.Linear(6, 41), nn.BatchNorm1d(41), nn.ReLU(), nn.Linear(41, 4))
    nets = [copy.deepcopy(trained[0]), other]
    before = states(nets)
    with pytest.raises(ValueError, match=r"mode 1 differs from mode 0: 0.weight is 41x6"):
        run(nets, tmp_path, max_bytes=1500)
    assert all(map(equal, states(nets), before))


def test_an_interrupted_compression_of_modes_goes_on_where_it_was(
    trained: list[nn.Module], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = copy.deepcopy(trained)
    run(expected, tmp_path, max_bytes=1500)
    whole = (tmp_path / "modes.pocket").read_bytes()
    (tmp_path / "modes.pocket").unlink()

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    stages = importlib.import_module("pocketbayes.compression.compress")._Stages
    with monkeypatch.context() as patched:
        patched.setattr(stages, "_finetune", stop)
        with pytest.raises(KeyboardInterrupt):
            run(copy.deepcopy(trained), tmp_path, max_bytes=1500, checkpoints=tmp_path / "work")
    run(copy.deepcopy(trained), tmp_path, max_bytes=1500, checkpoints=tmp_path / "work")
    assert (tmp_path / "modes.pocket").read_bytes() == whole


def test_the_noise_cost_of_modes_is_the_mean_of_theirs(trained: list[nn.Module]) -> None:
    model = pb.bayesianize(copy.deepcopy(trained), sigma=pb.Relative(0.2))
    for network in model:
        network.eval()
    both = measured_noise_cost(model, VALIDATION, samples=64)
    alone = [measured_noise_cost(network, VALIDATION, samples=64) for network in model]
    assert abs(both.nats - sum(cost.nats for cost in alone) / 2) < 4 * both.error
    assert abs(both.nats - alone[0].nats) > 0 or abs(both.nats - alone[1].nats) > 0
