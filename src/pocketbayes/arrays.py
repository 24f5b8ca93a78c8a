"""Numpy arrays and torch tensors alike, for what must also run where there is no torch."""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]


def is_tensor(x: Any) -> bool:
    """Whether it is a torch tensor; where torch was never imported nothing is."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def namespace(x: Any) -> Any:
    """The module with the functions for x: torch for tensors, numpy for the rest."""
    return sys.modules["torch"] if is_tensor(x) else np


def to_numpy(x: Any) -> Array:
    """Its values as an array, without gradients; numpy has no bfloat16, which becomes float32."""
    if not is_tensor(x):
        return np.asarray(x)
    x = x.detach().cpu()
    values: Array = (x.float() if x.dtype == namespace(x).bfloat16 else x).numpy()
    return values


def like(values: Array, given: Any) -> Any:
    """An array as what was given is: a tensor on the same device, or the array itself."""
    if not is_tensor(given):
        return values
    return namespace(given).from_numpy(np.require(values, requirements=["C", "W"])).to(given.device)


def finfo(x: Any) -> Any:
    """`eps` and `tiny` of the type that x came in; those of float32 for integers."""
    if is_tensor(x):
        torch = namespace(x)
        return torch.finfo(x.dtype if x.dtype.is_floating_point else torch.float32)
    dtype = np.asarray(x).dtype
    return np.finfo(dtype if dtype.kind == "f" else np.float32)
