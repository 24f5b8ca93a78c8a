"""Two plain ways to round a network's weights, which compression is compared with at equal bytes.

A palette of k values for each layer, by k-means, and whole multiples of one step for each output channel.  Both are
entropy-coded as pocket files are, have all other numbers in 16 bits, and their norms' statistics taken anew.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pocketbayes.artifact.codec import encode, layer_of
from pocketbayes.artifact.context import levels_of
from pocketbayes.compression.post_training import renew_norms

BINS = 4096  # of a layer's weights, for k-means
ITERATIONS = 100
FILLED = 0.99  # of the budget is near enough
ROUNDS = 4  # of coding, each nearer to the budget
HALVINGS = 16
NUMBER = 2  # bytes of a number that is not a label


class Rounded(NamedTuple):
    """Whole numbers by layer, the weights they stand for, and how many numbers say so."""

    whole: list[NDArray[np.int32]]
    values: list[Tensor]
    numbers: int

    @property
    def shannon_bytes(self) -> float:
        """Of the labels, each layer for itself."""
        return sum(map(_shannon_bits, self.whole)) / 8


Rounding = Callable[[float], Rounded]  # finer, the larger its argument


def rival(model: nn.Module, rounding: str, max_bytes: int, inputs: Iterable[Any]) -> tuple[nn.Module, int]:
    """A copy of the network, rounded to the budget, and the bytes it takes."""
    weights = rounded_weights(model)
    others = sum(t.numel() for t in model.parameters()) - sum(w.numel() for w in weights.values())
    make, finest = ROUNDINGS[rounding](list(weights.values()))
    found, size = within(make, finest, max_bytes - NUMBER * others)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for name, value in zip(weights, found.values, strict=True):
            twin.get_parameter(name).copy_(value)
    renew_norms(twin, inputs)
    return twin, size + NUMBER * others


def rounded_weights(model: nn.Module) -> dict[str, Tensor]:
    """Matrices and kernels, as in `compress`; biases and norms stay."""
    return {name: p.detach() for name, p in model.named_parameters() if p.dim() > 1}


def within(make: Rounding, finest: float, max_bytes: int) -> tuple[Rounded, int]:
    """The finest rounding found whose labels and numbers take at most so many bytes."""
    goal, best = float(max_bytes), None
    for _ in range(ROUNDS):
        low, high = 0.0, finest
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if make(middle).shannon_bytes <= goal else (low, middle)
        found = make(low)
        size = coded_bytes(found)
        if size <= max_bytes and (best is None or size > best[1]):
            best = found, size
        if FILLED * max_bytes <= size <= max_bytes:
            break
        goal *= (1 + FILLED) / 2 * max_bytes / size
    if best is None:
        raise ValueError(f"rival: {max_bytes:,} bytes are too few for the weights.")
    return best


def coded_bytes(rounded: Rounded) -> int:
    """Bytes of the labels as a pocket file has them, of their tables, and of the numbers they stand for."""
    low, high = min(int(w.min()) for w in rounded.whole), max(int(w.max()) for w in rounded.whole)
    layers = [((w - low).astype(np.uint16).reshape(-1), layer_of(w.shape, w.size)) for w in rounded.whole]
    coded = encode(layers, levels_of(np.arange(low, high + 1)))
    return coded.words.nbytes + coded.tables.nbytes + NUMBER * rounded.numbers


def _shannon_bits(whole: NDArray[np.int32]) -> float:
    n = np.bincount((whole - whole.min()).reshape(-1))
    n = n[n > 0]
    return float(-(n * np.log2(n / n.sum())).sum())


# --- one step for each output channel ----------------------------------------------------------------------------


def uniform(weights: Sequence[Tensor]) -> tuple[Rounding, float]:
    """w = step * whole; a channel's step is the root of its mean square, divided by a number for all."""
    scales = [w.square().flatten(1).mean(1).sqrt().clamp_min(1e-12) for w in weights]
    scales = [s.view(-1, *[1] * (w.dim() - 1)) for s, w in zip(scales, weights, strict=True)]

    def rounded(fineness: float) -> Rounded:
        steps = [s / max(fineness, 1e-3) for s in scales]
        whole = [(w / step).round() for w, step in zip(weights, steps, strict=True)]
        values = [step * k for step, k in zip(steps, whole, strict=True)]
        return Rounded([k.to(torch.int32).numpy() for k in whole], values, sum(s.numel() for s in scales))

    return rounded, 16.0


# --- a palette for each layer ------------------------------------------------------------------------------------


def palette(weights: Sequence[Tensor]) -> tuple[Rounding, float]:
    """w = the nearest of k values of its layer; k + 1 in the first layers, as many as the budget allows."""
    histograms = [_histogram(w) for w in weights]

    @cache
    def means(layer: int, k: int) -> Tensor:
        return k_means(*histograms[layer], k)

    def rounded(fineness: float) -> Rounded:
        k, more = int(fineness) + 1, round(math.modf(fineness)[0] * len(weights))
        palettes = [means(i, k + (i < more)) for i in range(len(weights))]
        whole = [
            torch.bucketize(w, (p[1:] + p[:-1]) / 2, out_int32=True)
            for w, p in zip(weights, palettes, strict=True)
        ]
        values = [p[label] for p, label in zip(palettes, whole, strict=True)]
        centred = [(label - len(p) // 2).numpy() for p, label in zip(palettes, whole, strict=True)]
        return Rounded(centred, values, sum(map(len, palettes)))

    return rounded, 63.0


def k_means(centre: Tensor, count: Tensor, k: int) -> Tensor:
    """[k] sorted means of weighted points in one dimension, by Lloyd's iteration from an even spread."""
    means = torch.linspace(float(centre[0]), float(centre[-1]), k + 2, dtype=torch.float64)[1:-1]
    for _ in range(ITERATIONS):
        label = torch.bucketize(centre, (means[1:] + means[:-1]) / 2)
        n, total = (torch.bincount(label, weights=x, minlength=k) for x in (count, count * centre))
        means = torch.where(n > 0, total / n.clamp_min(1e-9), means)
    return means.sort().values.float()


def _histogram(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Centres and counts of the bins that hold weights."""
    low, high = (float(end) for end in weight.aminmax())
    count = torch.histc(weight, BINS, low, high).double()
    edges = torch.linspace(low, high, BINS + 1, dtype=torch.float64)
    return ((edges[1:] + edges[:-1]) / 2)[count > 0], count[count > 0]


ROUNDINGS: dict[str, Callable[[Sequence[Tensor]], tuple[Rounding, float]]] = {
    "palette": palette,
    "uniform": uniform,
}
