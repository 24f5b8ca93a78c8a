"""The commands where torch is absent: the same options and the same answers, or one line that says what is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli_runs import result

HIDDEN = ("torch", "scipy", "safetensors", "onnx", "onnxscript", "onnx_ir")


def torchless(command: str) -> subprocess.CompletedProcess[str]:
    """A command in a process that finds none of the packages that make files."""
    script = (
        f"import sys; sys.modules.update(dict.fromkeys({HIDDEN}))\n"
        f"from pocketbayes.cli import main\nmain({command.split()})"
    )
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )


def told(command: str) -> dict[str, Any]:
    ended = torchless(f"{command} --json")
    assert ended.returncode == 0, ended.stderr
    return dict(json.loads(ended.stdout))


def assert_same(found: Any, expected: Any) -> None:
    """The same JSON, numbers within 1e-4."""
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for key, value in expected.items():
            assert_same(found[key], value)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, abs=1e-4)
    else:
        assert found == expected


@pytest.fixture
def files(here: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Both networks of the shop with their graphs, and inputs for them."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 17, (40, 8, 8)).astype(np.uint8)
    np.save("images.npy", images[:7])
    np.savez("set.npz", x_train=images, y_train=np.arange(40) % 10, x_test=images, y_test=np.arange(40) % 10)
    np.savetxt("rows.csv", rng.standard_normal((5, 4)), delimiter=",")
    result("export narrow.pocket line.pocket", capsys)
    return here


@pytest.mark.parametrize(
    "command",
    [
        "predict small.pocket images.npy --net shopnets:net --top 2 --samples 5",
        "predict small.pocket images.npy --net shopnets:net --threshold 0.5 --samples mean",
        "predict small.pocket images.npy --net shopnets:net --samples auto --seed 7",
        "predict line.pocket rows.csv --samples 5",
        "evaluate small.pocket --net shopnets:net --data set.npz --samples 3",
    ],
)
def test_answers_are_those_of_torch(command: str, files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    without, expected = command.replace(" --net shopnets:net", ""), result(command, capsys)
    assert_same(told(without), expected)
    assert_same(result(without, capsys), expected)  # with torch, where the network is not given


def test_bench_times_the_graph(files: Path) -> None:
    found = told("bench small.pocket --rounds 1 --samples 3 --batch-sizes 1,40")
    assert found["runtime"] == "onnx" and found["threads"] == 1 and found["shape"] == [1, 8, 8]
    assert [p["batch_size"] for p in found["predictions"]] == [1, 40]
    for p in found["predictions"]:
        assert p["ratio"] > 0 and p["ratio_per_draw"] == pytest.approx(p["ratio"] / 3)
    assert found["reading"]["load_seconds"] > 0


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("train --net lenet --data digits --out x.safetensors", "needs torch"),
        ("compress --net lenet --weights x --data digits --max-bytes 9KB --out x", "compress` needs torch"),
        ("report small.pocket --data digits", "`pocketbayes report` needs torch"),
        ("demo", "`pocketbayes demo` needs torch"),
        ("predict small.pocket images.npy --net shopnets:net", "needs torch"),
        ("bench --net lenet --shape 1,28,28", "needs torch"),
    ],
)
def test_what_needs_torch_says_how_to_install_it(command: str, message: str, files: Path) -> None:
    ended = torchless(command)
    assert ended.returncode == 1 and ended.stdout == "" and ended.stderr.count("\n") == 1
    assert message in ended.stderr and "pip install 'pocketbayes[torch]'" in ended.stderr


def test_a_file_without_a_graph_says_how_to_add_one(files: Path) -> None:
    ended = torchless("predict narrow.pocket rows.csv")
    assert ended.returncode == 1 and "narrow.pocket: the file has no graph" in ended.stderr
    assert "pocketbayes export FILE OUT.pocket" in ended.stderr


def test_a_hostile_name_of_a_network_is_never_looked_at(files: Path) -> None:
    """The graph is the network: what the metadata name is not even imported."""
    from pocketbayes import artifact

    pocket = artifact.decode("small.pocket")
    pocket.metadata["net"] = "os:system"
    Path("hostile.pocket").write_bytes(artifact.encode(pocket).data)
    assert_same(
        {**told("predict hostile.pocket images.npy --samples 2"), "file": "small.pocket"},
        told("predict small.pocket images.npy --samples 2"),
    )
