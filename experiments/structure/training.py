"""Posteriors of small tanh MLPs by the library, trained on all rows by Adam, with draws of the weights or without.

`bayesianize` and `break_symmetry` make the posterior, `pb.kl_divergence` is its KL and `pb.predict` its answer.  Everything
free has the prior N(0, 1), biases too; the observation noise is given.  `pb.fit` takes the draws of a step one after the
other; here they are one vmapped pass, in half the time.  On a quiet machine that is 3 times what a kernel made for these
networks took, and 6 to 7 times where other jobs use the caches too.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.nn.utils import parametrize

import pocketbayes as pb
from experiments.structure.ordered import Rising, ordered_kl
from experiments.structure.schemes import Choice, whole_rows
from pocketbayes.posterior.weights import Site, stochastic_weights

START_MU, START_SIGMA = 0.1, math.exp(-3.0)
TINY = 1e-12  # under square roots of variances
PRIOR = pb.ZeroMean(1.0)


class Task(NamedTuple):
    """Data, and the standard deviation of their noise."""

    x: Tensor  # [N, D_0]
    y: Tensor  # [N, D_L]
    noise: float


# --- networks -------------------------------------------------------------------------------------------------


def posterior(widths: Sequence[int], choice: Choice, seed: int) -> nn.Sequential:
    """The untrained posterior of `nets.mlp(widths, nn.Tanh)` under a scheme; all schemes of a seed start alike."""
    model, generator = pb.nets.mlp(list(widths), nn.Tanh), torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data = START_MU * torch.randn(parameter.shape, generator=generator)
    if choice.ordered:
        for layer in linear_layers(model)[:-1]:
            parametrize.register_parametrization(layer, "bias", Rising())
    pb.bayesianize(model, prior=PRIOR, sigma=pb.Absolute(START_SIGMA), biases=True)
    if choice.rows:
        whole_rows(model)
    elif choice.scheme is not None:
        pb.break_symmetry(model, choice.scheme, choice.values)
    return model


def layers_of(model: nn.Module) -> list[tuple[Site, Site]]:
    """The weight and the bias of each layer."""
    sites = stochastic_weights(model)
    weights, biases = ([s for s in sites if (s.name == "weight") == way] for way in (True, False))
    return list(zip(weights, biases, strict=True))


def linear_layers(model: nn.Sequential) -> list[nn.Linear]:
    return [layer for layer in model if isinstance(layer, nn.Linear)]


def weights_by_name(model: nn.Module) -> dict[str, Tensor]:
    """The mean weights, for `structure.MAP`; fixed ones have their value."""
    return {site.path: site.weight.whole(site.moments.mu).detach() for site, _ in layers_of(model)}


def trained_constant(model: nn.Module) -> float | None:
    """The size c of fixed values +-c, if it is trained."""
    for site in stochastic_weights(model):
        if site.weight.fixed is not None and isinstance(site.weight.fixed.c, nn.Parameter):
            return site.weight.fixed.c.item()
    return None


def kl(model: nn.Module) -> Tensor:
    """KL(q || p) in nats: `pb.kl_divergence`, but for ordered biases, whose prior is that of `ordered`."""
    return torch.stack(
        [
            ordered_kl(*site.moments) if is_ordered(site) else site.weight.kl(site.original)
            for site in stochastic_weights(model)
        ]
    ).sum()


def is_ordered(site: Site) -> bool:
    """Whether these are the z of ordered biases: what a parametrization makes biases from."""
    return site.path.endswith(".parametrizations.bias.original")


def sigma_of(site: Site) -> Tensor:
    """The standard deviation of every weight of the tensor, 0 where fixed."""
    sigma, fixed = site.moments.sigma, site.weight.fixed
    if fixed is None:
        return sigma
    return sigma.new_zeros(fixed.mask.numel()).index_copy(0, fixed.free, sigma).view(fixed.mask.shape)


# --- the expected NLL -----------------------------------------------------------------------------------------


class Estimator(ABC):
    """An unbiased estimate of E_q[-ln p(y | x, w)], in nats, summed over the data."""

    @abstractmethod
    def nll(self, model: nn.Sequential, task: Task) -> Tensor: ...


@dataclass(frozen=True)
class Draws(Estimator):
    """The mean over draws of all weights."""

    count: int = 16

    def nll(self, model: nn.Sequential, task: Task) -> Tensor:
        outputs = torch.func.vmap(lambda _: model(task.x), randomness="different")(torch.empty(self.count))
        return gaussian_nll((outputs - task.y).square().sum() / self.count, task)  # outputs [S, N, D]


@dataclass(frozen=True)
class Local(Estimator):
    """The local reparameterisation: every row draws its pre-activations, whose Gaussian is known given the layer
    below, and the last layer is integrated out.  `rows` of the data, drawn anew in every step, stand for all.
    """

    rows: int | None = None

    def nll(self, model: nn.Sequential, task: Task) -> Tensor:
        whole = len(task.x)
        if self.rows is not None and self.rows < whole:
            chosen = torch.randperm(whole)[: self.rows]
            task = task._replace(x=task.x[chosen], y=task.y[chosen])
        hidden = task.x
        for weight, bias in layers_of(model):
            mean, var = pre_activation(hidden, weight, bias)
            hidden = torch.tanh(torch.addcmul(mean, var.sqrt(), torch.randn_like(mean)))
        squares = ((mean - task.y).square() + var).sum()
        return gaussian_nll(squares, task) * (whole / len(task.x))


def pre_activation(hidden: Tensor, weight: Site, bias: Site) -> tuple[Tensor, Tensor]:
    """Mean and variance of what a layer gives its activation, [N, out] each.

    A free bias is one more term of the Gaussian; ordered ones are drawn, row by row.
    """
    mu, sigma = bias.moments
    var = linear(hidden.square(), sigma_of(weight).square())
    if is_ordered(bias):
        z = torch.addcmul(mu, sigma, torch.randn(len(hidden), len(mu)).to(mu))
        mu, var = Rising()(z), var + TINY
    else:
        var = var + sigma.square()
    return linear(hidden, weight.weight.whole(weight.moments.mu)) + mu, var


def gaussian_nll(squares: Tensor, task: Task) -> Tensor:
    """-ln N(y; f, noise^2) summed over all values of y, from the sum of squared errors."""
    return squares / (2 * task.noise**2) + task.y.numel() * (
        math.log(task.noise) + 0.5 * math.log(2 * math.pi)
    )


# --- training and prediction ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Adam with a learning rate that falls linearly from `lr` to `final_lr`."""

    steps: int = 10_000
    lr: float = 1e-2
    final_lr: float = 3e-3

    def __post_init__(self) -> None:
        if self.steps < 1 or not 0 < self.final_lr <= self.lr:
            raise ValueError(f"Schedule: needs steps >= 1 and 0 < final_lr <= lr, got {self}.")

    def decay(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, self.final_lr / self.lr, self.steps)


def train(
    model: nn.Sequential, task: Task, estimator: Estimator, schedule: Schedule, seed: int, points: int = 20
) -> Tensor:
    """Minimise the NELBO, in nats of the whole data set; returns its course, [points], means over stretches of steps."""
    optimizer = torch.optim.Adam(model.parameters(), schedule.lr, fused=True)
    decay, losses = schedule.decay(optimizer), []
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for _ in range(schedule.steps):
            optimizer.zero_grad()
            loss = estimator.nll(model, task) + kl(model)
            loss.backward()
            optimizer.step()
            decay.step()
            losses.append(loss.detach())
    return torch.stack([part.mean() for part in torch.stack(losses).tensor_split(points)])


def train_means(model: nn.Sequential, task: Task, schedule: Schedule, seed: int) -> Tensor:
    """MAP training under the model's own prior and mask; returns the last -ln p(y, w) but for a constant, [1]."""
    history = pb.fit_map(
        model,
        [(task.x, task.y)],
        epochs=schedule.steps,
        likelihood=pb.likelihood.Homoscedastic(task.noise),
        num_data=len(task.x),
        lr=schedule.lr,
        optimizer=lambda groups: torch.optim.Adam(groups, fused=True),
        schedule=schedule.decay,
        seed=seed,
        progress=False,
    )
    return torch.tensor([len(task.x) * history[-1].nll + history[-1].kl])


@torch.no_grad()
def mean_outputs(model: nn.Module, x: Tensor) -> Tensor:
    """f(x) through the means, [1, N, D_L]."""
    with pb.mean_weights(model):
        return model(x)[None]


def predict(model: nn.Module, x: Tensor, noise: float, draws: int, seed: int) -> Tensor:
    """f(x) for draws of all the weights: [draws, N, D_L]."""
    likelihood = pb.likelihood.Homoscedastic(noise)
    answer = pb.predict(model, x, samples=draws, seed=seed, likelihood=likelihood, draws=True)
    outputs: Tensor = answer.draws
    return outputs


class Scores(NamedTuple):
    """Of one network on test data."""

    rmse: float  # of the mean prediction: root mean square of each output, averaged over outputs
    lpp: float  # ln of the predictive density of a value, averaged over rows and outputs


def score(outputs: Tensor, y: Tensor, noise: float) -> Scores:
    """From f at the test points, [S, N, D_L], and targets [N, D_L]."""
    outputs, y = outputs.double(), y.double()
    rmse = (outputs.mean(0) - y).square().mean(0).sqrt().mean()
    each = torch.distributions.Normal(outputs, noise).log_prob(y)  # [S, N, D_L]
    lpp = (each.logsumexp(0) - math.log(len(outputs))).mean()
    return Scores(rmse.item(), lpp.item())
