"""Ordered biases b_1 < b_2 < ...: the alternative to fixing weights, with every weight random.

b_1 = z_1, b_k = b_{k-1} + exp(z_k), z ~ N(mu, sigma^2).  The prior is N(0, 1) restricted to ordered vectors, D! times
the density there, so the evidence is that of the free network: every function keeps its probability and has one
representation instead of D!, and the NELBO may be compared with that of free biases.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


class Rising(nn.Module):
    """The parametrization of a bias: b from z, [..., out]."""

    def forward(self, z: Tensor) -> Tensor:
        return torch.cat([z[..., :1], z[..., 1:].exp()], -1).cumsum(-1)

    def right_inverse(self, bias: Tensor) -> Tensor:
        """The z whose biases are those given, [out], in order; two that are closer than 0.001 are moved apart."""
        rising = bias.sort().values
        return torch.cat([rising[:1], rising.diff().clamp_min(1e-3).log()])


def ordered_kl(mu: Tensor, sigma: Tensor) -> Tensor:
    """KL(q || p) in nats for one layer, [], exact, since sums of normal and log-normal terms have known moments:

    -H(z) - sum_{k>1} mu_k - ln D! + sum_k [ln(2 pi) + E b_k^2] / 2.
    """
    steps = (mu[1:] + 0.5 * sigma[1:].square()).exp()
    mean = torch.cat([mu[:1], steps]).cumsum(0)
    spread = torch.cat([sigma[:1].square(), steps.square() * sigma[1:].square().expm1()])
    square = mean.square() + spread.cumsum(0)  # E b_k^2
    entropy = (sigma.log() + 0.5 + HALF_LOG_TAU).sum()
    cross = (HALF_LOG_TAU + 0.5 * square).sum() - math.lgamma(len(mu) + 1)
    return cross - entropy - mu[1:].sum()
