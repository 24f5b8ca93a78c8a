"""From a device's readings to the noise family that describes them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pocketbayes.noise.cells import Cells, standardise
from pocketbayes.noise.family import Law
from pocketbayes.noise.likelihood import CANDIDATES, group, mean_log_likelihood
from pocketbayes.noise.measured import Empirical, QuantileTable
from pocketbayes.noise.state import StateDependent

if TYPE_CHECKING:
    import altair as alt

Array = np.ndarray[Any, np.dtype[np.float64]]
_LEVELS = torch.linspace(0.005, 0.995, 199, dtype=torch.float64)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One family fitted to the reads, and how well it does."""

    name: str
    noise: Law
    parameters: int
    held_out: float  # mean ln f of reads not used for fitting, nats; -inf if the law does not cover them
    behind: float  # nats behind the best family, fold by fold
    behind_error: float  # standard error of that, over the folds
    ks: float  # largest difference between the distribution functions
    quantile_error: float  # root mean square difference of the quantiles from 0.5 % to 99.5 %, in sigmas


@dataclass(frozen=True, kw_only=True)
class NoiseFit:
    """What `fit_noise` found.  Print it for the table; `plot()` shows it; `noise` is the chosen family."""

    noise: Law
    candidates: tuple[Candidate, ...]  # best held-out likelihood first
    cells: Cells
    folds: str  # what was held out

    @property
    def empirical(self) -> Empirical:
        """The pooled reads as a law of their own, atoms and all."""
        return Empirical(self.cells.z.ravel())

    @property
    def table(self) -> QuantileTable:
        """The pooled reads as a table of quantiles, which has a density."""
        return QuantileTable.of(self.cells.z.ravel())

    def __str__(self) -> str:
        return "\n".join([*_cell_lines(self.cells), *_table_lines(self), *_caution_lines(self.cells)])

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for a JSON file; `spread` is 5 %, 50 % and 95 % over the cells."""
        cells, reads = self.cells.z.shape
        numbers = ("name", "parameters", "held_out", "behind", "behind_error", "ks", "quantile_error")
        spread = {
            name: np.quantile(getattr(self.cells, name), [0.05, 0.5, 0.95]).tolist()
            for name in ("mu", "sigma", "skewness", "excess_kurtosis")
        }
        return {
            "cells": cells,
            "reads": reads,
            "held_out": self.folds,
            "chosen": self.noise.to_dict(),
            "families": [
                {**{name: getattr(c, name) for name in numbers}, "chosen": c.noise == self.noise}
                for c in self.candidates
            ],
            "spread": spread,
        }

    def plot(self) -> alt.HConcatChart:
        """The pooled reads against the chosen family and its runners-up: densities, and quantiles against quantiles.

        A chart of Altair's, which shows itself in a notebook; `.save("fit.svg")` writes it.
        """
        from pocketbayes.noise.figure import fit_figure

        return fit_figure(self)


def fit_noise(samples: Any, *, folds: int = 5) -> NoiseFit:
    """The noise family that fits readings [reads] or [cells, reads] best.

    Every cell is standardised by its own mean and standard deviation and the shapes are pooled.  Each family is
    fitted by maximum likelihood on all folds but one and judged on that one (whole cells if there are enough of them,
    else consecutive stretches of reads); chosen is the family with fewest parameters within one standard error
    of the best.  Families whose support does not hold all reads are out.

    Args:
        samples: a tensor or array of repeated reads, [reads] of one cell or [cells, reads], in any unit.
        folds: how many parts are held out by turns.

    Returns:
        The chosen family (`noise`) and how well each one did; print it for a table.

    Examples:
        >>> reads = 3.0 + 0.1 * pb.noise.Uniform().sample_like(torch.empty(4, 1000))  # 4 cells
        >>> pb.fit_noise(reads).noise
        Uniform()
    """
    if folds < 2:
        raise ValueError(f"fit_noise: folds must be at least 2, got {folds}.")
    cells = standardise(samples)
    parts, what = _split(cells.z, folds)
    others = [group(np.concatenate(parts[:i] + parts[i + 1 :])) for i in range(folds)]
    slack = 3 / math.sqrt(2 * cells.z.shape[1])  # three standard errors of a cell's sigma
    scores = np.array(  # [families, folds]
        [
            [mean_log_likelihood(fit(rest), part, slack) for rest, part in zip(others, parts, strict=True)]
            for fit, _ in CANDIDATES.values()
        ]
    )
    best = int(np.argmax(scores.mean(1)))
    if not math.isfinite(scores[best].mean()):
        raise ValueError("fit_noise: no family covers the reads. Use Empirical(samples) instead.")
    pooled = group(cells.z.ravel())
    found = [
        _candidate(name, fit(pooled), parameters, scores[i], scores[best], cells.z)
        for i, (name, (fit, parameters)) in enumerate(CANDIDATES.items())
    ]
    close = [c for c in found if c.behind <= c.behind_error]
    chosen = min(close, key=lambda c: (c.parameters, -c.held_out))
    ranked = tuple(sorted(found, key=lambda c: -c.held_out))
    return NoiseFit(noise=chosen.noise, candidates=ranked, cells=cells, folds=what)


def fit_states(samples: Any, *, states: int = 4, scale: float = 1.0, zero: float = 0.0) -> StateDependent:
    """A state-dependent device from readings [cells, reads] of cells programmed to different values.

    Cells are grouped by their mean into `states` equal groups, each with the quantile table of its pooled shape.
    `scale` and `zero` translate readings into weights: w = scale (reading - zero).
    """
    cells = standardise(samples)
    if not 1 <= states <= len(cells.z):
        raise ValueError(
            f"fit_states: {states} states from {len(cells.z)} cells. Use at most one state per cell."
        )
    if not (math.isfinite(scale) and scale > 0 and math.isfinite(zero)):
        raise ValueError(f"fit_states: scale must be positive and zero finite, got {scale} and {zero}.")
    groups = np.array_split(np.argsort(cells.mu), states)
    return StateDependent(
        mus=tuple(float(scale * (cells.mu[g].mean() - zero)) for g in groups),
        sigmas=tuple(float(scale * np.sqrt(np.mean(cells.sigma[g] ** 2))) for g in groups),
        laws=tuple(QuantileTable.of(cells.z[g].ravel()) for g in groups),
    )


def _split(z: Array, folds: int) -> tuple[list[Array], str]:
    """The reads in `folds` parts: by cells where there are two or more for each part, else by time."""
    if len(z) >= 2 * folds:
        return [z[i::folds].ravel() for i in range(folds)], f"every {folds}th cell"
    return [part.ravel() for part in np.array_split(z, folds, axis=1)], f"one of {folds} stretches of reads"


def _candidate(name: str, noise: Law, parameters: int, scores: Array, best: Array, z: Array) -> Candidate:
    behind = best - scores if np.isfinite(scores).all() else np.full_like(best, math.inf)
    spread = float(np.std(behind, ddof=1) / math.sqrt(behind.size)) if np.isfinite(behind).all() else 0.0
    ordered = np.sort(z.ravel())
    level = np.arange(ordered.size + 1) / ordered.size
    model = noise.cdf(torch.from_numpy(ordered)).numpy()
    ks = max(np.max(np.abs(model - level[1:])), np.max(np.abs(model - level[:-1])))
    gap = noise.icdf(_LEVELS).numpy() - np.quantile(ordered, _LEVELS.numpy())
    return Candidate(
        name=name,
        noise=noise,
        parameters=parameters,
        held_out=float(scores.mean()),
        behind=float(behind.mean()),
        behind_error=spread,
        ks=float(ks),
        quantile_error=float(np.sqrt(np.mean(gap**2))),
    )


def _cell_lines(cells: Cells) -> list[str]:
    count, reads = cells.z.shape
    lines = [
        f"{count} cell{'s' * (count > 1)} of {reads} reads"
        + f", {cells.constant} constant left out" * (cells.constant > 0)
    ]
    if count == 1:
        return [*lines, f"mean {cells.mu[0]:.6g}, sigma {cells.sigma[0]:.4g}"]
    for name, values in (
        ("mean", cells.mu),
        ("sigma", cells.sigma),
        ("skewness", cells.skewness),
        ("excess kurtosis", cells.excess_kurtosis),
    ):
        low, middle, high = np.quantile(values, [0.05, 0.5, 0.95])
        lines.append(f"{name} from cell to cell: {middle:.4g} (5 % to 95 %: {low:.4g} to {high:.4g})")
    return lines


def _table_lines(fit: NoiseFit) -> list[str]:
    lines = [
        f"held out: {fit.folds}",
        f"{'family':<20}{'held-out nats':>14}{'behind best':>20}{'KS':>8}{'quantile error':>16}",
    ]
    for c in fit.candidates:
        mark = " *" if c.noise == fit.noise else ""
        behind = f"{c.behind:.4f} +- {c.behind_error:.4f}" if math.isfinite(c.behind) else "does not cover"
        lines.append(
            f"{c.name + mark:<20}{c.held_out:>14.4f}{behind:>20}{c.ks:>8.4f}{c.quantile_error:>16.4f}"
        )
    return [*lines, f"chosen: {_short(fit.noise)}"]


def _short(noise: Law) -> str:
    """The family with its parameters to four digits."""
    shown = {k: np.round(v, 4) for k, v in noise.to_dict().items() if k != "family"}
    return f"{type(noise).__name__}({', '.join(f'{k}={v}' for k, v in shown.items())})"


def _caution_lines(cells: Cells) -> list[str]:
    """What would make the table misleading."""
    lines = []
    memory = float(np.median(cells.autocorrelation))
    if memory > 0.2:
        lines.append(
            f"caution: consecutive reads correlate ({memory:.2f}), so there are fewer independent ones than reads"
        )
    if len(cells.z) > 1 and np.quantile(np.abs(cells.skewness), 0.75) > 1:
        lines.append("caution: shapes differ from cell to cell; the pooled shape is not that of any one cell")
    distinct = np.mean([np.unique(row).size for row in cells.z]) / cells.z.shape[1]
    if distinct < 0.1:
        lines.append(
            f"caution: only {100 * distinct:.1f} % of the reads differ; the readings are coarsely quantised"
        )
    return lines
