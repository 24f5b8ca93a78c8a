"""Small pocket files of every kind of model and of noise, made on the spot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import pocketbayes as pb
from pocketbayes import noise
from pocketbayes.artifact import FLOAT32, Fixed, Precision, Signs, decode, encode

Make = Callable[[], nn.Module]
PAPER = pb.Paper(components=6, outliers=pb.sharing.Outliers(fisher_fraction=None))


class Seed(NamedTuple):
    """A good file, and how the plain network for it is made."""

    name: str
    data: bytes
    network: Make


def mlp() -> nn.Module:
    return pb.nets.mlp([3, 4, 2])


def conv() -> nn.Module:
    """Kernels enough for contexts, norms, a buffer of whole numbers."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(32, 3)
    )


class Tied(nn.Module):
    """An embedding whose matrix is also the last layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("phase", torch.ones(2, dtype=torch.complex64))
        self.register_buffer("mask", torch.tensor([True, False, True]))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding((x[:, :1] * 0).long()).mean(1))


def noises() -> dict[str, noise.Noise]:
    """Every family, with parameters of its own."""
    samples = np.random.default_rng(0).gamma(3.0, size=24)
    table = noise.QuantileTable.of(samples)
    simple: list[noise.Noise] = [
        noise.Uniform(),
        noise.Laplace(),
        noise.Logistic(),
        noise.StudentT(5.0),
        noise.SkewNormal(3.0),
        noise.Bimodal(0.7),
        noise.GaussianMixture((0.3, 0.7), (-1.0, 0.5), (0.2, 1.0)),
        noise.TwoPoint(),
        noise.Empirical(samples),
        table,
        noise.averaged(noise.Laplace(), 3),
        noise.averaged(noise.TwoPoint(), 3),
        noise.StateDependent((-0.1, 0.1), (0.01, 0.02), (noise.Gaussian(), table)),
        noise.Programmed(noise.Laplace(), mu_levels=(-0.5, 0.0, 0.5), sigma_levels=(0.01, 0.1)),
        noise.Drifted(noise.Bimodal(0.5), time=3600.0, exponent=0.05, shift=0.01),
    ]
    return {type(law).__name__: law for law in simple}


def shared(model: nn.Module, preset: Any) -> nn.Module:
    pb.share(model, preset)
    return model


def fixed(scheme: Any, values: Any) -> nn.Module:
    model = pb.bayesianize(pb.nets.mlp([3, 4, 4, 2]))
    pb.break_symmetry(model, scheme, values)
    return model


CARD: dict[str, Any] = {"net": "mlp:4", "args": {"in_features": 3, "out_features": 2}, "shape": [3]}
CARD |= {"scale": [[0.0, 0.5, 1.0], [1.0, 2.0, 3.0], 1.0], "classes": ["a", "b"], "unsure": 0.5}


def flat_mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), *pb.nets.mlp([3, 4, 2]))


def models() -> Iterator[tuple[str, Callable[[], nn.Module], Make, dict[str, Any]]]:
    """(name, the Bayesian model, the plain network, options of `save`)."""
    structure = pb.structure
    yield "mlp", lambda: pb.bayesianize(mlp()), mlp, {}
    yield "priors", lambda: pb.bayesianize(mlp(), prior=pb.Pretrained()), mlp, {"priors": True}
    yield "float32", lambda: pb.bayesianize(mlp()), mlp, {"precision": FLOAT32}
    yield "short", lambda: pb.bayesianize(mlp()), mlp, {"precision": Precision(plain=8, mu=10, sigma=12)}
    yield "card", lambda: pb.bayesianize(flat_mlp()), flat_mlp, {"metadata": CARD}
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        make: Make = lambda dtype=dtype: mlp().to(dtype)  # noqa: E731
        yield str(dtype)[6:], lambda make=make: pb.bayesianize(make()), make, {}
    yield "conv", lambda: pb.bayesianize(conv()), conv, {}
    yield "tied", lambda: pb.bayesianize(Tied()), Tied, {}
    yield "shared", lambda: shared(pb.bayesianize(conv()), pb.Rate(lambda_=0.01)), conv, {}
    yield (
        "coarse",
        lambda: shared(pb.bayesianize(conv()), pb.Rate(lambda_=1.0)),
        conv,
        {"precision": Precision(mu=10)},
    )
    yield "outliers", lambda: shared(pb.bayesianize(mlp()), pb.Rate(lambda_=0.01, outlier_bits=0.0)), mlp, {}
    yield "paper", lambda: shared(pb.bayesianize(conv()), PAPER), conv, {"priors": True}
    three: Make = lambda: pb.nets.mlp([3, 4, 4, 2])  # noqa: E731
    for scheme in (structure.Light(), structure.Heavy(), structure.Random(count=3)):
        for values in (structure.Zero(), structure.Constant(0.5, trained=True), structure.MAP()):
            name = f"{type(scheme).__name__} {type(values).__name__}".lower()
            yield name, lambda s=scheme, v=values: fixed(s, v), three, {}
    modes = lambda make: pb.bayesianize([make() for _ in range(3)])  # noqa: E731
    yield "modes", lambda: modes(mlp), mlp, {}
    yield "shared modes", lambda: shared(modes(conv), pb.Rate(lambda_=0.1)), conv, {}
    yield (
        "graph",
        lambda: pb.bayesianize(flat_mlp()),
        flat_mlp,
        {"example": torch.zeros(2, 3), "metadata": CARD},
    )
    for name, law in noises().items():
        yield name, lambda law=law: pb.bayesianize(mlp(), noise=law), mlp, {}


@cache
def seeds() -> tuple[Seed, ...]:
    """All of them, the same bytes in every run."""
    found = []
    with TemporaryDirectory() as folder:
        path = Path(folder) / "seed.pocket"
        for name, make, network, options in models():
            with torch.random.fork_rng():
                torch.manual_seed(0)
                pb.save(make(), path, **options)
            found.append(Seed(name, path.read_bytes(), network))
    return (*found, masked(found[0]))


def masked(seed: Seed) -> Seed:
    """The same network with a mask of its own, and weights that no prior was said of."""
    pocket = decode(seed.data)
    entry = pocket.tensors["0.weight"]
    mask = np.arange(12).reshape(4, 3) % 4 == 0
    fixed = Fixed(mask=mask, values=Signs(scale=0.25, positive=np.array([True, False, True])))
    kept = replace(entry, mu=entry.mu[:9], sigma=entry.sigma[:9], fixed=fixed)
    tensors = {**pocket.tensors, "0.weight": kept}
    return Seed("mask", encode(replace(pocket, tensors=tensors)).data, seed.network)
