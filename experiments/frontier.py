"""File size against accuracy, NLL and ECE: ResNet-20 by rate and distortion, from 200 KB to 40 KB; and our best files.

    python -m experiments.train_network --data DIR --set cifar10 --epochs 40
    python -m experiments.frontier --data DIR --set cifar10
    python -m experiments.train_network --data DIR --set mnist --epochs 12
    python -m experiments.frontier --data DIR --set mnist

`pb.compress` from the network that `train_network` trained.  Temperature and distillation are chosen by validation NLL in
short runs at one budget; the budgets then take a few epochs each, and the best row more, with three seeds.  The test set is
used once for each file, loaded back from disk.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

import pocketbayes as pb
from experiments.record import kept, save_figure, summary, versions
from experiments.resnet20 import DRAWS, METRICS, PRIOR, Bench, arguments, scores
from pocketbayes.cli.card import card_of
from pocketbayes.files import write_atomically

RESULT = Path(__file__).with_suffix(".json")
SEEDS = 3


class Course(NamedTuple):
    """What is run on one data set."""

    budgets: tuple[int, ...]
    best: int  # the budget of the best row
    short: int  # epochs of sharing while choosing
    long: int  # epochs of sharing for the curve
    longest: int  # and for the best row


COURSES = {
    "cifar10": Course((200_000, 110_000, 64_000, 50_000, 40_000), 90_000, 2, 3, 8),
    "mnist": Course((60_000, 30_000, 20_000), 30_000, 1, 2, 4),
}
TEMPERATURES, DISTILLATIONS = (0.01, 0.02, 0.04), (0.0, 0.5)
OTHERS = {  # bytes, accuracy, NLL, ECE: the paper's rows
    "cifar10": {
        "2DGBNN (paper)": (710_000, 0.9104, 0.303, 0.037),
        "INT8, 1 bit of sigma (paper)": (540_000, 0.9096, 0.266, 0.0071),
    },
    "mnist": {
        "2DGBNN (paper)": (403_000, 0.9952, 0.013, 0.001),
        "INT8, 1 bit of sigma (paper)": (60_000, 0.9934, 0.027, 0.0035),
    },
}


def compressed(bench: Bench, name: str, max_bytes: int, plan: pb.Plan, test: bool = True) -> dict[str, Any]:
    """A pocket file of at most `max_bytes`, kept under that name, with its scores."""

    def make() -> dict[str, Any]:
        path = bench.work / f"{name}.pocket"
        report = pb.compress(
            bench.plain(),
            bench.training(),
            path=path,
            validation_loader=bench.validation(),
            max_bytes=max_bytes,
            plan=plan,
            metadata=card_of("resnet20", bench.architecture(), bench.test_set()).metadata(),
            checkpoints=bench.work / f"{name}-checkpoints",
            progress=False,
        )
        print(report, flush=True)
        return {
            "max_bytes": max_bytes,
            "bytes": report.bytes,
            "sections": report.saved.sections,
            "bits_a_label": report.sharing.bits_per_weight,
            "components": report.sharing.components,
            "outliers": report.sharing.outliers,
            "validation": scores(report.stages[-2].metrics),
            "test": bench.score_file(path, plan.seed) if test else None,
            "seed": plan.seed,
        }

    return kept(bench.work / f"{name}.json", make)["value"]


def choose(bench: Bench, course: Course) -> tuple[pb.Plan, dict[str, Any]]:
    """Temperature first, then distillation, each by validation NLL after a short run at the best row's budget."""
    plan, found = pb.Plan(prior=PRIOR, epochs=course.short, settling_epochs=1), {}

    def nll(temperature: float, distillation: float) -> float:
        tried = replace(plan, temperature=temperature, distillation=distillation)
        name = f"temperature {temperature}, distillation {distillation}"
        found[name] = compressed(bench, name, course.best, tried, test=False)["validation"]
        return found[name]["nll"]

    temperature = min(TEMPERATURES, key=lambda t: nll(t, DISTILLATIONS[-1]))
    distillation = min(DISTILLATIONS, key=lambda share: nll(temperature, share))
    return replace(plan, temperature=temperature, distillation=distillation), found


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--set", default="cifar10", choices=COURSES)
    parser.set_defaults(network=None)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    network = args.network or Path(f"runs/resnet20_{args.set}/network.safetensors")
    bench, course = Bench(args.set, args.data, args.work / f"frontier-{args.set}", network), COURSES[args.set]
    bench.work.mkdir(parents=True, exist_ok=True)
    start = kept(bench.work / "start.json", lambda: bench.score(bench.plain()))["value"]
    plan, choice = choose(bench, course)
    best = [
        compressed(
            bench,
            f"best-{seed}",
            course.best,
            replace(plan, epochs=course.longest, settling_epochs=2, seed=seed),
        )
        for seed in range(SEEDS)
    ]
    curve = [
        compressed(bench, f"budget-{size}", size, replace(plan, epochs=course.long))
        for size in course.budgets
    ]
    result = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    result[args.set] = {
        "command": f"python -m experiments.frontier --data DIR --set {args.set}",
        "start": {"bytes": network.stat().st_size, "test": start},
        "plan": {
            key: value for key, value in asdict(plan).items() if key in ("temperature", "distillation", "lr")
        },
        "epochs": {"choice": course.short, "curve": course.long, "best": course.longest},
        "choice": choice,
        "best": best,
        "curve": curve,
        "versions": versions(),
    }
    write_atomically(RESULT, (json.dumps(result, indent=1) + "\n").encode())
    plot(result)


# --- what came of it ------------------------------------------------------------------------------------------


def section(result: dict[str, Any]) -> str:
    """This experiment's part of RESULTS.md."""
    parts = "\n\n".join(table(name, part) for name, part in result.items())
    return f"""## Size against quality: our own rows

ResNet-20 trained from scratch by `experiments.train_network`, then `pb.compress` to a budget. {DRAWS} draws, 10,000 test images, files loaded from disk, bytes of the files.

![File size against accuracy, NLL and ECE](experiments/frontier.svg)

{parts}
"""


def table(name: str, part: dict[str, Any]) -> str:
    epochs, start = part["epochs"], part["start"]
    means = [summary([[run["test"][key]] for run in part["best"]]) for key in METRICS]
    sizes = "–".join(
        f"{size:,}"
        for size in sorted({run["bytes"] for run in part["best"]})[
            :: max(1, len({run["bytes"] for run in part["best"]}) - 1)
        ]
    )
    best = f"| **best, {len(part['best'])} seeds** | {sizes} | {100 * means[0].mean:.2f} ± {100 * means[0].error:.2f} | {means[1].mean:.4f} ± {means[1].error:.4f} | {means[2].mean:.4f} ± {means[2].error:.4f} |"
    lines = [_line("start, deterministic", start["bytes"], start["test"]), best]
    lines += [_line(f"at most {run['max_bytes']:,}", run["bytes"], run["test"]) for run in part["curve"]]
    lines += [
        f"| {row} | {size:,} | {100 * accuracy:.2f} | {nll} | {ece} |"
        for row, (size, accuracy, nll, ece) in OTHERS[name].items()
    ]
    tried = "; ".join(f"{key}: {value['nll']:.4f}" for key, value in part["choice"].items())
    rows = "\n".join(lines)
    return f"""### {name}

`{part["command"]}`, torch {part["versions"]["torch"]}. The curve: {epochs["curve"]} epochs of sharing and one of settling, seed 0; the best row: {epochs["best"]} and two. Chosen on validation images: temperature {part["plan"]["temperature"]},
distillation {part["plan"]["distillation"]} (validation NLL after {epochs["choice"]} + 1 epochs: {tried}).

| | bytes | accuracy (%) | NLL | ECE |
|---|---|---|---|---|
{rows}"""


def _line(name: str, size: int, test: dict[str, float]) -> str:
    return f"| {name} | {size:,} | {100 * test['accuracy']:.2f} | {test['nll']:.4f} | {test['ece']:.4f} |"


def plot(result: dict[str, Any]) -> None:
    """A row of three panels for each data set: accuracy, NLL and ECE against the size of the file."""
    import matplotlib.pyplot as plt

    with plt.rc_context({"svg.fonttype": "none", "font.size": 9}):
        figure, axes = plt.subplots(
            len(result), 3, figsize=(10, 3.2 * len(result)), layout="constrained", squeeze=False
        )
        for row, (name, part) in zip(axes, result.items(), strict=True):
            for place, (ax, metric) in enumerate(zip(row, METRICS, strict=True)):
                _panel(ax, name, part, metric, place)
        save_figure(figure, RESULT.with_suffix(".svg"))
        plt.close(figure)


def _panel(ax: Any, name: str, part: dict[str, Any], metric: str, place: int) -> None:
    scale = 100 if metric == "accuracy" else 1
    runs = sorted(part["curve"], key=lambda run: run["bytes"])
    ax.plot(
        [r["bytes"] / 1e3 for r in runs], [scale * r["test"][metric] for r in runs], "o-", label="pocketbayes"
    )
    best = part["best"]
    ax.plot(
        [r["bytes"] / 1e3 for r in best],
        [scale * r["test"][metric] for r in best],
        "*",
        markersize=11,
        label="longer training",
    )
    for marker, (other, values) in zip("sD", OTHERS[name].items(), strict=True):
        ax.plot(values[0] / 1e3, scale * values[1 + place], marker, label=other)
    start = part["start"]
    ax.plot(start["bytes"] / 1e3, scale * start["test"][metric], "k^", label="start, deterministic")
    ax.set_xscale("log")
    ax.set_xlabel("file (KB)")
    ax.set_ylabel({"accuracy": "accuracy (%)", "nll": "NLL (nats)", "ece": "ECE"}[metric])
    ax.set_title(name)
    ax.grid(alpha=0.3, which="both")
    if place == 0:
        ax.legend(fontsize=8)


if __name__ == "__main__":
    main()
