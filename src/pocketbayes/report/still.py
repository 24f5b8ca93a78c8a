"""Figures as files, by matplotlib, in the colours of the light page."""

from __future__ import annotations

import io
import warnings
from functools import singledispatch
from typing import Any

import numpy as np

from pocketbayes.report.figure import (
    LIGHT,
    Axis,
    Bars,
    Boxes,
    Figure,
    Heat,
    Line,
    Points,
    Rule,
    Steps,
    clean,
)

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "font.family": "sans-serif",
    "text.parse_math": False,  # a dollar sign in a class name is a dollar sign
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": LIGHT["grid"],
    "axes.labelcolor": LIGHT["ink"],
    "xtick.color": LIGHT["muted"],
    "ytick.color": LIGHT["muted"],
    "text.color": LIGHT["ink"],
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LIGHT["grid"],
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "pocketbayes",  # the same story gives the same bytes
}


def drawn(figure: Figure, kind: str, dpi: int = 160) -> bytes:
    """The figure as the bytes of a file of that kind, "svg", "png" or "pdf"."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    with mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a name in letters the font lacks
        size = (9.0 if figure.wide else 5.6, figure.height / 80)
        canvas = Canvas(figsize=size, layout="constrained", facecolor="white")
        FigureCanvasAgg(canvas)
        grid = canvas.subplots(len(figure.panels), 1, squeeze=False)
        canvas.suptitle(figure.title, x=0.01, ha="left", fontsize=11, fontweight="bold")
        for panel, axes in zip(figure.panels, grid[:, 0], strict=True):
            for mark in panel.marks:
                _draw(mark, axes)
            _dress(axes, panel.x, "x")
            _dress(axes, panel.y, "y")
            if figure.legend and axes.get_legend_handles_labels()[0]:
                axes.legend(fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=4, borderaxespad=0.2)
        file = io.BytesIO()
        canvas.savefig(file, format=kind, dpi=dpi, metadata={"Date": None} if kind == "svg" else None)
    return file.getvalue()


def _dress(axes: Any, axis: Axis, which: str) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, PercentFormatter

    of: Any = getattr(axes, f"{which}axis")
    getattr(axes, f"set_{which}label")(axis.title)
    if axis.log:
        getattr(axes, f"set_{which}scale")("log")
        of.set_major_locator(LogLocator(subs=(1, 2, 5)))
        of.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        of.set_minor_formatter(NullFormatter())
    if axis.whole:
        of.set_major_locator(MaxNLocator(integer=True))
    if axis.percent:
        of.set_major_formatter(PercentFormatter(1.0))
    if axis.limits is not None:
        getattr(axes, f"set_{which}lim")(*axis.limits)
    if axis.ticks:
        places, names = zip(*axis.ticks, strict=True)
        of.set_ticks(places, [clean(name) for name in names])
        getattr(axes, f"set_{which}lim")(min(places) - 0.7, max(places) + 0.7)
        of.grid(visible=False)


# --- marks -----------------------------------------------------------------------------------------------------


@singledispatch
def _draw(mark: Any, axes: Any) -> None:
    raise TypeError(f"report: no such mark, {type(mark).__name__}.")


@_draw.register
def _(mark: Line, axes: Any) -> None:
    style = {"linestyle": ":" if mark.dashed else "-", "marker": "o" if mark.markers else "", "markersize": 3}
    axes.plot(mark.x, mark.y, color=LIGHT[mark.color], label=clean(mark.name), linewidth=1.4, **style)


@_draw.register
def _(mark: Steps, axes: Any) -> None:
    x, y = mark.corners()
    axes.plot(x, y, color=LIGHT[mark.color], linewidth=1.2, label=clean(mark.name))
    if mark.filled:
        axes.fill_between(x, y, color=LIGHT[mark.color], alpha=0.3, linewidth=0)


@_draw.register
def _(mark: Points, axes: Any) -> None:
    color = LIGHT[mark.color]
    if mark.error is not None:
        axes.errorbar(mark.x, mark.y, mark.error, fmt="none", ecolor=color, elinewidth=0.6, alpha=0.5)
    area = (np.asarray(mark.size) * 0.75) ** 2  # pixels to points, diameter to area
    marker = "x" if mark.cross else "o"
    thin: dict[str, Any] = (
        {} if mark.cross else {"linewidths": 0.5 if area.ndim else 0, "edgecolors": "white"}
    )
    axes.scatter(
        mark.x, mark.y, s=area, c=color, alpha=mark.opacity, marker=marker, label=clean(mark.name), **thin
    )


@_draw.register
def _(mark: Bars, axes: Any) -> None:
    bars = axes.barh(mark.places, mark.lengths, color=LIGHT[mark.color], height=0.65)
    axes.bar_label(bars, [clean(t) for t in mark.text], padding=3, fontsize=8)


@_draw.register
def _(mark: Boxes, axes: Any) -> None:
    names = ("whislo", "q1", "med", "q3", "whishi")
    boxes = [dict(zip(names, row, strict=True)) for row in mark.quantiles.tolist()]
    line = {"color": LIGHT[mark.color], "linewidth": 1.2}
    lines = {f"{part}props": line for part in ("box", "whisker", "cap", "median")}
    axes.bxp(
        boxes,
        positions=mark.places,
        orientation="horizontal",
        showfliers=False,
        manage_ticks=False,
        widths=0.5,
        label=clean(mark.name),
        **lines,
    )


@_draw.register
def _(mark: Heat, axes: Any) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    colors = LinearSegmentedColormap.from_list("", [LIGHT["heat"], LIGHT[mark.color]])
    shade = np.ma.masked_where(mark.counts == 0, np.log10(np.maximum(mark.counts, 1)))
    axes.pcolormesh(mark.x_edges, mark.y_edges, shade, cmap=colors, rasterized=True)


@_draw.register
def _(mark: Rule, axes: Any) -> None:
    axes.axvline(mark.x, color=LIGHT["muted"], linewidth=0.8, linestyle=":")
    if mark.label:
        top = axes.get_xaxis_transform()
        axes.text(
            mark.x, 0.99, f" {clean(mark.label)}", transform=top, va="top", fontsize=8, color=LIGHT["muted"]
        )
