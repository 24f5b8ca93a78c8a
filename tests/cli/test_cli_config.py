"""Options from a TOML file."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
import typer.main

from cli_runs import complaint, result
from pocketbayes import cli
from pocketbayes.cli.config import KNOWN
from pocketbayes.compression.plan import Plan
from pocketbayes.posterior.priors import FanIn

GROUP = typer.main.get_command(cli.app)
DOCS = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()


def write(folder: Path, text: str) -> str:
    (folder / "job.toml").write_text(text)
    return "job.toml"


def test_a_file_stands_for_options_and_the_command_line_wins(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(here, 'data = "digits"\nsamples = 3\nseed = 5\n[predict]\ntop = 2\n[evaluate]\nsamples = 4\n')
    found = result("evaluate small.pocket --net shopnets:net --config job.toml", capsys)
    assert (found["data"], found["samples"], found["seed"]) == ("digits", 4, 5)
    found = result("evaluate small.pocket --net shopnets:net --config job.toml --samples 2 --seed 1", capsys)
    assert (found["samples"], found["seed"]) == (2, 1)


def test_lists_flags_and_underscores_are_understood(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(
        here,
        'net = "shopnets:net"\ndata = "digits"\nepochs = 1\n[train]\naugment = true\nbatch_size = 500\n'
        'mean = [0.25]\nstd = [0.5]\nlr = 1\nprior = 0.5\nout = "made.safetensors"\n',
    )
    record = result("train --config job.toml", capsys)
    settings = record["settings"]
    for words in ("--net shopnets:net", "--augment", "--mean 0.25", "--batch-size 500"):
        assert words in record["command"]  # the command line that would do the same
    assert settings["augment"] is True and settings["batch_size"] == 500
    assert (settings["mean"], settings["std"], settings["prior"]) == ("0.25", "0.5", "0.5")
    assert settings["lr"] == 1.0 and (here / "made.safetensors").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sampels = 3", "unknown option 'sampels'; the nearest is 'samples'"),
        ("[evaluate]\nepoch = 3", "unknown option of evaluate 'epoch'"),
        ("[evalute]\nsamples = 3", "unknown table 'evalute'; the nearest is 'evaluate'"),
        ('seed = "3"', "seed must be a whole number, got '3'"),
        ("seed = true", "seed must be a whole number"),
        ("seed = 2.5", "seed must be a whole number"),
        ("[compress]\nlr = 'fast'\n[evaluate]\ndata = 2020-01-01", "data must be a text"),
        ("json = 1", "json must be true or false"),
        ("samples = 0", "write a number of draws, mean or auto"),
        ("samples = ", "not a TOML file"),
        ('config = "other.toml"', "unknown option 'config'"),
    ],
)
def test_a_bad_file_is_a_wrong_call_that_says_where(
    text: str, message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(here, text)
    assert message in complaint(
        "evaluate small.pocket --net shopnets:net --data digits --config job.toml", 2, capsys
    )


def test_a_missing_file_is_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "none.toml" in complaint("demo --config none.toml", 2, capsys)


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_option_may_stand_in_the_file(command: str) -> None:
    shown = {p.name for p in GROUP.commands[command].params if p.param_type_name == "option"}
    assert {known.name for known in KNOWN[command].values()} == shown - {"config", "debug", "help"}


def test_every_field_of_a_plan_is_an_option_of_compress_with_its_default() -> None:
    defaults = {p.name: p.default for p in GROUP.commands["compress"].params}
    for field in fields(Plan):
        assert field.name in defaults
        expected = "fan-in" if field.default == FanIn(1.0) else field.default
        assert defaults[field.name] == expected, field.name


def test_the_documented_file_has_known_options_only() -> None:
    text = DOCS.partition("```toml\n")[2].partition("```")[0]
    for command, table in tomllib.loads(text).items():
        if isinstance(table, dict):
            names = {name for p in GROUP.commands[command].params for name in p.opts}
            assert {f"--{key}" for key in table} <= names
