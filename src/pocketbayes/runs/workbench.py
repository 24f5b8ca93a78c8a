"""The folder of an unfinished job: its checkpoints, and whose they are."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pocketbayes.runs.files import write_atomically


class Workbench:
    """OUT.checkpoints: made when a job starts, found by the same command run again, gone when all is done.

    A run that was interrupted is protected from one with other options; one that failed is not, so that a failure
    never stands in the way of its own correction.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], *, restart: bool = False) -> None:
        self.folder = folder
        changed = self._changed(settings)
        if restart or (changed and self.read("failed") is not None):
            self.clear()
        elif changed:
            raise ValueError(
                f"{self.folder}: an unfinished run with other options ({'; '.join(changed[:4])}). "
                "Repeat that run's options to go on, or add --restart to begin anew."
            )
        folder.mkdir(parents=True, exist_ok=True)
        self.write("settings", settings)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Work here: the folder goes when it succeeds; when it cannot succeed as it was asked to, that is noted."""
        (self.folder / "failed.json").unlink(missing_ok=True)
        try:
            yield
        except (ValueError, ArithmeticError) as error:
            self.write("failed", {"error": str(error)})
            raise
        self.clear()

    def read(self, name: str) -> dict[str, Any] | None:
        """What `write` noted under that name."""
        path = self.folder / f"{name}.json"
        return dict(json.loads(path.read_text())) if path.exists() else None

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        write_atomically(self.folder / f"{name}.json", json.dumps(content).encode())

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _changed(self, settings: Mapping[str, Any]) -> list[str]:
        """The settings that differ from those of the run whose folder this is."""
        before, now = self.read("settings"), json.loads(json.dumps(settings))
        if before is None:
            return []
        return [f"{k} was {before.get(k)}, is {v}" for k, v in now.items() if before.get(k) != v]


def digest(path: Path) -> str:
    """SHA-256 of a file, shortened: enough to tell whether it is the same one."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
