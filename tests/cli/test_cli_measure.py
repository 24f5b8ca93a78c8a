"""`pocketbayes noise`, `pocketbayes bench` and `pocketbayes report`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli_runs import complaint, result, run
from pocketbayes import report

DOCS = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()


def documented(command: str) -> dict[str, Any]:
    section = DOCS.partition(f"\n## {command}\n")[2]
    return dict(json.loads(section.partition("```json\n")[2].partition("```")[0]))


@pytest.fixture
def readings(here: Path) -> Path:
    rng = np.random.default_rng(0)
    np.savetxt(here / "laplace.csv", rng.laplace(5.0, 2.0, size=800))
    cells = 5 * rng.normal(size=(10, 1)) + rng.uniform(-(3**0.5), 3**0.5, size=(10, 80))
    np.savez(here / "cells.npz", run=np.hstack([np.full((10, 3), 1e6), cells]), other=np.zeros(3))
    return here


# --- noise -----------------------------------------------------------------------------------------------------


def test_the_family_of_the_readings_is_found(readings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = result("noise laplace.csv --plot fit.svg", capsys)
    assert found["chosen"] == {"family": "Laplace"} and (found["cells"], found["reads"]) == (1, 800)
    assert (readings / "fit.svg").read_text().startswith("<svg")
    assert set(found) == set(documented("noise"))
    assert set(found["families"][0]) == set(documented("noise")["families"][0])
    assert [f["name"] for f in found["families"] if f["chosen"]] == ["Laplace"]
    # Laplace's differential entropy at unit variance is 1 + ln(sqrt 2); the fit's error is about 1 / sqrt(800).
    assert found["families"][0]["held_out"] == pytest.approx(-1 - np.log(2) / 2, abs=0.1)


def test_cells_are_standardised_one_by_one(readings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = result("noise cells.npz --key run --skip 3", capsys)
    assert (found["cells"], found["reads"]) == (10, 80)
    assert found["chosen"]["family"] == "Uniform"
    assert found["spread"]["sigma"][1] == pytest.approx(1.0, abs=0.1)


def test_a_person_sees_the_families_and_the_choice(
    readings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run("noise cells.npz --key run --skip 3") == 0
    shown = capsys.readouterr().out
    for text in (
        "10 cells of 80 reads",
        "from cell to cell",
        "Uniform *",
        "behind best",
        "chosen: Uniform",
    ):
        assert text in shown


def test_a_network_is_asked_whether_it_is_sensitive(
    readings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = "noise laplace.csv --model small.pocket --net shopnets:net --data digits --samples 4 --repeats 2"
    asked += " --examples 20"
    shape = result(asked, capsys)["shape"]
    assert (shape["inputs"], shape["samples"], shape["repeats"]) == (20, 4, 2)
    assert "this device" in shape["verdicts"] and "two-point" in shape["rows"]
    assert run(asked) == 0
    assert "this device: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("noise none.csv", 1, "none.csv"),
        ("noise words.csv", 1, "line 2"),
        ("noise cells.npz", 1, "which array"),
        ("noise cells.npz --key run --skip 999", 2, "--skip"),
        ("noise laplace.csv --folds 1", 2, "--folds"),
        ("noise laplace.csv --plot nowhere/fit.svg", 1, "nowhere"),
        ("noise laplace.csv --model none.pocket --data digits", 1, "none.pocket"),
    ],
)
def test_bad_readings_are_one_line(
    command: str, code: int, message: str, readings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (readings / "words.csv").write_text("1\nx\n3\n")
    assert message in complaint(command, code, capsys)


# --- bench -----------------------------------------------------------------------------------------------------


def test_bench_compares_draws_with_a_plain_pass(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = result("bench small.pocket --net shopnets:net --rounds 3 --samples 4 --batch-sizes 1,16", capsys)
    assert set(found) == set(documented("bench")) and found["shape"] == [1, 8, 8]
    assert [p["batch_size"] for p in found["predictions"]] == [1, 16]
    for p in found["predictions"]:
        assert set(p) == set(documented("bench")["predictions"][0])
        assert p["ratio"] > 0 and p["ratio_per_draw"] == pytest.approx(p["ratio"] / 4)
        assert p["mean_ratio"] < p["ratio"]
    assert found["reading"]["decode_seconds"] > 0 and found["reading"]["load_seconds"] > 0


def test_bench_of_a_network_needs_no_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = result("bench --net lenet --shape 3,32,32 --rounds 1 --samples 2 --batch-sizes 2", capsys)
    assert found["file"] is None and found["reading"] is None and found["predictions"][0]["ratio"] > 0
    assert run("bench --net shopnets:net --shape 1,8,8 --rounds 1 --samples 2 --batch-sizes 2") == 0
    assert "one plain pass" in capsys.readouterr().out


def test_bench_makes_inputs_up_that_auto_would_depend_on(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "depends on the inputs" in complaint("bench small.pocket --samples auto", 2, capsys)
    found = result("bench --net lenet --shape 3,32,32 --rounds 1 --samples mean --batch-sizes 2", capsys)
    assert found["samples"] == "mean" and found["predictions"][0]["ratio_per_draw"] > 0


def test_bench_of_a_missing_file_is_one_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "none.pocket" in complaint("bench none.pocket", 1, capsys)


# --- report ----------------------------------------------------------------------------------------------------


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the report is gathered from, with nothing drawn."""
    known: dict[str, Any] = {}

    def gather(model: object, file: Path, test: object, **rest: object) -> str:
        known.update(rest, file=file, test=test)
        return "story"

    def write_page(path: Path, story: str) -> Path:
        path.write_text(story)
        return path

    monkeypatch.setattr(report, "gather", gather)
    monkeypatch.setattr(report, "write_page", write_page)
    monkeypatch.setattr(report, "write_figures", lambda folder, story: [folder / "a.svg", folder / "a.png"])
    return known


def test_the_page_is_rebuilt_from_the_record(
    here: Path, capsys: pytest.CaptureFixture[str], told: dict[str, Any]
) -> None:
    found = result("report small.pocket --net shopnets:net --figures pictures", capsys)
    assert set(found) == set(documented("report"))
    assert found["page"] == "small.html" and (here / "small.html").read_text() == "story"
    assert found["figures"] == ["pictures/a.svg", "pictures/a.png"]
    assert told["test"].name == "digits" and len(told["test"]) == 359
    assert told["record"] == json.loads((here / "small.json").read_text())
    assert told["before"] is not None and told["ood"] is None and told["samples"] == 30


def test_without_a_record_the_data_must_be_given(
    here: Path, capsys: pytest.CaptureFixture[str], told: dict[str, Any]
) -> None:
    (here / "small.json").unlink()
    assert "--data" in complaint("report small.pocket --net shopnets:net", 2, capsys)
    assert run("report small.pocket --net shopnets:net --data digits --out page.html --ood digits") == 0
    assert capsys.readouterr().out == "page.html\n"
    assert told["record"] is None and told["before"] is None and len(told["ood"]) == 359
    assert run("report narrow.pocket --data shopnets:line --weights line.safetensors") == 0
    assert told["likelihood"].sigma > 0 and told["before"] is not None


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("report none.pocket --data digits", 1, "none.pocket"),
        ("report small.pocket --net shopnets:net --record shopnets.py", 1, "shopnets.py"),
        ("report small.pocket --net shopnets:net --out nowhere/page.html", 1, "nowhere"),
        ("report small.pocket --net shopnets:net --data diabetes", 1, "made for inputs"),
        ("report small.pocket --net shopnets:net --weights line.safetensors", 1, "does not fit"),
    ],
)
def test_a_report_that_cannot_be_made_is_one_line(
    command: str,
    code: int,
    message: str,
    here: Path,
    capsys: pytest.CaptureFixture[str],
    told: dict[str, Any],
) -> None:
    assert message in complaint(command, code, capsys)


def test_the_real_page_is_one_html_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("report small.pocket --net shopnets:net --samples 3") == 0
    page = (here / "small.html").read_text()
    assert page.lstrip().lower().startswith("<!doctype html") and "small.pocket" in page
