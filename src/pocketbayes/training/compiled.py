"""Forward passes of training, compiled: through a plain twin of the network that is given the weights of the open draw.

Draws stay outside of the graph: they follow from the seed of a step alone, whether it is compiled or not.
"""

from __future__ import annotations

import copy
import functools
import shutil
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from pocketbayes.data.loaders import innermost, length
from pocketbayes.likelihood import unpack
from pocketbayes.posterior.modes import Modes, modes_of, unwrap
from pocketbayes.posterior.surgery import remove_hooks, unregister
from pocketbayes.posterior.weights import sites
from pocketbayes.prediction.inputs import device_of
from pocketbayes.runs import randomness

WORTH = 5e13  # operations of a training on which compiling, a minute or two, is well spent


class CompiledForward:
    """Call it in place of the model: the same pass in the same draw, through a compiled twin that shares its tensors.

    Args:
        model: a network at any stage, or `Modes`.
        batch_size: examples in a batch; for others, such as the last of an epoch, nothing is compiled.
    """

    def __init__(self, model: nn.Module, batch_size: int | None = None) -> None:
        if isinstance(model, nn.parallel.DistributedDataParallel):
            raise ValueError(
                "compiled=True: DistributedDataParallel wants to be called itself. Leave compiled= out."
            )
        self.model, self.batch_size = unwrap(model), batch_size
        self._twins = [_Twin(network) for network in modes_of(model)]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        chosen = self.model.chosen if isinstance(self.model, Modes) else None
        first = next((t for t in (*args, *kwargs.values()) if isinstance(t, Tensor) and t.ndim), None)
        whole = self.batch_size is None or first is None or len(first) == self.batch_size
        return self._twins[chosen or 0](_compiled() if whole else _run, args, kwargs)


class _Twin:
    """A plain network with the tensors of `network`, except its random weights, which it is given."""

    def __init__(self, network: nn.Module) -> None:
        self.sites = list(sites(network))  # ties included
        shared = {id(t): t for t in (*network.parameters(), *network.buffers())}
        self.plain = copy.deepcopy(network, dict(shared))
        for site in list(sites(self.plain)):  # nothing is in its place but a shape
            unregister(site.owner, site.name, nn.Parameter(site.original.new_empty(()).expand(site.shape)))
        remove_hooks(self.plain)
        modules = dict(network.named_modules())
        self.pairs = [(twin, modules[name]) for name, twin in self.plain.named_modules()]

    def __call__(self, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        for twin, module in self.pairs:
            twin.training = module.training
        weights = {site.path: getattr(site.owner, site.name) for site in self.sites}
        return run(self.plain, weights, args, kwargs)


def _run(plain: nn.Module, weights: dict[str, Tensor], args: Any, kwargs: Any) -> Any:
    return torch.func.functional_call(plain, weights, args, kwargs)


@functools.cache
def _compiled() -> Callable[..., Any]:
    """One for all networks, so that those of one architecture share a graph."""
    run = torch.compile(_run, dynamic=False)

    def quietly(*given: Any) -> Any:
        with warnings.catch_warnings():  # the compiler looks for gradients of the weights it is given
            warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor")
            return run(*given)

    return quietly


def batch_size_of(loader: Iterable[Any]) -> int | None:
    """Where the loader says it."""
    size = getattr(innermost(loader), "batch_size", None)
    return size if isinstance(size, int) else None


def compiling_pays(model: nn.Module, loader: Iterable[Any], epochs: int) -> bool:
    """Whether so much training is faster compiled and in bfloat16, by the processor and the operations it takes."""
    device = device_of(model)
    if (
        device is None
        or device.type != "cpu"
        or not (torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported())
        or not shutil.which("g++")
    ):
        return False
    return 3 * _operations(model, loader) * epochs * length(loader) >= WORTH


@torch.no_grad()
def _operations(model: nn.Module, loader: Iterable[Any]) -> int:
    """Of a forward pass of every mode for one batch; the model and all random numbers are left as they were."""
    from torch.utils.flop_counter import FlopCounterMode

    with randomness.forked():
        batch = unpack(next(iter(loader)), device_of(model))
        with FlopCounterMode(display=False) as counter:
            copy.deepcopy(model).eval()(*batch.args, **batch.kwargs)
    return len(modes_of(model)) * int(counter.get_total_flops())
