"""Checkpoints and plain weights: safetensors with right checksums, and the zip files of torch.save."""

from __future__ import annotations

import contextlib
import io
import json
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

import pocketbayes as pb
from fuzz import mutate, zips
from fuzz.corpus import CARD, flat_mlp
from pocketbayes.artifact.plain_weights import load_weights
from pocketbayes.runs.checkpoint import _pack, checksum, load_checkpoint


class Killed(Exception):
    """A run that ends before its time."""


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return pb.bayesianize(pb.nets.mlp([3, 4, 2]))


def train(model: nn.Module, path: Path, on_step: Callable[[int], None] | None = None) -> None:
    """A run of four steps with a checkpoint at each."""
    x = torch.linspace(-1, 1, 24).view(8, 3)
    loader = pb.data.BatchLoader(x, (x.sum(1) > 0).long(), 4)
    pb.fit(model, loader, epochs=2, checkpoint=path, checkpoint_seconds=0.0, progress=False, on_step=on_step)


@cache
def checkpoint() -> bytes:
    """What a run killed at its third step leaves."""

    def stop(step: int) -> None:
        if step == 3:
            raise Killed

    with TemporaryDirectory() as folder:
        path = Path(folder) / "c.safetensors"
        with contextlib.suppress(Killed):
            train(network(), path, stop)
        return path.read_bytes()


def taken_apart(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The header of a safetensors file, and the bytes of its tensors."""
    (size,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def put_together(header: dict[str, Any], tensors: bytes) -> bytes:
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(text)) + text + tensors


@cache
def tree() -> Any:
    with TemporaryDirectory() as folder:
        (path := Path(folder) / "c").write_bytes(checkpoint())
        return load_checkpoint(path)


def broken_checkpoint(rng: Random) -> bytes:
    """With a right checksum: another tree, another layout; or the bytes of the file changed."""
    kind = rng.random()
    if kind < 0.2:
        return mutate.bytes_(checkpoint(), rng)
    if kind < 0.35:
        header, tensors = taken_apart(checkpoint())
        return put_together(mutate.json_(header, rng), tensors)
    tensors: dict[str, Tensor] = {}
    found = branch(tree(), rng) if kind < 0.8 else tree()
    layout = _pack(found, tensors, {})
    for _ in range(rng.choice([0, 1, 1, 2]) if kind > 0.6 else 0):
        layout = mutate.json_(layout, rng)
    text = json.dumps(layout)
    tensors = tensors or {"empty": torch.zeros(0)}
    return save(tensors, metadata={"pocketbayes": text, "sha256": checksum(tensors, text)})


def branch(value: Any, rng: Random) -> Any:
    """The same tree of tensors with one of them, or another value, changed."""
    if isinstance(value, dict) and value and rng.random() < 0.95:
        key = rng.choice(list(value))
        if rng.random() < 0.05:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: branch(value[key], rng)}
    if isinstance(value, (list, tuple)) and value and rng.random() < 0.95:
        at = rng.randrange(len(value))
        return type(value)([*value[:at], branch(value[at], rng), *value[at + 1 :]])
    if isinstance(value, Tensor):
        kinds: list[Callable[[Tensor], Tensor]] = [
            lambda t: t[..., :0] if t.ndim else t[None],
            lambda t: t.double(),
            lambda t: t.to(torch.int64),
            lambda t: t * 0,
            lambda t: t.reshape(-1),
            lambda t: t.to(torch.complex64),
            lambda t: torch.full_like(t, rng.choice([0, 1, 127])),
        ]
        return rng.choice(kinds)(value)
    plain = value is None or isinstance(value, (bool, int, float, str))
    other = mutate.leaf(value, rng) if plain else rng.choice([None, 0, "x", [], {}])
    return other if not (isinstance(other, int) and abs(other) >= 1 << 63) else 0


def resumed(data: bytes, path: Path) -> None:
    """The run goes on from it, or refuses it and leaves the model as it was."""
    path.write_bytes(data)
    model = network()
    before = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    stepped: list[int] = []
    try:
        train(model, path, stepped.append)
    except pb.errors.ArtifactError:
        assert not stepped, "refused after steps were made"
        after = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
        assert torch.equal(before, after), "the model was touched and the checkpoint then refused"
        raise


# --- plain weights -----------------------------------------------------------------------------------------------


@cache
def weights(suffix: str) -> bytes:
    """A network's weights as `pocketbayes train`, or torch.save, writes them."""
    state = flat_mlp().state_dict()
    if suffix == ".safetensors":
        return save(state, metadata={"pocketbayes": json.dumps(CARD)})
    buffer = io.BytesIO()
    torch.save({"state_dict": state}, buffer)
    return buffer.getvalue()


def broken_weights(suffix: str, rng: Random) -> bytes:
    """Headers and cards that lie; zip members changed under right checksums."""
    data = weights(suffix)
    if rng.random() < 0.15:
        return mutate.bytes_(data, rng)
    if suffix == ".pt":
        return zips.broken(data, rng)
    header, tensors = taken_apart(data)
    told = header["__metadata__"]
    if rng.random() < 0.6:
        told = {"pocketbayes": json.dumps(mutate.json_(json.loads(told["pocketbayes"]), rng))}
        return put_together({**header, "__metadata__": told}, tensors)
    return put_together(mutate.json_(header, rng), tensors)


def opened(data: bytes, path: Path) -> None:
    """As a file of a card, or into a network of the right kind."""
    path.write_bytes(data)
    if path.suffix == ".safetensors":
        pb.open(path)
    else:
        load_weights(flat_mlp(), path)
