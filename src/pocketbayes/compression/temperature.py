"""The temperature, from what noise may cost: predicted in closed form, then measured and corrected."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pocketbayes.data.loaders import part
from pocketbayes.likelihood import Likelihood, as_likelihood
from pocketbayes.posterior.convert import to_deterministic
from pocketbayes.posterior.laplace import noise_cost
from pocketbayes.posterior.weights import stochastic_weights
from pocketbayes.prediction.ensemble import Ensemble
from pocketbayes.prediction.inputs import device_of, labelled
from pocketbayes.runs import randomness, ranks

TRIES = 4  # temperatures that are measured
CLOSE = 1.5  # a factor within which the measured cost is the wanted one
ERRORS = 2.0  # standard errors within which it may be
STEPS = (1e-3, 4.0)  # the least and the largest factor from one temperature to the next


class NoiseCost(NamedTuple):
    """Nats an example by which draws raise the NLL, as measured, and its standard error."""

    nats: float
    error: float

    def agrees(self, wanted: float) -> bool:
        """Whether it is the wanted cost, as nearly as it must be or can be told."""
        near = wanted / CLOSE <= self.nats <= wanted * CLOSE
        return near or abs(self.nats - wanted) <= ERRORS * self.error


class Temperature(NamedTuple):
    """What was chosen, and the noise cost there."""

    value: float
    predicted: float  # nats an example
    measured: NoiseCost

    def __str__(self) -> str:
        cost = f"noise costs {self.measured.nats:.3g} ± {self.measured.error:.1g} nats"
        return f"temperature {self.value:.3g}: {cost}, predicted {self.predicted:.3g}"


def chosen_temperature(wanted: float, predicted: float, measure: Callable[[float], NoiseCost]) -> Temperature:
    """The temperature, at most 1, at which noise costs `wanted` nats an example.

    Args:
        wanted: nats an example.
        predicted: the noise cost at temperature 1, in proportion to which the first temperature is chosen.
        measure: the noise cost at a temperature; asked at most `TRIES` times.
    """
    low, high, tried = 0.0, math.inf, list[Temperature]()
    value = min(1.0, wanted / predicted) if predicted > 0 else 1.0
    for _ in range(TRIES):
        cost = measure(value)
        tried.append(Temperature(value, value * predicted, cost))
        if cost.agrees(wanted) or (value == 1.0 and cost.nats < wanted):
            return tried[-1]
        low, high = (value, high) if cost.nats < wanted else (low, value)
        value = _next(value * wanted / cost.nats if cost.nats > 0 else math.inf, value, low, high)
    return min(tried, key=lambda t: abs(t.measured.nats - wanted))


def _next(proportional: float, value: float, low: float, high: float) -> float:
    """The temperature to try after `value`: in proportion to the cost, or the middle where that leaves the bracket."""
    if low < proportional < high < math.inf and low > 0:
        return proportional
    if low > 0 and high < math.inf:
        return math.sqrt(low * high)
    return min(1.0, STEPS[1] * value, max(STEPS[0] * value, proportional))


@torch.no_grad()
def measured_noise_cost(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    likelihood: Likelihood | None = None,
    batches: int | None = None,
    samples: int = 8,
    seed: int = 0,
) -> NoiseCost:
    """E_w NLL(w) - NLL(mu) on the batches of `loader`, or on so many of them, in nats an example; infinite where a
    draw's NLL is not finite.

    The standard error is that of draws and of examples, which vary independently.
    """
    likelihood, samples = as_likelihood(likelihood), max(2, samples)
    means, draws = Ensemble(to_deterministic(model)), Ensemble(model, samples=samples, seed=seed)
    rises: list[Tensor] = []
    with randomness.forked(seed):
        for batch in labelled(part(loader, batches), device_of(model)):
            starts, drawn = (
                torch.stack(
                    [likelihood.nll(y, batch.target) for y in each.outputs(*batch.args, **batch.kwargs)]
                )
                for each in (means, draws)
            )  # [M, N], [S, N]
            rises.append((drawn - starts[torch.arange(len(drawn)) % len(starts)]).double())  # [S, N]
    rise = torch.cat(ranks.gather_in_turn(rises), 1)
    if not bool(torch.isfinite(rise).all()):
        return NoiseCost(math.inf, 0.0)
    of_draws, of_examples = (rise.mean(d).var(correction=0) / max(1, rise.shape[1 - d] - 1) for d in (1, 0))
    return NoiseCost(rise.mean().item(), (of_draws + of_examples).sqrt().item())


def implied_temperature(model: nn.Module, fisher: dict[str, Tensor], num_data: int) -> float:
    """The temperature, at most 1, at which a Laplace posterior would have the noise cost of this posterior's sigmas."""
    sites = stochastic_weights(model)
    known = {site.path: fisher[site.path] for site in sites}
    sigma = {site.path: site.moments.sigma.detach() for site in sites}
    bayes = {
        site.path: (num_data * fisher[site.path] + site.weight.prior_sigma**-2).rsqrt() for site in sites
    }
    most = noise_cost(known, bayes)
    return min(1.0, noise_cost(known, sigma) / most) if most > 0 else 1.0
