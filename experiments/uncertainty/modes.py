"""Several networks as the modes of one file: ResNet-20/CIFAR-10, two modes in 128 KB and three in 200 KB.

    python -m experiments.uncertainty.modes --data DIR --parts two-modes
    python -m experiments.uncertainty.modes --data DIR --parts two-modes-apart three-modes-apart

The networks are our own, trained from scratch by `experiments.sharing.train_network` with --seed 0, 1 and 2.  `pb.compress`
makes them the modes of one posterior within one budget, by the recipe of `experiments.sharing.long`; each mode is
taught by the mean of all three networks, or, of those that stay apart, by the network it comes from.  Temperatures are
fitted to validation images and written into the file.  The test images are used
once for each file, loaded back from disk, in one pass of each mode.  Killed and started again, it goes on where it was.
"""

from __future__ import annotations

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
from experiments.sharing.bench import Bench, LongBench, arguments, bench_of
from experiments.sharing.frontier import CALM, SHORT
from experiments.sharing.train_network import MODELS, load_start, start_path
from experiments.uncertainty.scores import asked, both_scores, scores
from pocketbayes.artifact import inspect
from pocketbayes.artifact.card import card_of
from pocketbayes.artifact.reader import decode
from pocketbayes.artifact.store import write
from pocketbayes.prediction.scales import Scales, scales_of
from pocketbayes.runs.files import write_atomically

RESULT = RESULTS / "uncertainty/modes.json"
ROWS = RESULTS / "uncertainty/rows"
TEMPERATURES = 100  # bytes that they take in the file, at most
PLAN = replace(CALM, temperature=0.0015, lr=1e-3, rho_lr=0.0, fisher_batches=100, bfloat16=True)


class Part(NamedTuple):
    """One file."""

    seeds: tuple[int, ...]  # of the networks that become its modes
    max_bytes: int
    apart: bool = False  # each mode learns from the network it comes from, not from the mean of all
    plan: pb.Plan = PLAN

    def settings(self) -> dict[str, Any]:
        found = {**self._asdict(), "plan": asdict(self.plan)}
        return {name: value for name, value in found.items() if value is not False}


PARTS = {
    "two-modes": Part((0, 1), 128_000),
    "two-modes-apart": Part((0, 1), 128_000, apart=True),
    "three-modes-apart": Part((0, 1, 2), 200_000, apart=True),
}

NOTE = """Each mode alone is as good as the network that it comes from, in a seventeenth of its bytes; but two of them gain less than two networks do, which
have 92.48 % and 0.2204 in fp32. Both modes learn from the mean of the same three networks, and so become alike; whether it helps that each learns
from its own is open (`--parts two-modes-apart`). Before, when labels were chosen anew at the
end, two and eight epochs at ten times the temperature and twice the learning rate had 90.68 % and 0.2845, and 90.19 % and 0.2968; no command of today makes these."""


def networks(models: Path, seeds: Iterable[int]) -> list[nn.Module]:
    """One of each seed."""
    paths = [start_path(models, "cifar10", seed) for seed in seeds]
    if missing := [path.name for path in paths if not path.exists()]:
        raise FileNotFoundError(
            f"There is no {', '.join(missing)} in {models}. Make it by experiments.sharing.train_network."
        )
    return [load_start(path, 3) for path in paths]


def compressed(bench: Bench, part: Part, path: Path) -> None:
    """The file, without temperatures."""
    report = pb.compress(
        networks(bench.network.parent, part.seeds),
        bench.training(),
        path=path,
        max_bytes=part.max_bytes - TEMPERATURES,
        plan=part.plan,
        teacher=None if part.apart else bench.teachers(),
        precision=SHORT,
        metadata=card_of("resnet20", bench.architecture(), bench.test_set()).metadata(),
        checkpoints=path.with_suffix(""),
        progress=False,
    )
    print(report, flush=True)


def made(bench: Bench, name: str, part: Part) -> dict[str, Any]:
    """The file of that name under --work, with its temperatures, and its scores."""
    bench.work.mkdir(parents=True, exist_ok=True)
    path = bench.work / f"{name}.pocket"
    if not path.exists():
        compressed(bench, part, path)
    model = pb.load(path, bench.fresh())
    validation = asked(model, bench.held_out())
    pb.calibrate(model, bench.validation(), samples=2 * len(part.seeds), sigmas=False)
    temperature = scales_of(model).mean.temperature
    write_scales(path, scales_of(model))
    test = asked(pb.load(path, bench.fresh()), bench.test_set())
    return {
        "bytes": path.stat().st_size,
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
        write_result(MODELS / f"resnet20-cifar10-{name}.json", {"command": command([name]), **run})


def command(parts: Iterable[str]) -> str:
    return f"python -m experiments.uncertainty.modes --data DIR --parts {' '.join(parts)}"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=PARTS)
    parser.add_argument("--epochs", type=int, default=24)
    parser.set_defaults(rows=ROWS, work=Path("runs/uncertainty"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    bench, runs = bench_of(args, of=LongBench), {}
    for name, part in PARTS.items():
        part = part._replace(plan=replace(part.plan, epochs=args.epochs))
        if name in args.parts or (bench.rows / f"{name}.json").exists():
            runs[name] = bench.measured(name, partial(made, bench, name, part), part.settings())
            publish(bench, name, runs[name])
            write_result(RESULT, {"command": command(runs), "files": runs, "versions": versions()})


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
    plan = next(iter(files.values()))["settings"]["plan"]
    return f"""## Several modes in one file

{measured(result, "seed 0", spent)} Networks trained apart, from scratch, become the modes of one posterior, which share a codebook and
frequency tables; the budget is for all of them. {plan["epochs"]} epochs, {plan["distillation"]:.0%} of the targets from all three networks.
Three batches of four see windows of 24 x 24 pixels. 10,000 test images, one pass through the means of each mode, files loaded from disk, temperatures from 2,500 validation images.

{table("| | bytes | passes | accuracy (%) | NLL | NLL with temperature | ECE with temperature | accuracy of each mode (%) |", rows)}

{NOTE}
"""


if __name__ == "__main__":
    main()
