"""`save`, `load`, `read`: a model's posterior to and from a pocket file.  The torch side of the format."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pocketbayes.artifact.dense import moments_of
from pocketbayes.artifact.format import encode
from pocketbayes.artifact.from_pocket import from_pocket
from pocketbayes.artifact.numbers import Array
from pocketbayes.artifact.pocket import Plain, Precision, resolve
from pocketbayes.artifact.reader import MAX_WEIGHTS, decode
from pocketbayes.artifact.to_pocket import to_pocket
from pocketbayes.errors import ArtifactError
from pocketbayes.moments import Moments
from pocketbayes.posterior.weights import stochastic_weights
from pocketbayes.prediction.scales import give_scales, read_scales
from pocketbayes.runs.files import write_atomically

NOISE_TABLES = 1 << 20  # numbers that a file may hold beside the model's own: the law of a measured device


class Saved(NamedTuple):
    """What `save` wrote."""

    total: int  # bytes of the file
    sections: dict[str, int]  # bytes by section

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {size:,}" for name, size in self.sections.items())
        return f"{self.total:,} bytes ({parts})"


def save(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    precision: Precision = Precision(),
    priors: bool = False,
    metadata: Mapping[str, Any] | None = None,
) -> Saved:
    """Write the posterior to one file, atomically; a model of any kind, at any stage.

    Args:
        precision: bits of each number; 16 by default (relative error 2^-11, sigmas 2^-9), `FLOAT32` for all 32.
        priors: store the priors too, for those who train on.
        metadata: anything JSON: class names, normalisation, a threshold. What `calibrate` and `conformal` have found is
            added to it.

    Returns:
        Bytes of the file, in all and by section.

    Example:
        >>> model = pb.bayesianize(pb.nets.mlp([16, 64, 8]))
        >>> saved = pb.save(model, "mlp.pocket", metadata={"classes": ["cat", "dog"]})
        >>> loaded = pb.load("mlp.pocket", pb.nets.mlp([16, 64, 8]))
    """
    encoded = encode(to_pocket(model, precision=precision, priors=priors, metadata=metadata))
    write_atomically(path, encoded.data)
    return Saved(len(encoded.data), encoded.sizes)


def load(path: str | os.PathLike[str], model: nn.Module, *, max_weights: int | None = None) -> nn.Module:
    """Rebuild a saved posterior in a freshly built, plain model of its architecture, in place.

    Everything in the file is checked, against itself and against the model, before the model is touched: an error
    leaves it as it came.  Shared weights are never unpacked.  The model answers with the temperatures in the file.

    Args:
        path: the file that `save` wrote.
        model: the plain architecture, on its device and in its type.
        max_weights: refuse files with more elements; by default those of the model, and some for its noise.

    Returns:
        The model that was given, Bayesian.

    Example:
        >>> model = pb.bayesianize(pb.nets.mlp([4, 3]))
        >>> _ = pb.save(model, "small.pocket")
        >>> loaded = pb.load("small.pocket", pb.nets.mlp([4, 3]))
        >>> len(pb.describe(loaded))
        2
    """
    if stochastic_weights(model):
        raise ValueError("load needs the plain architecture, freshly built; this model is Bayesian already.")
    if max_weights is None:
        max_weights = NOISE_TABLES + sum(t.numel() for t in chain(model.parameters(), model.buffers()))
    pocket = decode(path, max_weights=max_weights)
    try:
        scales = read_scales(pocket.metadata)
    except ValueError as error:
        raise ArtifactError(f"{path}: metadata: {error}") from error
    give_scales(from_pocket(pocket, model, str(path)), scales)
    return model


def read(
    path: str | os.PathLike[str], *, max_weights: int = MAX_WEIGHTS
) -> dict[str, Tensor | Moments[Tensor]]:
    """The tensors of a file without a model.

    Args:
        path: the file that `save` wrote.
        max_weights: refuse files with more elements.

    Returns:
        By name `Moments(mu, sigma)` in the tensor's shape (sigma is 0 where a weight is fixed), or a plain tensor.

    Example:
        >>> _ = pb.save(pb.bayesianize(nn.Linear(4, 3)), "linear.pocket")
        >>> tensors = pb.read("linear.pocket")
        >>> tensors["weight"].sigma.shape, tensors["bias"].shape
        (torch.Size([3, 4]), torch.Size([3]))
    """
    pocket = decode(path, max_weights=max_weights)
    found: dict[str, Tensor | Moments[Tensor]] = {}
    for name in pocket.tensors:
        mu, sigma = (_tensor(part, resolve(pocket, name).dtype) for part in moments_of(pocket, name))
        found[name] = mu if isinstance(resolve(pocket, name), Plain) else Moments(mu, sigma)
    return found


def _tensor(values: Array, dtype: str) -> Tensor:
    return torch.tensor(values, dtype=getattr(torch, dtype))
