"""`pocketbayes bench`: what a prediction with S draws costs on this machine, against one plain pass."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pocketbayes.cli import options as o
from pocketbayes.cli.card import open_pocket
from pocketbayes.cli.entry import app, examples
from pocketbayes.cli.network import build, builder, facts_of, taken
from pocketbayes.cli.output import console, emit, rows_table, say

if TYPE_CHECKING:
    from torch import nn


@app.command(
    epilog=examples(
        "bench small.pocket", "bench --net resnet20 --shape 3,32,32 --samples 30 --batch-sizes 1,128 --json"
    )
)
def bench(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="A pocket file.", show_default=False)
    ] = None,
    net: o.Net = None,
    shape: Annotated[
        str | None,
        typer.Option("--shape", metavar="C,H,W", help="Shape of one input; needed for --net without a file."),
    ] = None,
    samples: o.Samples = 30,
    batch_sizes: Annotated[
        str, typer.Option("--batch-sizes", metavar="N,N,...", help="Inputs at a time.")
    ] = "1,128",
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, help="Measurements, of which the median counts.")
    ] = 7,
    seed: o.Seed = 0,
    config: o.Config = None,
    as_json: o.AsJson = False,
    debug: o.Debug = False,
) -> None:
    """Time a prediction of S draws against one pass of the plain network, and reading the file.

    Both are measured by turns in the same run, so their ratio holds even on a busy machine. A ratio of S would mean
    that a draw costs as much as a plain pass.
    """
    model, size, reading = _subject(file, net, shape, rounds)
    batches = [_positive(text, "--batch-sizes") for text in batch_sizes.split(",")]
    found = [_measure(model, size, batch, samples, seed, rounds) for batch in batches]
    result: dict[str, Any] = {
        "file": None if file is None else str(file),
        "net": net,
        "shape": list(size),
        "samples": samples,
        "threads": _threads(),
        "predictions": found,
        "reading": reading,
    }
    if as_json:
        emit(result)
    else:
        _show(result)


def _subject(
    file: Path | None, net: str | None, shape: str | None, rounds: int
) -> tuple[nn.Module, tuple[int, ...], dict[str, float] | None]:
    """The posterior to measure, the shape of its inputs, and the seconds it takes to read it from its file."""
    from pocketbayes.posterior.convert import bayesianize

    if file is not None:
        model, card = open_pocket(file, net)
        return model, card.shape, _reading(file, str(card.net), card.args, rounds)
    if net is None or shape is None:
        raise typer.BadParameter("give a pocket FILE, or --net and --shape")
    size = tuple(_positive(text, "--shape") for text in shape.split(","))
    return bayesianize(build(net, taken(builder(net), facts_of(size)))).eval(), size, None


def _measure(
    model: nn.Module, shape: tuple[int, ...], batch: int, samples: int, seed: int, rounds: int
) -> dict[str, Any]:
    import torch

    from pocketbayes.posterior.convert import to_deterministic
    from pocketbayes.prediction.ensemble import Ensemble

    x = torch.randn(batch, *shape, generator=torch.Generator().manual_seed(seed))
    plain, ensemble = to_deterministic(model).eval(), Ensemble(model, samples=samples, seed=seed)
    with torch.no_grad():
        started = time.perf_counter()
        list(ensemble.outputs(x))  # makes the draws, once for all batches
        first = time.perf_counter() - started
        times = by_turns({"plain": lambda: plain(x), "draws": lambda: list(ensemble.outputs(x))}, rounds)
    ratio = statistics.median(d / p for p, d in zip(times["plain"], times["draws"], strict=True))
    return {
        "batch_size": batch,
        "plain_seconds": statistics.median(times["plain"]),
        "seconds": statistics.median(times["draws"]),
        "first_seconds": first,
        "ratio": ratio,
        "ratio_per_draw": ratio / samples,
    }


def _reading(file: Path, net: str, args: Mapping[str, Any], rounds: int) -> dict[str, float]:
    """Median seconds to decode the file without torch, and to load it into the network."""
    from pocketbayes.artifact import decode
    from pocketbayes.artifact.store import load

    times = by_turns({"decode": lambda: decode(file), "load": lambda: load(file, build(net, args))}, rounds)
    return {f"{name}_seconds": statistics.median(values) for name, values in times.items()}


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
    headings = (
        "batch",
        "one plain pass",
        f"{result['samples']} draws",
        "ratio",
        "ratio a draw",
        "first call",
    )
    rows = (
        (
            f"{p['batch_size']}",
            *(f"{1e3 * p[key]:.2f} ms" for key in ("plain_seconds", "seconds")),
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


def _threads() -> int:
    import torch

    return int(torch.get_num_threads())


def _positive(text: str, option: str) -> int:
    if not text.strip().isdigit() or int(text) < 1:
        raise typer.BadParameter(f"{option}: write positive whole numbers with commas, got {text!r}")
    return int(text)
