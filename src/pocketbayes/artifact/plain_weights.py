"""Plain weights from a file into a network: safetensors, or a state_dict as `torch.save` writes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pocketbayes.artifact.container import MAGIC

_WRAPPERS = ("state_dict", "model_state_dict", "model_state", "model", "net", "weights", "params")
_PREFIXES = ("module.", "_orig_mod.", "model.", "net.")
_SHOWN = 3  # tensors named in an error


def is_pocket(path: Path) -> bool:
    """Whether the file is a pocket file, by its first bytes."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path}: not a file.")
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def load_weights(network: nn.Module, path: Path) -> None:
    """The tensors of a safetensors file or a state_dict into the network, which they must fit."""
    own = {name: t for name, t in network.state_dict().items() if isinstance(t, Tensor)}
    state = _without_prefix(read_state(path), own)
    absent = [n for n in own if n not in state and not n.endswith("num_batches_tracked")]
    extra = [n for n in state if n not in own]
    bent = [
        f"{n} is {_shape(state[n])} in the file, {_shape(own[n])} in the network"
        for n in own
        if n in state and state[n].shape != own[n].shape
    ]
    complaints = [_few("missing", absent), _few("not in the network", extra), _few("of another shape", bent)]
    if any(complaints):
        raise ValueError(f"{path}: does not fit the network; {'; '.join(c for c in complaints if c)}.")
    network.load_state_dict(state, strict=False)


def read_state(path: Path) -> dict[str, Tensor]:
    """Tensors by name; nothing in the file is executed."""
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load

        try:
            return load(path.read_bytes())
        except SafetensorError as error:
            raise ValueError(f"{path}: not a safetensors file ({error}).") from error
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the unpickler executes nothing, but any exception may come out of it
        raise ValueError(
            f"{path}: not a state_dict that torch reads with weights_only=True. Save one with "
            "torch.save(network.state_dict(), FILE), or with safetensors."
        ) from error
    return _unwrapped(path, content)


def _unwrapped(path: Path, content: Any) -> dict[str, Tensor]:
    """The state_dict inside the usual wrappings of a training checkpoint."""
    while isinstance(content, Mapping):
        if content and all(isinstance(value, Tensor) for value in content.values()):
            return dict(content)
        inner = next((content[key] for key in _WRAPPERS if isinstance(content.get(key), Mapping)), None)
        if inner is None:
            break
        content = inner
    raise ValueError(f"{path}: holds no state_dict, that is, names and tensors. Save network.state_dict().")


def _without_prefix(state: dict[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names as the network has them, without what DataParallel, compile or a wrapper put in front of all."""
    for prefix in _PREFIXES:
        if all(name.startswith(prefix) for name in state) and not any(name in own for name in state):
            state = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
    return state


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a number"


def _few(what: str, names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{what}: {', '.join(names[:_SHOWN])}{more}" if names else ""
