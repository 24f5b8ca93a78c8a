"""One split of a data set as it comes from files, and how a part of it is set aside.  Needs numpy only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from pocketbayes.arrays import Array
from pocketbayes.data.scaling import Scaling


@dataclass(frozen=True, kw_only=True, eq=False)
class Examples:
    """Raw inputs and targets, numpy arrays or tensors, and how both are scaled for a network."""

    name: str
    x: Any  # uint8 images [N, C, H, W], or float32 features [N, ...]
    y: Any  # int64 labels [N] (-1: unlabelled), or float32 targets [N, T]
    classes: tuple[str, ...] | None  # None for regression
    scaling: Scaling
    target_scaling: Scaling | None = None  # regression only

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y) or len(self.x) == 0:
            raise ValueError(f"{self.name}: {len(self.x)} inputs and {len(self.y)} targets.")
        if self.classes is not None and not -1 <= self.y.min() <= self.y.max() < len(self.classes):
            raise ValueError(
                f"{self.name}: labels from {self.y.min()} to {self.y.max()} for {len(self.classes)} classes."
            )

    def __len__(self) -> int:
        return len(self.x)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.x.shape[1:])

    @property
    def num_outputs(self) -> int:
        """Classes, or regression targets: the width of a network's last layer."""
        return int(self.y.shape[1]) if self.classes is None else len(self.classes)

    def subset(self, index: Any) -> Self:
        """The examples at the given places, with the same scaling."""
        return replace(self, x=self.x[index], y=self.y[index])


def stratified_order(labels: Array, seed: int) -> Array:
    """A permutation that goes class by class, random within each class."""
    shuffled = permutation(len(labels), seed)
    return shuffled[np.argsort(labels[shuffled], kind="stable")]


def permutation(n: int, seed: int) -> Array:
    """The one that torch.randperm makes on a CPU: Fisher and Yates' shuffle by the words of a Mersenne twister."""
    twister = np.random.RandomState(seed % 2**32)
    words = twister.randint(0, 2**32, max(n - 1, 0), np.uint32)
    order = list(range(n))
    for i, step in enumerate((words % np.arange(n, 1, -1)).tolist()):
        order[i], order[i + step] = order[i + step], order[i]
    return np.array(order, np.int64)


def divide(order: Array, fraction: float, name: str) -> tuple[Array, Array]:
    """(rest, sample), sorted: evenly spaced places along `order`, so each class gives in proportion, up to one."""
    count = round(len(order) * fraction)
    if not 0 < count < len(order):
        raise ValueError(
            f"{name}: a fraction of {fraction} of {len(order)} examples leaves nothing on one side. "
            "Use a fraction between 0 and 1."
        )
    sampled = np.zeros(len(order), bool)
    sampled[
        ((np.arange(count, dtype=np.float32) + 0.5) * np.float32(len(order) / count)).astype(np.int64)
    ] = True
    return np.sort(order[~sampled]), np.sort(order[sampled])
