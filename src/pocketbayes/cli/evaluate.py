"""`pocketbayes evaluate`: how good and how honest a file's predictions are on a data set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pocketbayes.cli.datasets import ood_data, test_data
from pocketbayes.cli.entry import Outcome, command
from pocketbayes.cli.network import answering
from pocketbayes.cli.options import Drawn, Seeded, WithData, WithFile, WithOod
from pocketbayes.cli.output import columns_table, console, note_passes, passes


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(Drawn, WithOod, WithData, WithFile, Seeded):
    """Those of `evaluate`."""


@command(
    "evaluate small.pocket --net mymodel:net --data mnist --ood fashion-mnist",
    "evaluate small.pocket --data test.npz --samples 100 --json",
    divided=True,
)
def evaluate(given: EvaluateOptions) -> Outcome:
    """Judge a file on the test data of a data set: accuracy, NLL, calibration, Brier score; RMSE for regression.

    With --ood also how well its uncertainty tells out-of-distribution inputs. Inputs are scaled as the file says.
    --samples mean takes one pass an input and --samples auto about ten, where 30 draws take 30.
    """
    model = answering(given.file, given.net)
    test = test_data(given.data, given, model.card, given.file)
    ood = None if given.ood is None else ood_data(given.ood, given.folder, model.card).x
    draws: dict[str, Any] = {"samples": given.samples, "seed": given.seed}
    note_passes(len(test), given.samples)
    scores = model.evaluate(test.x, test.y, ood=ood, progress=True, **draws)
    told = {"file": str(given.file), "data": given.data, "ood": given.ood, "examples": len(test), **draws}
    told |= {"threshold": model.card.unsure, "metrics": scores}
    title = f"{len(test):,} test examples, {passes(given.samples)}"
    return Outcome(told, lambda: console().print(columns_table(title, {given.file.name: scores})))
