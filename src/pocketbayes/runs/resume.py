"""Whose checkpoints these are: one run's alone, which goes on where it was, and nobody else's."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from pocketbayes.errors import ArtifactError
from pocketbayes.runs import ranks
from pocketbayes.runs.files import sweep, write_atomically

WORK = (".safetensors", ".pocket")  # files that took time to make; a note without any protects nothing
FINAL = (ValueError, TypeError, ArithmeticError)  # the same call would fail again


def require_same(place: Path, was: Mapping[str, Any], now: Mapping[str, Any], *, advice: str) -> None:
    """Refuse the checkpoints of another run: the error says what was, what is, and what to do.

    Args:
        place: the file or folder of the checkpoints.
        was, now: the facts that make a run what it is, by name.
        advice: what to do about it, one or two sentences.
    """
    changed = [
        f"{name} is missing {'there' if name in now else 'here'}"
        if name not in was or name not in now
        else f"{name} was {was[name]}, is {now[name]}"
        for name in {**now, **was}
        if name not in was or name not in now or was[name] != now[name]
    ]
    if changed:
        raise ArtifactError(
            f"{place}: the checkpoints are of another run ({'; '.join(changed[:4])}). {advice}"
        )


class Note:
    """The file beside checkpoints that says of what run they are."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def claim(self, facts: Mapping[str, Any], *, advice: str) -> bool:
        """Whether this run goes on where it was; refuses the work of another.  From then on the note says `facts`."""
        now = json.loads(json.dumps(facts))
        folder = self.path.parent
        if self.path.exists() and any(file.suffix in WORK for file in folder.iterdir()):
            require_same(folder, self._read(), now, advice=advice)
            return True
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, json.dumps(now).encode())
        return False

    def _read(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self.path.read_text()))
        except (ValueError, TypeError, RecursionError) as error:
            raise ArtifactError(
                f"{self.path}: damaged ({error}). Delete its folder to start afresh."
            ) from error


class Claim:
    """The checkpoints of one run in a folder, which may hold files of others too."""

    def __init__(self, folder: Path, facts: Mapping[str, Any], *, advice: str) -> None:
        self.folder, self.note = folder, Note(folder / "run.json")
        self.resumed = ranks.once(lambda: self.note.claim(facts, advice=advice))
        self.checkpoints: list[Path] = []

    def checkpoint(self, name: str) -> Path:
        """The file of that stage; it is there already only if this very run made it."""
        file = self.folder / f"{name}.safetensors"
        if not self.resumed and file not in self.checkpoints and ranks.once(file.exists):
            raise ArtifactError(f"{file}: nobody knows what run it is of. Delete it, or give another folder.")
        self.checkpoints.append(file)
        return file

    def release(self) -> None:
        """Delete the checkpoints, and last of all the note: none is ever without it."""
        for file in (*self.checkpoints, self.note.path) if ranks.is_first() else ():
            sweep(file)
            file.unlink(missing_ok=True)


@contextmanager
def claimed(folder: Path, facts: Mapping[str, Any], *, advice: str) -> Iterator[Claim]:
    """A folder that is this run's alone while the work inside goes on.

    The checkpoints go when the work is done, or when it fails so that the same call would fail again; they stay
    when it is interrupted.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder) if ranks.is_first() else nullcontext():
        claim = Claim(folder, facts, advice=advice)
        try:
            yield claim
        except BaseException as error:
            final = isinstance(error, FINAL) and not isinstance(error, ArtifactError)
            if final or not any(file.exists() for file in claim.checkpoints):
                claim.release()
            raise
        claim.release()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """No other process is in here with that folder; the lock ends with the process, however it dies."""
    try:
        import fcntl
    except ImportError:  # a system without such locks
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without such locks
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ArtifactError(
                    f"{folder}: another run is at work in this folder. Wait until it ends, or give another folder."
                ) from error
        yield
    finally:
        os.close(handle)
