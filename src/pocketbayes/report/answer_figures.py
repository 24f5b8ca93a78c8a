"""Figures of what the network answers: how right, how sure, how honest."""

from __future__ import annotations

import math

import numpy as np

from pocketbayes.report.figure import Axis, Boxes, Figure, Line, Mark, Panel, Points, Steps, clean, short
from pocketbayes.report.story import Array, ClassBox, Reliability, Story

MOST_ROWS = 40  # classes in one figure
ROW = 24  # pixels


# --- honesty ---------------------------------------------------------------------------------------------------


def reliability(story: Story) -> Figure | None:
    if story.reliability is None:
        return None
    marks: list[Mark] = [_diagonal("perfect")]
    for table, name in ((story.reliability_before, "before"), (story.reliability, "after")):
        if table is not None:
            marks.append(_discs(table, name))
    return Figure(
        name="reliability",
        title="Is 80 % sure right 80 % of the time?",
        caption="Each disc is a group of predictions, larger for more: on the diagonal their confidence can be "
        "believed, below it the network is too sure.",
        spoken="Reliability diagram. " + _spoken(story, "ece", "Calibration error"),
        panels=(
            Panel(
                Axis("confidence", percent=True, limits=(0, 1.04)),
                Axis("right answers", percent=True, limits=(-0.04, 1.06)),
                tuple(marks),
            ),
        ),
    )


def _discs(table: Reliability, name: str) -> Points:
    hover = tuple(
        f"{name}: {n:,.0f} predictions, {c:.1%} sure, {a:.1%} right"
        for c, a, n in zip(table.confidence, table.accuracy, table.size, strict=True)
    )
    size = 6 + 16 * np.sqrt(table.size / table.size.max())
    return Points(x=table.confidence, y=table.accuracy, name=name, color=name, size=size, hover=hover)


def risk(story: Story) -> Figure | None:
    if story.risk is None:
        return None
    classes = story.classes is not None
    what = "wrong answers" if classes else f"RMSE ({story.unit})"
    marks = tuple(
        Line(x=curve.x, y=curve.y, name=name, color=name)
        for curve, name in ((story.risk_before, "before"), (story.risk, "after"))
        if curve is not None
    )
    half = float(np.interp(0.5, story.risk.x, story.risk.y))
    number = f"{half:.1%}" if classes else f"{half:.3f}"
    return Figure(
        name="risk_coverage",
        title="What if it may say “not sure”?",
        caption="Going left, the least certain inputs are left unanswered: a useful uncertainty makes the errors fall.",
        spoken=f"Risk-coverage curve. Answering the surer half of the inputs, the {what} are {number}.",
        panels=(
            Panel(
                Axis("inputs answered", percent=True, limits=(0, 1.02)), Axis(what, percent=classes), marks
            ),
        ),
    )


def confidence(story: Story) -> Figure | None:
    if not story.confidence:
        return None
    boxes, everything = story.confidence, len(story.confidence)
    title = "How sure, class by class"
    if everything > MOST_ROWS:
        boxes = tuple(sorted(boxes, key=lambda box: box.mean)[:MOST_ROWS])
        title += f" (the {MOST_ROWS} least sure of {everything})"
    places = -np.arange(len(boxes), dtype=float)
    quantiles = np.stack([box.quantiles for box in boxes])
    marks: tuple[Mark, ...] = (
        Boxes(quantiles=quantiles, places=places, name="5, 25, 50, 75, 95 %", color="after"),
        _means(boxes, places, "right", "ink"),
        _means(boxes, places, "wrong", "warn"),
    )
    means = ", ".join(f"{clean(box.name, 40)} {box.mean:.0%}" for box in boxes)
    ticks = tuple((place, short(box.name, 14)) for place, box in zip(places.tolist(), boxes, strict=True))
    return Figure(
        name="confidence_by_class",
        title=title,
        caption="A cross far to the left of its dot is good news: on that class the network hesitates where it errs.",
        spoken=f"Confidence by true class. Mean: {means}.",
        panels=(Panel(Axis("confidence", percent=True), Axis(ticks=ticks), marks),),
        height=110 + ROW * len(boxes),
    )


def _means(boxes: tuple[ClassBox, ...], places: Array, key: str, color: str) -> Points:
    """Mean confidence of the answers that are "right", or "wrong", where a class has any."""
    rows = [(b, place, getattr(b, key)) for b, place in zip(boxes, places, strict=True)]
    rows = [row for row in rows if math.isfinite(row[2])]
    hover = tuple(
        f"{clean(b.name, 60)}: {mean:.1%} sure when {key}; {b.accuracy:.1%} of {b.size:,} right"
        for b, _, mean in rows
    )
    return Points(
        x=np.array([mean for _, _, mean in rows]),
        y=np.array([place for _, place, _ in rows]),
        name=f"mean when {key}",
        color=color,
        cross=key == "wrong",
        size=8.0,
        hover=hover,
    )


def entropies(story: Story) -> Figure | None:
    if story.entropies is None:
        return None
    e = story.entropies
    marks = (
        Steps(edges=e.edges, heights=e.familiar, name="test data", color="after"),
        Steps(edges=e.edges, heights=e.foreign, name="foreign inputs", color="warn"),
    )
    return Figure(
        name="foreign_inputs",
        title="Does it notice what it was not made for?",
        caption="The less the two hills overlap, the better the network tells its own kind of input from others.",
        spoken="Histogram of predictive entropy. "
        + _spoken(story, "auroc", "Area under the ROC curve, test data against foreign inputs,"),
        panels=(Panel(Axis("entropy (nats)"), Axis("share of inputs", percent=True), marks),),
    )


# --- regression ------------------------------------------------------------------------------------------------


def predicted(story: Story) -> Figure | None:
    if story.intervals is None:
        return None
    i = story.intervals
    hover = tuple(
        f"predicted {m:.4g} ± {1.96 * s:.3g}, true {t:.4g}"
        for t, m, s in zip(i.truth, i.mean, i.sigma, strict=True)
    )
    points = Points(
        x=i.truth,
        y=i.mean,
        error=1.96 * i.sigma,
        name="prediction, 95 %",
        color="after",
        hover=hover,
        opacity=0.7,
    )
    ends = np.array([min(i.truth.min(), i.mean.min()), max(i.truth.max(), i.mean.max())])
    return Figure(
        name="predicted_and_true",
        title="Predicted and true",
        caption="About 19 of 20 bars should touch the diagonal, and be long where the dots are far from it.",
        spoken="Scatter plot of predictions with 95 % intervals against the truth. "
        + _spoken(story, "rmse", "RMSE"),
        panels=(
            Panel(
                Axis(f"true ({story.unit})"),
                Axis(f"predicted ({story.unit})"),
                (_diagonal("equal", ends), points),
            ),
        ),
    )


def coverage(story: Story) -> Figure | None:
    if story.intervals is None:
        return None
    i = story.intervals
    marks: list[Mark] = [_diagonal("perfect")]
    for curve, name in ((i.before, "before"), (i.after, "after")):
        if curve is not None:
            hover = tuple(
                f"{name}: {x:.0%} intervals hold {y:.1%} of the targets"
                for x, y in zip(curve.x, curve.y, strict=True)
            )
            marks.append(Line(x=curve.x, y=curve.y, name=name, color=name, markers=True, hover=hover))
    inside = float(np.interp(0.9, i.after.x, i.after.y))
    return Figure(
        name="interval_coverage",
        title="Do 90 % intervals hold 90 %?",
        caption="The closer a line runs to the diagonal, the more its intervals can be believed; below it, they are "
        "too narrow.",
        spoken=f"Calibration of intervals. Those of 90 % hold {inside:.1%} of the targets.",
        panels=(
            Panel(
                Axis("probability of the interval", percent=True, limits=(0, 1.02)),
                Axis("targets inside", percent=True, limits=(0, 1.04)),
                tuple(marks),
            ),
        ),
    )


# --- small things ----------------------------------------------------------------------------------------------


def _diagonal(name: str, ends: Array | None = None) -> Line:
    ends = np.array([0.0, 1.0]) if ends is None else ends
    return Line(x=ends, y=ends, name=name, color="muted", dashed=True)


def _spoken(story: Story, key: str, what: str) -> str:
    for row in story.table:
        if row.key == key and math.isfinite(row.after):
            before = "" if row.before is None else f" {row.before:.4f} before,"
            return f"{what}{before} {row.after:.4f} after."
    return ""
