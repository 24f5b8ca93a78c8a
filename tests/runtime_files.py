"""Files of many kinds of networks with their graphs, raw inputs for them, and what torch answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import pocketbayes as pb

ROOT = Path(__file__).parent.parent
RESNET20 = ROOT / "experiments" / "models" / "resnet20-cifar10.pocket"
CLASSIFIED = ("probs", "entropy", "aleatoric", "epistemic", "passes", "labels", "confidence", "sure", "sets")
VALUED = ("mean", "var", "epistemic_var", "low", "high", "lower", "upper")


CLASSES = MappingProxyType({"classes": ["ant", "bee", "cow"], "unsure": 0.5})


class Case(NamedTuple):
    """A file that was made for the tests, or the one of the experiments."""

    build: Callable[[], nn.Module]  # the plain network
    shape: tuple[int, ...]  # of one input
    noise: pb.noise.Noise = pb.noise.Gaussian()
    card: Mapping[str, Any] = CLASSES
    modes: int = 1
    shared: bool = False


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(6, 16, batch_first=True), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(x)[0][:, -1])


class VisionTransformer(nn.Module):
    """Patches of four by four pixels, two layers of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 24, 4, stride=4)
        self.places = nn.Parameter(0.02 * torch.randn(1, 16, 24))
        layer = nn.TransformerEncoderLayer(24, 3, 48, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.patches(x).flatten(2).transpose(1, 2) + self.places
        return self.head(self.norm(self.layers(hidden)).mean(1))


def mlp() -> nn.Module:
    return nn.Sequential(*pb.nets.mlp([8, 32, 32, 3]))


def regression() -> nn.Module:
    return nn.Sequential(*pb.nets.mlp([8, 32, 32, 2]))


IN_UNITS = MappingProxyType({"target": [[5.0, -3.0], [2.0, 0.5]], "noise_sigma": 0.3})
MEASURED = {  # what validation data chose
    "logit_temperature": {"mean": 1.3, "draws": 0.8},
    "conformal": {"alpha": 0.1, "mean": 0.6, "draws": 0.7},
}
CASES = {
    "regression": Case(regression, (8,), card=IN_UNITS),
    "calibrated": Case(mlp, (8,), card={**CLASSES, **MEASURED}),
    "calibrated regression": Case(regression, (8,), card={**IN_UNITS, **MEASURED}),
    "gru": Case(Recurrent, (5, 6)),
    "vision transformer": Case(VisionTransformer, (3, 16, 16)),
    "one bit a weight": Case(mlp, (8,), pb.noise.TwoPoint()),
    "laplace": Case(mlp, (8,), pb.noise.Laplace()),
    "two modes": Case(mlp, (8,), modes=2),
    "two modes of a regression": Case(regression, (8,), card=IN_UNITS, modes=2),
    "shared": Case(mlp, (8,), shared=True),
}


def make(name: str, path: Path) -> pb.Predictor:
    """The file of a case; what answers by it in torch."""
    case = CASES[name]
    torch.manual_seed(0)
    networks = [case.build() for _ in range(case.modes)]
    plain = networks[0] if case.modes == 1 else pb.Modes(networks)
    model = pb.bayesianize(plain, sigma=pb.Absolute(0.1), noise=case.noise)
    if case.shared:
        pb.share(model, pb.Rate(lambda_=1.0, components=16))
    channels = case.shape[0] if len(case.shape) == 3 else 1
    scale = [[0.4] * channels, [1.5] * channels, 1.0]
    card = {"shape": list(case.shape), "scale": scale, **case.card}
    saved = pb.save(model, path, metadata=card, example=torch.zeros(2, *case.shape))
    assert "GRAF" in saved.sections
    return pb.open(path, case.build())


def inputs(name: str, count: int) -> np.ndarray:
    rng = np.random.default_rng(1)
    return rng.standard_normal((count, *CASES[name].shape)).astype(np.float32)


def pictures(count: int) -> np.ndarray:
    """Smooth images of 32 x 32 pixels in three colours, as bytes with the channels last."""
    rng = np.random.default_rng(2)
    coarse = torch.from_numpy(rng.uniform(-40, 295, (count, 3, 6, 6)).astype(np.float32))
    fine = nn.functional.interpolate(coarse, (32, 32), mode="bicubic")
    return fine.clamp(0, 255).byte().permute(0, 2, 3, 1).contiguous().numpy()


def parts_of(answer: Any) -> dict[str, np.ndarray]:
    """The numbers of an answer, in numpy."""
    names = VALUED if hasattr(answer, "var") else CLASSIFIED
    found = {name: getattr(answer, name) for name in names}
    return {name: np.asarray(value) for name, value in found.items() if value is not None}
