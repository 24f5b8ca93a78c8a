"""The program: its commands, and what becomes of an error.

A failure is one line on standard error and exit code 1, a wrong call exit code 2, an interruption 130 as shells have
it; `--debug` shows the traceback instead.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from pocketbayes import __version__
from pocketbayes.cli.output import note, one_line, printable

INTERRUPTED = 130

app = typer.Typer(
    name="pocketbayes",
    help="Any PyTorch network as a Bayesian one that fits in a pocket.",
    epilog="Each command has its own help with examples: `pocketbayes compress --help`",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def examples(*lines: str) -> str:
    """The end of a command's help."""
    return "\n\n".join(
        ["Examples:" if len(lines) > 1 else "Example:", *(f"`pocketbayes {line}`" for line in lines)]
    )


class Interrupted(Exception):
    """Ctrl-C in work that can be resumed; the text says how."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """What the `pocketbayes` script runs: a command, and every error of it in one line."""
    asked = list(sys.argv[1:] if arguments is None else arguments)
    advice = ""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning  # type: ignore[assignment]
            code = app(asked or ["--help"], prog_name="pocketbayes", standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except Interrupted as interruption:
        code, advice = INTERRUPTED, f" {interruption}"
    except Exception as error:
        if "--debug" in asked:
            raise
        note(one_line(error))
        code = getattr(error, "exit_code", 1)  # 2 where the call itself is wrong
    if code == INTERRUPTED:
        note(f"interrupted; no file was left half-written.{advice}")
    sys.exit(code if isinstance(code, int) else 0)


def _show_warning(message: Warning | str, *_: object) -> None:
    """A warning in one line, without the place in the code that nobody asked for."""
    note(f"warning: {printable(' '.join(str(message).split()))}")


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
