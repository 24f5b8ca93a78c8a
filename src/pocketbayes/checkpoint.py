"""Checkpoints of long work: nested tensors and numbers in one safetensors file, without pickle."""

from __future__ import annotations

import json
import os
from typing import Any

import torch
from torch import Tensor

from pocketbayes.errors import ArtifactError
from pocketbayes.files import write_atomically


def save_checkpoint(path: str | os.PathLike[str], tree: Any) -> None:
    """Nested dicts, lists and tuples of tensors, numbers and strings as one safetensors file, atomically."""
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    names: dict[Any, str] = {}
    layout = _pack(tree, tensors, names)
    if not tensors:
        tensors["empty"] = torch.zeros(0)
    write_atomically(path, save(tensors, metadata={"pocketbayes": json.dumps(layout)}))


def load_checkpoint(path: str | os.PathLike[str]) -> Any:
    """What `save_checkpoint` wrote; nothing in the file is executed."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            layout = json.loads((file.metadata() or {})["pocketbayes"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise ArtifactError(
            f"{path}: not a pocketbayes checkpoint, or a damaged one ({error}). Delete it to start afresh."
        ) from error
    return _unpack(layout, tensors)


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
