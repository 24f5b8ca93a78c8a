"""`pocketbayes bench`: what a prediction with S draws costs on this machine, against one plain pass."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import typer

from pocketbayes.arrays import Array
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
    that a draw costs as much as a plain pass. Where torch is absent ONNX Runtime makes the passes.
    """
    from pocketbayes.runtime.choice import has_torch

    if given.samples == "auto":
        raise typer.BadParameter("--samples auto depends on the inputs, which bench makes up: give a number")
    if given.file is None and (given.net is None or given.shape is None):
        raise typer.BadParameter("give a pocket FILE, or --net and --shape")
    in_torch = given.file is None or given.net is not None or has_torch()
    subject = _in_torch(given) if in_torch else _in_onnx(given)
    result: dict[str, Any] = {
        "file": None if given.file is None else str(given.file),
        "net": given.net,
        "runtime": "torch" if in_torch else "onnx",
        "shape": list(subject.shape),
        "samples": given.samples,
        "threads": subject.threads,
        "predictions": [_measure(subject, batch, given) for batch in given.batch_sizes],
        "reading": None if given.file is None else _reading(given.file, subject.load, given.rounds),
    }
    return Outcome(result, lambda: _show(result))


class Subject(NamedTuple):
    """What is timed."""

    shape: tuple[int, ...]  # of one input
    threads: int
    networks: int  # that an answer averages
    passes: Callable[[Array], dict[str, Callable[[], object]]]  # plain, mean and draws of the same inputs
    load: Callable[[], object]  # from the file


def _in_torch(given: BenchOptions) -> Subject:
    """A posterior in torch, from its file or new."""
    import torch

    from pocketbayes.posterior.convert import to_deterministic
    from pocketbayes.prediction.ensemble import Ensemble

    model, shape = _posterior(given)
    plain = to_deterministic(model).eval()
    assert given.samples != "auto"
    means, ensemble = (Ensemble(model, samples=s, seed=given.seed) for s in ("mean", given.samples))

    def passes(array: Array) -> dict[str, Callable[[], object]]:
        x = torch.from_numpy(array)
        return {
            "plain": torch.no_grad()(lambda: plain(x)),
            "mean": lambda: list(means.outputs(x)),
            "draws": lambda: list(ensemble.outputs(x)),
        }

    def load() -> object:
        return None if given.file is None else opened(given.file, given.net)

    return Subject(shape, int(torch.get_num_threads()), ensemble.samples, passes, load)


def _posterior(given: BenchOptions) -> tuple[nn.Module, tuple[int, ...]]:
    """With the shape of its inputs."""
    from pocketbayes import nets
    from pocketbayes.posterior.convert import bayesianize

    if given.file is not None:
        found = opened(given.file, given.net)
        return found.model, found.card.shape
    assert given.net is not None and given.shape is not None
    function = builder(given.net)
    arguments = nets.taken(function, nets.facts_of(given.shape))
    return bayesianize(function(**arguments)).eval(), tuple(given.shape)


def _in_onnx(given: BenchOptions) -> Subject:
    """A file's graph in ONNX Runtime; the plain network is a session with the means inside."""
    from pocketbayes.artifact.dense import mean_weights
    from pocketbayes.artifact.portable import portable
    from pocketbayes.runtime import graph_predictor
    from pocketbayes.runtime.networks import plain_session

    file = given.file
    assert file is not None
    model = graph_predictor.open(file)
    networks, batch_size = model.networks, model.batch_size
    plain = plain_session(portable(networks.pocket, mean_weights(networks.pocket)))
    means, draws = (model.networks_of(samples, given.seed) for samples in ("mean", given.samples))

    def passes(x: Array) -> dict[str, Callable[[], object]]:
        return {
            "plain": lambda: plain.run(None, {networks.graph.inputs[0].name: x}),
            "mean": lambda: list(networks.outputs(x, means, batch_size)),
            "draws": lambda: list(networks.outputs(x, draws, batch_size)),
        }

    return Subject(model.card.shape, networks.threads, len(draws), passes, lambda: graph_predictor.open(file))


def _reading(file: Path, load: Callable[[], object], rounds: int) -> dict[str, float]:
    """Seconds that it takes to read a file."""
    from pocketbayes.artifact import decode

    times = by_turns({"decode": lambda: decode(file), "load": load}, rounds)
    return {f"{name}_seconds": statistics.median(values) for name, values in times.items()}


def _measure(subject: Subject, batch: int, given: BenchOptions) -> dict[str, Any]:
    rng = np.random.default_rng(given.seed)
    passes = subject.passes(rng.standard_normal((batch, *subject.shape), np.float32))
    started = time.perf_counter()
    passes["draws"]()  # makes the draws, once for all batches
    first = time.perf_counter() - started
    times = by_turns(passes, given.rounds)
    mean, ratio = (
        statistics.median(t / p for p, t in zip(times["plain"], times[way], strict=True))
        for way in ("mean", "draws")
    )
    return {
        "batch_size": batch,
        "plain_seconds": statistics.median(times["plain"]),
        "seconds": statistics.median(times["draws"]),
        "mean_seconds": statistics.median(times["mean"]),
        "first_seconds": first,
        "mean_ratio": mean,
        "ratio": ratio,
        "ratio_per_draw": ratio / subject.networks,
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
    say(f"{result['runtime']}, {result['threads']} thread(s); the first call also makes the draws")
