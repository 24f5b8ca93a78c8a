"""A network by name, and weights from a file into it."""

from __future__ import annotations

import inspect
import math
import pickle
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pocketbayes.cli.imports import call, function_at, is_path_to_function

if TYPE_CHECKING:
    from torch import Tensor, nn

    from pocketbayes.data import DataSet

NETS = ("digits_net", "lenet", "resnet20", "resnet32", "resnet44", "resnet56")
FACTS = ("num_classes", "out_features", "in_channels", "in_features", "image_size")
WIDEST = 1 << 20  # units in a layer of mlp:64,64
LONGEST = 200  # characters of the widths in mlp:64,64
_WRAPPERS = ("state_dict", "model_state_dict", "model_state", "model", "net", "weights", "params")
_PREFIXES = ("module.", "_orig_mod.", "model.", "net.")
_SHOWN = 3  # tensors named in an error


# --- the architecture ------------------------------------------------------------------------------------------


def builder(spec: str) -> Callable[..., nn.Module]:
    """The function behind `--net`, which may be the user's own."""
    if is_named(spec):
        return named(spec)
    if is_path_to_function(spec):
        return function_at(spec, "--net")
    near = get_close_matches(spec, (*NETS, "mlp"), n=1, cutoff=0.0)[0]
    raise typer.BadParameter(
        f"--net {spec}: no network of that name; the nearest is {near!r}. Your own is package.module:function"
    )


def is_named(spec: str) -> bool:
    """Whether it is one of the library's own networks; only these are built because a file says so."""
    return spec in NETS or spec.partition(":")[0] == "mlp"


def named(spec: str) -> Callable[..., nn.Module]:
    """One of the library's own networks; nothing is imported that the text names."""
    from pocketbayes import nets

    if not is_named(spec):
        raise ValueError(f"{spec!r} is not one of the library's own networks.")
    if spec in NETS:
        return getattr(nets, spec)  # type: ignore[no-any-return]
    return partial(_mlp, hidden=_widths(spec))


def arguments_for(function: Callable[..., Any], data: DataSet) -> dict[str, Any]:
    """Those of the facts about the data that the function has a keyword argument for."""
    return taken(function, facts_of(data.shape, data.num_outputs))


def facts_of(shape: tuple[int, ...], outputs: int | None = None) -> dict[str, int]:
    """What an architecture may want to know of its data."""
    facts = {} if outputs is None else {"num_classes": outputs, "out_features": outputs}
    facts |= {"in_channels": shape[0], "in_features": math.prod(shape)}
    if len(shape) == 3 and shape[1] == shape[2]:
        facts["image_size"] = shape[1]
    return facts


def taken(function: Callable[..., Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts that are named parameters of the function."""
    names = inspect.signature(function).parameters
    return {name: value for name, value in facts.items() if name in names}


def build(spec: str, arguments: Mapping[str, Any]) -> nn.Module:
    """The network, untrained."""
    from torch import nn

    network = call(builder(spec), spec, "--net", **arguments)
    if not isinstance(network, nn.Module):
        raise ValueError(f"--net {spec}: the function returned {type(network).__name__}, not an nn.Module.")
    return network


def _mlp(hidden: tuple[int, ...], in_features: int, out_features: int = 1) -> nn.Module:
    from torch.nn import Flatten, Sequential

    from pocketbayes.nets import mlp

    return Sequential(Flatten(), *mlp([in_features, *hidden, out_features]))


def _widths(spec: str) -> tuple[int, ...]:
    text = spec.partition(":")[2] or "64,64"
    parts = text.split(",") if len(text) <= LONGEST else [""]
    widths = tuple(int(width) if width.strip().isdecimal() else 0 for width in parts)
    if not 0 < min(widths) <= max(widths) <= WIDEST:
        raise typer.BadParameter(f"--net {spec[:40]}: write hidden widths as mlp:64,64")
    return widths


# --- its weights -----------------------------------------------------------------------------------------------


def is_pocket(path: Path) -> bool:
    """Whether the file is a pocket file, by its first bytes."""
    from pocketbayes.artifact.container import MAGIC

    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def load_weights(network: nn.Module, path: Path) -> None:
    """The tensors of a safetensors file or a state_dict into the network, which they must fit."""
    from torch import Tensor

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
    import torch

    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load

        try:
            return load(path.read_bytes())
        except SafetensorError as error:
            raise ValueError(f"{path}: not a safetensors file ({error}).") from error
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise ValueError(
            f"{path}: not a state_dict that torch reads with weights_only=True. Save one with "
            "torch.save(network.state_dict(), FILE), or with safetensors."
        ) from error
    return _unwrapped(path, content)


def _unwrapped(path: Path, content: Any) -> dict[str, Tensor]:
    """The state_dict inside the usual wrappings of a training checkpoint."""
    from torch import Tensor

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
