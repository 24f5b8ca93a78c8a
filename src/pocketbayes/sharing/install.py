"""Shared weights in the place of a model's own: the outcome of sharing, put into the model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pocketbayes.moments import Codebook
from pocketbayes.posterior.surgery import swap
from pocketbayes.posterior.weights import Site, StochasticWeight, common
from pocketbayes.sharing.outliers import cluster_sizes
from pocketbayes.sharing.shared import Blends, SharedWeight, TrainableCodebook


def install(
    model: nn.Module,
    found: list[Site],
    book: Codebook[Tensor],
    labels: list[Tensor],
    blends: list[Blends | None],
    *,
    tied: bool = False,
) -> None:
    """Replace each weight by a SharedWeight with these labels into the codebook."""
    used, labels, blends = _compact(labels, blends, book.components)
    like = found[0].original
    codebook = TrainableCodebook(Codebook(*(part[used].to(like) for part in book)), tied=tied)
    new: dict[int, tuple[StochasticWeight, Tensor]] = {}
    counted = {id(site.weight.draws): site for site in reversed(found)}  # with the first tensor of each mode
    for site, label, blend in zip(found, labels, blends, strict=True):
        q, outlier = site.moments, label == codebook.components
        weight = SharedWeight(
            codebook=codebook,
            labels=label,
            outlier_sigma=q.sigma.detach()[outlier],
            blends=blend,
            counts_codebook=counted[id(site.weight.draws)] is site,
            **common(site.weight),
        )
        new[id(site.weight)] = weight, q.mu[outlier]
    swap(model, new)


def _compact(
    labels: list[Tensor], blends: list[Blends | None], components: int
) -> tuple[Tensor, list[Tensor], list[Blends | None]]:
    """Leave out components that no weight uses; a blended weight is labelled with its largest component."""
    labels = [
        label
        if b is None
        else label.reshape(-1).index_copy(0, b.position.long(), b.component[:, 0].to(label)).view_as(label)
        for label, b in zip(labels, blends, strict=True)
    ]
    sizes = cluster_sizes([label.long() for label in labels], components + 1)[:components]
    for blend in blends:
        if blend is not None:
            sizes += torch.bincount(blend.component.reshape(-1).long(), minlength=components)
    used = sizes > 0
    used[0] |= not bool(used.any())  # all outliers: an empty codebook has no shape to train
    number = torch.cat([used.cumsum(0) - 1, used.sum()[None]])
    labels = [number[label.long()] for label in labels]
    renamed = [b if b is None else Blends(b.position, number[b.component.long()], b.alpha) for b in blends]
    return used, labels, renamed
