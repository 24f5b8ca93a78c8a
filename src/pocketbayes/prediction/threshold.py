""" "Not sure": the confidence below which no answer is given, chosen on validation data."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from pocketbayes.arrays import to_numpy
from pocketbayes.prediction.answer import Predictive

STEPS = 10_000  # a threshold is a multiple of their inverse


class Selective(NamedTuple):
    """What becomes of a data set when only answers of at least a certain confidence are given."""

    answered: float  # fraction of the examples
    risk: float  # fraction of wrong ones among the answers, NaN without any


def choose_threshold(answer: Predictive, labels: Any, max_risk: float | None = None) -> float:
    """The smallest confidence such that of the answers at or above it at most `max_risk` are wrong.

    Args:
        answer: predictions of N validation examples.
        labels: their classes, [N].
        max_risk: a fraction; half the error rate by default.

    Returns:
        A probability, rounded up to four decimals; 1 where even the surest answers are too often wrong.

    Examples:
        >>> import torch, pocketbayes as pb
        >>> p = torch.tensor([0.9, 0.8, 0.7, 0.6])
        >>> zeros = torch.zeros(4)
        >>> answer = pb.Predictive(probs=torch.stack([p, 1 - p], 1), entropy=zeros, aleatoric=zeros, epistemic=zeros)
        >>> pb.choose_threshold(answer, torch.tensor([0, 0, 1, 0]), max_risk=0.0)  # the third is wrong
        0.8001
    """
    if max_risk is not None and not 0 <= max_risk <= 1:
        raise ValueError(f"choose_threshold: max_risk is a fraction, from 0 to 1, got {max_risk}.")
    confidence, wrong = to_numpy(answer.confidence), to_numpy(answer.labels) != to_numpy(labels)
    order = np.argsort(-confidence, kind="stable")
    confidence, wrong = confidence[order], wrong[order]
    target = wrong.mean() / 2 if max_risk is None else max_risk
    last_of_ties = np.diff(confidence, append=-1.0) != 0
    risk = np.cumsum(wrong) / np.arange(1, len(wrong) + 1)
    good = np.flatnonzero((risk <= target + 1e-12) & last_of_ties)
    if not len(good):
        return 1.0
    return min(STEPS, math.ceil(float(confidence[good[-1]]) * STEPS)) / STEPS


def selective(answer: Predictive, labels: Any, threshold: float) -> Selective:
    """How many answers are given at that threshold, and how many of them are wrong.

    Args:
        answer: predictions of N examples.
        labels: their classes, [N].
        threshold: the smallest confidence of an answer that is given.

    Returns:
        `answered`, the fraction of the examples, and `risk`, the fraction of wrong ones among the answers.

    Examples:
        >>> import torch, pocketbayes as pb
        >>> p = torch.tensor([0.9, 0.8, 0.7, 0.6])
        >>> zeros = torch.zeros(4)
        >>> answer = pb.Predictive(probs=torch.stack([p, 1 - p], 1), entropy=zeros, aleatoric=zeros, epistemic=zeros)
        >>> pb.selective(answer, torch.tensor([0, 1, 0, 0]), threshold=0.75)  # two are given; one is wrong
        Selective(answered=0.5, risk=0.5)
    """
    sure = to_numpy(answer.confidence) >= threshold
    wrong = (to_numpy(answer.labels) != to_numpy(labels))[sure]
    return Selective(float(sure.mean()), float(wrong.mean()) if len(wrong) else math.nan)
