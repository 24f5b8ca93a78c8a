"""A figure as data: panels of marks, which one back end draws for the page and another for files.

Colours are names of the palette, so that a figure follows the page from light to dark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from pocketbayes.report.story import Array

LIGHT = {
    "page": "#fbfaf8",
    "card": "#ffffff",
    "ink": "#1d2127",
    "muted": "#626973",
    "grid": "#e6e4df",
    "after": "#0a6c94",
    "before": "#8b8f96",
    "warn": "#c2402b",
    "blend": "#c98a00",
    "heat": "#d9eaf1",
}
DARK = {
    "page": "#14171b",
    "card": "#1b1f25",
    "ink": "#e9e7e2",
    "muted": "#a2a8b1",
    "grid": "#2f353d",
    "after": "#62bde6",
    "before": "#8f959e",
    "warn": "#ff8a70",
    "blend": "#f0bd4b",
    "heat": "#23404e",
}


class Axis(NamedTuple):
    """An axis; `ticks` are places with names, in place of numbers."""

    title: str = ""
    log: bool = False
    percent: bool = False
    whole: bool = False  # numbers that are counted
    limits: tuple[float, float] | None = None
    ticks: tuple[tuple[float, str], ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Line:
    """A curve; with `markers`, dots at its points."""

    x: Array
    y: Array
    name: str
    color: str
    dashed: bool = False
    markers: bool = False
    hover: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Steps:
    """A histogram's outline, filled: heights [B] over edges [B + 1]."""

    edges: Array
    heights: Array
    name: str
    color: str
    filled: bool = True

    def corners(self) -> tuple[Array, Array]:
        """The outline as a curve, from zero to zero."""
        heights = np.concatenate([[0.0], np.repeat(self.heights, 2), [0.0]])
        return np.repeat(self.edges, 2), heights


@dataclass(frozen=True, kw_only=True, eq=False)
class Points:
    """Markers, `size` their diameters in pixels; `error` [N] the half-lengths of vertical bars."""

    x: Array
    y: Array
    name: str
    color: str
    size: Array | float = 6.0
    cross: bool = False
    opacity: float = 0.8
    error: Array | None = None
    hover: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Bars:
    """Horizontal bars with a text at their ends."""

    lengths: Array
    places: Array
    name: str
    color: str
    text: tuple[str, ...] = ()
    hover: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Boxes:
    """Horizontal boxes: quantiles [C, 5] of 5, 25, 50, 75 and 95 %."""

    quantiles: Array
    places: Array
    name: str
    color: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Heat:
    """Counts [Y, X] on a grid, shaded by their logarithm; empty cells are not drawn."""

    x_edges: Array
    y_edges: Array
    counts: Array
    name: str
    color: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Rule:
    """A vertical line with a label at its top."""

    x: float
    label: str


Mark: TypeAlias = Line | Steps | Points | Bars | Boxes | Heat | Rule


class Panel(NamedTuple):
    """Marks on a pair of axes."""

    x: Axis
    y: Axis
    marks: tuple[Mark, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Figure:
    """Panels one above the other; the caption says what to look for, `spoken` what a reader who cannot see gets."""

    name: str  # of its file and its place in the page
    title: str
    caption: str
    spoken: str
    panels: tuple[Panel, ...]
    height: int = 340  # pixels
    wide: bool = False  # takes both columns of the page
    legend: bool = True


def clean(text: object, most: int = 2000) -> str:
    """Text from a file: one line, nothing that a terminal, a page or XML would stumble on, not endless."""
    line = "".join(
        c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}"
        for c in str(text)[: most + 1]
    )
    return line if len(line) <= most else line[: most - 1] + "…"


def short(text: str, most: int = 22) -> str:
    """A name that fits beside an axis: its middle left out where it is long."""
    name = clean(text)
    return name if len(name) <= most else f"{name[: most // 2 - 1]}…{name[-(most - most // 2) :]}"
