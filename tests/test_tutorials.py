"""The README, the guide and the tutorials do what they say: every block runs, in turn, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))
CONCEPTS = sorted(path for path in (DOCS / "concepts").glob("*.md") if "```python" in path.read_text())
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
# A torchvision built for CUDA misses two operators beside a CPU build of torch; timm, for one, imports it.
MEND = """
import torch

_mended = torch.library.Library("torchvision", "FRAGMENT")
for _operator in ("nms", "qnms"):
    _mended.define(f"{_operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


@pytest.mark.parametrize(("page", "blocks"), [("README.md", 1), ("docs/guide.md", 12)])
def test_every_python_example_runs_in_turn(page: str, blocks: int, tmp_path: Path) -> None:
    """In one process and an empty folder, as a reader would paste them."""
    found = BLOCK.findall((ROOT / page).read_text())
    assert len(found) >= blocks
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(found)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.slow
def test_the_commands_of_the_readme_run_in_turn(tmp_path: Path) -> None:
    (commands,) = re.findall(r"## Three commands\n\n((?:    .+\n)+)", (ROOT / "README.md").read_text())
    scripts = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    run = subprocess.run(
        ["sh", "-e", "-c", commands],
        cwd=tmp_path,
        env={**os.environ, "PATH": scripts},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert run.returncode == 0, run.stderr
    assert "arning" not in run.stderr
    assert (tmp_path / "digits.pocket").stat().st_size <= 10_000 and (tmp_path / "digits.html").exists()


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_every_block_of_a_tutorial_runs(tutorial: Path, tmp_path: Path) -> None:
    blocks = BLOCK.findall(tutorial.read_text())
    assert len(blocks) >= 3
    script = "\n".join(blocks)
    mend = "" if torchvision_imports() else MEND
    run = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", mend + script],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    accuracies = [float(n) for n in re.findall(r"^accuracy (0\.\d+|1\.0+)", run.stdout, re.MULTILINE)]
    coverages = [float(n) for n in re.findall(r"^interval coverage (0\.\d+|1\.0+)", run.stdout, re.MULTILINE)]
    found = coverages if tutorial.stem == "regression" else accuracies
    assert found and min(found) > (0.8 if tutorial.stem == "regression" else 0.9), run.stdout


@pytest.mark.parametrize("page", CONCEPTS, ids=lambda path: path.stem)
def test_every_block_of_a_concept_runs(page: Path) -> None:
    for block in BLOCK.findall(page.read_text()):
        exec(compile(block, page.name, "exec"), {})


@cache
def torchvision_imports() -> bool:
    return subprocess.run([sys.executable, "-c", "import torchvision"], capture_output=True).returncode == 0
