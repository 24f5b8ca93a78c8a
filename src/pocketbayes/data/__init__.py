"""Data sets by name or from files, and batches of them.

Examples:
    >>> digits = pb.data.load("digits")
    >>> digits.x.shape[1:], len(digits.classes)
    (torch.Size([1, 8, 8]), 10)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pocketbayes.data.examples import Examples
from pocketbayes.data.scaling import Scaling
from pocketbayes.data.sets import NAMES, data_folder

if TYPE_CHECKING:
    from pocketbayes.data.batches import BatchLoader, DataSet, crop_flip, hold_out
    from pocketbayes.data.loading import load

# Reading files needs numpy only; what follows imports torch, and does so when it is first asked for.
_LAZY = {"load": "loading"} | dict.fromkeys(("DataSet", "hold_out", "crop_flip", "BatchLoader"), "batches")
__all__ = [
    "load",
    "NAMES",
    "data_folder",
    "Examples",
    "DataSet",
    "Scaling",
    "hold_out",
    "crop_flip",
    "BatchLoader",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
