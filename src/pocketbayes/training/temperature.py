"""The temperature, from what noise may cost: predicted in closed form, then measured and corrected."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from pocketbayes.data.loaders import part
from pocketbayes.drawing import WhichDraw
from pocketbayes.likelihood import Likelihood, as_likelihood
from pocketbayes.posterior.convert import to_deterministic
from pocketbayes.posterior.gaussian import rho_from_sigma, sigma_from_rho
from pocketbayes.posterior.laplace import fisher_information, noise_cost
from pocketbayes.posterior.modes import modes_of
from pocketbayes.posterior.weights import MeanFieldWeight, stochastic_weights
from pocketbayes.prediction.ensemble import Ensemble
from pocketbayes.prediction.inputs import device_of, labelled
from pocketbayes.runs import randomness, ranks

FISHER_BATCHES = 50  # of training data, for the prediction
CHECKED_BATCHES = 20  # of training data, on which noise is measured where there are no validation data
HELD_OUT_BATCHES = (
    10  # of validation data, for the prediction; the same again with new labels, if they are fewer
)
TRIES = 4  # temperatures that are measured
MORE = 4  # times as many draws where the first ones do not tell
TOLD = 0.25  # of the wanted cost: a standard error that tells
CLOSE = 1.5  # a factor within which the measured cost is the wanted one
ERRORS = 2.0  # standard errors within which it may be
CORRECTIONS = 4  # in training, each by that factor at most
CORRECTION = 4.0
STEPS = (1e-3, 4.0)  # the least and the largest factor from one temperature to the next
START_BATCHES, START_DRAWS = 5, 4  # on which the sigmas that training starts with are judged
NARROWEST = 0.1  # the least factor on them at a time


class NoiseCost(NamedTuple):
    """Nats an example by which draws raise the NLL, as measured, and its standard error."""

    nats: float
    error: float

    def agrees(self, wanted: float) -> bool:
        """Whether it is the wanted cost, as nearly as it must be or can be told."""
        near = wanted / CLOSE <= self.nats <= wanted * CLOSE
        return near or not self.differs(wanted)

    def differs(self, wanted: float) -> bool:
        """Whether it is another cost, as far as can be told."""
        return abs(self.nats - wanted) > ERRORS * self.error


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

    The standard error is that of pairs of draws and of examples, which vary independently.
    """
    likelihood, samples = as_likelihood(likelihood), max(4, samples)
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
    pairs = _means_of_pairs(rise, len(modes_of(model)))
    of_pairs, of_examples = (pairs.mean(d).var(correction=0) / max(1, pairs.shape[1 - d] - 1) for d in (1, 0))
    return NoiseCost(rise.mean().item(), (of_pairs + of_examples).sqrt().item())


def _means_of_pairs(rise: Tensor, modes: int) -> Tensor:
    """[P, N] from [S, N]: the draws of a pair mirror each other."""
    pairs: dict[tuple[int, int], list[Tensor]] = {}
    for number, row in enumerate(rise):
        which = WhichDraw.of(0, number, modes)
        pairs.setdefault((which.pair, which.mode), []).append(row)
    return torch.stack([torch.stack(rows).mean(0) for rows in pairs.values()])


def known_noise_cost(wanted: float, model: nn.Module, loader: Iterable[Any], **known: Any) -> NoiseCost:
    """The same by more draws, where those asked for leave open whether it is the wanted cost."""
    cost = measured_noise_cost(model, loader, **known)
    if cost.error <= TOLD * wanted or cost.differs(wanted):
        return cost
    return measured_noise_cost(model, loader, **{**known, "samples": MORE * known["samples"]})


def held_out_fisher(
    model: nn.Module, loader: Iterable[Any], *, likelihood: Likelihood | None, seed: int, progress: bool
) -> dict[str, Tensor]:
    """The Fisher information of data that a posterior's sigmas do not come from: it predicts what noise costs there.

    Weights that hardly matter in the data that the sigmas come from, because so it happened or because the network has
    learned those by heart, have wide sigmas: the same data find them cheap.
    """
    likelihood = as_likelihood(likelihood)
    again = chain.from_iterable(repeat(loader, HELD_OUT_BATCHES))
    return fisher_information(
        model,
        again,
        likelihood=likelihood,
        batches=HELD_OUT_BATCHES,
        sampled=likelihood.draws_targets,
        seed=seed,
        progress=progress,
    )


@torch.no_grad()
def start_sigmas(
    model: nn.Module, loader: Iterable[Any], *, likelihood: Likelihood, most: float, seed: int
) -> None:
    """Where they were not given: scaled by one factor to where noise costs at most so many nats an example.

    A trained network may not bear the sigmas that an untrained one does: training would have to find back to it.
    """
    weights = [s.weight for s in stochastic_weights(model) if isinstance(s.weight, MeanFieldWeight)]
    weights = [weight for weight in weights if weight.is_open]
    known: dict[str, Any] = {"likelihood": likelihood, "batches": START_BATCHES, "samples": START_DRAWS}
    for _ in range(TRIES if weights else 0):
        try:
            cost = measured_noise_cost(model, loader, seed=seed, **known)
        except ValueError:  # bad data: training tells where
            return
        if cost.nats <= most or not cost.differs(most):
            break
        factor = max(NARROWEST, math.sqrt(most / cost.nats))
        for weight in weights:
            weight.rho.copy_(rho_from_sigma(factor * sigma_from_rho(weight.rho)))
    for weight in weights:
        weight.is_open = False


@dataclass(frozen=True, kw_only=True)
class Tempering:
    """Looks for the temperature at which drawing the weights of a posterior in training costs what it may."""

    model: nn.Module  # its weights are not shared
    loader: Iterable[Any]
    wanted: float  # nats an example
    num_data: int
    likelihood: Likelihood
    validation: Iterable[Any] | None
    samples: int
    seed: int

    def start(self) -> float:
        """That of a Laplace posterior around the means as they are, under the priors of this one."""
        found = stochastic_weights(self.model)
        if shared := [site.path for site in found if not isinstance(site.weight, MeanFieldWeight)]:
            raise ValueError(
                f"fit: temperature='auto' is for weights that are not shared, and {shared[0]} is. Pass a number, such "
                "as the temperature that compress reported."
            )
        known: dict[str, Any] = {"likelihood": self.likelihood, "batches": FISHER_BATCHES, "seed": self.seed}
        fisher = fisher_information(self.model, self.loader, **known, progress=False)

        def sigma(temperature: float) -> dict[str, Tensor]:
            precision = {s.path: self.num_data * fisher[s.path] + s.weight.prior_sigma**-2 for s in found}
            return {path: (temperature / p).sqrt() for path, p in precision.items()}

        def measure(temperature: float) -> NoiseCost:
            trial, sigmas = copy.deepcopy(self.model), sigma(temperature)
            with torch.no_grad():
                for site in stochastic_weights(trial):
                    cast(MeanFieldWeight, site.weight).rho.copy_(rho_from_sigma(sigmas[site.path]))
            return self._measured(trial)

        bayes, judged = sigma(1.0), fisher
        if self.validation is not None:
            rest: dict[str, Any] = {"likelihood": self.likelihood, "seed": self.seed, "progress": False}
            judged = held_out_fisher(self.model, self.validation, **rest)
        predicted = noise_cost({path: judged[path] for path in bayes}, bayes) / len(modes_of(self.model))
        return chosen_temperature(self.wanted, predicted, measure).value

    def corrected(self, temperature: float) -> float:
        """In proportion to what the noise of the posterior as it is costs; its sigmas must have had time to follow."""
        cost = self._measured(self.model)
        if cost.agrees(self.wanted):
            return temperature
        ratio = self.wanted / cost.nats if cost.nats > 0 else math.inf
        return min(1.0, temperature * min(CORRECTION, max(1 / CORRECTION, ratio)))

    def _measured(self, model: nn.Module) -> NoiseCost:
        data, batches = (self.loader, CHECKED_BATCHES) if self.validation is None else (self.validation, None)
        known: dict[str, Any] = {"likelihood": self.likelihood, "samples": self.samples, "seed": self.seed}
        return known_noise_cost(self.wanted, model, data, batches=batches, **known)


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
