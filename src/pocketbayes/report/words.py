"""Numbers, settings and facts in the words of the page, which are those of words.toml."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, NamedTuple

from pocketbayes.report.story import Comparison


class Measure(NamedTuple):
    """A row's title, what it means, which way is better, +1 or -1, and whether it is a number, percent or count."""

    title: str
    meaning: str
    better: int
    kind: str


WORDS = tomllib.loads(files("pocketbayes.report").joinpath("words.toml").read_text(encoding="utf-8"))
MEASURES = {key: Measure(**found) for key, found in WORDS["measures"].items()}
SETTINGS: dict[str, str] = WORDS["settings"]
FIGURES: dict[str, dict[str, str]] = WORDS["figures"]
PLANE: dict[str, str] = WORDS["plane"]
COLOURS: dict[str, str] = WORDS["colours"]


class Change(NamedTuple):
    """What a score's change is called: the difference or a ratio, its error, and "better", "worse" or nothing."""

    said: str
    error: str = ""
    verdict: str = ""


def change(row: Comparison) -> Change:
    """The difference, or for sizes the ratio; a verdict only where it is known to be more than noise."""
    if row.before is None:
        return Change("")
    measure, difference, error = MEASURES[row.key], row.after - row.before, ""
    if measure.kind == "count":
        small, large = sorted((row.before, row.after))
        said, known = f"{'×' if difference > 0 else '÷'} {large / max(1.0, small):.1f}", difference != 0
    else:
        scale, digits = (100, 2) if measure.kind == "percent" else (1, 4)
        said = f"{scale * difference:+.{digits}f}".replace("-", "−")
        known = row.error is not None and abs(difference) > 2 * row.error
        error = "" if row.error is None else f"± {scale * 2 * row.error:.{digits}f}"
    better = difference * measure.better > 0
    return Change(said, error, ("better" if better else "worse") if known and measure.better else "")


def score(number: float | None, key: str) -> str:
    """A score as the table shows it."""
    kind = MEASURES[key].kind
    if number is None or not math.isfinite(number):
        return "–"
    if kind == "percent":
        return percent(number, 2)
    return f"{number:,.0f}" if kind == "count" else f"{number:.4f}".replace("-", "−")


def percent(fraction: float, digits: int = 1) -> str:
    return f"{100 * fraction:.{digits}f}\N{NO-BREAK SPACE}%"


def plain_words(found: Mapping[str, Any]) -> dict[str, str]:
    """Settings and facts by their plain names; those that were not given are left out."""
    return {_name(key): _said(each) for key, each in found.items() if each not in (None, "", [], {})}


def _name(key: str) -> str:
    return SETTINGS.get(key, str(key).replace("_", " "))


def _said(found: Any) -> str:
    if isinstance(found, bool):
        return "yes" if found else "no"
    if isinstance(found, float):
        return f"{found:.6g}"
    if isinstance(found, Mapping):
        return ", ".join(f"{name} {said}" for name, said in plain_words(found).items())
    return ", ".join(map(_said, found)) if isinstance(found, (list, tuple)) else str(found)
