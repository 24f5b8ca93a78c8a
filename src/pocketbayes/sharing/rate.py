"""Sharing as rate and distortion: the fewest label bits for the least loss of free energy.

Replacing a weight's posterior N(mu_i, sigma_i^2) by the shared N(m_k, v_k) costs

    D_ik = 1/2 [ (v_k + (m_k - mu_i)^2) / sigma_i^2 - 1 - ln(v_k / sigma_i^2) ]        nats,

times the weight's importance h_i, and its label costs -ln pi_lk nats in layer l.  Labels, codebook and frequencies
minimise J = sum_i D_ik(i) + lambda * nats of labels.  D is linear in (h, h tau, h tau mu) with tau = 1/sigma^2, so
weights enter as sums of these, one atom may hold many weights, and every sum over a group of weights is exact.

A weight may also be an outlier: it keeps a (mu, sigma) of its own without distortion, for the nats of its bits.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from pocketbayes.errors import ConvergenceWarning
from pocketbayes.sharing import pairwise
from pocketbayes.sharing.evidence import Evidence, all_statistics, by_layer, check, coarsen, gather_evidence
from pocketbayes.sharing.mixture import label_dtype
from pocketbayes.sharing.threads import operators_alone, spread

ROWS = 4096  # atoms compared with the codebook at once
NATS = math.log(2)  # in a bit
ANNEAL = (0.01, 0.1)  # fractions of lambda that come before it
BRACKET = 12  # how many lambda to try downwards


@dataclass(frozen=True, kw_only=True)
class Rate:
    """How much a nat of label may cost, and how the minimum is sought."""

    lambda_: float = 1.0  # lambda: nats of free energy given for one nat of label; larger, smaller file
    components: int = 64  # the most the codebook may have
    outlier_bits: float | None = 32.0  # an outlier's own (mu, sigma) in the file; None: no outliers
    tolerance: float = 1e-4  # stop when an iteration lowers J by a smaller share
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


class Codebook(NamedTuple):
    """Shared (mu, sigma) and how often each layer uses them; the last column is the fraction of outliers."""

    mu: Tensor  # [K] float64
    sigma: Tensor  # [K] float64
    frequency: Tensor  # [L, K + 1] float64, rows sum to one

    @property
    def components(self) -> int:
        return len(self.mu)


class CodebookFit(NamedTuple):
    """A codebook and what it costs.  `history` is J in nats after each assignment."""

    codebook: Codebook
    distortion: Tensor  # [L] nats of free energy lost
    label_bits: Tensor  # [L] Shannon bits of the labels, the outliers' among them
    outliers: Tensor  # [L] how many
    history: tuple[float, ...]
    converged: bool

    def bits(self, outlier_bits: float = 32.0) -> float:
        """Bits of all labels and of the outliers' own values."""
        return float(self.label_bits.sum() + outlier_bits * self.outliers.sum())


class RateSharing(NamedTuple):
    """A fit and the label of every weight, in its layer's shape; label K marks an outlier."""

    fit: CodebookFit
    labels: list[Tensor]

    @property
    def outliers(self) -> list[Tensor]:
        """Masks, True where a weight keeps its own (mu, sigma)."""
        return [label == self.fit.codebook.components for label in self.labels]


@operators_alone()
def fit_codebook(evidence: Evidence, rate: Rate, start: Codebook | None = None) -> CodebookFit:
    """Minimise J by turns over labels, codebook and frequencies, joining components wherever that lowers J.

    Begins with `start`, such as an earlier fit (then the limit on iterations may cut it short without a warning), or
    on coarse atoms with a fine lattice and a lambda that grows: codebooks with few components are better when found
    from many.  J never rises, and the result is a function of the arguments alone.
    """
    if start is not None:
        return _minimise(evidence, reopened(start, evidence.weights), rate)
    rough = coarsen(evidence)
    stages = [_early(rate, share) for share in ANNEAL] + [rate]
    codebook = _first(rough, stages[0])
    for stage in stages:
        codebook = _minimise(rough, reopened(codebook, rough.weights), stage).codebook
    fit = _minimise(evidence, reopened(codebook, evidence.weights), rate)
    if not fit.converged:
        warnings.warn(
            f"fit_codebook: J still falls after {rate.max_iterations} iterations. Raise max_iterations or tolerance.",
            ConvergenceWarning,
            stacklevel=2,
        )
    return fit


def _early(rate: Rate, share: float) -> Rate:
    """A stage with a share of lambda.  Outliers keep their price in free energy: else a small lambda makes them all."""
    bits = None if rate.outlier_bits is None else rate.outlier_bits / share
    return replace(rate, lambda_=rate.lambda_ * share, outlier_bits=bits, tolerance=max(1e-3, rate.tolerance))


def _minimise(evidence: Evidence, codebook: Codebook, rate: Rate) -> CodebookFit:
    history: list[float] = []
    while True:
        groups = _group(evidence, codebook, rate)
        history.append(_objective(groups, codebook, rate))
        groups = groups[:, _used(groups)]
        codebook = _best(groups, rate)
        if len(history) > 1 and history[-2] - history[-1] <= rate.tolerance * abs(history[-1]):
            joined = torch.cat(
                [pairwise.join(groups[:, :-1], rate.lambda_, rate.components), groups[:, -1:]], 1
            )
            if joined.shape == groups.shape:
                return _fit(groups, codebook, history, True)
            groups, codebook = joined, _best(joined, rate)
        if len(history) == rate.max_iterations:
            return _fit(groups, codebook, history, False)


def sweep(evidence: Evidence, lambdas: Sequence[float], rate: Rate) -> list[CodebookFit]:
    """Fits for several lambda, in the order given; each begins from the codebook of the next smaller one."""
    fits: dict[float, CodebookFit] = {}
    for lambda_ in sorted(set(lambdas)):
        _extend(fits, evidence, replace(rate, lambda_=lambda_))
    return [fits[lambda_] for lambda_ in lambdas]


@operators_alone()
def fit_bits(evidence: Evidence, max_bits: float, rate: Rate, *, steps: int = 8) -> tuple[CodebookFit, float]:
    """A fit whose labels and outliers take at most `max_bits`, of the smallest lambda found, and that lambda.

    Brackets it by factors of four from `rate.lambda_` and halves the bracket `steps` times on a log scale.  Much faster
    on `coarsen(evidence)`, from which the bits differ by about a per cent.
    """
    if not max_bits >= 0:
        raise ValueError(f"max_bits: must not be negative, got {max_bits}.")
    fits: dict[float, CodebookFit] = {}

    def within(lambda_: float) -> bool:
        return (
            _extend(fits, evidence, replace(rate, lambda_=lambda_)).bits(rate.outlier_bits or 0.0) <= max_bits
        )

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


def _extend(fits: dict[float, CodebookFit], evidence: Evidence, rate: Rate) -> CodebookFit:
    """One more fit by lambda, from the codebook of the next smaller lambda if there is one."""
    smaller = [known for known in fits if known < rate.lambda_]
    fits[rate.lambda_] = fit_codebook(evidence, rate, fits[max(smaller)].codebook if smaller else None)
    return fits[rate.lambda_]


@operators_alone()
def share_by_rate(
    mu: Sequence[Tensor],
    sigma: Sequence[Tensor],
    rate: Rate,
    importance: Sequence[Tensor] | None = None,
    *,
    start: Codebook | None = None,
) -> RateSharing:
    """Fit a codebook to layers of weights and label every one of them."""
    fit = fit_codebook(gather_evidence(mu, sigma, importance), rate, start)
    return label_weights(fit.codebook, mu, sigma, rate, importance)


@operators_alone()
def label_weights(
    codebook: Codebook,
    mu: Sequence[Tensor],
    sigma: Sequence[Tensor],
    rate: Rate,
    importance: Sequence[Tensor] | None = None,
) -> RateSharing:
    """The best label of each weight, then the codebook, frequencies and costs that belong to these labels.

    Labels are those of the codebook returned, which leaves out components without weights.
    """
    check(mu, sigma, importance)
    if len(codebook.frequency) != len(mu):
        raise ValueError(f"codebook: is for {len(codebook.frequency)} layers, got {len(mu)}.")
    symbols, labels, groups = codebook.components + 1, list[Tensor](), list[Tensor]()
    layers = zip(mu, all_statistics(mu, sigma, importance), _prices(codebook, rate), strict=True)
    for m, pieces, price in layers:
        parts, sums = list[Tensor](), torch.zeros(1, symbols, 5, dtype=torch.float64)
        for phi in pieces:
            best = _assign(phi, price)
            parts.append(best.to(label_dtype(symbols)))
            sums += pairwise.group(phi, torch.zeros_like(best), best, 1, symbols)
        labels.append(torch.cat(parts).view(m.shape))
        groups.append(sums)
    together = torch.cat(groups)
    objective = _objective(together, codebook, rate)
    used = _used(together)
    together, number = together[:, used], used.cumsum(0) - 1
    codebook = _best(together, rate)
    number = number.to(label_dtype(codebook.components + 1))
    labels = [number.index_select(0, label.view(-1).int()).view(label.shape) for label in labels]
    return RateSharing(_fit(together, codebook, [objective], True), labels)


def _first(evidence: Evidence, rate: Rate) -> Codebook:
    """A lattice, joined to no more components than allowed."""
    groups = pairwise.lattice(evidence, rate.lambda_, 4 * rate.components, rare=rate.outlier_bits is None)
    groups = pairwise.join(groups, rate.lambda_, rate.components)
    outliers = groups.new_zeros(evidence.layers, 1, 5)
    return reopened(_best(torch.cat([groups, outliers], 1), rate), evidence.weights)


def reopened(codebook: Codebook, weights: Tensor) -> Codebook:
    """The codebook with one more weight in each layer [L], spread as in all layers: a lost label may return."""
    n = weights[:, None]
    if len(codebook.frequency) != len(n):
        raise ValueError(f"start: is for {len(codebook.frequency)} layers, got {len(n)}.")
    everywhere = (n * codebook.frequency).sum(0) / n.sum()
    return codebook._replace(frequency=(n * codebook.frequency + everywhere) / (n + 1))


def _prices(codebook: Codebook, rate: Rate) -> Tensor:
    """[L, 5, K + 1] theta with phi . theta = D + lambda length; D = (v + m^2) h tau/2 - m h tau mu - h ln v/2 + c."""
    var = codebook.sigma.square()
    theta = torch.stack(
        [-0.5 * var.log(), 0.5 * (var + codebook.mu.square()), -codebook.mu, torch.ones_like(var)]
    )
    theta = torch.cat([theta, theta.new_zeros(4, 1)], 1)  # an outlier has no distortion
    length = -codebook.frequency.log()
    length[:, -1] += math.inf if rate.outlier_bits is None else rate.outlier_bits * NATS
    return torch.cat([rate.lambda_ * length[:, None], theta.expand(len(length), -1, -1)], 1)


def _assign(phi: Tensor, price: Tensor) -> Tensor:
    """[B] the label of least cost for atoms of one layer, price [5, K + 1]."""

    def cheapest(rows: Tensor) -> Tensor:
        return torch.from_numpy((rows @ price).numpy().argmin(1))

    return torch.cat(spread(cheapest, phi.split(ROWS)))


def _group(evidence: Evidence, codebook: Codebook, rate: Rate) -> Tensor:
    """[L, K + 1, 5] the sums of phi by layer and best label."""
    layers = zip(by_layer(evidence), _prices(codebook, rate), strict=True)
    label = torch.cat([_assign(phi, price) for phi, price in layers])
    return pairwise.group(evidence.phi, evidence.layer, label, evidence.layers, codebook.components + 1)


def _used(groups: Tensor) -> Tensor:
    """[K + 1] which components hold weights; the outliers' column stays, and the first if all weights are outliers."""
    used = groups[..., 0].sum(0) > 0
    used[0] |= not bool(used[:-1].any())
    used[-1] = True
    return used


def _best(groups: Tensor, rate: Rate) -> Codebook:
    """The best codebook of given groups: precision-weighted means, harmonic means of variances, frequencies."""
    _, h, t, u, _ = groups[:, :-1].sum(0).unbind(1)
    mu, sigma = torch.where(t > 0, u / t, 0.0), torch.where(t > 0, (h / t).sqrt(), 1.0)
    n = _counts(groups, rate)
    return Codebook(mu, sigma, n / n.sum(1, keepdim=True))


def _counts(groups: Tensor, rate: Rate) -> Tensor:
    """[L, K + 1] weights by label, and one outlier more in each layer, so that outliers stay possible."""
    n = groups[..., 0].clone()
    n[:, -1] += rate.outlier_bits is not None
    return n


def _objective(groups: Tensor, codebook: Codebook, rate: Rate) -> float:
    """J in nats of free energy: distortion and lambda times the nats of labels and outliers."""
    nats = -torch.special.xlogy(_counts(groups, rate), codebook.frequency).sum()
    outliers = groups[:, -1, 0].sum() * (rate.outlier_bits or 0.0) * NATS
    return float(_distortion(groups, codebook).sum() + rate.lambda_ * (nats + outliers))


def _distortion(groups: Tensor, codebook: Codebook) -> Tensor:
    """[L] sum of D over the weights that are not outliers."""
    _, h, t, u, c = groups[:, :-1].unbind(2)
    var = codebook.sigma.square()
    return (0.5 * (var + codebook.mu.square()) * t - codebook.mu * u - 0.5 * var.log() * h + c).sum(1)


def _fit(groups: Tensor, codebook: Codebook, history: list[float], converged: bool) -> CodebookFit:
    n = groups[..., 0]
    bits = (torch.special.xlogy(n.sum(1), n.sum(1)) - torch.special.xlogy(n, n).sum(1)) / NATS
    return CodebookFit(codebook, _distortion(groups, codebook), bits, n[:, -1], tuple(history), converged)
