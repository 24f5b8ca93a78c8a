"""What the commands print: tables, JSON and one-line messages."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pocketbayes.prediction.score import TITLES
from pocketbayes.runs import ranks
from pocketbayes.runs.files import finite, printable

SLOW = 100_000  # passes of which it is said that fewer would do


def console() -> Console:
    """Standard output: as wide as the terminal, and wide enough for long names where there is none."""
    return Console(width=None if sys.stdout.isatty() else 120, highlight=False)


def say(text: str) -> None:
    """A line of plain text on standard output; nothing in it is markup."""
    console().print(Text(printable(text)))


def note(message: str) -> None:
    """A line on standard error."""
    rank = ranks.started_as()
    typer.echo(f"pocketbayes: {f'rank {rank}: ' if rank else ''}{printable(message)}", err=True)


def passes(samples: object) -> str:
    """How inputs are answered, in words."""
    named = {"mean": "one pass", "auto": "as many draws as needed", 1: "1 draw"}
    return named.get(samples, f"{samples} draws")


def note_passes(inputs: int, samples: object) -> None:
    """Where an answer takes a while, what would take less."""
    if isinstance(samples, int) and inputs * samples >= SLOW:
        note(
            f"{inputs:,} inputs, {samples} passes of the network for each. --samples mean takes one, "
            "--samples auto as many as each input needs"
        )


def emit(result: Mapping[str, Any]) -> None:
    """The result as JSON on standard output: one line, and nothing else there."""
    typer.echo(json.dumps(finite(result), allow_nan=False))


def one_line(error: Exception) -> str:
    """What is wrong: as the library or the parser says it; anything else with its type, for it is a bug."""
    if hasattr(error, "format_message"):  # a wrong call
        return printable(" ".join(error.format_message().split()).rstrip(".") + ". See pocketbayes --help.")
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        return printable(f"{error.filename}: {error.strerror}.")
    message = printable(" ".join(str(error).split()))
    if isinstance(error, (OSError, ValueError, ArithmeticError, ImportError, MemoryError)):
        return message
    return f"{type(error).__name__}: {message} (this should not happen; --debug shows where it did)"


def number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4f}"


def columns_table(
    corner: str, columns: Mapping[str, Mapping[str, float]], titles: Mapping[str, str] = TITLES
) -> Table:
    """One column for each network, one row for each measure of `titles` that any of them has."""
    table = Table(box=SIMPLE_HEAD)
    table.add_column(Text(printable(corner)))
    for name in columns:
        table.add_column(Text(printable(name)), justify="right")
    present = {key for scores in columns.values() for key in scores}
    for key in [k for k in titles if k in present]:
        shown = "{:,.0f}".format if key == "bytes" else number
        table.add_row(titles.get(key, key), *(shown(s.get(key, math.nan)) for s in columns.values()))
    return table


def rows_table(headings: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> Table:
    """A table of texts, all but the first `left` columns aligned to the right."""
    table = Table(box=SIMPLE_HEAD)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table
