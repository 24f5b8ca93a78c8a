"""Charts of what the network answers: how right, how sure, how well calibrated."""

from __future__ import annotations

import math

import altair as alt
import numpy as np

from pocketbayes.report import charts
from pocketbayes.report.charts import AFTER, INK, ROW, Chart, Figure, clean, colour, data, figure, fraction
from pocketbayes.report.story import ClassBox, Story, Threshold

MOST_CLASSES = 40  # in one figure


# --- calibration -----------------------------------------------------------------------------------------------


def reliability(story: Story) -> Figure | None:
    if not story.reliability:
        return None
    columns = ("confidence", "right answers", "predictions")
    rows = {side: dict(zip(columns, bins, strict=True)) for side, bins in story.reliability.items()}
    x, y = alt.X(**fraction("confidence")), alt.Y(**fraction("right answers"))
    size = alt.Size("predictions:Q", scale=alt.Scale(range=[30, 420]), legend=None)
    discs = alt.Chart(data(rows)).mark_circle(opacity=0.75).encode(x, y, size, colour(rows))
    score = _spoken(story, "ece", "Calibration error")
    return figure("reliability", alt.layer(charts.diagonal(x, y), discs), score=score)


# --- not sure --------------------------------------------------------------------------------------------------


def risk(story: Story) -> Figure | None:
    if not story.risk:
        return None
    classes, mark, curve = story.classes is not None, story.threshold, story.risk["after"]
    what = "wrong answers" if classes else f"RMSE ({story.unit})"
    x = alt.X(**fraction("inputs answered"))
    y = alt.Y(f"{what}:Q", axis=alt.Axis(format=".2~%" if classes else ".4~g"))
    rows = {side: {"inputs answered": c.x, what: c.y} for side, c in story.risk.items()}
    chart = charts.lines(rows, x, y, dots=False)
    look = "look"
    if not classes and np.ptp(curve.y) < 1e-9 * abs(curve.y[-1]):
        look = "flat"
    elif mark is not None:
        look = "dot" if math.isfinite(mark.risk) else "unreached"
    if look == "dot" and mark is not None:
        chart = alt.layer(chart, *_threshold(mark, x, y))
    half = f"{np.interp(0.5, *curve):{'.1%' if classes else '.3f'}}"
    return figure("risk_coverage", chart, look, mark=mark, what=what, half=half)


def _threshold(mark: Threshold, x: alt.X, y: alt.Y) -> tuple[alt.Chart, alt.Chart]:
    """A dot where the file's own threshold stands, and its words in the corner that curves leave free."""
    said = f"● “not sure” below {mark.confidence:.1%}"
    row = {"inputs answered": [mark.answered], "wrong answers": [mark.risk], "said": [said]}
    dot = alt.Chart(data({"": row}))
    words = dot.mark_text(tooltip=None).encode(x=alt.value(12), y=alt.value(14), text="said:N")
    return dot.mark_circle(size=110, color=INK, opacity=1).encode(x, y), words


def confidence(story: Story) -> Figure | None:
    if not story.confidence:
        return None
    boxes, most = story.confidence, ""
    if len(boxes) > MOST_CLASSES:
        most = f" (the {MOST_CLASSES} least sure of {len(boxes)})"
        boxes = tuple(sorted(boxes, key=lambda box: box.mean)[:MOST_CLASSES])
    means = ", ".join(f"{clean(box.name, 40)} {box.mean:.0%}" for box in boxes)
    look = "flawless" if all(math.isnan(box.wrong) for box in boxes) else "look"
    height = ROW * len(boxes)
    return figure("confidence_by_class", _boxes(boxes), look, most=most, means=means, height=height)


def _boxes(boxes: tuple[ClassBox, ...]) -> Chart:
    """Quantiles of the confidence by class, and its means over right and over wrong answers."""
    named, y = [clean(box.name, 200) for box in boxes], charts.names("class")
    spread = zip(
        ("5 %", "25 %", "median", "75 %", "95 %"),
        zip(*(box.quantiles for box in boxes), strict=True),
        strict=True,
    )
    box = alt.Chart(data({"": {"class": named, **dict(spread)}})).encode(y)
    each = {
        "class": named,
        "right answers": [b.accuracy for b in boxes],
        "test examples": [b.size for b in boxes],
    }
    rows = {
        "mean when right": {**each, "confidence": [b.right for b in boxes]},
        "mean when wrong": {**each, "confidence": [b.wrong for b in boxes]},
    }
    shares = [alt.Tooltip(f"{column}:Q", format=".1%") for column in ("confidence", "right answers")]
    x = alt.X("confidence:Q", axis=alt.Axis(format=".1~%"), scale=alt.Scale(domainMax=1, zero=False))
    dots = alt.Chart(data(rows)).mark_circle(size=60, opacity=1).transform_filter("isValid(datum.confidence)")
    return alt.layer(
        box.mark_rule(color=AFTER, opacity=0.6).encode(x=alt.X("5 %:Q", title="confidence"), x2="95 %"),
        box.mark_bar(color=AFTER, opacity=0.35, height=12).encode(x="25 %:Q", x2="75 %"),
        box.mark_tick(color=AFTER, thickness=2, height=12).encode(x="median:Q"),
        dots.encode(x, y, colour(rows), tooltip=["class:N", "series:N", *shares, "test examples:Q"]),
    )


# --- out of distribution ---------------------------------------------------------------------------------------


def entropies(story: Story) -> Figure | None:
    if story.entropies is None:
        return None
    y = alt.Y("y:Q", title="fraction of inputs", axis=alt.Axis(format="%"))
    score = _spoken(story, "auroc", "Area under the ROC curve, test data against out-of-distribution inputs,")
    chart = charts.hills(story.entropies, alt.X("x:Q", title="entropy (nats)"), y)
    return figure("out_of_distribution", chart, score=score)


# --- regression ------------------------------------------------------------------------------------------------


def predicted(story: Story) -> Figure | None:
    if story.intervals is None:
        return None
    i, true, said = story.intervals, f"true ({story.unit})", f"predicted ({story.unit})"
    x, y, half = alt.X(**charts.number(true)), alt.Y(**charts.number(said)), 1.96 * i.sigma
    rows = {"": {true: i.truth, said: i.mean, "95 % from": i.mean - half, "to": i.mean + half}}
    points = alt.Chart(data(rows)).encode(
        x, tooltip=[alt.Tooltip(f"{column}:Q", format=".4~g") for column in rows[""]]
    )
    bars = points.mark_rule(color=AFTER, opacity=0.35).encode(y=alt.Y("95 % from:Q", title=said), y2="to")
    ends = min(i.truth.min(), i.mean.min()), max(i.truth.max(), i.mean.max())
    dots, same = points.mark_circle(color=AFTER, size=32), charts.diagonal(x, y, *map(float, ends))
    score = _spoken(story, "rmse", "RMSE")
    return figure("predicted_and_true", alt.layer(same, bars, dots.encode(y)), score=score)


def coverage(story: Story) -> Figure | None:
    if story.intervals is None:
        return None
    columns, curves = ("probability of the interval", "targets inside"), story.intervals.coverage
    x, y = alt.X(**fraction(columns[0])), alt.Y(**fraction(columns[1]))
    rows = {side: dict(zip(columns, curve, strict=True)) for side, curve in curves.items()}
    inside = float(np.interp(0.9, *curves["after"]))
    chart = alt.layer(charts.diagonal(x, y), charts.lines(rows, x, y))
    return figure("interval_coverage", chart, inside=inside)


def _spoken(story: Story, key: str, what: str) -> str:
    for row in story.table:
        if row.key == key and math.isfinite(row.after):
            before = "" if row.before is None else f" {row.before:.4f} before,"
            return f"{what}{before} {row.after:.4f} after."
    return ""
