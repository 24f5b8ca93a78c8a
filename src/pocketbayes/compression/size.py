"""Sizes as people write them: 90000, "90KB", "88KiB"."""

from __future__ import annotations

import re

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}


def bytes_of(size: int | str) -> int:
    """90000, "90 KB" (thousands) or "88KiB" (1024s) as a number of bytes."""
    match = re.fullmatch(r"\s*([\d_]*\.?\d+)\s*([KMG]I?)?B?\s*", str(size).upper())
    if match is None:
        raise ValueError(f"{size!r} is not a size. Write bytes such as 90000, 90KB or 88KiB.")
    return int(float(match[1]) * _UNITS[match[2] or ""])
