"""`package.module:function`: a user's own function, found in the current folder or among the installed packages."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

import typer


def is_path_to_function(text: str) -> bool:
    """Whether the text has the form `package.module:function`."""
    module, colon, function = text.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), *function.split(".")))


def function_at(text: str, option: str) -> Callable[..., Any]:
    """The function that `package.module:function` names; an error says which part is wrong."""
    if not is_path_to_function(text):
        raise typer.BadParameter(f"{option} {text}: write package.module:function")
    module_name, _, name = text.partition(":")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ImportError(f"{option} {text}: {module_name} needs {error.name}, not installed.") from error
        raise ImportError(
            f"{option} {text}: no module {error.name!r}, neither in {here} nor among the installed packages."
        ) from error
    except Exception as error:
        raise ImportError(f"{option} {text}: importing {module_name} failed: {_named(error)}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise ImportError(f"{option} {text}: module {module_name} has no {name!r}.")
        found = getattr(found, part)
    if not callable(found):
        raise ImportError(f"{option} {text}: {name} is no function but {type(found).__name__}.")
    return found  # type: ignore[no-any-return]


def call(function: Callable[..., Any], text: str, option: str, **arguments: Any) -> Any:
    """What the user's function returns; its failure is told as its own."""
    try:
        return function(**arguments)
    except Exception as error:
        raise ValueError(f"{option} {text}: the function failed: {_named(error)}") from error


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}. --debug shows where."
