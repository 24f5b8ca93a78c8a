"""Many posteriors of one small tanh MLP trained at once: R networks with weights [R, out, in] and one bmm a layer.

The networks of a batch differ in what is fixed (`Plan`); they share the data, the initial values and the noise of
every step, so their differences are paired.  Everything free has the prior N(0, 1) and a posterior N(mu, sigma^2),
biases too; the observation noise is given.  Names are those of `nets.mlp(widths, nn.Tanh)`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from experiments.structure import native
from experiments.structure.ordered import HALF_LOG_TAU, ordered_biases, ordered_kl, ordered_start
from pocketbayes.posterior.gaussian import rho_from_sigma
from pocketbayes.structure import Fixed

START_MU, START_SIGMA = 0.1, math.exp(-3.0)
TINY = 1e-12  # under square roots of variances


class Plan(NamedTuple):
    """How one network differs from the plain one."""

    fixed: Mapping[str, Fixed] = {}  # by tensor name
    trained: bool = False  # the size c of fixed values +-c is a parameter
    ordered: bool = False  # the biases of every hidden layer are ordered


class Task(NamedTuple):
    """Data that all networks of a batch see."""

    x: Tensor  # [N, D_0]
    y: Tensor  # [N, D_L]
    noise: float  # standard deviation of the observations


class Noise(NamedTuple):
    """The standard normal numbers of one layer in one step, the same for all networks."""

    weight: Tensor
    bias: Tensor


class Step(NamedTuple):
    """What one step draws: the rows it looks at, noise for each layer, and how many rows each row stands for."""

    task: Task
    noise: list[Noise]
    scale: Tensor  # []


def standard_kl(mu: Tensor, sigma: Tensor) -> Tensor:
    """KL(N(mu, sigma^2) || N(0, 1)), element by element."""
    return 0.5 * (sigma.square() + mu.square() - 1.0) - sigma.log()


def tanh(x: Tensor) -> Tensor:
    """tanh by the logistic function, which torch computes four times faster on CPUs."""
    return 2.0 * torch.sigmoid(2.0 * x) - 1.0


# --- networks -------------------------------------------------------------------------------------------------


class Layer(NamedTuple):
    """One layer of R networks: trained tensors, and what is fixed."""

    mu: Tensor  # [R, out, in]
    rho: Tensor
    bias_mu: Tensor  # [R, out]; of z in the last `ordered` rows
    bias_rho: Tensor
    free: Tensor  # [R, out, in]: 1 where free, 0 where fixed
    values: Tensor  # [R, out, in]: fixed values, 0 elsewhere
    signs: Tensor  # [R, out, in]: what multiplies the trained c, 0 elsewhere
    ordered: int  # so many of the last networks have ordered biases here

    def biases(self, noise: Tensor) -> Tensor:
        """Drawn biases [R, S, out] from noise [S, out]."""
        z = self.bias_mu[:, None] + softplus(self.bias_rho)[:, None] * noise
        free = len(z) - self.ordered
        return torch.cat([z[:free], ordered_biases(z[free:])]) if self.ordered else z

    def bias_kl(self) -> Tensor:
        """[R]"""
        mu, sigma, free = self.bias_mu, softplus(self.bias_rho), len(self.bias_mu) - self.ordered
        kl = standard_kl(mu[:free], sigma[:free]).sum(1)
        return torch.cat([kl, ordered_kl(mu[free:], sigma[free:])]) if self.ordered else kl


class Networks:
    """R mean-field posteriors of one architecture; those with ordered biases come last."""

    def __init__(
        self, widths: Sequence[int], plans: Sequence[Plan], seed: int, dtype: torch.dtype = torch.float32
    ) -> None:
        ordered = sum(plan.ordered for plan in plans)
        if any(plan.ordered for plan in plans[: len(plans) - ordered]):
            raise ValueError("plans: those with ordered biases must come last.")
        generator = torch.Generator().manual_seed(seed)
        self.c = torch.tensor([_constant_of(plan) for plan in plans], dtype=dtype).requires_grad_()  # [R]
        self.layers: list[Layer] = []
        for number, (inputs, outputs) in enumerate(pairwise(widths)):
            weight = START_MU * torch.randn(outputs, inputs, generator=generator, dtype=dtype)
            bias = START_MU * torch.randn(outputs, generator=generator, dtype=dtype)
            last = number == len(widths) - 2
            self.layers.append(_layer(f"{2 * number}.weight", weight, bias, plans, 0 if last else ordered))

    def parameters(self) -> list[Tensor]:
        trained = [t for layer in self.layers for t in (layer.mu, layer.rho, layer.bias_mu, layer.bias_rho)]
        return [*trained, self.c]

    def means(self, layer: Layer) -> Tensor:
        """The mean of every weight, [R, out, in]; its value where fixed."""
        return layer.free * layer.mu + layer.values + self.c[:, None, None] * layer.signs

    def sigmas(self, layer: Layer) -> Tensor:
        """The standard deviation of every weight, [R, out, in]; 0 where fixed."""
        return layer.free * softplus(layer.rho)

    def kl(self) -> Tensor:
        """KL(q || p) in nats, of free weights and biases: [R]."""
        total = torch.zeros_like(self.c)
        for layer in self.layers:
            weights = (layer.free * standard_kl(layer.mu, softplus(layer.rho))).sum((1, 2))
            total = total + weights + layer.bias_kl()
        return total

    def penalty(self) -> Tensor:
        """-ln p of the means, without its constant: what MAP training adds to the NLL, [R]."""
        total = torch.zeros_like(self.c)
        for layer in self.layers:
            total = total + (layer.free * layer.mu.square()).sum((1, 2)) + layer.bias_mu.square().sum(1)
        return 0.5 * total

    def values(self, run: int) -> dict[str, Tensor]:
        """The mean weights of one network by name, for `structure.MAP`."""
        return {f"{2 * i}.weight": self.means(layer)[run].detach() for i, layer in enumerate(self.layers)}


def _constant_of(plan: Plan) -> float:
    """c, the size of the fixed values, where it is trained; elsewhere it is not used."""
    return float(max(abs(part.values).max() for part in plan.fixed.values())) if plan.trained else 0.0


def _layer(name: str, weight: Tensor, bias: Tensor, plans: Sequence[Plan], ordered: int) -> Layer:
    free, values, signs = (torch.zeros(len(plans), *weight.shape, dtype=weight.dtype) for _ in range(3))
    free += 1.0
    for run, plan in enumerate(plans):
        if (part := plan.fixed.get(name)) is None:
            continue
        free[run] = torch.from_numpy(~part.mask)
        given = torch.from_numpy(part.values).to(weight)
        if plan.trained:
            signs[run] = given / _constant_of(plan)
        else:
            values[run] = given
    biases = torch.stack([bias] * (len(plans) - ordered) + [ordered_start(bias)] * ordered)
    means = (weight.expand(len(plans), *weight.shape).clone(), biases)
    rhos = (rho_from_sigma(torch.full_like(mean, START_SIGMA)) for mean in means)
    mu, bias_mu, rho, bias_rho = (t.requires_grad_() for t in (*means, *rhos))
    return Layer(mu, rho, bias_mu, bias_rho, free, values, signs, ordered)


# --- the expected NLL -----------------------------------------------------------------------------------------


class Estimator(ABC):
    """An unbiased estimate of E_q[-ln p(y | x, w)], in nats, summed over the data: [R]."""

    @abstractmethod
    def draw(self, networks: Networks, task: Task, generator: torch.Generator) -> Step:
        """What one step draws."""

    @abstractmethod
    def nll(self, networks: Networks, step: Step) -> Tensor:
        """The NLL of the step's rows with the step's noise."""


@dataclass(frozen=True)
class Weights(Estimator):
    """The mean over draws of all weights."""

    draws: int = 16

    def draw(self, networks: Networks, task: Task, generator: torch.Generator) -> Step:
        shapes = [(self.draws, *layer.mu.shape[1:]) for layer in networks.layers]
        noise = [Noise(_normal(s, task, generator), _normal(s[:2], task, generator)) for s in shapes]
        return Step(task, noise, torch.ones(()))

    def nll(self, networks: Networks, step: Step) -> Tensor:
        x, y, _ = step.task
        if native.usable() and x.dtype == torch.float32:
            weights, biases = zip(*drawn_layers(networks, step.noise), strict=True)
            squares = native.squared_errors(x, y, weights, biases)  # [R, S]
        else:
            squares = (outputs_of(networks, x, step.noise) - y).square().sum((2, 3))
        return gaussian_nll(squares.mean(1), step.task)


@dataclass(frozen=True)
class Local(Estimator):
    """The local reparameterisation: every row draws its pre-activations, whose Gaussian is known given the layer
    below, and the last layer is integrated out.  `rows` of the data, drawn anew in every step, stand for all.
    """

    rows: int | None = None

    def draw(self, networks: Networks, task: Task, generator: torch.Generator) -> Step:
        whole = len(task.x)
        if self.rows is not None and self.rows < whole:
            chosen = torch.randperm(len(task.x), generator=generator)[: self.rows]
            task = task._replace(x=task.x[chosen], y=task.y[chosen])
        shapes = [(len(task.x), layer.mu.shape[1]) for layer in networks.layers[:-1]]
        noise = [Noise(_normal(s, task, generator), _normal(s, task, generator)) for s in shapes]
        return Step(task, noise, torch.tensor(whole / len(task.x)))

    def nll(self, networks: Networks, step: Step) -> Tensor:
        (x, y, _), runs = step.task, len(networks.c)
        hidden, square = (t.expand(runs, *t.shape) for t in (x, x.square()))  # [R, N, in]
        for layer, noise in zip(networks.layers, step.noise, strict=False):
            # Ordered biases are drawn, row by row; free ones are one more term of the Gaussian.
            sigma, free = softplus(layer.bias_rho)[:, None], runs - layer.ordered
            bias, var = layer.bias_mu[:, None], sigma.square()
            if layer.ordered:
                drawn = ordered_biases(bias[free:] + sigma[free:] * noise.bias)
                bias = torch.cat([bias[:free].expand(-1, *noise.bias.shape), drawn])
                var = torch.cat([var[:free], torch.zeros_like(var[free:])])
            means = torch.baddbmm(bias, hidden, networks.means(layer).mT)  # [R, N, out]
            variances = torch.baddbmm(var + TINY, square, networks.sigmas(layer).square().mT)
            hidden, square = _NoisyTanh.apply(means, variances, noise.weight)  # type: ignore[no-untyped-call]
        last = networks.layers[-1]
        outputs = torch.baddbmm(last.bias_mu[:, None], hidden, networks.means(last).mT)
        spread = (square.sum(1, keepdim=True) @ networks.sigmas(last).square().mT).sum((1, 2))
        spread = spread + len(y) * softplus(last.bias_rho).square().sum(1)
        return gaussian_nll((outputs - y).square().sum((1, 2)) + spread, step.task)


class _NoisyTanh(torch.autograd.Function):
    """(h, h^2) with h = tanh(mean + sqrt(var) noise), and its gradient in few passes over memory."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, var: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        sigma = var.sqrt()
        hidden = tanh(torch.addcmul(mean, sigma, noise))
        square = hidden.square()
        ctx.save_for_backward(hidden, square, sigma, noise)
        return hidden, square

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        hidden, square, sigma, noise = ctx.saved_tensors
        grad = (grads[0] + 2.0 * hidden * grads[1]) * (1.0 - square)
        return grad, grad * (0.5 * noise) / sigma, None


@dataclass(frozen=True)
class Means(Estimator):
    """No draw at all: the NLL of the means, for MAP training."""

    def draw(self, networks: Networks, task: Task, generator: torch.Generator) -> Step:
        return Step(task, [], torch.ones(()))

    def nll(self, networks: Networks, step: Step) -> Tensor:
        squares = (mean_outputs(networks, step.task.x) - step.task.y).square().sum((1, 2))
        return gaussian_nll(squares, step.task)


def _normal(shape: tuple[int, ...], task: Task, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=task.x.dtype)


def gaussian_nll(squares: Tensor, task: Task) -> Tensor:
    """-ln N(y; f, noise^2) summed over all values of y, from the sum of squared errors."""
    return squares / (2 * task.noise**2) + task.y.numel() * (math.log(task.noise) + HALF_LOG_TAU)


def drawn_layers(networks: Networks, noise: Sequence[Noise]) -> Iterator[tuple[Tensor, Tensor]]:
    """Weights [R, S, out, in] and biases [R, S, out] of each layer, from its noise [S, *shape]."""
    for layer, drawn in zip(networks.layers, noise, strict=True):
        mean, sigma = networks.means(layer)[:, None], networks.sigmas(layer)[:, None]
        yield torch.addcmul(mean, sigma, drawn.weight), layer.biases(drawn.bias)


def outputs_of(networks: Networks, x: Tensor, noise: Sequence[Noise]) -> Tensor:
    """f(x) of every network and draw, [R, S, N, D_L], from noise [S, *shape] of each layer."""
    hidden = x
    for number, (weight, bias) in enumerate(drawn_layers(networks, noise)):
        hidden = hidden @ weight.mT + bias[:, :, None]
        hidden = tanh(hidden) if number + 1 < len(networks.layers) else hidden
    return hidden


def mean_outputs(networks: Networks, x: Tensor) -> Tensor:
    """f(x) through the means, [R, N, D_L]; biases are free."""
    hidden = x.expand(len(networks.c), *x.shape)
    for number, layer in enumerate(networks.layers):
        hidden = torch.baddbmm(layer.bias_mu[:, None], hidden, networks.means(layer).mT)
        hidden = tanh(hidden) if number + 1 < len(networks.layers) else hidden
    return hidden


# --- training and prediction ----------------------------------------------------------------------------------


def nelbo(networks: Networks, estimator: Estimator, step: Step) -> Tensor:
    """Expected NLL + KL in nats of the whole data set, [R]; with `Means`, -ln of the joint density."""
    prior = networks.penalty() if isinstance(estimator, Means) else networks.kl()
    return step.scale * estimator.nll(networks, step) + prior


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Adam with a learning rate that falls linearly from `lr` to `final_lr`."""

    steps: int = 10_000
    lr: float = 1e-2
    final_lr: float = 3e-3

    def __post_init__(self) -> None:
        if self.steps < 1 or not 0 < self.final_lr <= self.lr:
            raise ValueError(f"Schedule: needs steps >= 1 and 0 < final_lr <= lr, got {self}.")


class Trainer:
    """Trains batches of networks that have the same shapes, all with one compiled loss (half the time of an eager
    one, for which `compiled=False` is; compiling needs a C++ compiler).
    """

    def __init__(self, schedule: Schedule, estimator: Estimator, compiled: bool = False) -> None:
        self.schedule, self.estimator = schedule, estimator
        if compiled:
            torch._dynamo.config.recompile_limit = 64  # every number of rows is compiled for
        self.loss = torch.compile(nelbo) if compiled else nelbo

    def train(self, networks: Networks, task: Task, seed: int, points: int = 20) -> Tensor:
        """Minimise every network's NELBO; returns its course, [R, points], means over stretches of steps."""
        steps, final = self.schedule.steps, self.schedule.final_lr / self.schedule.lr
        generator = torch.Generator().manual_seed(seed)
        optimizer = torch.optim.Adam(networks.parameters(), self.schedule.lr, fused=True)
        decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, final, steps)
        curve, counts = torch.zeros(points, len(networks.c)), torch.zeros(points, 1)
        for step in range(steps):
            optimizer.zero_grad()
            drawn = self.estimator.draw(networks, task, generator)
            losses = self.loss(networks, self.estimator, drawn)
            losses.sum().backward()
            optimizer.step()
            decay.step()
            curve[step * points // steps] += losses.detach()
            counts[step * points // steps] += 1
        return (curve / counts).T


@torch.no_grad()
def predict(networks: Networks, x: Tensor, draws: int, seed: int, chunk: int = 50) -> Tensor:
    """f(x) for draws of all the weights: [R, draws, N, D_L]."""
    generator, task = torch.Generator().manual_seed(seed), Task(x, x, 1.0)
    sizes = [min(chunk, draws - start) for start in range(0, draws, chunk)]
    noises = (Weights(size).draw(networks, task, generator).noise for size in sizes)
    return torch.cat([outputs_of(networks, x, noise) for noise in noises], 1)


class Scores(NamedTuple):
    """Of one network on test data."""

    rmse: float  # of the mean prediction: root mean square of each output, averaged over outputs
    lpp: float  # ln of the predictive density of a value, averaged over rows and outputs


def score(outputs: Tensor, y: Tensor, noise: float) -> Scores:
    """From f at the test points, [S, N, D_L], and targets [N, D_L]."""
    outputs, y = outputs.double(), y.double()
    rmse = (outputs.mean(0) - y).square().mean(0).sqrt().mean()
    each = -0.5 * ((y - outputs) / noise).square() - math.log(noise) - HALF_LOG_TAU
    lpp = (each.logsumexp(0) - math.log(len(outputs))).mean()
    return Scores(rmse.item(), lpp.item())
