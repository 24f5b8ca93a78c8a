"""Averages over draws, and answers put together from batches; of tensors, or of arrays where there is no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Any, Literal, TypeVar

import numpy as np

from pocketbayes import metrics
from pocketbayes.arrays import Array, like, namespace, to_numpy
from pocketbayes.prediction.answer import Predictive, Regression

Answer = TypeVar("Answer", Predictive, Regression)
BY_DRAW = ("draws", "sigmas")  # [S, N, ...]; all else has the examples first
Samples = int | Literal["mean", "auto"]
MOST = 30  # draws of "auto"
TOLERANCE = 0.02  # of "auto": the standard error of an input's probabilities at which it is finished
PAIRED = 0.2  # the variance of a mirrored pair's mean, in that of a draw, before it is known: .5 if they did not mirror
PRIOR_ROUNDS = 2  # how many rounds that guess counts for


def passes(samples: Samples) -> int:
    """How many passes are made at most; a ValueError for what is no number of draws."""
    if isinstance(samples, str) and samples not in ("mean", "auto"):
        raise ValueError(f'samples must be "mean", "auto" or a number of draws, got {samples!r}.')
    if not isinstance(samples, str) and samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}.")
    return {"mean": 1, "auto": MOST}[samples] if isinstance(samples, str) else samples


def tolerance_of(samples: Samples, tolerance: float | None, *, can_stop: bool) -> float | None:
    """The standard error at which an input is finished; None where every input has all draws."""
    found = TOLERANCE if samples == "auto" and tolerance is None else tolerance
    if found is None:
        return None
    if not found > 0:
        raise ValueError(f"tolerance must be positive, got {found}.")
    if samples == "mean":
        raise ValueError('tolerance= is of draws, and samples="mean" makes none. Give one or the other.')
    if not can_stop:
        raise ValueError(
            "Stopping when an input's probabilities are known is for classes, and keeps no draws. "
            'Give a number of draws, or samples="mean".'
        )
    return found


class Sums:
    """Sums over the draws of each row: of its probabilities mode by mode, and of their entropies."""

    def __init__(self, p: Any, modes: int) -> None:
        xp = namespace(p)
        self.of_mode = xp.stack([xp.zeros_like(p)] * modes)  # [M, N, C]
        self.drawn = xp.zeros_like(self.of_mode[:, :, 0], dtype=xp.int64)  # [M, N]
        self.entropies = xp.zeros_like(p[:, 0])  # [N]
        self.number = 0  # of the next draw

    def add(self, p: Any, rows: Any = slice(None)) -> None:
        """The next draw, of these rows, [n, C]."""
        mode = self.number % len(self.drawn)
        self.of_mode[mode][rows] += p
        self.drawn[mode][rows] += 1
        self.entropies[rows] += metrics.entropy_of(p)
        self.number += 1

    @property
    def entropies_of_modes(self) -> Any:
        """The mean over draws of the entropy of their mode, [N]; what it lacks of the entropy of all is I(y; m)."""
        p = self.of_mode / self.drawn.clip(1)[..., None]
        return (self.drawn * metrics.entropy_of(p)).sum(0) / self.drawn.sum(0)

    def answer(self, draws: Any, quantile: float | None) -> Predictive:
        """What the draws say together."""
        count = self.drawn.sum(0)  # [N]
        probs = self.of_mode.sum(0) / count[:, None]
        split = metrics.uncertainty_from_means(probs, self.entropies / count)
        return Predictive(
            probs=probs,
            entropy=split.total,
            aleatoric=split.aleatoric,
            epistemic=split.epistemic,
            passes=count,
            draws=draws,
            quantile=quantile,
            between_modes=split.total - self.entropies_of_modes if len(self.drawn) > 1 else None,
        )


class Rounds(Sums):
    """Sums that know how exact they are after each whole round: a mirrored pair of draws of each mode."""

    def __init__(self, p: Any, modes: int) -> None:
        super().__init__(p, modes)
        xp = namespace(p)
        self.size = 2 * modes
        self.before = xp.zeros_like(p)  # [N, C] sum over the rounds before this one
        self.squares, self.of_rounds = (
            xp.zeros_like(p[:, 0]),
            xp.zeros_like(p[:, 0]),
        )  # of draws, of rounds' means

    @property
    def whole(self) -> bool:
        return self.number % self.size == 0

    def add(self, p: Any, rows: Any = slice(None)) -> None:
        super().add(p, rows)
        self.squares[rows] += (p * p).sum(-1)
        if self.whole:
            total = self.of_mode[:, rows].sum(0)
            mean = (total - self.before[rows]) / self.size
            self.of_rounds[rows] += (mean * mean).sum(-1)
            self.before[rows] = total

    def error(self, rows: Any) -> Array:
        """Standard error of the mean probabilities of rows that had all rounds, as a length over the classes, [n].

        Draws of a round depend on each other, rounds do not, so the variance is that of the rounds' means.  Few of
        them agree by chance too: to begin with there is a guess, from how far draws of one mode are apart.
        """
        rounds = self.number // self.size
        of_mode = self.of_mode[:, rows] / (2 * rounds)
        of_draws = self.squares[rows] / self.number - (of_mode**2).sum(-1).mean(0)
        mean = of_mode.mean(0)
        apart = self.of_rounds[rows] - rounds * (mean**2).sum(-1)  # sum over rounds of |p - mean|^2
        guess = PAIRED * of_draws / len(of_mode)
        variance = (apart + PRIOR_ROUNDS * guess) / (rounds - 1 + PRIOR_ROUNDS)
        return np.sqrt(to_numpy(variance).clip(0) / rounds)


def of_classes(
    draws: Iterable[Any], *, keep: bool = False, quantile: float | None = None, modes: int = 1
) -> Predictive:
    """From the probabilities [N, C] of each draw, float64, of so many modes in turn.

    Nothing of size S is held unless asked for.
    """
    sums, kept = None, []
    for p in draws:
        sums = Sums(p, modes) if sums is None else sums
        sums.add(p)
        if keep:
            kept.append(p)
    assert sums is not None
    return sums.answer(namespace(kept[0]).stack(kept) if keep else None, quantile)


def as_needed(
    draws_of: Callable[[Callable[[], Array]], Iterator[Any]],
    size: int,
    tolerance: float,
    *,
    quantile: float | None = None,
    modes: int = 1,
) -> Predictive:
    """From draws of each of `size` inputs, in whole rounds, until the standard errors of its probabilities are within
    the tolerance.

    `draws_of` is given a function that tells, before each draw, whose probabilities are wanted.
    """
    sums, left = None, np.arange(size)

    def unfinished() -> Array:
        return left

    for p in draws_of(unfinished):
        positions = np.arange(len(p) // len(left))
        rows = like((left[:, None] * len(positions) + positions).reshape(-1), p)
        sums = Rounds(p, modes) if sums is None else sums
        sums.add(p, rows)
        if sums.whole:
            left = left[sums.error(rows).reshape(len(left), -1).max(1) > tolerance]
    assert sums is not None
    return sums.answer(None, quantile)


def of_normals(
    draws: Iterable[tuple[Any, Any]], *, keep: bool = False, quantile: float | None = None, modes: int = 1
) -> Regression:
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
        quantile=quantile,
        between_modes_var=_between(means, modes) if modes > 1 else None,
    )


def _between(means: Any, modes: int) -> Any:
    """The variance of the modes' means, each as often as it was drawn: from [S, N, ...] to [N, ...]."""
    xp = namespace(means)
    averages = xp.stack([means[mode::modes].mean(0) for mode in range(modes)])
    each = averages[xp.arange(len(means)) % modes]
    return ((each - each.mean(0)) ** 2).mean(0)


def join(parts: Sequence[Answer]) -> Answer:
    """One answer of those to several batches."""
    first, found = parts[0], {}
    for name in (f.name for f in fields(first)):
        values = [getattr(part, name) for part in parts]
        whole = values[0] is None or isinstance(values[0], (float, tuple))
        found[name] = values[0] if whole else namespace(values[0]).concat(values, int(name in BY_DRAW))
    return type(first)(**found)
