"""Table 8 of the sharing paper: the threshold tau_w beyond which a weight is an outlier.  ResNet-20 on CIFAR-10.

    python -m experiments.sharing.table8 --data DIR

Every row starts from one posterior and is fine-tuned for three epochs, one seed.  The best fraction of outliers is read off it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

import pocketbayes as pb
from experiments.markdown import cost, measured, picture, table
from experiments.record import RESULTS, new_figure, save_figure, versions, write_result
from experiments.sharing.bench import PROTOCOL, Bench, arguments, bench_of, counts, quality, slashed
from experiments.sharing.table5 import paper_row
from pocketbayes.sharing import AbsoluteMean, Outliers

RESULT = RESULTS / "sharing/table8.json"
WEIGHTS = 268_336
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
        "command": " ".join(
            ["python -m experiments.sharing.table8 --data DIR --taus", *map(str, sorted(args.taus))]
        ),
        "rows": {str(tau): row(bench, tau) for tau in sorted(args.taus)},
        "versions": versions(),
    }
    write_result(RESULT, result)
    plot(result)


def headline(result: dict[str, Any]) -> str:
    """For RESULTS.md."""
    tau, found = best_of(result["rows"])
    return f"tau = {tau} by validation NLL, {found['outliers']:,} outliers."


def best_of(rows: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """By validation NLL."""
    return min(rows.items(), key=lambda item: item[1]["validation"]["nll"])


def section(result: dict[str, Any]) -> str:
    """This experiment's part of its page."""
    rows, columns = (
        result["rows"],
        ("outliers", "outliers_of_their_own", "blends", "components", "scalars", "bytes"),
    )
    cells = (
        (
            tau,
            *counts(found, *columns),
            *quality([found]),
            f"{found['cost_of_widths']['nats']:.3f}",
            slashed(PAPER.get(float(tau), ())),
        )
        for tau, found in rows.items()
    )
    best, found = best_of(rows)
    return f"""## Table 8: the threshold of outliers

{measured(result, "seed 0", cost(found["seconds"] for found in rows.values()))} {PROTOCOL}

{table("| tau_w | outliers | by their own mean or Fisher information | blends | components | trained scalars | bytes | accuracy (%) | NLL | ECE | cost of sigma | paper: accuracy / NLL / ECE / outliers |", cells)}

{falling({float(tau): found for tau, found in rows.items()})} By validation NLL tau = {best} is best, {found["outliers"]:,} outliers of {WEIGHTS:,} weights. The cost of sigma
is that of Table 5: a large weight in a narrow minimum, not kept apart, takes the sigma of its cluster. One run a row,
and accuracies have a standard error of 0.28 points from the test images alone.

{picture(RESULT, "NLL against bytes, a dot for each tau")}
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
        "Outliers by their own mean or Fisher information fall with tau, as they must; the members of small clusters that are "
        "added to them need not. The paper's counts go up and down by tens of thousands."
    )


def plot(result: dict[str, Any]) -> None:
    """NLL against bytes of the file, a dot for each tau."""
    figure = new_figure(5, 3)
    ax = figure.subplots()
    for tau, found in result["rows"].items():
        ax.plot(found["bytes"] / 1e3, found["test"]["nll"], "o", color="tab:blue")
        ax.annotate(f" {tau}", (found["bytes"] / 1e3, found["test"]["nll"]))
    ax.set_xlabel("file (KB)")
    ax.set_ylabel("test NLL")
    ax.margins(0.12)  # room for the words
    ax.set_title("ResNet-20, CIFAR-10: tau_w at each dot")
    ax.grid(alpha=0.3)
    save_figure(figure, RESULT)


if __name__ == "__main__":
    main()
