"""Fetch a file once, whole or not at all: resumable, checked by size and SHA-256, renamed into place."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import NamedTuple
from urllib.request import Request, urlopen

from pocketbayes.runs.files import sync_folder
from pocketbayes.runs.resume import locked

CHUNK = 1 << 18
TIMEOUT = 30.0  # seconds without a single byte


class Remote(NamedTuple):
    """A public file: where it is, and what it must be."""

    urls: Sequence[str]  # tried in this order
    size: int  # bytes
    sha256: str


def fetch(remote: Remote, path: Path) -> Path:
    """`path`, downloaded from the first address that answers unless it is there already.

    What has arrived is kept in `path` + ".part", and the next call continues from there.  A second process is refused
    while one downloads to the same folder.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.parent):
            return _fetch(remote, path)
    require_published(path, remote)
    return path


def require_published(path: Path, remote: Remote) -> None:
    """A file that lies on the disk must be the published one, like one that was just downloaded."""
    if found := _difference(path, remote):
        raise ValueError(f"{path}: {found}. Remove it and run again, and it is downloaded anew.")


def _fetch(remote: Remote, path: Path) -> Path:
    part = path.with_name(path.name + ".part")
    failures = []
    for url in remote.urls:
        try:
            _receive(url, part, remote.size)
            if found := _difference(part, remote):
                part.unlink()
                raise ValueError(f"{found}; removed")
        except (OSError, HTTPException, ValueError) as error:
            failures.append(f"  {url}: {error}")
        else:
            part.replace(path)
            sync_folder(path.parent)
            return path
    raise FileNotFoundError(
        f"{path} is missing and could not be downloaded:\n" + "\n".join(failures) + "\n"
        f"Download it by hand ({remote.size:,} bytes, SHA-256 {remote.sha256}) and put it at {path}, "
        "or run again to continue."
    )


def _receive(url: str, part: Path, size: int) -> None:
    """Append to `part` what it still lacks of `size` bytes."""
    have = part.stat().st_size if part.exists() else 0
    if have == size:
        return
    headers = {"User-Agent": "pocketbayes", "Accept-Encoding": "identity"}
    if 0 < have < size:
        headers["Range"] = f"bytes={have}-"
    with urlopen(Request(url, headers=headers), timeout=TIMEOUT) as answer:
        resumed = _continues_at(answer, have)
        with part.open("ab" if resumed else "wb") as file, _progress(url, size) as advance:
            have = have if resumed else 0
            if answer.length is not None and have + answer.length != size:
                raise OSError(
                    f"the server offers {have + answer.length:,} bytes, the published file has {size:,}"
                )
            advance(have)
            while have <= size and (chunk := answer.read(CHUNK)):  # a server that never ends is cut off
                file.write(chunk)
                have += len(chunk)
                advance(len(chunk))
            file.flush()
            os.fsync(file.fileno())
    if have < size:
        raise OSError(f"the connection broke after {have:,} of {size:,} bytes")


def _continues_at(answer: HTTPResponse, have: int) -> bool:
    """Whether the server sends what follows byte `have`; one that ignores ranges sends all of it again."""
    return answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")


def _difference(path: Path, remote: Remote) -> str:
    """In what a file differs from the published one; nothing if it is that."""
    size = path.stat().st_size
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if (size, sha256) == (remote.size, remote.sha256):
        return ""
    return f"{size:,} bytes with SHA-256 {sha256}, which is not the published file"


@contextmanager
def _progress(url: str, size: int) -> Iterator[Callable[[int], None]]:
    """A bar with speed and time left on standard error, drawn only on a terminal and gone afterwards."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(url.rsplit("/", 1)[-1], total=size)
        yield lambda count: bar.advance(task, count)
