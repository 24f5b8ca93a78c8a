"""Small tanh nets with any noise, many at once: a step of a net of 151 weights costs Python, not arithmetic.

w = mu + sigma z for all weights and biases, prior N(0, 1), y ~ N(f(x), SIGMA^2).  The KL to a Gaussian prior has the same
gradients for every shape of z, so that nets trained with different noise differ in their draws alone.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from pocketbayes.noise import Gaussian, Noise, kl_to_prior, predictive_distances
from pocketbayes.posterior.gaussian import rho_from_sigma

SIGMA = 0.1
GRID = torch.linspace(-2.5, 2.5, 101).unsqueeze(1)  # [M, 1]


class Points(NamedTuple):
    x: Tensor  # [N, 1]
    y: Tensor  # [N, 1]


def points(count: int, seed: int) -> Points:
    """y = sin(2.5 x) + 0.3 x + noise, x uniform on [-2, -0.5] and [0.5, 2]."""
    generator = torch.Generator().manual_seed(seed)
    x = 0.5 + 1.5 * torch.rand(count, 1, generator=generator)
    x = x * (torch.arange(count).unsqueeze(1) % 2 * 2 - 1)
    y = torch.sin(2.5 * x) + 0.3 * x + SIGMA * torch.randn(count, 1, generator=generator)
    return Points(x, y)


class Part(NamedTuple):
    """(mu, sigma) of one layer's weights or biases: [*shape] for one net, [R, 1, *shape] for R of them."""

    mu: Tensor
    sigma: Tensor


Net = list[tuple[Part, Part]]  # layer by layer: weights [out, in], biases [1, out]


def forward(weights: list[tuple[Tensor, Tensor]], x: Tensor) -> Tensor:
    """f(x) for drawn weights [..., out, in] and biases [..., 1, out]: [..., N, D]."""
    hidden = x
    for number, (w, b) in enumerate(weights):
        hidden = hidden @ w.mT + b
        hidden = torch.tanh(hidden) if number + 1 < len(weights) else hidden
    return hidden


def train(
    widths: list[int], data: Points, noises: dict[str, Noise], seeds: int, steps: int, draws: int = 8
) -> dict[str, list[Net]]:
    """For each noise, nets from as many starts as there are seeds, the same starts for all; Adam, cosine to zero."""
    starts = [_start(widths, seed) for seed in range(seeds)]
    stacked = [
        torch.stack([s[i] for s in starts] * len(noises)).unsqueeze(1) for i in range(len(starts[0]))
    ]  # [R, 1, *shape], noise by noise
    mus = [t.clone().requires_grad_() for t in stacked]
    rhos = [rho_from_sigma(torch.full_like(t, 0.05)).requires_grad_() for t in stacked]
    optimizer = torch.optim.Adam([{"params": mus, "lr": 1e-2}, {"params": rhos, "lr": 3e-2}])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        optimizer.zero_grad()
        sigmas = [softplus(rho) for rho in rhos]
        drawn = [
            mu + sigma * _standard(noises, mu, seeds, draws, generator)
            for mu, sigma in zip(mus, sigmas, strict=True)
        ]
        f = forward(list(zip(drawn[::2], drawn[1::2], strict=True)), data.x)  # [R, S, N, 1]
        nll = ((f - data.y).square().sum((2, 3)) / (2 * SIGMA**2)).mean(1)  # [R]
        kl = sum(kl_to_prior(Gaussian(), mu, sigma).sum() for mu, sigma in zip(mus, sigmas, strict=True))
        (nll.sum() + kl).backward()
        optimizer.step()
        schedule.step()
    pairs = [Part(mu.detach()[:, 0], softplus(rho.detach())[:, 0]) for mu, rho in zip(mus, rhos, strict=True)]
    return {name: [_net(pairs, i * seeds + seed) for seed in range(seeds)] for i, name in enumerate(noises)}


def _start(widths: list[int], seed: int) -> list[Tensor]:
    """Means before training: weights N(0, 1 / fan-in), biases N(0, 0.01)."""
    generator = torch.Generator().manual_seed(seed)
    tensors = []
    for fan_in, fan_out in pairwise(widths):
        tensors += [
            torch.randn(fan_out, fan_in, generator=generator) * fan_in**-0.5,
            0.1 * torch.randn(1, fan_out, generator=generator),
        ]
    return tensors


def _standard(
    noises: dict[str, Noise], mu: Tensor, seeds: int, draws: int, generator: torch.Generator
) -> Tensor:
    """z for every net and draw, [R, S, *shape]."""
    shape = (seeds, draws, *mu.shape[2:])
    return torch.cat([noise.sample_like(mu.new_empty(shape), generator) for noise in noises.values()])


def _net(pairs: list[Part], number: int) -> Net:
    own = [Part(mu[number], sigma[number]) for mu, sigma in pairs]
    return list(zip(own[::2], own[1::2], strict=True))


def outputs(net: Net, noise: Noise, x: Tensor, draws: int, seed: int) -> Tensor:
    """f(x) of independent draws under that noise, [S, N]."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [
        (
            noise.draw(*(t.expand(draws, *t.shape) for t in weight), generator),
            noise.draw(*(t.expand(draws, *t.shape) for t in bias), generator),
        )
        for weight, bias in net
    ]
    return forward(drawn, x)[..., 0]


def distance(a: Tensor, b: Tensor) -> float:
    """D^2 over the sigma of a, mean over the inputs."""
    return float(predictive_distances(a, b).mean() / a.double().std(0).mean())
