"""The program: its commands, and what becomes of an error.

A failure is one line on standard error and exit code 1, a wrong call exit code 2, an interruption 130 as shells have
it; `--debug` shows the traceback instead.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Annotated, Any, NamedTuple, NoReturn, TypeVar, get_type_hints

import typer

from pocketbayes import __version__
from pocketbayes.cli.config import register
from pocketbayes.cli.options import Options
from pocketbayes.cli.output import emit, note, one_line
from pocketbayes.cli.record import call_of
from pocketbayes.cli.settings import built, settings_of, shown
from pocketbayes.errors import not_installed
from pocketbayes.runs import ranks

INTERRUPTED = 130
Given = TypeVar("Given", bound=Options)

app = typer.Typer(
    name="pocketbayes",
    help="Any PyTorch network as a compressed Bayesian one, in one small file.",
    epilog="Each command has its own help with examples: `pocketbayes compress --help`",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Outcome(NamedTuple):
    """What a command found, for programs and for people."""

    told: Mapping[str, Any]  # --json
    show: Callable[[], object]


class Interrupted(Exception):
    """Ctrl-C in work that can be resumed."""


def command(
    *examples: str, first: Sequence[str] = (), resumable: bool = False, divided: bool = False
) -> Callable[[Callable[[Given], Outcome]], Callable[[Given], Outcome]]:
    """Make a function of settings a command; its options are the fields of the settings, in `entry.Options`.

    `first` names the options that the help shows before the advanced ones. `resumable` work goes on where it was when
    the same command is run again. `divided` work is done by all processes that torchrun started; other work by the
    first of them.
    """

    def registered(work: Callable[[Given], Outcome]) -> Callable[[Given], Outcome]:
        kind: type[Given] = get_type_hints(work)["given"]
        settings = shown(settings_of(kind), first)

        def called(context: typer.Context, **values: Any) -> None:
            if not divided and ranks.started_as():
                return
            try:
                given = built(kind, values)
                with ranks.joined() if divided else nullcontext():
                    outcome = work(replace(given, call=call_of(context)))
            except KeyboardInterrupt as interruption:
                raise Interrupted if resumable else interruption from interruption
            except ModuleNotFoundError as error:
                raise not_installed(error, f"`pocketbayes {work.__name__}`") from error
            if ranks.started_as():
                return
            if given.as_json:
                emit(outcome.told)
            else:
                outcome.show()

        parameters = [
            inspect.Parameter("context", inspect.Parameter.POSITIONAL_ONLY, annotation=typer.Context),
            *(s.parameter() for s in settings),
        ]
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {p.name: p.annotation for p in parameters}
        called.__name__, called.__doc__ = work.__name__, work.__doc__
        register(work.__name__, settings)
        heading = "Examples:" if len(examples) > 1 else "Example:"
        lines = "\n\n".join([heading, *(f"`pocketbayes {line}`" for line in examples)])
        app.command(epilog=lines)(called)
        return work

    return registered


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
    except Interrupted:
        code, advice = INTERRUPTED, " Run the same command again to go on."
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
    note(f"warning: {' '.join(str(message).split())}")


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
