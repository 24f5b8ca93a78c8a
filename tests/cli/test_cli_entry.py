"""The program itself: help, version, exit codes, what it imports."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cli_runs import complaint, run
from pocketbayes import __version__, cli
from pocketbayes.cli import digits as demo
from pocketbayes.cli.options import byte_count

DOCS = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()


def python(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("arguments", [["--help"], *([command, "--help"] for command in cli.COMMANDS[:3])])
def test_help_answers_without_torch(arguments: list[str]) -> None:
    ended = python(
        f"import sys; sys.modules['torch'] = None\nfrom pocketbayes.cli import main\nmain({arguments})"
    )
    assert ended.returncode == 0, ended.stderr
    assert "Usage: pocketbayes" in ended.stdout


def test_help_lists_every_command_in_the_order_of_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    shown = capsys.readouterr().out
    places = [shown.index(f" {command} ") for command in cli.COMMANDS]
    assert places == sorted(places) and len(places) == 10


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_help_with_examples_and_the_common_options(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(f"{command} --help") == 0
    shown = capsys.readouterr().out
    assert f"pocketbayes {command}" in shown.partition("Example")[2]
    for option in ("--json", "--config", "--debug"):
        assert option in shown
    assert ("--seed" in shown) == (command != "inspect")


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_and_its_result_are_documented(command: str) -> None:
    section = DOCS.partition(f"\n## {command}\n")[2].partition("\n## ")[0]
    (example,) = re.findall(r"```json\n(.*?)```", section, re.DOTALL)
    assert isinstance(json.loads(example), dict)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("pocketbayes comp", ["compress"]),
        (
            "pocketbayes compress --max",
            ["--max-bytes", "--max-accuracy-drop", "--max-nll-rise", "--max-risk"],
        ),
    ],
)
def test_a_shell_completes_commands_and_options(typed: str, offered: list[str]) -> None:
    asked = {
        "COMP_WORDS": typed,
        "COMP_CWORD": str(typed.count(" ")),
        "_POCKETBAYES_COMPLETE": "complete_bash",
    }
    ended = subprocess.run(
        [sys.executable, "-c", "from pocketbayes.cli import main; main([])"],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.stdout.split() == offered


def test_importing_the_package_is_quick_and_needs_no_torch() -> None:
    ended = python(
        "import sys, time; start = time.process_time(); import pocketbayes; spent = time.process_time() - start\n"
        "print('torch' in sys.modules, 'numpy' in sys.modules, spent)"
    )
    torch, numpy, spent = ended.stdout.split()
    assert (torch, numpy) == ("False", "False")
    assert float(spent) < 0.2


def test_bayesianize_adds_little_to_the_import_of_torch() -> None:
    ended = python(
        "import sys, time; start = time.process_time(); import torch; own = time.process_time() - start\n"
        "import pocketbayes as pb; start = time.process_time(); pb.bayesianize(torch.nn.Linear(2, 2))\n"
        "print((time.process_time() - start) / own, 'torch._dynamo' in sys.modules, 'scipy.stats' in sys.modules)"
    )
    ratio, compiler, stats = ended.stdout.split()
    assert float(ratio) < 0.3  # torch alone takes about 1.7 s
    assert (compiler, stats) == ("False", "False")


def test_the_installed_script_knows_its_version() -> None:
    script = Path(sys.executable).with_name("pocketbayes")
    ended = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == f"pocketbayes {__version__}\n"


def test_a_call_without_a_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("") == 0
    assert "Usage: pocketbayes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("frobnicate", "frobnicate"),
        ("inspect", "FILE"),
        ("inspect a b", "b"),
        ("demo --epochs 0", "--epochs"),
        ("demo --seed x", "--seed"),
        ("demo --frobnicate", "--frobnicate"),
        ("train --out a --net lenet", "--data"),
        ("train --out a --data digits", "--net"),
        ("train --net lenet --data digits", "--out"),
        ("train --net lenet --data digits --out a.pocket", "--bayesian"),
        ("compress --net lenet --data digits --out a --max-bytes 9", "--weights"),
        ("compress --net lenet --weights w --data digits --out a", "exactly one of --max-bytes"),
        (
            "compress --net lenet --weights w --data digits --out a --max-bytes 9 --max-nll-rise 1",
            "--max-nll-rise",
        ),
        ("compress --net lenet --weights w --data digits --out a --max-bytes 9parsecs", "9parsecs"),
        ("compress --net lenet --weights w --data digits --out a.json --max-bytes 9", ".json"),
        (
            "compress --net lenet --weights w --data digits --out a --max-bytes 9 --prior thick",
            "--prior thick",
        ),
        (
            "compress --net lenet --weights w --data digits --out a --max-bytes 9 --temperature 0",
            "--temperature",
        ),
        ("evaluate small.pocket", "--data"),
        ("predict small.pocket", "INPUTS"),
        ("bench", "--shape"),
        ("bench --net lenet --shape 1,x", "--shape"),
        ("noise a.csv --plot fit.txt", "fit.txt"),
        ("noise a.csv --model small.pocket", "--data"),
    ],
)
def test_a_wrong_call_is_one_line_and_code_two(
    command: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in complaint(command, 2, capsys)


def test_an_unforeseen_error_is_named_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("first\nsecond")

    monkeypatch.setattr(demo, "stages", broken)
    message = complaint("demo", 1, capsys)
    assert "KeyError" in message and "--debug" in message


def test_debug_shows_where_an_error_was_raised(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        cli.main(["inspect", str(tmp_path / "missing"), "--debug"])


@pytest.mark.parametrize(
    ("text", "count"),
    [("90000", 90000), ("90KB", 90000), ("90 kb", 90000), ("88KiB", 90112), ("1.5MB", 1500000), ("2k", 2000)],
)
def test_sizes_are_read_in_the_usual_units(text: str, count: int) -> None:
    assert byte_count(text) == count
