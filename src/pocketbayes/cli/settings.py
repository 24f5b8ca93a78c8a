"""The settings of a command: one frozen dataclass, from whose fields its options, their defaults and help follow.

A field made by `option`, `required` or `argument` says how it looks on the command line. A field that is itself a
dataclass, such as the library's `Plan`, adds an option for each of its own fields: name, type and default are those of
the field, the help is its line under "Args:" in the docstring.
"""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields, is_dataclass
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_type_hints

import typer

ADVANCED = "Advanced"
Kind = TypeVar("Kind")
# From what was typed on the command line to what the settings hold; a ValueError says what should have been typed.
Parser = Callable[[Any], Any]


class Setting(NamedTuple):
    """A parameter of a command."""

    name: str  # of the dataclass's field
    kind: Any  # int, float, bool, str, Path, perhaps | None: what is read from the command line
    default: Any  # inspect.Parameter.empty: must be given
    info: Any  # OptionInfo or ArgumentInfo
    parse: Parser | None

    @property
    def flag(self) -> str:
        """--the-name; of an argument its name."""
        long = [name for name in (self.info.default, *(self.info.param_decls or ())) if isinstance(name, str)]
        return long[0].partition("/")[0] if long else self.name.upper()

    def parameter(self) -> inspect.Parameter:
        """As typer reads it from a function's signature."""
        hint: Any = operator.getitem(Annotated, (self.kind, self.info))
        only = inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter(self.name, only, default=self.default, annotation=hint)

    def parsed(self, value: Any) -> Any:
        if self.parse is None or value is None:
            return value
        try:
            return self.parse(value)
        except ValueError as error:
            raise typer.BadParameter(f"{self.flag} {value}: {error}") from error


# --- fields ----------------------------------------------------------------------------------------------------


def option(
    default: Any,
    help: str,
    metavar: str | None = None,
    *,
    panel: str | None = None,
    names: Sequence[str] = (),
    parse: Parser | None = None,
    **more: Any,
) -> Any:
    """A field that is an option.  With `parse` the default is given as text too, as it would be typed."""
    look = {"names": names, "help": help, "metavar": metavar, "rich_help_panel": panel, **more}
    told = {"look": look, "parse": parse, "typed": default}
    if default is inspect.Parameter.empty:
        return field(metadata=told)
    if parse is not None and default is not None:
        return field(default_factory=lambda: parse(default), metadata=told)
    return field(default=default, metadata=told)


def required(help: str, metavar: str | None = None, **more: Any) -> Any:
    """A field that is an option, and must be given."""
    return option(inspect.Parameter.empty, help, metavar, **more)


def argument(help: str, metavar: str, default: Any = inspect.Parameter.empty) -> Any:
    """A field that is given without a name in front."""
    return option(default, help, metavar, is_argument=True)


def nested(**looks: Mapping[str, Any]) -> Any:
    """A field that is a dataclass of the library; `looks` says more of options that need more.

    What may be said: `panel`, `metavar`, `also` (sentences after the help), `parse` with `typed` (the default as it
    would be typed), `kind` (what is read), and what `typer.Option` takes.  `every` is for all.
    """
    return field(metadata={"looks": looks})


# --- from a dataclass to parameters, and from what was given to the dataclass -----------------------------------


def settings_of(kind: type) -> list[Setting]:
    """The parameters of a command with these settings, those of nested dataclasses in their places."""
    hints, found = _hints(kind), []
    for f in fields(kind):
        if "looks" in f.metadata:
            found += _of_library(hints[f.name], f.metadata["looks"])
        elif "typed" in f.metadata:
            found.append(_setting(f, hints[f.name]))
    return found


def built(kind: type[Kind], given: Mapping[str, Any], **more: Any) -> Kind:
    """The settings from the values of a call, by name; what the library refuses is a wrong call."""
    hints, values = _hints(kind), dict(more)
    for f in fields(kind):  # type: ignore[arg-type]
        if "looks" in f.metadata:
            known = _of_library(hints[f.name], f.metadata["looks"])
            values[f.name] = _made(hints[f.name], {s.name: s.parsed(given[s.name]) for s in known}, known)
        elif "typed" in f.metadata:
            values[f.name] = _setting(f, hints[f.name]).parsed(given[f.name])
    return _made(kind, values, settings_of(kind))


def _hints(kind: Any) -> dict[str, Any]:
    """The types of the fields; Any for those that only type checkers import, which are read from text."""
    late: dict[str, Any] = {}
    while True:
        try:
            return get_type_hints(kind, localns=late)
        except NameError as error:
            late[str(error.name)] = Any


def _made(kind: type[Kind], values: Mapping[str, Any], known: Sequence[Setting]) -> Kind:
    try:
        return kind(**values)
    except ValueError as error:
        raise typer.BadParameter(_with_flags(str(error), known)) from error


def _with_flags(text: str, known: Sequence[Setting]) -> str:
    """The library's message with options in place of fields: what has an underscore, or must be something."""
    flags = {s.name: s.flag for s in known}
    for name, flag in flags.items():
        text = re.sub(rf"\b{name}\b" if "_" in name else rf"\b{name}(?= (must|is a)\b)", flag, text)
    return text


def _setting(f: Field[Any], hint: Any) -> Setting:
    parse, typed = f.metadata["parse"], f.metadata["typed"]
    typed_kind = str | None if typed is None else str
    kind = hint if parse is None else typed_kind
    return Setting(f.name, kind, typed, _info(f.name, **f.metadata["look"]), parse)


def _of_library(kind: Any, looks: Mapping[str, Mapping[str, Any]]) -> list[Setting]:
    assert is_dataclass(kind)
    hints, helps = _hints(kind), _documented(kind)
    found = []
    for f in fields(kind):
        assert f.default is not MISSING
        look = dict(looks.get("every", {})) | dict(looks.get(f.name, {}))
        parse, typed = look.pop("parse", None), look.pop("typed", f.default)
        read = look.pop("kind", hints[f.name]) if typed is None else type(typed)
        help = " ".join([helps[f.name], *look.pop("also", ())])
        info = _info(f.name, help=help, rich_help_panel=look.pop("panel", None), **look)
        found.append(Setting(f.name, read, typed, info, parse))
    return found


def _info(name: str, *, names: Sequence[str] = (), is_argument: bool = False, **look: Any) -> Any:
    if is_argument:
        return typer.Argument(show_default=False, **look)
    return typer.Option(*(names or (f"--{name.replace('_', '-')}",)), **look)


def _documented(kind: Any) -> dict[str, str]:
    """What the docstring says of each field under "Args:"."""
    text = (inspect.getdoc(kind) or "").partition("Args:\n")[2]
    found = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", text, re.MULTILINE)
    return {name: help[0].upper() + " ".join(help.split())[1:] for name, help in found}


def told_type(kind: Any) -> type:
    """int, float or bool, of an option that is read as one of them; str for all others."""
    return next((k for k in (bool, int, float) if kind is k or k in get_args(kind)), str)


def shown(settings: Sequence[Setting], first: Sequence[str]) -> list[Setting]:
    """Those that matter first, the others as advanced ones; all as they are where none is first."""
    if not first:
        return list(settings)
    for s in settings:
        if s.name not in first:
            s.info.rich_help_panel = ADVANCED
    return sorted(settings, key=lambda s: first.index(s.name) if s.name in first else len(first))
