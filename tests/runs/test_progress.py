"""One bar over all of a long job: where it stands, whatever works within."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from pocketbayes.runs import progress
from pocketbayes.runs.progress import bar, track, whole

Shown = list[tuple[float, str]]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    """What a terminal would show: how much, and the note."""
    found: Shown = []

    @contextmanager
    def noted(title: str, total: float | None, done: int = 0) -> Iterator[Callable[[float, str], None]]:
        assert not found, "a second bar beside the first"
        found.append((done, title))
        yield lambda done, note: found.append((round(done, 6), note))

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(progress, "_shown", noted)
    return found


def test_bars_within_a_part_move_the_bar_of_the_whole(shown: Shown) -> None:
    with whole("job", {"first": 1, "second": 3}) as part:
        with part("first"):
            assert list(track(range(2), "reading")) == [0, 1]
        with part("second"), bar("fit", 4, done=2) as steps:
            steps.advance("nll 1")
    assert [done for done, _ in shown] == [0, 0, 0.125, 0.25, 0.25, 0.25, 0.8125, 1]
    assert shown[6] == (0.8125, "fit nll 1")


def test_a_whole_within_a_part_divides_that_part(shown: Shown) -> None:
    with (
        whole("job", {"train": 1, "test": 1}) as part,
        part("train"),
        whole("train", {"a": 1, "b": 1}) as inner,
    ):
        with inner("a"), bar("fit", 2) as steps:
            steps.advance()
        with inner("b"):
            pass
    assert [done for done, _ in shown] == [0, 0, 0, 0.125, 0.25, 0.25, 0.5, 0.5]


def test_parts_may_be_left_out_and_work_between_them_moves_nothing(shown: Shown) -> None:
    with whole("job", {"a": 1, "never": 2, "c": 1}) as part:
        with part("a"):
            pass
        list(track(range(3), "between"))
        with part("c"):
            pass
    assert [done for done, _ in shown] == [0, 0, 0.25, 0, 0, 0, 0.75, 1]


def test_an_error_leaves_nothing_behind(shown: Shown) -> None:
    with pytest.raises(KeyError), whole("job", {"a": 1}) as part, part("a"):
        raise KeyError
    shown.clear()
    list(track(range(2), "alone"))
    assert [done for done, _ in shown] == [0, 1, 2]


def test_nothing_is_shown_where_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_shown", None)  # would fail
    with whole("job", {"a": 1}) as part, part("a"):
        assert list(track(range(2), "items")) == [0, 1]


def test_the_bar_of_a_terminal_never_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    rich = pytest.importorskip("rich.progress")
    update = rich.Progress.update

    def noted(self: object, task: int, **fields: object) -> None:
        update(self, task, **fields)
        seen.append(self.tasks[task].completed)  # type: ignore[attr-defined]

    monkeypatch.setattr(rich.Progress, "update", noted)
    with progress._shown("job", 1.0) as show:
        for done in (0.2, 0.5, 0.3, 1.0):
            show(done, "")
    assert seen == [0, 0.2, 0.5, 0.5, 1.0]
