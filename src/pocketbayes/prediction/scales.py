"""What validation data chose for the answers of a network: kept with the model, written into its file.

Plain numbers, one set of them for each way of answering: one pass through the means, or draws.
In a file's metadata: {"logit_temperature": {"mean": T, "draws": T}, "conformal": {"alpha": A, "mean": Q, "draws": Q}}.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

_NAME = "pocketbayes_scales"  # of the model's attribute


class Scale(NamedTuple):
    """What one way of answering is scaled by."""

    temperature: float = (
        1.0  # logits are divided by it, the noise variance of a regression is multiplied by it
    )
    quantile: float | None = None  # of the conformal scores: the largest score of a class that is in the set


class Scales(NamedTuple):
    """Those of both ways of answering."""

    mean: Scale = Scale()
    draws: Scale = Scale()
    alpha: float | None = None  # how often prediction sets may miss the truth

    def metadata(self) -> dict[str, Any]:
        """As JSON, in six digits; what was not chosen is left out."""
        found: dict[str, Any] = {}
        if (self.mean.temperature, self.draws.temperature) != (1.0, 1.0):
            found["logit_temperature"] = _both(self.mean.temperature, self.draws.temperature)
        if self.alpha is not None and self.mean.quantile is not None and self.draws.quantile is not None:
            found["conformal"] = {"alpha": self.alpha, **_both(self.mean.quantile, self.draws.quantile)}
        return found


def read_scales(metadata: Mapping[str, Any]) -> Scales:
    """Those in a file's metadata, checked; a ValueError says what is wrong."""
    temperature, conformal = metadata.get("logit_temperature"), metadata.get("conformal")
    if temperature is None and conformal is None:
        return Scales()
    mean, draws = (1.0, 1.0) if temperature is None else _read("logit_temperature", temperature)
    if min(mean, draws) <= 0:
        raise ValueError("logit_temperature must be positive")
    if conformal is None:
        return Scales(Scale(mean), Scale(draws))
    quantiles, alpha = _read("conformal", conformal), _number("conformal", conformal.get("alpha"))
    if not 0 < alpha < 1:
        raise ValueError("conformal: alpha must be between 0 and 1")
    return Scales(Scale(mean, quantiles[0]), Scale(draws, quantiles[1]), alpha)


def scales_of(model: object) -> Scales:
    """Those that the model was given, or none."""
    found: Scales = getattr(model, _NAME, Scales())
    return found


def give_scales(model: object, scales: Scales) -> None:
    """Let the model answer with them from now on."""
    if hasattr(model, _NAME) or scales != Scales():
        setattr(model, _NAME, scales)


def _both(mean: float, draws: float) -> dict[str, float]:
    return {"mean": float(f"{mean:.6g}"), "draws": float(f"{draws:.6g}")}


def _read(name: str, given: Any) -> tuple[float, float]:
    if not isinstance(given, Mapping):
        raise ValueError(f'{name} must be {{"mean": ..., "draws": ...}}')
    return _number(name, given.get("mean")), _number(name, given.get("draws"))


def _number(name: str, value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise ValueError(f"{name} needs numbers of at least 0, got {value!r}"[:200])
    return float(value)
