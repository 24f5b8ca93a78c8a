"""A folder of checkpoints is one run's alone."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from pocketbayes.errors import ArtifactError
from pocketbayes.runs import resume
from pocketbayes.runs.resume import Note, claimed, locked, require_same

FACTS = {"lr": 0.1, "the network": "abc"}


def test_another_run_is_told_what_was_what_is_and_what_to_do() -> None:
    was, now = {"lr": 0.1, "epochs": 3, "old": 1}, {"lr": 0.2, "epochs": 3, "new": 1}
    with pytest.raises(ArtifactError) as error:
        require_same(Path("here"), was, now, advice="Do this.")
    said = str(error.value)
    assert said.startswith("here: ") and said.endswith("Do this.")
    assert "lr was 0.1, is 0.2" in said and "new is missing there" in said and "old is missing here" in said
    assert "epochs" not in said
    require_same(Path("here"), now, dict(now), advice="")


def work(
    folder: Path, error: BaseException | None = None, facts: dict = FACTS, written: str = "first"
) -> None:
    """A run with one checkpoint that ends with that error, or well."""
    with claimed(folder, facts, advice="") as claim:
        for name in written.split():
            claim.checkpoint(name).write_bytes(b"work")
        if error is not None:
            raise error


def test_checkpoints_stay_after_an_interruption_and_go_when_the_work_is_done(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        work(tmp_path, KeyboardInterrupt())
    assert {file.name for file in tmp_path.iterdir()} == {"first.safetensors", "run.json"}
    with pytest.raises(ArtifactError, match=r"lr was 0\.1, is 0\.2"):
        work(tmp_path, facts={**FACTS, "lr": 0.2})
    with claimed(tmp_path, FACTS, advice="") as claim:
        assert claim.resumed and claim.checkpoint("first").read_bytes() == b"work"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [ValueError("1 KB cannot be met"), ZeroDivisionError("NaN")])
def test_an_error_that_the_same_call_would_meet_again_leaves_the_folder_free(
    tmp_path: Path, error: Exception
) -> None:
    with pytest.raises(type(error)):
        work(tmp_path, error)
    assert not list(tmp_path.iterdir())


def test_a_failure_before_any_checkpoint_leaves_the_folder_free(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        work(tmp_path, RuntimeError("shapes cannot be multiplied"), written="")
    assert not list(tmp_path.iterdir())


def test_a_damaged_checkpoint_does_not_cost_the_others(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError):
        work(tmp_path, ArtifactError("second: damaged"))
    assert (tmp_path / "first.safetensors").exists()


@pytest.mark.parametrize("deletions", range(3))
def test_killed_while_it_deletes_a_run_leaves_no_checkpoint_without_its_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deletions: int
) -> None:
    unlink, deleted = Path.unlink, []

    def dying(self: Path, missing_ok: bool = False) -> None:
        if len(deleted) == deletions:
            raise KeyboardInterrupt
        deleted.append(self)
        unlink(self, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", dying)
    with pytest.raises(KeyboardInterrupt):
        work(tmp_path, written="first second")
    monkeypatch.undo()
    assert len(deleted) == deletions
    assert (tmp_path / "run.json").exists()


def test_a_checkpoint_of_an_unknown_run_is_not_taken_for_ones_own(tmp_path: Path) -> None:
    (tmp_path / "first.safetensors").write_bytes(b"another's")
    with pytest.raises(ArtifactError, match=r"first\.safetensors.*Delete it"):
        work(tmp_path)
    assert (tmp_path / "first.safetensors").read_bytes() == b"another's"


def test_a_note_without_any_work_protects_nothing(tmp_path: Path) -> None:
    note = Note(tmp_path / "run.json")
    assert not note.claim({"lr": 0.1}, advice="")
    assert not note.claim({"lr": 0.2}, advice="")
    (tmp_path / "work.safetensors").touch()
    with pytest.raises(ArtifactError, match=r"lr was 0\.2, is 0\.3"):
        note.claim({"lr": 0.3}, advice="")
    for damaged in ("[1, 2", "[1, 2]", "[" * 200_000):
        note.path.write_text(damaged)
        with pytest.raises(ArtifactError, match=r"run\.json: damaged"):
            note.claim({"lr": 0.2}, advice="")


HOLDER = "import sys, time; from pathlib import Path; from pocketbayes.runs.resume import locked\n"
HOLDER += "with locked(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"


def test_two_runs_cannot_work_in_one_folder_and_a_dead_one_holds_nothing(tmp_path: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE)
    assert other.stdout is not None
    try:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(ArtifactError, match="another run is at work in this folder"):
            work(tmp_path)
    finally:
        other.kill()
        other.wait(timeout=30)
        other.stdout.close()
    assert not list(tmp_path.iterdir())  # nothing was claimed
    deadline = time.monotonic() + 10
    while True:
        try:
            with locked(tmp_path):
                return
        except ArtifactError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_one_check_serves_all() -> None:
    """The sentence about checkpoints of another run stands in one place of the source."""
    source = Path(resume.__file__).parents[1]
    found = [path.name for path in source.rglob("*.py") if "of another run (" in path.read_text()]
    assert found == ["resume.py"]
