"""What a component means for a scalar weight, and weights far from their component, blended from several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pocketbayes.moments import Codebook, Moments
from pocketbayes.sharing.histogram import CHUNK, Atoms
from pocketbayes.sharing.mixture import Mixture, top_components
from pocketbayes.sharing.threads import operators_alone, spread

ELLIPSE = 5.991  # 95 % of a two-dimensional Gaussian lies within this squared Mahalanobis distance


class Blend(NamedTuple):
    """Weights shared by several components: w_i ~ sum_k alpha_ik N(m_k, v_k)."""

    weight: Tensor  # [M] int64, positions in the tensor read flat
    component: Tensor  # [M, k] int64, largest alpha first
    alpha: Tensor  # [M, k] float64, rows sum to one


def component_moments(mixture: Mixture) -> Moments[Tensor]:
    """Those of a weight w ~ N(m, s^2) with (m, s) ~ N(c, S): mean c_mu, variance c_sigma^2 + S_ss + S_mm; [K] each.

    What quantisation loses becomes stated uncertainty.
    """
    spread = mixture.cov.diagonal(dim1=1, dim2=2).sum(1)
    return Moments(mixture.mean[:, 0], (mixture.mean[:, 1].square() + spread).sqrt())


def blended_moments(book: Codebook[Tensor], component: Tensor, alpha: Tensor) -> Moments[Tensor]:
    """Those of blends [M, k] of components [K]: m = sum a_k m_k, v = sum a_k (v_k + m_k^2) - m^2; [M] each."""
    mu = (alpha * book.mu[component]).sum(1)
    around = (book.mu[component] - mu[:, None]).square()  # the same variance, without cancellation
    return Moments(mu, (alpha * (book.sigma[component].square() + around)).sum(1).sqrt())


def _whitening(mixture: Mixture, dtype: torch.dtype) -> Tensor:
    """[5, K]: means (c_mu, c_sigma) and the factor ((a, b), (0, c)) with |factor (x - c)|^2 the squared distance."""
    factor = torch.linalg.cholesky(torch.linalg.inv(mixture.cov)).mT
    return torch.cat([mixture.mean, factor[:, [0, 0, 1], [0, 1, 1]]], 1).T.to(dtype).contiguous()


def _distance(whitening: Tensor, mu: Tensor, sigma: Tensor, label: Tensor) -> Tensor:
    m, s, a, b, c = (row.index_select(0, label.int()) for row in whitening)
    dy = sigma - s
    distance: Tensor = ((mu - m) * a + dy * b).square_().add_((dy * c).square_())
    return distance


@operators_alone()
def blend_weights(
    mixture: Mixture,
    mu: Sequence[Tensor],
    sigma: Sequence[Tensor],
    labels: Sequence[Tensor],
    *,
    k: int = 5,
    beyond: float = ELLIPSE,
) -> list[Blend]:
    """For each tensor its weights with squared Mahalanobis distance > `beyond` to their own component, blended.

    They are shared by the k components of largest responsibility, alpha_k ~ pi_k N(x | m_k, S_k).
    """
    if k < 1 or not beyond >= 0:
        raise ValueError(
            f"blend_weights: k must be at least 1 and beyond not negative, got {k} and {beyond}."
        )
    far = [_beyond(mixture, m, s, label, beyond) for m, s, label in zip(mu, sigma, labels, strict=True)]
    points = [
        torch.stack([m.reshape(-1)[f], s.reshape(-1)[f]], 1) for m, s, f in zip(mu, sigma, far, strict=True)
    ]
    joined = torch.cat(points).detach().double()
    if len(joined) == 0:
        return [Blend(f, f.new_zeros(0, k), mixture.log_pi.new_zeros(0, k)) for f in far]
    atoms = Atoms(torch.ones(len(joined), dtype=torch.float64), joined, torch.zeros_like(joined))
    component, joint = top_components(mixture, atoms, min(k, mixture.components))
    sizes = [len(f) for f in far]
    parts = zip(far, component.split(sizes), joint.softmax(1).split(sizes), strict=True)
    return [Blend(*part) for part in parts]


def _beyond(mixture: Mixture, mu: Tensor, sigma: Tensor, label: Tensor, bound: float) -> Tensor:
    """Flat positions of the weights outside their component's ellipse."""
    whitening = _whitening(mixture, mu.dtype)
    pieces = list(zip(*(t.detach().reshape(-1).split(CHUNK) for t in (mu, sigma, label)), strict=True))
    outside = spread(lambda piece: (_distance(whitening, *piece) > bound).nonzero().squeeze(1), pieces)
    return torch.cat([found + i * CHUNK for i, found in enumerate(outside)])
