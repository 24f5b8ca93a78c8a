"""`pocketbayes compress`: network, weights, data and a budget in; pocket file, record and page out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pocketbayes.cli.entry import Outcome, command
from pocketbayes.cli.options import BUDGET, OUTPUT, PLAN, Made, WithOod, byte_count, scale_from
from pocketbayes.cli.output import columns_table, console, note, number, rows_table, say
from pocketbayes.cli.settings import nested, option, required
from pocketbayes.compression.plan import Budget, Plan


@dataclass(frozen=True, kw_only=True)
class CompressOptions(WithOod, Made):
    """Those of `compress`."""

    weights: Path = required(
        "Its trained weights: safetensors, a torch state_dict, or a pocket file with a posterior.",
        "FILE",
        panel="Network",
    )
    budget: Budget = nested(
        every={"panel": BUDGET},
        max_bytes={"metavar": "SIZE", "kind": int | None, "parser": byte_count},
        max_accuracy_drop={"metavar": "FRACTION"},
        max_nll_rise={"metavar": "NATS"},
    )
    plan: Plan = nested(
        every={"panel": PLAN},
        prior={
            "metavar": "SCALE",
            "typed": "fan-in",
            "parse": scale_from,
            "also": ["0.2, fan-in or fan-in:GAIN."],
        },
        fisher_batches={"typed": 200, "parse": lambda count: count or None},
    )
    graph: bool = option(
        True,
        "Store the network's graph, which runs without torch.",
        panel=OUTPUT,
        names=["--graph/--no-graph"],
    )
    page: bool = option(True, "Write the report page OUT.html.", panel=OUTPUT, names=["--page/--no-page"])


@command(
    "compress --net mymodel:net --weights net.safetensors --data mnist --max-bytes 20KB --out small.pocket",
    "compress --net resnet20 --weights r20.safetensors --data cifar10 --augment --max-accuracy-drop 0.005 -o r20",
    "compress --config job.toml --seed 3",
    first=(
        *("net", "weights", "data", "augment", "max_bytes", "max_accuracy_drop", "max_nll_rise"),
        *("noise_cost", "epochs", "out"),
    ),
    resumable=True,
    divided=True,
)
def compress(given: CompressOptions) -> Outcome:
    """Turn a trained network into a pocket file that keeps a budget.

    The budget is a size, or the largest loss on validation data. Beside OUT.pocket stand OUT.json, the record of
    the run, and OUT.html, its page. Interrupted, the same command goes on where it was.
    """
    from pocketbayes.cli.job import Job

    job = Job(given)
    record = job.run()
    for warning in record["warnings"]:
        note(f"warning: {warning}.")
    return Outcome(record, lambda: show(record, job.out))


def show(record: Mapping[str, Any], out: Path) -> None:
    """Stages, before and after, and where the files are."""
    shown, test = console(), record["test"]
    keys = [k for k in ("accuracy", "rmse", "nll") if any(k in s["metrics"] for s in record["stages"])]
    rows = (
        (s["name"], f"{s['seconds']:.0f} s", *(number(s["metrics"].get(key)) for key in keys), s["note"])
        for s in record["stages"]
    )
    shown.print(rows_table(("stage", "time", *(f"validation {key}" for key in keys), "note"), rows))
    before = {**test["before"], "bytes": record["plain_bytes"]}
    after = {**test["after"], "bytes": record["bytes"]}
    title = f"{test['examples']:,} test examples"
    shown.print(columns_table(title, {"before": before, f"after, {test['samples']} draws": after}))
    say(f"{out}: {record['bytes']:,} bytes, {record['ratio']:.1f} times smaller than fp32")
    for suffix in (".json", ".html")[: 2 if record["page"] else 1]:
        say(f"{out.with_suffix(suffix)}")
