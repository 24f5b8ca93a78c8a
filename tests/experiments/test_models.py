"""The pocket files that are kept beside the experiments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import pocketbayes as pb
from experiments.sharing import frontier, train_network
from pocketbayes import nets

FILES = sorted(train_network.MODELS.glob("*.pocket"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_kept_file_is_small_and_opens_in_its_network(path: Path) -> None:
    assert path.stat().st_size <= 200_000
    channels = 1 if "mnist" in path.stem else 3
    model = pb.load(path, nets.by_name(path.stem.split("-")[0])(in_channels=channels))
    answer = pb.predict(model, torch.zeros(2, channels, 28, 28), samples=2)
    assert bool(torch.isfinite(answer.probs).all())


@pytest.mark.parametrize("name", frontier.COURSES)
def test_the_best_file_is_the_one_of_its_report_and_of_the_results(name: str) -> None:
    path = train_network.MODELS / f"resnet20-{name}.pocket"
    report = json.loads(path.with_suffix(".json").read_text())
    runs = json.loads(frontier.RESULT.read_text())[name]["runs"]
    run = runs[f"best-{report['seed']}"]
    graph = report["sections"].get("GRAF", 0)  # was added later, with an entry of 16 bytes in the frame
    assert path.stat().st_size == report["bytes"] == sum(report["sections"].values())
    assert report["bytes"] - (graph and graph + 16) == run["bytes"] <= frontier.COURSES[name].largest
    assert report["test"] == run["test"]
