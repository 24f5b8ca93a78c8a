"""What validation data choose: a logit temperature for one pass, another for draws, and one factor on all sigmas."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from pocketbayes.likelihood import Likelihood
from pocketbayes.posterior.gaussian import rho_from_sigma, sigma_from_rho
from pocketbayes.posterior.weights import StochasticWeight, require_bayesian, unwrap
from pocketbayes.prediction.answering import likelihood_for
from pocketbayes.prediction.held_out import HeldOut, held_out
from pocketbayes.prediction.scales import Scale, Scales, give_scales, scales_of
from pocketbayes.runs.progress import bar
from pocketbayes.sharing.shared import TrainableCodebook

LARGEST = 4.0  # factors from 1/4 to 4 are tried
TRIES = 12


class Calibration(NamedTuple):
    """What `calibrate` found, and the held-out NLL (nats an example) of answers with it and without.

    `print` it for what each part is worth.
    """

    factor: float  # that all sigmas were multiplied by
    nll_before: float  # of draws, as they were
    nll_after: float
    mean_temperature: float  # of one pass through the means
    temperature: float  # of draws
    nll: Mapping[str, float]  # by what was scaled

    def __str__(self) -> str:
        rows = [f"{name:<36}{value:.4f}" for name, value in self.nll.items()]
        found = f"temperature {self.mean_temperature:.3f} of the means, {self.temperature:.3f} of draws; sigmas times "
        return "\n".join([f"{'held-out NLL (nats)':<36}", *rows, f"chosen: {found}{self.factor:.3f}"])


class _Tried(NamedTuple):
    """A factor, what draws say then, and the temperature that suits them."""

    factor: float
    temperature: float
    plain: Tensor  # NLL at temperature 1, [N]
    scaled: Tensor  # NLL at that temperature, [N]

    @classmethod
    def of(cls, factor: float, draws: HeldOut) -> _Tried:
        temperature = draws.best_temperature()
        return cls(factor, temperature, draws.nll(), draws.nll(temperature))


def calibrate(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    likelihood: Likelihood | Callable[[Any, Any], Tensor] | None = None,
    samples: int = 8,
    sigmas: bool = True,
    seed: int = 0,
    progress: bool = False,
) -> Calibration:
    """Fit a logit temperature for one pass through the means, another for draws, and one factor on all sigmas.

    The model is changed in place, shared or not: its sigmas, and the temperatures, with which it answers from now on,
    which `save` writes into its file, and which further training undoes.  The temperature of a regression multiplies
    the variance of its noise; a likelihood that is a function of (output, target) has none.  Of a blended weight, the
    spread of its components' means stays.

    Each factor is tried with the same draws and with its own best temperature; Brent's method finds the best one
    between 1/4 and 4.  The sigmas stay as they are unless the NLL falls by more than the standard error of the
    difference, and when it is interrupted.

    Args:
        model: a network that `bayesianize` converted.
        loader: batches held out of training; not the test set.
        likelihood: `Categorical()` by default; `Homoscedastic(...)`, `Heteroscedastic()`, or a function of
            (output, target).
        samples: draws for each factor.
        sigmas: False for the temperatures alone, which takes one pass for each draw and one for the means.
        seed: of the draws.
        progress: show a bar on a terminal.

    Returns:
        The factor, both temperatures, and what each is worth: the NLL with it and without.

    Examples:
        >>> import torch, pocketbayes as pb
        >>> x, plain = torch.linspace(-1, 1, 500)[:, None], torch.nn.Linear(1, 2)
        >>> plain.weight.data = torch.tensor([[-4.0], [4.0]])
        >>> model = pb.bayesianize(plain, sigma=pb.Absolute(2.0))
        >>> found = pb.calibrate(model, [(x, (x[:, 0] + 0.3 * torch.randn(500) > 0).long())])
        >>> found.nll_after < found.nll_before
        True
    """
    require_bayesian(model)
    likelihood = likelihood_for(model, likelihood)
    rhos = [(rho, rho.detach().clone()) for rho in _rhos(model)]

    @torch.no_grad()
    def scale(factor: float) -> None:
        for rho, given in rhos:
            rho.copy_(given if factor == 1 else rho_from_sigma(factor * sigma_from_rho(given)))

    @cache
    def tried(log_factor: float) -> _Tried:
        scale(factor := math.exp(log_factor))
        found = _Tried.of(factor, held_out(model, loader, likelihood, samples, seed))
        steps.advance(f"factor {factor:.2f}, NLL {found.scaled.mean():.4f}")
        return found

    chosen = 1.0
    try:
        with bar("calibrate", 2 * TRIES if sigmas else 1, enabled=progress) as steps:
            means = held_out(model, loader, likelihood, "mean", seed)
            draws = held_out(model, loader, likelihood, samples, seed)
            mean_temperature, _ = means.known_temperature(), draws.known_temperature()
            start = _Tried.of(1.0, draws)
            alone, both = (_best(tried, start, of) if sigmas else start for of in ("plain", "scaled"))
        best = both if _is_lower(both.scaled, start.scaled) else start
        chosen = best.factor
    finally:
        scale(chosen)
    before = draws.nll(scales_of(unwrap(model)).draws.temperature)
    give_scales(
        unwrap(model),
        Scales(Scale(mean_temperature), Scale(best.temperature), noise=scales_of(unwrap(model)).noise),
    )
    nll = {
        "means": means.nll(),
        "means, temperature": means.nll(mean_temperature),
        "draws": start.plain,
        "draws, temperature": start.scaled,
        "draws, sigma factor": alone.plain,
        "draws, sigma factor and temperature": both.scaled,
    }
    return Calibration(
        factor=chosen,
        nll_before=before.mean().item(),
        nll_after=best.scaled.mean().item(),
        mean_temperature=mean_temperature,
        temperature=best.temperature,
        nll={name: each.mean().item() for name, each in nll.items()},
    )


def _best(tried: Callable[[float], _Tried], start: _Tried, of: str) -> _Tried:
    """The factor with the least NLL of that kind, perhaps that of `start`."""

    def loss(found: _Tried) -> float:
        nll: Tensor = getattr(found, of)
        return nll.mean().item()

    reach, options = math.log(LARGEST), {"maxiter": TRIES, "xatol": 0.01}
    found = minimize_scalar(
        lambda x: loss(tried(float(x))), bounds=(-reach, reach), method="bounded", options=options
    )
    return min(start, tried(float(found.x)), key=loss)


def _is_lower(nll: Tensor, other: Tensor) -> bool:
    """By more than the standard error of the difference, paired over the examples."""
    fall = other - nll
    return bool(fall.mean() > fall.std() / math.sqrt(len(fall)))


def _rhos(model: nn.Module) -> Iterator[nn.Parameter]:
    """The parameters that hold sigmas, each once."""
    for module in model.modules():
        if isinstance(module, (TrainableCodebook, StochasticWeight)) and isinstance(module.rho, nn.Parameter):
            yield module.rho
