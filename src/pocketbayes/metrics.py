"""Numbers that say how good predictions are, and how honest: (probs, labels) -> float.

Probabilities are [N, C] with rows that sum to one, labels are integers [N].  Everything is computed in
float64, in nats, and fractions are fractions: an ECE of 0.04 is 4 %.  Bad input is refused with the offending
value and its place.  Tensors and numpy arrays are taken alike, and what is no float comes back as what was given.

Examples:
    >>> probs, labels = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]]), np.array([0, 1, 1])
    >>> round(pb.metrics.accuracy(probs, labels), 3), round(pb.metrics.nll(probs, labels), 3)
    (0.667, 0.415)
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from pocketbayes.arrays import Array, finfo, like, namespace, to_numpy

if TYPE_CHECKING:
    from torch import Tensor

    Values: TypeAlias = Tensor | Array

# ------------------------------------------------------------------------------------------ classification


def accuracy(probs: Values, labels: Values) -> float:
    """Fraction of examples whose most probable class is the label (the first one, where several tie)."""
    return float(_hits(*_checked(probs, labels)).mean())


def nll(probs: Values, labels: Values) -> float:
    """Mean of -ln p(label) in nats.

    A probability that underflowed to zero counts as the smallest normal number of the dtype it came in
    (-ln = 87.3 in float32): one such example is punished heavily but does not make the mean infinite.
    """
    return float(-np.log(np.maximum(_at(*_checked(probs, labels)), finfo(probs).tiny)).mean())


def brier(probs: Values, labels: Values) -> float:
    """Mean over examples of sum_c (p_c - [c = label])^2, from 0 (sure and right) to 2 (sure and wrong)."""
    p, y = _checked(probs, labels)
    return float(((p * p).sum(1) - 2.0 * _at(p, y) + 1.0).mean())


class Reliability(NamedTuple):
    """Bins of equal width over the confidence; an empty bin has size 0 and NaN elsewhere."""

    edges: Tensor  # [B + 1], bin b is (edges[b], edges[b + 1]]
    confidence: Tensor  # [B] mean confidence
    accuracy: Tensor  # [B] fraction right
    size: Tensor  # [B] number of examples


def reliability(probs: Values, labels: Values, bins: int = 15) -> Reliability:
    """Mean confidence and accuracy in each bin of confidence: the points of a reliability diagram."""
    return Reliability(*(like(part, probs) for part in _reliability(probs, labels, bins)))


def _reliability(probs: Any, labels: Any, bins: int) -> tuple[Array, Array, Array, Array]:
    if bins < 1:
        raise ValueError(f"reliability: bins must be at least 1, got {bins}.")
    p, y = _checked(probs, labels)
    confidence = p.max(1)  # [N]
    edges = np.linspace(0.0, 1.0, bins + 1)
    which = np.searchsorted(edges[1:-1], confidence)  # [N], bins closed on the right: 1.0 is in the last one
    means = (_means(which, values, bins) for values in (confidence, _hits(p, y)))
    return edges, *means, np.bincount(which, minlength=bins)  # type: ignore[return-value]


def _means(group: Array, values: Array, groups: int) -> Array:
    """The mean of the values in each group, NaN where there is none: [groups]."""
    with np.errstate(invalid="ignore"):
        return np.bincount(group, values, groups) / np.bincount(group, minlength=groups)


def ece(probs: Values, labels: Values, bins: int = 15) -> float:
    """Expected calibration error as a fraction: sum_b (n_b / N) |accuracy_b - confidence_b|.

    Bins are closed on the right (Guo et al., 2017).  torchmetrics closes them on the left, which leaves
    confidences of exactly 1.0 in a bin of their own; the two agree while no confidence lies on an edge.
    """
    _, confidence, right, size = _reliability(probs, labels, bins)
    return float((np.nan_to_num(np.abs(right - confidence)) * size).sum() / size.sum())


class ClassConfidence(NamedTuple):
    """Confidence of the examples of each true class; NaN for a class without examples."""

    mean: Tensor  # [C]
    quantiles: Tensor  # [C, 5]: 5, 25, 50, 75 and 95 %, as a box plot wants them
    accuracy: Tensor  # [C]
    size: Tensor  # [C] number of examples


def class_confidence(probs: Values, labels: Values) -> ClassConfidence:
    """How sure the predictions are, and how right, on the examples of each class."""
    p, y = _checked(probs, labels)
    classes, confidence = p.shape[1], p.max(1)
    quantiles = np.full((classes, 5), np.nan)
    for c in np.unique(y):
        quantiles[c] = np.quantile(confidence[y == c], [0.05, 0.25, 0.5, 0.75, 0.95])
    size = np.bincount(y, minlength=classes)
    parts = _means(y, confidence, classes), quantiles, _means(y, _hits(p, y), classes), size
    return ClassConfidence(*(like(part, probs) for part in parts))


# --------------------------------------------------------------------------------------------- uncertainty


class Uncertainty(NamedTuple):
    """total = aleatoric + epistemic, each [N] in nats."""

    total: Tensor  # entropy of the mean prediction
    aleatoric: Tensor  # mean entropy of the draws: noise in the data
    epistemic: Tensor  # mutual information of label and weights: what the network does not know


def entropy(probs: Values) -> Tensor:
    """H = -sum_c p_c ln p_c over the last dimension, in nats (0 ln 0 is 0): [..., C] -> [...], float64."""
    found: Tensor = like(entropy_of(_checked_probs(probs)), probs)
    return found


def entropy_of(probs: Any) -> Any:
    """The same of an array or a tensor of probabilities that need no check, where it lies and in its own type."""
    return -(probs * namespace(probs).log(namespace(probs).where(probs > 0, probs, 1.0))).sum(-1)


def uncertainty(draws: Values) -> Uncertainty:
    """The split of the predictive entropy from the probabilities of S draws, [S, N, C]."""
    if draws.ndim != 3:
        raise ValueError(f"uncertainty: draws must be [S, N, C], got shape {tuple(draws.shape)}.")
    p = _checked_probs(draws)
    return uncertainty_from_means(like(p.mean(0), draws), like(entropy_of(p).mean(0), draws))


def uncertainty_from_means(mean_probs: Values, mean_entropy: Values) -> Uncertainty:
    """The same split from means over the draws: of the probabilities [N, C] and of the entropies [N]."""
    total = to_numpy(entropy_of(like(_checked_probs(mean_probs), mean_probs)))  # as of each draw, to the bit
    if tuple(mean_entropy.shape) != total.shape:
        raise ValueError(
            f"uncertainty: mean_entropy must be [{len(total)}], got shape {tuple(mean_entropy.shape)}."
        )
    aleatoric = np.minimum(to_numpy(mean_entropy), total)  # Jensen: only rounding can make it larger
    return Uncertainty(*(like(part, mean_probs) for part in (total, aleatoric, total - aleatoric)))


class RiskCoverage(NamedTuple):
    """Mean loss, the error rate for classes, among the k most confident examples, k = 1..N."""

    coverage: Tensor  # [N], k / N
    risk: Tensor  # [N]


def risk_coverage(probs: Values, labels: Values, confidence: Values | None = None) -> RiskCoverage:
    """The error rate if only the most confident fraction of the examples is answered.

    `confidence` [N] is the largest probability unless given (minus the epistemic uncertainty, say).
    """
    p, y = _checked(probs, labels)
    wrong = like(1.0 - _hits(p, y), probs)
    return loss_coverage(wrong, like(p.max(1), probs) if confidence is None else confidence)


def loss_coverage(losses: Values, confidence: Values) -> RiskCoverage:
    """The mean of `losses` [N] over the most confident fraction of the examples.

    Ties are taken in random order, in expectation, so the curve does not depend on how the data are sorted.
    """
    each, sure = _finite("losses", losses), _finite("confidence", confidence)
    if sure.shape != each.shape or each.ndim != 1:
        raise ValueError(f"confidence must be [{len(each)}], got {sure.shape}.")
    order = np.argsort(-sure)
    group = np.cumsum(np.diff(sure[order], prepend=sure[order[0]]) != 0)  # [N], the number of its tie
    expected = _means(group, each[order], group[-1] + 1)[group]  # [N], a tied example has its tie's mean
    rank = np.arange(1.0, len(each) + 1)
    return RiskCoverage(*(like(part, losses) for part in (rank / len(each), expected.cumsum() / rank)))


def aurc(probs: Values, labels: Values, confidence: Values | None = None) -> float:
    """Area under the risk-coverage curve: the risk averaged over all coverages k / N.  Lower is better."""
    return float(risk_coverage(probs, labels, confidence).risk.mean())


# ------------------------------------------------------------------- out of distribution: the positive class
# A score is larger the more an input looks OOD (entropy, epistemic uncertainty, minus the confidence).
# Out of distribution is the positive class.  Papers that take in-distribution as positive swap and negate:
# fpr_at_tpr(-scores_out, -scores_in).


def auroc(scores_in: Values, scores_out: Values) -> float:
    """Area under the ROC curve: P(an OOD input scores higher than one that is not), ties counted half."""
    known, ood = _sorted_scores(scores_in, scores_out)
    below = np.searchsorted(known, ood) + np.searchsorted(known, ood, "right")
    return float(below.mean() / (2 * len(known)))


def aupr(scores_in: Values, scores_out: Values) -> float:
    """Average precision with out-of-distribution as the positive class: sum_t (R_t - R_{t-1}) P_t.

    Every OOD input adds 1/n to the recall, so this is the mean of the precision at their own scores.
    """
    known, ood = _sorted_scores(scores_in, scores_out)
    true_positives = len(ood) - np.searchsorted(ood, ood)
    false_positives = len(known) - np.searchsorted(known, ood)
    return float((true_positives / (true_positives + false_positives)).mean())


def fpr_at_tpr(scores_in: Values, scores_out: Values, tpr: float = 0.95) -> float:
    """Fraction of inputs that are not OOD above the highest threshold that flags at least `tpr` of those that are."""
    if not 0.0 < tpr <= 1.0:
        raise ValueError(f"fpr_at_tpr: tpr must be in (0, 1], got {tpr}. Use 0.95 for 95 %.")
    known, ood = _sorted_scores(scores_in, scores_out)
    caught = math.ceil(tpr * len(ood) - 1e-9)  # the slack keeps 0.55 * 100 at 55
    threshold = ood[-max(caught, 1)]
    return float((known >= threshold).mean())


# ---------------------------------------------------------------------------------------------- regression


def rmse(mean: Values, targets: Values) -> float:
    """Root of the mean squared error over all entries, in the units of the targets."""
    m, y = _same_shape(mean, targets)
    return float(np.sqrt(((m - y) ** 2).mean()))


def gaussian_nll(mean: Values, sigma: Values | float, targets: Values) -> float:
    """Mean over all entries of -ln N(target | mean, sigma^2), in nats."""
    m, y = _same_shape(mean, targets)
    return float(-_log_normal(y, m, _positive(sigma)).mean())


def log_predictive_density(
    means: Values, sigma: Values | float, targets: Values, per_output: bool = False
) -> float:
    """Mean over examples of ln (1/S) sum_s N(target | mean_s, sigma^2), in nats; larger is better.

    `means` are S draws of the network's output, [S, N] or [S, N, D], `targets` [N] or [N, D], `sigma` the
    noise, anything that broadcasts to `means`.  With D outputs the density is the joint one; `per_output`
    scores each output on its own, and the mean is over the outputs too.
    """
    m, y = _finite("means", means), _finite("targets", targets)
    if m.shape[1:] != y.shape or m.ndim not in (2, 3):
        raise ValueError(
            "log_predictive_density: means must be [S, N] or [S, N, D] and targets the same without S, "
            f"got {m.shape} and {y.shape}."
        )
    log_density = _log_normal(y, m, _positive(sigma))  # [S, N] or [S, N, D]
    if m.ndim == 3 and not per_output:
        log_density = log_density.sum(-1)
    return float((np.logaddexp.reduce(log_density) - math.log(len(m))).mean())


def _log_normal(x: Array, mu: Array, sigma: Array) -> Array:
    log_p: Array = -0.5 * ((x - mu) / sigma) ** 2 - np.log(sigma) - 0.5 * math.log(2.0 * math.pi)
    return log_p


# -------------------------------------------------------------------------------------------------- checks


def _hits(probs: Array, labels: Array) -> Array:
    hits: Array = (probs.argmax(1) == labels).astype(np.float64)
    return hits


def _at(probs: Array, labels: Array) -> Array:
    return probs[np.arange(len(labels)), labels]


def _place(bad: Array) -> str:
    return ", ".join(str(i) for i in np.argwhere(bad)[0])


def _finite(what: str, given: Any) -> Array:
    """float64, refused if empty or not finite."""
    x = to_numpy(given)
    if x.size == 0:
        raise ValueError(f"{what}: empty, shape {x.shape}. There is nothing to average.")
    x = x.astype(np.float64)
    bad = ~np.isfinite(x)
    if bad.any():
        raise ValueError(f"{what}[{_place(bad)}] is {x[bad][0]}, not a finite number.")
    return x


def _checked_probs(given: Any) -> Array:
    """Probabilities [..., C] in float64: finite, none negative, each row summing to one."""
    # Rounding each entry of a row to its type can move the sum by about one epsilon.
    tolerance = max(1e-4, 4 * float(finfo(given).eps))
    probs = _finite("probs", given)
    if (negative := probs < 0).any():
        raise ValueError(
            f"probs[{_place(negative)}] is negative, got {probs[negative][0]}. "
            "These look like logits: apply softmax first."
        )
    sums = probs.sum(-1)
    if (off := np.abs(sums - 1.0) > tolerance).any():
        raise ValueError(
            f"probs: row {_place(off) or 0} sums to {sums[off][0]:.6g}, not to 1. Apply softmax first."
        )
    return probs


def _checked(probs: Any, labels: Any) -> tuple[Array, Array]:
    """Probabilities [N, C] in float64 and labels [N] in int64 that fit each other."""
    p, y = to_numpy(probs), to_numpy(labels)
    if p.ndim != 2 or y.shape != p.shape[:1]:
        raise ValueError(f"probs must be [N, C] and labels [N], got {p.shape} and {y.shape}.")
    if y.dtype.kind not in "iu":
        raise ValueError(f"labels must be class numbers of an integer dtype, got {y.dtype}.")
    p, y = _checked_probs(probs), y.astype(np.int64)
    if (wrong := (y < 0) | (y >= p.shape[1])).any():
        raise ValueError(
            f"labels[{_place(wrong)}] is {y[wrong][0]}, outside 0..{p.shape[1] - 1} for {p.shape[1]} classes."
        )
    return p, y


def _sorted_scores(scores_in: Any, scores_out: Any) -> tuple[Array, Array]:
    known, ood = _finite("scores_in", scores_in), _finite("scores_out", scores_out)
    if known.ndim != 1 or ood.ndim != 1:
        raise ValueError(f"scores must be [N] and [M], got shapes {known.shape} and {ood.shape}.")
    return np.sort(known), np.sort(ood)


def _same_shape(mean: Any, targets: Any) -> tuple[Array, Array]:
    m, y = _finite("mean", mean), _finite("targets", targets)
    if m.shape != y.shape:
        raise ValueError(
            f"mean and targets must have one shape, got {m.shape} and {y.shape}. "
            "Broadcasting [N] against [N, 1] would compare every pair."
        )
    return m, y


def _positive(given: Any) -> Array:
    sigma = _finite("sigma", given)
    if (sigma <= 0).any():
        raise ValueError(f"sigma must be positive, got {sigma.min()}. It is a standard deviation, not a log.")
    return sigma
