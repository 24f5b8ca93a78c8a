"""`pocketbayes noise`: which law a device's noise follows, and whether a network is sensitive to it."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from pocketbayes.cli.datasets import in_tensors, test_data
from pocketbayes.cli.entry import Outcome, command
from pocketbayes.cli.network import opened
from pocketbayes.cli.options import OUTPUT, Seeded, WithNet, WithNoData
from pocketbayes.cli.output import console
from pocketbayes.cli.settings import argument, option
from pocketbayes.data.examples import permutation
from pocketbayes.runs.files import require_writable, write_atomically

if TYPE_CHECKING:
    from pocketbayes.noise import NoiseFit
    from pocketbayes.prediction.noise_shape import ShapeReport


@dataclass(frozen=True, kw_only=True)
class NoiseOptions(WithNoData, WithNet, Seeded):
    """Those of `noise`."""

    samples_file: Path = argument("Readings: .csv (a cell a column), .npy or .npz.", "SAMPLES")
    key: str | None = option(None, "Which array of an .npz.")
    skip: int = option(0, "Leave out the first values of each cell.", min=0)
    folds: int = option(5, "Parts, each held out once.", min=2)
    plot: Path | None = option(None, "The fit as .svg, .png or .pdf.", "FILE", panel=OUTPUT)
    model: Path | None = option(None, "A pocket file: is the network sensitive to this noise?", "FILE")
    samples: int = option(100, "Draws of the network that are averaged.", min=1)
    repeats: int = option(5, "Repeats of the comparison.", min=2)
    examples: int = option(500, "Test examples that the comparison uses.", min=1)


@command(
    "noise readings.csv --plot fit.svg",
    "noise rram.npz --key run0 --skip 3 --json",
    "noise readings.csv --model small.pocket --net mymodel:net --data mnist",
)
def noise(given: NoiseOptions) -> Outcome:
    """Fit noise families to the readings of a device, cell by cell standardised.

    The table ranks the families by the likelihood of readings that were held out; the simplest family within one
    standard error of the best is chosen. With --model and --data: how predictions change if the weights have this noise
    instead of a Gaussian one.
    """
    from pocketbayes.noise import fit_noise, read_readings

    if given.plot is not None:
        if given.plot.suffix not in (".svg", ".png", ".pdf"):
            raise typer.BadParameter(f"--plot {given.plot}: a picture is .svg, .png or .pdf")
        require_writable(given.plot)
    if given.model is not None and given.data is None:
        raise typer.BadParameter("Missing option '--data': the network of --model is asked about test data")
    readings = read_readings(given.samples_file, given.key)
    if given.skip >= readings.shape[-1]:
        raise typer.BadParameter(f"--skip {given.skip} leaves nothing of {readings.shape[-1]} values")
    fit = fit_noise(readings[..., given.skip :], folds=given.folds)
    if given.plot is not None:
        write_atomically(given.plot, _picture(fit, given.plot.suffix[1:]))
    shape = None if given.model is None else _shape_report(given, given.model, fit)
    asked = None if shape is None else shape.as_dict()
    told = {"file": str(given.samples_file), **fit.as_dict(), "shape": asked}
    return Outcome(told, lambda: _show(fit, shape))


def _picture(fit: NoiseFit, kind: Any) -> bytes:
    """The fit as a file; an SVG is text."""
    file = io.StringIO() if kind == "svg" else io.BytesIO()
    fit.plot().save(file, format=kind)
    found = file.getvalue()
    return found.encode() if isinstance(found, str) else found


def _shape_report(given: NoiseOptions, file: Path, fit: NoiseFit) -> ShapeReport:
    """The network under this device's noise, and under the usual families, against Gaussian noise."""
    from pocketbayes.prediction.noise_shape import FAMILIES, shape_sensitivity

    predictor = opened(file, given.net)
    test = test_data(str(given.data), given, predictor.card, file)
    some = np.sort(permutation(len(test), given.seed)[: given.examples])
    return shape_sensitivity(
        predictor.model,
        in_tensors(test.subset(some)).batches(256),
        {"this device": fit.noise, "its readings": fit.empirical, **FAMILIES},
        samples=given.samples,
        repeats=given.repeats,
        seed=given.seed,
        likelihood=predictor.card.likelihood(),
        progress=True,
    )


def _show(fit: NoiseFit, shape: ShapeReport | None) -> None:
    """The table of families; and whether the network is sensitive to this noise."""
    for part in (fit, "", shape) if shape is not None else (fit,):
        console().print(str(part), markup=False, soft_wrap=True)
