"""The table that a sceptic asks for: ResNet-20/CIFAR-10, every method with a temperature, by bytes and passes.

    python -m experiments.uncertainty.table --data DIR --ood OTHER        # with svhn_1083.npz and cifar100_916.npz
    python -m experiments.uncertainty.table --data DIR --ood OTHER --parts deterministic ours-90-means

Rows are made one by one and kept; started again, it goes on with the next.  Temperatures are fitted to the 2,500 validation
images; the 10,000 test images are used once for a row, some of them corrupted too.  What needs training is fine-tuned from
the same network for two epochs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from experiments.markdown import cost, measured, picture
from experiments.markdown import table as in_markdown
from experiments.record import RESULTS, new_figure, save_figure, versions, write_result
from experiments.sharing.bench import Bench, arguments, bench_of
from experiments.sharing.table7 import OOD, load_ood
from experiments.uncertainty import methods
from experiments.uncertainty.corruptions import corrupted
from experiments.uncertainty.methods import Method
from experiments.uncertainty.modes import ROWS
from experiments.uncertainty.scores import Said, both_scores, fitted_temperature
from pocketbayes import metrics

RESULT = RESULTS / "uncertainty/table.json"
CORRUPTED = 500  # test images

READING = """With temperatures, the means of our 90 KB file are 0.002 nats from the network in fp32. Eight draws are as good as the means, not
better. A second mode is worth 0.015 nats against those means, and half a point; a second network in fp32
0.026 and 0.9 points, a third 0.008 more. On corrupted images the two modes are worse than one, for a reason that is not known."""


class Row(NamedTuple):
    """A method by the words of the table."""

    words: str
    kind: str  # in the figure
    make: Callable[[Bench], Method]


def ours(words: str, file: str, samples: Any) -> Row:
    return Row(words, "ours", partial(methods.ours, file=file, samples=samples))


FILES = {
    "ours-64": ("64 KB", "resnet20-cifar10-64.pocket"),
    "ours-90": ("90 KB", "resnet20-cifar10.pocket"),
}
TABLE = {
    "deterministic": Row("deterministic", "plain", partial(methods.ensemble, count=1)),
    "rounding-64": Row(
        "rounded straight through, 64 KB",
        "rounded",
        partial(methods.ours, file="resnet20-cifar10-rounding-64000.pocket", samples="mean"),
    ),
    "rounding-90": Row(
        "rounded straight through, 90 KB",
        "rounded",
        partial(methods.ours, file="resnet20-cifar10-rounding-90000.pocket", samples="mean"),
    ),
    **{f"{name}-means": ours(f"ours, {size}, means", file, "mean") for name, (size, file) in FILES.items()},
    "two-modes-means": ours("ours, two modes, means", "resnet20-cifar10-two-modes.pocket", "mean"),
    "three-modes-means": ours(
        "ours, three modes, means", "resnet20-cifar10-three-modes-apart.pocket", "mean"
    ),
    "ensemble-2": Row("deep ensemble of 2", "ensemble", partial(methods.ensemble, count=2)),
    "ensemble-3": Row("deep ensemble of 3", "ensemble", partial(methods.ensemble, count=3)),
    **{f"{name}-8": ours(f"ours, {size}, 8 draws", file, 8) for name, (size, file) in FILES.items()},
    "two-modes-8": ours("ours, two modes, 8 draws", "resnet20-cifar10-two-modes.pocket", 8),
    "three-modes-9": ours("ours, three modes, 9 draws", "resnet20-cifar10-three-modes-apart.pocket", 9),
    "laplace": Row("Laplace, last layer (laplace-torch)", "laplace", methods.laplace),
    "dropout": Row("MC dropout", "dropout", methods.dropout),
    "swag": Row("SWAG", "SWAG", methods.swag),
    "variational": Row("bayesian-torch", "bayesian-torch", methods.variational),
    **{f"{name}-30": ours(f"ours, {size}, 30 draws", file, 30) for name, (size, file) in FILES.items()},
}


def row(bench: Bench, others: dict[str, Tensor], make: Callable[[Bench], Method]) -> dict[str, Any]:
    """All that the table has of a method."""
    started = time.process_time()
    method = make(bench)
    seconds = time.process_time() - started
    held_out, images = bench.held_out(), bench.test_set()

    def said(of: Any) -> Said:
        return Said(method.answers(of.inputs()), of.y)

    temperature = fitted_temperature(said(held_out))
    test = said(images)
    inside = metrics.entropy(test.at(temperature))
    outside = {name: Said(method.answers(x), images.y).at(temperature) for name, x in others.items()}
    some = images.subset(torch.arange(CORRUPTED))
    return {
        "bytes": method.bytes,
        "training_seconds": round(seconds),
        **both_scores(test, temperature),
        "auroc": {
            name: round(metrics.auroc(inside, metrics.entropy(probs)), 4) for name, probs in outside.items()
        },
        "corrupted": {
            name: round(metrics.nll(said(bad).at(temperature), bad.y), 4) for name, bad in corrupted(some)
        },
    }


def can_be_made(name: str, bench: Bench) -> bool:
    """Whether the networks and files that it needs are there."""
    make: Any = TABLE[name].make
    given = getattr(make, "keywords", {})
    needed = [given["file"]] if "file" in given else []
    needed += [f"resnet20-cifar10-start{f'-{n}' * (n > 0)}.pocket" for n in range(given.get("count", 1))]
    return all((bench.network.parent / file).exists() for file in needed)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--ood", type=Path, required=True, help="folder of the out-of-distribution images")
    parser.add_argument("--parts", nargs="*", default=list(TABLE), choices=TABLE)
    parser.set_defaults(rows=ROWS, work=Path("runs/uncertainty"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    bench = bench_of(args)
    scaling = bench.test_set().scaling
    others = {name: load_ood(args.ood / file, scaling) for name, file in OOD.items()}
    rows: dict[str, Any] = {}
    for name, (_, _, make) in TABLE.items():
        there = (bench.rows / f"{name}.json").exists()
        if there or (name in args.parts and can_be_made(name, bench)):
            rows[name] = bench.measured(name, partial(row, bench, others, make))
            result = {
                "command": "python -m experiments.uncertainty.table --data DIR --ood OTHER",
                "images": {"corrupted": CORRUPTED, **{name: len(x) for name, x in others.items()}},
                "rows": rows,
                "versions": versions(),
            }
            write_result(RESULT, result)
            plot(result)
        elif name in args.parts:
            print(f"{name}: its file or network is not in {bench.network.parent}", flush=True)


# --- what came of it ---------------------------------------------------------------------------------------------


def plot(result: dict[str, Any]) -> None:
    """Calibrated NLL against bytes."""
    figure = new_figure(7.0, 4.0)
    ax = figure.subplots()
    kinds: dict[str, list[tuple[float, float]]] = {}
    files: dict[float, list[tuple[float, str]]] = {}  # what a file's answers are called, at its bytes
    for name, found in result["rows"].items():
        x, y = found["bytes"] / 1000, found["calibrated"]["nll"]
        kinds.setdefault(TABLE[name].kind, []).append((x, y))
        files.setdefault(x, []).append((y, TABLE[name].words.removeprefix("ours, ")))
    for kind, points in kinds.items():
        ax.plot(*zip(*points, strict=True), "o", label=kind, markersize=5)
    for x, answers in files.items():
        file, _, first = answers[0][1].partition(", ")
        ways = [first, *(words.removeprefix(f"{file}, ") for _, words in answers[1:])]
        words = f"{file}: {', '.join(ways)}" if first else file
        late = x > max(files) / 2  # where there is no room on the right
        where: Any = {"xytext": (-5, -2) if late else (5, -2), "ha": "right" if late else "left"}
        ax.annotate(words, (x, answers[0][0]), fontsize=6, textcoords="offset points", **where)
    ax.set(xscale="log", xlabel="KB", ylabel="NLL with temperature (nats)")
    ax.grid(alpha=0.3)
    ax.legend(fontsize=7)
    save_figure(figure, RESULT)


def headline(result: dict[str, Any]) -> str:
    """For RESULTS.md."""
    rows = result["rows"]
    told = (
        f"{TABLE[name].words} {rows[name]['calibrated']['nll']:.4f}"
        for name in (
            "deterministic",
            "ours-90-means",
            "ours-90-8",
            "ours-90-30",
            "two-modes-means",
            "ensemble-2",
        )
        if name in rows
    )
    return f"NLL with a temperature from validation images: {', '.join(told)}."


def cells(result: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    for name, found in result["rows"].items():
        plain, scaled, bad = found["plain"], found["calibrated"], list(found["corrupted"].values())
        yield (
            TABLE[name].words,
            f"{found['bytes']:,}",
            found["passes"],
            f"{100 * plain['accuracy']:.2f}",
            f"{plain['nll']:.4f}",
            f"{scaled['nll']:.4f}",
            f"{scaled['ece']:.4f}",
            f"{1000 * scaled['aurc']:.1f}",
            *(f"{area:.3f}" for area in found["auroc"].values()),
            f"{sum(bad) / len(bad):.3f}",
            f"{found['training_seconds'] / 60:.0f}",
        )


def section(result: dict[str, Any]) -> str:
    """This experiment's part of its page."""
    spent = cost(found["seconds"] for found in result["rows"].values())
    names = [name for name in result["images"] if name != "corrupted"]
    head = (
        "| | bytes | passes | accuracy (%) | NLL | NLL with temperature | ECE | AURC x 1000 | "
        + " | ".join(f"AUROC {name}" for name in names)
        + " | NLL, corrupted | minutes |"
    )
    missing = [TABLE[name].words for name in TABLE if name not in result["rows"]]
    left = f"\n\nNot made yet: {'; '.join(missing)}." if missing else ""
    return f"""## Every method with a temperature

{measured(result, "seed 0", spent)} ResNet-20/CIFAR-10, 10,000 test images. Temperatures are fitted to 2,500 validation images, and all columns
after the fifth are with them. AUROC: {" and ".join(f"{result['images'][name]:,} images of {name}" for name in names)} told from
the test images by the entropy of the prediction. Corrupted: the mean over noise, blur, contrast, brightness and pixelation at three
strengths, {result["images"]["corrupted"]} test images each. Minutes: fine-tuning and fitting from the same trained network, CPU time; that of files
is told where they are made. Bytes of networks are those of fp32.

{in_markdown(head, cells(result))}

{READING}{left}

{picture(RESULT, "Calibrated NLL against bytes, all methods")}
"""


if __name__ == "__main__":
    main()
