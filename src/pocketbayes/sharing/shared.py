"""Stochastic weights that look their (mu, sigma) up in a codebook shared by the whole network."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pocketbayes.noise import Law as NoiseLaw
from pocketbayes.noise import shape_total
from pocketbayes.posterior.draws import CODEBOOK, Draw
from pocketbayes.posterior.gaussian import Moments, kl_divergence, rho_from_sigma, sigma_from_rho
from pocketbayes.posterior.weights import StochasticWeight
from pocketbayes.sharing.blend import Law, blended_law
from pocketbayes.sharing.mixture import label_dtype


class Codebook(nn.Module):
    """K Gaussians (m_k, sigma_k) shared by all weights of a network; trained like any other parameters.

    With `tied`, all weights of a component move together in a draw, as in the sharing paper's own code: a component is
    then one random variable and its KL counts once.  Otherwise each weight draws for itself.
    """

    def __init__(self, mu: Tensor, sigma: Tensor, *, tied: bool = False) -> None:
        super().__init__()
        self.mu = nn.Parameter(mu.clone())
        self.rho = nn.Parameter(rho_from_sigma(sigma))
        self.tied = tied

    @property
    def sigma(self) -> Tensor:
        return sigma_from_rho(self.rho)

    @property
    def components(self) -> int:
        return len(self.mu)


class Blends(NamedTuple):
    """Weights shared by several components, by their flat positions."""

    position: Tensor  # [B]
    component: Tensor  # [B, k]
    alpha: Tensor  # [B, k]


class SharedWeight(StochasticWeight):
    """One tensor of weights: labels into the codebook; outliers keep a (mu, sigma) of their own, blends mix components.

    The original parameter holds the outliers' means alone, in the order of their positions.  Label K marks an outlier.
    """

    status = "shared"
    labels: Tensor
    rho: Tensor
    blend_position: Tensor
    blend_component: Tensor
    blend_alpha: Tensor

    def __init__(
        self,
        *,
        codebook: Codebook,
        labels: Tensor,
        outlier_sigma: Tensor,
        blends: Blends | None,
        counts_codebook: bool,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.codebook = codebook
        self.shape = labels.shape
        self.rho = nn.Parameter(rho_from_sigma(outlier_sigma))
        self.register_buffer("labels", labels.reshape(-1).to(label_dtype(codebook.components + 1)))
        dtype = outlier_sigma.dtype
        position, component, alpha = blends or _no_blends(labels.device)
        self.register_buffer("blend_position", position.to(torch.int32))
        self.register_buffer("blend_component", component.to(label_dtype(codebook.components)))
        self.register_buffer("blend_alpha", alpha.to(dtype))
        self.counts_codebook = counts_codebook
        self._derived: _Derived | None = None

    # --- the law -----------------------------------------------------------------------------------------------

    def right_inverse(self, mu: Tensor) -> Tensor:
        """The outliers' means out of the means of all weights; called at registration, once for each tied site."""
        if mu.shape != self.shape:
            return mu  # a tied site, whose parameter holds the outliers already
        return mu.reshape(-1)[self.derived.outlier].clone()

    def moments(self, original: Tensor) -> Moments:
        table = Law(self.codebook.mu, self.codebook.sigma.square())
        blended = blended_law(table, self.blend_component.int(), self.blend_alpha)
        mu = self._assemble(table.mu, original, blended.mu)
        sigma = self._assemble(self.codebook.sigma, sigma_from_rho(self.rho), blended.var.sqrt())
        return Moments(mu, sigma)

    def _assemble(self, table: Tensor, outliers: Tensor, blended: Tensor) -> Tensor:
        """Values of all weights from those of the components [K], the outliers and the blends."""
        flat = torch.cat([table, table.new_zeros(1)]).index_select(0, self.labels.int())
        if self.derived.outlier.numel():
            flat = flat.index_copy(0, self.derived.outlier, outliers)
        if self.blend_position.numel():
            flat = flat.index_copy(0, self.blend_position.long(), blended)
        return flat.view(self.shape)

    def sample(self, original: Tensor, draw: Draw) -> Tensor:
        if not self.codebook.tied:
            return super().sample(original, draw)
        book = self.codebook
        mu, sigma = book.mu.detach(), book.sigma.detach()
        z = draw.value(CODEBOOK, lambda: draw.z(self.noise, mu, sigma, CODEBOOK))
        values = self.noise.place(book.mu, book.sigma, z)  # [K] one draw for each component
        blended = (self.blend_alpha * values[self.blend_component.int()]).sum(1)
        own = sigma_from_rho(self.rho)
        outliers = self.noise.place(original, own, draw.z(self.noise, original, own, self.index))
        return self.whole(self._assemble(values, outliers, blended))

    # --- the KL ------------------------------------------------------------------------------------------------

    def kl(self, original: Tensor) -> Tensor:
        """sum_k n_k KL(N(m_k, v_k) || p), exactly, plus the outliers' and the blends' own.  Eq. (15) of docs/method.md.

        With tied draws a component is one variable: its KL counts once in the network, against N(0, s^2).
        """
        d, book = self.derived, self.codebook
        q = self.programmed(book.mu, book.sigma)
        if book.tied:
            shared = kl_divergence(q, 0.0, self.prior_sigma).sum() * float(self.counts_codebook)
        else:
            # sum_i (m - p_i)^2 = n (m - p)^2 + scatter of the prior means p_i about their mean p
            shared = (d.members * kl_divergence(q, d.prior_mean, self.prior_sigma)).sum() + d.prior_scatter
        outliers = self.programmed(original, sigma_from_rho(self.rho))
        apart = kl_divergence(outliers, self._prior_mean_at(d.outlier), self.prior_sigma).sum()
        if self.blend_position.numel():
            law = blended_law(Law(book.mu, book.sigma.square()), self.blend_component.int(), self.blend_alpha)
            at = self._prior_mean_at(self.blend_position.long())
            apart = apart + kl_divergence(self.programmed(law.mu, law.var.sqrt()), at, self.prior_sigma).sum()
        return shared + apart + self._shape(original)

    def _shape(self, original: Tensor) -> Tensor | float:
        if isinstance(self.noise, NoiseLaw):
            return shape_total(self.noise, self.labels, self.labels)
        return shape_total(self.noise, *self.moments(original))

    def _prior_mean_at(self, position: Tensor) -> Tensor | float:
        return 0.0 if self.prior_mu is None else self.prior_mu.reshape(-1)[position]

    # --- what follows from the labels --------------------------------------------------------------------------

    @property
    def derived(self) -> _Derived:
        if self._derived is None or self._derived.outlier.device != self.labels.device:
            self._derived = _derive(self)
        return self._derived

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._derived = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_derived": None}


class _Derived(NamedTuple):
    """What the labels imply, kept at hand."""

    outlier: Tensor  # [n_out] int64 positions
    members: Tensor  # [K] weights of each component that are neither outliers nor blends
    prior_mean: Tensor  # [K] mean of these weights' prior means
    prior_scatter: Tensor  # sum over them of (p_i - mean)^2 / (2 s^2)


def _derive(weight: SharedWeight) -> _Derived:
    components, labels = weight.codebook.components, weight.labels
    outlier = (labels == components).nonzero()[:, 0]
    plain = torch.ones_like(labels, dtype=torch.bool).index_fill_(0, weight.blend_position.long(), False)
    plain &= labels != components
    kept = labels[plain].long()
    count = torch.bincount(kept, minlength=components).to(weight.rho.dtype)
    if weight.prior_mu is None:
        zero = torch.zeros_like(count)
        return _Derived(outlier, count, zero, zero.new_zeros(()))
    p = weight.prior_mu.reshape(-1)[plain].double()
    mean = torch.zeros(components, dtype=p.dtype, device=p.device).index_add_(
        0, kept, p
    ) / count.double().clamp_min(1)
    scatter = (p - mean[kept]).square().sum() / (2 * weight.prior_sigma**2)
    return _Derived(outlier, count, mean.to(count.dtype), scatter.to(count.dtype))


def _no_blends(device: torch.device) -> Blends:
    empty = torch.zeros(0, 1, device=device)
    return Blends(empty[:, 0].int(), empty.int(), empty)
