"""Training that alternates with re-assignment: the latent posterior stays private, forward passes see it shared.

The network runs with the shared (m_k, sigma_k) of each weight's label, gradients go straight through to the latent
(mu, rho), and every few steps codebook and labels are fitted anew to the latent posterior (METHOD 3).
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from pocketbayes.noise import Noise, shape_total
from pocketbayes.posterior.draws import Draws
from pocketbayes.posterior.gaussian import Gaussian, kl_divergence, rho_from_sigma, sigma_from_rho
from pocketbayes.posterior.weights import PrivateWeight, Site, StochasticWeight, stochastic_weights
from pocketbayes.sharing.evidence import gather_evidence
from pocketbayes.sharing.mixture import label_dtype
from pocketbayes.sharing.rate import CodebookFit, Rate, RateSharing, fit_codebook, label_weights
from pocketbayes.sharing.share import install, require_private, swap


class LatentWeight(StochasticWeight):
    """A private (mu, rho) that is trained, seen through the nearest shared (m, sigma); label K escapes sharing."""

    status = "latent"
    rho: Tensor
    prior_mu: Tensor | None
    labels: Tensor
    shared_mu: Tensor
    shared_sigma: Tensor

    def __init__(
        self,
        *,
        sigma: Tensor,
        components: int,
        prior_mu: Tensor | None,
        prior_sigma: float,
        index: int,
        draws: Draws,
        noise: Noise,
    ) -> None:
        super().__init__(index=index, draws=draws, noise=noise)
        self.rho = nn.Parameter(rho_from_sigma(sigma))
        self.register_buffer("prior_mu", prior_mu)
        self.prior_sigma = prior_sigma
        self.components = components
        self.register_buffer("labels", torch.full(sigma.shape, components, dtype=label_dtype(components + 1)))
        self.register_buffer("shared_mu", sigma.new_zeros(components + 1))
        self.register_buffer("shared_sigma", sigma.new_ones(components + 1))

    def latent(self, original: Tensor) -> Gaussian:
        return Gaussian(original, sigma_from_rho(self.rho))

    def gaussian(self, original: Tensor) -> Gaussian:
        """The shared values, with the gradient of the latent ones."""
        mu, sigma = original, sigma_from_rho(self.rho)
        label = self.labels.int().reshape(-1)
        with torch.no_grad():
            private = self.labels == self.components
            to_mu = torch.where(private, mu, self.shared_mu.index_select(0, label).view_as(mu)) - mu
            to_sigma = (
                torch.where(private, sigma, self.shared_sigma.index_select(0, label).view_as(mu)) - sigma
            )
        return Gaussian(mu + to_mu, sigma + to_sigma)

    def kl(self, original: Tensor) -> Tensor:
        prior = Gaussian(0.0 if self.prior_mu is None else self.prior_mu, self.prior_sigma)
        q = self.gaussian(original)
        return kl_divergence(q, prior).sum() + shape_total(self.noise, *q)

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.prior_sigma, dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        self.prior_sigma = float(state)


def make_latent(model: nn.Module, components: int) -> None:
    """Every private weight becomes a latent one, in place; until labelled, all escape and nothing changes."""
    new: dict[int, StochasticWeight] = {}
    for site in require_private(model):
        old = cast(PrivateWeight, site.weight)
        new[id(old)] = LatentWeight(
            sigma=torch.as_tensor(site.gaussian.sigma).detach(),
            components=components,
            prior_mu=old.prior_mu,
            prior_sigma=old.prior_sigma,
            index=old.index,
            draws=old.draws,
            noise=old.noise,
        )
    swap(model, new)


class Assignment:
    """Fits codebook and labels to a latent model, again and again, each time from the last codebook.

    With `max_bits`, the trade lambda is steered so that labels and private values take no more than that.
    """

    def __init__(self, model: nn.Module, rate: Rate, *, max_bits: float | None = None) -> None:
        self.sites = [s for s in stochastic_weights(model) if isinstance(s.weight, LatentWeight)]
        if not self.sites:
            raise ValueError("Assignment needs a latent model. Call make_latent(model, components) first.")
        self.rate, self.max_bits = rate, max_bits
        self.fit: CodebookFit | None = None

    def latents(self) -> tuple[list[Tensor], list[Tensor]]:
        pairs = [cast(LatentWeight, s.weight).latent(s.original) for s in self.sites]
        return [torch.as_tensor(q.mu).detach() for q in pairs], [
            torch.as_tensor(q.sigma).detach() for q in pairs
        ]

    @torch.no_grad()
    def renew(self, *, iterations: int = 2, share: float = 1.0) -> RateSharing:
        """New codebook and labels for the weights as they are now; `share` of lambda, for annealing."""
        mu, sigma = self.latents()
        rate = replace(self.rate, trade=self.rate.trade * share)
        if self.fit is None:
            result = label_weights(fit_codebook(gather_evidence(mu, sigma), rate).codebook, mu, sigma, rate)
        else:
            few = replace(rate, max_iterations=iterations)
            evidence = gather_evidence(mu, sigma)
            result = label_weights(fit_codebook(evidence, few, self.fit.codebook).codebook, mu, sigma, rate)
        self.fit = result.fit
        if self.max_bits is not None and share == 1.0:
            bits = result.fit.bits(rate.escape_bits or 0.0)
            # Bits fall about as the logarithm of lambda: a gentle proportional step settles within a few renewals.
            step = min(1.2, max(1 / 1.2, (bits / self.max_bits) ** 4))
            self.rate = replace(self.rate, trade=self.rate.trade * step)
        self._write(result)
        return result

    def _write(self, result: RateSharing) -> None:
        book = result.fit.codebook
        for site, labels in zip(self.sites, result.labels, strict=True):
            weight = cast(LatentWeight, site.weight)
            k = book.components
            weight.shared_mu[:k] = book.mu.to(weight.shared_mu)
            weight.shared_sigma[:k] = book.sigma.to(weight.shared_sigma)
            weight.labels.copy_(torch.where(labels.long() == k, weight.components, labels.long()))

    def settle(self, model: nn.Module, result: RateSharing) -> None:
        """The end of alternation: latent weights become shared ones with these labels, in place."""
        book = result.fit.codebook
        found: list[Site] = list(self.sites)
        install(model, found, book.mu, book.sigma, result.labels, [None] * len(found))
