"""`save`, `load`, `read`: a model's posterior to and from a pocket file.  The torch side of the format."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pocketbayes.artifact.dense import moments_of
from pocketbayes.artifact.format import encode
from pocketbayes.artifact.from_pocket import from_pocket, require_match
from pocketbayes.artifact.numbers import Array
from pocketbayes.artifact.pocket import Plain, Pocket, Precision, Tied
from pocketbayes.artifact.reader import decode
from pocketbayes.artifact.to_graph import Exported, export_or_warn, plain_of, with_graph
from pocketbayes.artifact.to_pocket import to_pocket
from pocketbayes.errors import ArtifactError
from pocketbayes.moments import Moments
from pocketbayes.posterior.weights import stochastic_weights
from pocketbayes.prediction.scales import give_scales, read_scales
from pocketbayes.runs.files import write_atomically

USUAL_MODES = 8  # more are loaded where the caller allows for them
NOISE_TABLES = 1 << 20  # numbers that a file may hold beside the model's own: the law of a measured device


class Saved(NamedTuple):
    """What `save` wrote."""

    total: int  # bytes of the file
    sections: dict[str, int]  # bytes by section
    no_graph: str = ""  # why the network's graph is not in the file, though an example was given

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {size:,}" for name, size in self.sections.items())
        return f"{self.total:,} bytes ({parts})" + (f"; no graph: {self.no_graph}" if self.no_graph else "")


def save(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    precision: Precision = Precision(),
    priors: bool = False,
    metadata: Mapping[str, Any] | None = None,
    example: Any = None,
) -> Saved:
    """Write the posterior to one file, atomically; a model of any kind, at any stage.

    Args:
        model: a posterior.
        path: where the file goes.
        precision: bits of each number; 16 by default (relative error 2^-11, sigmas 2^-9), `FLOAT32` for all 32.
        priors: store the priors too, for those who train on.
        metadata: anything JSON: class names, normalisation, a threshold. What `calibrate` and `conformal` have found is
            added to it.
        example: inputs that the model takes, a tensor or a tuple or dict of them: the file gets the network's graph,
            and answers without torch. A network that cannot be exported is saved without, with a warning.

    Returns:
        Bytes of the file, in all and by section.

    Examples:
        >>> model = pb.bayesianize(pb.nets.mlp([16, 64, 8]))
        >>> saved = pb.save(model, "mlp.pocket", metadata={"classes": ["cat", "dog"]})
        >>> loaded = pb.load("mlp.pocket", pb.nets.mlp([16, 64, 8]))
    """
    pocket = to_pocket(model, precision=precision, priors=priors, metadata=metadata)
    found = Exported(b"") if example is None else export_or_warn(pocket, model, example)
    return write(replace(pocket, graph=found.graph), path, found.why_not)


def write(pocket: Pocket, path: str | os.PathLike[str], no_graph: str = "") -> Saved:
    """Write what `save` would."""
    encoded = encode(pocket)
    write_atomically(path, encoded.data)
    return Saved(len(encoded.data), encoded.sizes, no_graph)


def add_graph(path: str | os.PathLike[str], model: nn.Module, example: Any) -> Saved:
    """Give a file the graph of its network, in place; all else in it stays.

    Args:
        path: the file that `save` wrote.
        model: the architecture, plain or with the file loaded.
        example: inputs that it takes, a tensor or a tuple or dict of them; two are enough.

    Returns:
        Bytes of the file, in all and by section. ArtifactError if the network cannot be exported.

    Examples:
        >>> _ = pb.save(pb.bayesianize(pb.nets.mlp([4, 16, 3])), "mlp.pocket")
        >>> "GRAF" in pb.add_graph("mlp.pocket", pb.nets.mlp([4, 16, 3]), torch.ones(1, 4)).sections
        True
    """
    return write(graphed(decode(path), model, example, str(path)), path)


def graphed(pocket: Pocket, model: nn.Module, example: Any, where: str = "pocket") -> Pocket:
    """The pocket with the graph of a model that was seen to be of its architecture."""
    plain = plain_of(model)
    require_match(where, pocket, plain)
    return with_graph(pocket, plain, example)


def load(path: str | os.PathLike[str], model: nn.Module, *, max_weights: int | None = None) -> nn.Module:
    """Rebuild a saved posterior in a freshly built, plain model of its architecture, in place.

    Everything in the file is checked, against itself and against the model, before the model is touched: an error
    leaves it as it came.  Shared weights are never unpacked.  The model answers with the temperatures in the file.

    Args:
        path: the file that `save` wrote.
        model: the plain architecture, on its device and in its type.
        max_weights: refuse files with more elements, in all modes; by default those of the model eight times, and some
            for its noise.

    Returns:
        The model that was given, Bayesian; of a file with several modes `Modes`, the first of which is that model, and
        the others copies of it.

    Examples:
        >>> model = pb.bayesianize(pb.nets.mlp([4, 3]))
        >>> _ = pb.save(model, "small.pocket")
        >>> loaded = pb.load("small.pocket", pb.nets.mlp([4, 3]))
        >>> len(pb.describe(loaded))
        2
    """
    if stochastic_weights(model):
        raise ValueError("load needs the plain architecture, freshly built; this model is Bayesian already.")
    if max_weights is None:
        size = sum(t.numel() for t in chain(model.parameters(), model.buffers()))
        max_weights = NOISE_TABLES + USUAL_MODES * size
    pocket = decode(path, max_weights=max_weights)
    try:
        scales = read_scales(pocket.metadata)
    except ValueError as error:
        raise ArtifactError(f"{path}: metadata: {error}") from error
    loaded = from_pocket(pocket, model, str(path))
    give_scales(loaded, scales)
    return loaded


def read(
    path: str | os.PathLike[str], *, mode: int = 0, max_weights: int | None = None
) -> dict[str, Tensor | Moments[Tensor]]:
    """The tensors of a file without a model.

    Args:
        path: the file that `save` wrote.
        mode: whose tensors, of a posterior with several.
        max_weights: refuse files with more elements; by default 2^20 and 256 more for each byte of the file.

    Returns:
        By name `Moments(mu, sigma)` in the tensor's shape (sigma is 0 where a weight is fixed), or a plain tensor.

    Examples:
        >>> _ = pb.save(pb.bayesianize(nn.Linear(4, 3)), "linear.pocket")
        >>> tensors = pb.read("linear.pocket")
        >>> tensors["weight"].sigma.shape, tensors["bias"].shape
        (torch.Size([3, 4]), torch.Size([3]))
    """
    pocket = decode(path, max_weights=max_weights)
    if not 0 <= mode < len(pocket.modes):
        raise ValueError(f"{path}: has the modes 0 to {len(pocket.modes) - 1}, not {mode}.")
    pocket = pocket.mode(mode)
    found: dict[str, Tensor | Moments[Tensor]] = {}
    for name, entry in pocket.tensors.items():
        if not isinstance(entry, Tied):
            mu, sigma = (_tensor(part, entry.dtype) for part in moments_of(pocket, name))
            found[name] = mu if isinstance(entry, Plain) else Moments(mu, sigma)
    return {n: found[e.target if isinstance(e, Tied) else n] for n, e in pocket.tensors.items()}


def _tensor(values: Array, dtype: str) -> Tensor:
    return torch.tensor(values, dtype=getattr(torch, dtype))
