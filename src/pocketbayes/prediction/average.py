"""Means over draws, and answers put together from batches; of tensors, or of arrays where there is no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from pocketbayes import metrics
from pocketbayes.arrays import namespace
from pocketbayes.prediction.answer import Predictive, Regression

Answer = TypeVar("Answer", Predictive, Regression)
BY_DRAW = ("draws", "sigmas")  # [S, N, ...]; all else has the examples first


def of_classes(draws: Iterable[Any], *, keep: bool) -> Predictive:
    """From the probabilities [N, C] of each draw, float64; nothing of size S is held unless asked for."""
    probs: Any = 0.0
    entropies: Any = 0.0
    kept, count = [], 0
    for p in draws:
        probs, entropies, count = probs + p, entropies + metrics.entropy_of(p), count + 1
        if keep:
            kept.append(p)
    mean = probs / count
    split = metrics.uncertainty_from_means(mean, entropies / count)
    return Predictive(
        probs=mean,
        entropy=split.total,
        aleatoric=split.aleatoric,
        epistemic=split.epistemic,
        draws=namespace(mean).stack(kept) if keep else None,
    )


def of_normals(draws: Iterable[tuple[Any, Any]], *, keep: bool) -> Regression:
    """From the mean and the sigma of each draw, [N, ...], float64: the variance is E[sigma^2] + Var[mean]."""
    pairs = list(draws)
    xp = namespace(pairs[0][0])
    means, sigmas = xp.stack([mean for mean, _ in pairs]), xp.stack([sigma for _, sigma in pairs])
    mean = means.mean(0)
    epistemic = ((means - mean) ** 2).mean(0)
    return Regression(
        mean=mean,
        var=epistemic + (sigmas**2).mean(0),
        epistemic_var=epistemic,
        draws=means if keep else None,
        sigmas=sigmas if keep else None,
    )


def join(parts: Sequence[Answer]) -> Answer:
    """One answer of those to several batches."""
    first = parts[0]
    known = [f.name for f in fields(first) if getattr(first, f.name) is not None]
    xp = namespace(getattr(first, known[0]))
    return type(first)(
        **{name: xp.concat([getattr(p, name) for p in parts], int(name in BY_DRAW)) for name in known}
    )
