"""Surgery on modules: stochastic weights in the place of parameters, the hooks that open draws, and the way back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from pocketbayes.posterior.draws import CloseDraw, Draws, OpenDraw
from pocketbayes.posterior.weights import StochasticWeight, sites


class PlacedParameter(NamedTuple):
    """One parameter of a model, at every place where it is registered."""

    tensor: nn.Parameter
    places: list[tuple[str, nn.Module, str]]  # (path, owner, name); more than one when tied

    @property
    def path(self) -> str:
        return self.places[0][0]


def parameters_with_owners(model: nn.Module) -> list[PlacedParameter]:
    """Every distinct parameter with all its places, in the order of registration."""
    found: dict[int, PlacedParameter] = {}
    for prefix, module in model.named_modules():
        for name, tensor in module._parameters.items():
            if tensor is not None:
                path = f"{prefix}.{name}" if prefix else name
                found.setdefault(id(tensor), PlacedParameter(tensor, [])).places.append((path, module, name))
    return list(found.values())


class Conversion(NamedTuple):
    """A parameter, the stochastic weight that takes its place, and what is trained of the weight's means."""

    parameter: PlacedParameter
    weight: StochasticWeight
    original: nn.Parameter


def convert_parameters(
    model: nn.Module, conversions: Sequence[Conversion], draws: Draws, skipped: dict[str, str]
) -> None:
    """Make a plain model Bayesian, in place; `skipped` says why other parameters stay as they are."""
    owners: dict[int, nn.Module] = {}
    for parameter, weight, original in conversions:
        for _, owner, name in parameter.places:
            register(owner, name, original, weight)
            owners[id(owner)] = owner
    _install_hooks(model, OpenDraw(draws, skipped), owners.values())


# --- parametrizations --------------------------------------------------------------------------------------------


def register(owner: nn.Module, name: str, original: nn.Parameter, weight: StochasticWeight) -> None:
    """Make `owner.name` draws of the weight, whose means are, or follow from, `original`."""
    owner._parameters[name] = original
    parametrize.register_parametrization(owner, name, weight, unsafe=True)
    _let_pickle(owner)


def unregister(owner: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Put a parameter back in place of its parametrizations.

    Not `remove_parametrizations`, which deletes the property from a class that copies of the module share.
    """
    stacks = owner.parametrizations
    assert isinstance(stacks, nn.ModuleDict)
    del stacks[name]
    owner.__class__ = owner.__class__.__bases__[0]
    if len(stacks) == 0:
        del owner.parametrizations
    else:
        _make_class(owner, stacks)
    owner._parameters[name] = parameter


def _make_class(owner: nn.Module, names: Iterable[str]) -> None:
    """A class for this module alone, in which these names are draws."""
    parametrize._inject_new_class(owner)
    for name in names:
        parametrize._inject_property(owner, name)
    _let_pickle(owner)


def _let_pickle(owner: nn.Module) -> None:
    """A class made on the fly has no name that pickle could find it by: it is told how to make one again."""
    type(owner).__reduce_ex__ = _reduce  # type: ignore[method-assign, assignment]


def _reduce(owner: nn.Module, protocol: int) -> tuple[Any, ...]:
    assert isinstance(owner.parametrizations, nn.ModuleDict)
    plain = type(owner).__bases__[0]
    state = super(type(owner), owner).__getstate__()
    return _unpickled, (plain, tuple(owner.parametrizations)), state


def _unpickled(plain: type[nn.Module], names: tuple[str, ...]) -> nn.Module:
    """The module before its state is given back to it."""
    owner = plain.__new__(plain)
    _make_class(owner, names)
    return owner


def swap(model: nn.Module, new: Mapping[int, tuple[StochasticWeight, Tensor]]) -> None:
    """Put new stochastic weights, and the values of their originals, in place of old ones (by id), at all sites."""
    originals: dict[int, nn.Parameter] = {}
    for site in list(sites(model)):
        old = id(site.weight)
        if old not in new:
            continue
        weight, values = new[old]
        if old not in originals:
            trains = site.original.requires_grad and values.numel() > 0
            originals[old] = nn.Parameter(values.detach().clone(), requires_grad=trains)
        unregister(site.owner, site.name, originals[old])
        register(site.owner, site.name, originals[old], weight)


def adopt(model: nn.Module, source: nn.Module) -> None:
    """Make the model, in place, what `source` is: a copy at another stage, plain or Bayesian, which is used up."""
    theirs = {site.path: site for site in sites(source)}
    if not theirs:
        remove_hooks(model)
    for site in list(sites(model)):
        if not theirs:
            unregister(site.owner, site.name, source.get_parameter(site.path))
            continue
        other = theirs[site.path]
        other.weight.draws = site.weight.draws
        assert isinstance(other.original, nn.Parameter)
        unregister(site.owner, site.name, other.original)
        register(site.owner, site.name, other.original, other.weight)
    model.load_state_dict(source.state_dict())


# --- hooks -------------------------------------------------------------------------------------------------------


def _install_hooks(model: nn.Module, opening: OpenDraw, owners: Iterable[nn.Module]) -> None:
    model.register_forward_pre_hook(opening)
    model.register_forward_hook(CloseDraw(opening.draws), always_call=True)
    for owner in owners:
        owner.register_load_state_dict_pre_hook(accept_plain_checkpoint)
        if isinstance(owner, nn.RNNBase):
            owner.register_forward_hook(_detach_flat_weights)


def accept_plain_checkpoint(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Let a state_dict of the unconverted architecture set the means; sigma and prior stay as they are."""
    assert isinstance(module.parametrizations, nn.ModuleDict)
    for name, stack in module.parametrizations.items():
        if prefix + name in state_dict:
            inner = f"{prefix}parametrizations.{name}."
            plain = state_dict.pop(prefix + name)
            fixed = getattr(next(stack.children(), None), "fixed", None)
            state_dict[inner + "original"] = plain if fixed is None else fixed.take(plain)
            for key, value in stack.state_dict().items():
                state_dict.setdefault(inner + key, value)


def _detach_flat_weights(module: nn.Module, args: Any, output: Any) -> None:
    # An LSTM or GRU keeps the last draw in a list, which could not be deep-copied while it has a graph.
    if isinstance(module, nn.RNNBase) and not torch.compiler.is_compiling():
        module._flat_weights = [None if w is None else w.detach() for w in module._flat_weights]


def remove_hooks(model: nn.Module) -> None:
    """Those that `convert_parameters` installed."""
    ours = (OpenDraw, CloseDraw)
    for module in model.modules():
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key, hook in list(hooks.items()):
                if isinstance(hook, ours) or hook is _detach_flat_weights:
                    del hooks[key]
                    module._forward_hooks_always_called.pop(key, None)
        for key, wrapped in list(module._load_state_dict_pre_hooks.items()):
            if getattr(wrapped, "hook", None) is accept_plain_checkpoint:
                del module._load_state_dict_pre_hooks[key]
