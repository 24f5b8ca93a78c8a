"""Table 5 of the sharing paper: what outliers and blends are worth.  ResNet-20 on CIFAR-10, three seeds.

    python -m experiments.sharing.table5 --data DIR

Every row starts from one posterior (three epochs from the network of `experiments.sharing.train_network`) and is fine-tuned for
three epochs.  The paper's "ellipses" are blends.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

import pocketbayes as pb
from experiments.markdown import cost, measured, shown, table
from experiments.record import RESULTS, versions, write_result
from experiments.sharing.bench import (
    DRAWS,
    EPOCHS,
    METRICS,
    TEMPERATURE,
    Bench,
    arguments,
    bench_of,
    counts,
    quality,
    slashed,
)
from pocketbayes.sharing import Outliers

RESULT = RESULTS / "sharing/table5.json"
SEEDS = 3
NO_OUTLIERS = Outliers(mean=None, fisher_fraction=None, smallest_cluster=None)
CONFIGURATIONS = {
    "outliers and blends": pb.Paper(),
    "no blends": pb.Paper(blend=None),
    "no outliers": pb.Paper(outliers=NO_OUTLIERS),
    "neither": pb.Paper(outliers=NO_OUTLIERS, blend=None),
}
PAPER = {
    "outliers and blends": (90.92, 0.265, 0.040),
    "no blends": (90.43, 0.304, 0.043),
    "no outliers": (90.18, 0.308, 0.026),
    "neither": (90.01, 0.318, 0.029),
}


def paper_row(bench: Bench, seed: int = 0) -> dict[str, Any]:
    """The whole of Algorithm 1, which stands in Tables 4, 5, 8 and 10."""
    return ablated(bench, "outliers and blends", seed)


def ablated(bench: Bench, configuration: str, seed: int) -> dict[str, Any]:
    return bench.row(f"{configuration}-{seed}".replace(" ", "-"), CONFIGURATIONS[configuration], seed=seed)


def paper_file(bench: Bench) -> Path:
    """The pocket file of `paper_row`, seed 0, made again if only its row is here."""
    name = "outliers-and-blends-0"
    path = bench.work / f"{name}.pocket"
    if not path.exists():
        bench.make_row(name, CONFIGURATIONS["outliers and blends"])
    return path


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    bench = bench_of(args)
    rows = {name: [ablated(bench, name, seed) for seed in range(args.seeds)] for name in CONFIGURATIONS}
    result = {
        "command": f"python -m experiments.sharing.table5 --data DIR --seeds {args.seeds}",
        "seeds": args.seeds,
        "rows": rows,
        "versions": versions(),
    }
    write_result(RESULT, result)


def difference(rows: dict[str, Any], name: str, other: str, key: str) -> list[float]:
    """One configuration minus another on the test images, paired by seed."""
    return [a["test"][key] - b["test"][key] for a, b in zip(rows[name], rows[other], strict=True)]


def changes(rows: dict[str, Any], other: str) -> str:
    """What the whole algorithm has more than that configuration, in words."""
    gaps = {key: difference(rows, "outliers and blends", other, key) for key in METRICS}
    return ", ".join(f"{key} {shown(values, 4)}" for key, values in gaps.items())


def in_points(rows: dict[str, Any], other: str) -> float:
    """Of accuracy: the whole algorithm against that configuration."""
    return 100 * float(np.mean(difference(rows, "outliers and blends", other, "accuracy")))


def stage_1(runs: list[dict[str, Any]]) -> str:
    """What the error over seeds does not hold; a posterior trained anew shows itself in its outliers."""
    again = len({run["outliers"] for run in runs}) > 1
    trained = (
        "The posterior of the later seeds was trained anew by the same command, on another machine"
        if again
        else "One posterior"
    )
    return f"{trained}, so the error over seeds leaves out most of that of stage 1. Rows share their test images."


def headline(result: dict[str, Any]) -> str:
    """For RESULTS.md."""
    outliers, blends = (in_points(result["rows"], other) for other in ("no outliers", "no blends"))
    return f"{outliers:.1f} and {blends:.2f} points."


def section(result: dict[str, Any]) -> str:
    """This experiment's part of its page."""
    rows = result["rows"]
    cells = [
        (
            name,
            *counts(runs[0], "outliers", "blends", "components", "bytes"),
            *quality(runs),
            f"{runs[0]['cost_of_widths']['nats']:.3f}",
            slashed(PAPER[name]),
        )
        for name, runs in rows.items()
    ]
    gaps = "\n".join(
        f"- {word} change: {changes(rows, other)}."
        for word, other in (("Blends", "no blends"), ("Outliers", "no outliers"))
    )
    whole, without = (rows[name][0]["cost_of_widths"] for name in ("outliers and blends", "no outliers"))
    one_run = "One run a row: how much is chance is not known."
    counted = "Counts and bytes are of seed 0; ± is the standard error over seeds of fine-tuning."
    several = result["seeds"] > 1
    return f"""## Table 5: what outliers and blends are worth

{measured(result, f"{result['seeds']} seed{'s' * several}", cost(run["seconds"] for runs in rows.values() for run in runs))} ResNet-20,
CIFAR-10, all rows from one posterior at temperature {TEMPERATURE}, {EPOCHS} epochs of fine-tuning each (the paper does not say how
many it takes). Scored on the 10,000 test images with {DRAWS} draws, the file loaded from disk. The time is besides training
the posterior. {counted if several else one_run}

{table("| configuration | outliers | blends | components | bytes | accuracy (%) | NLL | ECE | cost of sigma | paper: accuracy / NLL / ECE |", cells)}

{gaps}

{stage_1(rows["outliers and blends"])}

Where this differs from the paper: there blends give half a point and outliers three quarters, here outliers give
{in_points(rows, "no outliers"):.1f} points and blends {in_points(rows, "no blends"):.2f}. An ECE of more than a tenth at 90 % accuracy can only be too little confidence, and it comes
from the standard deviations. Their cost, 1/2 sum g sigma^2 over the file's weights (g from `pb.fisher_information`), is what a
draw adds to the training NLL to second order. Without outliers it is {without["nats"]:.3f} nats an image, {without["worst"]:.0%} of it from a
hundredth of the weights; with them {whole["nats"]:.3f} and {whole["worst"]:.0%}. Weights that the loss is sensitive to have a small sigma, and take
the sigma of their cluster if nothing keeps them apart.
"""


if __name__ == "__main__":
    main()
