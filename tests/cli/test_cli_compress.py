"""`pocketbayes compress`: the files it writes, and what an interruption does to them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cli_runs import complaint, result, run
from pocketbayes import artifact
from pocketbayes.cli import job
from pocketbayes.runs.resume import locked
from pocketbayes.training import loop

SMALL = (
    "compress --net shopnets:net --weights plain.safetensors --data digits --max-bytes 2600 --epochs 1 "
    "--finetune-epochs 1 --renew-every 10 --samples 2 --test-samples 5 --out made --no-page --no-graph"
)


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows by one with every batch trained on."""
    seen: list[object] = []
    train_on = loop.TrainingRun.train_on

    def counted(self: loop.TrainingRun, batch: object) -> object:
        seen.append(batch)
        return train_on(self, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(loop.TrainingRun, "train_on", counted)
    return seen


def test_the_file_keeps_the_budget_and_the_record_tells_the_run(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = result(SMALL, capsys)
    size = (here / "made.pocket").stat().st_size
    assert size == record["bytes"] == sum(record["sections"].values()) <= 2600
    assert record == json.loads((here / "made.json").read_text())
    assert record["plain_bytes"] == 4 * (64 * 24 + 24 + 24 * 10 + 10)
    assert record["ratio"] == pytest.approx(record["plain_bytes"] / size)
    stages = ["start", "posterior", "sharing", "fine-tuning", "untrained", "file"]  # one epoch loses much
    assert [stage["name"] for stage in record["stages"]] == stages
    assert record["seed"] == 0 and set(record["versions"]) >= {"pocketbayes", "torch", "numpy", "python"}
    assert "--max-bytes 2600" in record["command"] and "--lr" not in record["command"]
    assert not (here / "made.checkpoints").exists() and not (here / "made.html").exists()


def test_the_record_has_the_documented_keys(shop: Path) -> None:
    docs = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()
    section = docs.partition("\n## compress\n")[2]
    documented = json.loads(section.partition("```json\n")[2].partition("```")[0])
    record = json.loads((shop / "small.json").read_text())
    assert set(record) == set(documented)
    for part in ("sharing", "unsure", "test"):
        assert set(record[part]) == set(documented[part])


def test_the_file_knows_how_it_is_used(shop: Path) -> None:
    metadata = artifact.decode(shop / "small.pocket").metadata
    record = json.loads((shop / "small.json").read_text())
    assert metadata["net"] == "shopnets:net" and metadata["shape"] == [1, 8, 8]
    assert metadata["scale"] == [[0.3053], [0.376], 16.0] and metadata["classes"] == 10
    assert metadata["unsure"] == record["unsure"]["threshold"]
    narrow = artifact.decode(shop / "narrow.pocket").metadata
    assert narrow["args"] == {"in_features": 4, "out_features": 1} and "classes" not in narrow
    assert narrow["noise_sigma"] > 0


def test_the_test_metrics_are_those_of_the_file(
    shop: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = json.loads((shop / "small.json").read_text())
    found = result("evaluate small.pocket --net shopnets:net --data digits", capsys)
    assert found["metrics"] == pytest.approx(record["test"]["after"], rel=1e-6)
    assert found["examples"] == record["test"]["examples"] == 359
    plain = result("evaluate plain.safetensors --net shopnets:net --data digits", capsys)
    for key in ("accuracy", "nll", "brier"):
        assert plain["metrics"][key] == pytest.approx(record["test"]["before"][key], rel=1e-6)


def test_a_person_sees_stages_before_and_after(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(SMALL) == 0
    shown = capsys.readouterr().out
    for text in (
        "fine-tuning",
        "359 test examples",
        "before",
        "after, 5 draws",
        "made.pocket",
        "times smaller",
    ):
        assert text in shown


def test_the_page_is_written_with_what_the_run_knows(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, object] = {}

    def write_story(path: Path, file: Path, *rest: object, **known: object) -> None:
        assert file.exists()
        told.update(known, path=path)

    monkeypatch.setattr(job, "write_story", write_story)
    record = result(SMALL.replace("--no-page", "--ood digits"), capsys)
    assert told["path"] == Path("made.html") and record["page"] == "made.html"
    assert told["record"] == record
    assert told["before"] is not None and told["ood"].shape == (1, 8, 8)  # type: ignore[attr-defined]


def test_a_posterior_can_be_compressed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = "train --net shopnets:net --weights plain.safetensors --data digits --bayesian --temperature 0.1 --epochs 1"
    result(f"{train} --out posterior.pocket", capsys)
    record = result(
        SMALL.replace(
            "--net shopnets:net --weights plain.safetensors", "--net shopnets:net --weights posterior.pocket"
        ),
        capsys,
    )
    assert (here / "made.pocket").stat().st_size <= 2600
    assert record["plain_bytes"] == 4 * (64 * 24 + 24 + 24 * 10 + 10)


def test_the_network_as_it_came_teaches_if_asked_to(
    here: Path, capsys: pytest.CaptureFixture[str], batches: list[Any]
) -> None:
    (here / "job.toml").write_text("[compress]\ndistillation = 0.5\n")
    record = result(f"{SMALL} --config job.toml", capsys)
    assert record["settings"]["distillation"] == 0.5 and "--distillation 0.5" in record["command"]
    assert (here / "made.pocket").stat().st_size <= 2600
    assert all(batch.target.shape == (batch.size, 10) for batch in batches)  # soft targets


def test_widths_are_calibrated_if_asked_for(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain, calibrated = (result(line, capsys) for line in (SMALL, f"{SMALL} --calibrate --restart"))
    assert [stage["name"] for stage in calibrated["stages"]][-2:] == ["calibration", "file"]
    before, after = (record["stages"][-2]["metrics"]["nll"] for record in (plain, calibrated))
    assert after <= before and "--calibrate" in calibrated["command"]
    assert (here / "made.pocket").stat().st_size <= 2600


def test_a_regression_cannot_be_distilled(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = "compress --net mlp:8 --weights line.safetensors --data shopnets:line --max-bytes 500 --out made"
    message = complaint(f"{line} --distillation 0.5", 2, capsys)
    assert "--distillation" in message and "regression" in message
    assert "--distillation" in complaint(f"{line} --distillation 1.5", 2, capsys)
    assert not (here / "made.checkpoints").exists()  # nothing stands in the way of a run without it


# --- interruptions ---------------------------------------------------------------------------------------------


def test_an_unfinished_run_is_continued_by_the_same_options_only(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, batches: list[object]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(job, "with_rules", interrupted)
        message = complaint(SMALL, 130, capsys)
    assert "interrupted" in message and "same command" in message
    assert not (here / "made.pocket").exists() and (here / "made.checkpoints" / "model.pocket").exists()
    trained = len(batches)
    assert trained > 0
    message = complaint(f"{SMALL} --temperature 0.2", 1, capsys)
    assert "temperature was None, is 0.2" in message and "--restart" in message
    record = result(f"{SMALL} --max-risk 0.2", capsys)  # may still change: it matters only at the end
    assert len(batches) == trained  # nothing was trained again
    assert record["unsure"]["max_risk"] == 0.2 and (here / "made.pocket").stat().st_size <= 2600
    assert not (here / "made.checkpoints").exists()


def test_two_commands_cannot_make_one_file_at_once(
    here: Path, capsys: pytest.CaptureFixture[str], batches: list[object]
) -> None:
    """Not even with --restart, and whatever the first was doing when the second came."""
    (here / "made.checkpoints" / "at-work").mkdir(parents=True)
    with locked(here / "made.checkpoints" / "at-work"):
        for restart in ("", " --restart"):
            assert "another run is at work" in complaint(SMALL + restart, 1, capsys)
    assert not batches and not (here / "made.checkpoints" / "settings.json").exists()
    result(SMALL, capsys)  # the other one is gone
    assert not (here / "made.checkpoints").exists()


def test_restart_begins_anew(here: Path, capsys: pytest.CaptureFixture[str], batches: list[object]) -> None:
    (here / "made.checkpoints").mkdir()
    (here / "made.checkpoints" / "settings.json").write_text('{"temperature": 0.5}')
    (
        here / "made.checkpoints" / "posterior.safetensors"
    ).touch()  # without any work there is nothing to protect
    assert "--restart" in complaint(SMALL, 1, capsys)
    assert len(batches) == 0
    result(f"{SMALL} --restart", capsys)
    assert len(batches) > 0


def test_a_killed_run_goes_on_where_it_was(
    here: Path, capsys: pytest.CaptureFixture[str], batches: list[object]
) -> None:
    command = SMALL.replace("--epochs 1 ", "--epochs 5 ")
    script = f"from pocketbayes import cli; cli.main({command.split()})"
    threads = {**os.environ, "OMP_NUM_THREADS": "1"}  # as here: other bits are worth a warning
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=threads
    )
    checkpoint, deadline = here / "made.checkpoints" / "sharing-fit.safetensors", time.monotonic() + 200
    while not checkpoint.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=60)
    assert process.stderr is not None
    process.stderr.close()
    assert checkpoint.exists() and not (here / "made.pocket").exists()
    record = result(command, capsys)
    steps = -(-1294 // 128)  # of 1438 digits 144 are held out
    assert 0 < len(batches) < 6 * steps  # five epochs and one that fine-tunes, less what was done before
    assert record["bytes"] == (here / "made.pocket").stat().st_size <= 2600
    assert not (here / "made.checkpoints").exists()
