"""Writing files so that nothing is ever half-written, and what may be written: numbers that JSON has, text without
control characters.  Nothing here needs torch.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


def write_atomically(path: str | os.PathLike[str], data: bytes) -> None:
    """Write all of `data` to `path`, or leave what was there: temporary file, fsync, rename, fsync of the folder.

    A file that is replaced keeps its permissions.  Raises the OSError it is (a directory, no permission, a full disk),
    and removes the temporary file; that of a process that was killed goes when its file is next written.
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(f"{path}: is a directory. Name a file in it")
    try:
        sweep(target)
        with _temporary(target) as (temporary, file):
            with contextlib.suppress(FileNotFoundError):
                os.chmod(temporary, stat.S_IMODE(target.stat().st_mode))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, target)
        sync_folder(target.parent)
    except OSError as error:
        told = f"{error.strerror or error} (not written; name a folder that is there and has room)"
        raise type(error)(error.errno, told, str(path)) from error


def sweep(path: Path) -> None:
    """Remove the temporary files that killed processes left while they wrote `path`; a living one holds a lock."""
    start = f".{path.name[:200]}."
    for left in path.parent.iterdir():
        if left.name.startswith(start) and left.suffix == ".tmp":
            with contextlib.suppress(OSError), left.open("rb") as file:
                if _lock(file):
                    left.unlink()


@contextmanager
def _temporary(target: Path) -> Iterator[tuple[Path, IO[bytes]]]:
    """A new locked file beside the target, gone afterwards unless it was renamed."""
    while True:
        temporary = target.with_name(f".{target.name[:200]}.{secrets.token_hex(6)}.tmp")
        with temporary.open("xb") as file:
            if not (_lock(file) and temporary.exists()):  # swept between two lines
                continue
            try:
                yield temporary, file
            finally:
                with contextlib.suppress(OSError):
                    temporary.unlink()
            return


def _lock(file: IO[bytes]) -> bool:
    """Whether no living process holds the file; its death ends a lock."""
    try:
        import fcntl
    except ImportError:  # a system without such locks: what was left stays
        return "x" in file.mode
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def require_writable(path: str | os.PathLike[str]) -> None:
    """Complain before the work, not after it, if `path` cannot be written."""
    path = Path(path)
    folder = path.parent
    if path.is_dir():
        raise IsADirectoryError(f"{path}: is a folder. Name a file in it.")
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder to write {path.name} to. Make it first.")
    try:
        with _temporary(path):
            pass
    except OSError as error:
        raise PermissionError(f"{folder}: cannot write {path.name} there ({error.strerror}).") from error


def sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut, where the system lets a folder be opened."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # some network file systems refuse; the file itself is safe
            os.fsync(handle)
    finally:
        os.close(handle)


def finite(value: Any) -> Any:
    """The same with null for numbers that JSON lacks, and lists for tuples and arrays."""
    if isinstance(value, Mapping):
        return {str(k): finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(v) for v in value]
    if hasattr(value, "tolist"):
        return finite(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def printable(text: str) -> str:
    """Text from a file, without the control characters that a terminal would obey."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
