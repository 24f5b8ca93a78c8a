"""Checkpoints of long work: nested tensors and numbers in one safetensors file, without pickle."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

import torch
from torch import Tensor, nn

from pocketbayes.errors import ArtifactError
from pocketbayes.runs.files import write_atomically


def save_checkpoint(path: str | os.PathLike[str], tree: Any) -> None:
    """Nested dicts, lists and tuples of tensors, numbers and strings as one safetensors file, atomically."""
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    names: dict[Any, str] = {}
    layout = json.dumps(_pack(tree, tensors, names))
    if not tensors:
        tensors["empty"] = torch.zeros(0)
    metadata = {"pocketbayes": layout, "sha256": checksum(tensors, layout)}
    write_atomically(path, save(tensors, metadata=metadata))


def load_checkpoint(path: str | os.PathLike[str]) -> Any:
    """What `save_checkpoint` wrote, to the bit; nothing in the file is executed.

    A file that is damaged or something else gives an `ArtifactError`.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if checksum(tensors, metadata["pocketbayes"]) != metadata["sha256"]:
            raise ValueError("its checksum is wrong")
        return _unpack(json.loads(metadata["pocketbayes"]), tensors)
    except (
        SafetensorError,
        KeyError,
        TypeError,
        ValueError,
        IndexError,
        RuntimeError,
        RecursionError,
    ) as error:
        raise ArtifactError(
            f"{path}: not a pocketbayes checkpoint, or a damaged one ({type(error).__name__}: {error}). "
            "Delete it to start afresh."
        ) from error


def fingerprint(model: nn.Module) -> str:
    """SHA-256 of all that the model's state holds, shortened: enough to tell whether it is the same one."""
    return checksum(model.state_dict())[:16]


def checksum(named: dict[str, Any], told: str = "") -> str:
    """SHA-256 of tensors (or other values) with their names, types and shapes, and of what is told of them."""
    found = hashlib.sha256(told.encode())
    for name, value in sorted(named.items()):
        if isinstance(value, Tensor):
            found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            found.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
        else:
            found.update(f"{name} {value!r}".encode())
    return found.hexdigest()


def _pack(tree: Any, tensors: dict[str, Tensor], names: dict[Any, str]) -> Any:
    if isinstance(tree, Tensor):
        # Tied tensors share memory and are written once.
        key = (tree.data_ptr(), tree.shape, tree.stride(), tree.dtype) if tree.numel() else len(names)
        if key not in names:
            names[key] = f"t{len(names)}"
            tensors[names[key]] = tree.detach().cpu().contiguous()
        return {"tensor": names[key]}
    if isinstance(tree, dict):
        return {"dict": [[_pack(k, tensors, names), _pack(v, tensors, names)] for k, v in tree.items()]}
    if isinstance(tree, tuple):
        return {"tuple": [_pack(v, tensors, names) for v in tree]}
    if isinstance(tree, list):
        return [_pack(v, tensors, names) for v in tree]
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree
    raise TypeError(f"A checkpoint holds tensors, numbers and strings, not {type(tree).__name__}: {tree!r}.")


def _unpack(layout: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(layout, list):
        return [_unpack(v, tensors) for v in layout]
    if not isinstance(layout, dict):
        return layout
    if "tensor" in layout:
        return tensors[layout["tensor"]]
    if "tuple" in layout:
        return tuple(_unpack(v, tensors) for v in layout["tuple"])
    return {_unpack(k, tensors): _unpack(v, tensors) for k, v in layout["dict"]}
