"""The card in a pocket file: what it takes to use the file, as compact metadata.

{"net": "resnet20", "args": {...}, "shape": [3, 32, 32], "scale": [[means], [deviations], full],
 "classes": 10 or [names] | "target": [[means], [deviations]], "noise_sigma": ..., "unsure": threshold}
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from pocketbayes.cli.network import build, is_pocket, load_weights

if TYPE_CHECKING:
    from torch import nn

    from pocketbayes.data import DataSet, Scaling
    from pocketbayes.likelihood import Likelihood


class Card(NamedTuple):
    """What a file says about its use."""

    net: str | None
    args: dict[str, Any]
    shape: tuple[int, ...]  # of one input
    scaling: Scaling
    classes: tuple[str, ...] | None  # None for regression
    target_scaling: Scaling | None = None
    sigma: float | None = None  # of the Gaussian likelihood, on the scale of the network's output
    unsure: float | None = None  # the smallest confidence that counts as sure

    def likelihood(self) -> Likelihood:
        from pocketbayes.likelihood import Categorical, Homoscedastic

        return Categorical() if self.classes is not None else Homoscedastic(self.sigma or 1.0, learned=True)

    def require_fit(self, path: Path, data: DataSet) -> None:
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
        found["scale"] = [*_lists(self.scaling), self.scaling.full]
        if self.classes is not None:
            numbered = self.classes == tuple(map(str, range(len(self.classes))))
            found["classes"] = len(self.classes) if numbered else list(self.classes)
        if self.target_scaling is not None:
            found["target"] = _lists(self.target_scaling)
        found |= {"noise_sigma": self.sigma, "unsure": self.unsure}
        return {key: value for key, value in found.items() if value not in (None, {}, [])}


class Opened(NamedTuple):
    """A file in use."""

    model: nn.Module
    card: Card


def card_of(net: str, args: dict[str, Any], data: DataSet) -> Card:
    """The card of a network for that data, before sigma and the threshold are known."""
    return Card(net, args, data.shape, data.scaling, data.classes, data.target_scaling)


def read_card(path: Path, metadata: dict[str, Any]) -> Card:
    """The card in a file's metadata, checked."""
    try:
        mean, std, full = metadata["scale"]
        classes = metadata.get("classes")
        named = tuple(map(str, range(classes) if isinstance(classes, int) else classes or ()))
        target = metadata.get("target")
        return Card(
            net=metadata.get("net"),
            args=dict(metadata.get("args", {})),
            shape=tuple(int(size) for size in metadata["shape"]),
            scaling=_scaling(mean, std, full),
            classes=None if classes is None else named,
            target_scaling=None if target is None else _scaling(*target),
            sigma=_optional(metadata.get("noise_sigma")),
            unsure=_optional(metadata.get("unsure")),
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ValueError(
            f"{path}: its metadata do not say how to use it ({type(error).__name__}: {error}). "
            "Files written by `pocketbayes compress` and `pocketbayes train --bayesian` do."
        ) from error


def open_pocket(path: Path, net: str | None = None) -> Opened:
    """The posterior of a pocket file in the network that it names, or in `net`."""
    from pocketbayes.artifact import decode
    from pocketbayes.artifact.store import load

    card = _named(path, read_card(path, decode(path).metadata), net)
    return Opened(load(path, build(str(card.net), card.args)).eval(), card)


def open_model(path: Path, net: str | None = None) -> Opened:
    """A pocket file, or plain weights that `pocketbayes train` wrote."""
    if is_pocket(path):
        return open_pocket(path, net)
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            told = (file.metadata() or {}).get("pocketbayes", "{}")
    except SafetensorError as error:
        raise ValueError(f"{path}: neither a pocket file nor safetensors ({error}).") from error
    card = _named(path, read_card(path, json.loads(told)), net)
    network = build(str(card.net), card.args)
    load_weights(network, path)
    return Opened(network.eval(), card)


def _named(path: Path, card: Card, net: str | None) -> Card:
    """The card with the network that is to be built."""
    if net is None and card.net is None:
        raise typer.BadParameter(f"{path} does not name its network: give --net")
    return card._replace(net=net or card.net)


def _lists(scaling: Scaling) -> list[list[float]]:
    """Means and deviations; float32 values are written with the six digits that they have."""
    return [[float(f"{v:.6g}") for v in t.tolist()] for t in (scaling.mean, scaling.std)]


def _scaling(mean: list[float], std: list[float], full: float = 1.0) -> Scaling:
    import torch

    from pocketbayes.data import Scaling

    if len(mean) != len(std) or not mean or min(std) <= 0:
        raise ValueError("means and deviations do not fit")
    return Scaling(
        torch.tensor(mean, dtype=torch.float32), torch.tensor(std, dtype=torch.float32), float(full)
    )


def _optional(value: Any) -> float | None:
    return None if value is None else float(value)
