"""What is fuzzed: how a mutant is made, and what is tried with it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch

import pocketbayes as pb
from fuzz import corpus, formats, mutate, tensors
from pocketbayes.artifact import decode, encode, graph, inspect, sample_weights
from pocketbayes.artifact.from_pocket import from_pocket
from pocketbayes.drawing import WhichDraw
from pocketbayes.errors import ArtifactError
from pocketbayes.posterior.draws import NumberedDraw
from pocketbayes.posterior.weights import stochastic_weights
from pocketbayes.runs.checkpoint import load_checkpoint

WARM = 200  # mutants before the first that is judged


class Mutant(NamedTuple):
    """A file, and what shall be tried with it."""

    seed: str
    data: bytes
    attempt: Callable[[], Any]


class Target(NamedTuple):
    """`make(rng, folder)` is a mutant; a program may meet it with one of `clean`, and with nothing else."""

    clean: tuple[type[Exception], ...]
    make: Callable[[Random, Path], Mutant]


def pocket(rng: Random, folder: Path) -> Mutant:
    """Decoded always; written again, summarised, loaded, drawn from or opened now and then."""
    seeds = corpus.seeds()
    seed = rng.choice(seeds)
    data = mutate.pocket(seed.data, rng, [s.data for s in seeds])
    kind, number = rng.randrange(16), rng.randrange(3)

    def attempt() -> None:
        if seed.name in ("card", "graph") and kind < 4:
            path = folder / "mutant.pocket"
            path.write_bytes(data)
            pb.open(path)
            return
        found = decode(data)
        if found.graph:
            graph.read(found)
        if kind < 3:
            written = encode(found).data
            assert encode(decode(written)).data == written, "what is read is not what is written"
        elif kind == 3:
            inspect(data)
        elif kind == 4:
            sample_weights(found, seed=1, number=number)
        elif kind < 7:
            load(found, seed.network)

    return Mutant(seed.name, data, attempt)


def load(found: Any, network: corpus.Make) -> None:
    """Into a plain network, which a refusal leaves as it was; then one draw of every weight."""
    model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    try:
        loaded = from_pocket(found, model)
    except ArtifactError:
        after = model.state_dict()
        same = before.keys() == after.keys() and all(torch.equal(after[k], v) for k, v in before.items())
        assert same, "the model was touched and the file then refused"
        raise
    for site in stochastic_weights(loaded):
        weight = site.weight
        drawn = weight.sample(site.original, NumberedDraw(WhichDraw.of(0, 0), {weight.index: site.path}))
        assert drawn.shape == site.shape, "a draw of another shape"


def checkpoint(rng: Random, folder: Path) -> Mutant:
    """Read always; gone on from now and then."""
    data, kind = tensors.broken_checkpoint(rng), rng.randrange(4)
    path = folder / "checkpoint.safetensors"

    def attempt() -> None:
        if kind == 0:
            tensors.resumed(data, path)
        else:
            path.write_bytes(data)
            load_checkpoint(path)

    return Mutant("checkpoint", data, attempt)


def weights(rng: Random, folder: Path) -> Mutant:
    """Plain weights, opened by their card or put into a network."""
    suffix = rng.choice([".safetensors", ".safetensors", ".pt"])
    data = tensors.broken_weights(suffix, rng)
    return Mutant(suffix, data, lambda: tensors.opened(data, folder / f"weights{suffix}"))


def data(rng: Random, folder: Path) -> Mutant:
    """What a data set, an input or a record may be read from."""
    kind = rng.choice(formats.KINDS)
    broken = formats.broken(kind, rng)
    return Mutant(kind, broken, lambda: formats.read(kind, broken, folder))


TARGETS = {
    "pocket": Target((ArtifactError, ValueError), pocket),
    "checkpoint": Target((ArtifactError,), checkpoint),
    "weights": Target((ValueError,), weights),
    "data": Target((ValueError,), data),
}


def warm_up(target: Target, name: str, seed: int, folder: Path) -> None:
    """Some mutants that nobody judges: modules are imported, tables made."""
    for number in range(WARM):
        with contextlib.suppress(Exception):
            target.make(Random(f"{seed} {name} {number}"), folder).attempt()
