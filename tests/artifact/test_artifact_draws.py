"""The draws that a file gives without torch are the draws that torch predicts with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import pocketbayes as pb
from pocketbayes.artifact import Pocket, decode, sample_weights
from pocketbayes.artifact.dense import moments_of
from pocketbayes.drawing import WhichDraw, WordStream, shape_of, tensor_number
from pocketbayes.noise import (
    Bimodal,
    Drifted,
    Empirical,
    Gaussian,
    GaussianMixture,
    Laplace,
    Logistic,
    Noise,
    Programmed,
    QuantileTable,
    SkewNormal,
    StateDependent,
    StudentT,
    TwoPoint,
    Uniform,
    averaged,
)
from pocketbayes.noise.counter import HostStream
from pocketbayes.posterior.weights import stochastic_weights
from pocketbayes.sharing.outliers import AbsoluteMean, Outliers

GAMMA = np.random.default_rng(7).gamma(2.0, size=500)
STATES = StateDependent((-0.3, 0.3), (0.05, 0.1), (Bimodal(0.9), QuantileTable.of(GAMMA)))
FAMILIES: list[Noise] = [
    Gaussian(),
    Uniform(),
    Laplace(),
    Logistic(),
    StudentT(3.0),
    SkewNormal(4.0),
    Bimodal(0.9),
    GaussianMixture((0.3, 0.7), (0.0, 3.0), (1.0, 0.3)),
    TwoPoint(),
    Empirical(GAMMA),
    QuantileTable.of(GAMMA),
    averaged(Laplace(), 3),
    averaged(TwoPoint(), 4),
    STATES,
    Drifted(Programmed(STATES, (-0.2, 0.0, 0.2), (0.05, 0.1)), time=10.0, exponent=0.02, shift=0.01),
]


class Tied(nn.Module):
    """Two names for one weight, and biases."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(12, 12)
        self.head = nn.Linear(12, 12)
        self.head.weight = self.body.weight
        self.conv = nn.Conv1d(1, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(self.head(torch.tanh(self.body(x)))[:, None]).flatten(1)


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 12))


def mean_field() -> nn.Module:
    return pb.bayesianize(Tied(), sigma=pb.Relative(0.3), biases=True)


def partly_fixed() -> nn.Module:
    model = pb.bayesianize(two_layers())
    pb.break_symmetry(model, pb.structure.Heavy(), pb.structure.Constant(0.5))
    return model


def shared() -> nn.Module:
    model = mean_field()
    pb.share(model, pb.Rate(lambda_=0.5, components=6, outlier_bits=8.0))
    return model


def fixed_and_shared() -> nn.Module:
    model = partly_fixed()
    pb.share(model, pb.Rate(lambda_=0.5, components=6))
    return model


KINDS = {
    "mean-field, tied": mean_field,
    "fixed": partly_fixed,
    "shared": shared,
    "fixed and shared": fixed_and_shared,
}


def name(noise: Noise) -> str:
    return str(noise)[:20]


def loaded(build, noise: Noise, folder: Path) -> tuple[nn.Module, Pocket]:
    torch.manual_seed(1)
    pb.save(pb.with_noise(build(), noise), folder / "a.pocket")
    plain = Tied() if build in (mean_field, shared) else two_layers()
    return pb.load(folder / "a.pocket", plain), decode(folder / "a.pocket")


@pytest.mark.parametrize("noise", FAMILIES, ids=name)
@pytest.mark.parametrize("build", KINDS.values(), ids=KINDS)
def test_a_file_draws_what_torch_predicts_with(build, noise: Noise, tmp_path: Path) -> None:
    model, pocket = loaded(build, noise, tmp_path)
    ours = sample_weights(pocket, 5, 2)
    theirs = pb.to_deterministic(model, 5, 2).state_dict()
    assert set(ours) == set(theirs)
    for key, value in theirs.items():
        # z is the same to the bit; sigma = softplus(rho) of torch is within 2e-6 of the file's
        sigma = moments_of(pocket, key).sigma
        bound = (
            2e-6 * sigma * (1 + np.abs((ours[key] - moments_of(pocket, key).mu) / np.maximum(sigma, 1e-9)))
        )
        assert (np.abs(ours[key] - value.numpy()) <= bound + 2.0**-23 * np.abs(ours[key])).all(), key
    other = sample_weights(pocket, 5, 3)  # the control: another draw is seen
    assert max(np.abs(other[k] - v.numpy()).max() for k, v in theirs.items()) > 1e-3


@pytest.mark.parametrize("noise", FAMILIES, ids=name)
@pytest.mark.parametrize("build", KINDS.values(), ids=KINDS)
def test_of_the_same_moments_numpy_and_torch_draw_the_same_bits(build, noise: Noise, tmp_path: Path) -> None:
    model, pocket = loaded(build, noise, tmp_path)
    drawn = sample_weights(pocket, 5, 2)
    for site in stochastic_weights(model):
        fixed = site.weight.fixed
        mu, sigma = (torch.from_numpy(part.copy()) for part in moments_of(pocket, site.path))
        if fixed is not None:
            mu, sigma = fixed.take(mu), fixed.take(sigma)
        z = noise.z(HostStream(WhichDraw.of(5, 2), tensor=tensor_number(site.path)), mu, sigma)
        whole = site.weight.whole(noise.place(mu, sigma, z)).detach().numpy()
        assert whole.tobytes() == drawn[site.path].tobytes()


def test_z_of_a_prediction_is_the_formats() -> None:
    """Of mu = 0 and sigma = 1 in float64, whose own rounding is lost in that of z to float32."""
    model = pb.bayesianize(nn.Linear(300, 200, bias=False).double(), sigma=pb.Absolute(1.0))
    with torch.no_grad():
        model.parametrizations.weight.original.zero_()
        with pb.one_draw(model, 5, 2):
            w = model.weight
    z = WordStream(WhichDraw.of(5, 2), tensor=tensor_number("weight")).look_up(
        shape_of({}).values, 0, 0, 60_000
    )
    np.testing.assert_array_equal(w.numpy().astype(np.float32).reshape(-1), z)


def test_tied_draws_move_a_component_as_one(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = pb.bayesianize(two_layers())
    outliers = Outliers(mean=AbsoluteMean(0.27), fisher_fraction=None, smallest_cluster=2)
    report = pb.share(model, pb.Paper(components=6, outliers=outliers, merge=None, beyond=1.0, tied=True))
    assert report.outliers > 0
    assert report.blends > 0
    pb.save(model, tmp_path / "a.pocket")
    again, pocket = pb.load(tmp_path / "a.pocket", two_layers()), decode(tmp_path / "a.pocket")
    assert pocket.options["tied_draws"]
    ours, theirs = sample_weights(pocket, 5, 2), pb.to_deterministic(again, 5, 2).state_dict()
    for key, value in theirs.items():
        np.testing.assert_allclose(ours[key], value.numpy(), rtol=1e-5, atol=1e-6)
    entry = pocket.tensors["0.weight"]
    kept = entry.labels < pocket.codebook.components
    assert len(np.unique(ours["0.weight"].reshape(-1)[kept])) == len(np.unique(entry.labels[kept]))
