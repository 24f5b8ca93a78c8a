"""Disks that are full or read-only, folders that vanish, two runs in one place: what the error says, and that a
second try ends with the same bytes.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from experiments.trials.kills import Undisturbed, ended
from experiments.trials.works import Work, files, forked, require_sound

DISK = 1 << 20  # bytes


def complaint(run: Callable[[Path], None], folder: Path) -> str:
    """What a child that works in the folder complains of, in one line; "" if it ends well.

    Only what a user can do something about is a complaint: anything else that is raised is an error of ours.
    """
    reading, writing = os.pipe()

    def tell() -> None:
        try:
            run(folder)
        except (OSError, ValueError) as error:
            told = " ".join(str(error).replace(str(folder), "folder").split()[:40])
            os.write(writing, f"{type(error).__name__}: {told}".encode())

    pid = forked(tell)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        told = pipe.read()
    ended(pid)
    return told


@contextmanager
def small_disk() -> Iterator[Path | None]:
    """A file system of DISK bytes in memory; None where it cannot be mounted."""
    with TemporaryDirectory() as made:
        options = ["-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", made]
        with suppress(FileNotFoundError):
            if subprocess.run(["mount", *options], capture_output=True).returncode == 0:
                try:
                    yield Path(made)
                finally:
                    subprocess.run(["umount", "--lazy", made], check=True)
                return
        yield None


def again(name: str, work: Work, folder: Path, expected: Undisturbed) -> None:
    """What lies there is sound, and the next try ends as if nothing had been."""
    require_sound(files(folder), folder, expected.allowed)
    folder.mkdir(exist_ok=True)
    work.run(folder)
    found = files(folder)
    assert found.keys() == expected.files.keys(), f"{name}: left behind: {sorted(found)}"
    assert all(found[end] == expected.files[end] for end in work.ends), f"{name}: ends with other bytes"


def full_disk(name: str, work: Work, expected: Undisturbed) -> dict[str, str]:
    """With room for some parts of what the work writes, and for nothing."""
    told = ""
    with small_disk() as disk:
        if disk is None:
            return {"full disk": "not tried: no file system could be mounted"}
        needed = sum(map(len, expected.files.values()))
        for room in (0, needed // 3, needed - 1):
            (folder := disk / "folder").mkdir()
            filler = disk / "filler"
            with suppress(OSError):
                filler.write_bytes(bytes(DISK))
            os.truncate(filler, filler.stat().st_size - -(-room // 4096) * 4096)
            found = complaint(work.run, folder)
            told = told or found
            if room == 0:
                assert found, f"{name}: nothing was said of a full disk"
            left = [file for file in files(folder) if file.endswith(".tmp")]
            assert not left, f"{name}: left behind on a full disk: {left}"
            filler.unlink()
            again(name, work, folder, expected)
            shutil.rmtree(folder)
    return {"full disk": told}


def read_only(name: str, work: Work, expected: Undisturbed) -> dict[str, str]:
    """Refused before the work begins, with nothing touched."""
    with small_disk() as disk:
        if disk is None:
            return {"read-only folder": "not tried: no file system could be mounted"}
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        told = complaint(work.run, disk)
        assert told, f"{name}: nothing was said of a read-only folder"
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        assert not files(disk)
        again(name, work, disk, expected)
    return {"read-only folder": told}


def vanished(name: str, work: Work, expected: Undisturbed, times: int = 8) -> dict[str, str]:
    """The folder is deleted while the work goes on."""
    dice, told = random.Random(name), ""
    for _ in range(times):
        with TemporaryDirectory() as made:
            (folder := Path(made) / "folder").mkdir()
            deleting = forked(partial(_delete, folder, dice.uniform(0, expected.seconds)))
            found = complaint(work.run, folder)
            ended(deleting)
            told = told or found
            again(name, work, folder, expected)
    return {"folder deleted": told or "made again, without a word"}


def _delete(folder: Path, seconds: float) -> None:
    """After so many seconds."""
    time.sleep(seconds)
    shutil.rmtree(folder, ignore_errors=True)


def two_runs(name: str, work: Work, expected: Undisturbed) -> dict[str, str]:
    """The second is refused, or ends with the same bytes too; the death of the first lets it in."""
    with TemporaryDirectory() as made:
        folder, told = Path(made), ""
        first = forked(lambda: work.run(folder))
        while not told and os.waitpid(first, os.WNOHANG) == (0, 0):
            told = complaint(work.run, folder) if files(folder) else ""
        with suppress(ChildProcessError, ProcessLookupError):
            os.kill(first, signal.SIGKILL)
            os.waitpid(first, 0)
        again(name, work, folder, expected)
    return {"two runs in one folder": told or "both end with the same bytes"}


FAULTS = (full_disk, read_only, vanished, two_runs)
