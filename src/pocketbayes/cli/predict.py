"""`pocketbayes predict`: what a file says about images or rows of an array, and how sure it is."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketbayes.cli.entry import Outcome, command
from pocketbayes.cli.network import answering
from pocketbayes.cli.options import OUTPUT, Drawn, Seeded, WithFile
from pocketbayes.cli.output import console, note_passes, rows_table, say
from pocketbayes.cli.settings import argument, option
from pocketbayes.runs.files import require_writable, write_atomically

if TYPE_CHECKING:
    from pocketbayes.arrays import Array
    from pocketbayes.artifact.predictor import ClassAnswers, ValueAnswers

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class PredictOptions(Drawn, WithFile, Seeded):
    """Those of `predict`."""

    inputs: list[Path] = argument("Images, folders of images, or an array: .npy, .npz or .csv.", "INPUTS...")
    top: int = option(3, "Classes to name with their probabilities.", min=1)
    threshold: float | None = option(
        None, 'Confidence below which the verdict is "not sure"; the file\'s own.', min=0.0, max=1.0
    )
    csv_file: Path | None = option(None, "Write answers there too.", "FILE", panel=OUTPUT, names=["--csv"])


@command(
    "predict small.pocket --net mymodel:net cat.png dog.jpg --top 5",
    "predict small.pocket test.npy --csv answers.csv",
    "predict energy.pocket rows.csv --json",
)
def predict(given: PredictOptions) -> Outcome:
    """Classify inputs, or predict their values, with the uncertainty of each answer.

    Entropy (nats) is how unsure the answer is: aleatoric is the part that lies in the data, epistemic the part that
    the network could still learn. The verdict is "not sure" where the confidence is below the threshold that was
    chosen on validation data. For regression: the mean and a 95 % interval.
    """
    from pocketbayes.data.inputs import read_inputs

    if given.csv_file is not None:
        require_writable(given.csv_file)
    model = answering(given.file, given.net)
    if given.threshold is not None:
        model = replace(model, card=model.card._replace(unsure=given.threshold))
    names, x = read_inputs(given.inputs, model.card.shape, model.card.scaling.full)
    note_passes(len(x), given.samples)
    answer = model.predict(x, samples=given.samples, seed=given.seed, progress=True)
    rows = _rows(names, answer, given.top)
    if given.csv_file is not None:
        write_atomically(given.csv_file, _as_csv(rows).encode())
    unsure, alpha = model.card.unsure, model.card.scales.alpha
    told = {"file": str(given.file), "samples": given.samples, "seed": given.seed, "threshold": unsure}
    return Outcome({**told, "predictions": rows}, lambda: _show(rows, unsure, alpha))


def _rows(names: Sequence[str], answer: ClassAnswers | ValueAnswers, top: int) -> list[Row]:
    """A row for each input, or for each target of each input in the units of the data."""
    from pocketbayes.artifact.predictor import ClassAnswers

    if isinstance(answer, ClassAnswers):
        return _class_rows(names, answer, top)
    parts = _arrays(answer, "mean", "low", "high", "sigma", "epistemic_sigma", "lower", "upper")
    parts = {key: part.reshape(len(names), -1) for key, part in parts.items()}
    return [
        {"input": name, "target": t, **{key: part[i, t].item() for key, part in parts.items()}}
        for i, name in enumerate(names)
        for t in range(parts["mean"].shape[1])
    ]


def _class_rows(names: Sequence[str], answer: ClassAnswers, top: int) -> list[Row]:
    numbers = _arrays(answer, "confidence", "entropy", "aleatoric", "epistemic")
    more = _arrays(answer, "probs", "sure", "sets")
    order = (-more["probs"]).argsort(1, kind="stable")[:, :top]
    rows = []
    for i, (name, said) in enumerate(zip(names, answer.names, strict=True)):
        row: Row = {"input": name, "class": said, **{key: part[i].item() for key, part in numbers.items()}}
        row["verdict"] = None if "sure" not in more else "sure" if more["sure"][i] else "not sure"
        row["top"] = {answer.classes[k]: more["probs"][i, k].item() for k in order[i].tolist()}
        if "sets" in more:
            row["set"] = [answer.classes[c] for c in more["sets"][i].nonzero()[0].tolist()]
        rows.append(row)
    return rows


def _arrays(answer: ClassAnswers | ValueAnswers, *names: str) -> dict[str, Array]:
    """Those parts of an answer that it has, in numpy."""
    from pocketbayes.arrays import to_numpy

    return {name: to_numpy(part) for name in names if (part := getattr(answer, name)) is not None}


def _show(rows: Sequence[Row], unsure: float | None, alpha: float | None) -> None:
    columns = [c for c in rows[0] if unsure is not None or c != "verdict"]
    texts = ([_text(row[column]) for column in columns] for row in rows)
    console().print(rows_table([c.replace("_", " ") for c in columns], texts, left=2))
    if "mean" in columns:
        say("low and high: 95 % interval; sigma: of the prediction, epistemic sigma: the network's part")
    elif unsure is None:
        say("The file states no threshold, so there is no verdict; --threshold sets one.")
    else:
        say(f'"not sure" is a confidence below {unsure:g}.')
    if alpha is not None:
        what = "set holds the true class" if "set" in columns else "lower and upper hold the true values"
        say(f"{what} with probability {1 - alpha:g}, for inputs like the validation data")


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "none of them"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {p:.3f}" for name, p in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _as_csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: _cell(value) for key, value in row.items()})
    return text.getvalue()


def _cell(value: Any) -> Any:
    """A list as one text; one that a spreadsheet would take for a formula gets an apostrophe in front."""
    if isinstance(value, Mapping):
        value = "; ".join(f"{name} {p:.6f}" for name, p in value.items())
    if isinstance(value, list):
        value = "; ".join(value)
    formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{value}" if formula else value
