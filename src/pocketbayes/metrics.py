"""Numbers that say how good predictions are, and how honest: (probs, labels) -> float.

Probabilities are [N, C] with rows that sum to one, labels are integers [N].  Everything is computed in
float64, in nats, and fractions are fractions: an ECE of 0.04 is 4 %.  Bad input is refused with the offending
value and its place.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

# ------------------------------------------------------------------------------------------ classification


def accuracy(probs: Tensor, labels: Tensor) -> float:
    """Fraction of examples whose most probable class is the label (the first one, where several tie)."""
    probs, labels = _checked(probs, labels)
    return _hits(probs, labels).mean().item()


def nll(probs: Tensor, labels: Tensor) -> float:
    """Mean of -ln p(label) in nats.

    A probability that underflowed to zero counts as the smallest normal number of the dtype it came in
    (-ln = 87.3 in float32): one such example is punished heavily but does not make the mean infinite.
    """
    dtype = torch.as_tensor(probs).dtype
    smallest = torch.finfo(dtype if dtype.is_floating_point else torch.float32).tiny
    probs, labels = _checked(probs, labels)
    return -_at(probs, labels).clamp_min(smallest).log().mean().item()


def brier(probs: Tensor, labels: Tensor) -> float:
    """Mean over examples of sum_c (p_c - [c = label])^2, from 0 (sure and right) to 2 (sure and wrong)."""
    probs, labels = _checked(probs, labels)
    return (probs.square().sum(1) - 2.0 * _at(probs, labels) + 1.0).mean().item()


class Reliability(NamedTuple):
    """Bins of equal width over the confidence; an empty bin has size 0 and NaN elsewhere."""

    edges: Tensor  # [B + 1], bin b is (edges[b], edges[b + 1]]
    confidence: Tensor  # [B] mean confidence
    accuracy: Tensor  # [B] fraction right
    size: Tensor  # [B] number of examples


def reliability(probs: Tensor, labels: Tensor, bins: int = 15) -> Reliability:
    """Mean confidence and accuracy in each bin of confidence: the points of a reliability diagram."""
    if bins < 1:
        raise ValueError(f"reliability: bins must be at least 1, got {bins}.")
    probs, labels = _checked(probs, labels)
    confidence = probs.amax(1)  # [N]
    edges = torch.linspace(0.0, 1.0, bins + 1, dtype=torch.float64, device=probs.device)
    which = torch.bucketize(confidence, edges[1:-1])  # [N], bins closed on the right: 1.0 is in the last one
    size = torch.bincount(which, minlength=bins)
    mean_confidence = torch.bincount(which, confidence, minlength=bins) / size
    return Reliability(
        edges, mean_confidence, torch.bincount(which, _hits(probs, labels), minlength=bins) / size, size
    )


def ece(probs: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Expected calibration error as a fraction: sum_b (n_b / N) |accuracy_b - confidence_b|.

    Bins are closed on the right (Guo et al., 2017).  torchmetrics closes them on the left, which leaves
    confidences of exactly 1.0 in a bin of their own; the two agree while no confidence lies on an edge.
    """
    table = reliability(probs, labels, bins)
    gaps = (table.accuracy - table.confidence).abs().nan_to_num(0.0)
    return (gaps * table.size).sum().item() / len(labels)


class ClassConfidence(NamedTuple):
    """Confidence of the examples of each true class; NaN for a class without examples."""

    mean: Tensor  # [C]
    quantiles: Tensor  # [C, 5]: 5, 25, 50, 75 and 95 %, as a box plot wants them
    accuracy: Tensor  # [C]
    size: Tensor  # [C] number of examples


def class_confidence(probs: Tensor, labels: Tensor) -> ClassConfidence:
    """How sure the predictions are, and how right, on the examples of each class."""
    probs, labels = _checked(probs, labels)
    classes = probs.shape[1]
    levels = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95], dtype=torch.float64, device=probs.device)
    confidence, hits = probs.amax(1), _hits(probs, labels)  # [N], [N]
    size = torch.bincount(labels, minlength=classes)
    quantiles = torch.full((classes, len(levels)), math.nan, dtype=torch.float64, device=probs.device)
    for c in size.nonzero().flatten().tolist():
        quantiles[c] = confidence[labels == c].quantile(levels)
    mean = torch.bincount(labels, confidence, minlength=classes) / size
    return ClassConfidence(mean, quantiles, torch.bincount(labels, hits, minlength=classes) / size, size)


# --------------------------------------------------------------------------------------------- uncertainty


class Uncertainty(NamedTuple):
    """total = aleatoric + epistemic, each [N] in nats."""

    total: Tensor  # entropy of the mean prediction
    aleatoric: Tensor  # mean entropy of the draws: noise in the data
    epistemic: Tensor  # mutual information of label and weights: what the network does not know


def entropy(probs: Tensor) -> Tensor:
    """H = -sum_c p_c ln p_c over the last dimension, in nats (0 ln 0 is 0): [..., C] -> [...], float64."""
    return _entropy(_checked_probs(probs))


def uncertainty(draws: Tensor) -> Uncertainty:
    """The split of the predictive entropy from the probabilities of S draws, [S, N, C]."""
    if draws.ndim != 3:
        raise ValueError(f"uncertainty: draws must be [S, N, C], got shape {tuple(draws.shape)}.")
    draws = _checked_probs(draws)
    return uncertainty_from_means(draws.mean(0), _entropy(draws).mean(0))


def uncertainty_from_means(mean_probs: Tensor, mean_entropy: Tensor) -> Uncertainty:
    """The same split from means over the draws: of the probabilities [N, C] and of the entropies [N]."""
    total = entropy(mean_probs)
    if mean_entropy.shape != total.shape:
        raise ValueError(
            f"uncertainty: mean_entropy must be [{len(total)}], got shape {tuple(mean_entropy.shape)}."
        )
    aleatoric = mean_entropy.detach().double().minimum(total)  # Jensen: only rounding can make it larger
    return Uncertainty(total, aleatoric, total - aleatoric)


class RiskCoverage(NamedTuple):
    """Mean loss, the error rate for classes, among the k most confident examples, k = 1..N."""

    coverage: Tensor  # [N], k / N
    risk: Tensor  # [N]


def risk_coverage(probs: Tensor, labels: Tensor, confidence: Tensor | None = None) -> RiskCoverage:
    """The error rate if only the most confident fraction of the examples is answered.

    `confidence` [N] is the largest probability unless given (minus the epistemic uncertainty, say).
    """
    probs, labels = _checked(probs, labels)
    return loss_coverage(1.0 - _hits(probs, labels), probs.amax(1) if confidence is None else confidence)


def loss_coverage(losses: Tensor, confidence: Tensor) -> RiskCoverage:
    """The mean of `losses` [N] over the most confident fraction of the examples.

    Ties are taken in random order, in expectation, so the curve does not depend on how the data are sorted.
    """
    losses, confidence = _finite("losses", losses), _finite("confidence", confidence).to(losses.device)
    if confidence.shape != losses.shape or losses.ndim != 1:
        raise ValueError(f"confidence must be [{len(losses)}], got {tuple(confidence.shape)}.")
    ordered, order = confidence.sort(descending=True)
    group, size = torch.unique_consecutive(ordered, return_inverse=True, return_counts=True)[1:]
    expected = (torch.bincount(group, losses[order]) / size)[group]  # [N], a tied example has its tie's mean
    rank = torch.arange(1, len(losses) + 1, dtype=torch.float64, device=losses.device)
    return RiskCoverage(rank / len(losses), expected.cumsum(0) / rank)


def aurc(probs: Tensor, labels: Tensor, confidence: Tensor | None = None) -> float:
    """Area under the risk-coverage curve: the risk averaged over all coverages k / N.  Lower is better."""
    return risk_coverage(probs, labels, confidence).risk.mean().item()


# ------------------------------------------------------------------- out of distribution: the positive class
# A score is larger the more an input looks OOD (entropy, epistemic uncertainty, minus the confidence).
# Out of distribution is the positive class.  Papers that take in-distribution as positive swap and negate:
# fpr_at_tpr(-scores_out, -scores_in).


def auroc(scores_in: Tensor, scores_out: Tensor) -> float:
    """Area under the ROC curve: P(an OOD input scores higher than one that is not), ties counted half."""
    known, ood = _sorted_scores(scores_in, scores_out)
    below = torch.searchsorted(known, ood) + torch.searchsorted(known, ood, right=True)
    return below.double().mean().item() / (2 * len(known))


def aupr(scores_in: Tensor, scores_out: Tensor) -> float:
    """Average precision with out-of-distribution as the positive class: sum_t (R_t - R_{t-1}) P_t.

    Every OOD input adds 1/n to the recall, so this is the mean of the precision at their own scores.
    """
    known, ood = _sorted_scores(scores_in, scores_out)
    true_positives = len(ood) - torch.searchsorted(ood, ood)
    false_positives = len(known) - torch.searchsorted(known, ood)
    return (true_positives / (true_positives + false_positives).double()).mean().item()


def fpr_at_tpr(scores_in: Tensor, scores_out: Tensor, tpr: float = 0.95) -> float:
    """Fraction of inputs that are not OOD above the highest threshold that flags at least `tpr` of those that are."""
    if not 0.0 < tpr <= 1.0:
        raise ValueError(f"fpr_at_tpr: tpr must be in (0, 1], got {tpr}. Use 0.95 for 95 %.")
    known, ood = _sorted_scores(scores_in, scores_out)
    caught = math.ceil(tpr * len(ood) - 1e-9)  # the slack keeps 0.55 * 100 at 55
    threshold = ood[-max(caught, 1)]
    return (known >= threshold).double().mean().item()


# ---------------------------------------------------------------------------------------------- regression


def rmse(mean: Tensor, targets: Tensor) -> float:
    """Root of the mean squared error over all entries, in the units of the targets."""
    mean, targets = _same_shape(mean, targets)
    return (mean - targets).square().mean().sqrt().item()


def gaussian_nll(mean: Tensor, sigma: Tensor | float, targets: Tensor) -> float:
    """Mean over all entries of -ln N(target | mean, sigma^2), in nats."""
    mean, targets = _same_shape(mean, targets)
    return -_log_normal(targets, mean, _positive(sigma, mean)).mean().item()


def log_predictive_density(
    means: Tensor, sigma: Tensor | float, targets: Tensor, per_output: bool = False
) -> float:
    """Mean over examples of ln (1/S) sum_s N(target | mean_s, sigma^2), in nats; larger is better.

    `means` are S draws of the network's output, [S, N] or [S, N, D], `targets` [N] or [N, D], `sigma` the
    noise, anything that broadcasts to `means`.  With D outputs the density is the joint one; `per_output`
    scores each output on its own, and the mean is over the outputs too.
    """
    means, targets = _finite("means", means), _finite("targets", targets)
    if means.shape[1:] != targets.shape or means.ndim not in (2, 3):
        raise ValueError(
            "log_predictive_density: means must be [S, N] or [S, N, D] and targets the same without S, "
            f"got {tuple(means.shape)} and {tuple(targets.shape)}."
        )
    log_density = _log_normal(targets, means, _positive(sigma, means))  # [S, N] or [S, N, D]
    if means.ndim == 3 and not per_output:
        log_density = log_density.sum(-1)
    return (log_density.logsumexp(0) - math.log(len(means))).mean().item()


def _log_normal(x: Tensor, mu: Tensor, sigma: Tensor) -> Tensor:
    return -0.5 * ((x - mu) / sigma).square() - sigma.log() - 0.5 * math.log(2.0 * math.pi)


# -------------------------------------------------------------------------------------------------- checks


def _hits(probs: Tensor, labels: Tensor) -> Tensor:
    return (probs.argmax(1) == labels).double()


def _entropy(probs: Tensor) -> Tensor:
    terms: Tensor = torch.special.entr(probs)
    return terms.sum(-1)


def _at(probs: Tensor, labels: Tensor) -> Tensor:
    return probs.gather(1, labels[:, None]).squeeze(1)


def _place(bad: Tensor) -> str:
    return ", ".join(str(i) for i in bad.nonzero()[0].tolist())


def _finite(what: str, x: Tensor) -> Tensor:
    """x in float64, refused if empty or not finite."""
    x = torch.as_tensor(x).detach()
    if x.numel() == 0:
        raise ValueError(f"{what}: empty, shape {tuple(x.shape)}. There is nothing to average.")
    x = x.double()
    bad = ~x.isfinite()
    if bad.any():
        raise ValueError(f"{what}[{_place(bad)}] is {x[bad][0].item()}, not a finite number.")
    return x


def _checked_probs(probs: Tensor) -> Tensor:
    """Probabilities [..., C] in float64: finite, none negative, each row summing to one."""
    probs = torch.as_tensor(probs)
    # Rounding each entry of a row to its dtype can move the sum by about one epsilon.
    tolerance = max(1e-4, 4 * torch.finfo(probs.dtype).eps) if probs.dtype.is_floating_point else 1e-4
    probs = _finite("probs", probs)
    if (negative := probs < 0).any():
        raise ValueError(
            f"probs[{_place(negative)}] is negative, got {probs[negative][0].item()}. "
            "These look like logits: apply softmax first."
        )
    sums = probs.sum(-1)
    if (off := (sums - 1.0).abs() > tolerance).any():
        raise ValueError(
            f"probs: row {_place(off) or 0} sums to {sums[off][0].item():.6g}, not to 1. Apply softmax first."
        )
    return probs


def _checked(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities [N, C] in float64 and labels [N] in int64 that fit each other."""
    probs, labels = torch.as_tensor(probs), torch.as_tensor(labels)
    if probs.ndim != 2 or labels.shape != probs.shape[:1]:
        raise ValueError(
            f"probs must be [N, C] and labels [N], got {tuple(probs.shape)} and {tuple(labels.shape)}."
        )
    if torch.is_floating_point(labels) or torch.is_complex(labels) or labels.dtype == torch.bool:
        raise ValueError(f"labels must be class numbers of an integer dtype, got {labels.dtype}.")
    probs, labels = _checked_probs(probs), labels.to(probs.device, torch.int64)
    if (wrong := (labels < 0) | (labels >= probs.shape[1])).any():
        raise ValueError(
            f"labels[{_place(wrong)}] is {labels[wrong][0].item()}, outside 0..{probs.shape[1] - 1} "
            f"for {probs.shape[1]} classes."
        )
    return probs, labels


def _sorted_scores(scores_in: Tensor, scores_out: Tensor) -> tuple[Tensor, Tensor]:
    known, ood = _finite("scores_in", scores_in), _finite("scores_out", scores_out)
    if known.ndim != 1 or ood.ndim != 1:
        raise ValueError(
            f"scores must be [N] and [M], got shapes {tuple(known.shape)} and {tuple(ood.shape)}."
        )
    return known.sort().values, ood.to(known.device).sort().values


def _same_shape(mean: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    mean, targets = _finite("mean", mean), _finite("targets", targets)
    if mean.shape != targets.shape:
        raise ValueError(
            f"mean and targets must have one shape, got {tuple(mean.shape)} and {tuple(targets.shape)}. "
            "Broadcasting [N] against [N, 1] would compare every pair."
        )
    return mean, targets


def _positive(sigma: Tensor | float, like: Tensor) -> Tensor:
    sigma = _finite("sigma", torch.as_tensor(sigma)).to(like.device)
    if (sigma <= 0).any():
        raise ValueError(
            f"sigma must be positive, got {sigma.min().item()}. It is a standard deviation, not a log."
        )
    return sigma
