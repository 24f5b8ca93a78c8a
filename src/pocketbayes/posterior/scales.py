"""A scale: one number, or one that follows from the inputs of a layer.  Needs no torch, so that plans need none."""

from __future__ import annotations

import math
from dataclasses import dataclass


def require_positive(what: str, value: float) -> None:
    """Complain about anything but a positive finite number."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{what} must be a positive finite number, got {value}.")


@dataclass(frozen=True)
class FanIn:
    """A scale of gain / sqrt(inputs of a neuron), layer by layer: as a prior's sigma, or as where sigmas start.

    Args:
        gain: the scale of a layer with one input; 1 keeps the size of activations from layer to layer.

    Examples:
        >>> model = pb.bayesianize(pb.nets.mlp([100, 2]), prior=pb.ZeroMean(pb.FanIn(2.0)))
        >>> print(pb.describe(model)[0].note)  # 2 / sqrt(100)
        median sigma 0.0..., prior N(0, 0.2^2)
    """

    gain: float = 1.0

    def __post_init__(self) -> None:
        require_positive("FanIn: gain", self.gain)


Scale = float | FanIn
