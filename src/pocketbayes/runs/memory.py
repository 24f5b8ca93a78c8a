"""Whether there is memory for what is to be done, before it is begun."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from pathlib import Path

MEMINFO = Path("/proc/meminfo")


def available() -> float:
    """Bytes that processes may still take; infinite where the system does not say."""
    with suppress(OSError):
        if found := re.search(r"^MemAvailable:\s*(\d+) kB", MEMINFO.read_text(), re.MULTILINE):
            return 1024.0 * int(found[1])
    return math.inf


def require_memory(what: str, weights: int, each: int, advice: str) -> None:
    """A MemoryError that says what so many weights need, at `each` bytes, if there is less."""
    need, free = float(weights * each), available()
    if need > free:
        raise MemoryError(
            f"{what}: {weights:,} weights take at least {need / 1e9:,.1f} GB ({each} bytes each), and "
            f"{free / 1e9:,.1f} GB are free. {advice}"
        )
