"""`pocketbayes noise`: which law a device's noise follows, and whether a network is sensitive to it."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pocketbayes.cli.datasets import in_tensors, test_data
from pocketbayes.cli.entry import Outcome, command
from pocketbayes.cli.network import given_net
from pocketbayes.cli.options import OUTPUT, Seeded, WithNet, WithNoData
from pocketbayes.cli.output import console, rows_table, say
from pocketbayes.cli.settings import argument, option
from pocketbayes.runs.files import require_writable, write_atomically

if TYPE_CHECKING:
    from torch import Tensor

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
        _require_picture(given.plot)
    if given.model is not None and given.data is None:
        raise typer.BadParameter("Missing option '--data': the network of --model is asked about test data")
    readings = read_readings(given.samples_file, given.key)
    if given.skip >= readings.shape[-1]:
        raise typer.BadParameter(f"--skip {given.skip} leaves nothing of {readings.shape[-1]} values")
    fit = fit_noise(readings[..., given.skip :], folds=given.folds)
    if given.plot is not None:
        write_atomically(given.plot, _picture(fit, given.plot.suffix[1:]))
    shape = None if given.model is None else _shape_report(given, given.model, fit)
    told = {
        "file": str(given.samples_file),
        **fit.as_dict(),
        "shape": None if shape is None else shape.as_dict(),
    }
    return Outcome(told, lambda: _show(fit, shape))


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


def _shape_report(given: NoiseOptions, file: Path, fit: NoiseFit) -> ShapeReport:
    """The network under this device's noise, and under the usual families, against Gaussian noise."""
    from pocketbayes.artifact.open import open as open_file
    from pocketbayes.prediction.noise_shape import FAMILIES, shape_sensitivity

    opened = open_file(file, given_net(given.net))
    test = in_tensors(test_data(str(given.data), given, opened.card, file))
    return shape_sensitivity(
        opened.model,
        test.subset(some_of(len(test), given.examples, given.seed)).batches(256),
        {"this device": fit.noise, "its readings": fit.empirical, **FAMILIES},
        samples=given.samples,
        repeats=given.repeats,
        seed=given.seed,
        likelihood=opened.card.likelihood(),
        progress=True,
    )


def some_of(total: int, count: int, seed: int) -> Tensor:
    """The places of at most `count` examples out of `total`, chosen at random."""
    import torch

    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
    return order[:count].sort().values


def _show(fit: NoiseFit, shape: ShapeReport | None) -> None:
    """The table of families; what the fit itself says before and after it; whether the network is sensitive to it."""
    lines = str(fit).splitlines()
    table = next(i for i, line in enumerate(lines) if line.startswith("family"))
    for line in lines[:table]:
        say(line)
    console().print(
        rows_table(("family", "held-out nats", "behind best", "KS", "quantile error"), _rows(fit))
    )
    for line in lines[table + 1 + len(fit.candidates) :]:
        say(line)
    if shape is not None:
        say("")
        for line in str(shape).splitlines():
            console().print(line, markup=False, soft_wrap=True)


def _rows(fit: NoiseFit) -> Iterable[tuple[str, ...]]:
    for c in fit.candidates:
        covers = math.isfinite(c.behind)
        behind = f"{c.behind:.4f} ± {c.behind_error:.4f}" if covers else "does not cover the readings"
        name = f"{c.name} (chosen)" if c.noise == fit.noise else c.name
        yield name, f"{c.held_out:.4f}", behind, f"{c.ks:.4f}", f"{c.quantile_error:.4f}"
