from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pocketbayes.runs.files import write_atomically

OLD, NEW = b"old" * 1000, b"new" * 2_000_000


def test_a_file_is_written_whole_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "model.pocket"
    write_atomically(path, OLD)
    write_atomically(str(path), NEW)
    assert path.read_bytes() == NEW
    assert os.listdir(tmp_path) == ["model.pocket"]


def test_a_new_file_gets_the_usual_permissions(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a", OLD)
    (tmp_path / "b").write_bytes(OLD)
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(OLD)
    (tmp_path / "link").symlink_to("real")
    write_atomically(tmp_path / "link", NEW)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == NEW


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="Name a file in it"):
        write_atomically(tmp_path, NEW)
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "none" / "model.pocket", NEW)
    assert os.listdir(tmp_path) == []


def test_a_failed_rename_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.pocket"
    path.write_bytes(OLD)

    def refuse(*_: object) -> None:
        raise PermissionError("no")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(PermissionError):
        write_atomically(path, NEW)
    assert path.read_bytes() == OLD
    assert os.listdir(tmp_path) == ["model.pocket"]


def test_the_bytes_reach_the_disk_before_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace

    def spy_fsync(handle: int) -> None:
        calls.append("fsync folder" if os.path.isdir(f"/proc/self/fd/{handle}") else "fsync file")
        fsync(handle)

    def spy_replace(source: object, target: object) -> None:
        calls.append("rename")
        replace(source, target)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "replace", spy_replace)
    write_atomically(tmp_path / "model.pocket", NEW)
    assert calls == ["fsync file", "rename", "fsync folder"]


@pytest.mark.skipif(sys.platform == "win32", reason="file size limits are POSIX")
def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "model.pocket"
    path.write_bytes(OLD)
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "from pocketbayes.runs.files import write_atomically\n"
        "try: write_atomically(sys.argv[1], b'new' * 2_000_000)\n"
        "except OSError as error: print(type(error).__name__, error.errno)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("OSError")
    assert path.read_bytes() == OLD
    assert os.listdir(tmp_path) == ["model.pocket"]


SAVER = """
import sys
from pocketbayes.runs.files import write_atomically
print("ready", flush=True)
i = 0
while True:
    write_atomically(sys.argv[1], bytes([i % 256]) * 3_000_000)
    i += 1
"""


def kill_while_saving(path: Path, times: int, rng: random.Random) -> int:
    """Kills a process that saves over and over; how many different files were found afterwards."""
    path.write_bytes(b"\0" * 3_000_000)
    found = set()
    for _ in range(times):
        with subprocess.Popen([sys.executable, "-c", SAVER, str(path)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(rng.uniform(0, 0.1))
            process.kill()
        data = path.read_bytes()
        assert data == data[:1] * 3_000_000
        found.add(data[0])
    return len(found)


def test_a_killed_save_leaves_a_whole_file(tmp_path: Path) -> None:
    kill_while_saving(tmp_path / "model.pocket", 4, random.Random(0))


@pytest.mark.slow
def test_many_killed_saves_leave_whole_files(tmp_path: Path) -> None:
    assert kill_while_saving(tmp_path / "model.pocket", 100, random.Random(1)) > 2
