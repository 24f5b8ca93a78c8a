"""One progress bar for all long work; silent where nobody looks."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from pocketbayes.runs import ranks

Item = TypeVar("Item")


class Bar(Protocol):
    """What the work reports to."""

    def advance(self, note: str = "") -> None: ...


class _Silent:
    def advance(self, note: str = "") -> None:
        pass


class _Rich:
    def __init__(self, progress: Any, task: Any) -> None:
        self._progress, self._task = progress, task

    def advance(self, note: str = "") -> None:
        self._progress.update(self._task, advance=1, note=note)


@contextmanager
def bar(title: str, total: int | None, *, enabled: bool = True, done: int = 0) -> Iterator[Bar]:
    """A bar on a terminal's standard error, with time left and a note; nothing elsewhere."""
    if not (enabled and ranks.is_first() and sys.stderr.isatty()):
        yield _Silent()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield _Rich(progress, progress.add_task(title, total=total, completed=done, note=""))


def track(
    items: Iterable[Item], title: str, *, total: int | None = None, enabled: bool = True
) -> Iterator[Item]:
    """The items, under a bar."""
    total = len(items) if isinstance(items, Sized) else total
    with bar(title, total, enabled=enabled) as progress:
        for item in items:
            yield item
            progress.advance()
