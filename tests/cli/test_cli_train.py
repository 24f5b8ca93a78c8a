"""`pocketbayes train`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from sklearn.metrics import accuracy_score

from cli_runs import complaint, result, run
from pocketbayes import artifact, data
from pocketbayes.cli import train as command
from pocketbayes.training import loop
from pocketbayes.training.history import Epoch

PLAIN = "train --net shopnets:net --data digits --epochs 2 --lr 0.01 --out made.safetensors"


def test_plain_weights_are_safetensors_that_a_plain_network_loads(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = result(PLAIN, capsys)
    net = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 24), torch.nn.ReLU(), torch.nn.Linear(24, 10)
    )
    net.load_state_dict(load_file(here / "made.safetensors"))
    test = data.load("digits", split="test")
    x = (test.x.float() / 16 - 0.3053) / 0.376
    accuracy = accuracy_score(test.y, net(x).argmax(1))
    assert record["test"]["after"]["accuracy"] == pytest.approx(accuracy)
    assert accuracy > 0.5
    assert record["bytes"] == (here / "made.safetensors").stat().st_size
    with safe_open(here / "made.safetensors", framework="np") as file:
        assert json.loads(file.metadata()["pocketbayes"])["net"] == "shopnets:net"


def test_a_network_that_needs_channels_first_is_trained_and_compressed(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = (
        "train --net shopnets:Viewed --data shopnets:pictures --epochs 4 --lr 0.01 --out viewed.safetensors"
    )
    assert result(trained, capsys)["test"]["after"]["accuracy"] > 0.9
    small = "compress --net shopnets:Viewed --weights viewed.safetensors --data shopnets:pictures --out viewed.pocket"
    assert result(f"{small} --epochs 1 --max-bytes 1000", capsys)["bytes"] <= 1000


def test_the_record_has_the_documented_keys(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    docs = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()
    section = docs.partition("\n## train\n")[2]
    documented = json.loads(section.partition("```json\n")[2].partition("```")[0])
    record = result(f"{PLAIN} --prior fan-in --patience 5 --clip 1", capsys)
    assert set(record) == set(documented)
    assert set(record["histories"]["train"][0]) == set(documented["histories"]["train"][0])
    assert len(record["histories"]["train"]) == 2


def test_the_seed_decides_the_weights(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = []
    for seed in (1, 1, 2):
        result(f"{PLAIN} --seed {seed}", capsys)
        made.append((here / "made.safetensors").read_bytes())
    assert made[0] == made[1] != made[2]


def test_a_posterior_is_a_pocket_file_with_priors_and_a_threshold(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bayesian = "train --net shopnets:net --weights plain.safetensors --data digits --bayesian --epochs 1"
    record = result(f"{bayesian} --prior pretrained:0.5 --sigma 0.02 --temperature 0.1 --out made", capsys)
    assert record["file"] == "made.pocket"
    pocket = artifact.decode(here / "made.pocket")
    weight = pocket.tensors["1.weight"]
    assert isinstance(weight, artifact.Normal) and weight.prior is not None
    assert weight.prior.sigma == pytest.approx(0.5, rel=1e-2)
    assert 0 < pocket.metadata["unsure"] <= 1
    assert record["test"]["after"]["epistemic"] > 0


def test_regression_is_told_in_the_units_of_the_data(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = torch.randn(200, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    table = torch.cat([rows, 1000 + 100 * rows[:, :1]], 1)
    (here / "rows.csv").write_text("\n".join(",".join(map(str, row)) for row in table.tolist()))
    settings = "--epochs 30 --lr 0.03 --batch-size 32 --out made.safetensors"
    record = result(f"train --net mlp:16 --data rows.csv {settings}", capsys)
    after = record["test"]["after"]
    assert 1 < after["rmse"] < 60  # the targets have a standard deviation of 100
    assert 1 < after["sigma"] < 100 and 0.5 < after["coverage95"] <= 1


def test_an_interrupted_training_goes_on(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[int] = []
    end_epoch = loop.TrainingRun.end_epoch

    def counted(self: loop.TrainingRun, seconds: float) -> Epoch:
        if len(trained) == 2 and not trained[-1] < 0:
            trained.append(-1)
            raise KeyboardInterrupt
        trained.append(self.state.epoch)
        return end_epoch(self, seconds)

    monkeypatch.setattr(loop.TrainingRun, "end_epoch", counted)
    long = PLAIN.replace("--epochs 2", "--epochs 4")
    assert "same command" in complaint(long, 130, capsys)
    assert not (here / "made.safetensors").exists()
    result(long, capsys)
    assert trained == [0, 1, -1, 2, 3]
    interrupted = (here / "made.safetensors").read_bytes()
    result(long, capsys)
    assert (here / "made.safetensors").read_bytes() == interrupted  # the same bits as a run in one piece


def test_a_failure_to_write_leaves_the_old_file(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "made.safetensors").write_bytes(b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "made.safetensors")

    monkeypatch.setattr(command, "write_atomically", full)
    assert "No space left" in complaint(PLAIN, 1, capsys)
    assert (here / "made.safetensors").read_bytes() == b"old"


def test_a_person_sees_the_test_metrics(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(PLAIN) == 0
    shown = capsys.readouterr().out
    assert "359 test examples" in shown and "Brier score" in shown and "made.safetensors" in shown
