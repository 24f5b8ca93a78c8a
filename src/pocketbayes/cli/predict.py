"""`pocketbayes predict`: what a file says about images or rows of an array, and how sure it is."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketbayes.cli.entry import Outcome, command
from pocketbayes.cli.network import given_net
from pocketbayes.cli.options import OUTPUT, Drawn, Seeded, WithFile
from pocketbayes.cli.output import console, note_passes, rows_table, say
from pocketbayes.cli.settings import argument, option
from pocketbayes.runs.files import require_writable, write_atomically

if TYPE_CHECKING:
    from torch import Tensor

    from pocketbayes.artifact.predictor import ClassAnswers, ValueAnswers

Row = dict[str, Any]
_CLASS_COLUMNS: tuple[str, ...] = (
    "input",
    "class",
    "confidence",
    "entropy",
    "aleatoric",
    "epistemic",
    "verdict",
    "top",
)
_VALUE_COLUMNS: tuple[str, ...] = ("input", "target", "mean", "low", "high", "sigma", "epistemic_sigma")


@dataclass(frozen=True, kw_only=True)
class PredictOptions(Drawn, WithFile, Seeded):
    """Those of `predict`."""

    inputs: list[Path] = argument(
        "Images, folders of images, or an array as .npy, .npz or .csv.", "INPUTS..."
    )
    top: int = option(3, "Classes to name with their probabilities.", min=1)
    threshold: float | None = option(
        None, 'Confidence below which the verdict is "not sure"; the file\'s own.', min=0.0, max=1.0
    )
    csv_file: Path | None = option(
        None, "Write the answers there too.", "FILE", panel=OUTPUT, names=["--csv"]
    )


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
    from pocketbayes.artifact.open import open as open_file
    from pocketbayes.artifact.predictor import ClassAnswers
    from pocketbayes.data.inputs import read_inputs

    if given.csv_file is not None:
        require_writable(given.csv_file)
    model = open_file(given.file, given_net(given.net))
    if given.threshold is not None:
        model = replace(model, card=model.card._replace(unsure=given.threshold))
    names, x = read_inputs(given.inputs, model.card.shape, model.card.scaling.full)
    note_passes(len(x), given.samples)
    answer = model.predict(x, samples=given.samples, seed=given.seed, progress=True)
    if isinstance(answer, ClassAnswers):
        columns, rows = _CLASS_COLUMNS, _class_rows(names, answer, given.top)
    else:
        columns, rows = _VALUE_COLUMNS, _value_rows(names, answer)
    columns += tuple(key for key in ("set", "lower", "upper") if key in rows[0])
    if given.csv_file is not None:
        write_atomically(given.csv_file, _as_csv(rows, columns).encode())
    unsure = model.card.unsure
    told = {"file": str(given.file), "samples": given.samples, "seed": given.seed, "threshold": unsure}
    alpha = model.card.scales.alpha
    return Outcome({**told, "predictions": rows}, lambda: _show(rows, columns, unsure, alpha))


def _class_rows(names: Sequence[str], answer: ClassAnswers, top: int) -> list[Row]:
    probs, order = answer.probs.topk(min(top, answer.probs.shape[1]))
    verdicts: list[str | None] = [None] * len(names)
    sets = [{}] * len(names) if answer.sets is None else [{"set": _named(answer, row)} for row in answer.sets]
    if answer.sure is not None:
        verdicts = ["sure" if sure else "not sure" for sure in answer.sure.tolist()]
    return [
        {
            "input": name,
            "class": answer.names[i],
            "confidence": answer.confidence[i].item(),
            "entropy": answer.entropy[i].item(),
            "aleatoric": answer.aleatoric[i].item(),
            "epistemic": answer.epistemic[i].item(),
            "verdict": verdicts[i],
            "top": {answer.classes[k]: p for k, p in zip(order[i].tolist(), probs[i].tolist(), strict=True)},
            **sets[i],
        }
        for i, name in enumerate(names)
    ]


def _named(answer: ClassAnswers, row: Tensor) -> list[str]:
    """The classes in one prediction set."""
    return [answer.classes[c] for c in row.nonzero()[:, 0].tolist()]


def _value_rows(names: Sequence[str], answer: ValueAnswers) -> list[Row]:
    """A row for each target of each input, in the units of the data."""
    parts = {key: getattr(answer, key).flatten(1) for key in ("mean", "low", "high", "sigma")}
    parts["epistemic_sigma"] = answer.epistemic_var.sqrt().flatten(1)
    if answer.lower is not None and answer.upper is not None:
        parts |= {"lower": answer.lower.flatten(1), "upper": answer.upper.flatten(1)}
    return [
        {"input": name, "target": t, **{key: part[i, t].item() for key, part in parts.items()}}
        for i, name in enumerate(names)
        for t in range(parts["mean"].shape[1])
    ]


def _show(rows: Sequence[Row], columns: Sequence[str], unsure: float | None, alpha: float | None) -> None:
    if unsure is None:
        columns = [c for c in columns if c != "verdict"]
    texts = ([_text(row[column]) for column in columns] for row in rows)
    console().print(rows_table([c.replace("_", " ") for c in columns], texts, left=2))
    if "mean" in columns:
        say(
            "low and high: 95 % interval; sigma: of the prediction, epistemic sigma: of the network's part in it"
        )
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


def _as_csv(rows: Sequence[Row], columns: Sequence[str]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        top = row.get("top")
        told = {} if top is None else {"top": "; ".join(f"{name} {p:.6f}" for name, p in top.items())}
        if "set" in row:
            told["set"] = "; ".join(row["set"])
        writer.writerow({key: _cell(value) for key, value in {**row, **told}.items()})
    return text.getvalue()


def _cell(value: Any) -> Any:
    """A text that a spreadsheet would take for a formula gets an apostrophe in front."""
    return (
        f"'{value}"
        if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
        else value
    )
