"""`pb.open`: a file in torch where torch is installed, and in ONNX Runtime where it is not."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from pocketbayes.artifact.predictor import Predictor

if TYPE_CHECKING:
    from pocketbayes.artifact.open import Net


def open(
    path: str | os.PathLike[str], net: Net | None = None, *, runtime: Literal["torch", "onnx"] | None = None
) -> Predictor:
    """A pocket file, or the safetensors of `pocketbayes train`, as a `Predictor`.

    The file says what it is for: shape and scaling of inputs, classes or the units of targets, the likelihood, and the
    confidence below which an answer is "not sure". It may name one of the library's own networks. The code of any
    other network is never run because a file names it: give it as `net`.

    Args:
        path: the file that `save` or the command wrote.
        net: an `nn.Module` of the file's architecture, which becomes the model; or a function that returns one, called
            with those facts about the data that it has a parameter for (`num_classes`, `in_channels`, ...); or the name
            of a library network, such as "resnet20".
        runtime: "torch", or "onnx" for the file's own graph in ONNX Runtime, `pb.runtime.open`; torch by default where
            it is installed.

    Returns:
        What answers by the file; in torch it has the network as its `model`, in evaluation mode.

    Examples:
        >>> import pocketbayes as pb, torch
        >>> card = {"net": "mlp:8", "args": {"in_features": 2, "out_features": 3}, "shape": [2],
        ...         "classes": ["a", "b", "c"], "scale": [[5.0, 5.0], [2.0, 2.0], 1.0], "unsure": 0.9}
        >>> network = pb.bayesianize(torch.nn.Sequential(torch.nn.Flatten(), *pb.nets.mlp([2, 8, 3])))
        >>> _ = pb.save(network, "small.pocket", metadata=card)
        >>> answer = pb.open("small.pocket").predict([[4.0, 6.5], [5.0, 1.0]])
        >>> answer.probs.shape, len(answer.names), answer.sure.dtype
        (torch.Size([2, 3]), 2, torch.bool)
    """
    if runtime not in (None, "torch", "onnx"):
        raise ValueError(f'runtime must be "torch" or "onnx", got {runtime!r}.')
    if runtime == "onnx" and net is not None:
        raise ValueError('net= is for torch: with runtime="onnx" the file\'s own graph is the network.')
    if runtime == "torch" or net is not None or (runtime is None and has_torch()):
        from pocketbayes.artifact.open import open as open_in_torch

        return open_in_torch(path, net)
    from pocketbayes.runtime.graph_predictor import open as open_in_onnx

    return open_in_onnx(path)


def has_torch() -> bool:
    """Whether torch is installed; it is not imported."""
    try:
        return find_spec("torch") is not None
    except ValueError:  # it was made unfindable on purpose
        return False
