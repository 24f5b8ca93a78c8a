"""`pocketbayes demo`: the whole story on handwritten digits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pocketbayes.cli.entry import Outcome, command
from pocketbayes.cli.options import OUTPUT, Seeded
from pocketbayes.cli.output import columns_table, console, say
from pocketbayes.cli.settings import option

if TYPE_CHECKING:
    from pocketbayes.cli.digits import DemoStage


@dataclass(frozen=True, kw_only=True)
class DemoOptions(Seeded):
    """Those of `demo`."""

    epochs: int = option(80, "Epochs of each training run.", min=1)
    out: Path = option(Path("demo"), "Folder for its files.", "DIR", panel=OUTPUT, names=["--out", "-o"])


@command("demo --seed 1 --json")
def demo(given: DemoOptions) -> Outcome:
    """Train a network on handwritten digits, make it Bayesian, make it small, and compare the three."""
    from pocketbayes.cli import digits

    stages: list[DemoStage] = []
    for stage in digits.stages(given.out, seed=given.seed, epochs=given.epochs):
        stages.append(stage)
        if not given.as_json:
            console().print(f"{stage.name}: trained in {stage.seconds:.0f} s")
    page = given.out / digits.PAGE
    told = [{"name": s.name, "seconds": s.seconds, "file": str(s.file), "scores": s.scores} for s in stages]
    found = {"seed": given.seed, "epochs": given.epochs, "stages": told, "page": str(page)}
    return Outcome(found, lambda: _show(stages, digits.ROWS, digits.LEGEND, page))


def _show(stages: Sequence[DemoStage], rows: Mapping[str, str], legend: str, page: Path) -> None:
    columns = {stage.name: {key: stage.scores.get(key, math.nan) for key in rows} for stage in stages}
    console().print(columns_table("test images", columns, rows))
    console().print(legend)
    say(f"The page: {page}")
