"""Table 5 of the sharing paper: what outliers and blends are worth.  ResNet-20 on CIFAR-10, three seeds.

    python -m experiments.table5 --data DIR

Every row starts from one posterior (three epochs from the network of `experiments.train_network`) and is fine-tuned for
three epochs.  The paper's "ellipses" are blends.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

import pocketbayes as pb
from experiments.record import Summary, summary, versions
from experiments.resnet20 import DRAWS, EPOCHS, METRICS, TEMPERATURE, Bench, arguments
from pocketbayes.files import write_atomically
from pocketbayes.sharing import Outliers

RESULT = Path(__file__).with_suffix(".json")
SEEDS = 3
NO_OUTLIERS = Outliers(mean=None, sensitivity_share=None, smallest_cluster=None)
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
    args = arguments(__doc__).parse_args()
    torch.set_num_threads(args.threads)
    bench = Bench("cifar10", args.data, args.rows, args.work, args.network)
    rows = {name: [ablated(bench, name, seed) for seed in range(SEEDS)] for name in CONFIGURATIONS}
    result = {
        "command": "python -m experiments.table5 --data DIR",
        "seeds": SEEDS,
        "rows": rows,
        "versions": versions(),
    }
    write_atomically(RESULT, (json.dumps(result, indent=1) + "\n").encode())


def difference(rows: dict[str, Any], name: str, other: str, metric: str) -> Summary:
    """One configuration minus another, paired by seed."""
    pairs = zip(rows[name], rows[other], strict=True)
    return summary([[a["test"][metric] - b["test"][metric]] for a, b in pairs])


def section(result: dict[str, Any]) -> str:
    """This experiment's part of RESULTS.md."""
    rows, lines = result["rows"], []
    for name, runs in rows.items():
        means = {key: summary([[run["test"][key]] for run in runs]) for key in METRICS}
        first = runs[0]
        shown = (
            f"{100 * means['accuracy'].mean:.2f} ± {100 * means['accuracy'].error:.2f}",
            *(f"{means[k].mean:.4f} ± {means[k].error:.4f}" for k in ("nll", "ece")),
        )
        accuracy, nll, ece = PAPER[name]
        lines.append(
            f"| {name} | {first['outliers']:,} | {first['blends']:,} | {first['components']:,} | {first['bytes']:,} | {' | '.join(shown)} | {accuracy} / {nll} / {ece} |"
        )
    gaps = {
        word: ", ".join(
            f"{key} {difference(rows, 'outliers and blends', other, key).mean:+.4f} ± {difference(rows, 'outliers and blends', other, key).error:.4f}"
            for key in METRICS
        )
        for word, other in (("Blends", "no blends"), ("Outliers", "no outliers"))
    }
    table = "\n".join(lines)
    return f"""## Table 5: what outliers and blends are worth

`{result["command"]}`, {result["seeds"]} seeds, torch {result["versions"]["torch"]}. ResNet-20, CIFAR-10, all rows from one posterior at temperature {TEMPERATURE}, {EPOCHS} epochs of fine-tuning
each (the paper does not say how many it takes), scored on the 10,000 test images with {DRAWS} draws, the file loaded from disk. Counts and bytes are of seed 0; ± is the standard error over seeds of fine-tuning.

| configuration | outliers | blends | components | bytes | accuracy (%) | NLL | ECE | paper: accuracy / NLL / ECE |
|---|---|---|---|---|---|---|---|---|
{table}

{" ".join(f"{word} change: {text}." for word, text in gaps.items())} One start, so the error over seeds leaves out that of stage 1 and of the test images (0.28 points of accuracy).
"""


if __name__ == "__main__":
    main()
