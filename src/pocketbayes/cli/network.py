"""`--net`: a network of the library by its name, or the user's own function; and whether it takes the data."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pocketbayes.cli.imports import call, function_at, is_path_to_function
from pocketbayes.errors import ArtifactError, NetworkNotGivenError

if TYPE_CHECKING:
    from torch import nn

    from pocketbayes.artifact.network_predictor import NetworkPredictor
    from pocketbayes.artifact.predictor import Predictor
    from pocketbayes.data import DataSet


def builder(text: str) -> Callable[..., nn.Module]:
    """The function behind `--net`, which may be the user's own."""
    from torch import nn

    from pocketbayes import nets

    if nets.is_name(text) or not is_path_to_function(text):
        try:
            return nets.by_name(text)
        except ValueError as error:
            raise typer.BadParameter(f"--net {error} Your own is package.module:function") from error
    function = function_at(text, "--net")

    @functools.wraps(function)
    def build(**arguments: Any) -> nn.Module:
        network = call(function, text, "--net", **arguments)
        if not isinstance(network, nn.Module):
            raise ValueError(
                f"--net {text}: the function returned {type(network).__name__}, not an nn.Module."
            )
        return network

    return build


def given_net(text: str | None) -> str | Callable[..., nn.Module] | None:
    """`--net` as `pocketbayes.open` takes it: what it names only the user may name, not a file."""
    if text is None:
        return None
    from pocketbayes import nets

    return text if nets.is_name(text) else builder(text)


def answering(file: Path, net: str | None) -> Predictor:
    """What answers by a file: its network in torch, or its own graph where torch is absent or the network not given."""
    from pocketbayes.runtime.choice import open as open_file

    try:
        return open_file(file, given_net(net))
    except NetworkNotGivenError:
        with contextlib.suppress(ArtifactError, ImportError):  # it has no graph, or nothing runs graphs here
            return open_file(file, runtime="onnx")
        raise


def opened(file: Path, net: str | None) -> NetworkPredictor:
    """A file in its network, or in that of `--net`."""
    from pocketbayes.artifact.open import open as open_file

    return open_file(file, given_net(net))


def require_takes(network: nn.Module, net: str, data: DataSet) -> None:
    """One example must go through the network, and come out as one answer of the right width."""
    import torch

    from pocketbayes.likelihood import output_tensor

    training, where = network.training, f"--net {net}: inputs of {data.name} have shape {data.shape}"
    try:
        with torch.no_grad():
            output = output_tensor(network.eval()(data.inputs(slice(0, 1))))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ValueError(f"{where}, which the network does not take ({error}).") from error
    finally:
        network.train(training)
    if output.ndim < 2 or output.shape[1] < data.num_outputs:
        found = tuple(output.shape)
        raise ValueError(f"{where}; it answers one with {found}, {data.num_outputs} outputs are needed.")
