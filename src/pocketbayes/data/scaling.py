"""Raw inputs or targets to what a network sees, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pocketbayes.arrays import Array, like, to_numpy


@dataclass(frozen=True, eq=False)
class Scaling:
    """(x / full - mean) / std per channel or feature, dimension 1 of x, as measured on the training split.

    Given as arrays, tensors or lists; kept as float32 arrays.  Arrays give arrays, tensors give tensors.
    """

    mean: Array  # [C]
    std: Array  # [C]
    full: float = 1.0  # the raw value that counts as one: 255 for bytes

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            object.__setattr__(self, name, to_numpy(getattr(self, name)).astype(np.float32))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scaling) and self.lists() == other.lists() and self.full == other.full

    __hash__ = None  # type: ignore[assignment]

    def apply(self, x: Any) -> Any:
        """Raw values to what a network sees, float32."""
        # Two passes over a batch, and the first turns bytes into floats by type promotion.
        scaled = x - self._along(self.mean * np.float32(self.full), x)
        scaled /= self._along(self.std * np.float32(self.full), x)
        return scaled

    def rounded(self) -> Scaling:
        """To six significant digits, so that a file that states it states it exactly."""
        mean, std = (np.array(part) for part in self.lists())
        return Scaling(mean, std, self.full)

    def lists(self) -> list[list[float]]:
        """Means and standard deviations, as a file states them: with the six digits that float32 has."""
        return [[float(f"{v:.6g}") for v in part.tolist()] for part in (self.mean, self.std)]

    @staticmethod
    def _along(values: Array, x: Any) -> Any:
        """[C] along dimension 1 of x."""
        return like(values.reshape(-1, *[1] * (x.ndim - 2)), x)


def measured_scaling(x: Array) -> Scaling:
    """Mean and standard deviation per channel or feature (dimension 1), without a float copy of bytes."""
    if x.dtype == np.uint8:
        counts = np.stack(
            [np.bincount(x[:, c].ravel(), minlength=256) for c in range(x.shape[1])]
        )  # [C, 256]
        fraction, value = counts / counts.sum(1, keepdims=True), np.arange(256) / 255.0
        mean = fraction @ value
        std = np.sqrt((fraction * (value - mean[:, None]) ** 2).sum(1))
        full = 255.0
    else:
        axes = (0, *range(2, x.ndim))
        mean, std, full = x.mean(axes, dtype=np.float64), x.std(axes, dtype=np.float64), 1.0
    return Scaling(mean, np.where(std > 1e-12, std, 1.0), full)  # a constant feature stays at zero
