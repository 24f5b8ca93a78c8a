"""`pocketbayes bench`: what a prediction with S draws costs on this machine, against one plain pass."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pocketbayes.cli.entry import Outcome, command
from pocketbayes.cli.network import builder, opened
from pocketbayes.cli.options import Drawn, Seeded, WithNet, whole_numbers
from pocketbayes.cli.output import console, passes, rows_table, say
from pocketbayes.cli.settings import argument, option

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class BenchOptions(Drawn, WithNet, Seeded):
    """Those of `bench`."""

    file: Path | None = argument("A pocket file.", "[FILE]", None)
    shape: list[int] | None = option(
        None, "Shape of one input; needed for --net without a file.", "C,H,W", parse=whole_numbers
    )
    batch_sizes: list[int] = option("1,128", "Inputs at a time.", "N,N,...", parse=whole_numbers)
    rounds: int = option(7, "Measurements, of which the median counts.", min=1)


@command(
    "bench small.pocket --net mymodel:net",
    "bench --net resnet20 --shape 3,32,32 --samples 30 --batch-sizes 1,128 --json",
)
def bench(given: BenchOptions) -> Outcome:
    """Time a prediction of S draws, and one pass through the means, against one pass of the plain network; and reading.

    They are measured by turns in the same run, so their ratios hold even on a busy machine. A ratio of S would mean
    that a draw costs as much as a plain pass.
    """
    import torch

    if given.samples == "auto":
        raise typer.BadParameter("--samples auto depends on the inputs, which bench makes up: give a number")

    model, shape, reading = _subject(given)
    result: dict[str, Any] = {
        "file": None if given.file is None else str(given.file),
        "net": given.net,
        "shape": list(shape),
        "samples": given.samples,
        "threads": int(torch.get_num_threads()),
        "predictions": [_measure(model, (batch, *shape), given) for batch in given.batch_sizes],
        "reading": reading,
    }
    return Outcome(result, lambda: _show(result))


def _subject(given: BenchOptions) -> tuple[nn.Module, tuple[int, ...], dict[str, float] | None]:
    """A posterior, the shape of its inputs, and the seconds that it takes to read it from its file."""
    from pocketbayes import nets
    from pocketbayes.artifact import decode
    from pocketbayes.posterior.convert import bayesianize

    if (file := given.file) is not None:
        found = opened(file, given.net)
        read = {"decode": lambda: decode(file), "load": lambda: opened(file, given.net)}
        times = by_turns(read, given.rounds)
        reading = {f"{name}_seconds": statistics.median(values) for name, values in times.items()}
        return found.model, found.card.shape, reading
    if given.net is None or given.shape is None:
        raise typer.BadParameter("give a pocket FILE, or --net and --shape")
    function = builder(given.net)
    network = function(**nets.taken(function, nets.facts_of(given.shape)))
    return bayesianize(network).eval(), tuple(given.shape), None


def _measure(model: nn.Module, shape: tuple[int, ...], given: BenchOptions) -> dict[str, Any]:
    import torch

    from pocketbayes.posterior.convert import to_deterministic
    from pocketbayes.prediction.ensemble import Ensemble

    x = torch.randn(shape, generator=torch.Generator().manual_seed(given.seed))
    plain = to_deterministic(model).eval()
    assert given.samples != "auto"
    means, ensemble = (Ensemble(model, samples=s, seed=given.seed) for s in ("mean", given.samples))
    with torch.no_grad():
        started = time.perf_counter()
        list(ensemble.outputs(x))  # makes the draws, once for all batches
        first = time.perf_counter() - started
        asked = {
            "plain": lambda: plain(x),
            "mean": lambda: list(means.outputs(x)),
            "draws": lambda: list(ensemble.outputs(x)),
        }
        times = by_turns(asked, given.rounds)
    mean, ratio = (
        statistics.median(t / p for p, t in zip(times["plain"], times[way], strict=True))
        for way in ("mean", "draws")
    )
    return {
        "batch_size": len(x),
        "plain_seconds": statistics.median(times["plain"]),
        "seconds": statistics.median(times["draws"]),
        "mean_seconds": statistics.median(times["mean"]),
        "first_seconds": first,
        "mean_ratio": mean,
        "ratio": ratio,
        "ratio_per_draw": ratio / ensemble.samples,
    }


def by_turns(functions: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each function in each round, after one round to warm up; what disturbs one disturbs all."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for number in range(rounds + 1):
        for name, function in functions.items():
            started = time.perf_counter()
            function()
            if number:
                times[name].append(time.perf_counter() - started)
    return times


def _show(result: Mapping[str, Any]) -> None:
    draws = passes(result["samples"])
    headings = ("batch", "one plain pass", "the means", "ratio", draws, "ratio", "ratio a draw", "first call")
    rows = (
        (
            f"{p['batch_size']}",
            *(f"{1e3 * p[key]:.2f} ms" for key in ("plain_seconds", "mean_seconds")),
            f"{p['mean_ratio']:.2f}",
            f"{1e3 * p['seconds']:.2f} ms",
            f"{p['ratio']:.1f}",
            f"{p['ratio_per_draw']:.2f}",
            f"{1e3 * p['first_seconds']:.0f} ms",
        )
        for p in result["predictions"]
    )
    console().print(rows_table(headings, rows, left=0))
    if reading := result["reading"]:
        decoding, loading = (1e3 * reading[key] for key in ("decode_seconds", "load_seconds"))
        say(f"reading the file: {decoding:.0f} ms to decode, {loading:.0f} ms with the network built from it")
    say(f"{result['threads']} thread(s); the first call also makes the draws")
