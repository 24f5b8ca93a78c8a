"""A folder with a user's own module, weights and pocket files, made once; every test runs in a folder of its own."""

from __future__ import annotations

import contextlib
import io
import shutil
import sys
from pathlib import Path

import pytest

from cli_runs import MODULE, main_code


def _made(folder: Path) -> None:
    (folder / "shopnets.py").write_text(MODULE)
    plain = "train --net shopnets:net --data digits --epochs 12 --lr 0.01 --out plain.safetensors"
    line = (
        "train --net mlp:8 --data shopnets:line --epochs 30 --lr 0.01 --batch-size 20 --out line.safetensors"
    )
    small = (
        "compress --net shopnets:net --weights plain.safetensors --data digits --max-bytes 2500 --epochs 2 "
        "--renew-every 5 "
        "--out small --no-page"
    )
    narrow = (
        "compress --net mlp:8 --weights line.safetensors --data shopnets:line --max-bytes 500 --epochs 1 "
        "--finetune-epochs 0 --renew-every 5 "
        "--batch-size 20 --out narrow --no-page --no-graph"
    )
    for command in (plain, line, small, narrow):
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            assert main_code(*command.split()) == 0, said.getvalue()


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shop")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", list(sys.path))
        _made(folder)
    return folder


@pytest.fixture
def here(shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the shop as the current folder."""
    shutil.copytree(shop, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path
