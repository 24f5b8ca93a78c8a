"""Table 10 of the sharing paper: before and after merging components.  ResNet-20 on CIFAR-10.

    python -m experiments.sharing.table10 --data DIR

Both rows start from one posterior and are fine-tuned for three epochs, one seed.
"""

from __future__ import annotations

from typing import Any

import torch

import pocketbayes as pb
from experiments.markdown import cost, measured, table
from experiments.record import RESULTS, versions, write_result
from experiments.sharing.bench import PROTOCOL, Bench, arguments, bench_of, counts, quality, slashed
from experiments.sharing.table5 import paper_row

RESULT = RESULTS / "sharing/table10.json"
PAPER = {"before merging": (88.77, 0.3792, 0.0500), "after merging": (91.02, 0.3066, 0.0374)}


def unmerged_row(bench: Bench) -> dict[str, Any]:
    return bench.row("unmerged", pb.Paper(merge=None))


def main() -> None:
    args = arguments(__doc__).parse_args()
    torch.set_num_threads(args.threads)
    bench = bench_of(args)
    result = {
        "command": "python -m experiments.sharing.table10 --data DIR",
        "rows": {
            "before merging": unmerged_row(bench),
            "after merging": paper_row(bench),
        },
        "versions": versions(),
    }
    write_result(RESULT, result)


def headline(result: dict[str, Any]) -> str:
    """For RESULTS.md."""
    return f"merging {what_merging_does(result['rows'])}."


def what_merging_does(rows: dict[str, Any]) -> str:
    before, after = rows.values()
    points = 100 * (after["test"]["accuracy"] - before["test"]["accuracy"])
    return (
        f"takes the file from {before['bytes']:,} to {after['bytes']:,} bytes and changes accuracy by {points:+.2f} points, "
        f"NLL by {after['test']['nll'] - before['test']['nll']:+.4f}"
    )


def section(result: dict[str, Any]) -> str:
    """This experiment's part of its page."""
    rows = result["rows"]
    cells = (
        (name, *counts(row, "components", "blends", "bytes"), *quality([row]), slashed(PAPER[name]))
        for name, row in rows.items()
    )
    return f"""## Table 10: merging

{measured(result, "seed 0", cost(row["seconds"] for row in rows.values()))} {PROTOCOL}

{table("| | components | blends | bytes | accuracy (%) | NLL | ECE | paper: accuracy / NLL / ECE |", cells)}

Merging {what_merging_does(rows)} (one run each; the test images alone give accuracies a standard error of 0.28 points).
The paper reports a gain of 2.25 points. Components that merging joins are close to one another by its own threshold, and
both rows are fine-tuned for as long, so there is little for it to change here but the bytes.
"""


if __name__ == "__main__":
    main()
