"""Table 8 of the sharing paper: the threshold tau_w beyond which a weight is an outlier.  ResNet-20 on CIFAR-10.

    python -m experiments.table8 --data DIR

Every row starts from one posterior and is fine-tuned for three epochs, one seed.  Which share of outliers is best is read off it.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import pocketbayes as pb
from experiments.record import cost, save_figure, versions, write_result
from experiments.resnet20 import DRAWS, EPOCHS, Bench, arguments, bench_of, quality
from experiments.table5 import paper_row
from pocketbayes.sharing import AbsoluteMean, Outliers

RESULT = Path(__file__).with_suffix(".json")
TAUS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.6)
PAPER = {
    0.1: (91.14, 0.376, 0.0197, 223_046),
    0.2: (91.04, 0.303, 0.037, 14_624),
    0.4: (90.53, 0.396, 0.0279, 101_970),
    0.6: (89.78, 0.322, 0.038, 12_211),
}


def row(bench: Bench, tau: float) -> dict[str, Any]:
    if tau == 0.2:  # the paper's, which has its row already
        return paper_row(bench)
    return bench.row(f"tau-{tau}", pb.Paper(outliers=Outliers(mean=AbsoluteMean(tau))))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--taus", type=float, nargs="+", default=TAUS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    bench = bench_of(args)
    result = {
        "command": " ".join(["python -m experiments.table8 --data DIR --taus", *map(str, sorted(args.taus))]),
        "rows": {str(tau): row(bench, tau) for tau in sorted(args.taus)},
        "versions": versions(),
    }
    write_result(RESULT, result)
    plot(result)


def section(result: dict[str, Any]) -> str:
    """This experiment's part of RESULTS.md."""
    lines, rows = [], {float(tau): found for tau, found in result["rows"].items()}
    for tau, found in rows.items():
        theirs = " / ".join(f"{x:,}" for x in PAPER[tau]) if tau in PAPER else ""
        lines.append(
            f"| {tau} | {found['outliers']:,} | {found['outliers_of_their_own']:,} | {found['blends']:,} | {found['components']:,} | {found['scalars']:,} | {found['bytes']:,} | {quality([found])} | {found['cost_of_widths']['nats']:.3f} | {theirs} |"
        )
    best = min(rows, key=lambda tau: rows[tau]["validation"]["nll"])
    table = "\n".join(lines)
    return f"""## Table 8: the threshold of outliers

`{result["command"]}`, seed 0, {cost(found["seconds"] for found in rows.values())}, torch {result["versions"]["torch"]}. ResNet-20, CIFAR-10, one posterior, {EPOCHS} epochs of fine-tuning a row, {DRAWS} draws, 10,000 test images, files loaded from disk; the time is besides training the posterior.

| tau_w | outliers | by their own mean or sensitivity | blends | components | trained scalars | bytes | accuracy (%) | NLL | ECE | cost of the widths | paper: accuracy / NLL / ECE / outliers |
|---|---|---|---|---|---|---|---|---|---|---|---|
{table}

{falling(rows)} By validation NLL tau = {best} is best, {rows[best]["outliers"]:,} outliers of {268_336:,} weights.
The cost of the widths is that of Table 5: a large weight in a narrow minimum, not kept apart, takes the width of its cluster. One run a row, and accuracies have a standard error of 0.28 points from the test images alone.

![NLL against bytes, a dot for each tau](experiments/table8.svg)
"""


def falling(rows: dict[float, Any]) -> str:
    """Whether the counts fall as tau grows."""
    all_of_them, own = (
        all(a[key] >= b[key] for a, b in pairwise(rows.values()))
        for key in ("outliers", "outliers_of_their_own")
    )
    if all_of_them:
        return "Outliers fall with tau, as they must; the paper's counts do not."
    assert own
    return (
        "Outliers by their own mean or sensitivity fall with tau, as they must; the members of small clusters that are "
        "added to them need not. The paper's counts go up and down by tens of thousands."
    )


def plot(result: dict[str, Any]) -> None:
    """NLL against bytes of the file, a dot for each tau."""
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(5, 3), layout="constrained")
    for tau, found in result["rows"].items():
        ax.plot(found["bytes"] / 1e3, found["test"]["nll"], "o", color="tab:blue")
        ax.annotate(f" {tau}", (found["bytes"] / 1e3, found["test"]["nll"]))
    ax.set_xlabel("file (KB)")
    ax.set_ylabel("test NLL")
    ax.margins(0.12)  # room for the words
    ax.set_title("ResNet-20, CIFAR-10: tau_w at each dot")
    ax.grid(alpha=0.3)
    save_figure(figure, RESULT.with_suffix(".svg"))
    plt.close(figure)


if __name__ == "__main__":
    main()
