"""The picture of a fitted noise family."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pocketbayes.noise.fit import NoiseFit


def fit_figure(fit: NoiseFit) -> Figure:
    """Left, the reads and the densities; right, their quantiles against those of the chosen family."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_densities(left, fit)
    _draw_quantiles(right, fit)
    return figure


def _draw_densities(axes: Axes, fit: NoiseFit) -> None:
    z = fit.cells.z.ravel()
    axes.hist(
        z,
        bins=np.linspace(-4, 4, 121).tolist(),
        density=True,
        histtype="stepfilled",
        color="0.8",
        label="reads",
    )
    grid = torch.linspace(-4, 4, 401, dtype=torch.float64)
    shown = [c for c in fit.candidates if math.isfinite(c.held_out)][:3]
    shown += [c for c in fit.candidates if c.noise == fit.noise and c not in shown]
    for c in shown:
        chosen = c.noise == fit.noise
        axes.plot(
            grid, c.noise.log_prob(grid).exp(), lw=2 if chosen else 1, label=c.name + " (chosen)" * chosen
        )
    axes.set(xlabel="z = (reading - cell mean) / cell sigma", ylabel="density")
    axes.legend(frameon=False, fontsize=8)


def _draw_quantiles(axes: Axes, fit: NoiseFit) -> None:
    z = fit.cells.z.ravel()
    count = min(z.size, 400)
    levels = (np.arange(count) + 0.5) / count
    model = fit.noise.icdf(torch.from_numpy(levels)).numpy()
    axes.plot(model, np.quantile(z, levels), ".", ms=3)
    ends = [min(model[0], z.min()), max(model[-1], z.max())]
    axes.plot(ends, ends, color="0.6", lw=1, zorder=0)
    axes.set(xlabel=f"quantile of {type(fit.noise).__name__}", ylabel="quantile of the reads")
