"""What goes wrong on a first day: every mistake is told in the words of the command line, and can be corrected."""

from __future__ import annotations

import csv
import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cli_runs import complaint, result, run
from pocketbayes import artifact
from pocketbayes.compression.stages import warnings_of
from pocketbayes.data import formats
from pocketbayes.prediction import predict as prediction

NET = "--net shopnets:net --weights plain.safetensors"
QUICK = "--epochs 1 --finetune-epochs 0 --renew-every 10 --samples 2 --test-samples 2 --no-page --no-graph --out made"


def test_colour_images_for_a_network_of_one_channel_are_named(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("train --net shopnets:Viewed --data shopnets:pictures --epochs 1 --out grey.safetensors")
    rng = np.random.default_rng(0)
    np.savez("rgb.npz", x=rng.integers(0, 256, (40, 8, 8, 3)).astype(np.uint8), y=np.arange(40) % 2)
    asked = "--net shopnets:Viewed --data rgb.npz"
    for command in (
        f"compress {asked} --weights grey.safetensors --max-bytes 900 {QUICK}",
        f"train {asked} --epochs 1 --out made",
    ):
        message = complaint(command, 1, capsys)
        assert "inputs of rgb have shape (3, 8, 8), which the network does not take" in message
    assert not list(here.glob("made*"))


def test_a_network_with_too_few_outputs_is_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("many.npz", x=np.zeros((40, 8, 8), np.uint8), y=np.arange(40) % 20)
    message = complaint(f"compress {NET} --data many.npz --max-bytes 900 {QUICK}", 1, capsys)
    assert "20 outputs are needed" in message


@pytest.mark.parametrize(
    "option", ["--max-accuracy-drop 0.01", "--max-nll-rise 0.1", "--calibrate --max-bytes 3KB"]
)
def test_what_needs_validation_data_is_named_as_an_option(
    option: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = complaint(f"compress {NET} --data digits --validation 0 {option} {QUICK}", 2, capsys)
    assert option.split()[0] in message and "--validation" in message and "_" not in message


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--max-bytes 0", "--max-bytes must be a whole number"),
        ("--max-bytes 3KB --epochs -1", "--epochs must be a whole number"),
        ("--max-bytes 3KB --finetune-lr -1", "--finetune-lr must be a finite positive number"),
        ("--max-bytes 3KB --anneal 2", "--anneal is a fraction"),
        ("--max-bytes 3KB --prior thick", "--prior thick: write a standard deviation"),
        ("--max-bytes 3KB --image-size 3x4x5", "--image-size 3x4x5: write 32 or 32x48"),
    ],
)
def test_what_the_library_refuses_is_told_in_the_words_of_the_command_line(
    option: str, message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in complaint(f"compress {NET} --data digits --out made {option}", 2, capsys)


def test_a_failed_run_does_not_stand_in_the_way_of_its_correction(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = f"compress {NET} --data digits {QUICK}"
    assert "cannot be met" in complaint(f"{line} --max-bytes 100", 1, capsys)
    assert "cannot be met" in complaint(f"{line} --max-bytes 101", 1, capsys)
    assert result(f"{line} --max-bytes 2600", capsys)["bytes"] <= 2600
    assert not (here / "made.checkpoints").exists()


def test_a_network_ruined_by_its_budget_is_written_with_a_warning(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = f"compress {NET} --data digits --max-bytes 700 {QUICK} --json"
    capsys.readouterr()
    assert run(line) == 0
    captured = capsys.readouterr()
    record = json.loads(captured.out)
    before, after = (record["test"][side]["accuracy"] for side in ("before", "after"))
    assert before - after > 0.05
    (warning,) = record["warnings"]
    assert f"{before:.3f} to {after:.3f}" in warning and "--max-bytes" in warning
    assert "pocketbayes: warning: accuracy fell" in captured.err
    assert json.loads((here / "made.json").read_text())["warnings"] == [warning]
    assert (here / "made.pocket").stat().st_size <= 700


def test_only_a_clear_loss_is_warned_of() -> None:
    assert warnings_of({"accuracy": 0.97}, {"accuracy": 0.93}, 900) == []
    assert warnings_of({"rmse": 2.0}, {"rmse": 2.9}, 900) == []
    (warning,) = warnings_of({"rmse": 2.0}, {"rmse": 3.1}, 900)
    assert "from 2 to 3.1 in 900 bytes" in warning


def test_a_folder_stands_for_its_images(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "photos").mkdir()
    for name, value in (("b.png", 90), ("a.png", 200)):
        Image.new("L", (8, 8), value).save(here / "photos" / name)
    (here / "photos" / "notes.txt").write_text("not an image")
    found = result("predict small.pocket --net shopnets:net photos --samples 2", capsys)["predictions"]
    assert [row["input"] for row in found] == ["a.png", "b.png"]
    (here / "empty").mkdir()
    assert "no images in this folder" in complaint("predict small.pocket --net shopnets:net empty", 1, capsys)


def test_cells_that_a_spreadsheet_would_run_are_only_text(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pocket = artifact.decode(here / "small.pocket")
    names = ["=cmd()", "+1", "-1", "@sum", "\tx", "plain", "6", "7", "8", "9"]
    pocket.metadata["classes"] = names
    (here / "named.pocket").write_bytes(artifact.encode(pocket).data)
    Image.new("L", (8, 8)).save("=evil.png")
    np.save("all.npy", np.random.default_rng(0).integers(0, 17, (200, 8, 8)))
    result(
        "predict named.pocket --net shopnets:net =evil.png all.npy --csv out.csv --samples 2 --top 1", capsys
    )
    with (here / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["input"] == "'=evil.png"
    for row in rows:
        for key in ("input", "class", "top"):
            assert not row[key].startswith(("=", "+", "-", "@", "\t"))
        assert row["class"].removeprefix("'") in names
    assert any(row["class"].startswith("'") for row in rows)


def test_arrays_and_images_that_unfold_beyond_measure_are_refused(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "_INFLATED", 1 << 22)
    header = (
        b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 8, 8), }"
    )
    (here / "claims.npy").write_bytes(header.ljust(127) + b"\n" + b"0000")
    with zipfile.ZipFile("claims.npz", "w") as archive:
        archive.writestr("x.npy", (here / "claims.npy").read_bytes())
    with (
        zipfile.ZipFile("bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("x.npy", "w") as file,
    ):
        file.write(bytes(1 << 23))
    Image.new("1", (9_600, 9_600)).save("large.png")
    for name, message in (
        ("claims.npy", "promises"),
        ("claims.npz", "promises"),
        ("bomb.npz", "unfolds to"),
        ("large.png", "too large a picture"),
    ):
        assert message in complaint(f"predict small.pocket --net shopnets:net {name}", 1, capsys)
    assert "unfolds to" in complaint("evaluate small.pocket --net shopnets:net --data bomb.npz", 1, capsys)


@pytest.mark.parametrize(
    "command",
    [
        "inspect pipe",
        "evaluate pipe --data digits",
        "predict pipe one.npy",
        "predict small.pocket --net shopnets:net pipe",
        "bench pipe",
        "report pipe --data digits",
        "compress --weights pipe --data digits --max-bytes 3000 --out made",
    ],
)
def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(
    command: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(here / "pipe")
    assert "pipe" in complaint(command, 1, capsys)


def test_long_predictions_show_how_far_they_are(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[int, str]] = []
    track = prediction.track

    def noted(items: list[object], title: str, *, enabled: bool) -> object:
        if enabled:
            shown.append((len(items), title))
        return track(items, title, enabled=enabled)

    monkeypatch.setattr(prediction, "track", noted)
    result("evaluate small.pocket --net shopnets:net --data digits --samples 2", capsys)
    assert shown == [(2, "predict")]  # 359 images in batches of 256


def test_the_help_of_compress_shows_ten_options_before_the_advanced_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("compress --help") == 0
    first, _, rest = capsys.readouterr().out.partition("Advanced")
    shown = {word for word in first.replace("│", " ").split() if word.startswith("--")} - {"--help"}
    assert len(shown) == 10 and {"--net", "--weights", "--data", "--max-bytes", "--out"} < shown
    for option in ("--finetune-epochs", "--distillation", "--seed", "--json"):
        assert option in rest
