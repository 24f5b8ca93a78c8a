"""`bayesianize`: any nn.Module into a mean-field posterior, parameter by parameter, and the way back."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from pocketbayes.noise import Gaussian, Noise
from pocketbayes.posterior.draws import Draws, mean_weights, one_draw
from pocketbayes.posterior.modes import Modes, modes_of
from pocketbayes.posterior.priors import (
    FanIn,
    GaussianPrior,
    InitialSigma,
    Relative,
    ZeroMean,
    initial_sigma,
    scale_of,
)
from pocketbayes.posterior.surgery import (
    Conversion,
    PlacedParameter,
    convert_parameters,
    parameters_with_owners,
    remove_hooks,
    unregister,
)
from pocketbayes.posterior.weights import MeanFieldWeight, require_bayesian, sites, stochastic_weights
from pocketbayes.runs.ranks import require_whole

Where = str | Sequence[str] | Callable[[str, nn.Parameter], bool] | None

_NORMS = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
    nn.LocalResponseNorm,
)


def bayesianize(
    model: nn.Module | Sequence[nn.Module],
    *,
    prior: GaussianPrior | Mapping[str, GaussianPrior] = ZeroMean(FanIn(1.0)),
    sigma: InitialSigma | None = None,
    noise: Noise = Gaussian(),
    where: Where = None,
    biases: bool = False,
    norms: bool = False,
) -> nn.Module:
    """Give every weight of the model a posterior N(mu, sigma^2), in place, and return the model.

    Afterwards `model(x)` is one draw: the module is the same, its classes, names and call are untouched.

    Args:
        model: any network; or several of one architecture, in a list or as `Modes`, which become one posterior with
            as many modes.
        prior: one for all, or by name pattern, e.g. `{"head.*": ZeroMean(1.0), "*": Pretrained(0.1)}`.
        sigma: where the standard deviations start: `Absolute`, `Relative`, `FanIn`, or tensors by parameter name, which
            of `Modes` begin with "modes.0.", "modes.1." ...; by default `Relative()`, which the first `fit` makes
            smaller where the answers of a trained network would suffer.
        noise: the shape of the draws.
        where: name pattern(s) such as `"layer4.*"`, or a predicate of (name, parameter); all by default.
        biases: convert one-dimensional parameters too.
        norms: convert the parameters of normalisation layers too.

    Returns:
        The model that was given, converted; `Modes` of the networks of a list.  An error leaves them as they were.

    Examples:
        >>> model = pb.bayesianize(pb.nets.mlp([4, 16, 3]), prior=pb.ZeroMean(0.5))
        >>> x = torch.ones(2, 4)
        >>> bool((model(x) == model(x)).all())  # each call is a draw
        False
        >>> print(pb.describe(model))
        0.weight  stochastic     16x4  median sigma 0.0..., prior N(0, 0.5^2)
        2.weight  stochastic     3x16  median sigma 0.0..., prior N(0, 0.5^2)
        0.bias    deterministic  16    fewer than two dimensions (pass biases=True to convert)
        2.bias    deterministic  3     fewer than two dimensions (pass biases=True to convert)
        112 stochastic, 19 deterministic
    """
    if not isinstance(model, nn.Module):
        model = Modes(model)
    require_whole(model)
    if stochastic_weights(model):
        raise ValueError(
            f"{type(model).__name__} is Bayesian already. "
            "Convert a fresh copy, or go back with pb.to_deterministic(model)."
        )
    # All weights are built before the first is registered: an error leaves the model as it was.
    plans = [
        _planned(network, prior, _sigma_of_mode(sigma, mode), noise, where=where, biases=biases, norms=norms)
        for mode, network in enumerate(modes_of(model))
    ]
    for network, plan in zip(modes_of(model), plans, strict=True):
        convert_parameters(network, *plan)
    return model


class _Planned(NamedTuple):
    """What `convert_parameters` is to do to a network."""

    conversions: list[Conversion]
    draws: Draws
    skipped: dict[str, str]


def _planned(
    model: nn.Module,
    prior: GaussianPrior | Mapping[str, GaussianPrior],
    sigma: InitialSigma | None,
    noise: Noise,
    *,
    where: Where,
    biases: bool,
    norms: bool,
) -> _Planned:
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
    conversions = [
        Conversion(p, _mean_field_weight(p, _choose(prior, p.path), sigma, noise, index, draws), p.tensor)
        for index, p in enumerate(chosen)
    ]
    return _Planned(conversions, draws, skipped)


def _sigma_of_mode(sigma: InitialSigma | None, mode: int) -> InitialSigma | None:
    """The same for every mode, but for tensors whose names say which mode they are of."""
    prefix = f"modes.{mode}."
    if not isinstance(sigma, Mapping) or not any(name.startswith("modes.") for name in sigma):
        return sigma
    return {name.removeprefix(prefix): value for name, value in sigma.items() if name.startswith(prefix)}


def reason_to_skip(parameter: PlacedParameter, *, where: Where, biases: bool, norms: bool) -> str | None:
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


def _require_matches(where: Where, everything: Iterable[PlacedParameter]) -> None:
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


def _choose(prior: GaussianPrior | Mapping[str, GaussianPrior], path: str) -> GaussianPrior:
    if isinstance(prior, GaussianPrior):
        return prior
    for pattern, value in prior.items():
        if fnmatchcase(path, pattern):
            return value
    raise ValueError(f"{path}: no prior in the mapping matches it. Add a pattern, e.g. '*' as the last one.")


def _mean_field_weight(
    parameter: PlacedParameter,
    prior: GaussianPrior,
    start: InitialSigma | None,
    noise: Noise,
    index: int,
    draws: Draws,
) -> MeanFieldWeight:
    weight = parameter.tensor
    if not bool(torch.isfinite(weight).all()):
        raise ValueError(
            f"{parameter.path}: the weights are not finite (NaN or infinity). Load a sound checkpoint."
        )
    return MeanFieldWeight(
        sigma=initial_sigma(Relative() if start is None else start, parameter.path, weight),
        is_open=start is None,
        prior_mu=prior.mean(weight),
        prior_sigma=scale_of(prior.sigma, weight),
        index=index,
        draws=draws,
        noise=noise,
    )


# --- the way back ----------------------------------------------------------------------------------------------


def to_deterministic(model: nn.Module, seed: int | None = None, number: int | None = None) -> nn.Module:
    """A plain copy of the model, with the means of the weights or with one draw of them.

    Of several modes the means are `Modes` of plain networks, and a draw is the one network that it is of.

    Args:
        model: a Bayesian model, at any stage; it stays as it is.
        seed, number: of the draw, the one that `one_draw(model, seed, number)` shows; without a seed, the means.

    Returns:
        A module of the plain architecture, without stochastic weights or hooks.

    Examples:
        >>> model = pb.bayesianize(pb.nets.mlp([4, 16, 3]))
        >>> plain = pb.to_deterministic(model)
        >>> sorted(plain.state_dict()) == sorted(pb.nets.mlp([4, 16, 3]).state_dict())
        True
        >>> with pb.mean_weights(model):
        ...     bool((model(torch.ones(1, 4)) == plain(torch.ones(1, 4))).all())
        True
    """
    require_bayesian(model)
    plain = copy.deepcopy(model)
    with torch.no_grad(), mean_weights(plain) if seed is None else one_draw(plain, seed, number):
        if isinstance(plain, Modes) and seed is not None:
            plain = plain[plain.chosen or 0]
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
