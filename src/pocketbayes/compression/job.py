"""What there is to compress, and its posterior: the first stage."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn

from pocketbayes.artifact import Precision
from pocketbayes.compression.plan import Budget, Plan
from pocketbayes.likelihood import Likelihood, unpack
from pocketbayes.posterior.convert import bayesianize
from pocketbayes.posterior.laplace import (
    enough_data,
    fisher_information,
    laplace_sigma,
    noise_cost,
)
from pocketbayes.posterior.modes import modes_of
from pocketbayes.posterior.priors import ZeroMean
from pocketbayes.sharing.share import require_mean_field
from pocketbayes.training.temperature import (
    CHECKED_BATCHES,
    NoiseCost,
    chosen_temperature,
    held_out_fisher,
    implied_temperature,
    known_noise_cost,
    measured_noise_cost,
)

CHECKED_INPUTS = 100  # on which noise is measured without training: most of the time that the posterior takes


@dataclass(frozen=True, kw_only=True)
class CompressionJob:
    """What there is to do."""

    model: nn.Module
    train_loader: Iterable[Any]
    lessons: Iterable[Any]  # the same batches, perhaps with a teacher's answers
    validation_loader: Iterable[Any] | None
    budget: Budget
    plan: Plan
    likelihood: Likelihood | None
    num_data: int | None  # None: the loader has but a few of them
    precision: Precision
    metadata: Mapping[str, Any] | None
    graph: bool  # whether the file is to hold the network's
    progress: bool


class Tempered(NamedTuple):
    """The temperature of a posterior, and why it is that."""

    temperature: float
    why: str


def laplace_posterior(job: CompressionJob) -> Tempered:
    """Make the plain network a Laplace posterior, at the temperature of the plan or at that of its noise cost."""
    plan, fisher = job.plan, _fisher(job)
    num_data = _num_data(job, fisher)
    # Without training, more draws would take most of the time.
    cost_of = partial(known_noise_cost, plan.noise_cost) if plan.epochs else measured_noise_cost

    def sigma(temperature: float) -> dict[str, Tensor]:
        return laplace_sigma(job.model, fisher, num_data, prior=plan.prior, temperature=temperature)

    def measure(temperature: float) -> NoiseCost:
        trial, held_out = (
            bayesianize(copy.deepcopy(job.model), sigma=sigma(temperature)),
            job.validation_loader,
        )
        return cost_of(
            trial,
            job.train_loader if held_out is None else held_out,
            likelihood=job.likelihood,
            batches=_checked(job) if held_out is None else None,
            samples=plan.samples,
            seed=plan.seed,
        )

    judged = fisher
    if job.validation_loader is not None:
        judged = held_out_fisher(
            job.model,
            job.validation_loader,
            likelihood=job.likelihood,
            seed=plan.seed,
            progress=job.progress,
        )
    predicted = noise_cost(judged, sigma(1.0)) / len(modes_of(job.model))  # at temperature 1
    if plan.temperature is None:
        chosen = chosen_temperature(plan.noise_cost, predicted, measure)
        found = Tempered(chosen.value, str(chosen))
    else:
        cost = f"noise costs {predicted * plan.temperature:.3g} nats as predicted"
        found = Tempered(plan.temperature, f"temperature {plan.temperature:g}, as asked for: {cost}")
    bayesianize(job.model, prior=ZeroMean(plan.prior), sigma=sigma(found.temperature))
    return found


def _checked(job: CompressionJob) -> int:
    """Batches on which noise is measured: without training, of about so many inputs."""
    if job.plan.epochs:
        return CHECKED_BATCHES
    return math.ceil(CHECKED_INPUTS / unpack(next(iter(job.train_loader))).size)


def given_posterior(job: CompressionJob) -> Tempered:
    """The sigmas of a posterior stay as they are; without a temperature in the plan, they imply one."""
    require_mean_field(job.model)
    if job.plan.temperature is not None:
        return Tempered(job.plan.temperature, f"temperature {job.plan.temperature:g}, as asked for")
    fisher = _fisher(job)
    implied = implied_temperature(job.model, fisher, _num_data(job, fisher))
    return Tempered(implied, f"temperature {implied:.3g}, that of the sigmas given")


def _fisher(job: CompressionJob) -> dict[str, Tensor]:
    return fisher_information(
        job.model,
        job.train_loader,
        likelihood=job.likelihood,
        batches=job.plan.fisher_batches,
        sampled=job.plan.sampled_fisher or not job.plan.epochs,
        seed=job.plan.seed,
        progress=job.progress,
    )


def _num_data(job: CompressionJob, fisher: dict[str, Tensor]) -> int:
    """How many examples trained the network; where the loader has but a few of them, as many as weigh enough."""
    return enough_data(fisher, job.plan.prior) if job.num_data is None else job.num_data
