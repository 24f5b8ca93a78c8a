"""The state of every random generator that training may touch: saved, set, given back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def state() -> dict[str, Any]:
    """The states of Python's, numpy's and torch's generators, as tensors and plain values."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python": (version, torch.tensor(words), gauss),
        "numpy": (name, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, cached),
    }


def set_state(saved: dict[str, Any]) -> None:
    """Put all generators where `state` found them."""
    torch.set_rng_state(saved["torch"])
    if saved["cuda"]:
        torch.cuda.set_rng_state_all(saved["cuda"])
    version, words, gauss = saved["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    name, keys, *rest = saved["numpy"]
    if keys.dtype != torch.int64:
        raise TypeError(f"the words of numpy's generator must be int64, got {keys.dtype}")
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002


def seed_all(seed: int) -> None:
    """Seed all generators from one number."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002


@contextmanager
def forked(seed: int | None = None) -> Iterator[None]:
    """Whatever happens inside, from that seed if one is given, the caller's generators are afterwards as they were."""
    before = state()
    try:
        if seed is not None:
            seed_all(seed)
        yield
    finally:
        set_state(before)
