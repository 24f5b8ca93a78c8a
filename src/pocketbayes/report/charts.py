"""What all charts share: a chart with its words, the palette, and the few layers that occur more than once.

Colours are CSS variables, "var(--after)", so that a figure of the page follows its theme; a file gets the light ones.
"""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, TypeAlias

import altair as alt
import numpy as np
import vl_convert

from pocketbayes.report.story import Densities
from pocketbayes.report.words import COLOURS, FIGURES

STYLE = files("pocketbayes.report").joinpath("page.css").read_text(encoding="utf-8")
THEME = json.loads(files("pocketbayes.report").joinpath("theme.json").read_text(encoding="utf-8"))
LIGHT: dict[str, str] = dict(re.findall(r"--(\w+): light-dark\((#\w+),", STYLE))
INK, MUTED, AFTER = "var(--ink)", "var(--muted)", "var(--after)"
VEGA_LITE = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
ROW = 24  # pixels of a row, where a chart has rows
FORMATS = ("svg", "png", "pdf")
FILE_WIDTH = {False: 560, True: 820}  # pixels of a figure in a file: usual, wide
Chart: TypeAlias = alt.Chart | alt.LayerChart | alt.FacetChart


@dataclass(frozen=True, kw_only=True, eq=False)
class Figure:
    """A chart; `look` says what to look for, `spoken` is what a reader who cannot see gets."""

    name: str  # of its file and its place in the page
    title: str
    look: str
    spoken: str
    chart: Chart
    height: int = 300  # pixels
    wide: bool = False  # takes both columns of the page
    moves: bool = False  # with a mouse, in the page


def figure(name: str, chart: Chart, look: str = "look", **said: Any) -> Figure:
    """The figure with its words from words.toml, their gaps filled by what is `said`; `look` says which are to be seen.

    `height`, `wide` and `moves` are those of the figure.
    """
    layout = {key: said.pop(key) for key in ("height", "wide", "moves") if key in said}
    title, seen, spoken = (FIGURES[name][key].format(**said) for key in ("title", look, "spoken"))
    return Figure(name=name, title=title, look=seen, spoken=spoken, chart=chart, **layout)


# --- a figure as Vega-Lite -------------------------------------------------------------------------------------


def specification(figure: Figure, width: int | str = "container") -> dict[str, Any]:
    """Vega-Lite for the page, without the configuration that all figures share."""
    chart = figure.chart.properties(width=width, height=figure.height)
    found: dict[str, Any] = chart.to_dict()
    del found["config"], found["$schema"]
    return found


def picture(figure: Figure, kind: str) -> bytes:
    """The figure as an SVG, PNG or PDF file, in the colours of the light page, with its title."""
    width = FILE_WIDTH[figure.wide]
    found = specification(figure, width)
    found["title"] = {"text": figure.title, "subtitle": textwrap.wrap(figure.look, width // 7)}
    found |= {"config": {**THEME, "background": LIGHT["card"]}, "padding": 12}
    text = re.sub(r"var\(--([a-z]+)\)", lambda name: LIGHT.get(name[1], name[0]), json.dumps(found))
    if kind == "png":
        return vl_convert.vegalite_to_png(text, VEGA_LITE, scale=2.0)
    if kind == "pdf":
        return vl_convert.vegalite_to_pdf(text, VEGA_LITE)
    return vl_convert.vegalite_to_svg(text, VEGA_LITE).encode()


# --- data ------------------------------------------------------------------------------------------------------


def data(series: Mapping[str, Mapping[str, Any]]) -> alt.InlineData:
    """Rows from the columns of every series, its name in the column "series".

    The names of the other columns are what axes and tooltips say.
    """
    rows = []
    for name, columns in series.items():
        lists = [_plain(column) for column in columns.values()]
        rows += [{"series": name, **dict(zip(columns, row, strict=True))} for row in zip(*lists, strict=True)]
    return alt.InlineData(values=rows)


def _plain(column: Iterable[Any]) -> list[Any]:
    """Five digits of every number, nothing for NaN."""
    values = np.asarray(column).tolist()
    return [(float(f"{v:.5g}") if math.isfinite(v) else None) if isinstance(v, float) else v for v in values]


def clean(text: object, most: int = 2000) -> str:
    """Text from a file: one line, nothing that a terminal, a page or XML would stumble on, not endless."""
    kept = [
        c if c.isprintable() or c == "\N{NO-BREAK SPACE}" else " " if c.isspace() else "�"
        for c in str(text)[: most + 1]
    ]
    line = "".join(kept)
    return line if len(line) <= most else line[: most - 1] + "…"


# --- channels and layers ---------------------------------------------------------------------------------------


def fraction(column: str) -> dict[str, Any]:
    """What X or Y takes for a column of fractions, on an axis from 0 to 100 %."""
    return {"shorthand": f"{column}:Q", "axis": alt.Axis(format=".1~%"), "scale": alt.Scale(domain=[0, 1])}


def number(column: str, format: str = ".4~g", **scale: Any) -> dict[str, Any]:
    """What X or Y takes for a column of numbers, whose axis need not start at zero."""
    axis, scaled = alt.Axis(format=format), alt.Scale(**scale or {"zero": False})
    return {"shorthand": f"{column}:Q", "axis": axis, "scale": scaled}


def colour(shown: Iterable[str]) -> alt.Color:
    """The colour of the column "series", with a legend below the chart where there are several."""
    named = list(shown)
    scale = alt.Scale(domain=named, range=[f"var(--{COLOURS[name]})" for name in named])
    legend: dict[str, Any] = {} if len(named) > 1 else {"legend": None}
    return alt.Color("series:N", scale=scale, **legend)


def names(column: str) -> alt.Y:
    """An axis of names from top to bottom, the middle of long ones left out."""
    short = "slice(datum.label, 0, 10) + '…' + slice(datum.label, -11)"
    label = f"length(datum.label) > 22 ? {short} : datum.label"
    axis = alt.Axis(labelExpr=label, ticks=False, domain=False, grid=False, title=None)
    return alt.Y(f"{column}:N", sort=None, axis=axis)


def diagonal(x: alt.X, y: alt.Y, low: float = 0.0, high: float = 1.0) -> alt.Chart:
    """The dashed line where x is y."""
    ends = alt.Chart(data({"": {channel.shorthand.partition(":")[0]: [low, high] for channel in (x, y)}}))
    line: alt.Chart = ends.encode(x, y).mark_line(color=MUTED, strokeDash=[5, 4], tooltip=None)
    return line


def lines(series: Mapping[str, Mapping[str, Any]], x: alt.X, y: alt.Y, dots: bool = True) -> Chart:
    """A line for each series, with dots, or with dots that only answer to the mouse."""
    chart = alt.Chart(data(series)).encode(x=x, y=y, color=colour(series))
    points = chart.mark_circle(size=36 if dots else 90, opacity=int(dots))
    return alt.layer(chart.mark_line(strokeWidth=2, tooltip=None), points)


def hills(found: Densities, x: alt.X, y: alt.Y) -> Chart:
    """Histograms, one behind the other, of the columns "x" and "y"."""
    corners = np.append(found.edges[0], found.edges)
    series = {name: {"x": corners, "y": np.array([0.0, *h, 0.0])} for name, h in found.heights.items()}
    chart = alt.Chart(data(series)).encode(x=x, y=y.stack(None), color=colour(series))
    steps: dict[str, Any] = {"interpolate": "step-after", "tooltip": None}
    return alt.layer(chart.mark_area(opacity=0.22, **steps), chart.mark_line(strokeWidth=1.6, **steps))


def rules(x: alt.X, places: Iterable[float], said: Iterable[str]) -> Chart:
    """Dashed vertical lines with words at their tops, on the side that has more room."""
    column = x.shorthand.partition(":")[0]
    chart = alt.Chart(data({"": {column: places, "said": said}})).encode(x=x)
    late = f"scale('x', datum['{column}']) > width / 2"
    side: dict[str, Any] = {
        "align": alt.expr(f"{late} ? 'right' : 'left'"),
        "dx": alt.expr(f"{late} ? -4 : 4"),
    }
    text = chart.mark_text(**side, dy=8, color=MUTED, tooltip=None).encode(y=alt.value(0), text="said:N")
    return alt.layer(chart.mark_rule(strokeDash=[2, 3], tooltip=None), text)


def bars(columns: Mapping[str, Any], length: str, said: Iterable[str]) -> Chart:
    """Horizontal bars by the first column, from top to bottom, with words at their ends; hovering says all columns."""
    ends = alt.Scale(domain=[0, 1.4 * max(*columns[length], 1e-9)], nice=False)
    name, *numbers = columns
    told = [alt.Tooltip(f"{name}:N"), *(alt.Tooltip(f"{column}:Q", format=",.2~f") for column in numbers)]
    chart = alt.Chart(data({"": {**columns, "said": said}}))
    chart = chart.encode(alt.X(f"{length}:Q", scale=ends), names(name), tooltip=told)
    text = chart.mark_text(dx=5).encode(text="said:N")
    return alt.layer(chart.mark_bar(color=AFTER, height={"band": 0.7}), text)
