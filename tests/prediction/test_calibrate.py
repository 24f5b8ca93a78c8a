"""One factor on all widths: against a closed form and a grid, on private and shared weights, in `compress`."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize, minimize_scalar
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import pocketbayes as pb
from pocketbayes.likelihood import Homoscedastic
from pocketbayes.prediction.scales import Scales, scales_of


def classes(n: int = 400, seed: int = 0) -> DataLoader:
    """Two classes that overlap, so that a sure network is often wrong."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (n,), generator=g)
    return DataLoader(TensorDataset(torch.randn(n, 4, generator=g) + 0.7 * y[:, None], y), 200)


def classifier(scale: float = 1.0, sigma: float = 0.3) -> nn.Module:
    """Confident by `scale`."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    with torch.no_grad():
        model.weight.copy_(scale * torch.tensor([[-1.0], [1.0]]).expand(2, 4))
        model.bias.copy_(scale * torch.tensor([1.4, -1.4]))
    pb.bayesianize(model, prior=pb.ZeroMean(1.0), sigma=pb.Absolute(sigma))
    return model


def widths(model: nn.Module) -> Tensor:
    from pocketbayes.posterior.weights import stochastic_weights

    return torch.cat([site.moments.sigma.detach().flatten() for site in stochastic_weights(model)])


def test_factor_and_temperature_are_those_of_the_closed_form_in_regression() -> None:
    mu, sigma, noise = 0.5, 0.1, 0.2
    g = torch.Generator().manual_seed(0)
    x = torch.linspace(0.5, 3.0, 300)[:, None]
    y = mu * x + torch.randn(300, 1, generator=g) * (0.25**2 * x.square() + noise**2).sqrt()
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, mu)
    pb.bayesianize(model, sigma=pb.Absolute(sigma))

    def nll(log_factor: float, log_temperature: float = 0.0) -> float:
        """y ~ N(mu x, temperature noise^2 + (factor sigma x)^2)."""
        variance = math.exp(log_temperature) * noise**2 + (math.exp(log_factor) * sigma * x).square()
        return -torch.distributions.Normal(mu * x, variance.sqrt()).log_prob(y).mean().item()

    alone = minimize_scalar(nll, bounds=(-1.4, 1.4), method="bounded")
    both = minimize(lambda at: nll(*at), [0.0, 0.0], method="Nelder-Mead")
    factor, temperature = np.exp(both.x)
    assert factor > 1.8  # a control: these sigmas are much too small
    likelihood = Homoscedastic(noise)
    start = pb.evaluate(model, [(x, y)], likelihood=likelihood, samples=4000).nll
    found = pb.calibrate(model, [(x, y)], likelihood=likelihood, samples=4000)
    # The variance of 4,000 draws has a relative standard error of 2.2 %, so the factor has 1.1 %; and xatol is 1 %.
    assert found.factor == pytest.approx(factor, rel=0.05)
    assert found.temperature == pytest.approx(temperature, rel=0.1)
    residuals = (y - mu * x).square().mean().item()
    assert found.mean_temperature == pytest.approx(
        residuals / noise**2, rel=1e-3
    )  # the variance of the means' noise
    expected = {
        "means": nll(-math.inf),
        "means, temperature": nll(-math.inf, math.log(residuals / noise**2)),
        "draws": nll(0.0),
        "draws, sigma factor": alone.fun,
        "draws, sigma factor and temperature": both.fun,
    }
    assert {name: found.nll[name] for name in expected} == pytest.approx(expected, abs=0.02)
    assert (found.nll_before, found.nll_after) == pytest.approx((start, both.fun), abs=0.02)
    torch.testing.assert_close(widths(model), torch.tensor([found.factor * sigma]))
    after = pb.evaluate(model, [(x, y)], likelihood=likelihood, samples=4000).nll
    assert after == pytest.approx(found.nll_after, abs=1e-6)


@pytest.mark.parametrize("shared", [False, True])
def test_no_factor_on_a_grid_is_better(shared: bool) -> None:
    loader, samples = classes(), 64
    grid = [2 ** (k / 4) for k in range(-8, 9)]
    model = classifier(scale=2.0, sigma=1.0)
    if shared:
        pb.share(model, pb.Rate(components=4))
    before, tried = widths(model), list[float]()
    for factor in grid:
        other = copy.deepcopy(model)
        with torch.no_grad():
            for name, rho in other.named_parameters():
                if name.endswith("rho"):
                    rho.copy_((factor * rho.exp().log1p()).expm1().log())  # softplus and back
        tried.append(pb.evaluate(other, loader, samples=samples)["nll"])
    found = pb.calibrate(model, loader, samples=samples)
    torch.testing.assert_close(widths(model), found.factor * before)
    best = widths(model)
    assert found.nll_before == pytest.approx(tried[8], abs=1e-6)
    assert found.nll_after <= min(tried) + 1e-5 < tried[8]
    assert found.nll_after == pytest.approx(pb.evaluate(model, loader, samples=samples)["nll"], abs=1e-7)
    again = pb.calibrate(model, loader, samples=samples)
    assert again.factor == pytest.approx(1.0, abs=0.03)
    torch.testing.assert_close(widths(model), best, rtol=0.03, atol=0)


def test_widths_that_are_best_as_they_are_keep_their_bits() -> None:
    model, loader = classifier(scale=2.0, sigma=1.0), classes()
    for _ in range(6):  # to a fixed point of the search
        found = pb.calibrate(model, loader)
        before = widths(model).clone()
    assert found.factor == 1.0 and found.nll_after == found.nll_before
    pb.calibrate(model, loader)
    assert torch.equal(widths(model), before)


def test_an_interruption_leaves_the_widths_as_they_were() -> None:
    model, batches = classifier(scale=2.0, sigma=1.0), list(classes())
    before, asked = widths(model), []

    class Interrupted:
        def __iter__(self) -> Iterator[Any]:
            asked.append(1)
            if len(asked) == 4:
                raise KeyboardInterrupt
            return iter(batches)

    with pytest.raises(KeyboardInterrupt):
        pb.calibrate(model, Interrupted())
    assert torch.equal(widths(model), before)


def test_a_network_that_is_sure_of_noise_gets_wider_or_hotter_and_a_modest_one_narrower_or_cooler() -> None:
    sure, modest = (pb.calibrate(m, classes()) for m in (classifier(4.0), classifier(0.8, sigma=2.0)))
    assert sure.factor * sure.temperature > 1.5
    assert modest.factor * modest.temperature < 0.7
    assert sure.mean_temperature > 1.5
    assert modest.nll["draws, sigma factor"] < modest.nll["draws"] - 0.01


def test_the_temperature_of_one_pass_is_that_of_another_minimiser() -> None:
    model, loader = classifier(scale=3.0), classes()
    x, y = loader.dataset.tensors
    found = pb.calibrate(model, loader, sigmas=False)
    with torch.no_grad():
        logits = pb.to_deterministic(model)(x).double()
    slope = torch.ones((), dtype=torch.float64, requires_grad=True)
    newton = torch.optim.LBFGS([slope], tolerance_grad=1e-10, line_search_fn="strong_wolfe", max_iter=50)

    def loss() -> Tensor:
        newton.zero_grad()
        nll = torch.nn.functional.cross_entropy(slope * logits, y)
        nll.backward()
        return nll

    newton.step(loss)
    assert found.mean_temperature == pytest.approx(1 / slope.item(), rel=2e-4)
    # At the best temperature the mean logit of the true class is the mean expected logit: the score is zero.
    p = (logits / found.mean_temperature).softmax(1)
    gap = logits.gather(1, y[:, None])[:, 0] - (p * logits).sum(1)
    assert gap.mean().item() == pytest.approx(0, abs=1e-3 * gap.std().item())
    assert found.nll["means, temperature"] == pytest.approx(loss().item(), abs=1e-7)


def test_the_temperature_of_draws_is_the_best_on_a_grid_and_sigmas_may_stay() -> None:
    model, loader = classifier(scale=3.0, sigma=1.0), classes()
    x, y = loader.dataset.tensors
    before = widths(model)
    draws = pb.predict(model, x, samples=8, draws=True).draws
    found = pb.calibrate(model, loader, sigmas=False, samples=8)
    assert torch.equal(widths(model), before)
    grid = [found.temperature * 1.02**k for k in range(-40, 41)]
    nlls = [-(draws.log() / t).softmax(-1).mean(0).log().gather(1, y[:, None]).mean().item() for t in grid]
    assert min(nlls) == nlls[40] == pytest.approx(found.nll_after, abs=1e-9)
    assert found.nll_before == pytest.approx(pb.metrics.nll(draws.mean(0), y), abs=1e-9)


def test_a_calibration_says_what_each_part_is_worth() -> None:
    found = pb.calibrate(classifier(scale=4.0), classes())
    nll = found.nll
    assert nll["means, temperature"] < nll["means"] - 0.1
    assert nll["draws, sigma factor and temperature"] <= nll["draws, temperature"] < nll["draws"]
    lines = str(found).splitlines()
    assert all(any(name in line and f"{value:.4f}" in line for line in lines) for name, value in nll.items())
    assert f"{found.temperature:.3f}" in lines[-1]


def test_too_few_examples_to_tell_a_temperature_are_refused_and_change_nothing() -> None:
    easy = [(torch.tensor([[5.0] * 4, [-5.0] * 4]), torch.tensor([1, 0]))]  # both right: any colder is better
    few = [tuple(t[:4] for t in next(iter(classes())))]
    for loader in (easy, few):
        model = classifier()
        before = widths(model)
        with pytest.raises(ValueError, match="too few to tell the temperature"):
            pb.calibrate(model, loader)
        assert torch.equal(widths(model), before)
        assert scales_of(model) == Scales()


def test_a_likelihood_of_ones_own_has_a_factor_and_no_temperature() -> None:
    model, loader = classifier(scale=0.8, sigma=2.0), classes()
    found = pb.calibrate(
        model, loader, likelihood=lambda out, y: nn.functional.cross_entropy(out, y, reduction="none")
    )
    assert (found.temperature, found.mean_temperature) == (1.0, 1.0)
    assert found.factor < 0.7


def test_compress_calibrates_last_within_the_budget(tmp_path: Path) -> None:
    held_out = classes(seed=1)
    reports, models = [], []
    for calibrate in (False, True):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
        pb.fit_map(model, classes(), epochs=100, lr=0.05, progress=False)  # sure of its own data
        path = tmp_path / f"{calibrate}.pocket"
        plan = pb.Plan(epochs=1, temperature=0.001, samples=64, calibrate=calibrate)
        reports.append(
            pb.compress(
                model,
                classes(),
                path=path,
                validation_loader=held_out,
                max_bytes=900,
                plan=plan,
                progress=False,
            )
        )
        models.append(pb.load(path, nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))))
    plain, calibrated = reports
    assert [s.name for s in calibrated.stages][-2:] == ["calibration", "file"]
    assert "calibration" not in [s.name for s in plain.stages]
    assert plain.bytes <= 900 and calibrated.bytes <= 900
    assert scales_of(models[1]).draws.temperature != 1.0 == scales_of(models[0]).draws.temperature
    nlls = [pb.evaluate(model, held_out, samples=64)["nll"] for model in models]
    assert nlls[1] < nlls[0]
    assert nlls[1] == pytest.approx(calibrated.stages[-2].metrics["nll"], abs=0.01)


def test_bad_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no stochastic weights"):
        pb.calibrate(nn.Linear(4, 2), classes())
    with pytest.raises(ValueError, match="empty"):
        pb.calibrate(classifier(), [])
    with pytest.raises(ValueError, match="calibrated on validation data"):
        pb.compress(
            nn.Linear(4, 2),
            classes(),
            path=tmp_path / "x.pocket",
            max_bytes=900,
            plan=pb.Plan(calibrate=True),
        )
