"""The noise of a regression: it starts at the residuals, and ends where validation data have it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice
from typing import Any

import torch
from torch import nn

from pocketbayes.likelihood import Homoscedastic, Likelihood, output_tensor, targets_like
from pocketbayes.posterior.draws import mean_weights
from pocketbayes.posterior.weights import unwrap
from pocketbayes.prediction.held_out import held_out
from pocketbayes.prediction.inputs import device_of, labelled
from pocketbayes.prediction.scales import give_scales, scales_of
from pocketbayes.runs import ranks

BATCHES = 50  # whose residuals count
FLOOR = 1e-6  # of sigma: residuals may vanish


@torch.no_grad()
def start_noise(model: nn.Module, loader: Iterable[Any], likelihood: Likelihood | None) -> None:
    """Where sigma was not given: the root mean square of the residuals, through the means of the weights."""
    if not (isinstance(likelihood, Homoscedastic) and likelihood.is_open):
        return
    total, count, was_training = 0.0, 0, model.training
    model.eval()
    try:
        with mean_weights(unwrap(model)):
            for batch in labelled(islice(loader, BATCHES), device_of(model)):
                mean = output_tensor(model(*batch.args, **batch.kwargs))
                residual = (mean - targets_like(mean, batch.target)).double()
                total, count = total + float(residual.square().sum()), count + residual.numel()
    finally:
        model.train(was_training)
    sums = torch.tensor([total, count], dtype=torch.float64)
    ranks.add_up([sums])
    if sums[1] > 0:
        likelihood.set_sigma(max(FLOOR, math.sqrt(float(sums[0] / sums[1]))))


def refit_noise(
    model: nn.Module, loader: Iterable[Any] | None, likelihood: Likelihood | None, *, samples: int, seed: int
) -> None:
    """Sigma, if it is learned, by the NLL of held-out data, each predicted by all draws together."""
    if isinstance(likelihood, Homoscedastic) and likelihood.learned and loader is not None:
        factor = held_out(model, loader, likelihood, samples, seed).best_temperature()
        likelihood.set_sigma(likelihood.sigma.item() * math.sqrt(factor))


def keep_noise(model: nn.Module, likelihood: Likelihood | None) -> None:
    """Let the model answer with this sigma from now on, and its file say it."""
    if isinstance(likelihood, Homoscedastic):
        inner, sigma = unwrap(model), likelihood.sigma.item()
        give_scales(inner, scales_of(inner)._replace(noise=float(f"{sigma:.4g}")))
