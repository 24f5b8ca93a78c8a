"""`bayesianize`: any nn.Module into a mean-field posterior, parameter by parameter, and the way back."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize

from pocketbayes.noise import Gaussian, Noise
from pocketbayes.posterior.draws import CloseDraw, Draws, OpenDraw, mean_weights, one_draw
from pocketbayes.posterior.priors import (
    FanIn,
    InitialSigma,
    Prior,
    Relative,
    ZeroMean,
    initial_sigma,
    scale_of,
)
from pocketbayes.posterior.weights import (
    MeanFieldWeight,
    StochasticWeight,
    require_bayesian,
    sites,
    stochastic_weights,
)

Where = str | Sequence[str] | Callable[[str, nn.Parameter], bool] | None
Choice = TypeVar("Choice")

_NORMS = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
    nn.LocalResponseNorm,
)


class Parameter(NamedTuple):
    """One parameter of a model, at every place where it is registered."""

    tensor: nn.Parameter
    places: list[tuple[str, nn.Module, str]]  # (path, owner, name); more than one when tied

    @property
    def path(self) -> str:
        return self.places[0][0]


def parameters_with_owners(model: nn.Module) -> list[Parameter]:
    """Every distinct parameter with all its places, in the order of registration."""
    found: dict[int, Parameter] = {}
    for prefix, module in model.named_modules():
        for name, tensor in module._parameters.items():
            if tensor is not None:
                path = f"{prefix}.{name}" if prefix else name
                found.setdefault(id(tensor), Parameter(tensor, [])).places.append((path, module, name))
    return list(found.values())


def bayesianize(
    model: nn.Module,
    *,
    prior: Prior | Mapping[str, Prior] = ZeroMean(FanIn(1.0)),
    sigma: InitialSigma = Relative(),
    noise: Noise = Gaussian(),
    where: Where = None,
    biases: bool = False,
    norms: bool = False,
) -> nn.Module:
    """Give every weight of the model a posterior N(mu, sigma^2), in place, and return the model.

    Afterwards `model(x)` is one draw: the module is the same, its classes, names and call are untouched.

    Args:
        prior: one for all, or by name pattern, e.g. `{"head.*": ZeroMean(1.0), "*": Pretrained(0.1)}`.
        sigma: where the standard deviations start: `Absolute`, `Relative`, `FanIn`, or tensors by parameter name.
        noise: the shape of the draws.
        where: name pattern(s) such as `"layer4.*"`, or a predicate of (name, parameter); all by default.
        biases: convert one-dimensional parameters too.
        norms: convert the parameters of normalisation layers too.
    """
    if stochastic_weights(model):
        raise ValueError(
            f"{type(model).__name__} is Bayesian already. "
            "Convert a fresh copy, or go back with pb.to_deterministic(model)."
        )
    everything = parameters_with_owners(model)
    _require_matches(where, everything)
    reasons = {p.path: reason_to_skip(p, where=where, biases=biases, norms=norms) for p in everything}
    skipped = {path: reason for path, reason in reasons.items() if reason is not None}
    chosen = [p for p in everything if p.path not in skipped]
    if not chosen:
        listed = "; ".join(f"{path}: {reason}" for path, reason in list(skipped.items())[:8])
        raise ValueError(
            f"{type(model).__name__}: no parameter to convert. {listed or 'It has no parameters.'}"
        )
    draws = Draws()
    # All weights are built before the first is registered: an error leaves the model as it was.
    weights = [
        _mean_field_weight(p, _choose(prior, p.path, "prior"), sigma, noise, index, draws)
        for index, p in enumerate(chosen)
    ]
    for parameter, weight in zip(chosen, weights, strict=True):
        for _, owner, name in parameter.places:
            parametrize.register_parametrization(owner, name, weight, unsafe=True)
    owners = {id(owner): owner for p in chosen for _, owner, _ in p.places}
    _install_hooks(model, OpenDraw(draws, skipped), owners.values())
    return model


def reason_to_skip(parameter: Parameter, *, where: Where, biases: bool, norms: bool) -> str | None:
    """Why a parameter stays deterministic, or None if it becomes stochastic."""
    tensor = parameter.tensor
    if isinstance(tensor, UninitializedParameter):
        return "not initialised (run one forward pass first)"
    if not tensor.is_floating_point():
        return f"not a real floating-point tensor ({tensor.dtype})"
    if tensor.numel() == 0:
        return "empty"
    if not tensor.requires_grad:
        return "frozen (requires_grad is False)"
    if any(_is_norm(owner) for _, owner, _ in parameter.places):
        if not norms:
            return "normalisation (pass norms=True to convert)"
    elif tensor.ndim < 2 and not biases:
        return "fewer than two dimensions (pass biases=True to convert)"
    if where is not None and not any(_matches(where, path, tensor) for path, _, _ in parameter.places):
        return "not matched by where="
    return None


def _is_norm(owner: nn.Module) -> bool:
    # Hugging Face, timm and others write norms of their own: LlamaRMSNorm, LayerNorm2d, GroupNormAct ...
    name = type(owner).__name__.lower()
    return isinstance(owner, _NORMS) or name.endswith(("norm", "norm1d", "norm2d", "norm3d", "normact"))


def _matches(where: Where, path: str, tensor: nn.Parameter) -> bool:
    if callable(where):
        return bool(where(path, tensor))
    patterns = [where] if isinstance(where, str) else where or ["*"]
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def _require_matches(where: Where, everything: Iterable[Parameter]) -> None:
    """Every pattern must name something: a misspelt one must not pass in silence."""
    if where is None or callable(where):
        return
    paths = [path for p in everything for path, _, _ in p.places]
    for pattern in [where] if isinstance(where, str) else where:
        if not any(fnmatchcase(path, pattern) for path in paths):
            raise ValueError(
                f"where={pattern!r} matches no parameter. The names are: {', '.join(paths[:10])}"
                f"{' ...' if len(paths) > 10 else ''}. Use e.g. '*.weight'."
            )


def _choose(choice: Choice | Mapping[str, Choice], path: str, what: str) -> Choice:
    if not isinstance(choice, Mapping):
        return choice
    for pattern, value in choice.items():
        if fnmatchcase(path, pattern):
            return value
    raise ValueError(f"{path}: no {what} in the mapping matches it. Add a pattern, e.g. '*' as the last one.")


def _mean_field_weight(
    parameter: Parameter, prior: Prior, start: InitialSigma, noise: Noise, index: int, draws: Draws
) -> MeanFieldWeight:
    weight = parameter.tensor
    if not bool(torch.isfinite(weight).all()):
        raise ValueError(
            f"{parameter.path}: the weights are not finite (NaN or infinity). Load a sound checkpoint."
        )
    return MeanFieldWeight(
        sigma=initial_sigma(start, parameter.path, weight),
        prior_mu=prior.mean(weight),
        prior_sigma=scale_of(prior.sigma, weight),
        index=index,
        draws=draws,
        noise=noise,
    )


# --- hooks -----------------------------------------------------------------------------------------------------


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
    """Those that `bayesianize` installed."""
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


# --- the way back ----------------------------------------------------------------------------------------------


def to_deterministic(model: nn.Module, seed: int | None = None, number: int | None = None) -> nn.Module:
    """A plain copy of the model with the mean weights or, with a seed, with `one_draw`; no trace of us is left."""
    require_bayesian(model)
    plain = copy.deepcopy(model)
    with torch.no_grad(), mean_weights(plain) if seed is None else one_draw(plain, seed, number):
        values = {id(s.weight): getattr(s.owner, s.name).detach().clone() for s in stochastic_weights(plain)}
    parameters: dict[int, nn.Parameter] = {}
    for site in list(sites(plain)):
        key = id(site.weight)
        if key not in parameters:
            # Shared weights without outliers have an empty original, which is frozen; they are not.
            trainable = site.original.requires_grad or not site.original.numel()
            parameters[key] = nn.Parameter(values[key], requires_grad=trainable)
        unregister(site.owner, site.name, parameters[key])
    remove_hooks(plain)
    return plain


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
        parametrize._inject_new_class(owner)
        for other in stacks:
            parametrize._inject_property(owner, other)
    owner._parameters[name] = parameter


def swap(model: nn.Module, new: Mapping[int, StochasticWeight]) -> None:
    """Put new stochastic weights in place of old ones (by id), at all their sites, with the same means."""
    originals: dict[int, nn.Parameter] = {}
    for site in list(sites(model)):
        old = site.weight
        if id(old) not in new:
            continue
        if id(old) not in originals:
            dense, fixed = site.moments.mu.detach(), new[id(old)].fixed
            dense = fixed.take(dense) if fixed is not None and old.fixed is None else dense.clone()
            originals[id(old)] = nn.Parameter(dense, requires_grad=site.original.requires_grad)
        unregister(site.owner, site.name, originals[id(old)])
        parametrize.register_parametrization(site.owner, site.name, new[id(old)], unsafe=True)
    for parameter in model.parameters():
        if parameter.numel() == 0:  # a tensor without outliers: nothing to train, no gradient to wait for
            parameter.requires_grad_(False)
