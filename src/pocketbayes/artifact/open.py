"""`open`: a file by what it says about itself, in a network that it or the user names."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from pocketbayes import nets
from pocketbayes.artifact.card import Card, read_card
from pocketbayes.artifact.container import disassemble, read_file
from pocketbayes.artifact.network_predictor import NetworkPredictor
from pocketbayes.artifact.plain_weights import is_pocket, load_weights
from pocketbayes.artifact.reader import read_header
from pocketbayes.artifact.store import load
from pocketbayes.errors import NetworkNotGivenError
from pocketbayes.prediction.scales import give_scales

Net = str | nn.Module | Callable[..., nn.Module]
Shapes = dict[str, tuple[int, ...]]  # of the file's tensors


def open(path: str | os.PathLike[str], net: Net | None = None) -> NetworkPredictor:
    """What `pb.open` does in torch."""
    path = Path(path)
    card, network = _planned(path, net)
    if is_pocket(path):
        network = load(path, network)
    else:
        load_weights(network, path)
        give_scales(network, card.scales)
    return NetworkPredictor(model=network.eval(), card=card)


def open_network(path: str | os.PathLike[str], net: Net | None = None) -> nn.Module:
    """The plain network that `open` would put the file into, new."""
    return _planned(Path(path), net)[1]


def _planned(path: Path, net: Net | None) -> tuple[Card, nn.Module]:
    """The file's card, and the network for it."""
    metadata, shapes = _told_by_pocket(path) if is_pocket(path) else _told_by_safetensors(path)
    card = read_card(path, metadata)
    if unknown := [key for key in card.args if key not in nets.FACTS]:
        raise ValueError(
            f"{path}: its metadata do not say how to use it: args must be some of {', '.join(nets.FACTS)}, "
            f"not {unknown[0][:80]!r}."
        )
    return card, _network(path, card, net, shapes)


def _network(path: Path, card: Card, net: Net | None, shapes: Shapes) -> nn.Module:
    """The user's network, or the one that the file names if that is one of the library's own."""
    if isinstance(net, nn.Module):
        return net
    if net is not None and not isinstance(net, str):
        return net(**nets.taken(net, nets.facts_of(card.shape, card.outputs) | card.args))
    name = card.net if net is None else net
    if name is None:
        raise NetworkNotGivenError(
            f"{path} does not name its network: give it (net=, or --net of a command)."
        )
    if not nets.is_name(name):
        raise NetworkNotGivenError(
            f"{path} names the network {name[:80]!r}, which is not one of the library's own. A file is data: the code "
            "that it names is not run. Give the network yourself (net=, or --net of a command)."
        )
    return _of_library(path, card, name, shapes)


def _of_library(path: Path, card: Card, name: str, shapes: Shapes) -> nn.Module:
    """One of the library's networks, planned without memory first: it must be no larger than the file's tensors."""
    function = nets.by_name(name)
    args = nets.taken(function, nets.facts_of(card.shape, card.outputs) | card.args)
    try:
        with torch.device("meta"):
            planned = {key: tuple(t.shape) for key, t in function(**args).state_dict().items()}
    except (TypeError, RuntimeError) as error:  # an argument is missing, or a tensor is beyond all memory
        raise ValueError(f"{path}: {name} cannot be built from its card ({error}).") from error
    for key, shape in planned.items():
        found = shapes.get(key, shape if key.endswith("num_batches_tracked") else "absent")
        if shape != found:
            raise ValueError(f"{path}: does not fit {name}: {key} is {found} in the file, not {shape}.")
    return function(**args)


def _told_by_pocket(path: Path) -> tuple[dict[str, Any], Shapes]:
    """A pocket file's metadata and the shapes of its tensors, from its header alone."""
    where = str(path)
    data = read_file(path)
    head = read_header(disassemble(data, where), len(data), where)
    return head.notes["metadata"], {row.name: row.shape for row in head.modes[0] if row.kind != "t"}


def _told_by_safetensors(path: Path) -> tuple[dict[str, Any], Shapes]:
    """The same of a safetensors file; nothing else of it is read."""
    try:
        with safe_open(path, framework="np") as file:
            told = (file.metadata() or {}).get("pocketbayes", "{}")
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path}: neither a pocket file nor safetensors ({error}).") from error
    try:
        found = json.loads(told)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: its metadata are not JSON ({error}).") from error
    return found if isinstance(found, dict) else {}, shapes
