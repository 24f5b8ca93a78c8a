"""Scores of logits: as they are, and divided by a temperature that every fourth image chose."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import pocketbayes as pb

EVERY = 4


@torch.no_grad()
def logits_of(model: nn.Module, batches: Iterable[Tensor]) -> Tensor:
    """[N, classes] of one pass through the means."""
    model.eval()
    with pb.mean_weights(model):
        return torch.cat([model(x).float() for x in batches])


def scores(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Accuracy and NLL of all images, and the calibrated NLL of those that did not choose the temperature."""
    chose = torch.arange(len(labels)) % EVERY == 0
    temperature = best_temperature(logits[chose], labels[chose])
    return {
        "accuracy": float((logits.argmax(1) == labels).float().mean()),
        "nll": float(cross_entropy(logits, labels)),
        "calibrated_nll": float(cross_entropy(logits[~chose] / temperature, labels[~chose])),
        "temperature": temperature,
    }


def best_temperature(logits: Tensor, labels: Tensor) -> float:
    """That of the least NLL, between 1/8 and 8."""
    found = minimize_scalar(
        lambda log_t: float(cross_entropy(logits / math.exp(log_t), labels)),
        bounds=(-math.log(8), math.log(8)),
        method="bounded",
    )
    return math.exp(found.x)


def paired(hits: Sequence[int], others: Sequence[int]) -> tuple[float, float]:
    """How much more of the same images are right, and the standard error of that."""
    gap = np.array(hits, float) - np.array(others, float)
    return float(gap.mean()), float(gap.std() / math.sqrt(len(gap)))


def percent(row: Mapping[str, float]) -> str:
    """Accuracy as tables have it."""
    return f"{100 * row['accuracy']:.2f}"
