"""Write RESULTS.md and the pages in docs/results from the result files:  python -m experiments.pages

An experiment is a module with `RESULT`, the path of its json file; `section(result)`, its part of a page; and
`headline(result)`, the sentence about it in RESULTS.md.  One that was not run yet is left out.
"""

from __future__ import annotations

import importlib
import json
import re
import textwrap
from collections.abc import Iterator
from typing import Any, NamedTuple

from experiments.markdown import PAGES
from pocketbayes.runs.files import write_atomically

INDEX = PAGES.parents[1] / "RESULTS.md"
WIDTH, INDEX_WIDTH = 110, 150  # columns of prose


class Page(NamedTuple):
    title: str
    experiments: tuple[str, ...]  # modules in this package


SUBJECTS = {  # by the name of the file
    "frontier": Page("File size against quality", ("sharing.frontier", "sharing.long", "sharing.codec")),
    "sharing": Page(
        "Weight sharing: the paper's tables",
        (*(f"sharing.table{n}" for n in (4, 5, 6, 7, 8, 10)), "sharing.mixture_likelihood"),
    ),
    "tabular": Page("Weight sharing on tables of numbers", ("sharing.tabular",)),
    "uncertainty": Page(
        "What uncertainty costs and buys",
        ("uncertainty.table", "uncertainty.modes", "uncertainty.aligned", "stopping"),
    ),
    "structure": Page(
        "Structured partial stochasticity",
        ("structure.one_dimension", "structure.uci", "structure.digits", "structure.resnet20"),
    ),
    "noise": Page(
        "The shape of the noise",
        ("noise.width", "noise.regression", "noise.faces", "noise.open_cases", "noise.resnet20"),
    ),
    "real": Page(
        "Networks as people have them",
        ("real.resnet50", "real.cifar", "real.defaults", "real.regression", "scale", "exporting"),
    ),
    "digits": Page("Handwritten digits", ("calibration", "sharing.digits")),
    "reliability": Page("Kills, faults, load and hostile files", ("reliability", "fuzzing")),
}
PREFACE = """Written by `python -m experiments.pages` (`make results`) from the files in [experiments/results]({results}), not by hand.
Each part gives the command that measures it again; [docs/data.md]({data}) describes the data it needs.
± is one standard error, NLL is in nats, ECE is a fraction (0.01 is 1 %).
"The paper" is [the one on the part's subject]({readme}#references): sharing, structure or noise. Rows keep what was measured when they were made: those from before draws were mirrored, labels of training stayed and few data had 400 steps come out a little otherwise today.
"""


class Part(NamedTuple):
    """One experiment on its page."""

    heading: str
    text: str
    headline: str


def parts(page: Page) -> Iterator[Part]:
    """The experiments of a page that were run."""
    for name in page.experiments:
        experiment: Any = importlib.import_module(f"experiments.{name}")
        if experiment.RESULT.exists():
            result = json.loads(experiment.RESULT.read_text())
            text = experiment.section(result)
            yield Part(text.partition("\n")[0].removeprefix("## "), text, experiment.headline(result))


def pages() -> dict[str, str]:
    """The text of every page, by its file's path from the root of the repository."""
    preface = PREFACE.format(results="experiments/results", data="docs/data.md", readme="README.md")
    index, written = [], {}
    for name, page in SUBJECTS.items():
        found = list(parts(page))
        if not found:
            continue
        links = PREFACE.format(
            results="../../experiments/results", data="../data.md", readme="../../README.md"
        )
        text = [f"# {page.title}", links, *(part.text for part in found)]
        written[f"docs/results/{name}.md"] = wrapped("\n\n".join(text), WIDTH)
        index.append(f"- **[{page.title}](docs/results/{name}.md)**")
        index += [entry(name, part) for part in found]
    text = ["# Results", preface, "\n".join(index)]
    return {"RESULTS.md": wrapped("\n\n".join(text), INDEX_WIDTH), **written}


def entry(page: str, part: Part) -> str:
    """One experiment in the index."""
    return f"  - [{part.heading}](docs/results/{page}.md#{anchor(part.heading)}): {part.headline}"


def anchor(heading: str) -> str:
    """As GitHub makes it from a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


# --- lines that are easy to read ------------------------------------------------------------------------------

KEPT = ("|", "#", "!", "```")  # tables, headings, figures and commands are lines already
JOINED = re.compile(r" (?=[±+\-−=×*/] )|(?<=[ ~][±+\-−=×*/]) |(?<=\d) (?=%|s\b|nats\b|bytes\b)")


def wrapped(text: str, width: int) -> str:
    """Paragraphs and lists in lines of at most so many columns."""
    blocks = re.split(r"\n{2,}", text.strip())
    return "\n\n".join(block if block.startswith(KEPT) else _wrapped(block, width) for block in blocks) + "\n"


def _wrapped(block: str, width: int) -> str:
    if block.startswith("- "):
        items = re.split(r"\n(?= *- )", block)
        return "\n".join(_filled(item, width, item[: item.index("-")]) for item in items)
    return _filled(block, width)


def _filled(paragraph: str, width: int, item: str | None = None) -> str:
    """With the indent of an item of a list.  Code, and what belongs together such as 1 ± 2, is not broken: a line must not begin like a list either."""
    whole = JOINED.sub("~", " ".join(paragraph.split()).replace("~", "\0"))
    whole = re.sub(r"`[^`]*`", lambda code: code[0].replace(" ", "~"), whole)
    lines = textwrap.fill(
        whole,
        width,
        initial_indent=item or "",
        subsequent_indent="" if item is None else item + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines.replace("~", " ").replace("\0", "~")


def main() -> None:
    PAGES.mkdir(exist_ok=True)
    for path, text in pages().items():
        write_atomically(INDEX.parent / path, text.encode())


if __name__ == "__main__":
    main()
