"""Stochastic weights that look their (mu, sigma) up in a codebook shared by the whole network."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pocketbayes.moments import Codebook, Moments
from pocketbayes.noise import Law, shape_total
from pocketbayes.posterior.draws import CODEBOOK, Draw
from pocketbayes.posterior.gaussian import gaussian_kl, rho_from_sigma, sigma_from_rho
from pocketbayes.posterior.weights import StochasticWeight
from pocketbayes.sharing.blend import blended_moments
from pocketbayes.sharing.mixture import label_dtype


class TrainableCodebook(nn.Module):
    """A codebook that all shared weights of a network look up, trained like any other parameters.

    With `tied`, all weights of a component move together in a draw, as in the sharing paper's own code: a component is
    then one random variable and its KL counts once.  Otherwise each weight draws for itself.
    """

    def __init__(self, book: Codebook[Tensor], *, tied: bool = False) -> None:
        super().__init__()
        self.mu = nn.Parameter(book.mu.clone())
        self.rho = nn.Parameter(rho_from_sigma(book.sigma))
        self.tied = tied

    def values(self) -> Codebook[Tensor]:
        """The components as they are now."""
        return Codebook(self.mu, sigma_from_rho(self.rho))

    @property
    def components(self) -> int:
        return len(self.mu)


class Blends(NamedTuple):
    """Weights shared by several components, by their flat positions."""

    position: Tensor  # [B]
    component: Tensor  # [B, k]
    alpha: Tensor  # [B, k]


class SharedWeight(StochasticWeight):
    """One tensor of weights: labels into the codebook; outliers keep moments of their own, blends mix components.

    Label K marks an outlier; the original parameter holds the outliers' means alone, in the order of their positions.
    A blend is labelled with the first of its components.
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
        codebook: TrainableCodebook,
        labels: Tensor,
        outlier_sigma: Tensor,
        blends: Blends | None,
        counts_codebook: bool,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.codebook = codebook
        self.shape = labels.shape
        self.rho = nn.Parameter(rho_from_sigma(outlier_sigma), requires_grad=outlier_sigma.numel() > 0)
        position, component, alpha = blends or _no_blends(labels.device)
        self.register_buffer("labels", labels.reshape(-1).to(label_dtype(codebook.components + 1)))
        self.register_buffer("blend_position", position.to(torch.int32))
        self.register_buffer("blend_component", component.to(label_dtype(codebook.components)))
        self.register_buffer("blend_alpha", alpha.to(outlier_sigma.dtype))
        self.counts_codebook = counts_codebook
        self._derived: _Derived | None = _derive(self)

    # --- moments -----------------------------------------------------------------------------------------------

    def moments(self, original: Tensor) -> Moments[Tensor]:
        book = self.codebook.values()
        parts = zip(book, self.outliers(original), self._blended(book), strict=True)
        return Moments(*(self._assemble(*part) for part in parts))

    def outliers(self, original: Tensor) -> Moments[Tensor]:
        """Their own moments, [outliers]."""
        return Moments(original, sigma_from_rho(self.rho))

    def _blended(self, book: Codebook[Tensor]) -> Moments[Tensor]:
        return blended_moments(book, self.blend_component.int(), self.blend_alpha)

    def _assemble(self, table: Tensor, outliers: Tensor, blended: Tensor) -> Tensor:
        """Values of all weights from those of the components [K], the outliers and the blends."""
        flat = torch.cat([table, table.new_zeros(1)]).index_select(0, self.labels.int())
        if outliers.numel():
            flat = flat.index_copy(0, self.derived.outlier, outliers)
        if self.blend_position.numel():
            flat = flat.index_copy(0, self.blend_position.long(), blended)
        return flat.view(self.shape)

    def sample(self, original: Tensor, draw: Draw) -> Tensor:
        if not self.codebook.tied:
            return super().sample(original, draw)
        book = self.codebook.values()
        mu, sigma = book.mu.detach(), book.sigma.detach()
        z = draw.value(CODEBOOK, lambda: draw.z(self.noise, mu, sigma, CODEBOOK))
        values = self.noise.place(*book, z)  # [K] one draw for each component
        blended = (self.blend_alpha * values[self.blend_component.int()]).sum(1)
        own = self.outliers(original)
        outliers = self.noise.place(*own, draw.z(self.noise, *own, self.index))
        return self.whole(self._assemble(values, outliers, blended))

    # --- the KL ------------------------------------------------------------------------------------------------

    def kl(self, original: Tensor) -> Tensor:
        """sum_k n_k KL(N(m_k, v_k) || p), exactly, plus the outliers' and the blends' own.  Eq. (15) of docs/method.md.

        With tied draws a component is one variable: its KL counts once in the network, against N(0, s^2).
        """
        d, book = self.derived, self.codebook.values()
        q = self.programmed(*book)
        if self.codebook.tied:
            shared = gaussian_kl(q, 0.0, self.prior_sigma).sum() * float(self.counts_codebook)
        else:
            # sum_i (m - p_i)^2 = n (m - p)^2 + scatter of the prior means p_i about their mean p
            shared = (d.members * gaussian_kl(q, d.prior_mean, self.prior_sigma)).sum() + d.prior_scatter
        apart = self._kl_at(d.outlier, self.outliers(original))
        if self.blend_position.numel():
            apart = apart + self._kl_at(self.blend_position.long(), self._blended(book))
        return shared + apart + self._shape(original)

    def _kl_at(self, position: Tensor, q: Moments[Tensor]) -> Tensor:
        """Summed over the weights at these flat positions."""
        mean = 0.0 if self.prior_mu is None else self.prior_mu.reshape(-1)[position]
        return gaussian_kl(self.programmed(*q), mean, self.prior_sigma).sum()

    def _shape(self, original: Tensor) -> Tensor | float:
        if isinstance(self.noise, Law):
            return shape_total(self.noise, self.labels, self.labels)
        return shape_total(self.noise, *self.moments(original))

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
    blended = labels[weight.blend_position.long()]
    count = torch.bincount(labels, minlength=components + 1)[:-1] - torch.bincount(
        blended, minlength=components
    )
    members = count.to(weight.rho.dtype)
    if weight.prior_mu is None:
        zero = torch.zeros_like(members)
        return _Derived(outlier, members, zero, zero.new_zeros(()))
    plain = (labels != components).index_fill_(0, weight.blend_position.long(), False)
    kept, p = labels[plain].int(), weight.prior_mu.reshape(-1)[plain].double()
    total = torch.zeros(components, dtype=p.dtype, device=p.device).index_add_(0, kept, p)
    mean = total / count.clamp_min(1)
    scatter = (p - mean.index_select(0, kept)).square().sum() / (2 * weight.prior_sigma**2)
    return _Derived(outlier, members, mean.to(members.dtype), scatter.to(members.dtype))


def _no_blends(device: torch.device) -> Blends:
    empty = torch.zeros(0, 1, device=device)
    return Blends(empty[:, 0].int(), empty.int(), empty)
