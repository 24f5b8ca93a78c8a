"""Writing files so that nothing is ever half-written.  Nothing here needs torch."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def write_atomically(path: str | os.PathLike[str], data: bytes) -> None:
    """Write all of `data` to `path`, or leave what was there: temporary file, fsync, rename, fsync of the folder.

    Raises the OSError it is (a directory, no permission, a full disk), and removes the temporary file.
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(f"{path}: is a directory. Name a file in it")
    temporary = target.with_name(f".{target.name[:200]}.{secrets.token_hex(6)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(target.parent)


def require_writable(path: str | os.PathLike[str]) -> None:
    """Complain before the work, not after it, if `path` cannot be written."""
    path = Path(path)
    folder = path.parent
    if path.is_dir():
        raise IsADirectoryError(f"{path}: is a folder. Name a file in it.")
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder to write {path.name} to. Make it first.")
    probe = folder / f".{path.name[:200]}.probe"
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise PermissionError(f"{folder}: cannot write {path.name} there ({error.strerror}).") from error


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut, where the system lets a folder be opened."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # some network file systems refuse; the file itself is safe
            os.fsync(handle)
    finally:
        os.close(handle)
