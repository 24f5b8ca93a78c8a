"""The chart of a fitted noise family."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import altair as alt
import numpy as np
import torch

if TYPE_CHECKING:
    from pocketbayes.noise.fit import NoiseFit

SIZE = {"width": 330, "height": 250}  # pixels of each half


def fit_figure(fit: NoiseFit) -> alt.HConcatChart:
    """Left, the reads and the densities; right, their quantiles against those of the chosen family."""
    return alt.hconcat(_densities(fit).properties(**SIZE), _quantiles(fit).properties(**SIZE))


def _densities(fit: NoiseFit) -> alt.LayerChart | alt.FacetChart:
    reads, edges = np.histogram(fit.cells.z.ravel(), np.linspace(-4, 4, 121), density=True)
    outline = [{"z": z, "density": d} for z, d in zip(edges.tolist(), [*reads.tolist(), 0.0], strict=True)]
    grid = torch.linspace(-4, 4, 201, dtype=torch.float64)
    shown = [c for c in fit.candidates if math.isfinite(c.held_out)][:3]
    shown += [c for c in fit.candidates if c.noise == fit.noise and c not in shown]
    curves = [
        {"z": z, "density": density, "family": c.name + " (chosen)" * (c.noise == fit.noise)}
        for c in shown
        for z, density in zip(grid.tolist(), c.noise.log_prob(grid).exp().tolist(), strict=True)
    ]
    z = alt.X("z:Q", title="z = (reading - cell mean) / cell sigma")
    histogram = alt.Chart(alt.InlineData(values=outline)).mark_area(interpolate="step-after", color="#ccc")
    families = alt.Chart(alt.InlineData(values=curves)).mark_line(strokeWidth=1.5)
    colour = alt.Color("family:N", title=None, legend=alt.Legend(orient="bottom", columns=2), sort=None)
    return alt.layer(histogram.encode(z, y="density:Q"), families.encode(z, colour, y="density:Q"))


def _quantiles(fit: NoiseFit) -> alt.LayerChart | alt.FacetChart:
    z = fit.cells.z.ravel()
    count = min(z.size, 200)
    levels = (np.arange(count) + 0.5) / count
    model = fit.noise.icdf(torch.from_numpy(levels)).numpy()
    points = [
        {"model": m, "reads": r} for m, r in zip(model.tolist(), np.quantile(z, levels).tolist(), strict=True)
    ]
    ends = [
        {"model": end, "reads": end}
        for end in (float(min(model[0], z.min())), float(max(model[-1], z.max())))
    ]
    x = alt.X("model:Q", title=f"quantile of {type(fit.noise).__name__}")
    y = alt.Y("reads:Q", title="quantile of the reads")
    line = alt.Chart(alt.InlineData(values=ends)).mark_line(color="#999", strokeWidth=1)
    return alt.layer(
        line.encode(x, y), alt.Chart(alt.InlineData(values=points)).mark_circle(size=12).encode(x, y)
    )
