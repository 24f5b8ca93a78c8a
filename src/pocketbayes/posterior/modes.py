"""A posterior with several modes: q(w) = 1/M sum_m q_m(w), each q_m what the posterior of one network is."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

MOST_MODES = 255  # that a file can hold


class Modes(nn.Module):
    """Several networks of one architecture as one model, each with the same probability.

    A plain call is of one of them at random.  Draw s of a prediction is of mode s mod M: ask for a multiple of M.
    Plain networks are an ensemble, of which each answers once.

    Args:
        networks: of one architecture, all plain or all converted alike; they become parts of the model as they are.

    Examples:
        >>> import torch, pocketbayes as pb
        >>> model = pb.bayesianize(pb.Modes([pb.nets.mlp([4, 3]), pb.nets.mlp([4, 3])]))
        >>> answer = pb.predict(model, torch.randn(5, 4), samples=8)
        >>> bool(torch.allclose(answer.epistemic, answer.between_modes + answer.within_modes))
        True
        >>> with model.using(1), pb.mean_weights(model):
        ...     one = model(torch.randn(5, 4))  # of the second mode, through its means
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        require_alike(networks)
        self.modes = nn.ModuleList(networks)
        self._thread = threading.local()

    def __len__(self) -> int:
        return len(self.modes)

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self.modes)

    def __getitem__(self, number: int) -> nn.Module:
        return self.modes[number]

    @property
    def chosen(self) -> int | None:
        """The mode that this thread's forward passes are of; None for any."""
        number: int | None = getattr(self._thread, "number", None)
        return number

    @contextmanager
    def using(self, number: int) -> Iterator[nn.Module]:
        """Forward passes of this thread within the block are of mode `number` mod M."""
        before = self.chosen
        self._thread.number = number % len(self)
        try:
            yield self.modes[number % len(self)]
        finally:
            self._thread.number = before

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        number = self.chosen
        return self.modes[int(torch.randint(len(self), ())) if number is None else number](*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_thread"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._thread = threading.local()


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own module inside DistributedDataParallel or torch.compile."""
    wrappers = {"DistributedDataParallel": "module", "OptimizedModule": "_orig_mod"}
    inner = wrappers.get(type(model).__name__)
    return model if inner is None else unwrap(getattr(model, inner))


def modes_of(model: nn.Module) -> list[nn.Module]:
    """The networks that the model is a mixture of: itself alone, unless it is a `Modes`."""
    model = unwrap(model)
    return list(model) if isinstance(model, Modes) else [model]


def using(model: nn.Module, number: int, *, unless_chosen: bool = False) -> AbstractContextManager[nn.Module]:
    """Where forward passes are of mode `number` mod M, or, if asked for, of the one that was chosen before."""
    model = unwrap(model)
    if not isinstance(model, Modes):
        return nullcontext(model)
    return model.using(number if model.chosen is None or not unless_chosen else model.chosen)


# --- are they alike? ---------------------------------------------------------------------------------------------


def require_alike(networks: Sequence[nn.Module]) -> None:
    """Complain about anything in which one network differs from the first beside its numbers."""
    if not 1 <= len(networks) <= MOST_MODES:
        raise ValueError(f"Modes: 1 to {MOST_MODES} networks, got {len(networks)}.")
    _require_apart(networks)
    first = _facts(networks[0])
    for number, network in enumerate(networks[1:], 1):
        facts = _facts(network)
        for what in (*first, *facts):
            here, there = (found.get(what, "missing") for found in (facts, first))
            if here != there:
                raise ValueError(
                    f"Modes: mode {number} differs from mode 0: {what} is {str(here)[:200]}, and {str(there)[:200]} "
                    "there. Modes are networks of one architecture, converted alike."
                )
    codebooks = {
        id(part.codebook) for network in networks for part in network.modules() if hasattr(part, "codebook")
    }
    if len(codebooks) > 1:
        raise ValueError(
            "Modes: each network has a codebook of its own. Share them together: pb.share(pb.Modes(unshared networks))."
        )


def _facts(network: nn.Module) -> Mapping[str, Any]:
    """All in which modes must agree: the class, what each tensor is, its prior, its noise."""
    from pocketbayes.posterior.weights import sites  # which needs this module

    facts: dict[str, Any] = {"the network": type(network).__name__.removeprefix("Parametrized")}
    inside = []
    for path, weight, original, shape in ((s.path, s.weight, s.original, s.shape) for s in sites(network)):
        inside.append(f"{path.rpartition('.')[0]}.parametrizations.".removeprefix("."))
        facts[path] = f"{weight.status} {_shown(shape, original.dtype)}"
        mean = "0" if weight.prior_mu is None else "w0"
        facts[f"the prior of {path}"] = f"N({mean}, {weight.prior_sigma:g}^2)"
        facts[f"the noise of {path}"] = weight.noise
    for name, value in network.state_dict().items():
        if isinstance(value, Tensor) and not name.startswith(tuple(inside)):
            facts[name] = _shown(value.shape, value.dtype)
    return facts


def _shown(shape: torch.Size, dtype: torch.dtype) -> str:
    return f"{'x'.join(map(str, shape)) or 'scalar'} {str(dtype).removeprefix('torch.')}"


def _require_apart(networks: Sequence[nn.Module]) -> None:
    """Modes have nothing in common but a codebook."""
    owner: dict[int, int] = {}
    for number, network in enumerate(networks):
        if not isinstance(network, nn.Module) or isinstance(network, Modes):
            raise TypeError(f"Modes: mode {number} must be one network, got {type(network).__name__}.")
        for name, parameter in network.named_parameters():
            if ".codebook." not in name and owner.setdefault(id(parameter), number) != number:
                raise ValueError(
                    f"Modes: {name} of mode {number} is also in mode {owner[id(parameter)]}. "
                    "Give networks of their own, e.g. copy.deepcopy(network)."
                )
