"""One progress bar for all long work; silent where nobody looks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol, TypeVar

from pocketbayes.runs import ranks

Item = TypeVar("Item")
Show = Callable[[float, str], None]  # how much is done, and a note
MEMORY = 300.0  # seconds of work by whose speed the time left is told


class Bar(Protocol):
    """What the work reports to."""

    def advance(self, note: str = "") -> None: ...


class _Counting:
    def __init__(self, show: Show, done: int = 0) -> None:
        self._show, self._done = show, done

    def advance(self, note: str = "") -> None:
        self._done += 1
        self._show(self._done, note)


class _Stretch(NamedTuple):
    """What some work moves: a bar, from one fraction of the whole to another."""

    show: Show
    start: float = 0.0
    end: float = 1.0

    def reach(self, fraction: float, note: str) -> None:
        self.show(self.start + min(fraction, 1.0) * (self.end - self.start), note)

    def part(self, start: float, end: float) -> _Stretch:
        length = self.end - self.start
        return self._replace(start=self.start + start * length, end=self.start + end * length)


_stretch: ContextVar[_Stretch | None] = ContextVar("_stretch", default=None)


@contextmanager
def whole(
    title: str, shares: Mapping[str, float], *, enabled: bool = True
) -> Iterator[Callable[[str], AbstractContextManager[None]]]:
    """One bar over all of a long job, done `with part(name)` for the name of each share.

    Shares need only be rough.  What shows bars of its own in a part, be it a whole again, moves this bar instead.
    Parts that are left out are passed over.
    """
    outer = _stretch.get()
    if outer is None and not _looked_at(enabled):
        yield lambda _: nullcontext()
        return
    ends, end = {}, 0.0
    for name, share in shares.items():
        ends[name] = (end, end := end + share / sum(shares.values()))
    with _shown(title, 1.0) if outer is None else nullcontext(outer.reach) as show:

        @contextmanager
        def part(name: str) -> Iterator[None]:
            start, end = ends[name]
            own = _Stretch(show).part(start, end)
            own.reach(0.0, name)
            with _within(own):
                yield
            own.reach(1.0, name)

        with _within(_Stretch(show, 0.0, 0.0)):
            yield part


@contextmanager
def bar(title: str, total: int | None, *, enabled: bool = True, done: int = 0) -> Iterator[Bar]:
    """A bar on a terminal's standard error, with time left and a note; nothing elsewhere."""
    outer = _stretch.get()
    if not _looked_at(enabled):
        yield _Counting(lambda done, note: None)
    elif outer is not None:
        yield _Counting(
            lambda done, note: outer.reach(done / total if total else 0.0, f"{title} {note}"), done
        )
    else:
        with _shown(title, total, done) as show:
            yield _Counting(show, done)


def track(
    items: Iterable[Item], title: str, *, total: int | None = None, enabled: bool = True
) -> Iterator[Item]:
    """The items, under a bar."""
    total = len(items) if isinstance(items, Sized) else total
    with bar(title, total, enabled=enabled) as progress:
        for item in items:
            yield item
            progress.advance()


def _looked_at(enabled: bool) -> bool:
    return enabled and ranks.is_first() and sys.stderr.isatty()


@contextmanager
def _within(stretch: _Stretch) -> Iterator[None]:
    token = _stretch.set(stretch)
    try:
        yield
    finally:
        _stretch.reset(token)


@contextmanager
def _shown(title: str, total: float | None, done: int = 0) -> Iterator[Show]:
    """A bar of its own, which never goes back."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn() if isinstance(total, float) else MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    settings: dict[str, Any] = {"transient": True, "speed_estimate_period": MEMORY}
    with Progress(*columns, console=Console(stderr=True), **settings) as progress:
        task = progress.add_task(title, total=total, note="")
        progress.update(task, completed=done)

        def show(done: float, note: str) -> None:
            progress.update(task, completed=max(done, progress.tasks[task].completed), note=note)

        yield show
