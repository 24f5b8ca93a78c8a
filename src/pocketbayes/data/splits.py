"""A user's own data: what a function returned, as the splits of a data set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pocketbayes.arrays import Array, to_numpy
from pocketbayes.data.examples import Examples
from pocketbayes.data.scaling import Scaling, measured_scaling


def splits_from(name: str, found: Any) -> tuple[Examples, Examples]:
    """(training, test) from what a function returned: a pair of splits, or a dict with the keys of an npz file.

    A split is a `pocketbayes.data.DataSet`, a pair (x, y) of arrays or tensors, or a torch data set of such pairs.
    Inputs and float targets are used as they are; bytes are scaled like those of any image file.
    """
    classes = None
    if isinstance(found, Mapping):
        if not {"x_train", "y_train", "x_test", "y_test"} <= set(found):
            raise ValueError(f"{name}: a dict needs x_train, y_train, x_test, y_test, got {sorted(found)}.")
        classes = found.get("classes")
        found = ((found["x_train"], found["y_train"]), (found["x_test"], found["y_test"]))
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        raise ValueError(f"{name}: return (train, test), not {type(found).__name__}. See docs/commands.md.")
    if all(isinstance(split, Examples) for split in found):
        return found[0], found[1]
    (x, y), (x_test, y_test) = (_pair(name, split) for split in found)
    regression = y.dtype == np.float32
    if y.dtype != y_test.dtype or x.shape[1:] != x_test.shape[1:]:
        raise ValueError(f"{name}: training and test data differ in kind or shape.")
    if not regression and classes is None:
        classes = range(int(max(y.max(), y_test.max())) + 1)
    names = None if regression else tuple(str(c) for c in classes or ())
    scaling = _scaling_of(x)
    return tuple(  # type: ignore[return-value]
        Examples(name=name, x=a, y=b, classes=names, scaling=scaling) for a, b in ((x, y), (x_test, y_test))
    )


def _pair(name: str, split: Any) -> tuple[Array, Array]:
    """(x, y) as arrays: float32 or uint8 inputs, int64 labels [N] or float32 targets [N, T]."""
    if hasattr(split, "__getitem__") and hasattr(split, "__len__") and not isinstance(split, (tuple, list)):
        items = [split[i] for i in range(len(split))]  # a torch data set
        if items and isinstance(items[0], (tuple, list)) and len(items[0]) == 2:
            split = tuple(np.stack([to_numpy(item[part]) for item in items]) for part in (0, 1))
    if not isinstance(split, (tuple, list)) or len(split) != 2:
        raise ValueError(f"{name}: a split is (x, y) or a data set of such pairs. See docs/commands.md.")
    x, y = (to_numpy(part) for part in split)
    if x.dtype != np.uint8 or x.ndim != 4:
        x = x.astype(np.float32)
    if y.dtype.kind != "f":
        return x, y.astype(np.int64)
    return x, y.astype(np.float32).reshape(y.shape if y.ndim > 1 else (-1, 1))


def _scaling_of(x: Array) -> Scaling:
    """None for floats; for byte images the mean and standard deviation of each channel."""
    return measured_scaling(x) if x.dtype == np.uint8 else Scaling(np.zeros(1), np.ones(1))
