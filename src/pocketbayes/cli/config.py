"""`--config FILE.toml`: options of a command, or of several, from a file.

Keys are the names of options.  Those in a table named after a command are for it alone, those above all tables
for every command that has them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import typer
from typer.models import OptionInfo

from pocketbayes.cli.settings import Setting, told_type

KNOWN: dict[str, dict[str, Setting]] = {}  # every command's options, by name without the dashes in front
_ACCEPTED = {int: (int,), float: (int, float), bool: (bool,)}
_CALLED = {int: "a whole number", float: "a number", bool: "true or false"}
_LEFT_OUT = {"config", "debug"}


def register(command: str, settings: Iterable[Setting]) -> None:
    """Note a command's options."""
    known = (s for s in settings if isinstance(s.info, OptionInfo) and s.name not in _LEFT_OUT)
    KNOWN[command] = {s.flag.removeprefix("--"): s for s in known}


def read_config(context: typer.Context, value: Path | None) -> Path | None:
    """The callback of the option: what the file says become the defaults of the command."""
    if value is not None:
        context.default_map = {**(context.default_map or {}), **_defaults(str(context.info_name), value)}
    return value


def _defaults(command: str, path: Path) -> dict[str, Any]:
    """The settings of the command that the file makes, by name."""
    content = _parse(path)
    tables = {key: value for key, value in content.items() if isinstance(value, dict)}
    common = {key: value for key, value in content.items() if key not in tables}
    _require_known(path, "table", tables, KNOWN)
    _require_known(path, "option", common, {key for options in KNOWN.values() for key in options})
    for name, table in tables.items():
        _require_known(path, f"option of {name}", table, KNOWN[name])
    found: dict[str, Any] = {}
    for key, value in (*common.items(), *tables.get(command, {}).items()):
        if (setting := KNOWN[command].get(_dashed(key))) is not None:
            found[setting.name] = _value(path, key, setting, value)
    return found


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{path}: not a TOML file ({error})") from error
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}") from error


def _require_known(path: Path, what: str, keys: Iterable[str], known: Iterable[str]) -> None:
    names = sorted(known)
    for key in keys:
        if _dashed(key) not in names:
            near = get_close_matches(_dashed(key), names, n=1, cutoff=0.0)[0]
            raise typer.BadParameter(f"{path}: unknown {what} {key!r}; the nearest is {near!r}")


def _value(path: Path, key: str, setting: Setting, value: Any) -> Any:
    """The value as the option takes it; the type is TOML's, so 5 is a number and "5" is not."""
    kind = str if setting.info.parser is not None else told_type(setting.kind)
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
