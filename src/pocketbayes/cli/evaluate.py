"""`pocketbayes evaluate`: how good and how honest a file's predictions are on a data set."""

from __future__ import annotations

from typing import Any

import typer

from pocketbayes.cli import options as o
from pocketbayes.cli.card import open_model
from pocketbayes.cli.datasets import Data, requested
from pocketbayes.cli.entry import app, examples
from pocketbayes.cli.output import columns_table, console, emit
from pocketbayes.cli.scores import ask, foreign_scores, scores_of
from pocketbayes.cli.story import foreign_data


@app.command(
    epilog=examples(
        "evaluate small.pocket --data mnist --ood fashion-mnist",
        "evaluate small.pocket --data test.npz --samples 100 --json",
    )
)
def evaluate(
    context: typer.Context,
    file: o.PocketFile,
    data: o.Data = None,
    net: o.Net = None,
    folder: o.Folder = None,
    image_size: o.ImageSize = None,
    targets: o.Targets = 1,
    ood: o.Ood = None,
    samples: o.Samples = 30,
    seed: o.Seed = 0,
    config: o.Config = None,
    as_json: o.AsJson = False,
    debug: o.Debug = False,
) -> None:
    """Judge a file on the test data of a data set: accuracy, NLL, calibration, Brier; RMSE for regression.

    With --ood also how well its uncertainty tells foreign inputs. Inputs are scaled as the file says. FILE may be
    plain weights of `pocketbayes train` too.
    """
    request = requested(data, folder=folder, image_size=image_size, targets=targets)
    model, card = open_model(file, net)
    test = Data(request, card.scaling, card.target_scaling).test
    card.require_fit(file, test)
    if ood is not None and card.classes is None:
        raise typer.BadParameter("--ood ranks inputs by the entropy of their classes; this is a regression")
    settings: dict[str, Any] = {"samples": samples, "seed": seed}
    answer = ask(model, test, card.likelihood(), **settings)
    scores = scores_of(answer, test, card.unsure)
    if ood is not None:
        scores |= foreign_scores(answer, ask(model, foreign_data(ood, folder, card), **settings))
    if as_json:
        told = {"file": str(file), "data": request.spec, "ood": ood, "examples": len(test), **settings}
        emit({**told, "threshold": card.unsure, "metrics": scores})
    else:
        console().print(columns_table(f"{len(test):,} test examples, {samples} draws", {file.name: scores}))
