"""What a long run of the fuzzer found: sums over the last lines of its logs.

python -m fuzz pocket --count 76000 --seed 1 --log fuzz-1.jsonl   (each target, each seed)
python -m experiments.fuzzing fuzz-*.jsonl
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from experiments.markdown import MACHINE, table
from experiments.record import RESULTS, command_line, versions, write_result

RESULT = RESULTS / "fuzzing.json"
SUMS, PEAKS = ("mutants", "refused", "read", "wrong", "cpu_seconds"), ("slowest_ms", "megabytes")


def gathered(logs: list[Path]) -> dict[str, dict[str, float]]:
    """By target, from the last line of every seed."""
    last = {}
    for log in logs:
        for line in map(json.loads, log.read_text().splitlines()):
            last[line["target"], line["seed"]] = line
    found: dict[str, dict[str, float]] = {}
    for (target, _), line in sorted(last.items()):
        row = found.setdefault(target, dict.fromkeys(("seeds", *SUMS, *PEAKS), 0))
        row["seeds"] += 1
        row.update({key: round(row[key] + line[key], 1) for key in SUMS})
        row.update({key: max(row[key], line[key]) for key in PEAKS})
    return found


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("logs", nargs="+", type=Path)
    result = {"versions": versions(), "targets": gathered(parser.parse_args().logs)}
    write_result(RESULT, result)
    print(json.dumps(result, indent=1))


# --- the page ----------------------------------------------------------------------------------------------------

WHAT = {
    "pocket": "pocket files of every kind of model and noise",
    "checkpoint": "checkpoints",
    "weights": "plain weights",
    "data": "pictures, arrays, tables, archives, records",
}


def total(result: dict[str, Any], key: str = "mutants") -> int:
    return int(sum(row[key] for row in result["targets"].values()))


def headline(result: dict[str, Any]) -> str:
    wrong = total(result, "wrong")
    return (
        f"{total(result):,} mutants with right checksums, {wrong if wrong else 'none'} of which came through."
    )


def section(result: dict[str, Any]) -> str:
    rows = (
        (
            WHAT[name],
            f"{row['mutants']:,.0f}",
            f"{row['refused']:,.0f}",
            f"{row['read']:,.0f}",
            f"{row['wrong']:.0f}",
            f"{row['slowest_ms']:.0f} ms",
            f"{row['megabytes']:.0f} MB",
        )
        for name, row in result["targets"].items()
    )
    seeds = int(max(row["seeds"] for row in result["targets"].values()))
    return "\n\n".join(
        (
            "## Hostile files",
            f"`python -m fuzz TARGET --count N --seed S --log fuzz-S.jsonl` with seeds 1 to {seeds}, then `python -m "
            f"experiments.fuzzing fuzz-*.jsonl`; {total(result, 'cpu_seconds') / 60:.0f} minutes on one core of {MACHINE}.",
            "Good files of every kind are changed in their headers, sections, arrays and bytes, and get right lengths and "
            "checksums again. A mutant is refused by one error that says why, or read soundly: what is read can be written "
            "again to the same bytes, drawn from, loaded; a model that refuses a file is as it was. Anything else is wrong, "
            "and so is more than a second of the processor, or 200 MB.",
            table("| files | mutants | refused | read | wrong | slowest | most memory |", rows),
            "Earlier runs of as many mutants found what the tests now hold: noise whose tables overflow, arrays that "
            "rounding makes constant, checkpoints without weights, states of generators of another type, pictures of six "
            "million rows, and a parser of `.mat` files that crashes, so that it is given only the published file of SVHN.",
        )
    )


if __name__ == "__main__":
    main()
