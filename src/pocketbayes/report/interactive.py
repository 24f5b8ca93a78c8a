"""Figures as plotly's JSON.  Colours stay names, "var(--after)", which the page's script replaces by the theme's."""

from __future__ import annotations

import html
from functools import singledispatch
from typing import Any

import numpy as np

from pocketbayes.report.figure import Axis, Bars, Boxes, Figure, Heat, Line, Panel, Points, Rule, Steps, clean
from pocketbayes.report.story import Array

GAP = 0.16  # between panels, as a share of the height


def specification(figure: Figure) -> dict[str, Any]:
    """plotly's `data` and `layout` for the figure."""
    data: list[dict[str, Any]] = []
    layout: dict[str, Any] = _frame(figure)
    for number, panel in enumerate(figure.panels):
        suffix = "" if number == 0 else str(number + 1)
        layout[f"xaxis{suffix}"] = _axis(panel.x) | {"anchor": f"y{suffix}"}
        layout[f"yaxis{suffix}"] = _axis(panel.y) | {
            "anchor": f"x{suffix}",
            "domain": _domain(number, len(figure.panels)),
        }
        if number:
            layout[f"xaxis{suffix}"]["matches"] = "x"
        # A further panel with one curve is named by its axis.
        legend = number == 0 or sum(not isinstance(mark, Rule) for mark in panel.marks) > 1
        _add_marks(panel, suffix, legend, data, layout)
    return {"data": data, "layout": layout}


def _add_marks(
    panel: Panel, suffix: str, legend: bool, data: list[dict[str, Any]], layout: dict[str, Any]
) -> None:
    for mark in panel.marks:
        if isinstance(mark, Rule):
            _add_rule(mark, suffix, layout)
        else:
            place = {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}", "showlegend": legend}
            data.append(_trace(mark) | place)


def _frame(figure: Figure) -> dict[str, Any]:
    return {
        "height": figure.height,
        "margin": {"l": 8, "r": 12, "t": _top(figure), "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": "var(--ink)"},
        "showlegend": figure.legend,
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": 1,
            "xanchor": "left",
            "yanchor": "top",
            "yref": "container",
        },
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "var(--muted)", "activecolor": "var(--ink)"},
        "hoverlabel": {
            "bgcolor": "var(--card)",
            "bordercolor": "var(--muted)",
            "font": {"color": "var(--ink)"},
            "align": "left",
        },
        "hovermode": "closest",
        "bargap": 0.35,
        "shapes": [],
        "annotations": [],
    }


def _top(figure: Figure) -> int:
    """Room above the panels for the legend, and for the labels of rules."""
    labels = any(isinstance(m, Rule) and m.label for panel in figure.panels for m in panel.marks)
    return 8 + 28 * figure.legend + 16 * labels


def _domain(number: int, count: int) -> list[float]:
    height = (1 - GAP * (count - 1)) / count
    top = 1 - number * (height + GAP)
    return [max(0.0, top - height), top]


def _axis(axis: Axis) -> dict[str, Any]:
    found: dict[str, Any] = {
        "title": {"text": axis.title, "standoff": 8},
        "automargin": True,
        "gridcolor": "var(--grid)",
        "linecolor": "var(--grid)",
        "zeroline": False,
        "type": "log" if axis.log else "linear",
    }
    if axis.log:
        found |= {"dtick": "D2", "tickformat": "~g"}
    if axis.percent:
        found["tickformat"] = ".2~%"
    if axis.whole and axis.limits is not None:
        found |= {"tick0": 0, "dtick": max(1, round((axis.limits[1] - axis.limits[0]) / 10))}
    if axis.limits is not None:
        found["range"] = list(axis.limits)
    if axis.ticks:
        places = [place for place, _ in axis.ticks]
        found |= {
            "tickvals": places,
            "ticktext": [_text(name) for _, name in axis.ticks],
            "range": [min(places) - 0.7, max(places) + 0.7],
            "showgrid": False,
        }
    return found


def _add_rule(rule: Rule, suffix: str, layout: dict[str, Any]) -> None:
    axes = {"xref": f"x{suffix}", "yref": f"y{suffix} domain"}
    ends = {"x0": rule.x, "x1": rule.x, "y0": 0, "y1": 1}
    layout["shapes"].append(
        {"type": "line", "line": {"color": "var(--muted)", "width": 1, "dash": "dot"}, **axes, **ends}
    )
    if rule.label:
        place = {"x": rule.x, "y": 1, "xanchor": "left", "yanchor": "bottom", "showarrow": False}
        font = {"color": "var(--muted)", "size": 11}
        layout["annotations"].append({"text": _text(rule.label), "font": font, **axes, **place})


# --- marks -----------------------------------------------------------------------------------------------------


@singledispatch
def _trace(mark: Any) -> dict[str, Any]:
    raise TypeError(f"report: no such mark, {type(mark).__name__}.")


@_trace.register
def _(mark: Line) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers" if mark.markers else "lines",
        "x": _list(mark.x),
        "y": _list(mark.y),
        "line": {
            "color": _color(mark.color),
            "width": 1.5 if mark.dashed else 2,
            "dash": "dot" if mark.dashed else "solid",
        },
        "marker": {"size": 6},
        **_named(mark.name),
        **({"hoverinfo": "skip"} if mark.dashed else _hover(mark.hover)),
    }


@_trace.register
def _(mark: Steps) -> dict[str, Any]:
    x, y = mark.corners()
    return {
        "type": "scatter",
        "mode": "lines",
        "x": _list(x),
        "y": _list(y),
        "line": {"color": _color(mark.color), "width": 1.5},
        "fill": "tozeroy" if mark.filled else "none",
        **_named(mark.name),
        **_hover(()),
    }


@_trace.register
def _(mark: Points) -> dict[str, Any]:
    size = mark.size if isinstance(mark.size, float | int) else _list(np.asarray(mark.size), 3)
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": _list(mark.x),
        "y": _list(mark.y),
        "marker": {
            "color": _color(mark.color),
            "size": size,
            "opacity": mark.opacity,
            "symbol": "x" if mark.cross else "circle",
            "line": {"width": 1 if np.ndim(mark.size) else 0, "color": "var(--card)"},
        },
        **_named(mark.name),
        **_hover(mark.hover),
    }
    if mark.error is not None:
        bars = {"type": "data", "array": _list(mark.error), "width": 0, "thickness": 1}
        trace["error_y"] = bars | {"color": _color(mark.color)}
    return trace


@_trace.register
def _(mark: Bars) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "x": _list(mark.lengths),
        "y": _list(mark.places),
        "marker": {"color": _color(mark.color)},
        "text": [_text(t) for t in mark.text],
        "textposition": "outside",
        "cliponaxis": False,
        "hovertext": [_text(t) for t in mark.hover],
        "hoverinfo": "text",
        **_named(mark.name),
    }


@_trace.register
def _(mark: Boxes) -> dict[str, Any]:
    low, first, middle, third, high = (_list(column) for column in mark.quantiles.T)
    return {
        "type": "box",
        "orientation": "h",
        "y": _list(mark.places),
        "lowerfence": low,
        "q1": first,
        "median": middle,
        "q3": third,
        "upperfence": high,
        "line": {"color": _color(mark.color), "width": 1.5},
        "hoverinfo": "x",
        "xhoverformat": ".1%",
        **_named(mark.name),
    }


@_trace.register
def _(mark: Heat) -> dict[str, Any]:
    shade = np.log10(np.maximum(mark.counts, 1))
    z = [[round(s, 3) if n else None for s, n in zip(*row, strict=True)] for row in _rows(shade, mark.counts)]
    return {
        "type": "heatmap",
        "x": _list(mark.x_edges),
        "y": _list(mark.y_edges),
        "z": z,
        "colorscale": [[0, "var(--heat)"], [1, _color(mark.color)]],
        "showscale": False,
        "hoverongaps": False,
        "hovertemplate": "μ %{x:.4g}, σ %{y:.3g}<extra></extra>",
        **_named(mark.name),
    }


def _rows(shade: Array, counts: Array) -> list[tuple[list[float], list[float]]]:
    return list(zip(shade.tolist(), counts.tolist(), strict=True))


# --- small things ----------------------------------------------------------------------------------------------


def _hover(texts: tuple[str, ...]) -> dict[str, Any]:
    if texts:
        return {"text": [_text(t) for t in texts], "hovertemplate": "%{text}<extra></extra>"}
    return {"hovertemplate": "%{x:.4~g}, %{y:.4~g}"}


def _named(name: str) -> dict[str, Any]:
    return {"name": _text(name)}


def _text(text: str) -> str:
    """plotly reads a little HTML, links among it: text from files has none."""
    return html.escape(clean(text))


def _color(name: str) -> str:
    return f"var(--{name})"


def _list(values: Array, digits: int = 5) -> list[float | None]:
    """Numbers of so many digits, for the page is to be light; None where there is none."""
    flat = np.asarray(values, dtype=float).tolist()
    return [float(f"{v:.{digits}g}") if np.isfinite(v) else None for v in flat]
