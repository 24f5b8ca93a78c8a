"""Checkpoints of long work: nested tensors and numbers in one safetensors file, without pickle."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
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


def claim(file: Path, ours: dict[str, str]) -> None:
    """Note in `file` what the run is whose checkpoints lie beside it, by name, or refuse those of another run."""
    if not file.exists():
        write_atomically(file, json.dumps(ours).encode())
        return
    try:
        theirs = dict(json.loads(file.read_text()))
    except (ValueError, TypeError) as error:
        raise ArtifactError(f"{file}: damaged ({error}). Delete its folder to start afresh.") from error
    changed = [
        f"{name} was {theirs.get(name)}, is {now}" for name, now in ours.items() if theirs.get(name) != now
    ]
    if changed:
        raise ArtifactError(
            f"{file.parent}: the checkpoints are of another run ({'; '.join(changed[:4])}). "
            "Call compress with the same network and arguments to go on, or give another folder to start afresh."
        )


def fingerprint(model: nn.Module) -> str:
    """SHA-256 of all that the model's state holds, shortened: enough to tell whether it is the same one."""
    found = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        raw = (
            value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
            if isinstance(value, Tensor)
            else b""
        )
        found.update(name.encode() + (raw or repr(value).encode()))
    return found.hexdigest()[:16]


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
