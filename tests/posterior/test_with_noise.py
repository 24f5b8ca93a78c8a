"""Swapping the noise of a posterior: moments stay, the shape and the file change, bad calls change nothing."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import pocketbayes as pb
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
from pocketbayes.posterior.weights import stochastic_weights
from pocketbayes.posterior.with_noise import under_noise, with_noise
from pocketbayes.sharing.latent import Assignment, make_latent

ROOM = 10_000  # numbers in a file: a device's samples may be more than a small network's weights
GAMMA = np.random.default_rng(7).gamma(2.0, size=500)
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
    averaged(Bimodal(0.9), 3),
    StateDependent((-1.0, 1.0), (0.01, 1.0), (Bimodal(0.9), SkewNormal(4.0))),
    Drifted(Programmed(Laplace(), sigma_levels=(0.05, 0.1)), time=10.0, exponent=0.02),
]


def name(noise: Noise) -> str:
    return str(noise)[:20]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def private() -> nn.Module:
    return pb.bayesianize(network(), sigma=pb.Absolute(0.3))


def shared() -> nn.Module:
    model = private()
    pb.share(model, pb.Rate(lambda_=0.5, components=6))
    return model


def latent() -> nn.Module:
    model = private()
    make_latent(model, 6)
    Assignment(model, pb.Rate(lambda_=0.5, components=6)).renew()
    return model


every_kind = pytest.mark.parametrize("build", [private, shared, latent])


@every_kind
def test_means_and_variances_stay_and_the_shape_changes(build) -> None:
    model = build()
    before = [tuple(t.clone() for t in site.moments) for site in stochastic_weights(model)]
    assert with_noise(model, TwoPoint()) is model
    for (mu, sigma), site in zip(before, stochastic_weights(model), strict=True):
        assert torch.equal(site.moments.mu, mu)
        assert torch.equal(site.moments.sigma, sigma)
        with torch.no_grad():
            size = ((getattr(site.owner, site.name) - mu) / sigma).abs()
        torch.testing.assert_close(size, torch.ones_like(size))  # two points: every draw is one sigma away


@every_kind
def test_the_kl_changes_by_the_negentropy_of_every_weight(build) -> None:
    model = build()
    weights = sum(site.moments.mu.numel() for site in stochastic_weights(model))
    before = float(pb.kl_divergence(model).detach())
    after = float(pb.kl_divergence(with_noise(model, Laplace())).detach())
    per_weight = 0.5 * math.log(2 * math.pi * math.e) - 1 - 0.5 * math.log(2)
    assert after - before == pytest.approx(weights * per_weight, rel=1e-4)


@pytest.mark.parametrize("build", [private, shared])
def test_the_file_stores_the_family_that_was_swapped_in(build, tmp_path: Path) -> None:
    model = with_noise(build(), QuantileTable.of(GAMMA))
    pb.save(model, tmp_path / "device.pocket", precision=pb.artifact.FLOAT32)
    again = pb.load(tmp_path / "device.pocket", network(), max_weights=ROOM)
    assert {site.weight.noise for site in stochastic_weights(again)} == {QuantileTable.of(GAMMA)}
    x = torch.randn(4, 6)
    ours, theirs = (pb.predict(m, x, samples=3, seed=5).probs for m in (model, again))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    other = pb.predict(with_noise(again, Gaussian()), x, samples=3, seed=5).probs
    assert not torch.allclose(ours, other, atol=1e-3)  # the control: another family is seen


@pytest.mark.parametrize("noise", FAMILIES, ids=name)
def test_every_family_is_trained_shared_saved_loaded_and_predicts(noise: Noise, tmp_path: Path) -> None:
    x = torch.randn(40, 6)
    data = [(x, x[:, :3].argmax(1))]
    model = pb.bayesianize(network(), sigma=pb.Absolute(0.05), noise=noise)
    start = copy.deepcopy(model)
    pb.fit(model, data, epochs=30, lr=4e-2, temperature=0.1, num_data=40, progress=False)
    pb.share(model, pb.Rate(lambda_=0.1, components=16))
    pb.save(model, tmp_path / "model.pocket", precision=pb.artifact.FLOAT32)
    again = pb.load(tmp_path / "model.pocket", network(), max_weights=ROOM)
    assert all(site.weight.noise == noise for site in stochastic_weights(again))
    before, after = (pb.evaluate(m, data, samples=10).nll for m in (start, again))
    assert after < before - 0.2


def test_a_block_under_other_noise_leaves_every_weight_its_own() -> None:
    model = private()
    first, second = (site.weight for site in stochastic_weights(model))
    second.noise = Laplace()
    with under_noise(model, TwoPoint()):
        assert first.noise == second.noise == TwoPoint()
    assert (first.noise, second.noise) == (Gaussian(), Laplace())
    with pytest.raises(ValueError, match="must be a"), under_noise(model, "signs"):  # type: ignore[arg-type]
        pass
    assert (first.noise, second.noise) == (Gaussian(), Laplace())


def test_what_is_no_noise_is_refused_and_the_model_stays() -> None:
    model = private()
    for wrong in ("gaussian", Gaussian, None):
        with pytest.raises(ValueError, match=r"must be a pocketbayes\.noise\.Noise"):
            with_noise(model, wrong)  # type: ignore[arg-type]
    assert all(site.weight.noise == Gaussian() for site in stochastic_weights(model))


def test_a_plain_model_is_refused() -> None:
    with pytest.raises(ValueError, match="no stochastic weights"):
        with_noise(network(), Gaussian())


@pytest.mark.parametrize("build", ["private", "shared"])
def test_means_and_kl_are_those_that_the_device_makes_of_them(build: str) -> None:
    """A drifted device: all weights are scaled; the mean pass and the KL see it, as the draws do."""
    torch.manual_seed(0)
    model = pb.bayesianize(torch.nn.Linear(6, 5).double(), prior=pb.ZeroMean(0.7), sigma=pb.Absolute(0.2))
    if build == "shared":
        pb.share(model, pb.Rate(lambda_=0.5, components=4, outlier_bits=8.0))
    site = stochastic_weights(model)[0]
    q = site.moments
    device = pb.noise.Drifted(pb.noise.Gaussian(), time=1000.0, exponent=-0.05)
    mu, sigma = device.program(q.mu, q.sigma)
    assert not torch.allclose(mu, q.mu)
    pb.with_noise(model, device)
    with torch.no_grad(), pb.mean_weights(model):
        torch.testing.assert_close(model.weight, mu)
    law = torch.distributions.Normal(mu, sigma)
    prior = torch.distributions.Normal(torch.zeros_like(mu), torch.full_like(mu, 0.7))
    expected = torch.distributions.kl_divergence(law, prior).sum()
    torch.testing.assert_close(pb.kl_divergence(model), expected)


def test_a_small_model_with_a_measured_device_loads(tmp_path: Path) -> None:
    samples = np.random.default_rng(0).laplace(size=5000)
    model = pb.bayesianize(torch.nn.Linear(3, 2), noise=pb.noise.Empirical(samples))
    pb.save(model, tmp_path / "a.pocket")
    loaded = pb.load(tmp_path / "a.pocket", torch.nn.Linear(3, 2))
    assert stochastic_weights(loaded)[0].weight.noise == stochastic_weights(model)[0].weight.noise
