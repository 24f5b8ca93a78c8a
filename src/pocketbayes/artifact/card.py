"""The card in a file: what it takes to use the file, as compact metadata, and checked, since a file is data.

{"net": "resnet20", "args": {...}, "shape": [3, 32, 32], "scale": [[means], [standard deviations], full],
 "classes": 10 or [names] | "target": [[means], [standard deviations]], "noise_sigma": ..., "unsure": threshold,
 "logit_temperature": {"mean": ..., "draws": ...}, "conformal": {"alpha": ..., "mean": ..., "draws": ...}}
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pocketbayes.data import Examples, Scaling
from pocketbayes.prediction.scales import Scales, read_scales

if TYPE_CHECKING:
    from pocketbayes.likelihood import Likelihood

MOST = 1 << 20  # classes, channels ... that a file may ask for
LARGEST = 1 << 24  # numbers in one input


class Card(NamedTuple):
    """What a file says about its use."""

    net: str | None  # one of the library's own networks, or a note of whose it is
    args: dict[str, int]  # what that network is built with
    shape: tuple[int, ...]  # of one input
    scaling: Scaling
    classes: tuple[str, ...] | None  # None for regression
    target_scaling: Scaling | None = None
    sigma: float | None = None  # of the Gaussian likelihood, on the scale of the network's output
    unsure: float | None = None  # the smallest confidence that counts as sure
    scales: Scales = Scales()  # what validation data chose for answers

    @property
    def outputs(self) -> int | None:
        """Classes, or regression targets where their scaling tells how many."""
        if self.classes is not None:
            return len(self.classes)
        return None if self.target_scaling is None else len(self.target_scaling.mean)

    def likelihood(self) -> Likelihood:
        """Of the classes, or of regression targets with the card's sigma, which training may change, or finds."""
        from pocketbayes.likelihood import Categorical, Homoscedastic

        return Categorical() if self.classes is not None else Homoscedastic(self.sigma or None, learned=True)

    def require_fit(self, path: Path, data: Examples) -> None:
        """The data must be of the kind that the file was made for."""
        if self.shape != data.shape:
            raise ValueError(
                f"{path}: made for inputs of shape {self.shape}, those of {data.name} are {data.shape}."
            )
        if (self.classes is None) != (data.classes is None) or len(self.classes or ()) != len(
            data.classes or ()
        ):
            kinds = [
                f"{len(c)} classes" if c is not None else "regression" for c in (self.classes, data.classes)
            ]
            raise ValueError(f"{path}: made for {kinds[0]}, {data.name} has {kinds[1]}.")

    def metadata(self) -> dict[str, Any]:
        """As JSON; what is absent is left out."""
        found: dict[str, Any] = {"net": self.net, "args": self.args, "shape": list(self.shape)}
        found["scale"] = [*self.scaling.lists(), self.scaling.full]
        if self.classes is not None:
            numbered = self.classes == tuple(map(str, range(len(self.classes))))
            found["classes"] = len(self.classes) if numbered else list(self.classes)
        if self.target_scaling is not None:
            found["target"] = self.target_scaling.lists()
        found |= {"noise_sigma": self.sigma, "unsure": self.unsure, **self.scales.metadata()}
        return {key: value for key, value in found.items() if value not in (None, {}, [])}


def card_of(net: str, args: dict[str, int], data: Examples) -> Card:
    """The card of a network for that data, before sigma and the threshold are known."""
    return Card(net, args, data.shape, data.scaling, data.classes, data.target_scaling)


def read_card(path: Path, metadata: dict[str, Any]) -> Card:
    """The card in a file's metadata; every part of it is checked."""
    try:
        mean, std, full = metadata["scale"]
        target = metadata.get("target")
        return Card(
            net=_text(metadata.get("net")),
            args=_arguments(metadata.get("args", {})),
            shape=_shape(metadata["shape"]),
            scaling=_scaling(mean, std, full),
            classes=_classes(metadata.get("classes")),
            target_scaling=None if target is None else _scaling(*target),
            sigma=_optional(metadata.get("noise_sigma")),
            unsure=_optional(metadata.get("unsure")),
            scales=read_scales(metadata),
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise ValueError(
            f"{path}: its metadata do not say how to use it ({type(error).__name__}: {error}). "
            "Files written by `pocketbayes compress` and `pocketbayes train --bayesian` do; "
            "in Python give its shape, scale and classes as metadata=, or use `pb.load`."
        ) from error


def _text(given: Any) -> str | None:
    if given is not None and not isinstance(given, str):
        raise ValueError("net must be a name")
    return given


def _arguments(given: Any) -> dict[str, int]:
    """Whole numbers by name."""
    if not all(type(value) is int and 0 < value <= MOST for value in given.values()):
        raise ValueError(f"args must be whole numbers up to {MOST:,}")
    return dict(given)


def _shape(given: Any) -> tuple[int, ...]:
    whole = all(type(size) is int and 0 < size <= MOST for size in given)
    if not (given and whole) or math.prod(given) > LARGEST:
        raise ValueError(f"shape must be one or more whole numbers, at most {LARGEST:,} in all")
    return tuple(given)


def _classes(given: Any) -> tuple[str, ...] | None:
    """The names of the classes, or their numbers where only a count is given."""
    if given is None:
        return None
    if type(given) is int:
        if not 0 < given <= MOST:
            raise ValueError(f"classes must be between 1 and {MOST:,}, got {given}")
        return tuple(map(str, range(given)))
    if not isinstance(given, list) or len(given) > MOST or not all(isinstance(name, str) for name in given):
        raise ValueError("classes must be their number, or their names")
    return tuple(given)


def _scaling(mean: list[float], std: list[float], full: float = 1.0) -> Scaling:
    if len(mean) != len(std) or not mean:
        raise ValueError("means and standard deviations do not fit")
    with np.errstate(over="ignore"):
        means, stds, white = (np.array(values, np.float32) for values in (mean, std, [full]))
    numbers = np.concatenate([means, stds, white])
    if not np.isfinite(numbers).all() or min(stds.min(), white[0]) <= 0:
        raise ValueError("means must be finite and standard deviations positive, in float32")
    return Scaling(means, stds, float(full))


def _optional(value: Any) -> float | None:
    if value is not None and not (type(value) in (int, float) and 0 <= value < math.inf):
        raise ValueError(f"needs a number of at least 0, got {value!r}"[:200])
    return None if value is None else float(value)
