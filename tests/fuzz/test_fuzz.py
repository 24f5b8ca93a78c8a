"""Mutants under right checksums are refused cleanly or read soundly, in little time and memory."""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path
from random import Random

import numpy as np
import pytest

import pocketbayes as pb
from fuzz import corpus, formats, mutate, tensors
from fuzz.__main__ import main, run
from fuzz.judge import MEGABYTES, SECONDS, Judge, peak_megabytes
from fuzz.pockets import seal, sections_of
from fuzz.targets import TARGETS
from pocketbayes import noise
from pocketbayes.artifact import decode
from pocketbayes.data.formats import npy_array
from pocketbayes.runs.checkpoint import save_checkpoint

COUNTS = {"pocket": 1400, "checkpoint": 150, "weights": 150, "data": 300}  # 2,000 in all


def judged(name: str, count: int, seed: int) -> Judge:
    *_, (judge, _) = run(name, count=count, seed=seed)
    return judge


@pytest.mark.parametrize("name", COUNTS)
def test_mutants_are_refused_cleanly_or_read_soundly(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    judge = judged(name, COUNTS[name], seed=0)
    assert judge.counts["wrong"] == 0, capsys.readouterr().err
    assert judge.counts["refused"] > COUNTS[name] / 4
    assert judge.counts["read"] > COUNTS[name] / 10  # many reach the inside


@pytest.mark.slow
@pytest.mark.parametrize("name", COUNTS)
def test_ten_times_as_many_are_too(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert judged(name, 10 * COUNTS[name], seed=1).counts["wrong"] == 0, capsys.readouterr().err


def test_the_judge_sees_a_crash_a_warning_a_delay_and_a_heap() -> None:
    def slow() -> None:
        until = time.process_time() + SECONDS + 0.1
        while time.process_time() < until:
            pass

    judge = Judge((ValueError,))
    assert judge(lambda: None) is None
    assert judge(lambda: int("x")) is None
    assert "ZeroDivisionError" in str(judge(lambda: 1 / 0))
    assert "RuntimeWarning" in str(judge(lambda: warnings.warn("overflow", RuntimeWarning, stacklevel=1)))
    assert "took 1." in str(judge(slow))
    freed = int(peak_megabytes() - float(Path("/proc/self/statm").read_text().split()[1]) / 256)
    assert "MB" in str(judge(lambda: np.ones((MEGABYTES + 150 + freed) << 17)))
    assert judge.counts == {"mutants": 6, "read": 3, "refused": 1, "wrong": 4}


def test_the_corpus_holds_every_family_of_noise_and_every_section() -> None:
    families, tags = set(), set()
    for seed in corpus.seeds():
        families.add(decode(seed.data).noise.get("family", "Gaussian"))
        tags |= set(sections_of(seed.data))
    abstract = {
        name for name, law in noise.Noise.families.items() if getattr(law, "__abstractmethods__", None)
    }
    library = {n for n, law in noise.Noise.families.items() if law.__module__.startswith("pocketbayes")}
    assert families == library - abstract
    assert tags >= {"HEAD", "FREQ", "LABL", "CODE", "OUTL", "NORM", "FIXD", "PLAN", "PRIO", "XTRA"}


def test_a_mutant_depends_on_its_number_alone(tmp_path: Path) -> None:
    first, second, other = (TARGETS["pocket"].make(Random(f"0 pocket {n}"), tmp_path).data for n in (5, 5, 6))
    assert first == second != other


def test_most_mutants_have_right_checksums() -> None:
    rng, files = Random(0), [seed.data for seed in corpus.seeds()]
    mutants = [mutate.pocket(files[i % len(files)], rng, files) for i in range(100)]
    assert all(seal(sections_of(m), version=m[4]) == m for m in mutants)


def test_a_run_goes_on_where_its_log_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("resource.setrlimit", lambda *_: None)
    log = tmp_path / "log"
    for count in (5, 12):
        line = ["fuzz", "data", "--count", str(count), "--log", str(log), "--found", str(tmp_path / "found")]
        monkeypatch.setattr(sys, "argv", line)
        assert main() == 0
    told = [json.loads(text) for text in log.read_text().splitlines()]
    assert [line["mutants"] for line in told] == [5, 12]
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == told[-1]


# --- files that once came through ---------------------------------------------------------------------------------


def test_an_npy_header_with_a_negative_size_is_refused(tmp_path: Path) -> None:
    text = b"{'descr': '|u1', 'fortran_order': False, 'shape': (-1,)}".ljust(117) + b"\n"
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text + bytes(8))
    with pytest.raises(ValueError, match="header promises"):
        npy_array(tmp_path / "a.npy")


def test_text_that_no_character_has_is_refused(tmp_path: Path) -> None:
    for code in (0x7FFFFFFF, 0xD800):
        names = np.array([code], np.uint32).view("<U1")
        np.savez(tmp_path / "a.npz", x=np.ones((2, 3)), y=np.array([0, 0]), classes=names)
        with pytest.raises(ValueError, match="not an npz file of plain arrays"):
            pb.data.load(tmp_path / "a.npz")


def test_a_checkpoint_whose_best_epoch_has_no_model_is_refused(tmp_path: Path) -> None:
    tree = tensors.tree()
    data = {**tree, "state": {**tree["state"], "best": {"likelihood": {}}}}
    save_checkpoint(tmp_path / "c", data)
    with pytest.raises(ValueError, match="malformed"):
        tensors.resumed((tmp_path / "c").read_bytes(), tmp_path / "d")


@pytest.mark.parametrize("name", [".png", ".npz", ".tar.gz"])
def test_good_files_are_read(name: str, tmp_path: Path) -> None:
    formats.read(name, formats.good(name), tmp_path)
