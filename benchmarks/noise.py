"""How fast noise is drawn in training and, as the file format defines it, in prediction; relative to torch.randn."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from pocketbayes.drawing import WhichDraw, WordStream, tensor_number
from pocketbayes.moments import Moments
from pocketbayes.noise import (
    Bimodal,
    Empirical,
    Gaussian,
    GaussianMixture,
    Laplace,
    Law,
    Logistic,
    QuantileTable,
    SkewNormal,
    StudentT,
    TwoPoint,
    Uniform,
    averaged,
)
from pocketbayes.noise.counter import HostStream

# How often each size is drawn, the best time counting: a ResNet-20 layer, a ResNet-18 layer, all of ResNet-18.
ROUNDS = {36_864: 200, 589_824: 60, 11_173_962: 9}
SIZES = tuple(ROUNDS)


def run() -> None:
    """Both tables."""
    training()
    prediction()


def prediction() -> None:
    """Print how long the format's draws of all of ResNet-18 take, by torch and by numpy alone, one thread and two."""
    like = torch.empty(SIZES[-1])
    laws = [Gaussian(), TwoPoint(), Laplace(), Bimodal(0.9), averaged(TwoPoint(), 4)]
    before = torch.get_num_threads()
    title = f"the format's draws, {like.numel():,} of them: time relative to torch.randn"
    table = Table("family", title=title)
    for threads in (1, 2):
        for library in ("torch", "numpy"):
            table.add_column(f"{library}, {threads} threads", justify="right")
    columns = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        columns += [_ratios([partial(_in_torch, law, like) for law in laws], like)]
        columns += [_ratios([partial(_in_numpy, law, like.numpy()) for law in laws], like)]
    torch.set_num_threads(before)
    for law, ratios in zip(laws, zip(*columns, strict=True), strict=True):
        table.add_row(type(law).__name__, *(f"{ratio:.2f} x" for ratio in ratios))
    Console().print(table)


def _ratios(draws: list[Callable[[], Any]], like: torch.Tensor) -> list[float]:
    randn, *times = _best_times(draws, like)
    return [seconds / randn for seconds in times]


def _in_torch(law: Law, like: torch.Tensor) -> torch.Tensor:
    return law.z(HostStream(WhichDraw.of(0, 0), tensor=tensor_number("weight")), like, like)


def _in_numpy(law: Law, like: np.ndarray) -> np.ndarray:
    return law.shape.z(WordStream(WhichDraw.of(0, 0), tensor=tensor_number("weight")), Moments(like, like))


def training() -> None:
    """Print nanoseconds per randn, and for each family the ratio to it: best of several interleaved rounds."""
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.empty(size) for size in SIZES]
    laws = _laws()
    rows = [_best_times([partial(law.sample_like, x, generator) for law in laws], x) for x in tensors]
    table = Table(title=f"drawing noise, {torch.get_num_threads()} threads: time relative to torch.randn")
    for heading in ("family", *(f"{size:,} draws" for size in SIZES)):
        table.add_column(heading, justify="left" if heading == "family" else "right")
    table.add_row(
        "torch.randn", *(f"{1e9 * times[0] / size:.2f} ns" for times, size in zip(rows, SIZES, strict=True))
    )
    for i, law in enumerate(laws, start=1):
        table.add_row(type(law).__name__, *(f"{times[i] / times[0]:.2f} x" for times in rows))
    Console().print(table)


def _laws() -> list[Law]:
    reads = np.random.default_rng(0).gamma(2.0, size=20_000)
    mixture = GaussianMixture((0.3, 0.5, 0.2), (-2.0, 0.0, 4.0), (0.5, 1.0, 0.2))
    smooth = [
        Gaussian(),
        Uniform(),
        Laplace(),
        Logistic(),
        StudentT(3.0),
        SkewNormal(4.0),
        Bimodal(0.9),
        mixture,
    ]
    return [*smooth, QuantileTable.of(reads), Empirical(reads), TwoPoint()]


def _best_times(draws: list[Callable[[], Any]], like: torch.Tensor) -> list[float]:
    """Seconds for torch.randn and for each way of drawing, the shortest of interleaved rounds."""
    generator = torch.Generator().manual_seed(0)
    calls = [lambda: torch.randn(like.shape, generator=generator), *draws]
    for call in calls:
        call()
    best = [float("inf")] * len(calls)
    for _ in range(ROUNDS[like.numel()]):
        for i, call in enumerate(calls):
            start = time.perf_counter()
            call()
            best[i] = min(best[i], time.perf_counter() - start)
    return best


if __name__ == "__main__":
    run()
