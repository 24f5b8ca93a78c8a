"""`pocketbayes noise`: which law a device's noise follows, and whether a network is sensitive to it."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pocketbayes.cli import options as o
from pocketbayes.cli.card import Opened, open_pocket
from pocketbayes.cli.datasets import Data, requested
from pocketbayes.cli.entry import app, examples
from pocketbayes.cli.output import console, emit, rows_table, say
from pocketbayes.runs.files import require_writable, write_atomically

if TYPE_CHECKING:
    from torch import Tensor

    from pocketbayes.data import DataSet
    from pocketbayes.noise import NoiseFit
    from pocketbayes.prediction.noise_shape import ShapeReport

_SPREADS = ("mu", "sigma", "skewness", "excess_kurtosis")


@app.command(
    epilog=examples(
        "noise readings.csv --plot fit.svg",
        "noise rram.npz --key run0 --skip 3 --json",
        "noise readings.csv --model small.pocket --data mnist",
    )
)
def noise(
    samples_file: Annotated[
        Path,
        typer.Argument(
            metavar="SAMPLES", help="Readings: .csv (a cell a column), .npy or .npz.", show_default=False
        ),
    ],
    key: Annotated[str | None, typer.Option("--key", help="Which array of an .npz.")] = None,
    skip: Annotated[int, typer.Option("--skip", min=0, help="Leave out the first values of each cell.")] = 0,
    folds: Annotated[int, typer.Option("--folds", min=2, help="Parts, each held out once.")] = 5,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot", metavar="FILE", rich_help_panel=o.OUTPUT, help="The fit as .svg, .png or .pdf."
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            "--model", metavar="FILE", help="A pocket file: is the network sensitive to this noise?"
        ),
    ] = None,
    data: o.Data = None,
    folder: o.Folder = None,
    image_size: o.ImageSize = None,
    targets: o.Targets = 1,
    samples: o.Samples = 100,
    repeats: Annotated[int, typer.Option("--repeats", min=2, help="Repeats of the comparison.")] = 5,
    examples_used: Annotated[
        int, typer.Option("--examples", min=1, help="Test examples that the comparison uses.")
    ] = 500,
    seed: o.Seed = 0,
    config: o.Config = None,
    as_json: o.AsJson = False,
    debug: o.Debug = False,
) -> None:
    """Fit noise families to the readings of a device, cell by cell standardised.

    The table ranks the families by the likelihood of readings that were held out; the simplest family within one
    standard error of the best is chosen. With --model and --data: how predictions change if the weights have this noise
    instead of a Gaussian one.
    """
    from pocketbayes.noise import fit_noise, read_readings

    if plot is not None:
        _require_picture(plot)
    request = requested(data, folder=folder, image_size=image_size, targets=targets) if model else None
    opened = open_pocket(model) if model is not None else None
    readings = read_readings(samples_file, key)
    if skip >= readings.shape[-1]:
        raise typer.BadParameter(f"--skip {skip} leaves nothing of {readings.shape[-1]} values")
    fit = fit_noise(readings[..., skip:], folds=folds)
    if plot is not None:
        write_atomically(plot, _picture(fit, plot.suffix[1:]))
    shape = None
    if opened is not None and request is not None:
        test = Data(request, opened.card.scaling, opened.card.target_scaling).test
        opened.card.require_fit(Path(str(model)), test)
        chosen = test.subset(some_of(len(test), examples_used, seed))
        shape = _shape_report(opened, chosen, fit, samples, repeats, seed)
    if as_json:
        emit(
            {"file": str(samples_file), **_as_dict(fit), "shape": None if shape is None else shape.as_dict()}
        )
        return
    _show(fit)
    if shape is not None:
        say("")
        for line in str(shape).splitlines():
            console().print(line, markup=False, soft_wrap=True)


def _require_picture(path: Path) -> None:
    if path.suffix not in (".svg", ".png", ".pdf"):
        raise typer.BadParameter(f"--plot {path}: a picture is .svg, .png or .pdf")
    require_writable(path)


def _picture(fit: NoiseFit, kind: Any) -> bytes:
    """The fit as a file; an SVG is text."""
    file = io.StringIO() if kind == "svg" else io.BytesIO()
    fit.plot().save(file, format=kind)
    found = file.getvalue()
    return found.encode() if isinstance(found, str) else found


def _shape_report(
    opened: Opened, test: DataSet, fit: NoiseFit, samples: int, repeats: int, seed: int
) -> ShapeReport:
    """The network under this device's noise, and under the usual families, against Gaussian noise."""
    from pocketbayes.prediction.noise_shape import FAMILIES, shape_sensitivity

    return shape_sensitivity(
        opened.model,
        test.batches(256),
        {"this device": fit.noise, "its readings": fit.empirical, **FAMILIES},
        samples=samples,
        repeats=repeats,
        seed=seed,
        likelihood=opened.card.likelihood(),
        progress=True,
    )


def some_of(total: int, count: int, seed: int) -> Tensor:
    """The places of at most `count` examples out of `total`, chosen at random."""
    import torch

    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
    return order[:count].sort().values


def _as_dict(fit: NoiseFit) -> dict[str, Any]:
    cells, reads = fit.cells.z.shape
    return {
        "cells": cells,
        "reads": reads,
        "held_out": fit.folds,
        "chosen": fit.noise.to_dict(),
        "families": [
            {
                "name": c.name,
                "parameters": c.parameters,
                "held_out": c.held_out,
                "behind": c.behind,
                "behind_error": c.behind_error,
                "ks": c.ks,
                "quantile_error": c.quantile_error,
                "chosen": c.noise == fit.noise,
            }
            for c in fit.candidates
        ],
        "spread": {name: _quantiles(getattr(fit.cells, name)) for name in _SPREADS},
    }


def _quantiles(values: Any) -> list[float]:
    """5 %, 50 % and 95 % over the cells."""
    import numpy as np

    return [float(q) for q in np.quantile(values, [0.05, 0.5, 0.95])]


def _show(fit: NoiseFit) -> None:
    """The table of families; what the fit itself says before and after it."""
    lines = str(fit).splitlines()
    table = next(i for i, line in enumerate(lines) if line.startswith("family"))
    for line in lines[:table]:
        say(line)
    console().print(
        rows_table(("family", "held-out nats", "behind best", "KS", "quantile error"), _rows(fit))
    )
    for line in lines[table + 1 + len(fit.candidates) :]:
        say(line)


def _rows(fit: NoiseFit) -> Iterable[tuple[str, ...]]:
    for c in fit.candidates:
        covers = math.isfinite(c.behind)
        behind = f"{c.behind:.4f} ± {c.behind_error:.4f}" if covers else "does not cover the readings"
        name = f"{c.name} (chosen)" if c.noise == fit.noise else c.name
        yield name, f"{c.held_out:.4f}", behind, f"{c.ks:.4f}", f"{c.quantile_error:.4f}"
