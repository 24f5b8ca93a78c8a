"""What every experiment needs to leave behind: parts that survive a broken run, versions, means with errors, figures."""

from __future__ import annotations

import io
import json
import math
import platform
import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from pocketbayes.runs.files import write_atomically


def kept(path: Path, make: Callable[[], Any], settings: dict[str, Any] | None = None) -> Any:
    """{"value": what `make` returns, "seconds": of CPU time, "settings": as given}, from the file if it was made before.

    A part made with other settings is refused.  The seconds are those of the process that finished it.
    """
    if not path.exists():
        started = time.process_time()
        part = {"value": make(), "seconds": round(time.process_time() - started)}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(
            path, (json.dumps(part | ({"settings": settings} if settings else {})) + "\n").encode()
        )
        print(f"{path.stem}: {part['seconds']} s", flush=True)
    part = json.loads(path.read_text())
    if settings is not None and part.get("settings") != json.loads(json.dumps(settings)):
        raise ValueError(
            f"{path} was made with other settings: {part.get('settings')}, not {settings}. "
            "Remove it to have it made again, or give another folder with --rows."
        )
    return part


def write_result(path: Path, result: Any) -> None:
    """As json that people can read, whole or not at all."""
    write_atomically(path, (json.dumps(result, indent=1) + "\n").encode())


def versions() -> dict[str, Any]:
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
    }


class Summary(NamedTuple):
    mean: float
    error: float  # standard error
    groups: int

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {self.error:.3f}"

    @property
    def clear(self) -> bool:
        """Away from zero by the two-sided 95 % quantile of Student's t."""
        from scipy.stats import t

        return self.groups > 1 and abs(self.mean) > t.ppf(0.975, self.groups - 1) * self.error


def summary(groups: Iterable[Sequence[float]]) -> Summary:
    """Mean and standard error over groups of runs, each group its own mean: runs on one test set are not
    independent of each other.
    """
    means = np.array([np.mean(group) for group in groups])
    error = means.std(ddof=1) / math.sqrt(len(means)) if len(means) > 1 else math.nan
    return Summary(float(means.mean()), float(error), len(means))


def cost(seconds: Iterable[float]) -> str:
    """What CPU time was spent, and on what."""
    return f"{sum(seconds) / 3600:.1f} core-hours of a shared two-core x86 machine"


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


def save_figure(figure: Any, path: Path) -> None:
    """As svg, the same bytes every time: no date, and coordinates with one digit, half as large and as good to eyes.

    Text is left alone, and so are numbers below 1, which may be scales.
    """
    import matplotlib

    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": path.stem}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    number = re.compile(r"(?<![\d.])[1-9]\d*\.\d{2,}")
    short = re.sub(
        r"<[^>]+>", lambda tag: number.sub(lambda found: f"{float(found[0]):.1f}", tag[0]), text.getvalue()
    )
    write_atomically(path, short.encode())
