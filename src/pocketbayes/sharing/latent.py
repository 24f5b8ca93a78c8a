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
from pocketbayes.sharing.evidence import (
    check,
    coarsen,
    gather_evidence,
    sample,
    statistics,
    sums_by_label,
)
from pocketbayes.sharing.install import install
from pocketbayes.sharing.labels import RateSharing, Table, label_weights
from pocketbayes.sharing.mixture import label_dtype
from pocketbayes.sharing.rate import (
    Rate,
    RateCode,
    best_code,
    cheapest,
    fit_bits,
    fit_codebook,
    priced,
    prices,
    reopened,
)
from pocketbayes.sharing.share import require_mean_field
from pocketbayes.sharing.threads import operators_alone, spread

SAMPLE = 1 << 13  # weights labelled one by one in a layer; those of larger layers look theirs up
SUMMED = 1 << 16  # weights of a layer that move the codebook
PIECE = 1 << 15  # weights looked up at once on a processor: their temporaries stay in the second-level cache
FASTEST = 1.02  # factor on lambda at one renewal


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
        label, outlier = self.labels.int().reshape(-1), self.labels == self.components

        def seen(latent: Tensor, shared: Tensor) -> Tensor:
            with torch.no_grad():
                to_shared = shared.index_select(0, label).view_as(latent) - latent
                to_shared = to_shared.masked_fill(outlier, 0.0)
            return latent + to_shared

        mu, sigma = self.latent(original)
        return Moments(seen(mu, self.shared_mu), seen(sigma, self.shared_sigma))


def make_latent(model: nn.Module, components: int) -> None:
    """Every mean-field weight becomes a latent one, in place; until labelled, all are outliers and nothing changes."""
    new: dict[int, tuple[StochasticWeight, Tensor]] = {}
    for site in require_mean_field(model):
        mu, sigma = site.moments
        latent = LatentWeight(sigma=sigma.detach(), components=components, **common(site.weight))
        new[id(site.weight)] = latent, mu
    swap(model, new)


class Assignment:
    """Fits code and labels to a latent model, again and again, each time from the last code.

    With `max_bits`, lambda is steered so that labels and outliers take no more than that.
    """

    def __init__(self, model: nn.Module, rate: Rate, *, max_bits: float | None = None) -> None:
        self.sites = [s for s in stochastic_weights(model) if isinstance(s.weight, LatentWeight)]
        if not self.sites:
            raise ValueError("Assignment needs a latent model. Call make_latent(model, components) first.")
        self.weights = [cast(LatentWeight, site.weight) for site in self.sites]
        self.components = self.weights[0].components
        if rate.components > self.components:
            raise ValueError(
                f"Assignment: {rate.components} components, but the latent model has room for {self.components}."
            )
        self.rate, self.max_bits = rate, max_bits
        self.code: RateCode | None = None

    def latents(self) -> tuple[list[Tensor], list[Tensor]]:
        pairs = [w.latent(s.original) for w, s in zip(self.weights, self.sites, strict=True)]
        return [q.mu.detach() for q in pairs], [q.sigma.detach() for q in pairs]

    def aim(self) -> None:
        """Start with the lambda, and the code, that `max_bits` need without any training."""
        assert self.max_bits is not None
        fit, lambda_ = fit_bits(coarsen(gather_evidence(*self.latents())), self.max_bits, self.rate)
        self.rate, self.code = replace(self.rate, lambda_=lambda_), fit.code

    @torch.no_grad()
    @operators_alone()
    def renew(self, *, fraction: float = 1.0) -> None:
        """New labels for the weights as they are now, and the code that belongs to them: one step of Lloyd's.

        `fraction` of lambda is for annealing.  The first time, the code is fitted to convergence.  Then it takes a few
        ns a weight: labels of large layers come from tables, and the code is the best for a sample of their weights.
        """
        rate = replace(self.rate, lambda_=self.rate.lambda_ * fraction)
        before = self._open_code(rate)
        groups = torch.stack(
            spread(_relabel, list(zip(self.weights, self._mus(), prices(before, rate), strict=True)))
        )
        self.code = _kept_where_empty(groups, best_code(groups, rate), before)
        if self.max_bits is not None and fraction == 1.0:
            bits = priced(groups, self.code, [], False).bits(rate.outlier_bits or 0.0)
            # Bits fall about as the logarithm of lambda; small steps, since a renewal follows every training step.
            step = min(FASTEST, max(1 / FASTEST, bits / self.max_bits))
            self.rate = replace(self.rate, lambda_=self.rate.lambda_ * step)
        for weight in self.weights:
            for shared, value in zip(
                (weight.shared_mu, weight.shared_sigma), self.code.codebook, strict=True
            ):
                shared[:-1] = value.to(shared)

    @torch.no_grad()
    def share(self) -> RateSharing:
        """The exact labels of all weights as they are now, and the code that belongs to them; changes nothing."""
        return label_weights(self._open_code(self.rate), *self.latents(), self.rate)

    @torch.no_grad()
    def seen(self) -> RateSharing:
        """The labels and the code that forward passes see now, without a fit."""
        assert self.code is not None
        labels = [weight.labels.cpu() for weight in self.weights]
        sums = [
            sums_by_label(
                statistics(mu.reshape(-1).cpu(), sigma.reshape(-1).cpu()),
                label.reshape(-1).long(),
                self.components + 1,
            )
            for mu, sigma, label in zip(*self.latents(), labels, strict=True)
        ]
        return RateSharing(priced(torch.stack(sums), self.code, [], True), labels)

    def _mus(self) -> list[Tensor]:
        return [site.original.detach() for site in self.sites]

    def _open_code(self, rate: Rate) -> RateCode:
        """The last code, in which a lost label may return, as wide as the labels are."""
        code = self.code or fit_codebook(gather_evidence(*self.latents()), rate).code
        sizes = torch.tensor([mu.numel() for mu in self._mus()], dtype=torch.float64)
        return _widened(reopened(code, sizes), self.components)


def _relabel(job: tuple[LatentWeight, Tensor, Tensor]) -> Tensor:
    """Label one layer's weights at its price [4, K + 1]; sums of phi by label [K + 1, 4], estimated if it is large."""
    weight, mu, price = job
    mu, rho = mu.reshape(-1), weight.rho.detach().reshape(-1)
    some_mu, some_rho = (sample(x, SUMMED).cpu() for x in (mu, rho))
    some_sigma = sigma_from_rho(some_rho)
    check([some_mu], [some_sigma])
    phi = statistics(some_mu, some_sigma)
    if len(mu) <= SAMPLE:
        label = cheapest(phi, price)
    else:
        table = Table.of(sample(some_mu, SAMPLE), sample(some_rho, SAMPLE), price).to(mu.device)
        size = PIECE if mu.device.type == "cpu" else len(mu)
        label = torch.empty(len(mu), dtype=table.label.dtype, device=mu.device)
        for m, r, out in zip(mu.split(size), rho.split(size), label.split(size), strict=True):
            out.copy_(table.look_up(m, r))
    weight.labels.copy_(label.view(weight.labels.shape))
    sums = sums_by_label(phi, sample(label, SUMMED).cpu(), price.shape[1])
    # Counts are of all weights, else a rare component that the sample misses would be lost with all its weights.
    count = torch.bincount(label, minlength=len(sums)).cpu().to(sums)
    return sums.mul_((count / sums[:, 0].clamp_min(1.0))[:, None]).index_copy_(
        1, torch.tensor([0]), count[:, None]
    )


def _widened(code: RateCode, components: int) -> RateCode:
    """With components that are never used, up to that many."""
    more = components - code.codebook.components
    unused = code.frequency.new_zeros(len(code.frequency), more)
    frequency = torch.cat([code.frequency[:, :-1], unused, code.frequency[:, -1:]], 1)
    mu, sigma = code.codebook
    return RateCode(
        Codebook(torch.cat([mu, mu.new_zeros(more)]), torch.cat([sigma, sigma.new_ones(more)])), frequency
    )


def _kept_where_empty(groups: Tensor, code: RateCode, before: RateCode) -> RateCode:
    """A component that the sample does not use stays where it was: other weights may still use it."""
    used = groups[:, :-1, 1].sum(0) > 0
    pairs = zip(code.codebook, before.codebook, strict=True)
    return code._replace(codebook=Codebook(*(torch.where(used, new, old) for new, old in pairs)))


def freeze(model: nn.Module, result: RateSharing) -> None:
    """The end of alternation: latent weights become shared ones with these labels, in place."""
    found = [s for s in stochastic_weights(model) if isinstance(s.weight, LatentWeight)]
    install(model, found, result.fit.codebook, result.labels, [None] * len(found))
