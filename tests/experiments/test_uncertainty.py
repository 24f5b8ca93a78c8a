"""What draws, temperatures and modes are worth: scores, and the files with several modes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import pocketbayes as pb
from experiments.sharing.train_network import MODELS
from experiments.uncertainty import modes
from experiments.uncertainty.scores import Said, both_scores, fitted_temperature
from pocketbayes.prediction.scales import Scale, Scales, scales_of


def said(n: int, seed: int) -> Said:
    """Three passes that are twice as sure as they should be."""
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, 5, generator=g, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=g)[:, 0]
    noise = 0.1 * torch.randn(3, n, 5, generator=g, dtype=torch.float64)
    return Said((2 * logits + noise).softmax(2), labels)


def test_the_temperature_is_the_best_of_many_and_undoes_what_was_too_sure() -> None:
    validation, test = said(4000, 0), said(4000, 1)
    found = fitted_temperature(validation)
    grid = np.linspace(1.0, 3.0, 201)
    losses = [pb.metrics.nll(validation.at(float(t)), validation.labels) for t in grid]
    assert found == pytest.approx(grid[int(np.argmin(losses))], abs=0.011)
    assert found == pytest.approx(2.0, abs=0.15)
    row = both_scores(test, found)
    assert row["passes"] == 3 and row["calibrated"]["nll"] < row["plain"]["nll"]
    assert row["plain"]["nll"] == pytest.approx(pb.metrics.nll(test.passes.mean(0), test.labels), abs=1e-5)


def test_scales_are_written_into_a_file_that_stays_the_same_otherwise(tmp_path: Path) -> None:
    path, net = tmp_path / "net.pocket", lambda: nn.Linear(4, 3)
    pb.save(pb.bayesianize(net()), path, metadata={"classes": 3})
    before = pb.read(path)
    modes.write_scales(path, Scales(Scale(1.25), Scale(0.875)))
    loaded = scales_of(pb.load(path, net()))
    assert (loaded.mean.temperature, loaded.draws.temperature) == (1.25, 0.875)
    assert torch.equal(pb.read(path)["weight"].mu, before["weight"].mu)


@pytest.mark.parametrize("name", modes.PARTS)
def test_a_file_with_modes_is_the_one_of_its_record_within_its_budget(name: str) -> None:
    path = MODELS / f"resnet20-cifar10-{name}.pocket"
    if not path.exists():
        pytest.skip(f"{path.name} has not been made")
    record = json.loads(path.with_suffix(".json").read_text())
    assert path.stat().st_size == record["bytes"] <= modes.PARTS[name].max_bytes
    assert record["test"] == json.loads(modes.RESULT.read_text())["files"][name]["test"]
    loaded = pb.load(path, pb.nets.resnet20())
    assert len(loaded) == len(modes.PARTS[name].seeds)
    assert scales_of(loaded).mean.temperature == record["test"]["temperature"]
