"""`--config FILE.toml`: options of a command, or of several, from a file.

Keys are the names of options.  Those in a table named after a command are for it alone, those above all tables
for every command that has them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import typer
from typer.models import OptionInfo

_ACCEPTED = {int: (int,), float: (int, float), bool: (bool,)}
_CALLED = {int: "a whole number", float: "a number", bool: "true or false"}
_LEFT_OUT = {"config", "debug"}


class Known(NamedTuple):
    """An option of a command."""

    argument: str  # of the command's function
    kind: type  # int, float, bool, or str for all that is written as text


def read_config(context: typer.Context, value: Path | None) -> Path | None:
    """The callback of the option: what the file says become the defaults of the command."""
    if value is not None:
        context.default_map = {**(context.default_map or {}), **_defaults(str(context.info_name), value)}
    return value


def _defaults(command: str, path: Path) -> dict[str, Any]:
    """The arguments of the command's function that the file sets."""
    known, content = _commands(), _parse(path)
    tables = {key: value for key, value in content.items() if isinstance(value, dict)}
    common = {key: value for key, value in content.items() if key not in tables}
    _require_known(path, "table", tables, known)
    _require_known(path, "option", common, {key for options in known.values() for key in options})
    for name, table in tables.items():
        _require_known(path, f"option of {name}", table, known[name])
    found: dict[str, Any] = {}
    for key, value in (*common.items(), *tables.get(command, {}).items()):
        if (option := known[command].get(_dashed(key))) is not None:
            found[option.argument] = _value(path, key, option.kind, value)
    return found


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{path}: not a TOML file ({error})") from error
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}") from error


def _commands() -> dict[str, dict[str, Known]]:
    """Every command's options by name."""
    from pocketbayes.cli.entry import app

    return {c.callback.__name__: options_of(c.callback) for c in app.registered_commands if c.callback}


def options_of(function: Callable[..., Any]) -> dict[str, Known]:
    """The options of a command by their long names without the dashes in front, from its function's signature."""
    found = {}
    for argument, hint in get_type_hints(function, include_extras=True).items():
        info = get_args(hint)[1] if get_origin(hint) is Annotated else None
        if isinstance(info, OptionInfo) and argument not in _LEFT_OUT:
            names = (
                info.default,
                *(info.param_decls or ()),
            )  # inside Annotated the first name takes that place
            long = next(name for name in names if isinstance(name, str) and name.startswith("--"))
            kinds = [k for k in (bool, int, float) if k in (get_args(hint)[0], *get_args(get_args(hint)[0]))]
            known = Known(argument, kinds[0] if kinds and info.parser is None else str)
            found[long.partition("/")[0].removeprefix("--")] = known
    return found


def _require_known(path: Path, what: str, keys: Iterable[str], known: Iterable[str]) -> None:
    names = sorted(known)
    for key in keys:
        if _dashed(key) not in names:
            near = get_close_matches(_dashed(key), names, n=1, cutoff=0.0)[0]
            raise typer.BadParameter(f"{path}: unknown {what} {key!r}; the nearest is {near!r}")


def _value(path: Path, key: str, kind: type, value: Any) -> Any:
    """The value as the option takes it; the type is TOML's, so 5 is a number and "5" is not."""
    if kind in _ACCEPTED:
        if not isinstance(value, _ACCEPTED[kind]) or (isinstance(value, bool) and kind is not bool):
            raise typer.BadParameter(f"{path}: {key} must be {_CALLED[kind]}, got {value!r}")
        return value
    parts = value if isinstance(value, list) else [value]
    if not all(isinstance(part, (str, int, float)) and not isinstance(part, bool) for part in parts):
        raise typer.BadParameter(f"{path}: {key} must be a text, a number or a list of them, got {value!r}")
    return ",".join(str(part) for part in parts)


def _dashed(key: str) -> str:
    return key.replace("_", "-")
