"""What draws, temperatures and modes are worth: scores, and the files with several modes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import pocketbayes as pb
from experiments.sharing import rounding
from experiments.sharing.train_network import MODELS
from experiments.uncertainty import aligned, corruptions, modes
from experiments.uncertainty.scores import Said, both_scores, fitted_temperature
from pocketbayes.artifact import Precision
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


def images(x: torch.Tensor) -> pb.data.DataSet:
    scaling = pb.data.Scaling(torch.zeros(3), torch.ones(3), 255.0)
    return pb.data.DataSet(
        name="", x=x, y=torch.zeros(len(x), dtype=torch.long), classes=("a",), scaling=scaling
    )


def test_corruptions_do_what_they_are_called_and_more_of_it_at_greater_strength() -> None:
    g = torch.Generator().manual_seed(0)
    rough = 90 + 70 * torch.rand(8, 3, 8, 8, generator=g)
    x = nn.functional.interpolate(rough, size=32, mode="bilinear").to(torch.uint8)
    found = {name: bad.x.float() for name, bad in corruptions.corrupted(images(x))}
    assert len(found) == 15
    moved = {name: float((bad - x.float()).square().mean().sqrt()) for name, bad in found.items()}
    for kind in ("noise", "blur", "contrast", "brightness", "pixelation"):
        assert moved[f"{kind} 1"] < moved[f"{kind} 2"] < moved[f"{kind} 3"]
    assert moved["noise 2"] == pytest.approx(16.0, rel=0.02)
    assert moved["brightness 3"] == pytest.approx(96.0, abs=2.0)  # some reach white
    assert float(found["contrast 2"].std()) == pytest.approx(0.4 * float(x.float().std()), rel=0.02)
    assert torch.equal(found["pixelation 3"][..., ::2, ::2], found["pixelation 3"][..., 1::2, 1::2])
    flat = images(torch.full((1, 3, 32, 32), 77, dtype=torch.uint8))
    assert all(
        bool((bad.x == 77).all())
        for name, bad in corruptions.corrupted(flat)
        if name.startswith(("blur", "pix"))
    )


def test_a_rounded_network_is_the_same_in_its_file(tmp_path: Path) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net, x = pb.nets.resnet20().eval(), torch.randn(4, 3, 32, 32)
    for module in net.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            step = 0.5 * float(module.weight.detach().std())
            torch.nn.utils.parametrize.register_parametrization(module, "weight", rounding.Rounded(step))
    model = rounding.in_pocket_form(net, pb.nets.resnet20())
    pb.save(model, tmp_path / "rounded.pocket", precision=Precision(plain=32, mu=32))
    loaded = pb.load(tmp_path / "rounded.pocket", pb.nets.resnet20())
    with torch.no_grad():
        torch.testing.assert_close(
            pb.predict(loaded, x, samples="mean").probs.float(), net(x).softmax(1), atol=1e-4, rtol=1e-3
        )
    layer = rounding.rounded_layers(net)[3]
    counts = np.unique(rounding.integers(*layer).numpy(), return_counts=True)[1]
    alone = stats.entropy(counts, base=2) * counts.sum()
    for module, each in rounding.rounded_layers(net):
        if module is not layer[0]:
            each.step.fill_(1e9)  # all zeros: no bits
    assert rounding.entropy(net) == pytest.approx(alone)


def test_labels_cost_next_to_nothing_given_a_copy_of_themselves_and_no_less_given_others() -> None:
    g = np.random.default_rng(0)
    levels = np.array([-400, -100, 0, 100, 400, 0, 0], np.int16)
    first, other = (g.choice(5, 64 * 64 * 9, p=[0.05, 0.2, 0.5, 0.2, 0.05]) for _ in range(2))
    copied, apart = (aligned.layer_bits(first, each, (64, 64, 3, 3), levels) for each in (first, other))
    assert copied["given"] < 0.02 * copied["alone"] and apart["given"] == apart["alone"]
    assert copied["alone"] == pytest.approx(
        stats.entropy(np.bincount(first), base=2) * len(first) + 30, rel=1e-3
    )
