"""Models whose answers are known in closed form."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn


class LinearGaussian(NamedTuple):
    """y = x w + noise with a Gaussian prior: the optimum of mean-field inference, and its NELBO, exactly."""

    x: Tensor  # [N, D]
    y: Tensor  # [N, 1]
    noise: float
    prior_sigma: float

    @property
    def precision(self) -> Tensor:
        return (
            self.x.T @ self.x / self.noise**2
            + torch.eye(self.x.shape[1], dtype=self.x.dtype) / self.prior_sigma**2
        )

    @property
    def mu(self) -> Tensor:
        return torch.linalg.solve(self.precision, self.x.T @ self.y[:, 0] / self.noise**2)

    @property
    def sigma(self) -> Tensor:
        return self.precision.diagonal().rsqrt()

    @property
    def nelbo(self) -> float:
        """Per example, in nats: the expected NLL of N(mu, sigma^2) plus its KL to the prior."""
        n = len(self.x)
        residual = self.y[:, 0] - self.x @ self.mu
        spread = self.x.square() @ self.sigma.square()
        nll = 0.5 * (residual.square() + spread).sum() / self.noise**2 + n * math.log(
            self.noise * math.sqrt(2 * math.pi)
        )
        ratio = (self.sigma / self.prior_sigma).square()
        kl = 0.5 * (ratio + (self.mu / self.prior_sigma).square() - 1 - ratio.log()).sum()
        return float((nll + kl) / n)

    def model(self) -> nn.Module:
        return nn.Linear(self.x.shape[1], 1, bias=False).to(self.x.dtype)


def linear_gaussian(n: int = 64, d: int = 5) -> LinearGaussian:
    g = torch.Generator().manual_seed(1)
    mixing = torch.randn(d, d, generator=g, dtype=torch.float64)
    x = torch.randn(n, d, generator=g, dtype=torch.float64) @ (
        torch.eye(d, dtype=torch.float64) + 0.3 * mixing
    )
    w = torch.randn(d, 1, generator=g, dtype=torch.float64)
    return LinearGaussian(x, x @ w + 0.3 * torch.randn(n, 1, generator=g, dtype=torch.float64), 0.3, 0.8)


def prior_matters() -> LinearGaussian:
    """Data so weak that counting the KL twice halves the posterior's variance or so."""
    return linear_gaussian(60, 3)._replace(noise=3.0, prior_sigma=0.3)
