"""What the pages of results are made of."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from experiments.record import Summary, summary

PAGES = Path(__file__).parents[1] / "docs" / "results"
MACHINE = "a shared two-core x86 machine"


def measured(result: dict[str, Any], *how: str) -> str:
    """The command that measures a result again, and what that took."""
    told = ", ".join([*how, f"torch {result['versions']['torch']}"])
    return f"```sh\n{result['command']}\n```\n\n{told[0].upper()}{told[1:]}."


def cost(seconds: Iterable[float]) -> str:
    """What CPU time was spent, and on what."""
    return f"{sum(seconds) / 3600:.1f} core-hours of {MACHINE}"


def one_core(seconds: float) -> str:
    return f"{seconds} s on one core of {MACHINE}"


def table(head: str, rows: Iterable[Iterable[object]]) -> str:
    """In Markdown, from the names of the columns as they stand between bars."""
    lines = [head, "|---" * (head.count("|") - 1) + "|"]
    return "\n".join(lines + [f"| {' | '.join(map(str, row))} |" for row in rows])


def picture(result: Path, words: str) -> str:
    """The figure beside a result file, as the pages show it."""
    return f"![{words}]({Path(os.path.relpath(result.with_suffix('.svg'), PAGES)).as_posix()})"


def shown(values: Sequence[float], digits: int, scale: float = 1.0) -> str:
    """The mean with its standard error, or the one value."""
    found = summary([[scale * value] for value in values])
    return f"{found.mean:.{digits}f}" + (f" ± {found.error:.{digits}f}" if found.groups > 1 else "")


def marked(gap: Summary) -> str:
    """Bold where the difference is clear."""
    text = f"{gap.mean:+.3f} ± {gap.error:.3f}" if gap.groups > 1 else f"{gap.mean:+.3f}"
    return f"**{text}**" if gap.clear else text


def listed(names: Sequence[str]) -> str:
    """Names in quotes, since they hold commas."""
    return ", ".join(f"“{name}”" for name in names) or "none"
