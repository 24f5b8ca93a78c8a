"""`fit_map`: one set of weights, the mode of the posterior."""

from __future__ import annotations

import copy
from contextlib import suppress

import pytest
import torch
from torch import nn

import pocketbayes as pb
from pocketbayes.training.history import Epoch, History

NOISE = 0.5


def ridge(x: torch.Tensor, y: torch.Tensor, prior_sigma: float) -> torch.Tensor:
    """The mode of a linear model with Gaussian noise and prior, in closed form."""
    precision = x.T @ x / NOISE**2 + torch.eye(x.shape[1], dtype=x.dtype) / prior_sigma**2
    return torch.linalg.solve(precision, x.T @ y / NOISE**2).T


@pytest.fixture
def problem() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64)
    return x, y + NOISE * torch.randn(40, 1, generator=generator, dtype=torch.float64)


def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor, **options: object) -> History:
    return pb.fit_map(
        model,
        [(x, y)],
        epochs=400,
        lr=0.1,
        likelihood=pb.likelihood.Homoscedastic(NOISE),
        progress=False,
        **options,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("prior_sigma", [0.1, 1.0])
def test_a_plain_linear_model_ends_at_ridge_regression(
    problem: tuple[torch.Tensor, torch.Tensor], prior_sigma: float
) -> None:
    x, y = problem
    net = nn.Linear(3, 1, bias=False).double()
    train(net, x, y, prior=pb.ZeroMean(prior_sigma))
    torch.testing.assert_close(net.weight.detach(), ridge(x, y, prior_sigma), rtol=1e-5, atol=1e-6)


def test_without_a_prior_it_ends_at_least_squares(problem: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, y = problem
    net = nn.Linear(3, 1, bias=False).double()
    train(net, x, y)
    torch.testing.assert_close(net.weight.detach(), torch.linalg.lstsq(x, y).solution.T, rtol=1e-5, atol=1e-6)


def test_of_a_bayesian_model_the_means_are_trained_under_its_prior(
    problem: tuple[torch.Tensor, torch.Tensor],
) -> None:
    x, y = problem
    net = pb.bayesianize(nn.Linear(3, 1, bias=False).double(), prior=pb.ZeroMean(0.1), sigma=pb.Absolute(0.3))
    before = copy.deepcopy(dict(net.named_parameters()))
    train(net, x, y)
    after = dict(net.named_parameters())
    mean = after["parametrizations.weight.original"].detach()
    torch.testing.assert_close(mean, ridge(x, y, 0.1), rtol=1e-5, atol=1e-6)
    rho = "parametrizations.weight.0.rho"
    assert torch.equal(before[rho], after[rho])


def test_validation_data_see_the_means_of_a_bayesian_model(
    problem: tuple[torch.Tensor, torch.Tensor],
) -> None:
    x, y = problem
    net = pb.bayesianize(nn.Linear(3, 1, bias=False).double(), sigma=pb.Absolute(0.3))
    history = train(net, x, y, validation=[(x, y)])
    assert history.best_epoch is not None
    best = history[history.best_epoch].validation["nll"]
    mean = net.parametrizations.weight.original.detach()  # type: ignore[union-attr, index]
    residual = (y - x @ mean.T).square().mean()
    expected = 0.5 * residual / NOISE**2 + torch.log(torch.tensor(NOISE * (2 * torch.pi) ** 0.5))
    assert best == pytest.approx(float(expected), abs=1e-6)
    drawn = pb.evaluate(net, [(x, y)], likelihood=pb.likelihood.Homoscedastic(NOISE), samples=1)
    assert abs(drawn.nll - float(expected)) > 1e-3


def test_a_prior_for_a_model_that_has_one_is_refused(problem: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, y = problem
    net = pb.bayesianize(nn.Linear(3, 1).double())
    with pytest.raises(ValueError, match="has its priors already"):
        train(net, x, y, prior=pb.ZeroMean(1.0))


def test_a_resumed_run_ends_with_the_same_bits(tmp_path: object) -> None:
    x = torch.randn(64, 5, generator=torch.Generator().manual_seed(1))
    y = x.argmax(1)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8, shuffle=True)

    def run(path: object, stop: int | None) -> nn.Module:
        torch.manual_seed(2)
        net = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.2), nn.Linear(8, 5))

        def halt(epoch: Epoch) -> None:
            if epoch.epoch == stop:
                raise KeyboardInterrupt

        with suppress(KeyboardInterrupt):
            pb.fit_map(net, loader, epochs=4, checkpoint=path, progress=False, on_epoch=halt)  # type: ignore[arg-type]
        return net

    whole = run(None, None)
    path = f"{tmp_path}/map.safetensors"
    interrupted = run(path, 1)
    resumed = run(path, None)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))
    assert not torch.equal(next(whole.parameters()), next(interrupted.parameters()))
