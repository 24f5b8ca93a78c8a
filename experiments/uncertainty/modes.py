"""Several networks as the modes of one file: ResNet-20/CIFAR-10, two modes in 128 KB and three in 200 KB.

    python -m experiments.uncertainty.modes --data DIR --parts two-modes three-modes

The networks are our own, trained from scratch by `experiments.sharing.train_network` with --seed 0, 1 and 2.  `pb.compress`
makes them the modes of one posterior within one budget, by the recipe of `experiments.sharing.frontier`; all the networks
that there are teach every mode.  Temperatures are fitted to the validation images and written into the file.  The test
images are used once for each file, loaded back from disk: through the means of each mode, and by as many draws as fit
into 8 passes.  Killed and started again, it goes on where it was.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import pocketbayes as pb
from experiments.markdown import cost, measured, table
from experiments.record import RESULTS, versions, write_result
from experiments.sharing.bench import Bench, arguments, bench_of
from experiments.sharing.frontier import CALM, SHORT
from experiments.sharing.train_network import MODELS, load_start, start_path
from experiments.uncertainty.scores import Said, both_scores, scores
from pocketbayes.artifact.card import card_of
from pocketbayes.artifact.reader import decode
from pocketbayes.artifact.store import write
from pocketbayes.compression.stages import CompressionReport
from pocketbayes.data import DataSet
from pocketbayes.posterior.modes import modes_of
from pocketbayes.prediction.average import Samples
from pocketbayes.prediction.scales import Scales, give_scales, scales_of
from pocketbayes.runs.files import write_atomically

RESULT = RESULTS / "uncertainty/modes.json"
ROWS = RESULTS / "uncertainty/rows"
MOST_PASSES = 8
TEMPERATURES = 100  # bytes that they take in the file, at most
SETTLED = replace(CALM, lr=2e-3, fisher_batches=100)  # for few bits a weight, whose labels move faster


class Part(NamedTuple):
    """One file."""

    seeds: tuple[int, ...]  # of the networks that become its modes
    max_bytes: int
    plan: pb.Plan


PARTS = {
    "two-modes": Part((0, 1), 128_000, replace(SETTLED, epochs=4)),
    "three-modes": Part((0, 1, 2), 200_000, replace(SETTLED, epochs=3)),
}


def networks(models: Path) -> dict[int, nn.Module]:
    """Those that have been trained, by seed."""
    paths = {seed: start_path(models, "cifar10", seed) for seed in range(3)}
    return {seed: load_start(path, 3) for seed, path in paths.items() if path.exists()}


def compressed(bench: Bench, part: Part, path: Path) -> CompressionReport:
    """The file, without temperatures."""
    trained = networks(bench.network.parent)
    if missing := set(part.seeds) - set(trained):
        seeds = ", ".join(map(str, sorted(missing)))
        raise FileNotFoundError(
            f"There is no network of seed {seeds}: see experiments.sharing.train_network."
        )
    return pb.compress(
        [trained[seed] for seed in part.seeds],
        bench.training(),
        path=path,
        validation_loader=bench.validation(),
        max_bytes=part.max_bytes - TEMPERATURES,
        plan=part.plan,
        precision=SHORT,
        teacher=list(networks(bench.network.parent).values()),
        metadata=card_of("resnet20", bench.architecture(), bench.test_set()).metadata(),
        checkpoints=path.with_suffix(""),
        progress=False,
    )


def make(bench: Bench, name: str, part: Part) -> dict[str, Any]:
    """The file of that name under --work, calibrated, and its scores."""
    bench.work.mkdir(parents=True, exist_ok=True)
    path, held_out = bench.work / f"{name}.pocket", bench.validation()
    report = compressed(bench, part, path)
    print(report, flush=True)
    draws = MOST_PASSES // len(part.seeds) * len(part.seeds)
    model = pb.load(path, bench.fresh())
    pb.calibrate(model, held_out, samples=draws, sigmas=False)
    scales = scales_of(model)
    write_scales(path, scales)
    model, images = pb.load(path, bench.fresh()), bench.test_set()
    assert report.saved is not None and report.sharing is not None
    return {
        "max_bytes": part.max_bytes,
        "bytes": path.stat().st_size,
        "sections": report.saved.sections,
        "bits_a_label": report.sharing.bits_per_weight,
        "validation": {stage.name: stage.metrics for stage in report.stages if stage.metrics},
        "stages": {stage.name: round(stage.seconds) for stage in report.stages},
        "test": {
            "means": scored(model, images, "mean", scales_of(model).mean.temperature),
            "draws": scored(model, images, draws, scales_of(model).draws.temperature),
        },
    }


def write_scales(path: Path, scales: Scales) -> None:
    """Into the file, which stays the same otherwise."""
    pocket = decode(path)
    write(replace(pocket, metadata={**pocket.metadata, **scales.metadata()}), path)


def scored(model: nn.Module, images: DataSet, samples: Samples, temperature: float) -> dict[str, Any]:
    """The mixture, with the temperature and without, and each mode alone."""
    said, modes = asked(model, images, samples), len(modes_of(model))
    alone = [scores(said.passes[mode::modes].mean(0), said.labels) for mode in range(modes)]
    return {**both_scores(said, temperature), "alone": alone}


def asked(model: nn.Module, images: DataSet, samples: Samples) -> Said:
    """What every pass says, at temperature 1."""
    plain = copy.deepcopy(model)
    give_scales(plain, Scales())
    answer = pb.predict(plain, images.inputs(), samples=samples, draws=True)
    assert answer.draws is not None
    return Said(answer.draws, images.y)


def publish(bench: Bench, name: str, run: dict[str, Any]) -> None:
    """The file, with its report, beside the experiments, where it is still at hand."""
    path = bench.work / f"{name}.pocket"
    if path.exists():
        write_atomically(MODELS / f"resnet20-cifar10-{name}.pocket", path.read_bytes())
        write_result(MODELS / f"resnet20-cifar10-{name}.json", {"command": command([name]), **run})


def command(parts: Iterable[str]) -> str:
    return f"python -m experiments.uncertainty.modes --data DIR --parts {' '.join(parts)}"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=PARTS)
    parser.set_defaults(rows=ROWS, work=Path("runs/uncertainty"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    bench, runs = bench_of(args), {}
    for name, part in PARTS.items():
        if name in args.parts or (bench.rows / f"{name}.json").exists():
            settings = {**part._asdict(), "plan": asdict(part.plan)}
            runs[name] = bench.measured(name, partial(make, bench, name, part), settings)
            publish(bench, name, runs[name])
            write_result(RESULT, {"command": command(runs), "files": runs, "versions": versions()})


# --- the page ----------------------------------------------------------------------------------------------------


def headline(result: dict[str, Any]) -> str:
    """For RESULTS.md."""
    told = []
    for name, run in result["files"].items():
        means = run["test"]["means"]
        told.append(
            f"{name.replace('-', ' ')} in {run['bytes']:,} bytes have accuracy {100 * means['calibrated']['accuracy']:.2f} % "
            f"and NLL {means['calibrated']['nll']:.4f} in {means['passes']} passes"
        )
    return "; ".join(told) + "."


def section(result: dict[str, Any]) -> str:
    """This experiment's part of its page."""
    rows = (
        (
            f"{name}, {way}",
            f"{run['bytes']:,}",
            found["passes"],
            f"{100 * found['calibrated']['accuracy']:.2f}",
            f"{found['plain']['nll']:.4f}",
            f"{found['calibrated']['nll']:.4f}",
            f"{found['calibrated']['ece']:.4f}",
            " / ".join(f"{100 * mode['accuracy']:.2f}" for mode in found["alone"]),
        )
        for name, run in result["files"].items()
        for way, found in run["test"].items()
    )
    recipes = "; ".join(
        f"{name}: {run['settings']['plan']['epochs']} epochs, {run['bits_a_label']:.2f} bits a label, "
        f"{cost([run['seconds']])}"
        for name, run in result["files"].items()
    )
    return f"""## Several modes in one file

{measured(result, "seed 0")} Networks trained apart, from scratch, become the modes of one posterior, which share a codebook and
frequency tables; the budget is for all of them. All networks that were trained teach every mode. 10,000 test images, files loaded
from disk, temperatures from 2,500 validation images. {recipes}.

{table("| | bytes | passes | accuracy (%) | NLL | NLL with temperature | ECE with temperature | accuracy of each mode |", rows)}
"""


if __name__ == "__main__":
    main()
