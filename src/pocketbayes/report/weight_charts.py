"""Charts of the posterior, of the bytes it takes, and of its training."""

from __future__ import annotations

import math
from collections.abc import Sequence

import altair as alt
import numpy as np

from pocketbayes.artifact.summary import SECTIONS, TensorSummary
from pocketbayes.report import charts
from pocketbayes.report.charts import ROW, Chart, Figure, clean, colour, data, figure, lines, number, rules
from pocketbayes.report.story import Story, WeightPlane
from pocketbayes.report.words import PLANE

MOST_LAYERS = 40  # in one figure


# --- the weights -----------------------------------------------------------------------------------------------


def plane(story: Story) -> Figure | None:
    p = story.plane
    clouds = {} if p is None else p.clouds()
    if p is None or not clouds:
        return None
    rows = {
        name: {"mean μ": c.mu, "standard deviation σ": c.sigma, "weights": p.size(c)}
        for name, c in clouds.items()
    }
    most = max(float(columns["weights"].max()) for columns in rows.values())
    x = alt.X(**number("mean μ", zero=False, nice=False, padding=30))
    y = alt.Y(**number("standard deviation σ", ".3~g", type="log", nice=False, padding=20))
    area = alt.Scale(domain=[1, max(most, 100.0)], range=[24, 600])
    points = alt.Chart(data(rows)).mark_circle(opacity=0.6, clip=True)
    points = points.encode(x, y, colour(rows), alt.Size("weights:Q", scale=area, legend=None))
    # A finger has to be able to scroll past, and so has a wheel.
    move = "[pointerdown[event.pointerType !== 'touch'], window:pointerup] > window:pointermove!"
    zoom = alt.selection_interval(bind="scales", zoom="wheel![event.ctrlKey]", translate=move)
    tails = [rules(x, p.tails, ("", ""))] if p.tails is not None else []
    chart = alt.layer(*tails, points.add_params(zoom))
    listed = ", ".join(f"{cloud.total:,} {name}" for name, cloud in clouds.items())
    return figure("plane", chart, seen=_seen(p), clouds=listed, height=420, wide=True, moves=True)


def _seen(p: WeightPlane) -> str:
    """What there is to see in the plane."""
    kinds = [kind for kind in ("components", "outliers", "blends", "tails") if getattr(p, kind) is not None]
    look = [PLANE[kind] for kind in (kinds if p.components is not None else ["dots", *kinds])]
    for name, cloud in p.clouds().items():
        if (shown := len(cloud.mu)) < cloud.total:
            look.append(PLANE["cut"].format(total=cloud.total, name=name, shown=shown))
    return " ".join(look)


def weights(story: Story) -> Figure | None:
    if story.weights is None:
        return None
    look = "compared" if "before" in story.weights.heights else "look"
    low, *_, high = story.weights.edges
    x = alt.X("x:Q", title="weight", scale=alt.Scale(zero=False, nice=False))
    chart = charts.hills(story.weights, x, alt.Y("y:Q", title="density"))
    return figure("weights", chart, look, low=low, high=high, wide=True, height=240)


# --- bytes -----------------------------------------------------------------------------------------------------


def sections(story: Story) -> Figure | None:
    if not story.sections:
        return None
    order = sorted(story.sections.items(), key=lambda item: -item[1])
    sizes, total = [size for _, size in order], sum(story.sections.values())
    named, said = [SECTIONS.get(name, clean(name, 40)) for name, _ in order], [f"{size:,}" for size in sizes]
    columns = {"section": named, "bytes": sizes, "% of the file": [100 * size / total for size in sizes]}
    listed = ", ".join(f"{name} {size}" for name, size in zip(named, said, strict=True))
    chart, height = charts.bars(columns, "bytes", said), ROW * len(named)
    return figure("sections", chart, longest=named[0], total=total, listed=listed, height=height)


def layers(story: Story) -> Figure | None:
    """The stochastic tensors, the smallest of very many together, and all deterministic ones together."""
    plain, random = ([t for t in story.layers if (t.kind == "plain") is kind] for kind in (True, False))
    large = sorted(random, key=lambda t: -t.bits)[:MOST_LAYERS]
    small = [t for t in random if t not in large]
    groups = [(clean(t.name, 200), [t]) for t in random if t in large]
    groups += [(f"{len(small)} small layers", small), ("biases, norms", plain)]
    named = {name: group for name, group in groups if group}
    if not named:
        return None
    sums = zip(*map(_sums, named.values()), strict=True)
    columns = dict(zip(("bits per weight", "weights", "bytes", "outliers", "blends"), sums, strict=True))
    said = [f"{bits:.2f}" for bits in columns["bits per weight"]]
    listed = ", ".join(f"{name[:60]} {bits}" for name, bits in zip(named, said, strict=True))
    chart = charts.bars({"layer": list(named), **columns}, "bits per weight", said)
    return figure("layers", chart, listed=listed, height=ROW * len(said))


def _sums(group: Sequence[TensorSummary]) -> tuple[float, ...]:
    """Bits per weight, weights, bytes, outliers and blends of several tensors."""
    weights, bits = sum(math.prod(t.shape) for t in group), sum(t.bits for t in group)
    outliers, blends = sum(t.outliers for t in group), sum(t.blends for t in group)
    return bits / max(1, weights), weights, bits / 8, outliers, blends


# --- training --------------------------------------------------------------------------------------------------


def training(story: Story) -> Figure | None:
    """The NLL, epoch by epoch, with the stages marked."""
    unit = "NLL (nats)" if story.classes is not None else "NLL (nats, standardised targets)"
    chart, known = _curves(story, {"nll": "training NLL", "validation": "validation NLL"}, unit)
    if chart is None:
        return None
    look = "few" if known.get("validation NLL", 0) < 3 else "look"
    epochs = sum(len(run.nll) for run in story.runs)
    stages = ", ".join(clean(run.stage, 40) for run in story.runs)
    return figure("training", chart, look, epochs=epochs, stages=stages, height=240, wide=True)


def training_kl(story: Story) -> Figure | None:
    """The KL, epoch by epoch."""
    chart, _ = _curves(story, {"kl": "KL"}, "KL (nats)")
    return None if chart is None else figure("training_kl", chart, height=180, wide=True)


def _curves(story: Story, kinds: dict[str, str], unit: str) -> tuple[Chart | None, dict[str, int]]:
    """Numbers over the epochs of all runs, one behind the other, and how many of each are known."""
    rows, total = {}, sum(len(run.nll) for run in story.runs)
    epoch = np.arange(1, total + 1)
    for key, name in kinds.items():
        numbers = np.concatenate([np.zeros(0), *(getattr(run, key) for run in story.runs)])
        if (seen := np.isfinite(numbers)).any():
            rows[name] = {"epoch": epoch[seen], unit: numbers[seen]}
    if not rows:
        return None, {}
    ends = alt.Scale(domain=[0.5, total + 0.5], nice=False)
    x = alt.X("epoch:Q", axis=alt.Axis(tickMinStep=1, format="d"), scale=ends)
    y = alt.Y(**number(unit, ",.4~f", zero=False, padding=10))
    starts = np.cumsum([0, *(len(run.nll) for run in story.runs)])[:-1] + 0.5
    stages = rules(x, starts, [clean(run.stage, 24) for run in story.runs])
    chart = alt.layer(stages, lines(rows, x, y, dots=total <= 40))
    return chart, {name: len(columns["epoch"]) for name, columns in rows.items()}
