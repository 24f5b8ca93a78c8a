"""The tutorial for analog designers runs as it stands, and says what it prints."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "analog.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_every_block_of_the_tutorial_runs_in_turn(tmp_path: Path) -> None:
    assert len(BLOCKS) >= 7
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(BLOCKS)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    for line in ("chosen: GaussianMixture", "fitted: the network is not sensitive to it", "signs: "):
        assert line in run.stdout
        assert line in PAGE
    for name in ("analog_fit.svg", "analog_verdict.svg", "digits.pocket"):
        assert (tmp_path / name).stat().st_size > 0


def test_the_figures_and_pages_that_the_tutorial_names_are_there() -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", PAGE)
    assert {"figures/analog_fit.svg", "figures/analog_verdict.svg"} <= set(targets)
    for target in targets:
        assert (ROOT / "docs" / target).exists(), target
