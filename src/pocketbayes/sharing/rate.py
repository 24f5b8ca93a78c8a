"""Sharing as rate and distortion: the fewest label bits for the least loss of free energy.

Replacing a weight's posterior N(mu_i, sigma_i^2) by the shared N(m_k, v_k) costs

    D_ik = 1/2 [ (v_k + (m_k - mu_i)^2) / sigma_i^2 - 1 - ln(v_k / sigma_i^2) ]        nats,

and its label costs -ln pi_lk nats in layer l.  Labels, codebook and frequencies minimise J = sum_i D_ik(i) + lambda *
nats of labels.  D is linear in (tau, tau mu) with tau = 1/sigma^2, so weights enter as sums of these, one atom may
hold many weights, and every sum over a group of weights is exact.

A weight may also be an outlier: it keeps a (mu, sigma) of its own without distortion, for the nats of its bits.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from pocketbayes.errors import ConvergenceWarning
from pocketbayes.moments import Codebook
from pocketbayes.sharing import pairwise
from pocketbayes.sharing.evidence import PIECE, Evidence, coarsen, moments, sums_by_label
from pocketbayes.sharing.threads import operators_alone, spread

ROWS = 512  # atoms compared with the codebook at once: their costs stay in the second-level cache
NATS = math.log(2)  # in a bit
ANNEAL = (0.01, 0.1)  # fractions of lambda that come before it
BRACKET = 12  # how many lambda to try downwards


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Sharing by rate and distortion: how much a nat of label may cost, and how the minimum is sought.

    Args:
        lambda_: nats of free energy given for one nat of label; larger, smaller file.
        components: the most the codebook may have.
        outlier_bits: what an outlier's own (mu, sigma) take in the file; None: no outliers.
        tolerance: stop when an iteration lowers the objective by a smaller fraction.
        max_iterations: stop after so many in any case, with a warning.

    Examples:
        >>> few, many = (pb.bayesianize(pb.nets.mlp([16, 64, 8])) for _ in range(2))
        >>> dear, cheap = pb.share(few, pb.Rate(lambda_=100.0)), pb.share(many, pb.Rate(lambda_=0.1))
        >>> dear.bits_per_weight < cheap.bits_per_weight, dear.distortion > cheap.distortion
        (True, True)
    """

    lambda_: float = 1.0
    components: int = 64
    outlier_bits: float | None = 32.0
    tolerance: float = 1e-4
    max_iterations: int = 200

    def __post_init__(self) -> None:
        if not 0 < self.lambda_ < math.inf:
            raise ValueError(f"Rate: lambda_ must be positive and finite, got {self.lambda_}.")
        if not 1 <= self.components <= 1 << 15:
            raise ValueError(f"Rate: components must be between 1 and {1 << 15}, got {self.components}.")
        if self.outlier_bits is not None and not self.outlier_bits >= 0:
            raise ValueError(
                f"Rate: outlier_bits must not be negative, got {self.outlier_bits}. None switches it off."
            )
        if not (self.tolerance > 0 and self.max_iterations >= 1):
            raise ValueError("Rate: tolerance and max_iterations must be positive.")


class RateCode(NamedTuple):
    """The codebook and how often each layer uses its components; the last column is the fraction of outliers."""

    codebook: Codebook[Tensor]  # [K] float64
    frequency: Tensor  # [L, K + 1] float64, rows sum to one


class CodebookFit(NamedTuple):
    """A codebook and what it costs.  `history` is J in nats after each assignment."""

    code: RateCode
    distortion: Tensor  # [L] nats of free energy lost
    label_bits: Tensor  # [L] Shannon bits of the labels, the outliers' among them
    outliers: Tensor  # [L] how many
    history: tuple[float, ...]
    converged: bool

    @property
    def codebook(self) -> Codebook[Tensor]:
        return self.code.codebook

    def bits(self, outlier_bits: float = 32.0) -> float:
        """Bits of all labels and of the outliers' own values."""
        return float(self.label_bits.sum() + outlier_bits * self.outliers.sum())


@operators_alone()
def fit_codebook(evidence: Evidence, rate: Rate, start: RateCode | None = None) -> CodebookFit:
    """Minimise J by turns over labels, codebook and frequencies, joining components wherever that lowers J.

    Begins with `start`, such as an earlier fit (then the limit on iterations may cut it short without a warning), or
    on coarse atoms with a fine lattice and a lambda that grows: codebooks with few components are better when found
    from many.  J never rises, and the result is a function of the arguments alone.
    """
    if start is not None:
        return _minimise(evidence, reopened(start, evidence.weights), rate)
    rough = coarsen(evidence)
    stages = [_early(rate, fraction) for fraction in ANNEAL] + [rate]
    code = _first(rough, stages[0])
    for stage in stages:
        code = _minimise(rough, reopened(code, rough.weights), stage).code
    fit = _minimise(evidence, reopened(code, evidence.weights), rate)
    if not fit.converged:
        warnings.warn(
            f"fit_codebook: J still falls after {rate.max_iterations} iterations. Raise max_iterations or tolerance.",
            ConvergenceWarning,
            stacklevel=2,
        )
    return fit


def _early(rate: Rate, fraction: float) -> Rate:
    """A stage with less lambda.  Outliers keep their price in free energy: else all weights become such."""
    bits = None if rate.outlier_bits is None else rate.outlier_bits / fraction
    return replace(
        rate, lambda_=rate.lambda_ * fraction, outlier_bits=bits, tolerance=max(1e-3, rate.tolerance)
    )


def _minimise(evidence: Evidence, code: RateCode, rate: Rate) -> CodebookFit:
    history: list[float] = []
    while True:
        groups = _group(evidence, code, rate)
        history.append(objective(groups, code, rate))
        groups = groups[:, used_by(groups)]
        code = best_code(groups, rate)
        if len(history) > 1 and history[-2] - history[-1] <= rate.tolerance * abs(history[-1]):
            shared = pairwise.join(groups[:, :-1], rate.lambda_, rate.components)
            joined = torch.cat([shared, groups[:, -1:]], 1)
            if joined.shape == groups.shape:
                return priced(groups, code, history, True)
            groups, code = joined, best_code(joined, rate)
        if len(history) == rate.max_iterations:
            return priced(groups, code, history, False)


@operators_alone()
def fit_bits(evidence: Evidence, max_bits: float, rate: Rate, *, steps: int = 8) -> tuple[CodebookFit, float]:
    """A fit whose labels and outliers take at most `max_bits`, of the smallest lambda found, and that lambda.

    Brackets it by factors of four from `rate.lambda_` and halves the bracket `steps` times on a log scale; every fit
    begins from that of the next smaller lambda.  Much faster on `coarsen(evidence)`: the bits differ by a per cent.
    """
    if not max_bits >= 0:
        raise ValueError(f"max_bits: must not be negative, got {max_bits}.")
    fits: dict[float, CodebookFit] = {}

    def within(lambda_: float) -> bool:
        smaller = [known for known in fits if known < lambda_]
        start = fits[max(smaller)].code if smaller else None
        fits[lambda_] = fit_codebook(evidence, replace(rate, lambda_=lambda_), start)
        return fits[lambda_].bits(rate.outlier_bits or 0.0) <= max_bits

    low = high = rate.lambda_
    if within(high):
        low = high / 4
        while len(fits) < BRACKET and within(low):
            low, high = low / 4, low
    else:
        high = low * 4
        while not within(high):  # one component takes no bits
            low, high = high, high * 4
    for _ in range(steps):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if within(middle) else (middle, high)
    return fits[high], high


def _first(evidence: Evidence, rate: Rate) -> RateCode:
    """A lattice, joined to no more components than allowed."""
    groups = pairwise.lattice(evidence, rate.lambda_, 4 * rate.components, rare=rate.outlier_bits is None)
    groups = pairwise.join(groups, rate.lambda_, rate.components)
    outliers = groups.new_zeros(evidence.layers, 1, 4)
    return reopened(best_code(torch.cat([groups, outliers], 1), rate), evidence.weights)


def reopened(code: RateCode, weights: Tensor) -> RateCode:
    """The code with one more weight in each layer [L], spread as in all layers: a lost label may return."""
    n = weights[:, None]
    if len(code.frequency) != len(n):
        raise ValueError(f"start: is for {len(code.frequency)} layers, got {len(n)}.")
    everywhere = (n * code.frequency).sum(0) / n.sum()
    return code._replace(frequency=(n * code.frequency + everywhere) / (n + 1))


def prices(code: RateCode, rate: Rate) -> Tensor:
    """[L, 4, K + 1] theta with phi . theta = D + lambda length, in nats; an outlier has no distortion."""
    mu, var = code.codebook.mu, code.codebook.sigma.square()
    # D = -ln(v)/2 + (v + m^2)/2 tau - m tau mu + constant
    distortion = torch.stack([-0.5 * var.log(), 0.5 * (var + mu.square()), -mu, torch.ones_like(mu)])
    length = -code.frequency.log()
    length[:, -1] += math.inf if rate.outlier_bits is None else rate.outlier_bits * NATS
    theta = torch.nn.functional.pad(distortion, (0, 1)).repeat(len(length), 1, 1)
    theta[:, 0] += rate.lambda_ * length
    return theta


def cheapest(phi: Tensor, price: Tensor) -> Tensor:
    """[B] the label of least cost for atoms [B, 4] of one layer, price [4, K + 1]."""
    cost, best = phi.new_empty(ROWS, price.shape[1]), torch.empty(len(phi), dtype=torch.int64)
    for rows, found in zip(phi.split(ROWS), best.split(ROWS), strict=True):
        torch.mm(rows, price, out=cost[: len(rows)])
        cost[: len(rows)].numpy().argmin(1, out=found.numpy())  # ten times as fast as torch's
    return best


def _group(evidence: Evidence, code: RateCode, rate: Rate) -> Tensor:
    """[L, K + 1, 4] the sums of phi by layer and best label."""
    price = prices(code, rate)
    jobs = [(i, piece) for i, phi in enumerate(evidence.by_layer) for piece in phi.split(PIECE)]

    def group(job: tuple[int, Tensor]) -> Tensor:
        layer, phi = job
        return sums_by_label(phi, cheapest(phi, price[layer]), price.shape[2])

    return total(spread(group, jobs), [layer for layer, _ in jobs], evidence.layers)


def total(sums: list[Tensor], layer: list[int], layers: int) -> Tensor:
    """[L, K + 1, 4] sums of pieces, added up by layer and always in the same order."""
    groups = sums[0].new_zeros(layers, *sums[0].shape)
    for i, part in zip(layer, sums, strict=True):
        groups[i] += part
    return groups


def used_by(groups: Tensor) -> Tensor:
    """[K + 1] which components hold weights; the outliers' column stays, and the first if all weights are outliers."""
    used = groups[..., 0].sum(0) > 0
    used[0] |= not bool(used[:-1].any())
    used[-1] = True
    return used


def best_code(groups: Tensor, rate: Rate) -> RateCode:
    """The best code of given groups: precision-weighted means, harmonic means of variances, frequencies."""
    everywhere = groups[:, :-1].sum(0)
    empty = everywhere[:, 0] == 0
    mu, sigma = moments(everywhere)
    n = _counts(groups, rate)
    book = Codebook(mu.masked_fill_(empty, 0.0), sigma.masked_fill_(empty, 1.0))
    return RateCode(book, n / n.sum(1, keepdim=True))


def _counts(groups: Tensor, rate: Rate) -> Tensor:
    """[L, K + 1] weights by label, and one outlier more in each layer, so that outliers stay possible."""
    n = groups[..., 0].clone()
    n[:, -1] += rate.outlier_bits is not None
    return n


def objective(groups: Tensor, code: RateCode, rate: Rate) -> float:
    """J in nats of free energy: distortion and lambda times the nats of labels and outliers."""
    nats = -torch.special.xlogy(_counts(groups, rate), code.frequency).sum()
    outliers = groups[:, -1, 0].sum() * (rate.outlier_bits or 0.0) * NATS
    return float(_distortion(groups, code.codebook).sum() + rate.lambda_ * (nats + outliers))


def _distortion(groups: Tensor, book: Codebook[Tensor]) -> Tensor:
    """[L] sum of D over the weights that are not outliers."""
    n, t, u, c = groups[:, :-1].unbind(2)
    var = book.sigma.square()
    return (0.5 * (var + book.mu.square()) * t - book.mu * u - 0.5 * var.log() * n + c).sum(1)


def priced(groups: Tensor, code: RateCode, history: list[float], converged: bool) -> CodebookFit:
    n = groups[..., 0]
    bits = (torch.special.xlogy(n.sum(1), n.sum(1)) - torch.special.xlogy(n, n).sum(1)) / NATS
    return CodebookFit(code, _distortion(groups, code.codebook), bits, n[:, -1], tuple(history), converged)
