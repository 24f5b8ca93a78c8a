"""Checkpoints say when they are damaged; nothing but an `ArtifactError` comes out of a bad one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from pocketbayes.errors import ArtifactError
from pocketbayes.runs.checkpoint import checksum, fingerprint, load_checkpoint, save_checkpoint

TREE = {
    "weights": torch.arange(40.0).reshape(5, 8),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "flags": [torch.tensor(True), (1, 2.5, None, float("inf"))],
    3: {"nothing": torch.zeros(0), "name": "x"},
}


def same(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return a == b


def test_a_checkpoint_comes_back_to_the_bit(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "c", TREE)
    assert same(TREE, load_checkpoint(tmp_path / "c"))


def test_every_flipped_bit_is_noticed_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "c"
    save_checkpoint(path, TREE)
    whole, noticed = path.read_bytes(), 0
    flips = range(0, 8 * len(whole), 7)
    for bit in flips:
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        try:
            assert same(TREE, load_checkpoint(path)), bit
        except ArtifactError:
            noticed += 1
    assert noticed > 0.95 * len(flips)


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


BAD = {
    "no layout": None,
    "no JSON": "{",
    "a tensor that is not there": json.dumps({"tensor": "t9"}),
    "no name of a tensor": json.dumps({"tensor": [1]}),
    "no pairs": json.dumps({"dict": [[1, 2, 3]]}),
    "a key that cannot be one": json.dumps({"dict": [[[1], 2]]}),
    "an unknown kind": json.dumps({"set": [1]}),
    "endless nesting": nested(200_000),
}


@pytest.mark.parametrize("layout", BAD.values(), ids=BAD)
def test_a_malformed_checkpoint_is_an_artifact_error_that_names_the_file(
    tmp_path: Path, layout: str | None
) -> None:
    """Even with a good checksum."""
    path, tensors = tmp_path / "c.safetensors", {"t0": torch.zeros(2)}
    metadata = {} if layout is None else {"pocketbayes": layout, "sha256": checksum(tensors, layout)}
    save_file(tensors, path, metadata)
    with pytest.raises(ArtifactError, match=r"c\.safetensors.*Delete it"):
        load_checkpoint(path)


def test_the_fingerprint_sees_every_number_and_every_shape() -> None:
    first, second = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
    second.load_state_dict(first.state_dict())
    assert fingerprint(first) == fingerprint(second)
    with torch.no_grad():
        second.bias[2] += 1e-6
    assert fingerprint(first) != fingerprint(second)
    wide = torch.nn.Linear(3, 4)
    with torch.no_grad():
        wide.weight.copy_(first.weight.reshape(4, 3))
    assert fingerprint(wide) != fingerprint(first)
