"""The "not sure" rule: answers below a threshold of confidence, which validation data choose, are not given."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from pocketbayes.prediction.predict import Predictive

_STEPS = 10_000  # a threshold is a multiple of their inverse


class Selective(NamedTuple):
    """What becomes of a data set when only answers of at least this confidence are given."""

    answered: float  # fraction of the examples
    risk: float  # fraction of wrong ones among the answers, NaN without any


def choose_threshold(answer: Predictive, labels: Tensor, max_risk: float | None) -> float:
    """The smallest confidence such that of the answers at or above it at most `max_risk` are wrong.

    Half the error rate by default.  Rounded up to four decimals; 1 where even the surest answers are too often
    wrong.
    """
    confidence, order = answer.confidence.sort(descending=True)
    wrong = (answer.labels != labels)[order].double()
    target = wrong.mean().item() / 2 if max_risk is None else max_risk
    count = wrong.new_ones(len(wrong)).cumsum(0)
    last_of_ties = confidence.diff(append=confidence.new_full((1,), -1.0)) != 0
    good = ((wrong.cumsum(0) / count <= target + 1e-12) & last_of_ties).nonzero()
    if not len(good):
        return 1.0
    return min(_STEPS, math.ceil(float(confidence[good[-1, 0]]) * _STEPS)) / _STEPS


def selective(answer: Predictive, labels: Tensor, threshold: float) -> Selective:
    """How many answers are given at that threshold, and how many of them are wrong."""
    sure = answer.confidence >= threshold
    wrong = answer.labels != labels
    risk = wrong[sure].double().mean().item() if bool(sure.any()) else math.nan
    return Selective(sure.double().mean().item(), risk)
