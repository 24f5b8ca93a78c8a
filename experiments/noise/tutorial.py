"""Run docs/analog.md, and write what it prints and draws into it:  python -m experiments.noise.tutorial

Python blocks run in turn, in one process and an empty folder; a text block under one holds what it printed.  The
figures go to docs/figures.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import tempfile
from pathlib import Path

import torch

from experiments.record import rounded

PAGE = Path(__file__).parents[2] / "docs" / "analog.md"
FIGURES = PAGE.parent / "figures"
PYTHON = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)


def blocks(page: str) -> list[str]:
    """The Python of the page, block by block."""
    return [found.group(1) for found in PYTHON.finditer(page)]


def run(page: str) -> str:
    """The page with every text block as its Python block prints it; figures and files in the current folder."""
    names: dict[str, object] = {"__name__": "__main__"}

    def printed(found: re.Match[str]) -> str:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(found.group(1), str(PAGE), "exec"), names)
        said = "" if found.group(2) is None else f"\n```text\n{out.getvalue()}```\n"
        return f"```python\n{found.group(1)}```\n{said}"

    return PYTHON.sub(printed, page)


def main() -> None:
    torch.set_num_threads(1)
    FIGURES.mkdir(exist_ok=True)
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            page = run(PAGE.read_text())
        finally:
            os.chdir(here)
        for figure in Path(folder).glob("analog_*.svg"):
            (FIGURES / figure.name).write_text(rounded(figure.read_text()))
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
