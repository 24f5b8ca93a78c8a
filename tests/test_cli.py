"""The commands, through the entry point that the installed script calls."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from pocketbayes import artifact, cli, demo

GOLDEN = Path(__file__).parent / "golden" / "v1"
SHARED = GOLDEN / "shared.pocket"


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def python(script: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False, **options
    )


# --- the command itself ----------------------------------------------------------------------------------------


def test_help_answers_without_torch() -> None:
    ended = python(
        "import sys; sys.modules['torch'] = None\nfrom pocketbayes.cli import main\nmain(['--help'])"
    )
    assert ended.returncode == 0, ended.stderr
    assert "demo" in ended.stdout and "inspect" in ended.stdout


def test_the_installed_script_knows_its_version() -> None:
    script = Path(sys.executable).with_name("pocketbayes")
    ended = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "pocketbayes 0.1.0\n"


def test_a_call_without_a_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    assert "Usage: pocketbayes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["frobnicate"], "frobnicate"),
        (["inspect"], "FILE"),
        (["inspect", "a", "b"], "b"),
        (["demo", "--epochs", "0"], "--epochs"),
        (["demo", "--seed", "x"], "--seed"),
        (["demo", "--frobnicate"], "--frobnicate"),
    ],
)
def test_a_wrong_call_is_one_line_and_code_two(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1 and captured.err.startswith("pocketbayes: ")
    assert message in captured.err


# --- inspect ---------------------------------------------------------------------------------------------------


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


def test_inspect_needs_no_torch() -> None:
    ended = python(
        f"import sys; sys.modules['torch'] = None\nfrom pocketbayes.cli import main\nmain(['inspect', {str(SHARED)!r}])"
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


def test_debug_shows_where_an_error_was_raised(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        cli.main(["inspect", str(tmp_path / "missing"), "--debug"])


def test_an_unforeseen_error_is_named_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(**_: object) -> None:
        raise KeyError("first\nsecond")

    monkeypatch.setattr(demo, "stages", broken)
    assert run("demo") == 1
    message = capsys.readouterr().err
    assert "KeyError" in message and "--debug" in message and message.count("\n") == 1


# --- demo ------------------------------------------------------------------------------------------------------


def test_the_demo_tells_its_story_as_json_and_the_seed_decides_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = []
    for seed in ("3", "3", "4"):
        assert run("demo", "--epochs", "6", "--json", "--seed", seed) == 0
        told.append(json.loads(capsys.readouterr().out))
    assert [stage["name"] for stage in told[0]["stages"]] == list(demo.STORY)
    for stage in told[0]["stages"]:
        assert set(stage["scores"]) == set(demo.ROWS)
        assert 0.3 < stage["scores"]["accuracy"] <= 1
        assert 0 <= stage["scores"]["auroc"] <= 1
    scores = [[stage["scores"] for stage in story["stages"]] for story in told]
    assert scores[0] == scores[1] != scores[2]


def test_the_demo_prints_a_column_for_every_stage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("demo", "--epochs", "1") == 0
    shown = capsys.readouterr().out
    for title in (*demo.ROWS.values(), *demo.STORY):
        assert title in shown


@pytest.mark.slow
def test_the_demo_makes_the_network_less_sure_where_it_is_wrong_or_the_input_is_foreign() -> None:
    plain, bayesian = (stage.scores for stage in demo.stages(seed=0, progress=False))
    assert min(plain["accuracy"], bayesian["accuracy"]) > 0.9
    assert bayesian["confidence_wrong"] < plain["confidence_wrong"]
    assert bayesian["confidence_foreign"] < plain["confidence_foreign"]


def test_an_interrupted_demo_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    script = (
        "import torch\nfrom pocketbayes import cli, demo\nprint('ready', flush=True)\n"
        "cli.main(['demo', '--epochs', '100000'])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "pocketbayes: interrupted; no file was left half-written.\n"
    assert list(tmp_path.iterdir()) == []
