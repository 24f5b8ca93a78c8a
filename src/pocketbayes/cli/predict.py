"""`pocketbayes predict`: what a file says about images or rows of an array, and how sure it is."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pocketbayes.cli import options as o
from pocketbayes.cli.card import Card, open_model
from pocketbayes.cli.entry import app, examples
from pocketbayes.cli.inputs import read_inputs
from pocketbayes.cli.output import console, emit, rows_table, say
from pocketbayes.cli.scores import NORMAL_95, in_units
from pocketbayes.runs.files import require_writable, write_atomically

if TYPE_CHECKING:
    from pocketbayes.prediction.predict import Predictive, Regression

Row = dict[str, Any]
_CLASS_COLUMNS = ("input", "class", "confidence", "entropy", "aleatoric", "epistemic", "verdict", "top")
_VALUE_COLUMNS = ("input", "target", "mean", "low", "high", "sigma", "epistemic_sigma")


@app.command(
    epilog=examples(
        "predict small.pocket cat.png dog.jpg --top 5",
        "predict small.pocket test.npy --csv answers.csv",
        "predict energy.pocket rows.csv --json",
    )
)
def predict(
    file: o.PocketFile,
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="INPUTS...", help="Images, or an array as .npy, .npz or .csv.", show_default=False
        ),
    ],
    net: o.Net = None,
    samples: o.Samples = 30,
    top: Annotated[int, typer.Option("--top", min=1, help="Classes to name with their probabilities.")] = 3,
    threshold: Annotated[
        float | None,
        typer.Option(
            "--threshold",
            min=0.0,
            max=1.0,
            help='Confidence below which the verdict is "not sure"; the file\'s own.',
        ),
    ] = None,
    csv_file: Annotated[
        Path | None,
        typer.Option("--csv", metavar="FILE", rich_help_panel=o.OUTPUT, help="Write the answers there too."),
    ] = None,
    seed: o.Seed = 0,
    config: o.Config = None,
    as_json: o.AsJson = False,
    debug: o.Debug = False,
) -> None:
    """Classify inputs, or predict their values, with the uncertainty of each answer.

    Entropy (nats) is how unsure the answer is: aleatoric is the part that lies in the data, epistemic the part that
    the network could still learn. The verdict is "not sure" where the confidence is below the threshold that was
    chosen on validation data. For regression: the mean and a 95 % interval.
    """
    from pocketbayes.prediction.predict import predict as ask

    if csv_file is not None:
        require_writable(csv_file)
    model, card = open_model(file, net)
    card = card if threshold is None else card._replace(unsure=threshold)
    names, x = read_inputs(inputs, card)
    answer: Any = ask(model, x, samples=samples, seed=seed, likelihood=card.likelihood())
    rows = _values(names, answer, card) if card.classes is None else _classes(names, answer, card, top)
    if csv_file is not None:
        write_atomically(csv_file, _as_csv(rows, card).encode())
    if as_json:
        told = {"file": str(file), "samples": samples, "seed": seed, "threshold": card.unsure}
        emit({**told, "predictions": rows})
    else:
        _show(rows, card)


def _classes(names: Sequence[str], answer: Predictive, card: Card, top: int) -> list[Row]:
    assert card.classes is not None
    count = answer.probs.shape[1]
    classes = card.classes if len(card.classes) == count else tuple(map(str, range(count)))
    probs, order = answer.probs.topk(min(top, count))
    confidence = answer.confidence.tolist()
    return [
        {
            "input": name,
            "class": classes[order[i, 0]],
            "confidence": confidence[i],
            "entropy": answer.entropy[i].item(),
            "aleatoric": answer.aleatoric[i].item(),
            "epistemic": answer.epistemic[i].item(),
            "verdict": None
            if card.unsure is None
            else "sure"
            if confidence[i] >= card.unsure
            else "not sure",
            "top": {classes[k]: p for k, p in zip(order[i].tolist(), probs[i].tolist(), strict=True)},
        }
        for i, name in enumerate(names)
    ]


def _values(names: Sequence[str], answer: Regression, card: Card) -> list[Row]:
    """A row for each target of each input, in the units of the data."""
    answer = in_units(answer, card.target_scaling)
    mean, sigma, epistemic = (
        t.flatten(1) for t in (answer.mean, answer.var.sqrt(), answer.epistemic_var.sqrt())
    )
    return [
        {
            "input": name,
            "target": t,
            "mean": mean[i, t].item(),
            "low": (mean[i, t] - NORMAL_95 * sigma[i, t]).item(),
            "high": (mean[i, t] + NORMAL_95 * sigma[i, t]).item(),
            "sigma": sigma[i, t].item(),
            "epistemic_sigma": epistemic[i, t].item(),
        }
        for i, name in enumerate(names)
        for t in range(mean.shape[1])
    ]


def _show(rows: Sequence[Row], card: Card) -> None:
    columns: tuple[str, ...] = _VALUE_COLUMNS if card.classes is None else _CLASS_COLUMNS
    if card.classes is not None and card.unsure is None:
        columns = tuple(c for c in columns if c != "verdict")
    texts = ([_text(row[column]) for column in columns] for row in rows)
    console().print(rows_table([c.replace("_", " ") for c in columns], texts, left=2))
    if card.classes is None:
        say(
            "low and high: 95 % interval; sigma: of the prediction, epistemic sigma: of the network's part in it"
        )
    elif card.unsure is None:
        say("The file states no threshold, so there is no verdict; --threshold sets one.")
    else:
        say(f'"not sure" is a confidence below {card.unsure:g}.')


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {p:.3f}" for name, p in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _as_csv(rows: Sequence[Row], card: Card) -> str:
    text = io.StringIO()
    columns = _VALUE_COLUMNS if card.classes is None else _CLASS_COLUMNS
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        top = row.get("top")
        told = {} if top is None else {"top": "; ".join(f"{name} {p:.6f}" for name, p in top.items())}
        writer.writerow({**row, **told})
    return text.getvalue()
