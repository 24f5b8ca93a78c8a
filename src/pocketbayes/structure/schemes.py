"""Which weights are fixed, and to what: schemes, values, and what they fix in a whole network."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pocketbayes.arrays import to_numpy
from pocketbayes.drawing.masks import BoolArray, MaskRule, mask_from_rule, random_signs


class Weight(NamedTuple):
    """A weight tensor by name: [out, in, *kernel]; [in, out, *kernel] of a transposed convolution."""

    name: str
    shape: tuple[int, ...]
    transposed: bool = False


class FixedPart(NamedTuple):
    """What is fixed in one weight tensor.  Mask and values have its shape; values are zero where it is free."""

    rule: MaskRule
    mask: BoolArray
    values: NDArray[np.float64]


# --- schemes: where -----------------------------------------------------------------------------------------


class Scheme:
    """Where weights are fixed."""

    def rule(self, layer: int, weight: Weight) -> MaskRule:
        """The rule, ready for JSON, that `mask_from_rule` turns into the mask of this weight."""
        rule: MaskRule = {"rule": type(self).__name__.lower(), "layer": layer, "shape": list(weight.shape)}
        return rule | {"transposed": True} if weight.transposed else rule

    def mask(self, layer: int, weight: Weight) -> BoolArray:
        """The mask of fixed entries, with the shape of the weight; `layer` counts from zero."""
        return mask_from_rule(self.rule(layer, weight))


@dataclass(frozen=True, kw_only=True)
class Light(Scheme):
    """Fixes m - 1 entries of a matrix, m the smaller of its two sizes."""


@dataclass(frozen=True, kw_only=True)
class Heavy(Scheme):
    """Fixes m (m - 1) / 2 entries of a matrix, m the smaller of its two sizes."""


@dataclass(frozen=True, kw_only=True)
class Random(Scheme):
    """The control: as many entries as `like` fixes, or `count` in each layer, at random places."""

    count: int | None = None
    like: Light | Heavy | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.count is None) == (self.like is None):
            raise ValueError(
                "Random: give either count=..., entries in each layer, or like=Light() or Heavy()."
            )
        if self.count is not None and self.count < 0:
            raise ValueError(f"Random: count must be >= 0, got {self.count}.")
        if self.seed < 0:
            raise ValueError(f"Random: seed must be >= 0, got {self.seed}.")

    def rule(self, layer: int, weight: Weight) -> MaskRule:
        if self.like is not None:
            count = int(self.like.mask(layer, weight).sum()) // math.prod(weight.shape[2:])
        else:
            assert self.count is not None
            count = self.count
        return super().rule(layer, weight) | {"count": count, "seed": self.seed}


# --- fixed values: to what ----------------------------------------------------------------------------------


class Values(ABC):
    """What the fixed weights are fixed to."""

    @abstractmethod
    def of(self, layer: int, weight: Weight) -> NDArray[np.float64]:
        """A value for every entry of the weight, fixed or not."""


@dataclass(frozen=True, kw_only=True)
class Zero(Values):
    """Fixed weights are pruned."""

    def of(self, layer: int, weight: Weight) -> NDArray[np.float64]:
        return np.zeros(weight.shape)


@dataclass(frozen=True)
class Constant(Values):
    """+c or -c with random signs, one for each weight; with `trained`, c is a parameter that starts here."""

    c: float = 1.0
    _: KW_ONLY
    trained: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.c) and self.c > 0):
            raise ValueError(f"Constant: c must be positive and finite, got {self.c}. Use Zero() to prune.")
        if self.seed < 0:
            raise ValueError(f"Constant: seed must be >= 0, got {self.seed}.")

    def signs(self, layer: int, weight: Weight) -> NDArray[np.int8]:
        """+1 or -1 for every entry of the weight."""
        return random_signs(weight.shape, layer, self.seed)

    def of(self, layer: int, weight: Weight) -> NDArray[np.float64]:
        return self.c * self.signs(layer, weight).astype(np.float64)


@dataclass(frozen=True, eq=False)
class MAP(Values):
    """The values of a trained deterministic network: a weight's name -> its tensor, as in a state_dict.

    None are the means that the model has when `break_symmetry` is called.
    """

    values: Mapping[str, Any] | None = None

    def of(self, layer: int, weight: Weight) -> NDArray[np.float64]:
        if self.values is None:
            raise ValueError("MAP: no values given. Pass MAP(values=...), a weight's name -> its tensor.")
        if weight.name not in self.values:
            raise ValueError(f"{weight.name}: MAP(values=...) has no entry of this name.")
        values = to_numpy(self.values[weight.name]).astype(np.float64)
        if values.shape != weight.shape:
            raise ValueError(
                f"{weight.name}: MAP value of shape {values.shape} for a weight of shape {weight.shape}."
            )
        if not np.isfinite(values).all():
            raise ValueError(f"{weight.name}: MAP value holds NaN or infinity. Train the network again.")
        return values


# --- a whole network ----------------------------------------------------------------------------------------


def fix_weights(weights: Iterable[Weight], scheme: Scheme, values: Values) -> dict[str, FixedPart]:
    """What the scheme fixes in each weight, given in order from the input; a weight left whole is left out."""
    weights = tuple(weights)
    if len(weights) < 2:
        names = ", ".join(weight.name for weight in weights) or "none"
        raise ValueError(
            f"weights ({names}): no hidden layer, so no two neurons can swap and nothing is to be fixed."
        )
    fixed = {weight.name: _fix(layer, weight, scheme, values) for layer, weight in enumerate(weights)}
    if not any(part.mask.any() for part in fixed.values()):
        shapes = ", ".join(f"{weight.name} {list(weight.shape)}" for weight in weights)
        raise ValueError(
            f"{scheme}: fixes no entry of {shapes}. A layer needs two inputs and two outputs or more."
        )
    return {name: part for name, part in fixed.items() if part.mask.any()}


def _fix(layer: int, weight: Weight, scheme: Scheme, values: Values) -> FixedPart:
    rule = scheme.rule(layer, weight)
    try:
        mask = mask_from_rule(rule)
    except ValueError as error:
        raise ValueError(f"{weight.name}: {error}") from error
    return FixedPart(rule, mask, np.where(mask, values.of(layer, weight), 0.0))


def count_fixed(fixed: Mapping[str, FixedPart]) -> dict[str, int]:
    """How many scalar weights are fixed in each tensor."""
    return {name: int(part.mask.sum()) for name, part in fixed.items()}
