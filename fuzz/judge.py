"""Who judges a mutant: a clean refusal or a sound result, in little time and memory."""

from __future__ import annotations

import resource
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pocketbayes.errors import ReproducibilityWarning

SECONDS = 1.0  # of the processor, for one mutant
MEGABYTES = 200  # that the process may grow beyond its size before
LONGEST = 2000  # characters of a message


@dataclass
class Judge:
    """Counts what became of mutants, and keeps those that came through."""

    clean: tuple[type[Exception], ...]  # what may be raised
    counts: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    base: float = field(default_factory=lambda: peak_megabytes())  # megabytes before the first mutant

    def __call__(self, attempt: Callable[[], Any]) -> str | None:
        """What is wrong with this attempt, None if nothing is."""
        peak, started = peak_megabytes(), time.process_time()
        wrong = self._outcome(attempt)
        seconds, grown = time.process_time() - started, peak_megabytes() - self.base
        self.slowest = max(self.slowest, seconds)
        if wrong is None and seconds > SECONDS:
            wrong = f"took {seconds:.1f} s"
        if wrong is None and grown > MEGABYTES and peak_megabytes() > peak:
            wrong = f"took {grown:.0f} MB"
        self.counts["mutants"] += 1
        self.counts["wrong"] += wrong is not None
        return wrong

    def _outcome(self, attempt: Callable[[], Any]) -> str | None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                warnings.simplefilter("ignore", ReproducibilityWarning)
                warnings.filterwarnings("ignore", module="PIL|torch")  # of what they read, to whoever looks
                attempt()
        except self.clean as error:
            self.counts["refused"] += 1
            return None if 0 < len(str(error)) < LONGEST else f"a message of {len(str(error))} characters"
        except Exception:
            return traceback.format_exc(limit=-6)
        self.counts["read"] += 1
        return None

    def __str__(self) -> str:
        told = ", ".join(f"{self.counts[key]:,} {key}" for key in ("mutants", "refused", "read", "wrong"))
        return f"{told}; slowest {1000 * self.slowest:.0f} ms; memory {self.growth:+.0f} MB"

    @property
    def growth(self) -> float:
        """Megabytes between the peak so far and the one at the start."""
        return peak_megabytes() - self.base


def peak_megabytes() -> float:
    """The largest size that this process had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
