"""The files where they are used: in an environment of their own, which one pip command makes and torch is not in.

`make check-runtime` runs this and shows what was measured.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pocketbayes as pb
from install import Environment
from runtime_files import CASES, RESNET20, ROOT, inputs, make, parts_of, pictures

pytestmark = pytest.mark.slow

ANSWER = """
import json, sys, time
import numpy as np
import pocketbayes as pb

def parts(answer, names):
    return {name: np.asarray(getattr(answer, name)) for name in names}

found = {}
for name in sys.argv[1:]:
    expected = dict(np.load(f"{name}.npz"))
    x = expected.pop("x")
    answer = parts(pb.open(f"{name}.pocket").predict(x, samples=30, seed=0), expected)
    found[name] = {part: float(np.abs(answer[part] * 1.0 - expected[part]).max()) for part in expected}
assert "torch" not in sys.modules
print(json.dumps(found))
"""
FIRST = """
import time
import numpy as np
import pocketbayes as pb

answer = pb.open("resnet20.pocket").predict(np.load("resnet20.npz")["x"][0])
print(answer.names[0], time.process_time())
"""
BYTES_BESIDES = ("pip", "setuptools", "pkg_resources")  # what every environment has


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file for each case, with inputs and the answers of torch in an npz beside it."""
    made = tmp_path_factory.mktemp("files")
    (made / "resnet20.pocket").write_bytes(RESNET20.read_bytes())
    for name in ("resnet20", *CASES):
        path = made / f"{name.replace(' ', '-')}.pocket"
        own = name in CASES
        in_torch = make(name, path) if own else pb.open(path)
        x = inputs(name, 200) if own else pictures(200)
        answers = parts_of(in_torch.predict(x, samples=30, seed=0))
        np.savez(path.with_suffix(".npz"), x=x, **answers)
    return made


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    os.environ.setdefault("PIP_CONSTRAINT", str(ROOT / "constraints.txt"))
    return Environment(tmp_path_factory.mktemp("device") / "venv", f"{ROOT}[runtime]")


def test_torch_is_not_installed_and_little_else_is(device: Environment) -> None:
    (packages,) = device.bin.parent.glob("lib/python*/site-packages")
    size = sum(
        file.stat().st_size
        for entry in packages.iterdir()
        if not entry.name.startswith(BYTES_BESIDES)
        for file in (entry.rglob("*") if entry.is_dir() else [entry])
        if file.is_file()
    )
    print(f"\ninstalled: {size / 1e6:.0f} MB")
    assert not list(packages.glob("torch*")) and size < 250e6


def test_probabilities_and_labels_are_those_of_torch(device: Environment, folder: Path) -> None:
    names = [path.stem for path in sorted(folder.glob("*.pocket"))]
    assert len(names) == len(CASES) + 1
    found = json.loads(device.run(folder, "python", "-c", ANSWER, *names))
    for name, differences in found.items():
        print(f"{name}: largest difference {max(differences.values()):.1e}")
        assert max(differences.values()) < 1e-4, (name, differences)
        assert differences.get("labels", 0) == differences.get("sure", 0) == 0


def test_import_and_the_first_answer_take_less_than_two_seconds(device: Environment, folder: Path) -> None:
    """Of 30 draws, whose networks are made for it; of processor time, as the machine may have other work."""
    device.run(folder, "python", "-c", FIRST)  # writes the byte code
    said, seconds = device.run(folder, "python", "-c", FIRST).split()
    print(f"import and first answer: {seconds} s")
    assert float(seconds) < 2 and said in pb.open(folder / "resnet20.pocket").card.classes


def test_the_commands_are_there(device: Environment, folder: Path) -> None:
    x = np.load(folder / "resnet20.npz")["x"][:20]
    np.savez(folder / "set.npz", x_train=x, y_train=np.arange(20) % 10, x_test=x, y_test=np.arange(20) % 10)
    np.save(folder / "x.npy", x)

    def told(command: str) -> dict[str, Any]:
        return dict(json.loads(device.run(folder, "pocketbayes", *command.split(), "--json")))

    answers = told("predict resnet20.pocket x.npy")["predictions"]
    expected = pb.open(folder / "resnet20.pocket").predict(x)
    assert [row["class"] for row in answers] == expected.names
    scores = told("evaluate resnet20.pocket --data set.npz --samples 2")["metrics"]
    labels = np.arange(20) % 10
    assert scores == pytest.approx(
        pb.open(folder / "resnet20.pocket").evaluate(x, labels, samples=2), abs=1e-4
    )
    assert told("inspect resnet20.pocket")["graph"]["bytes"] < 3000
    assert told("bench resnet20.pocket --rounds 1 --samples 2 --batch-sizes 1")["runtime"] == "onnx"
    assert told("export resnet20.pocket draw.onnx --seed 1")["bytes"] > 1_000_000


def test_every_block_of_the_page_runs_where_it_says(device: Environment, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "deploy.md").read_text()
    (before, after) = page.split("## On the device\n")
    assert '    pip install ".[runtime]"\n' in after
    for text, run in ((before, here), (after, device.run)):
        blocks = re.findall(r"^```(sh|python)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        assert len(blocks) >= 2
        for kind, block in blocks:
            if kind == "python":
                run(tmp_path, "python", "-W", "error", "-c", block)
                continue
            for line in block.splitlines():
                run(tmp_path, *shlex.split(line))
    assert (tmp_path / "digits.pocket").stat().st_size <= 12_000 < (tmp_path / "draw7.onnx").stat().st_size


def here(where: Path, program: str, *arguments: str) -> str:
    """On the workstation."""
    script = ["-c", "from pocketbayes.cli import main; main()"] if program == "pocketbayes" else []
    command = [sys.executable, *script, *arguments]
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
