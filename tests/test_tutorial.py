"""The tutorial does what it says: every block runs, in turn, in one empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

TUTORIAL = Path(__file__).parent.parent / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(python|sh)(?: file=(\S+))?\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_every_block_of_the_tutorial_runs(tmp_path: Path) -> None:
    blocks = BLOCK.findall(TUTORIAL.read_text())
    assert len(blocks) >= 7
    scripts = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    said = ""
    for language, file, text in blocks:
        if file:
            (tmp_path / file).write_text(text)
            continue
        command = (
            ["sh", "-e", "-c", text] if language == "sh" else [sys.executable, "-W", "error", "-c", text]
        )
        run = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert run.returncode == 0, f"{text}\n{run.stderr}"
        said += run.stdout
    for name in ("small.pocket", "python.pocket"):
        assert (tmp_path / name).stat().st_size <= 10_000
    for name in ("small.html", "again.html"):
        assert (tmp_path / name).read_text().lower().startswith("<!doctype html>")
    figures = {path.suffix for path in (tmp_path / "figures").iterdir() if path.stat().st_size > 1000}
    assert figures == {".svg", ".png"}
    accuracy = [float(n) for n in re.findall(r"accuracy\W+(0\.\d+)", said)]
    assert accuracy
    assert min(accuracy) > 0.85
