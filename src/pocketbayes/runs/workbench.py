"""The folder of an unfinished job: its checkpoints, and whose they are."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pocketbayes.runs import ranks
from pocketbayes.runs.files import write_atomically
from pocketbayes.runs.resume import Note, locked


class Workbench:
    """OUT.checkpoints: made when a job starts, found by the same command run again, gone when all is done.

    Within a `with` block it is this job's alone: the lock is on a folder of its own, since `compress` locks the whole.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], *, restart: bool = False) -> None:
        self.folder, self.settings, self.restart = folder, settings, restart
        self.resumed = False
        self._lock = ExitStack()

    def __enter__(self) -> Workbench:
        with ExitStack() as stack:
            stack.push(self.__exit__)
            self.resumed = ranks.once(self._claimed)
            stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    def _claimed(self) -> bool:
        seat = self.folder / "at-work"
        seat.mkdir(parents=True, exist_ok=True)
        self._lock.enter_context(locked(seat))
        if self.restart:
            with locked(self.folder):
                for left in self.folder.iterdir():
                    if left.is_file():
                        left.unlink()
        advice = "Repeat that run's options to go on, or add --restart to begin anew."
        return Note(self.folder / "settings.json").claim(self.settings, advice=advice)

    def read(self, name: str) -> dict[str, Any] | None:
        """What `write` noted under that name."""
        path = self.folder / f"{name}.json"
        return ranks.once(lambda: dict(json.loads(path.read_text())) if path.exists() else None)

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        if ranks.is_first():
            write_atomically(self.folder / f"{name}.json", json.dumps(content).encode())

    def clear(self) -> None:
        if ranks.is_first():
            shutil.rmtree(self.folder, ignore_errors=True)


def digest(path: Path) -> str:
    """SHA-256 of a file, shortened: enough to tell whether it is the same one."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
