"""SIGKILL at random moments: the next run goes on to the same bytes, and leaves nothing behind."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from experiments.trials.works import Work, files, forked, require_sound, to_save

MOST = 5  # kills of one run, which then may end


class Undisturbed(NamedTuple):
    """What a run that nobody kills leaves, and how long it takes."""

    files: dict[str, bytes]
    allowed: dict[str, set[bytes]]  # what a result may hold at any moment
    seconds: float


def undisturbed(name: str, work: Work) -> Undisturbed:
    with TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "a").mkdir()
        (folder / "b").mkdir()
        work.run(folder / "a")  # here: what is imported on the way is there for all children
        started = time.monotonic()
        ended(forked(lambda: work.run(folder / "b")))
        seconds = time.monotonic() - started
        found = files(folder / "a")
        allowed = {end: {found[end]} for end in work.ends}
        if name == "save":
            allowed[work.ends[0]] |= {saved(model, folder / "x") for model in to_save()}
        assert all(files(folder / "b")[end] == found[end] for end in work.ends), (
            "two runs differ by themselves"
        )
        return Undisturbed(found, allowed, seconds)


def saved(model: object, path: Path) -> bytes:
    import pocketbayes as pb

    pb.save(model, path)
    return path.read_bytes()


def ended(pid: int) -> bool:
    """Whether a child was killed; one that failed by itself is an error."""
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "a run failed; its error stands above"
    return os.WIFSIGNALED(status)


def kills(name: str, work: Work, count: int, seed: int) -> dict[str, int]:
    """Kill runs until `count` were killed: {runs, kills, kills that left a temporary file}."""
    expected, dice = undisturbed(name, work), random.Random(f"{name} {seed}")
    told = {"runs": 0, "kills": 0, "temporary": 0}
    while told["kills"] < count:
        with TemporaryDirectory() as made:
            folder, before = Path(made), told["kills"]
            while True:
                pid = forked(lambda folder=folder: work.run(folder))
                if told["kills"] - before < MOST:
                    time.sleep(dice.uniform(0, expected.seconds))
                    os.kill(pid, signal.SIGKILL)
                if not ended(pid):
                    break
                found = files(folder)
                require_sound(found, folder, expected.allowed)
                told["kills"] += 1
                told["temporary"] += any(file.endswith(".tmp") for file in found)
            found = files(folder)
            assert found.keys() == expected.files.keys(), f"{name}: left behind: {sorted(found)}"
            for end in work.ends:
                assert found[end] == expected.files[end], f"{name}: {end} ends with other bytes"
            told["runs"] += 1
    return told
