"""Real networks and the plain competitors."""

from __future__ import annotations

import copy
import math
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import pocketbayes as pb
from experiments.real import cifar as of_cifar
from experiments.real import defaults as of_defaults
from experiments.real import regression as of_regression
from experiments.real import resnet50 as of_resnet50
from experiments.real.imagenet import ResNet50, images
from experiments.real.rivals import ROUNDINGS, k_means, rival, rounded_weights
from experiments.real.scores import best_temperature, paired
from experiments.real.vit import ViT
from pocketbayes import nets
from pocketbayes.training.temperature import NoiseCost, Temperature


def network() -> nn.Module:
    torch.manual_seed(0)
    return nets.resnet20().eval()


def batches() -> list[tuple[Tensor]]:
    return [(x,) for x in torch.randn(32, 3, 16, 16, generator=torch.Generator().manual_seed(1)).split(16)]


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("bits", [2.0, 4.0])
def test_rivals_fill_their_bytes_and_no_more(rounding: str, bits: float) -> None:
    model = network()
    weights = rounded_weights(model)
    budget = int(bits / 8 * sum(w.numel() for w in weights.values())) + 6_000
    twin, size = rival(model, rounding, budget, batches())
    assert 0.9 * budget < size <= budget
    rounded = rounded_weights(twin)
    for name, w in weights.items():
        error = float((rounded[name] - w).square().mean() / w.square().mean())
        assert error < 3 * 2 ** (-2 * bits), name  # what rate and distortion would have, and some
        per = rounded[name].unique() if rounding == "palette" else rounded[name][0].unique()
        assert len(per) < 64


def test_a_rivals_norms_are_those_of_its_own_weights() -> None:
    model = network()
    twin, _ = rival(model, "uniform", 80_000, batches())
    fresh = copy.deepcopy(twin)
    norm = fresh.get_submodule("bn1")
    assert isinstance(norm, nn.BatchNorm2d)
    with torch.no_grad():
        x = torch.cat([fresh.get_submodule("conv1")(x) for (x,) in batches()])
    torch.testing.assert_close(norm.running_mean, x.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)


def test_k_means_finds_what_scikit_learn_finds() -> None:
    from sklearn.cluster import KMeans

    x = np.concatenate([np.random.default_rng(0).normal(m, 0.1, 200) for m in (-2.0, 0.0, 3.0)])
    theirs = np.sort(KMeans(3, n_init=10, random_state=0).fit(x[:, None]).cluster_centers_[:, 0])
    ours = k_means(torch.from_numpy(np.sort(x)), torch.ones(len(x), dtype=torch.float64), 3)
    np.testing.assert_allclose(ours.numpy(), theirs, atol=1e-4)


def test_a_temperature_undoes_a_scaling_of_the_logits() -> None:
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(4000, 5, generator=g)
    labels = torch.multinomial(logits.softmax(1), 1, generator=g)[:, 0]
    honest, scaled = best_temperature(logits, labels), best_temperature(3 * logits, labels)
    assert abs(honest - 1) < 0.1
    assert math.isclose(scaled, 3 * honest, rel_tol=1e-3)


def test_paired_differences() -> None:
    gap, error = paired([1, 1, 0, 1], [1, 0, 0, 0])
    assert gap == 0.5
    assert math.isclose(error, 0.25)


def test_resnet50_has_the_published_size() -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in ResNet50().parameters()) == 25_557_032


def test_images_are_blue_green_red_and_have_their_classes(tmp_path: Path) -> None:
    red = Image.new("RGB", (224, 224), (255, 0, 0))
    with zipfile.ZipFile(tmp_path / "some.zip", "w") as archive:
        for name in ("0001_0007.jpg", "0000_0123.jpg"):
            red.save(tmp_path / name)
            archive.write(tmp_path / name, name)
    pixels, labels = images(tmp_path / "some.zip")
    assert labels.tolist() == [123, 7]
    assert pixels.shape == (2, 3, 224, 224)
    assert int(pixels[:, 2].min()) > 250
    assert int(pixels[:, :2].max()) < 5


VERSIONS = {"versions": {"torch": "2"}, "command": "python -m it", "seconds": 60}
SCORES = {"accuracy": 0.75, "nll": 1.0, "calibrated_nll": 0.9, "temperature": 1.1, "bytes": 1000}


def test_the_page_of_resnet50() -> None:
    rows: dict[str, dict[str, object]] = {
        row.name: {**SCORES, "hits": [1, 0, 1, 1]} for row in of_resnet50.ROWS
    }
    rows["compress-7000000"] |= {"hits": [1, 0, 0, 1], "bytes": 6_990_000}
    for row in of_resnet50.ROWS:
        if row.method == of_resnet50.OURS:
            rows[row.name] |= {"cpu_seconds": 600, "peak_gigabytes": 3.21}
    result = of_resnet50.summarised(rows) | VERSIONS
    text = of_resnet50.section(result)
    assert "| 6,990,000 | 75.00 | -25.00 ± 21.65 | 1.0000 | 0.9000 |" in text
    assert "to 7 MB 10.0 minutes of CPU time, 3.2 GB" in text
    assert "6.99 MB -25.0 points" in of_resnet50.headline(result)


def test_the_page_of_the_cifar_networks() -> None:
    names = [row.name for row in of_cifar.rows()]
    assert len(set(names)) == len(names) == 4 * (1 + 2 * 4)
    result = {"rows": dict.fromkeys(names, SCORES), **VERSIONS}
    assert of_cifar.section(result).count("\n| ResNet-") == len(names)
    assert "at 7 % of fp32 without training: ResNet-20 75.00 %" in of_cifar.headline(result)


def test_the_page_of_defaults_judges_points_and_nats() -> None:
    points = {"before": {"accuracy": 0.90, "nll": 0.3}, "after": {"accuracy": 0.894, "nll": 0.2}}
    nats = {"before": {"rmse": 1.0, "nll": 0.3}, "after": {"rmse": 1.0, "nll": 0.309}}
    more = {"bytes": 9, "noise_cost": {"predicted": 0.03, "measured": 0.04}}
    rows = {name: {"0.25": each | more, "0.1": each | more} for name, each in (("a", points), ("b", nats))}
    result = {"rows": rows, **VERSIONS}
    text = of_defaults.section(result)
    assert "| a | 25 % | 9 | 0.9000 | 0.8940 | +0.60 points | no | 0.03 | 0.04 |" in text
    assert "| b | 25 % | 9 | 0.3000 | 0.3090 | +0.0090 nats | yes |" in text
    assert of_defaults.headline(result).startswith("3 of 4 files")


def test_a_row_of_defaults_leaves_the_network_for_the_next_one() -> None:
    digits = pb.data.load("digits")
    train, validation = of_defaults.parted(digits.subset(slice(0, 600)), 200)
    case = of_defaults.trained(
        lambda: nn.Sequential(nn.Flatten(), *nets.mlp([64, 16, 10])), train, validation, epochs=30
    )
    before = copy.deepcopy(case.model.state_dict())
    row = of_defaults.row(case, 0.9)
    assert row["bytes"] <= 0.9 * 4 * sum(v.numel() for v in before.values())
    assert row["before"]["accuracy"] > 0.2 and {"predicted", "measured"} == set(row["noise_cost"])
    assert all(torch.equal(v, before[name]) for name, v in case.model.state_dict().items())


def test_what_compress_says_of_the_noise_is_understood() -> None:
    note = str(Temperature(0.01, 0.0287, NoiseCost(0.031, 0.002)))
    found = of_defaults.NOTE.search(note)
    assert found and [float(each) for each in found.groups()] == [0.031, 0.0287]


def test_the_page_of_regression() -> None:
    seeds = [{"plain": 0.3, "fit": 0.3 + gap, "compress": 0.4} for gap in (-0.01, 0.0, 0.02)]
    result = {"rows": {"boston": seeds}, **VERSIONS}
    assert "| boston | 0.300 ± 0.000 | 0.303 ± 0.009 |" in of_regression.section(result)
    assert "`fit` on 1, `compress` on 0 of 1" in of_regression.headline(result)


def test_the_noise_of_the_plain_network_is_that_of_its_validation_residuals() -> None:
    model, zero = nn.Linear(1, 2, bias=False), torch.zeros(50, 1)
    validation, test = (
        s * torch.randn(50, 2, generator=torch.Generator().manual_seed(0)) for s in (1.0, 2.0)
    )
    sigma = validation.square().mean().sqrt()
    exact = -torch.distributions.Normal(0.0, sigma).log_prob(test).sum(1).mean()
    found = of_regression.plain_nll(model, (zero, validation), (zero, test))
    assert math.isclose(found, float(exact), rel_tol=1e-5)


def test_the_small_transformer_takes_cifar_images() -> None:
    model = ViT().eval()
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert len(pb.describe(pb.bayesianize(model))) > 10
