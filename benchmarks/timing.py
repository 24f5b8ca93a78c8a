"""Timing several things fairly: by turns, so that noise on the machine hits all alike; medians of their ratios."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def seconds(function: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    start = clock()
    function()
    return clock() - start


def compare(
    functions: Mapping[str, Callable[[], object]],
    rounds: int = 7,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each function in each round, after one round to warm up."""
    for function in functions.values():
        function()
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            times[name].append(seconds(function, clock))
    return times


def ratio(times: dict[str, list[float]], name: str, to: str) -> float:
    """The median over the rounds of time(name) / time(to)."""
    return statistics.median(a / b for a, b in zip(times[name], times[to], strict=True))


def milliseconds(times: dict[str, list[float]], name: str) -> float:
    return 1e3 * statistics.median(times[name])
