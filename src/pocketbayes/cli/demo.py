"""`pocketbayes demo`: the whole story on handwritten digits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pocketbayes.cli.entry import app, examples
from pocketbayes.cli.options import OUTPUT, AsJson, Config, Debug, Seed
from pocketbayes.cli.output import columns_table, console, emit, say

if TYPE_CHECKING:
    from pocketbayes.cli.digits import Stage


@app.command(epilog=examples("demo --seed 1 --json"))
def demo(
    seed: Seed = 0,
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="Epochs of each training run.")] = 80,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", rich_help_panel=OUTPUT, help="Folder for its files.")
    ] = Path("demo"),
    config: Config = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Train a network on handwritten digits, make it Bayesian, put it in a pocket, and compare the three."""
    from pocketbayes.cli import digits as story

    shown = console()
    stages: list[Stage] = []
    for stage in story.stages(out, seed=seed, epochs=epochs, progress=not as_json):
        stages.append(stage)
        if not as_json:
            shown.print(f"{stage.name}: trained in {stage.seconds:.0f} s")
    if as_json:
        told = [
            {"name": s.name, "seconds": s.seconds, "file": str(s.file), "scores": s.scores} for s in stages
        ]
        emit({"seed": seed, "epochs": epochs, "stages": told, "page": str(out / story.PAGE)})
        return
    columns = {stage.name: _every_row(stage.scores, story.ROWS) for stage in stages}
    shown.print(columns_table("test images", columns, story.ROWS))
    shown.print(story.LEGEND)
    say(f"The page: {out / story.PAGE}")


def _every_row(scores: Mapping[str, float], rows: Mapping[str, str]) -> dict[str, float]:
    return {key: scores.get(key, math.nan) for key in rows}
