"""What every experiment leaves behind: parts that survive a broken run, versions, means with errors, figures."""

from __future__ import annotations

import argparse
import io
import json
import math
import platform
import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from pocketbayes.runs.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESULTS = Path(__file__).parent / "results"


def command_line(description: str | None) -> argparse.ArgumentParser:
    """A parser whose help is the experiment's docstring, as it is laid out there."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


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


def write_result(path: Path, result: Any, indent: int | None = 1) -> None:
    """As json, whole or not at all: for people to read, or, without `indent`, on one line."""
    write_atomically(path, (json.dumps(result, indent=indent) + "\n").encode())


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


def new_figure(width: float, height: float) -> Figure:
    """In inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Figure, result: Path) -> None:
    """Beside the result file, as svg, the same bytes every time."""
    import matplotlib

    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": result.stem}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    write_atomically(result.with_suffix(".svg"), rounded(text.getvalue()).encode())


def rounded(svg: str) -> str:
    """Coordinates with one digit: half as large, and as good to eyes.  Text stays, and numbers below 1, perhaps scales."""
    number = re.compile(r"(?<![\d.])[1-9]\d*\.\d{2,}")
    return re.sub(r"<[^>]+>", lambda tag: number.sub(lambda found: f"{float(found[0]):.1f}", tag[0]), svg)
