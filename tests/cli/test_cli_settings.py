"""Options, their defaults and help follow from a dataclass."""

from __future__ import annotations

from dataclasses import dataclass, field
from inspect import Parameter

import pytest
import typer

from pocketbayes.cli.settings import Setting, argument, built, nested, option, required, settings_of
from pocketbayes.compression.plan import Budget, Plan
from pocketbayes.posterior.scales import FanIn


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Of the library.

    Args:
        heat: How hot, in
            degrees.
        long_rest: Whether to wait.
        herbs: Which.
    """

    heat: int = 180
    long_rest: bool = False
    herbs: tuple[str, ...] = ("mint",)

    def __post_init__(self) -> None:
        if self.heat < 0:
            raise ValueError("cook: heat must be positive; no heat, no meal, and no long_rest.")


@dataclass(frozen=True, kw_only=True)
class Meal:
    """Of a command."""

    guest: str = argument("Who eats.", "GUEST")
    plates: list[int] = option("1,2", "How many.", parse=lambda text: [int(part) for part in text.split(",")])
    name: str = required("Of the meal.")
    notes: str = field(default="not an option")
    recipe: Recipe = nested(
        every={"panel": "Kitchen"}, herbs={"typed": "mint", "parse": lambda t: tuple(t.split("+"))}
    )


@dataclass(frozen=True, kw_only=True)
class Job:
    """The library's own settings."""

    plan: Plan = nested(prior={"typed": "fan-in", "parse": lambda text: FanIn(1.0)})
    budget: Budget = nested(max_bytes={"kind": int | None})


GIVEN = {"guest": "Ann", "plates": "1,2", "name": "x", "heat": 180, "long_rest": False, "herbs": "mint"}


def by_name(kind: type) -> dict[str, Setting]:
    return {setting.name: setting for setting in settings_of(kind)}


def test_every_field_is_a_parameter_with_its_type_and_default() -> None:
    found = by_name(Meal)
    assert list(found) == ["guest", "plates", "name", "heat", "long_rest", "herbs"]
    assert [(s.flag, s.kind, s.default) for s in found.values()] == [
        ("GUEST", str, Parameter.empty),
        ("--plates", str, "1,2"),
        ("--name", str, Parameter.empty),
        ("--heat", int, 180),
        ("--long-rest", bool, False),
        ("--herbs", str, "mint"),
    ]


def test_the_help_of_a_library_field_is_its_line_in_the_docstring() -> None:
    assert by_name(Meal)["heat"].info.help == "How hot, in degrees."
    assert by_name(Job)["max_bytes"].info.help.startswith("Size of the file")
    assert all(setting.info.help.endswith(".") for setting in settings_of(Job))


def test_what_is_typed_becomes_what_the_settings_hold() -> None:
    meal = built(Meal, {**GIVEN, "plates": "3,4", "heat": 20, "herbs": "mint+dill"})
    assert meal == Meal(guest="Ann", plates=[3, 4], name="x", recipe=Recipe(heat=20, herbs=("mint", "dill")))
    assert built(Meal, GIVEN) == Meal(guest="Ann", name="x", recipe=Recipe())


def test_what_is_refused_is_named_by_its_option() -> None:
    with pytest.raises(typer.BadParameter, match="--plates 3,x: invalid literal"):
        built(Meal, {**GIVEN, "plates": "3,x"})
    with pytest.raises(
        typer.BadParameter, match=r"cook: --heat must be positive; no heat, no meal, and no --long-rest\."
    ):
        built(Meal, {**GIVEN, "heat": -1})


def test_a_plan_without_options_is_the_default_plan() -> None:
    defaults = {s.name: s.default for s in settings_of(Job)}
    found = built(Job, defaults | {"max_bytes": 9})
    assert (found.plan, found.budget) == (Plan(), Budget(max_bytes=9))
    with pytest.raises(
        typer.BadParameter, match="exactly one of --max-bytes, --max-accuracy-drop, --max-nll-rise"
    ):
        built(Job, defaults)
