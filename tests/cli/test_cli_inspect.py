"""`pocketbayes inspect`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cli_runs import main_code as run
from cli_runs import result
from pocketbayes import artifact

GOLDEN = Path(__file__).parents[1] / "golden" / "v1"
SHARED = GOLDEN / "shared.pocket"


def test_inspect_shows_every_section_and_tensor(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", str(SHARED)) == 0
    shown = capsys.readouterr().out
    assert f"{SHARED.stat().st_size:,} bytes" in shown
    for expected in ("LABL", "codebook: 12 components", "conv.weight", "12x8x3x3", "2.81", "Gaussian"):
        assert expected in shown


@pytest.mark.parametrize("file", sorted(GOLDEN.glob("*.pocket")), ids=lambda f: f.stem)
def test_inspected_sections_add_up_to_the_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", str(file), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(found["sections"].values()) == found["total_bytes"] == file.stat().st_size
    assert {"version", "codebook", "noise", "metadata", "tensors"} <= set(found)
    for tensor in found["tensors"]:
        assert tensor["bits"] == pytest.approx(
            tensor["bits_per_weight"] * max(1, np.prod(tensor["shape"], dtype=int))
        )


def test_inspect_shows_the_graph_or_its_absence(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", "small.pocket") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "nodes of ONNX opset 20, takes" in shown and "float32 Nx1x8x8" in shown
    found = result("inspect small.pocket", capsys)
    assert found["graph"]["bytes"] == found["sections"]["GRAF"] < 300
    assert [port["shape"] for port in found["graph"]["outputs"]] == [[None, 10]]
    assert run("inspect", "narrow.pocket") == 0
    assert "graph: none" in capsys.readouterr().out


def test_inspect_needs_no_torch() -> None:
    command = f"from pocketbayes.cli import main\nmain(['inspect', {str(SHARED)!r}])"
    script = f"import sys; sys.modules['torch'] = None\n{command}"
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr


def test_names_in_a_file_cannot_command_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "\x1b[2J[bold]w\x07"
    pocket = artifact.Pocket(
        tensors={evil: artifact.Plain(values=np.zeros(3, np.float32))}, metadata={"note": evil}
    )
    file = tmp_path / "evil.pocket"
    file.write_bytes(artifact.encode(pocket).data)
    assert run("inspect", str(file)) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "\x07" not in shown
    assert "[bold]w" in shown


@pytest.mark.parametrize("case", ["missing", "folder", "text", "cut", "flipped", "empty"])
def test_a_file_that_cannot_be_read_is_one_line_and_code_one(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, whole = tmp_path / "model.pocket", SHARED.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    content = {"text": b"not a model\n", "cut": whole[:-9], "flipped": bytes(flipped), "empty": b""}
    if case == "folder":
        file.mkdir()
    elif case != "missing":
        file.write_bytes(content[case])
    assert run("inspect", str(file)) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert "Traceback" not in captured.err and "model.pocket" in captured.err
