"""Several networks as the modes of one file: ResNet-20/CIFAR-10, three modes in 200 KB and two of them in 128 KB.

    python -m experiments.uncertainty.modes --data DIR

The networks are our own, trained from scratch by `experiments.sharing.train_network` with --seed 0, 1 and 2.  `pb.compress`
makes them the modes of one posterior within one budget, by the recipe of `experiments.sharing.frontier`; each mode is
taught by all of them.  A mode may be left out of a file: the smaller file has the two modes that validation images
prefer, as they are.  Temperatures are fitted to validation images too.  The test images are used once for
each file, loaded back from disk, in one pass of each mode.  Killed and started again, it goes on where it was.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import pocketbayes as pb
from experiments.markdown import cost, measured, table
from experiments.record import RESULTS, versions, write_result
from experiments.sharing.bench import Bench, arguments, bench_of
from experiments.sharing.frontier import CALM, SHORT
from experiments.sharing.train_network import MODELS, load_start, start_path
from experiments.uncertainty.scores import Said, asked, both_scores, fitted_temperature, scores
from pocketbayes.artifact import inspect
from pocketbayes.artifact.card import card_of
from pocketbayes.artifact.reader import decode
from pocketbayes.artifact.store import write
from pocketbayes.posterior.modes import modes_of
from pocketbayes.prediction.scales import Scales, scales_of
from pocketbayes.runs.files import write_atomically

COMMAND = "python -m experiments.uncertainty.modes --data DIR"
RESULT = RESULTS / "uncertainty/modes.json"
ROWS = RESULTS / "uncertainty/rows"
SEEDS = (0, 1, 2)
BUDGETS = {"three-modes": 200_000, "two-modes": 128_000}  # bytes
TRAINED = 189_400  # bytes of three modes, of which two are within their budget
PLAN = replace(CALM, lr=2e-3, fisher_batches=100)  # for few bits a weight, whose labels move faster


def networks(models: Path) -> list[nn.Module]:
    """One of each seed."""
    paths = [start_path(models, "cifar10", seed) for seed in SEEDS]
    if missing := [path.name for path in paths if not path.exists()]:
        raise FileNotFoundError(
            f"There is no {', '.join(missing)} in {models}. Make it by experiments.sharing.train_network."
        )
    return [load_start(path, 3) for path in paths]


def card(bench: Bench) -> dict[str, Any]:
    return card_of("resnet20", bench.architecture(), bench.test_set()).metadata()


def three_modes(bench: Bench, path: Path) -> None:
    """The file, without temperatures."""
    report = pb.compress(
        networks(bench.network.parent),
        bench.training(),
        path=path,
        max_bytes=TRAINED,
        plan=PLAN,
        precision=SHORT,
        metadata=card(bench),
        checkpoints=path.with_suffix(""),
        progress=False,
    )
    print(report, flush=True)


def two_modes(bench: Bench, three: Path, path: Path) -> list[int]:
    """The file, without temperatures, of the modes of the larger one that validation images prefer."""
    modes, held_out = modes_of(pb.load(three, bench.fresh())), bench.held_out()
    said = asked(pb.Modes(modes), held_out)
    pairs = {pair: nll_of(said, pair) for pair in itertools.combinations(range(len(modes)), 2)}
    best = min(pairs, key=lambda pair: pairs[pair])
    pair = pb.Modes([modes[number] for number in best])
    pb.save(pair, path, precision=SHORT, metadata=card(bench), example=held_out.inputs(slice(0, 2)))
    return list(best)


def nll_of(said: Said, modes: tuple[int, ...]) -> float:
    """Of some of the modes, with the temperature that suits them."""
    some = Said(said.passes[list(modes)], said.labels)
    return both_scores(some, fitted_temperature(some))["calibrated"]["nll"]


def made(bench: Bench, name: str) -> dict[str, Any]:
    """The file of that name under --work, with its temperature, and its scores."""
    bench.work.mkdir(parents=True, exist_ok=True)
    path, three = (bench.work / f"{each}.pocket" for each in (name, "three-modes"))
    numbers = list(range(len(SEEDS)))
    if name == "two-modes":
        numbers = two_modes(bench, three, path)
    elif not path.exists():
        three_modes(bench, path)
    model = pb.load(path, bench.fresh())
    validation = asked(model, bench.held_out())
    pb.calibrate(model, bench.validation(), samples=2 * len(numbers), sigmas=False)
    temperature = scales_of(model).mean.temperature
    write_scales(path, scales_of(model))
    test = asked(pb.load(path, bench.fresh()), bench.test_set())
    return {
        "bytes": path.stat().st_size,
        "seeds": [SEEDS[number] for number in numbers],
        "sections": inspect(path).sections,
        "validation": both_scores(validation, temperature),
        "test": both_scores(test, temperature),
        "alone": [scores(mode, test.labels) for mode in test.passes],
    }


def write_scales(path: Path, scales: Scales) -> None:
    """Into the file, which stays the same otherwise."""
    pocket = decode(path)
    write(replace(pocket, metadata={**pocket.metadata, **scales.metadata()}), path)


def publish(bench: Bench, name: str, run: dict[str, Any]) -> None:
    """The file, with its report, beside the experiments, where it is still at hand."""
    path = bench.work / f"{name}.pocket"
    if path.exists():
        write_atomically(MODELS / f"resnet20-cifar10-{name}.pocket", path.read_bytes())
        write_result(MODELS / f"resnet20-cifar10-{name}.json", {"command": COMMAND, **run})


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(rows=ROWS, work=Path("runs/uncertainty"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    bench, runs = bench_of(args), {}
    for name in BUDGETS:
        runs[name] = bench.measured(
            name, partial(made, bench, name), {"plan": asdict(PLAN), "bytes": TRAINED}
        )
        publish(bench, name, runs[name])
        write_result(RESULT, {"command": COMMAND, "files": runs, "versions": versions()})


# --- the page ----------------------------------------------------------------------------------------------------


def headline(result: dict[str, Any]) -> str:
    """For RESULTS.md."""
    told = (
        f"{name.replace('-', ' ')} in {run['bytes']:,} bytes have accuracy {100 * run['test']['calibrated']['accuracy']:.2f} % "
        f"and NLL {run['test']['calibrated']['nll']:.4f} in {run['test']['passes']} passes"
        for name, run in result["files"].items()
    )
    return "; ".join(told) + "."


def section(result: dict[str, Any]) -> str:
    """This experiment's part of its page."""
    files = result["files"]
    rows = (
        (
            name.replace("-", " "),
            f"{run['bytes']:,}",
            run["test"]["passes"],
            f"{100 * run['test']['calibrated']['accuracy']:.2f}",
            f"{run['test']['plain']['nll']:.4f}",
            f"{run['test']['calibrated']['nll']:.4f}",
            f"{run['test']['calibrated']['ece']:.4f}",
            " / ".join(f"{100 * mode['accuracy']:.2f}" for mode in run["alone"]),
        )
        for name, run in files.items()
    )
    spent = cost(run["seconds"] for run in files.values())
    plan = files["three-modes"]["settings"]["plan"]
    return f"""## Several modes in one file

{measured(result, "seed 0", spent)} Three networks trained apart, from scratch, become the modes of one posterior, which share a
codebook and frequency tables; the budget is for all of them. {plan["epochs"]} epochs, {plan["distillation"]:.0%} of the targets from the
three networks. The smaller file has the two modes that validation images prefer, as they are in the larger one. 10,000 test images,
one pass through the means of each mode, files loaded from disk, temperatures from 2,500 validation images.

{table("| | bytes | passes | accuracy (%) | NLL | NLL with temperature | ECE with temperature | accuracy of each mode (%) |", rows)}
"""


if __name__ == "__main__":
    main()
