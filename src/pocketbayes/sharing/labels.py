"""The label of every weight: exact, or looked up in a table where weights are many and move at every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pocketbayes.posterior.gaussian import sigma_from_rho
from pocketbayes.sharing.evidence import PIECE, check, gather_evidence, statistics, sums_by_label
from pocketbayes.sharing.mixture import label_dtype
from pocketbayes.sharing.rate import (
    CodebookFit,
    Rate,
    RateCode,
    best_code,
    cheapest,
    fit_codebook,
    objective,
    priced,
    prices,
    total,
    used_by,
)
from pocketbayes.sharing.threads import operators_alone, spread

PORTION = 1 << 18  # weights labelled by one thread before the next portion
CELLS = (256, 32)  # of mu and of rho in a table

Job = tuple[Tensor, Tensor, Tensor, Tensor]  # price, mu, sigma, and where labels go


class RateSharing(NamedTuple):
    """A fit and the label of every weight, in its layer's shape; label K marks an outlier."""

    fit: CodebookFit
    labels: list[Tensor]

    @property
    def outliers(self) -> list[Tensor]:
        """Masks, True where a weight keeps its own (mu, sigma)."""
        return [label == self.fit.codebook.components for label in self.labels]


@operators_alone()
def share_by_rate(
    mu: Sequence[Tensor], sigma: Sequence[Tensor], rate: Rate, *, start: RateCode | None = None
) -> RateSharing:
    """Fit a codebook to layers of weights and label every one of them."""
    fit = fit_codebook(gather_evidence(mu, sigma), rate, start)
    return label_weights(fit.code, mu, sigma, rate)


@operators_alone()
def label_weights(code: RateCode, mu: Sequence[Tensor], sigma: Sequence[Tensor], rate: Rate) -> RateSharing:
    """The best label of each weight, then the codebook, frequencies and costs that belong to these labels.

    Labels are those of the codebook returned, which leaves out components without weights.
    """
    check(mu, sigma)
    if len(code.frequency) != len(mu):
        raise ValueError(f"code: is for {len(code.frequency)} layers, got {len(mu)}.")
    dtype, price = label_dtype(code.frequency.shape[1]), prices(code, rate)
    labels = [torch.empty(m.shape, dtype=dtype) for m in mu]
    jobs, of_layer = list[Job](), list[int]()
    for layer, tensors in enumerate(zip(mu, sigma, labels, strict=True)):
        parts = list(zip(*(t.detach().reshape(-1).split(PORTION) for t in tensors), strict=True))
        jobs += [(price[layer], *part) for part in parts]
        of_layer += [layer] * len(parts)
    groups = total(spread(_label, jobs), of_layer, len(mu))
    return sharing_of(groups, labels, rate, objective(groups, code, rate))


def sharing_of(groups: Tensor, labels: list[Tensor], rate: Rate, before: float) -> RateSharing:
    """The best codebook for these labels, from the sums of phi by layer and label; `before` is what J was."""
    used = used_by(groups)
    if not bool(used.all()):
        groups, number = groups[:, used], (used.cumsum(0) - 1).to(label_dtype(int(used.sum())))
        labels = [number[label.int()] for label in labels]
    return RateSharing(priced(groups, best_code(groups, rate), [before], True), labels)


def _label(job: Job) -> Tensor:
    """Write the best labels of some weights of one layer; returns sums of phi by label, [K + 1, 4]."""
    price, mu, sigma, label = job
    groups = price.new_zeros(price.shape[1], 4)
    for *weights, out in zip(*(t.split(PIECE) for t in (mu, sigma, label)), strict=True):
        phi = statistics(*weights)
        best = cheapest(phi, price)
        out.copy_(best)
        groups += sums_by_label(phi, best, len(groups))
    return groups


class Table(NamedTuple):
    """The cheapest label in each cell of one layer's plane of (mu, rho): right but for weights near a border.

    An axis maps x to t / (|t| + scale), t = x - middle: cells are narrow in the middle, the last reach to infinity.
    On trained networks such labels raise J by .02 to .4 per cent.
    """

    middle: tuple[float, float]  # of mu and of rho
    scale: tuple[float, float]
    label: Tensor  # [256 * 32], mu first

    @classmethod
    def of(cls, mu: Tensor, rho: Tensor, price: Tensor) -> Table:
        """The table for price [4, K + 1], its axes fitted to a sample of the layer's weights."""
        middle = 0.0, float(rho.mean())
        scale = 3.0 * _deviation(mu, middle[0]), 2.0 * _deviation(rho, middle[1])
        mus, rhos = (_centres(*axis) for axis in zip(middle, scale, CELLS, strict=True))
        plane = torch.cartesian_prod(mus, sigma_from_rho(rhos))
        phi = statistics(*plane.unbind(1))
        some = phi.view(*CELLS, 4)[::4, ::4].reshape(-1, 4)
        used = cheapest(some, price).unique()  # most layers use few of the components
        label = used[cheapest(phi, price[:, used])]
        return cls(middle, scale, label.to(label_dtype(price.shape[1])))

    def to(self, device: torch.device) -> Table:
        return self._replace(label=self.label.to(device))

    def look_up(self, mu: Tensor, rho: Tensor) -> Tensor:
        """The label of each weight."""
        axes = zip((mu, rho), self.middle, self.scale, CELLS, strict=True)
        of_mu, of_rho = (_cell(*axis) for axis in axes)
        return self.label.index_select(0, of_mu.mul_(CELLS[1]).add_(of_rho))


def _deviation(x: Tensor, middle: float) -> float:
    """From the middle; positive."""
    return max(float((x - middle).square().mean().sqrt()), 1e-30)


def _cell(x: Tensor, middle: float, scale: float, cells: int) -> Tensor:
    t = x - middle
    position = t.div_(t.abs().add_(scale)).add_(1.0).mul_(cells / 2)  # 0 to cells
    return position.int().clamp_(0, cells - 1)  # also what is not a number


def _centres(middle: float, scale: float, cells: int) -> Tensor:
    position = (torch.arange(cells, dtype=torch.float64) + 0.5) * (2 / cells) - 1
    return middle + scale * position / (1 - position.abs())
