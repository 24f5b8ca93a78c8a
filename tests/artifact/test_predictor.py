"""`pb.open`: a file by what it says about itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score
from torch import nn

import pocketbayes as pb
from pocketbayes.artifact.card import Card, read_card
from pocketbayes.data import Scaling

CLASSES = ("ant", "bee", "cow")
CARD: dict[str, Any] = {
    "net": "mlp:8",
    "args": {"in_features": 12, "out_features": 3},
    "shape": [3, 2, 2],
    "scale": [[0.5, 0.4, 0.3], [0.2, 0.2, 0.2], 255.0],
    "classes": list(CLASSES),
    "unsure": 0.5,
}


def network(outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return pb.bayesianize(nn.Sequential(nn.Flatten(), *pb.nets.mlp([12, 8, outputs])), sigma=pb.Absolute(0.1))


def own(num_classes: int, in_channels: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), *pb.nets.mlp([4 * in_channels, 8, num_classes]))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    pb.save(network(), tmp_path / "small.pocket", metadata=CARD, precision=pb.artifact.FLOAT32)
    return tmp_path / "small.pocket"


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randint(0, 256, (40, 3, 2, 2), generator=torch.Generator().manual_seed(1)).to(torch.uint8)


def scaled(images: torch.Tensor) -> torch.Tensor:
    """What the card says, written out."""
    mean = torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1)
    return (images.float() / 255 - mean) / 0.2


def test_raw_images_are_scaled_as_the_card_says(small: Path, images: torch.Tensor) -> None:
    answer = pb.open(small).predict(images, samples=5, seed=3)
    expected = pb.predict(network(), scaled(images), samples=5, seed=3)
    torch.testing.assert_close(answer.probs, expected.probs, atol=1e-6, rtol=1e-5)
    assert answer.names == [CLASSES[i] for i in expected.probs.argmax(1)]
    assert answer.sure is not None
    assert answer.sure.tolist() == [p >= 0.5 for p in expected.probs.amax(1).tolist()]


def test_images_may_have_their_channels_last_or_come_alone(small: Path, images: torch.Tensor) -> None:
    model = pb.open(small)
    probs = model.predict(images, samples=2).probs
    torch.testing.assert_close(model.predict(images.numpy().transpose(0, 2, 3, 1), samples=2).probs, probs)
    torch.testing.assert_close(model.predict(images[0], samples=2).probs, probs[:1])
    torch.testing.assert_close(model.predict(images.double().tolist(), samples=2).probs, probs)


def test_scores_are_those_of_scikit_learn(small: Path, images: torch.Tensor) -> None:
    model, labels = pb.open(small), torch.arange(40) % 3
    probs = model.predict(images, samples=4).probs.numpy()
    noise = 255 - images
    found = model.evaluate(images, labels, ood=noise, samples=4)
    assert found.accuracy == pytest.approx(accuracy_score(labels, probs.argmax(1)))
    assert found.nll == pytest.approx(log_loss(labels, probs), rel=1e-5)
    sure = probs.max(1) >= 0.5
    assert found.answered == pytest.approx(sure.mean())
    assert found.risk == pytest.approx((probs.argmax(1) != labels.numpy())[sure].mean())
    entropies = [model.predict(x, samples=4).entropy for x in (images, noise)]
    auroc = roc_auc_score(np.repeat([0, 1], 40), torch.cat(entropies))
    assert found.auroc == pytest.approx(auroc, abs=1e-6)


def test_a_regression_answers_in_the_units_of_its_data(tmp_path: Path, images: torch.Tensor) -> None:
    card = {**CARD, "args": {"in_features": 12, "out_features": 2}, "noise_sigma": 0.5}
    card |= {"target": [[100.0, -5.0], [10.0, 2.0]], "classes": None, "unsure": None}
    card = {key: value for key, value in card.items() if value is not None}
    pb.save(network(2), tmp_path / "r.pocket", metadata=card, precision=pb.artifact.FLOAT32)
    model = pb.open(tmp_path / "r.pocket")
    answer = model.predict(images, samples=6, seed=1)
    plain = pb.predict(
        network(2), scaled(images), samples=6, seed=1, likelihood=pb.likelihood.Homoscedastic(0.5)
    )
    std, mean = torch.tensor([10.0, 2.0]).double(), torch.tensor([100.0, -5.0]).double()
    torch.testing.assert_close(answer.mean, plain.mean * std + mean, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(answer.sigma, plain.var.sqrt() * std, atol=1e-5, rtol=1e-5)
    low, high = norm.interval(0.95, answer.mean, answer.sigma)
    np.testing.assert_allclose(answer.low, low, rtol=1e-5)
    np.testing.assert_allclose(answer.high, high, rtol=1e-5)
    y = answer.mean + torch.tensor([0.0, 1e3])  # every first target is inside, no second one
    found = model.evaluate(images, y, samples=6, seed=1)
    assert found.coverage95 == pytest.approx(0.5)
    assert found.rmse == pytest.approx(np.sqrt(1e6 / 2))
    with pytest.raises(ValueError, match="regression"):
        model.evaluate(images, y, ood=images)


@pytest.mark.parametrize("net", [own, own(3, 3), "mlp:8"], ids=["function", "module", "name"])
def test_the_users_network_is_used_and_the_files_name_ignored(
    net: Any, small: Path, images: torch.Tensor
) -> None:
    pocket = pb.artifact.decode(small)
    pocket.metadata.update(net="os:system", args={})
    small.write_bytes(pb.artifact.encode(pocket).data)
    with pytest.raises(ValueError, match="not one of the library's own"):
        pb.open(small)
    expected = pb.predict(network(), scaled(images), samples=2).probs
    found = pb.open(small, net).predict(images, samples=2).probs
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def test_a_network_that_does_not_fit_is_refused(small: Path) -> None:
    with pytest.raises(ValueError, match="does not fit mlp:9"):
        pb.open(small, "mlp:9")
    with pytest.raises(ValueError, match="another architecture"):
        pb.open(small, nn.Linear(2, 2))
    with pytest.raises(ValueError, match="not one of the library"):
        pb.open(small, "lennet")


def test_nothing_is_allocated_for_a_network_larger_than_its_file(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pocket = pb.artifact.decode(small)
    pocket.metadata.update(net="mlp:1000000,1000000")  # four terabytes
    small.write_bytes(pb.artifact.encode(pocket).data)
    with pytest.raises(ValueError, match="does not fit"):
        pb.open(small)


def test_inputs_of_another_shape_are_named(small: Path) -> None:
    with pytest.raises(ValueError, match=r"\(5, 7\); the network takes inputs of shape \(3, 2, 2\)"):
        pb.open(small).predict(np.zeros((5, 7)))


def test_a_card_survives_its_metadata() -> None:
    scaling = Scaling(torch.tensor([0.25]), torch.tensor([0.5]), 16.0)
    card = Card("lenet", {"image_size": 28}, (1, 28, 28), scaling, CLASSES, None, None, 0.75)
    assert read_card(Path("x"), card.metadata()) == card
    numbered = card._replace(classes=("0", "1", "2"))
    assert numbered.metadata()["classes"] == 3
    assert read_card(Path("x"), numbered.metadata()) == numbered
