"""`share`: stages 1 and 2 of weight sharing on a model, in place: the paper's mixture, or rate and distortion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pocketbayes.moments import Codebook
from pocketbayes.posterior.laplace import require_fisher
from pocketbayes.posterior.weights import MeanFieldWeight, Site, require_bayesian
from pocketbayes.runs import ranks
from pocketbayes.sharing.blend import ELLIPSE, blend_weights, component_moments
from pocketbayes.sharing.histogram import WeightHistogram, make_grid, make_histogram
from pocketbayes.sharing.install import install
from pocketbayes.sharing.labels import share_by_rate
from pocketbayes.sharing.merge import AbsoluteDistance, Merge, merge_components
from pocketbayes.sharing.mixture import Fit, assign, fit_mixture
from pocketbayes.sharing.outliers import Outliers, before_sharing, by_cluster_size, cluster_sizes
from pocketbayes.sharing.rate import Rate
from pocketbayes.sharing.shared import Blends, SharedWeight


@dataclass(frozen=True, kw_only=True)
class Paper:
    """Algorithm 1 of the sharing paper with its thresholds; None switches a part off, for its ablations.

    Args:
        components: of the mixture, before merging.
        outliers: which weights keep moments of their own.
        merge: which components are joined.
        blend: how many components share a weight that lies outside the ellipse of its own.
        beyond: that ellipse, a squared Mahalanobis distance.
        tied: one draw for all members of a component, as in the paper's code.
        bins: of the histogram that the mixture is fitted to, along each axis.
        tolerance: stop fitting the mixture when an iteration raises its log-likelihood by a smaller fraction.

    Examples:
        >>> model = pb.bayesianize(pb.nets.mlp([16, 64, 8]))
        >>> outliers = pb.sharing.Outliers(fisher_fraction=None, smallest_cluster=None)
        >>> report = pb.share(model, pb.Paper(components=20, outliers=outliers, blend=None))
        >>> report.components_before_merging
        20
    """

    components: int = 6000
    outliers: Outliers = Outliers()
    merge: Merge | None = Merge(distance=AbsoluteDistance(1.5e-7))
    blend: int | None = 5
    beyond: float = ELLIPSE
    tied: bool = False
    bins: int = 512
    tolerance: float = 1e-4


class SharedLayer(NamedTuple):
    """One tensor of weights after sharing."""

    path: str
    weights: int
    outliers: int
    blends: int
    label_bits: float  # Shannon bound of the labels, the outliers' among them


@dataclass(frozen=True, kw_only=True)
class SharingReport:
    """What `share` did."""

    how: str
    layers: list[SharedLayer]
    components: int
    components_before_merging: int
    trainable: int  # scalars: 2 K + 2 outliers + everything deterministic
    log_likelihood: float | None = None  # of the mixture, nats a weight
    iterations: int = 0
    distortion: float | None = None  # nats of free energy, rate-distortion only

    @property
    def weights(self) -> int:
        return sum(layer.weights for layer in self.layers)

    @property
    def outliers(self) -> int:
        return sum(layer.outliers for layer in self.layers)

    @property
    def blends(self) -> int:
        return sum(layer.blends for layer in self.layers)

    @property
    def label_bits(self) -> float:
        return sum(layer.label_bits for layer in self.layers)

    @property
    def bits_per_weight(self) -> float:
        return self.label_bits / self.weights

    def __str__(self) -> str:
        lost = "" if self.distortion is None else f", {self.distortion / self.weights:.2f} nats a weight lost"
        return (
            f"{self.how}: {self.weights:,} weights share {self.components} components "
            f"({self.components_before_merging} before merging), {self.outliers:,} outliers, {self.blends:,} blends, "
            f"{self.bits_per_weight:.2f} bits a label, {self.trainable:,} trainable scalars{lost}"
        )


class _Shared(NamedTuple):
    """The outcome of either method, tensor by tensor."""

    book: Codebook[Tensor]
    labels: list[Tensor]  # label K marks an outlier
    blends: list[Blends | None]
    told: dict[str, Any]  # what the report says besides counts


def share(
    model: nn.Module, how: Paper | Rate = Rate(), *, fisher: Mapping[str, Tensor] | None = None
) -> SharingReport:
    """Replace every weight's own moments by shared ones, in place; an error leaves the model as it was.

    Args:
        model: a mean-field posterior, all its weights unshared.
        how: `Rate(...)`, the fewest label bits for the least loss (docs/method.md, "Sharing"), or `Paper(...)`.
        fisher: g_i by parameter name, from `pb.fisher_information`; the paper's rule for outliers needs it.

    Returns:
        Counts and label bits by tensor, the size of the codebook and what was lost; print it for a summary.

    Examples:
        >>> model = pb.bayesianize(pb.nets.mlp([16, 64, 8]))
        >>> report = pb.share(model, pb.Rate(lambda_=4.0))
        >>> report.weights, report.components <= 64, report.bits_per_weight < 8
        (1536, True, True)
    """
    found = require_mean_field(model)
    ranks.require_same_network(model)
    mu = [site.moments.mu.detach() for site in found]
    sigma = [site.moments.sigma.detach() for site in found]
    given = None if fisher is None else [_lookup(fisher, site) for site in found]
    if isinstance(how, Paper):
        shared = _by_paper(mu, sigma, how, given)
    else:
        shared = ranks.once(partial(_by_rate, mu, sigma, how))
    install(model, found, shared.book, shared.labels, shared.blends, tied=getattr(how, "tied", False))
    return replace(report_of(model, type(how).__name__.lower()), **shared.told)


def require_mean_field(model: nn.Module) -> list[Site]:
    """The model's stochastic weights, all unshared."""
    found = require_bayesian(model)
    for site in found:
        if not isinstance(site.weight, MeanFieldWeight):
            raise ValueError(
                f"{site.path}: is shared already. Share a copy of the unshared posterior, or load it afresh."
            )
        mu, sigma = site.moments
        if not bool(torch.isfinite(mu).all() and torch.isfinite(sigma).all()):
            raise ValueError(
                f"{site.path}: mu or sigma is not finite. Train again with a lower learning rate."
            )
    return found


def _lookup(fisher: Mapping[str, Tensor], site: Site) -> Tensor:
    if site.path not in fisher:
        raise ValueError(
            f"{site.path}: no Fisher information given. Pass what pb.fisher_information(model, loader) returns."
        )
    require_fisher(site.path, fisher[site.path])
    return fisher[site.path]


def _by_rate(mu: list[Tensor], sigma: list[Tensor], how: Rate) -> _Shared:
    result = share_by_rate(mu, sigma, how)
    fit = result.fit
    told = {
        "components_before_merging": fit.codebook.components,
        "iterations": len(fit.history),
        "distortion": float(fit.distortion.sum()),
    }
    return _Shared(fit.codebook, result.labels, [None] * len(mu), told)


def _by_paper(mu: list[Tensor], sigma: list[Tensor], how: Paper, fisher: list[Tensor] | None) -> _Shared:
    """Outliers, mixture, assignment, small clusters, merge, blend: in the order of docs/method.md, "Sharing"."""
    outlier = before_sharing(how.outliers, mu, fisher)
    position = [(~o).reshape(-1).nonzero()[:, 0] for o in outlier]  # of the weights left to share
    inliers = [(m.reshape(-1)[p], s.reshape(-1)[p]) for m, s, p in zip(mu, sigma, position, strict=True)]
    count = sum(len(m) for m, _ in inliers)
    if count < how.components:
        raise ValueError(
            f"{count} weights are left to share (the rest are outliers), fewer than {how.components} components. "
            "Lower components, or loosen the outlier rules."
        )
    plane = _histogram(inliers, how.bins)
    fit, labels = ranks.once(lambda: _mixture(plane, inliers, how))
    mixture, before = fit.mixture, fit.mixture.components
    small = by_cluster_size(labels, how.outliers.smallest_cluster or 0)
    if how.merge is not None:
        gradient = _mean_by_label(fisher, outlier, labels, before) if how.merge.gradient is not None else None
        merged = merge_components(mixture, how.merge, gradient)
        mixture = merged.mixture
        labels = [merged.new_of_old[label.long()] for label in labels]
    position = [p[~s] for p, s in zip(position, small, strict=True)]
    kept = [(m[~s], sd[~s], label[~s]) for (m, sd), label, s in zip(inliers, labels, small, strict=True)]
    if sum(len(label) for _, _, label in kept) == 0:
        raise ValueError("Every weight is an outlier: nothing is left to share. Loosen the outlier rules.")
    blends: list[Blends | None] = [None] * len(mu)
    if how.blend is not None:
        far = blend_weights(mixture, *zip(*kept, strict=True), k=how.blend, beyond=how.beyond)
        blends = [Blends(p[b.weight], b.component, b.alpha) for p, b in zip(position, far, strict=True)]
    book = Codebook(*component_moments(mixture))
    dense = [torch.full((m.numel(),), book.components) for m in mu]  # label K marks an outlier
    for full, p, (_, _, label) in zip(dense, position, kept, strict=True):
        full[p] = label.long()
    told = {
        "components_before_merging": before,
        "log_likelihood": fit.log_likelihood,
        "iterations": fit.iterations,
    }
    return _Shared(book, [full.view(m.shape) for full, m in zip(dense, mu, strict=True)], blends, told)


def _histogram(chunks: list[tuple[Tensor, Tensor]], bins: int) -> WeightHistogram:
    """Of all chunks, of which each rank counts some."""
    found = make_histogram(chunks[ranks.number() :: ranks.count()], make_grid(chunks, bins=bins))
    ranks.add_up([found.n, found.total])
    return found


def _mixture(
    plane: WeightHistogram, chunks: list[tuple[Tensor, Tensor]], how: Paper
) -> tuple[Fit, list[Tensor]]:
    """The mixture that fits, and the label of every weight."""
    fit = fit_mixture(plane.atoms(), how.components, tolerance=how.tolerance)
    return fit, assign(fit.mixture, plane, chunks)


def _mean_by_label(
    fisher: list[Tensor] | None, outlier: list[Tensor], labels: list[Tensor], k: int
) -> Tensor:
    """[K] the mean Fisher information of each component's members."""
    if fisher is None:
        raise ValueError(
            "fisher: needed by Merge(gradient=...). Pass what pb.fisher_information(model, loader) returns."
        )
    g = torch.cat([g[~o].double() for g, o in zip(fisher, outlier, strict=True)])
    flat = torch.cat([label.long() for label in labels])
    return torch.zeros(k, dtype=torch.float64).index_add_(0, flat, g) / cluster_sizes(labels, k).clamp_min(1)


# --- what is told --------------------------------------------------------------------------------------------------


def report_of(model: nn.Module, how: str) -> SharingReport:
    """Counts of a shared model as it is."""
    layers, components = [], 0
    for site in require_bayesian(model):
        weight = site.weight
        assert isinstance(weight, SharedWeight)
        layers.append(
            SharedLayer(
                site.path,
                weight.labels.numel(),
                weight.rho.numel(),
                weight.blend_position.numel(),
                entropy_bits(weight.labels),
            )
        )
        components = weight.codebook.components
    return SharingReport(
        how=how,
        layers=layers,
        components=components,
        components_before_merging=components,
        trainable=sum(p.numel() for p in model.parameters() if p.requires_grad),
    )


def entropy_bits(labels: Tensor) -> float:
    """The Shannon bound of a stream of labels under its own frequencies, in bits."""
    counts = torch.bincount(labels.reshape(-1).int()).double()
    counts = counts[counts > 0]
    return float(-(counts * (counts / counts.sum()).log2()).sum())
