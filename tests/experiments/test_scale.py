"""The experiment at full size, on a network of no size."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import pocketbayes as pb
from experiments import scale
from pocketbayes.sharing import Outliers


def tiny() -> nn.Module:
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))


def test_every_stage_is_measured_and_the_page_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "NETWORKS", {"tiny": (tiny, 16)})
    outliers = Outliers(smallest_cluster=None)
    presets = {"rate": pb.Rate, "paper": lambda: pb.Paper(components=20, outliers=outliers)}
    monkeypatch.setattr(scale, "PRESETS", presets)
    rows = {preset: scale.row("tiny", preset) for preset in presets}
    for row in rows.values():
        assert row["weights"] == 3 * 8 * 9 + 128 * 64 + 640
        assert list(row["stages"]) == list(scale.STAGES)
        assert all(s["peak_mb"] > 10 and s["seconds"] >= 0 for s in row["stages"].values())
        assert row["bits"] == pytest.approx(8 * row["bytes"] / row["weights"])
        assert row["difference"] < 0.01
    assert rows["rate"]["bits"] < 8
    result = {"command": "python -m experiments.scale", "rows": {"tiny": rows}, "versions": {"torch": "2"}}
    assert "| tiny | paper |" in scale.section(result) and "tiny" in scale.headline(result)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("ResNet-50", 25_557_032), ("WRN-28-10", 36_479_194), ("ViT-B/16", 86_567_656)],
)
def test_networks_have_the_published_number_of_parameters(name: str, parameters: int) -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in scale.NETWORKS[name][0]().parameters()) == parameters
