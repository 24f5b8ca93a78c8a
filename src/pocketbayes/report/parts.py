"""The parts of the page that are not figures, as HTML: headline, tables, images, notes."""

from __future__ import annotations

import base64
import html
import importlib
import io
import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from pocketbayes.report.figure import clean
from pocketbayes.report.story import Picture, Row, Story

LARGEST = 64  # pixels of an image's longer side


class Measure(NamedTuple):
    """A row's title, what it means, and which way is better: +1, -1."""

    title: str
    meaning: str
    better: int
    kind: str = "number"


MEASURES = {
    "accuracy": Measure("accuracy", "right answers", +1, "percent"),
    "nll": Measure("NLL", "surprise at the truth, nats", -1),
    "ece": Measure("ECE", "gap of confidence and accuracy", -1),
    "brier": Measure("Brier score", "squared error of probabilities", -1),
    "auroc": Measure("AUROC", "test data or foreign, 0.5 is chance", +1),
    "rmse": Measure("RMSE", "size of a typical error", -1),
    "bytes": Measure("bytes", "the network's at 32 bits a number", -1, "count"),
    "scalars": Measure("trainable numbers", "", -1, "count"),
}


def text(value: object) -> str:
    """Any text, safe between tags and in attributes."""
    return html.escape(clean(value), quote=True)


def require(module: str) -> Any:
    """A module that comes with an extra, or an error that says which."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = {"PIL": "pillow"}.get(root := module.partition(".")[0], root)
        raise ImportError(f"report: needs {name}. Run `pip install 'pocketbayes[demo]'`.") from error


# --- headline --------------------------------------------------------------------------------------------------


def lead(story: Story) -> str:
    rows = {row.key: row for row in story.table}
    said = []
    if (size := rows.get("bytes")) is not None:
        ratio = "" if not size.before else f", {size.before / size.after:.1f} times smaller than the network"
        said.append(f"<strong>{size.after:,.0f} bytes</strong>{ratio}.")
    for key, name in (("accuracy", "accuracy"), ("rmse", "RMSE")):
        if (row := rows.get(key)) is not None:
            was = "" if row.before is None else f", {_value(row.before, key)} before"
            on = f" on {story.examples:,} test examples of {text(story.data)}" if story.examples else ""
            said.append(f"<strong>{_value(row.after, key)} {name}</strong>{was},{on}.".replace(",.", "."))
    return (
        f'<header><div><h1>{text(story.name)}</h1><p class="lead">{" ".join(said)}</p></div>'
        '<button id="theme" type="button" hidden>Dark</button></header>'
    )


# --- before and after ------------------------------------------------------------------------------------------


def table(story: Story) -> str:
    if not story.table:
        return ""
    compared = story.has_before
    title, heads = "In numbers", ["", "pocket file"]
    if compared:
        title, heads = "Before and after", ["", "before", "after", "change"]
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    body = "".join(_row(row, compared) for row in story.table)
    note = ""
    if any(row.error is not None for row in story.table):
        note = (
            '<p class="quiet">± is two standard errors of the difference, paired over the test examples. '
            "Only changes of size, and those beyond their ±, are coloured.</p>"
        )
    return (
        f'<section><h2>{title}</h2><div class="card narrow"><div class="scroll"><table id="table"><thead><tr>{head}'
        f"</tr></thead><tbody>{body}</tbody></table></div>{note}</div></section>"
    )


def _row(row: Row, compared: bool) -> str:
    measure = MEASURES[row.key]
    meaning = f"<br><small>{measure.meaning}</small>" if measure.meaning else ""
    cells = [f'<th scope="row">{measure.title}{meaning}</th>']
    if compared:
        cells.append(f"<td>{'–' if row.before is None else _value(row.before, row.key)}</td>")
    cells.append(f"<td>{_value(row.after, row.key)}</td>")
    if compared:
        cells.append(_change(row, measure))
    return f"<tr>{''.join(cells)}</tr>"


def _change(row: Row, measure: Measure) -> str:
    """The difference, or for sizes the ratio; coloured only where it is known to be more than noise."""
    if row.before is None:
        return "<td></td>"
    difference = row.after - row.before
    if measure.kind == "count":
        small, large = sorted((row.before, row.after))
        said, known = f"{'×' if difference > 0 else '÷'} {large / max(1.0, small):.1f}", difference != 0
    else:
        scale, digits = (100, 2) if measure.kind == "percent" else (1, 4)
        said = f"{scale * difference:+.{digits}f}".replace("-", "−")
        known = row.error is not None and abs(difference) > 2 * row.error
        if row.error is not None:
            said += f"<br><small>± {scale * 2 * row.error:.{digits}f}</small>"
    verdict = ("better" if difference * measure.better > 0 else "worse") if known else ""
    return f'<td class="{verdict}">{said}</td>'


def _value(value: float, key: str) -> str:
    kind = MEASURES[key].kind
    if not math.isfinite(value):
        return "–"
    if kind == "percent":
        return _percent(value, 2)
    return f"{value:,.0f}" if kind == "count" else f"{value:.4f}".replace("-", "−")


def _percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f}\N{NO-BREAK SPACE}%"


# --- images ----------------------------------------------------------------------------------------------------


def gallery(story: Story) -> str:
    if story.gallery is None:
        return ""
    rows = (
        ("Least sure", "Would you be sure?", story.gallery.least_sure),
        (
            "Mistakes, the surest first",
            "A threshold on the confidence catches these last.",
            story.gallery.sure_and_wrong,
        ),
        ("Surest", "What the network finds easy.", story.gallery.surest),
    )
    cards = "".join(
        f'<div class="card"><h3>{title}</h3><p class="quiet">{look}</p>'
        f'<ul class="pictures">{"".join(map(_picture, pictures))}</ul></div>'
        for title, look, pictures in rows
        if pictures
    )
    return f'<section id="gallery"><h2>Test images</h2><div class="stack">{cards}</div></section>'


def _picture(picture: Picture) -> str:
    said = (
        f"{text(picture.predicted)}"
        if picture.right
        else f'<span class="wrong">{text(picture.predicted)}, not {text(picture.truth)}</span>'
    )
    alt = f"{text(picture.truth)}, taken for {text(picture.predicted)}"
    return (
        f'<li><img alt="{alt}" src="data:image/png;base64,{_png(picture)}">{said}<br>'
        f'<span class="quiet">{_percent(picture.confidence)}</span></li>'
    )


def _png(picture: Picture) -> str:
    image = require("PIL.Image").fromarray(picture.pixels)
    image.thumbnail((LARGEST, LARGEST))
    file = io.BytesIO()
    image.save(file, format="PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


# --- notes -----------------------------------------------------------------------------------------------------


def stages(story: Story) -> str:
    if not story.stages:
        return ""
    keys = [k for k in ("accuracy", "rmse", "nll", "ece") if any(k in s.metrics for s in story.stages)]
    head = "".join(f'<th scope="col">{h}</th>' for h in ("stage", "seconds", *keys))
    body = ""
    for stage in story.stages:
        numbers = [f"{stage.metrics[k]:.4f}" if k in stage.metrics else "" for k in keys]
        cells = "".join(
            f"<td>{c}</td>" for c in ("" if stage.seconds is None else f"{stage.seconds:.1f}", *numbers)
        )
        note = f"<br><small>{text(stage.note)}</small>" if stage.note else ""
        body += f'<tr><th scope="row">{text(stage.name)}{note}</th>{cells}</tr>'
    return (
        '<div class="card"><h3>Stages</h3><p class="quiet">Scores on validation data.</p><div class="scroll">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></div>"
    )


def facts(story: Story) -> str:
    """Settings, seed, versions, command, and what the file says of itself."""
    cards = ""
    for title, found in (("Settings", story.settings), ("Facts", story.facts)):
        if found:
            items = "".join(f"<dt>{text(key)}</dt><dd>{_fact(value)}</dd>" for key, value in found.items())
            cards += f'<div class="card"><h3>{title}</h3><dl>{items}</dl></div>'
    return f'<div class="grid">{cards}</div>' if cards else ""


def _fact(value: Any) -> str:
    if isinstance(value, Mapping):
        if all(isinstance(v, (str, int, float)) for v in value.values()):
            return ", ".join(f"{text(k)} {text(v)}" for k, v in value.items())
        return f"<code>{text(json.dumps(value, ensure_ascii=False, default=str))}</code>"
    return text(", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value)
