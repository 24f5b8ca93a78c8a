"""`write_page`: a story as one HTML page that needs nothing else; `write_figures`: its figures as files.

Whatever comes from a file is escaped where it enters the page, and the page's own policy lets the browser load nothing
and run nothing but the two scripts whose hashes it states.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path

from pocketbayes.report import still
from pocketbayes.report.figure import DARK, LIGHT, Figure
from pocketbayes.report.figures import figures
from pocketbayes.report.interactive import specification
from pocketbayes.report.parts import facts, gallery, lead, require, stages, table, text
from pocketbayes.report.story import Story
from pocketbayes.runs.files import write_atomically

FORMATS = ("svg", "png", "pdf")
CHAPTERS = {
    "Can it be trusted?": (
        "reliability",
        "predicted_and_true",
        "interval_coverage",
        "risk_coverage",
        "confidence_by_class",
        "foreign_inputs",
    ),
    "What became of the weights": ("plane", "weights"),
    "Where the bytes go": ("sections", "layers"),
    "How it was made": ("training",),
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
    require("matplotlib")
    target, written = Path(folder), []
    target.mkdir(parents=True, exist_ok=True)
    for figure in figures(story):
        for kind in formats:
            written.append(target / f"{figure.name}.{kind}")
            write_atomically(written[-1], still.drawn(figure, kind))
    return written


def page(story: Story) -> str:
    """The whole page."""
    found = {figure.name: figure for figure in figures(story)}
    data = json.dumps(
        {name: specification(figure) for name, figure in found.items()},
        separators=(",", ":"),
        allow_nan=False,
    )
    library: str = require("plotly.offline").get_plotlyjs()
    scripts = [library, _resource("page.js")]
    title = f"{text(story.name)} · pocketbayes"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{_colours()}{_resource("page.css")}</style>
</head>
<body>
<main>
{lead(story)}
<noscript><p class="card">The figures need JavaScript; the tables do not.</p></noscript>
{table(story)}
{_chapters(story, found)}
<footer>Written by pocketbayes. This page loads nothing from the network.</footer>
</main>
<script type="application/json" id="figures">{_inert(data)}</script>
<script>{scripts[0]}</script>
<script>{scripts[1]}</script>
</body>
</html>
"""


def _chapters(story: Story, found: dict[str, Figure]) -> str:
    """Chapters that have something to show; images after the first one, notes in the last."""
    parts = []
    for title, names in CHAPTERS.items():
        inside = "".join(_figure(found[name]) for name in names if name in found)
        rest = stages(story) + facts(story) if title == "How it was made" else ""
        if inside or rest:
            grid = f'<div class="grid">{inside}</div>' if inside else ""
            parts.append(f'<section><h2>{title}</h2><div class="stack">{grid}{rest}</div></section>')
        if title == "Can it be trusted?":
            parts.append(gallery(story))
    return "\n".join(parts)


def _figure(figure: Figure) -> str:
    name, wide = figure.name, ' class="wide"' if figure.wide else ""
    return (
        f'<figure id="{name}"{wide} aria-labelledby="title-{name}"><h3 id="title-{name}">{text(figure.title)}</h3>'
        f"<figcaption>{text(figure.caption)}</figcaption>"
        f'<p class="spoken">{text(figure.spoken)}</p>'
        f'<div class="plot" id="plot-{name}" style="min-height:{figure.height}px" aria-hidden="true"></div></figure>\n'
    )


def _colours() -> str:
    """The palette as CSS variables: light, dark by the system's wish, and either by the button's."""
    light, dark = (";".join(f"--{k}:{v}" for k, v in palette.items()) for palette in (LIGHT, DARK))
    return (
        f":root{{{light};color-scheme:light}}"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark};color-scheme:dark}}}}"
        f":root[data-theme=dark]{{{dark};color-scheme:dark}}\n"
    )


def _policy(scripts: Iterable[str]) -> str:
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _inert(data: str) -> str:
    """JSON that no parser of HTML can take for an end of the script, whatever its strings hold."""
    return data.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _resource(name: str) -> str:
    return files("pocketbayes.report").joinpath(name).read_text(encoding="utf-8")
