"""From options to what the library takes: scales, plans, budgets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from pocketbayes.compression.plan import Plan
    from pocketbayes.posterior.priors import GaussianPrior, InitialSigma, Scale

BUDGETS = ("max_bytes", "max_accuracy_drop", "max_nll_rise")


def scale_from(text: str, option: str = "--prior") -> Scale:
    """`0.2`, `fan-in` or `fan-in:0.5`: a standard deviation, or gain / sqrt(inputs)."""
    from pocketbayes.posterior.priors import FanIn

    name, _, gain = text.partition(":")
    try:
        value = float(gain or 1) if name == "fan-in" else float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise typer.BadParameter(
            f"{option} {text}: write a standard deviation such as 0.2, or fan-in, or fan-in:0.5"
        )
    return FanIn(value) if name == "fan-in" else value


def prior_from(text: str) -> GaussianPrior:
    """A scale, for a prior around zero; `pretrained:SCALE`, for one around the given weights."""
    from pocketbayes.posterior.priors import Pretrained, ZeroMean

    name, _, rest = text.partition(":")
    return Pretrained(scale_from(rest or "fan-in")) if name == "pretrained" else ZeroMean(scale_from(text))


def sigma_from(text: str) -> InitialSigma:
    """`relative:0.1`, `fan-in:0.1` or a number: where the widths start."""
    from pocketbayes.posterior.priors import Absolute, FanIn, Relative

    name, _, rest = text.partition(":")
    scale = scale_from(rest or "0.1" if name == "relative" else text, "--sigma")
    if isinstance(scale, FanIn):
        return scale
    return Relative(scale) if name == "relative" else Absolute(scale)


def plan_from(given: Mapping[str, Any]) -> Plan:
    """The plan that the options make; they have the names of its fields."""
    from pocketbayes.compression.plan import Plan

    chosen = {f.name: given[f.name] for f in fields(Plan)}
    chosen["prior"] = scale_from(given["prior"])
    chosen["fisher_batches"] = given["fisher_batches"] or None
    return Plan(**chosen)


def budget_from(given: Mapping[str, Any]) -> dict[str, Any]:
    """The one budget that was asked for."""
    asked = {name: given[name] for name in BUDGETS if given[name] is not None}
    if len(asked) != 1:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in asked or BUDGETS)
        raise typer.BadParameter(
            f"give exactly one budget: {'one of' if not asked else 'not all of'} {names}"
        )
    return asked


def needed(given: Mapping[str, Any], name: str, what: str) -> Any:
    """The option's value, or the complaint that it is missing."""
    if given[name] is None:
        raise typer.BadParameter(f"Missing option '--{name.replace('_', '-')}': {what}")
    return given[name]
