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

from experiments.real.imagenet import ResNet50, images
from experiments.real.rivals import ROUNDINGS, k_means, rival, rounded_weights
from experiments.real.scores import best_temperature, paired
from pocketbayes import nets


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
