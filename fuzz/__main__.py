"""Run the fuzzer:  python -m fuzz [TARGET ...] --seconds 60

Mutant i of a target depends on (seed, target, i) alone. A run writes a line of its state now and then; --log FILE
appends the lines to a file too, and a later run with the same file goes on after the last of them. What came through is
kept in --found, as a file to look at and to make a seed of.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import torch

from fuzz.judge import Judge
from fuzz.targets import TARGETS, Target, warm_up

EVERY = 20.0  # seconds between two lines
MOST = 4 << 30  # bytes of address space beyond those at the start: a bomb is an error, not a dead machine


def run(
    name: str,
    *,
    count: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    start: int = 0,
    **where: Any,
) -> Iterator[tuple[Judge, int]]:
    """Judge mutants `start`, start + 1 ... of a target; yields (judge, the next number) after each."""
    target, began, number = TARGETS[name], time.monotonic(), start
    with TemporaryDirectory(dir=where.get("scratch")) as folder:
        warm_up(target, name, seed, Path(folder))
        judge = Judge(target.clean)
        while (count is None or number < count) and (seconds is None or time.monotonic() - began < seconds):
            one(judge, target, name, number, seed, Path(folder), where.get("found"))
            number += 1
            yield judge, number


def one(
    judge: Judge, target: Target, name: str, number: int, seed: int, folder: Path, found: Path | None
) -> None:
    """One mutant, told of and kept if it comes through."""
    mutant = target.make(Random(f"{seed} {name} {number}"), folder)
    wrong = judge(mutant.attempt)
    if wrong is None:
        return
    print(f"{name} {number} ({mutant.seed}): {wrong}", file=sys.stderr, flush=True)
    if found is not None:
        found.mkdir(parents=True, exist_ok=True)
        (found / f"{name}-{hashlib.sha256(mutant.data).hexdigest()[:12]}").write_bytes(mutant.data)


def resumed(log: Path | None, name: str, seed: int) -> tuple[int, dict[str, Any]]:
    """Where the last run with this log was: (the next number, its counts)."""
    lines = (
        [json.loads(line) for line in log.read_text().splitlines()]
        if log is not None and log.exists()
        else []
    )
    mine = [line for line in lines if (line["target"], line["seed"]) == (name, seed)]
    return (mine[-1]["next"], mine[-1]) if mine else (0, {})


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "targets", nargs="*", choices=[*TARGETS, []], metavar="TARGET", help=", ".join(TARGETS)
    )
    parser.add_argument("--seconds", type=float, help="for each target")
    parser.add_argument(
        "--count", type=int, help="mutants of each target, those of earlier runs with this log included"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--found", type=Path, default=Path("fuzz-found"))
    parser.add_argument("--scratch", type=Path, help="folder for files; one in memory is faster")
    given = parser.parse_args()
    torch.set_num_threads(1)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MOST, resource.RLIM_INFINITY))
    wrong = 0
    for name in given.targets or TARGETS:
        start, before = resumed(given.log, name, given.seed)
        told, began = time.monotonic(), time.process_time()
        judge, number = Judge(TARGETS[name].clean), start
        for judge, number in run(
            name,
            count=given.count,
            seconds=given.seconds,
            seed=given.seed,
            start=start,
            found=given.found,
            scratch=given.scratch,
        ):
            if time.monotonic() - told > EVERY:
                told = time.monotonic()
                tell(name, given, judge, number, before, time.process_time() - began)
        tell(name, given, judge, number, before, time.process_time() - began)
        wrong += judge.counts["wrong"]
    return int(wrong > 0)


def tell(
    name: str, given: argparse.Namespace, judge: Judge, number: int, before: dict[str, Any], seconds: float
) -> None:
    """A line of JSON: all mutants of this target and seed so far."""
    line: dict[str, Any] = {"target": name, "seed": given.seed, "next": number}
    line |= {key: judge.counts[key] + before.get(key, 0) for key in ("mutants", "refused", "read", "wrong")}
    line["cpu_seconds"] = round(seconds + before.get("cpu_seconds", 0), 1)
    line["slowest_ms"] = round(max(1000 * judge.slowest, before.get("slowest_ms", 0)))
    line["megabytes"] = round(max(judge.growth, before.get("megabytes", 0)))
    print(json.dumps(line), flush=True)
    if given.log is not None:
        with given.log.open("a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    sys.exit(main())
