"""What writing leaves behind: the file, its permissions, and nothing of those who were killed."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from pocketbayes.runs.files import require_writable, sweep, write_atomically

WRITER = "import os, sys, time; from pathlib import Path; from pocketbayes.runs import files\n"
WRITER += "with files._temporary(Path(sys.argv[1])): print('open', flush=True); time.sleep(60)"


def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    write_atomically(path, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_bytes() == b"new"


def test_what_a_killed_writer_left_goes_with_the_next_write_and_what_a_living_one_holds_stays(
    tmp_path: Path,
) -> None:
    path = tmp_path / "model[1].pocket"
    other = tmp_path / ".other.pocket.0123456789ab.tmp"
    other.touch()
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None and writer.stdout.readline() == b"open\n"
        write_atomically(path, b"first")
        assert len(os.listdir(tmp_path)) == 3
        writer.kill()
    write_atomically(path, b"second")
    assert sorted(os.listdir(tmp_path)) == [other.name, path.name]
    sweep(tmp_path / "other.pocket")
    assert os.listdir(tmp_path) == [path.name]


def test_asking_whether_a_path_can_be_written_leaves_nothing(tmp_path: Path) -> None:
    require_writable(tmp_path / "a")
    assert not os.listdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="Make it first"):
        require_writable(tmp_path / "none" / "a")
    with pytest.raises(IsADirectoryError, match="Name a file in it"):
        require_writable(tmp_path)


def test_a_folder_that_cannot_be_written_is_noticed_before_the_work() -> None:
    """The kernel's own folder refuses the superuser too."""
    with pytest.raises(PermissionError, match=r"/proc: cannot write model\.pocket there"):
        require_writable("/proc/model.pocket")
