"""What kills, faults and many threads do to runs and files.

A thousand runs of `fit`, `compress`, `save` and downloads are killed at random moments, and must go on to the same bytes
with no torn file and nothing left behind. Then full and read-only disks, folders that vanish and two runs in one folder;
then eight threads, ten thousand predictions, other processes and other types of numbers. Every part is kept when it is
done, and a later call goes on with the next.

    python -m experiments.reliability
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from experiments.markdown import measured, one_core, table
from experiments.record import RESULTS, command_line, kept, versions, write_result
from experiments.trials import load
from experiments.trials.faults import FAULTS
from experiments.trials.kills import kills, undisturbed
from experiments.trials.works import Work, works

RESULT = RESULTS / "reliability.json"
KILLS = {"fit": 300, "compress": 200, "save": 300, "download": 200}
PART = 50  # kills between two times that something is kept


def parts(work: dict[str, Work], quick: bool) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """(what is tried, with what, the trial): all of them, in order."""
    for name, count in KILLS.items():
        for seed in range(1 if quick else count // PART):
            yield "kills", f"{name} {seed}", partial(kills, name, work[name], 4 if quick else PART, seed)
    for name in KILLS:
        yield "faults", name, partial(faults, name, work[name])
    yield "load", "threads", partial(load.threads, 64 if quick else 2000)
    yield "load", "memory", partial(load.memory, 500 if quick else 10_000)
    yield "load", "processes", load.processes
    yield "load", "dtypes", load.dtypes


def faults(name: str, work: Work) -> dict[str, str]:
    expected, told = undisturbed(name, work), {}
    for fault in FAULTS:
        told |= fault(name, work, expected)
    return told


def run(folder: Path, quick: bool) -> dict[str, Any]:
    """All parts; those in the folder are not tried again."""
    found: dict[str, Any] = {"kills": {}, "faults": {}, "load": {}}
    seconds = 0.0
    with works() as work:
        for kind, name, trial in parts(work, quick):
            told, spent = kept(folder / f"{kind} {name}.json", partial(timed, trial))["value"]
            seconds += spent
            if kind == "kills":
                sums = found[kind].setdefault(name.split()[0], dict.fromkeys(told, 0))
                sums.update({key: sums[key] + value for key, value in told.items()})
            else:
                found[kind][name] = told
    return {**found, "seconds": round(seconds)}


def timed(trial: Callable[[], Any]) -> tuple[Any, float]:
    """What it finds, and the seconds of the processor that it and its children took."""
    before = sum(os.times()[:4])
    return trial(), sum(os.times()[:4]) - before


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--quick", action="store_true", help="a few of each, for the tests")
    parser.add_argument("--out", type=Path, default=RESULT)
    given = parser.parse_args()
    torch.set_num_threads(1)
    folder = given.out.with_suffix(".parts")
    result = {
        "command": "python -m experiments.reliability",
        "versions": versions(),
        **run(folder, given.quick),
    }
    write_result(given.out, result)
    shutil.rmtree(folder)
    print(json.dumps(result, indent=1))


# --- the page ----------------------------------------------------------------------------------------------------


def total(result: dict[str, Any]) -> int:
    return sum(row["kills"] for row in result["kills"].values())


def headline(result: dict[str, Any]) -> str:
    return f"{total(result):,} kills, each gone on from to the same bytes."


def section(result: dict[str, Any]) -> str:
    killed = table(
        "| work | kills | that left a temporary file | runs |",
        ((name, f"{row['kills']:,}", row["temporary"], row["runs"]) for name, row in result["kills"].items()),
    )
    faulted = table(
        "| fault | work | what it says |",
        (
            (fault, work, message)
            for fault in next(iter(result["faults"].values()))
            for work, told in result["faults"].items()
            for message in [told[fault]]
        ),
    )
    found = result["load"]
    threads, memory = found["threads"], found["memory"]
    loaded = [
        f"Eight threads, {threads['one model']:,} predictions with one model and {threads['a model each']:,} with a "
        f"model each: the bits of a single thread. An unrelated module in another thread was called "
        f"{threads['calls of an unrelated module meanwhile']:,} times meanwhile and never noticed.",
        f"{memory['predictions']:,} predictions in a row: {memory['megabytes'][0]} MB after the first tenth, "
        f"{memory['megabytes'][1]} MB after all.",
        "The same bits in: " + "; ".join(found["processes"]["same bits"]) + "; after pickle; in a copy.",
        "Compressed, saved, loaded and asked in each type, NLL: "
        + ", ".join(f"{name} {value:.3f}" for name, value in found["dtypes"].items())
        + ".",
    ]
    return "\n\n".join(
        (
            "## Kills, faults and load",
            measured(result, one_core(result["seconds"])),
            "Runs killed by SIGKILL at random moments and started again, up to five times each. A run is held to the "
            "bytes of one that nobody disturbed, to the list of files that one leaves, and at every kill to whole "
            "results and checkpoints with their checksums; the first that breaks this ends the experiment with an error. "
            "Temporary files go with the next write.",
            killed,
            "What a user reads of a fault; what was there stays whole, and the next try ends with the same bytes.",
            faulted,
            "Load.",
            "\n".join(f"- {line}" for line in loaded),
        )
    )


if __name__ == "__main__":
    main()
