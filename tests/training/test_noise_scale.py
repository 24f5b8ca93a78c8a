"""The noise of a regression finds its own scale."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import pocketbayes as pb
from pocketbayes.likelihood import Homoscedastic
from pocketbayes.training.noise_scale import refit_noise, start_noise

NOISE = 0.3
Batches = list[tuple[Tensor, Tensor]]


def line(n: int, seed: int, scale: float = 1.0) -> Batches:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=g)
    y = x @ torch.tensor([1.0, -2.0, 0.5]) + NOISE * torch.randn(n, generator=g)
    return [(a, scale * b[:, None]) for a, b in zip(x.split(64), y.split(64), strict=True)]


def exact(scale: float = 1.0) -> nn.Module:
    model = nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(scale * torch.tensor([[1.0, -2.0, 0.5]]))
    return model


def test_it_starts_at_the_residuals() -> None:
    data, noise = line(512, 0), Homoscedastic()
    start_noise(exact(), data, noise)
    residuals = torch.cat([exact()(x) - y for x, y in data]).detach().numpy()
    assert noise.sigma.item() == pytest.approx(np.sqrt(np.mean(residuals**2)), rel=1e-5)


def test_a_sigma_that_was_given_stays() -> None:
    for noise in (Homoscedastic(0.7), Homoscedastic(0.7, learned=True)):
        start_noise(exact(), line(64, 0), noise)
        assert noise.sigma.item() == pytest.approx(0.7)


def test_held_out_data_have_the_last_word_in_closed_form() -> None:
    """With sigmas near zero the best noise is the root mean square of the held-out residuals."""
    held, noise = line(256, 1), Homoscedastic()
    model = pb.bayesianize(exact(), sigma=pb.Absolute(1e-6))
    refit_noise(model, held, noise, samples=4, seed=0)
    residuals = torch.cat([exact()(x) - y for x, y in held]).detach().numpy()
    assert noise.sigma.item() == pytest.approx(np.sqrt(np.mean(residuals**2)), rel=1e-3)


def test_draws_explain_their_part_of_the_residuals() -> None:
    """A posterior that is wide leaves less to the noise: the variance of the data is the sum of both."""
    held, wide = line(4096, 1), 0.1
    model = pb.bayesianize(exact(), sigma=pb.Absolute(wide))
    noise = Homoscedastic()
    start_noise(model, held, noise)
    refit_noise(model, held, noise, samples=64, seed=0)
    assert noise.sigma.item() < math.sqrt(NOISE**2 - 0.5 * wide**2)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_targets_of_any_scale_are_fitted_without_a_setting(scale: float) -> None:
    held, prior = line(256, 1, scale), pb.ZeroMean(10 * scale)
    model = pb.bayesianize(exact(0.9 * scale), sigma=pb.Absolute(1e-3 * scale), prior=prior)
    noise, rates = Homoscedastic(), {"lr": 5e-3 * scale, "rho_lr": 0.0}
    data = line(512, 0, scale)
    pb.fit(model, data, epochs=30, likelihood=noise, validation=held, progress=False, **rates)
    assert noise.sigma.item() == pytest.approx(pb.evaluate(model, held).rmse, rel=0.02)
    assert noise.sigma.item() == pytest.approx(NOISE * scale, rel=0.15)


def test_noise_that_was_learned_is_in_the_file_and_needs_no_likelihood(tmp_path: Path) -> None:
    model = pb.bayesianize(exact(), sigma=pb.Absolute(0.01))
    noise, held = Homoscedastic(), line(256, 1)
    pb.fit(model, line(256, 0), epochs=2, likelihood=noise, validation=held, progress=False)
    pb.save(model, tmp_path / "line.pocket")
    loaded = pb.load(tmp_path / "line.pocket", nn.Linear(3, 1, bias=False))
    answer = pb.predict(loaded, held[0][0], samples=4)
    assert isinstance(answer, pb.Regression)
    torch.testing.assert_close(
        answer.var, answer.epistemic_var + noise.sigma.detach() ** 2, rtol=2e-3, atol=1e-6
    )
    assert "rmse" in pb.evaluate(loaded, held, samples=4)


def test_compression_of_a_regression_refits_the_noise(tmp_path: Path) -> None:
    """A file so small that the network errs more has more noise, and says so."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    train, held = line(1024, 0), line(512, 1)
    pb.fit_map(net, train, epochs=30, lr=5e-3, likelihood=Homoscedastic(), progress=False)
    report = pb.compress(
        net,
        train,
        path=tmp_path / "net.pocket",
        validation_loader=held,
        max_bytes=2600,
        likelihood=Homoscedastic(),
        plan=pb.Plan(epochs=1),
        progress=False,
    )
    assert report.bytes <= 2600
    scores = pb.evaluate(net, held, samples=8)
    best = 0.5 * math.log(2 * math.pi * math.e * scores.rmse**2)
    assert scores.nll <= best + 0.02
