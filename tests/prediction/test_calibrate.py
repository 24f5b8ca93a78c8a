"""One factor on all widths: against a closed form and a grid, on private and shared weights, in `compress`."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import pocketbayes as pb
from pocketbayes.likelihood import Homoscedastic


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


def test_the_factor_is_that_of_the_closed_form_in_regression() -> None:
    mu, sigma, noise = 0.5, 0.1, 0.2
    g = torch.Generator().manual_seed(0)
    x = torch.linspace(0.5, 3.0, 300)[:, None]
    y = mu * x + torch.randn(300, 1, generator=g) * (0.25**2 * x.square() + noise**2).sqrt()
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, mu)
    pb.bayesianize(model, sigma=pb.Absolute(sigma))

    def nll(log_factor: float) -> float:
        """y ~ N(mu x, noise^2 + (factor sigma x)^2)."""
        deviation = (noise**2 + (math.exp(log_factor) * sigma * x).square()).sqrt()
        return -torch.distributions.Normal(mu * x, deviation).log_prob(y).mean().item()

    exact = math.exp(minimize_scalar(nll, bounds=(-1.4, 1.4), method="bounded").x)
    assert exact > 2.0  # a control: these widths are much too small
    loader = [(x, y)]
    found = pb.calibrate(model, loader, likelihood=Homoscedastic(noise), samples=4000)
    # The variance of 4,000 draws has a relative standard error of 2.2 %, so the factor has 1.1 %; and xatol is 1 %.
    assert found.factor == pytest.approx(exact, rel=0.05)
    assert found.nll_after == pytest.approx(nll(math.log(exact)), abs=0.02)
    torch.testing.assert_close(widths(model), torch.tensor([found.factor * sigma]))


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


def test_a_network_that_is_sure_of_noise_gets_wider_and_a_modest_one_narrower() -> None:
    assert pb.calibrate(classifier(scale=4.0), classes()).factor > 1.5
    assert pb.calibrate(classifier(scale=0.8, sigma=2.0), classes()).factor < 0.7


def test_compress_calibrates_last_and_the_file_is_as_large(tmp_path: Path) -> None:
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
    assert calibrated.bytes == plain.bytes
    factor = float(calibrated.stages[-2].note.removeprefix("sigmas times "))
    assert factor > 1.2
    torch.testing.assert_close(widths(models[1]), factor * widths(models[0]), rtol=0.01, atol=0)
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
