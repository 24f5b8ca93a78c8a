"""The command line: `pocketbayes demo`, `pocketbayes inspect FILE`.

Torch is imported inside the commands that need it, so that `--help` answers at once.  A failure is one line on
standard error and exit code 1, a wrong call exit code 2, an interruption 130 as shells have it.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pocketbayes import __version__

if TYPE_CHECKING:
    from pocketbayes.artifact import Summary, TensorSummary
    from pocketbayes.demo import Stage

app = typer.Typer(
    name="pocketbayes",
    help="Any PyTorch network as a Bayesian one that fits in a pocket.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else.")]
Debug = Annotated[bool, typer.Option("--debug", help="On an error, show the traceback.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="All random numbers follow from it.")]


INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """What the `pocketbayes` script runs: a command, and every error of it in one line."""
    asked = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = app(asked or ["--help"], prog_name="pocketbayes", standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except Exception as error:
        if "--debug" in asked:
            raise
        typer.echo(f"pocketbayes: {_one_line(error)}", err=True)
        code = getattr(error, "exit_code", 1)  # 2 where the call itself is wrong
    if code == INTERRUPTED:
        typer.echo("pocketbayes: interrupted; no file was left half-written.", err=True)
    sys.exit(code if isinstance(code, int) else 0)


def _one_line(error: Exception) -> str:
    """What is wrong: as the library or the parser says it; anything else with its type, for it is a bug."""
    if hasattr(error, "format_message"):  # a wrong call
        return _printable(error.format_message().rstrip(".") + ". See pocketbayes --help.")
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        return _printable(f"{error.filename}: {error.strerror}.")
    message = _printable(" ".join(str(error).split()))
    if isinstance(error, (OSError, ValueError, ArithmeticError, ImportError)):
        return message
    return f"{type(error).__name__}: {message} (this should not happen; --debug shows where it did)"


def _printable(text: str) -> str:
    """Text from a file, without the control characters that a terminal would obey."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _console() -> Console:
    """Standard output: as wide as the terminal, and wide enough for long names where there is none."""
    return Console(width=None if sys.stdout.isatty() else 120)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"pocketbayes {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


# --- demo ------------------------------------------------------------------------------------------------------


@app.command(epilog="Example: pocketbayes demo --seed 1 --json")
def demo(
    seed: Seed = 0,
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="Epochs of each training run.")] = 80,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Train a network on handwritten digits, make it Bayesian, and compare the two."""
    from pocketbayes import demo as story

    console = _console()
    stages: list[Stage] = []
    for stage in story.stages(seed=seed, epochs=epochs, progress=not as_json):
        stages.append(stage)
        if not as_json:
            console.print(f"{stage.name}: trained in {stage.seconds:.0f} s")
    if as_json:
        told = [{**s._asdict(), "scores": _without_nan(s.scores)} for s in stages]
        typer.echo(json.dumps({"seed": seed, "epochs": epochs, "stages": told}))
    else:
        console.print(_demo_table(stages, story.ROWS))
        console.print(story.LEGEND)


def _demo_table(stages: list[Stage], rows: dict[str, str]) -> Table:
    """One column a stage, one row a measure."""
    table = Table("test images", box=SIMPLE_HEAD)
    for stage in stages:
        table.add_column(stage.name, justify="right")
    for key, title in rows.items():
        table.add_row(title, *(_number(stage.scores.get(key, math.nan)) for stage in stages))
    return table


def _without_nan(scores: dict[str, float]) -> dict[str, float | None]:
    return {name: None if math.isnan(value) else value for name, value in scores.items()}


def _number(value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4f}"


# --- inspect ---------------------------------------------------------------------------------------------------


@app.command(epilog="Example: pocketbayes inspect model.pocket --json")
def inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A pocket file.", show_default=False)],
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show where the bytes of a pocket file go, without building the model and without torch."""
    from pocketbayes.artifact import inspect as summarise

    summary = summarise(file)
    if as_json:
        typer.echo(json.dumps(_summary_json(summary)))
        return
    console = _console()
    size = f"{summary.total_bytes:,} bytes, format {summary.version}, written by {summary.library}"
    console.print(Text(_printable(f"{file}: {size}")))
    console.print(_sections_table(summary))
    console.print(_tensors_table(summary.tensors))
    for title, value in _notes(summary):
        console.print(Text(f"{title}: {value}"))


def _summary_json(summary: Summary) -> dict[str, Any]:
    tensors = [{**t._asdict(), "bits_per_weight": t.bits_per_weight} for t in summary.tensors]
    return {**summary._asdict(), "tensors": tensors}


_SECTIONS = {
    "HEAD": "header",
    "FREQ": "frequencies of labels",
    "LABL": "labels",
    "CODE": "codebook",
    "OUTL": "outliers",
    "BLND": "blends",
    "NORM": "private means and sigmas",
    "MASK": "masks of fixed weights",
    "FIXD": "fixed weights",
    "PLAN": "deterministic tensors",
    "PRIO": "priors",
    "XTRA": "tables of the noise",
    "frame": "lengths and checksums",
}


def _sections_table(summary: Summary) -> Table:
    table = Table("section", "holds", box=SIMPLE_HEAD)
    table.add_column("bytes", justify="right")
    table.add_column("share", justify="right")
    for name, size in summary.sections.items():
        table.add_row(name, _SECTIONS.get(name, ""), f"{size:,}", f"{size / summary.total_bytes:.1%}")
    return table


def _tensors_table(tensors: Sequence[TensorSummary]) -> Table:
    """A row a tensor; columns of counts only where a tensor has any."""
    counts = [name for name in ("fixed", "outliers", "blends") if any(getattr(t, name) for t in tensors)]
    table = Table(box=SIMPLE_HEAD)
    for heading in ("tensor", "kind", "shape"):
        table.add_column(heading, overflow="fold")
    for heading in ("bits a weight", "bytes", *counts):
        table.add_column(heading, justify="right")
    for t in tensors:
        texts = (_printable(t.name), _printable(t.kind), "x".join(map(str, t.shape)))
        bits = ("", "") if t.kind.startswith("tied") else (f"{t.bits_per_weight:.2f}", f"{t.bits / 8:,.0f}")
        table.add_row(*map(Text, (*texts, *bits, *(f"{getattr(t, name):,}" for name in counts))))
    return table


def _notes(summary: Summary) -> Iterable[tuple[str, str]]:
    """What a file says beside its numbers, as JSON, which shows control characters as escapes."""
    yield "codebook", f"{summary.codebook:,} components, {summary.tables:,} frequency tables"
    for title in ("noise", "architecture", "options", "metadata"):
        if value := getattr(summary, title):
            yield title, json.dumps(value)


if __name__ == "__main__":
    main()
