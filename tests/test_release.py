"""What is published says one version everywhere, and installs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import pocketbayes

ROOT = Path(__file__).parent.parent


def test_one_version_everywhere() -> None:
    version = pocketbayes.__version__
    assert f"version: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert re.search(r"^## (\S+) \(", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1] == version  # type: ignore[index]


@pytest.mark.slow
def test_both_distributions_install_into_empty_environments(tmp_path: Path) -> None:
    """`make dist` in a copy of the tree: built, checked by twine, installed, tried."""
    tree = tmp_path / "tree"
    left = shutil.ignore_patterns(".git", ".venv", "dist", "site", ".*_cache", "__pycache__", ".hypothesis")
    shutil.copytree(ROOT, tree, ignore=left)
    done = subprocess.run(
        ["make", "dist", f"PYTHON={sys.executable}"],
        cwd=tree,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,), (source,) = (tree / "dist").glob("*.whl"), (tree / "dist").glob("*.tar.gz")
    packed = zipfile.ZipFile(wheel).namelist()
    assert all(name.startswith("pocketbayes") for name in packed) and "pocketbayes/py.typed" in packed
    with tarfile.open(source) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "Makefile", "tests/install.py", "experiments/pages.py"} <= inside
