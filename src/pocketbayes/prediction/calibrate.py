"""One factor on all sigmas, the one with which held-out data are most likely."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from pocketbayes.likelihood import Likelihood
from pocketbayes.posterior.gaussian import rho_from_sigma, sigma_from_rho
from pocketbayes.posterior.weights import StochasticWeight, require_bayesian
from pocketbayes.prediction.evaluate import evaluate
from pocketbayes.runs.progress import bar
from pocketbayes.sharing.shared import TrainableCodebook

LARGEST = 4.0  # factors from 1/4 to 4 are tried
TRIES = 12


class Calibration(NamedTuple):
    """What `calibrate` found: the factor that all sigmas were multiplied by, and held-out NLL without and with it."""

    factor: float
    nll_before: float
    nll_after: float


def calibrate(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    likelihood: Likelihood | Callable[[Any, Any], Tensor] | None = None,
    samples: int = 8,
    seed: int = 0,
    progress: bool = False,
) -> Calibration:
    """Multiply every sigma of a posterior by the one factor with the least NLL on `loader`.

    The model is changed in place, shared or not; a file of it stays as large as it is.  Of a blended weight, the
    spread of its components' means stays.  Factors are judged with the same draws, so the NLL is a smooth function of
    them, and Brent's method finds its minimum between 1/4 and 4.  The sigmas stay as they are unless others are
    better, and when it is interrupted.

    Args:
        model: a network that `bayesianize` converted.
        loader: batches held out of training; not the test set.
        likelihood: `Categorical()` by default; `Homoscedastic(...)`, `Heteroscedastic()`, or a function of
            (output, target).
        samples: draws for each factor.
        seed: of the draws.
        progress: show a bar on a terminal.

    Returns:
        The factor, and the NLL (nats per example) without and with it.

    Example:
        >>> import torch, pocketbayes as pb
        >>> x = torch.linspace(-1, 1, 64)[:, None]
        >>> model = pb.bayesianize(torch.nn.Linear(1, 2), sigma=pb.Absolute(2.0))
        >>> found = pb.calibrate(model, [(x, (x[:, 0] > 0).long())])
        >>> found.nll_after <= found.nll_before
        True
    """
    require_bayesian(model)
    rhos = [(rho, rho.detach().clone()) for rho in _rhos(model)]

    @torch.no_grad()
    def scale(factor: float) -> None:
        for rho, given in rhos:
            rho.copy_(given if factor == 1 else rho_from_sigma(factor * sigma_from_rho(given)))

    def nll(log_factor: float) -> float:
        scale(math.exp(log_factor))
        found = evaluate(model, loader, likelihood=likelihood, samples=samples, seed=seed)["nll"]
        steps.advance(f"factor {math.exp(log_factor):.2f}, NLL {found:.4f}")
        return found

    reach, factor = math.log(LARGEST), 1.0
    try:
        with bar("calibrate", TRIES + 1, enabled=progress) as steps:
            before = after = nll(0.0)
            found = minimize_scalar(
                nll, bounds=(-reach, reach), method="bounded", options={"maxiter": TRIES, "xatol": 0.01}
            )
        if found.fun < before:
            factor, after = math.exp(found.x), float(found.fun)
    finally:
        scale(factor)
    return Calibration(factor, before, after)


def _rhos(model: nn.Module) -> Iterator[nn.Parameter]:
    """The parameters that hold sigmas, each once."""
    for module in model.modules():
        if isinstance(module, (TrainableCodebook, StochasticWeight)) and isinstance(module.rho, nn.Parameter):
            yield module.rho
