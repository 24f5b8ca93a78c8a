"""Figures of the posterior and of the bytes it takes."""

from __future__ import annotations

import numpy as np

from pocketbayes.report.figure import Axis, Bars, Figure, Heat, Mark, Panel, Points, Rule, Steps, clean, short
from pocketbayes.report.story import Array, Cloud, Layer, Plane, Story

SECTIONS = {
    "HEAD": "header",
    "FREQ": "label frequencies",
    "LABL": "labels",
    "CODE": "codebook",
    "OUTL": "outliers",
    "BLND": "blends",
    "NORM": "private weights",
    "MASK": "masks",
    "FIXD": "fixed weights",
    "PLAN": "biases, norms",
    "PRIO": "priors",
    "XTRA": "noise tables",
    "frame": "checksums",
}
MOST_ROWS = 40  # layers in one figure
SCATTER = 5000  # unshared weights up to which each is a point
ROW = 24  # pixels


# --- weights ---------------------------------------------------------------------------------------------------


def plane(story: Story) -> Figure | None:
    if story.plane is None:
        return None
    p = story.plane
    found: list[Mark] = [
        *_private(p.private),
        *_components(p),
        *_few(p.outliers, "outliers", "warn"),
        *_few(p.blends, "blends", "blend"),
    ]
    if not found:
        return None
    tails = [Rule(x=x, label=name) for x, name in zip(p.tails or (), ("1 %", "99 %"), strict=False)]
    return Figure(
        name="plane",
        title="The weights: mean and width",
        caption=_look(p),
        spoken=f"Plane of means and standard deviations with {_counts(p)}.",
        panels=(Panel(Axis("mean μ"), Axis("standard deviation σ", log=True), (*tails, *found)),),
        height=460,
        wide=True,
    )


def _look(p: Plane) -> str:
    if p.components is None:
        return "Each weight is a mean with a width: those high up are hardly needed, those low down must be exact."
    kinds = "Each disc is a bell curve that many weights share, the larger the more"
    if p.outliers is not None:
        kinds += "; red weights were too important or too far out to share one"
    return kinds + ("; yellow ones mix several." if p.blends is not None else ".")


def _counts(p: Plane) -> str:
    clouds = (
        (p.components, "components"),
        (p.outliers, "outliers"),
        (p.blends, "blended weights"),
        (p.private, "unshared weights"),
    )
    return ", ".join(f"{cloud.total:,} {name}" for cloud, name in clouds if cloud is not None)


def _private(cloud: Cloud | None) -> list[Mark]:
    if cloud is None:
        return []
    if len(cloud.mu) <= SCATTER:
        return [
            Points(x=cloud.mu, y=cloud.sigma, name="unshared weights", color="after", size=4, opacity=0.5)
        ]
    low, high = np.quantile(cloud.mu, [0.0005, 0.9995])
    mu = np.linspace(low, high, 121)
    bottom, top = np.log10(np.quantile(cloud.sigma, [0.0005, 0.9995]))
    sigma = np.logspace(bottom, max(top, bottom + 1e-3), 81)
    counts = np.histogram2d(cloud.sigma, cloud.mu, (sigma, mu))[0]
    return [Heat(x_edges=mu, y_edges=sigma, counts=counts, name="unshared weights", color="after")]


def _few(cloud: Cloud | None, name: str, color: str) -> list[Mark]:
    if cloud is None:
        return []
    shown = name if len(cloud.mu) == cloud.total else f"{name} ({len(cloud.mu):,} of {cloud.total:,})"
    return [Points(x=cloud.mu, y=cloud.sigma, name=shown, color=color, size=5, opacity=0.55)]


def _components(p: Plane) -> list[Mark]:
    if p.components is None or p.members is None:
        return []
    share = p.members / max(p.members.max(), 1.0)
    hover = tuple(
        f"component {k}: {n:,.0f} weights, μ {m:.4g}, σ {s:.3g}"
        for k, (n, m, s) in enumerate(zip(p.members, p.components.mu, p.components.sigma, strict=True))
    )
    return [
        Points(
            x=p.components.mu,
            y=p.components.sigma,
            name="components, by members",
            color="after",
            size=5 + 21 * np.sqrt(share),
            opacity=0.7,
            hover=hover,
        )
    ]


def weights(story: Story) -> Figure | None:
    if story.weights is None:
        return None
    w = story.weights
    marks: list[Mark] = []
    if w.before is not None:
        marks.append(Steps(edges=w.edges, heights=w.before, name="before", color="before"))
    marks.append(
        Steps(edges=w.edges, heights=w.after, name="one draw after", color="after", filled=w.before is None)
    )
    return Figure(
        name="weights",
        title="The weights: how they are spread",
        caption=_change(story),
        spoken=f"Density of the weights, most of them between {w.edges[0]:.3g} and {w.edges[-1]:.3g}.",
        panels=(Panel(Axis("weight"), Axis("density"), tuple(marks)),),
        wide=True,
        height=280,
    )


def _change(story: Story) -> str:
    if story.weights is None or story.weights.before is None:
        return "How often a weight has which value, in one draw of the network."
    if story.plane is not None and story.plane.components is not None:
        return "Grey is the network as it was; each hill of the blue line is a group of weights that share a curve."
    return "Grey is the network as it was; the more the blue line differs, the further training and doubt moved it."


# --- bytes -----------------------------------------------------------------------------------------------------


def sections(story: Story) -> Figure | None:
    if not story.sections:
        return None
    order = sorted(story.sections.items(), key=lambda item: -item[1])
    sizes = np.array([size for _, size in order], dtype=float)
    total = sizes.sum()
    ticks = [SECTIONS.get(name, short(name)) for name, _ in order]
    return _rows(
        "sections",
        "Bytes by section",
        "The longest bar is what a smaller file would have to save on; the labels say which component each weight has.",
        f"Bytes by section, {total:,.0f} in all: "
        + ", ".join(f"{name} {size:,.0f}" for name, size in zip(ticks, sizes, strict=True))
        + ".",
        ticks,
        sizes,
        [f"{size:,.0f}" for size in sizes],
        [f"{n}: {s:,.0f} bytes, {s / total:.1%}" for n, s in zip(ticks, sizes, strict=True)],
        "bytes",
    )


def layers(story: Story) -> Figure | None:
    rows = _grouped(story.layers)
    if not rows:
        return None
    bits = np.array([layer.bits / max(1, layer.weights) for layer in rows])
    return _rows(
        "layers",
        "Bits a weight, layer by layer",
        "A plain network spends 32 bits on each weight; the shorter a bar, the less that layer needed to say.",
        "Bits a weight: "
        + ", ".join(f"{clean(r.name, 60)} {b:.2f}" for r, b in zip(rows, bits, strict=True))
        + ".",
        [short(layer.name) for layer in rows],
        bits,
        [f"{b:.2f}" for b in bits],
        [
            f"{clean(r.name, 200)}: {r.weights:,} weights, {r.bits / 8:,.0f} bytes, {r.outliers:,} outliers, "
            f"{r.blends:,} blends"
            for r in rows
        ],
        "bits a weight",
    )


def _grouped(layers: tuple[Layer, ...]) -> list[Layer]:
    """The stochastic tensors, the smallest of very many together, and all deterministic ones together."""
    random = [layer for layer in layers if layer.kind != "plain"]
    kept = sorted(random, key=lambda layer: -layer.bits)[:MOST_ROWS]
    rows = [layer for layer in random if layer in kept]
    rest = [layer for layer in random if layer not in kept]
    plain = [layer for layer in layers if layer.kind == "plain"]
    for name, group in ((f"{len(rest)} small layers", rest), ("biases, norms", plain)):
        if group:
            sums = [sum(getattr(g, key) for g in group) for key in ("weights", "bits", "outliers", "blends")]
            rows.append(Layer(name, "plain", int(sums[0]), float(sums[1]), int(sums[2]), int(sums[3])))
    return rows


def _rows(
    name: str,
    title: str,
    caption: str,
    spoken: str,
    ticks: list[str],
    lengths: Array,
    text: list[str],
    hover: list[str],
    axis: str,
) -> Figure:
    """Horizontal bars, the first on top."""
    places = -np.arange(len(ticks), dtype=float)
    bars = Bars(
        lengths=lengths, places=places, name=axis, color="after", text=tuple(text), hover=tuple(hover)
    )
    panel = Panel(
        Axis(axis, limits=(0, 1.22 * max(float(lengths.max()), 1e-9))),
        Axis(ticks=tuple(zip(places.tolist(), ticks, strict=True))),
        (bars,),
    )
    return Figure(
        name=name,
        title=title,
        caption=caption,
        spoken=spoken,
        panels=(panel,),
        height=90 + ROW * len(ticks),
        legend=False,
    )
