"""`pocketbayes demo`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli_runs import main_code as run
from pocketbayes.cli import digits as demo


def test_the_demo_tells_its_story_as_json_and_the_seed_decides_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = []
    for seed in ("3", "3", "4"):
        assert run("demo", "--epochs", "1", "--json", "--seed", seed, "--out", str(tmp_path / "made")) == 0
        told.append(json.loads(capsys.readouterr().out))
    assert set(told[0]) == {"seed", "epochs", "stages", "page"}
    assert [stage["name"] for stage in told[0]["stages"]] == list(demo.STORY)
    for stage in told[0]["stages"]:
        assert set(stage) == {"name", "seconds", "file", "scores"}
        assert set(stage["scores"]) == set(demo.ROWS)
        assert 0 <= stage["scores"]["accuracy"] <= 1 and 0 <= stage["scores"]["auroc"] <= 1
        assert Path(stage["file"]).is_file()
    assert told[0]["stages"][-1]["scores"]["bytes"] <= demo.BUDGET
    assert Path(told[0]["page"]).is_file()
    scores = [[stage["scores"] for stage in story["stages"]] for story in told]
    assert scores[0] == scores[1] != scores[2]


def test_the_demo_prints_a_column_for_every_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("demo", "--epochs", "1", "--out", str(tmp_path)) == 0
    shown = capsys.readouterr().out
    for title in (*demo.ROWS.values(), *demo.STORY, demo.PAGE):
        assert title in shown


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert run("demo", "--epochs", "1", "--out", str(tmp_path / "file" / "made")) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and "Not a directory" in captured.err


@pytest.mark.slow
def test_the_demo_makes_the_network_less_sure_where_it_is_wrong_or_the_input_is_a_photograph(
    tmp_path: Path,
) -> None:
    scores = {stage.name: stage.scores for stage in demo.stages(tmp_path, seed=0)}
    plain, bayesian = scores["deterministic"], scores["Bayesian"]
    assert min(plain["accuracy"], bayesian["accuracy"]) > 0.9
    assert bayesian["confidence_wrong"] < plain["confidence_wrong"]
    assert bayesian["confidence_photographs"] < plain["confidence_photographs"]


def test_an_interrupted_demo_says_so_and_leaves_no_half_of_a_file(tmp_path: Path) -> None:
    script = (
        # A shell's background jobs are born deaf to Ctrl-C.
        "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import torch\nfrom pocketbayes import cli\nfrom pocketbayes.cli import digits\nprint('ready', flush=True)\n"
        "cli.main(['demo', '--epochs', '100000'])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 130
    assert errors == "pocketbayes: interrupted; no file was left half-written.\n"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
