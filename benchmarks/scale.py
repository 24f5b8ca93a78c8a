"""Sharing at the size of the largest networks: seconds beside those it may take on two cores, and a billion weights.

Every row is a process of its own.  The billion is never held: layer after layer is made, counted and forgotten.
"""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks import rate, sharing
from benchmarks.sharing import draw, timed
from pocketbayes.sharing import Mixture, fit_mixture, make_grid, make_histogram
from pocketbayes.sharing.histogram import WeightHistogram
from pocketbayes.sharing.mixture import top_components

LAYER = 10_000_000  # weights, of the streamed network
LAYERS = 100
COMPONENTS = 2000


class Row(NamedTuple):
    """What one method took."""

    weights: int
    seconds: dict[str, float]
    cpu: float  # of all threads together: what a busy machine cannot stretch
    memory: float  # bytes at the peak beyond the weights


class Streamed:
    """Layers of one shape of law and different scales, made anew each time they are read."""

    def __init__(self, layers: int) -> None:
        self.layers = layers
        mu, sigma = zip(*draw(LAYER), strict=True)
        self.mu, self.sigma = torch.cat(mu), torch.cat(sigma)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for layer in range(self.layers):
            scale = math.exp(math.sin(layer))
            yield self.mu * scale, self.sigma * scale


def by_rate(n: int) -> Row:
    row = rate.measure(n)
    return Row(n, row.seconds, row.cpu, row.memory)


def by_mixture(n: int) -> Row:
    row = sharing.pocketbayes(n, COMPONENTS)
    own = {name: s for name, s in row.seconds.items() if not name.endswith("(apart)")}
    return Row(n, own, row.cpu, row.memory)


def streamed(layers: int) -> Row:
    """Histogram, mixture and labels; the memory is all that there is."""
    with timed() as stage:
        weights = Streamed(layers)
        grid = stage("grid", lambda: make_grid(weights))
        histogram = stage("histogram", lambda: make_histogram(weights, grid))
        fit = stage("mixture", lambda: fit_mixture(histogram.atoms(), COMPONENTS))
        stage("labels", lambda: labelled(fit.mixture, histogram, weights))
    return Row(layers * LAYER, stage.seconds, stage.cpu, stage.memory)


def labelled(mixture: Mixture, histogram: WeightHistogram, weights: Streamed) -> Tensor:
    """How many weights each component has, counted layer by layer."""
    best = top_components(mixture, histogram.atoms(), 1)[0][:, 0].to(torch.int16)
    count = torch.zeros(mixture.components, dtype=torch.int64)
    for labels in histogram.lookup(best, weights):
        count += torch.bincount(labels.int(), minlength=mixture.components)
    return count


CASES: tuple[tuple[str, Callable[[int], Row], int, str], ...] = (
    ("Rate, K = 64", by_rate, 25_000_000, "10 s"),
    ("Rate, K = 64", by_rate, 86_000_000, "30 s"),
    ("mixture, K = 2000", by_mixture, 86_000_000, "3 s"),
    ("mixture, K = 2000, streamed", streamed, LAYERS, "2 GB"),
)


def run() -> None:
    table = Table(
        "how", "weights", "seconds", "CPU s", "steps", "peak MB", "may take", title="Sharing at scale"
    )
    for name, measure, size, limit in CASES:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            row = process.submit(measure, size).result()
        table.add_row(
            name,
            f"{row.weights:,}",
            f"{sum(row.seconds.values()):.1f}",
            f"{row.cpu:.1f}",
            ", ".join(f"{step} {s:.2f}" for step, s in row.seconds.items()),
            f"{row.memory / 1e6:.0f}",
            limit,
        )
    Console(width=160).print(table)
