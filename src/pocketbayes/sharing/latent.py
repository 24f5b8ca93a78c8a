"""Training that alternates with re-assignment: a latent posterior for each weight, seen shared by forward passes.

The network runs with the shared (m_k, sigma_k) of each weight's label, gradients go straight through to the latent
(mu, rho), and after every step labels and codebook follow the latent posterior.  (Renewed only now and then, the
latent weights run away between renewals, since nothing they do is felt.)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from pocketbayes.moments import Codebook, Moments
from pocketbayes.posterior.gaussian import rho_from_sigma, sigma_from_rho
from pocketbayes.posterior.surgery import swap
from pocketbayes.posterior.weights import StochasticWeight, common, stochastic_weights
from pocketbayes.sharing.evidence import coarsen, gather_evidence
from pocketbayes.sharing.mixture import label_dtype
from pocketbayes.sharing.rate import Codebook as RateCodebook
from pocketbayes.sharing.rate import Rate, RateSharing, fit_bits, fit_codebook, label_weights, reopened
from pocketbayes.sharing.share import install, require_mean_field


class LatentWeight(StochasticWeight):
    """A (mu, rho) of its own that is trained, seen through the nearest shared (m, sigma); label K marks an outlier."""

    status = "latent"
    rho: Tensor
    labels: Tensor
    shared_mu: Tensor
    shared_sigma: Tensor

    def __init__(self, *, sigma: Tensor, components: int, **common: Any) -> None:
        super().__init__(**common)
        self.rho = nn.Parameter(rho_from_sigma(sigma))
        self.components = components
        self.register_buffer("labels", torch.full(sigma.shape, components, dtype=label_dtype(components + 1)))
        self.register_buffer("shared_mu", sigma.new_zeros(components + 1))
        self.register_buffer("shared_sigma", sigma.new_ones(components + 1))

    def latent(self, original: Tensor) -> Moments[Tensor]:
        return Moments(original, sigma_from_rho(self.rho))

    def moments(self, original: Tensor) -> Moments[Tensor]:
        """The shared values, with the gradient of the latent ones."""
        mu, sigma = original, sigma_from_rho(self.rho)
        label = self.labels.int().reshape(-1)
        with torch.no_grad():
            outlier = self.labels == self.components
            to_mu = torch.where(outlier, mu, self.shared_mu.index_select(0, label).view_as(mu)) - mu
            to_sigma = (
                torch.where(outlier, sigma, self.shared_sigma.index_select(0, label).view_as(mu)) - sigma
            )
        return Moments(mu + to_mu, sigma + to_sigma)


def make_latent(model: nn.Module, components: int) -> None:
    """Every mean-field weight becomes a latent one, in place; until labelled, all are outliers and nothing changes."""
    new: dict[int, tuple[StochasticWeight, Tensor]] = {}
    for site in require_mean_field(model):
        mu, sigma = site.moments
        latent = LatentWeight(sigma=sigma.detach(), components=components, **common(site.weight))
        new[id(site.weight)] = latent, mu
    swap(model, new)


class Assignment:
    """Fits codebook and labels to a latent model, again and again, each time from the last codebook.

    With `max_bits`, lambda is steered so that labels and outliers take no more than that.
    """

    def __init__(self, model: nn.Module, rate: Rate, *, max_bits: float | None = None) -> None:
        self.sites = [s for s in stochastic_weights(model) if isinstance(s.weight, LatentWeight)]
        if not self.sites:
            raise ValueError("Assignment needs a latent model. Call make_latent(model, components) first.")
        self.rate, self.max_bits = rate, max_bits
        self.codebook: RateCodebook | None = None

    def latents(self) -> tuple[list[Tensor], list[Tensor]]:
        pairs = [cast(LatentWeight, s.weight).latent(s.original) for s in self.sites]
        return [q.mu.detach() for q in pairs], [q.sigma.detach() for q in pairs]

    def aim(self) -> None:
        """Start with the lambda, and the codebook, that `max_bits` need without any training."""
        assert self.max_bits is not None
        fit, lambda_ = fit_bits(coarsen(gather_evidence(*self.latents())), self.max_bits, self.rate)
        self.rate, self.codebook = replace(self.rate, lambda_=lambda_), fit.codebook

    @torch.no_grad()
    def renew(self, *, fraction: float = 1.0) -> RateSharing:
        """New labels for the weights as they are now, and the codebook that belongs to them: one step of Lloyd's.

        A `fraction` of lambda is for annealing.  The first time, the codebook is fitted to convergence.
        """
        mu, sigma = self.latents()
        rate = replace(self.rate, lambda_=self.rate.lambda_ * fraction)
        if self.codebook is None:
            self.codebook = fit_codebook(gather_evidence(mu, sigma), rate).codebook
        sizes = torch.tensor([m.numel() for m in mu], dtype=torch.float64)
        result = label_weights(reopened(self.codebook, sizes), mu, sigma, rate)
        self.codebook = result.fit.codebook
        if self.max_bits is not None and fraction == 1.0:
            bits = result.fit.bits(rate.outlier_bits or 0.0)
            # Bits fall about as the logarithm of lambda; small steps, since a renewal follows every training step.
            step = min(1.02, max(1 / 1.02, bits / self.max_bits))
            self.rate = replace(self.rate, lambda_=self.rate.lambda_ * step)
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


def freeze(model: nn.Module, result: RateSharing) -> None:
    """The end of alternation: latent weights become shared ones with these labels, in place."""
    book = result.fit.codebook
    found = [s for s in stochastic_weights(model) if isinstance(s.weight, LatentWeight)]
    install(model, found, Codebook(book.mu, book.sigma), result.labels, [None] * len(found))
