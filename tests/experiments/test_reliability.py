"""Kills, faults and load, a few of each; `make reliability` tries a thousand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import reliability

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, mounts and forks")
def test_a_few_kills_and_every_fault_are_survived(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    command = [sys.executable, "-m", "experiments.reliability", "--quick", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    assert reliability.total(result) >= 4 * len(reliability.KILLS)
    assert result["faults"].keys() == reliability.KILLS.keys()
    assert list(tmp_path.iterdir()) == [out]
    text = reliability.section(result)
    assert all(name in text for name in ("full disk", "read-only folder", "folder deleted", "two runs"))
    assert reliability.headline(result).startswith(f"{reliability.total(result)} kills")
