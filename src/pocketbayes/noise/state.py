"""Noise whose shape depends on the state that the device is programmed to."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pocketbayes.drawing.shapes import shepard
from pocketbayes.noise.family import GAUSSIAN_ENTROPY, Law, Noise
from pocketbayes.noise.quadrature import panel_nodes


@dataclass(frozen=True)
class StateDependent(Noise):
    """The law measured at several states (mu_k, sigma_k), interpolated between them.

    f(z | mu, sigma) = sum_k a_k(mu, sigma) f_k(z), a mixture of standardised laws and so standardised itself.  The
    weights a_k ~ 1 / d_k^2 (Shepard) are one at their own state, smooth in between and constant outside of the box
    of measured states; distances d_k are in units of that box.

    Gradients are those of implicit reparameterisation: F(z | theta) = u stays as it is, so that
    dz/dtheta = -(dF/dtheta) / f(z).
    """

    mus: tuple[float, ...]
    sigmas: tuple[float, ...]
    laws: tuple[Law, ...]

    def __post_init__(self) -> None:
        for name in ("mus", "sigmas", "laws"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not len(self.mus) == len(self.sigmas) == len(self.laws) > 0:
            counts = f"{len(self.mus)} mus, {len(self.sigmas)} sigmas, {len(self.laws)} laws"
            raise ValueError(f"StateDependent: every state has one of each, got {counts}.")
        if not all(math.isfinite(mu) and 0 < sigma < math.inf for mu, sigma in self._states()):
            raise ValueError(f"StateDependent: mus must be finite and sigmas positive, got {self._states()}.")
        if len(set(self._states())) < len(self.laws):
            raise ValueError("StateDependent: two laws for one state. Pool their samples into one law.")
        for law in self.laws:
            if not isinstance(law, Law) or law.has_atoms:
                raise ValueError(
                    f"StateDependent: {type(law).__name__} has no density, which the gradients need. "
                    "Use QuantileTable.of(samples) or a fitted family."
                )

    def _states(self) -> list[tuple[float, float]]:
        return list(zip(self.mus, self.sigmas, strict=True))

    def weights(self, mu: Tensor, sigma: Tensor) -> Tensor:
        """a_k(mu, sigma), [*shape, K], differentiable."""
        return torch.stack(shepard(mu, sigma, self.mus, self.sigmas), -1)

    def cdf_at(self, mu: Tensor, sigma: Tensor, z: Tensor) -> Tensor:
        """F(z | mu, sigma), differentiable in mu and sigma."""
        values = torch.stack([law.cdf(z) for law in self.laws], -1)
        return (self.weights(mu, sigma) * values).sum(-1)

    def log_prob_at(self, mu: Tensor, sigma: Tensor, z: Tensor) -> Tensor:
        """ln f(z | mu, sigma)."""
        logs = torch.stack([law.log_prob(z) for law in self.laws], -1)
        return torch.logsumexp(self.weights(mu, sigma).log() + logs, -1)

    def icdf_at(self, mu: Tensor, sigma: Tensor, u: Tensor) -> Tensor:
        """F^-1(u | mu, sigma), without gradients: bisection between the quantiles of the laws that are mixed."""
        with torch.no_grad():
            ends = torch.stack([law.icdf(u.double()) for law in self.laws])  # [K, *shape]
            mu, sigma, low, high = (
                t.double() for t in torch.broadcast_tensors(mu, sigma, *ends.aminmax(dim=0))
            )
            for _ in range(60):
                middle = 0.5 * (low + high)
                below = self.cdf_at(mu, sigma, middle) < u
                low, high = torch.where(below, middle, low), torch.where(below, high, middle)
            z: Tensor = 0.5 * (low + high)
            return z.to(u)

    def skewness_at(self, mu: Tensor, sigma: Tensor) -> Tensor:
        """E z^3 of every weight, in the shape of mu: a mixture of standardised laws mixes their moments."""
        return self.weights(mu, sigma) @ mu.new_tensor([law.skewness() for law in self.laws])

    def excess_kurtosis_at(self, mu: Tensor, sigma: Tensor) -> Tensor:
        """E z^4 - 3 of every weight, in the shape of mu."""
        return self.weights(mu, sigma) @ mu.new_tensor([law.excess_kurtosis() for law in self.laws])

    def sample_at(self, mu: Tensor, sigma: Tensor, generator: torch.Generator | None = None) -> Tensor:
        with torch.no_grad():
            upper = self.weights(mu, sigma).cumsum(-1)  # [*shape, K]
            u = torch.rand(mu.shape, dtype=mu.dtype, device=mu.device, generator=generator)
            z = self.laws[0].sample_like(mu, generator)
            for k, law in enumerate(self.laws[1:]):
                z = torch.where(u < upper[..., k], z, law.sample_like(mu, generator))
            return z

    def place(self, mu: Tensor, sigma: Tensor, z: Tensor) -> Tensor:
        with torch.no_grad():
            density = self.log_prob_at(mu, sigma, z).exp()
        level = self.cdf_at(mu, sigma, z)
        moved = torch.where(
            density > 0, (level - level.detach()) / density.clamp_min(1e-30), 0.0
        )  # zero, with gradient
        return mu + sigma * (z - moved)

    def negentropy_at(self, mu: Tensor, sigma: Tensor) -> Tensor:
        edges = torch.cat([law.core for law in self.laws]).unique()
        z, lengths = panel_nodes(edges.to(mu.device), max(law.order for law in self.laws))  # [Q]
        densities = torch.stack([law.log_prob(z).exp() for law in self.laws])  # [K, Q]
        parts = []
        for a in (
            self.weights(mu, sigma).double().reshape(-1, len(self.laws)).split(max(1, (1 << 22) // z.numel()))
        ):
            f = a @ densities  # [rows, Q]
            parts.append((torch.special.xlogy(f, f.clamp_min(1e-300)) * lengths).sum(1))
        return (GAUSSIAN_ENTROPY + torch.cat(parts)).view(mu.shape).to(mu)

    def sample_like(self, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        raise ValueError(
            "StateDependent: the shape depends on the state. Use draw(mu, sigma) or sample_at(mu, sigma)."
        )

    def negentropy(self) -> float:
        raise ValueError("StateDependent: the shape depends on the state. Use negentropy_at(mu, sigma).")
