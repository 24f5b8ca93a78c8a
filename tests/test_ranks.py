"""Two processes at one job: what they add up to is what one process finds, and they end with one file."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, multiprocessing, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

import pocketbayes as pb
from pocketbayes.data.loaders import part
from pocketbayes.posterior.weights import stochastic_weights
from pocketbayes.runs import ranks
from pocketbayes.sharing.share import _histogram

PLAN = pb.Plan(epochs=2, finetune_epochs=1, temperature=0.01, calibrate=True)
UNTRAINED = pb.Plan(epochs=0, temperature=0.01)


def data(n: int = 330, seed: int = 0) -> TensorDataset:
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(4, (n,), generator=g)
    centres = torch.randn(4, 10, generator=torch.Generator().manual_seed(7))
    return TensorDataset(centres[y] + 0.8 * torch.randn(n, 10, generator=g), y)


TRAIN = DataLoader(data(), 50, shuffle=True)  # seven batches, the last one of 30
IN_ORDER = DataLoader(data(), 50)
VALIDATION = DataLoader(data(200, 1), 64)


def network() -> nn.Module:
    """Trained, with a norm whose statistics ranks must agree about."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(10, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 4))
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        for x, y in (batch for _ in range(5) for batch in IN_ORDER):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model


def measured() -> dict[str, Any]:
    """What must not depend on the number of processes."""
    exact, x, y = network().double(), *data()[:]
    batches = DataLoader(TensorDataset(x.double(), y), 50)
    posterior = pb.bayesianize(network(), sigma=pb.Relative(0.5))
    moments = [tuple(t.detach() for t in site.moments) for site in stochastic_weights(posterior)]
    plane = _histogram(moments, 64)
    return {
        "fisher": pb.fisher_information(exact, batches, progress=False),
        "sampled": pb.fisher_information(exact, batches, sampled=True, batches=5, progress=False),
        "scores": dict(pb.evaluate(posterior, VALIDATION, samples=4)),
        "calibration": pb.calibrate(posterior, VALIDATION, samples=4)._asdict(),
        "n": plane.n,
        "total": plane.total,
    }


def both(rank: int, folder: str) -> None:
    """What each of two processes does; it leaves what it found in the folder."""
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    found = measured()
    found["batches"] = [len(x) for x, _ in part(TRAIN)], [len(x) for x, _ in part(TRAIN, alike=True)]
    found["order"] = torch.cat([x for x, _ in part(TRAIN)])
    for name, plan in (("trained", PLAN), ("untrained", UNTRAINED)):
        settings = {"max_bytes": "3KB", "plan": plan, "progress": False, "graph": False}
        small, mine = network(), Path(folder) / str(rank)
        mine.mkdir(exist_ok=True)
        report = pb.compress(
            small, TRAIN, path=mine / f"{name}.pocket", validation_loader=VALIDATION, **settings
        )
        found[name] = small.state_dict()
        found[f"{name} report"] = report.bytes, report.stages[-2].metrics
    found["errors"] = {}
    for name, call in wrong_calls(rank).items():
        try:
            call()
        except Exception as error:
            found["errors"][name] = f"{type(error).__name__}: {error}"
    torch.save(found, Path(folder) / f"{rank}.pt")
    distributed.destroy_process_group()


def wrong_calls(rank: int) -> dict[str, Any]:
    other = nn.Linear(10, 4)  # of another start on each rank
    torch.manual_seed(rank)
    nn.init.normal_(other.weight)

    def sharded() -> nn.Module:
        return fully_shard(network())

    def damaged() -> int:
        raise ValueError("damaged")

    return {
        "networks": lambda: pb.fisher_information(other, TRAIN, progress=False),
        "lengths": lambda: pb.evaluate(network(), DataLoader(data(200 + 64 * rank), 64)),
        "few": lambda: pb.fit(pb.bayesianize(network()), [data()[:]], epochs=1, progress=False),
        "first": lambda: ranks.once(damaged),
        "convert a part": lambda: pb.bayesianize(sharded()),
        "fisher of a part": lambda: pb.fisher_information(sharded(), TRAIN, progress=False),
        "train a part": lambda: pb.fit_map(sharded(), TRAIN, epochs=1, progress=False),
        "predict by a part": lambda: pb.predict(sharded(), data()[:][0]),
        "write a part": lambda: pb.save(fully_shard(pb.bayesianize(network())), "never.pocket"),
    }


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("ranks")
    multiprocessing.spawn(both, (str(folder),), nprocs=2)
    return folder, [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in (0, 1)]


def test_sums_over_ranks_are_those_of_one_process(found: tuple[Path, list[dict[str, Any]]]) -> None:
    alone = measured()
    for mine in found[1]:
        for kind in ("fisher", "sampled"):
            for name, fisher in alone[kind].items():
                torch.testing.assert_close(mine[kind][name], fisher, rtol=1e-9, atol=0)
        assert torch.equal(mine["n"], alone["n"])
        torch.testing.assert_close(mine["total"], alone["total"], rtol=1e-9, atol=1e-12)
        assert mine["scores"] == pytest.approx(alone["scores"], rel=1e-9)
        assert mine["calibration"].pop("nll") == pytest.approx(alone["calibration"]["nll"], rel=1e-9)
        assert mine["calibration"]["factor"] == pytest.approx(alone["calibration"]["factor"], rel=1e-9)


def test_batches_are_divided_and_each_is_seen(found: tuple[Path, list[dict[str, Any]]]) -> None:
    first, second = found[1]
    assert sorted(len(mine["batches"][0]) for mine in (first, second)) == [3, 4]
    assert sum(first["batches"][0] + second["batches"][0]) == 330
    assert len(first["batches"][1]) == len(second["batches"][1]) == 4
    seen = torch.cat([first["order"], second["order"]])
    assert torch.equal(seen.sort(0).values, data().tensors[0].sort(0).values)


@pytest.mark.parametrize("name", ["trained", "untrained"])
def test_compress_gives_one_file_and_one_network_to_all(
    found: tuple[Path, list[dict[str, Any]]], name: str
) -> None:
    folder, (first, second) = found
    assert (folder / "0" / f"{name}.pocket").stat().st_size <= 3000
    assert not (folder / "1" / f"{name}.pocket").exists()  # the first rank writes
    assert first[f"{name} report"] == second[f"{name} report"]
    for key, value in first[name].items():
        assert torch.equal(value, second[name][key]) if isinstance(value, Tensor) else True, key
    loaded = pb.load(folder / "0" / f"{name}.pocket", network())
    before, after = (pb.evaluate(model, VALIDATION, samples=8) for model in (network(), loaded))
    assert after.accuracy > before.accuracy - 0.03
    assert after.nll < before.nll + 0.05


def test_what_ranks_disagree_about_is_said_on_all(found: tuple[Path, list[dict[str, Any]]]) -> None:
    for mine in found[1]:
        told = mine["errors"]
        assert told["networks"].startswith("RankError: the network (SHA-256): rank 0 has")
        assert "Seed all ranks alike" in told["networks"]
        assert "batches of the loader: rank 0 has 4, rank 1 has 5" in told["lengths"]
        assert "1 batches for 2 processes" in told["few"]
        assert told["first"] == "ValueError: damaged"


def test_networks_whose_parameters_are_divided_are_refused(found: tuple[Path, list[dict[str, Any]]]) -> None:
    """FSDP2's tensors: the error says how to have them whole."""
    for mine in found[1]:
        told = [error for name, error in mine["errors"].items() if name.endswith("a part")]
        assert len(told) == 5
        assert all(
            re.search(r"ValueError: 0\..*is divided among ranks .*full_state_dict=True", e) for e in told
        )


# --- the commands --------------------------------------------------------------------------------------------------

MODULE = """
from torch import nn

def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))
"""
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def command(*words: str, folder: Path, torchrun: bool = True) -> subprocess.Popen[str]:
    """A `pocketbayes` command, under torchrun in two processes."""
    before = (*TORCHRUN, "-m", "pocketbayes") if torchrun else (sys.executable, "-m", "pocketbayes")
    paths = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    line = [*before, *" ".join(words).split()]
    return subprocess.Popen(line, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True)


def outcome(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=500)
    return process.returncode, out, err


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a network that two processes trained."""
    folder = tmp_path_factory.mktemp("shop")
    (folder / "shopnets.py").write_text(MODULE)
    train = "train --net shopnets:net --data digits --epochs 8 --lr 0.01 --out plain.safetensors --json"
    code, out, err = outcome(command(train, folder=folder))
    assert code == 0, err
    assert out.count("\n") == 1 and '"accuracy"' in out
    return folder


COMPRESS = (
    "compress --net shopnets:net --weights plain.safetensors --data digits --max-bytes 2600 --finetune-epochs 1 "
    "--renew-every 10 --no-page --no-graph --seed 1"
)


@pytest.mark.slow
def test_the_commands_run_under_torchrun(shop: Path) -> None:
    code, out, err = outcome(command(COMPRESS, "--epochs 1 --out small --json", folder=shop))
    assert code == 0, err
    assert out.count("\n") == 1  # the first rank speaks
    assert (shop / "small.pocket").stat().st_size <= 2600 and (shop / "small.json").exists()
    assert not (shop / "small.checkpoints").exists()
    evaluate = "evaluate small.pocket --net shopnets:net --data digits --json"
    (code, two, err), (_, one, _) = (
        outcome(command(evaluate, folder=shop, torchrun=torchrun)) for torchrun in (True, False)
    )
    assert code == 0, err
    assert two == one


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_dies_ends_the_others_and_the_run_resumes_within_its_budget(
    shop: Path, rank: int
) -> None:
    words, folder = (COMPRESS, f"--epochs 60 --out killed{rank} --json"), shop / f"killed{rank}.checkpoints"
    process = command(*words, folder=shop)
    while not list(folder.glob("sharing-fit*")):  # the first epoch is over
        assert process.poll() is None, outcome(process)
        time.sleep(0.1)
    os.kill(process_of(rank, process.pid), signal.SIGKILL)
    code, _, err = outcome(process)
    assert code != 0 and "Signal 9" in err
    assert folder.exists()
    code, _, err = outcome(command(*words, folder=shop))
    assert code == 0, err
    assert 2000 < (shop / f"killed{rank}.pocket").stat().st_size <= 2600
    assert not folder.exists()


def process_of(rank: int, parent: int) -> int:
    """The process of that rank among the children of torchrun."""
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        if f"RANK={rank}".encode() in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            return int(child)
    raise AssertionError(f"no process of rank {rank}")


@pytest.mark.slow
def test_a_wrong_call_is_said_once_for_each_rank(shop: Path) -> None:
    code, out, err = outcome(command(COMPRESS, "--epochs 1 --out gone/small", folder=shop))
    assert code != 0 and out == ""
    assert "pocketbayes: gone: no such folder" in err and "rank 1: " in err
