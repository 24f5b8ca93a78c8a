"""`write_page`: a story as one HTML page that needs nothing else; `write_figures`: its figures as files.

The template escapes whatever enters the page, and the page's own policy lets the browser load nothing and run nothing
but the one script whose hash it states.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup
from PIL import Image

from pocketbayes.report import answer_charts as answers
from pocketbayes.report import charts, words
from pocketbayes.report import weight_charts as weights
from pocketbayes.report.charts import FORMATS, Figure, clean
from pocketbayes.report.story import Picture, Story
from pocketbayes.runs.files import write_atomically

LARGEST = 64  # pixels of an image's longer side
CHAPTERS = {
    "Can it be trusted?": (
        answers.reliability,
        answers.predicted,
        answers.coverage,
        answers.risk,
        answers.confidence,
        answers.entropies,
    ),
    "What became of the weights": (weights.plane, weights.weights),
    "Where the bytes go": (weights.sections, weights.layers),
    "How it was made": (weights.training, weights.training_kl),
}


def write_page(path: str | os.PathLike[str], story: Story) -> Path:
    """Write the page, atomically; returns its path."""
    target = Path(path)
    html = page(story).encode()
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, html)
    return target


def write_figures(
    folder: str | os.PathLike[str], story: Story, formats: Sequence[str] = ("svg", "png")
) -> list[Path]:
    """Write every figure of the story as FOLDER/NAME.FORMAT, each atomically; returns the paths."""
    unknown = [kind for kind in formats if kind not in FORMATS]
    if unknown:
        raise ValueError(
            f"write_figures: no format {unknown[0]!r}. There are {', '.join(FORMATS)}, given as a tuple."
        )
    target, written = Path(folder), []
    target.mkdir(parents=True, exist_ok=True)
    for figure in figures(story):
        for kind in formats:
            written.append(target / f"{figure.name}.{kind}")
            write_atomically(written[-1], charts.picture(figure, kind))
    return written


def figures(story: Story) -> list[Figure]:
    """All figures that the story has the numbers for, in the order of the page."""
    return [figure for chapter in _chapters(story).values() for figure in chapter]


def _chapters(story: Story) -> dict[str, list[Figure]]:
    drawn = {title: [draw(story) for draw in row] for title, row in CHAPTERS.items()}
    return {title: [figure for figure in row if figure is not None] for title, row in drawn.items()}


def page(story: Story) -> str:
    """The whole page."""
    chapters, script = _chapters(story), _script()
    found = {figure.name: figure for chapter in chapters.values() for figure in chapter}
    drawn = {
        "config": charts.THEME,
        "figures": {name: charts.specification(figure) for name, figure in found.items()},
    }
    return _template().render(
        story=story,
        found=found,
        chapters={title: [figure.name for figure in row] for title, row in chapters.items()},
        rows={row.key: row for row in story.table},
        measures=words.MEASURES,
        settings=words.plain_words(story.settings),
        notes=words.plain_words(story.facts),
        data=Markup(inert(drawn)),
        style=Markup(charts.STYLE),
        script=Markup(script),
        policy=_policy(script),
    )


def _template() -> Template:
    """The page's template: every value is cleaned, then escaped, unless it is `Markup`."""
    environment = Environment(
        loader=PackageLoader("pocketbayes.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else clean(value),
    )
    filters = {"image": _image, "score": words.score, "percent": words.percent, "change": words.change}
    environment.filters |= filters
    return environment.get_template("page.html")


def inert(data: Any) -> str:
    """JSON that no parser of HTML or JavaScript takes for anything else, whatever its strings hold."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)  # ASCII: U+2028 and U+2029 are escaped
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def _script() -> str:
    """Vega and the script of the page, in one."""
    drawing = files("pocketbayes.report").joinpath("page.js").read_text(encoding="utf-8")
    return str(vl_convert.javascript_bundle(drawing, charts.VEGA_LITE))


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _image(shown: Picture) -> Markup:
    image = Image.fromarray(shown.pixels)
    image.thumbnail((LARGEST, LARGEST))
    file = io.BytesIO()
    image.save(file, format="PNG", optimize=True)
    return Markup("data:image/png;base64," + base64.b64encode(file.getvalue()).decode())
