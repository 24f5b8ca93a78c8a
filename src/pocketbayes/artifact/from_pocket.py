"""A Pocket into plain models: everything is built and checked first, and the models touched last."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pocketbayes.artifact.dense import fixed_mask, fixed_signs, fixed_values
from pocketbayes.artifact.noise import noise_description
from pocketbayes.artifact.numbers import Array
from pocketbayes.artifact.pocket import (
    MeanField,
    Plain,
    Pocket,
    Shared,
    Stochastic,
    Tied,
    free_shape,
    resolve,
)
from pocketbayes.drawing import WhichDraw
from pocketbayes.errors import ArtifactError
from pocketbayes.moments import Codebook
from pocketbayes.noise import Gaussian, Noise
from pocketbayes.noise.counter import stream_on
from pocketbayes.posterior.draws import Draws
from pocketbayes.posterior.fixed import FixedEntries
from pocketbayes.posterior.modes import Modes
from pocketbayes.posterior.priors import FanIn, scale_of
from pocketbayes.posterior.surgery import (
    Conversion,
    PlacedParameter,
    convert_parameters,
    parameters_with_owners,
)
from pocketbayes.posterior.weights import MeanFieldWeight, StochasticWeight
from pocketbayes.sharing.shared import Blends, SharedWeight, TrainableCodebook

Copy = tuple[Tensor, Tensor]  # a tensor of the model, and the values it will hold


def from_pocket(pocket: Pocket, model: nn.Module, where: str = "pocket") -> nn.Module:
    """Convert the plain model and give it the pocket's values, in place; an error leaves it as it came.

    Of several modes the model becomes the first, and copies of it the others.
    """
    require_match(where, pocket, model)
    networks = [model, *(copy.deepcopy(model) for _ in pocket.others)]
    common = _Common(pocket, noise_of(pocket))
    plans = [_planned(pocket.mode(mode), network, common) for mode, network in enumerate(networks)]
    for network, plan in zip(networks, plans, strict=True):
        plan.carry_out(network)
    return model if len(networks) == 1 else Modes(networks)


class _Plan(NamedTuple):
    """What is to be done to a model; nothing is left in it that could be wrong."""

    copies: list[Copy]
    conversions: list[Conversion]
    draws: Draws

    @torch.no_grad()
    def carry_out(self, model: nn.Module) -> None:
        skipped = {p.path: "deterministic in the file" for p in parameters_with_owners(model)}
        for tensor, values in self.copies:
            tensor.copy_(values)
        for conversion in self.conversions:
            conversion.original.requires_grad_(conversion.original.numel() > 0)
            del skipped[conversion.parameter.path]
        convert_parameters(model, self.conversions, self.draws, skipped)


def _planned(pocket: Pocket, model: nn.Module, common: _Common) -> _Plan:
    """For one mode, which is what the pocket holds."""
    build = _Builder(pocket, common)
    found = [p for p in parameters_with_owners(model) if p.path in build.entries]
    conversions = [build.conversion(parameter, index) for index, parameter in enumerate(found)]
    return _Plan([*build.means, *_plain_copies(pocket, model)], conversions, build.draws)


class _Common:
    """What all modes have: the noise and the codebook, which is made for the first shared weight."""

    def __init__(self, pocket: Pocket, noise: Noise) -> None:
        self.noise, self.book = noise, pocket.codebook
        self.tied = bool(pocket.options.get("tied_draws", False))
        self.codebook: TrainableCodebook | None = None


class _Builder:
    """Stochastic weights out of the entries of one mode."""

    def __init__(self, pocket: Pocket, common: _Common) -> None:
        self.entries = {n: e for n, e in pocket.tensors.items() if isinstance(e, MeanField | Shared)}
        self.common, self.draws = common, Draws()
        self.first = True  # of the shared weights
        self.means: list[Copy] = []
        self.trained: dict[float, nn.Parameter] = {}  # constants by value: one for all tensors that have it

    def conversion(self, parameter: PlacedParameter, index: int) -> Conversion:
        name, like, entry = parameter.path, parameter.tensor, self.entries[parameter.path]
        fixed = self._fixed(name, entry, like)
        place: dict[str, Any] = {"index": index, "draws": self.draws, "noise": self.common.noise}
        common = place | {"fixed": fixed} | _prior(name, entry, like)
        weight: StochasticWeight
        if isinstance(entry, MeanField):
            mu, sigma = (_wide(part, like).view(free_shape(entry)) for part in (entry.mu, entry.sigma))
            weight = MeanFieldWeight(sigma=sigma, **common)
        else:
            mu, weight = _wide(entry.outlier_mu, like), self._shared(entry, like, common)
        weight.to(like.device, like.dtype)
        mu = mu.to(like)
        _require_finite(
            name, like, {"mean": mu, **dict(weight.named_parameters()), **dict(weight.named_buffers())}
        )
        if isinstance(entry, Shared) or fixed is not None:
            return Conversion(parameter, weight, nn.Parameter(mu))
        self.means.append((like, mu))  # the model keeps its own parameter, for whoever holds it
        return Conversion(parameter, weight, like)

    def _shared(self, entry: Shared, like: Tensor, common: dict[str, Any]) -> SharedWeight:
        shared = self.common
        assert shared.book is not None  # a Pocket with shared entries has one
        if shared.codebook is None:
            book = Codebook(*(_wide(part, like) for part in shared.book))
            shared.codebook = TrainableCodebook(book, tied=shared.tied)
        first, self.first, k = self.first, False, shared.book.components
        blended = np.flatnonzero(entry.labels == k + 1)
        labels = entry.labels
        if len(blended):
            labels = labels.copy()
            labels[blended] = entry.components[:, 0]
        parts = (blended, entry.components.astype(np.int64), _writable(entry.alphas))
        return SharedWeight(
            codebook=shared.codebook,
            labels=torch.from_numpy(_writable(labels)).view(free_shape(entry)),
            outlier_sigma=_wide(entry.outlier_sigma, like),
            blends=Blends(*map(torch.from_numpy, parts)) if len(blended) else None,
            counts_codebook=first,
            **common,
        )

    def _fixed(self, name: str, entry: Stochastic, like: Tensor) -> FixedEntries | None:
        fixed = entry.fixed
        if fixed is None:
            return None
        rule = dict(fixed.mask) if isinstance(fixed.mask, dict) else {"rule": "mask"}
        mask = fixed_mask(fixed, entry.shape, name)
        flat, where = mask.reshape(-1), torch.from_numpy(mask.copy())
        if isinstance(fixed.values, float) and fixed.values and "signs" in rule:
            signs = torch.from_numpy(fixed_signs(rule, entry.shape)[flat])
            c = torch.tensor(fixed.values, dtype=like.dtype)
            c = self.trained.setdefault(fixed.values, nn.Parameter(c)) if rule.get("trained") else c
            return FixedEntries(where, rule=rule, signs=signs, c=c)
        constants = np.broadcast_to(
            np.asarray(fixed_values(fixed, mask, entry.shape), np.float64), fixed.count
        )
        return FixedEntries(where, rule=rule, values=torch.tensor(constants) if constants.any() else None)


def _prior(name: str, entry: Stochastic, like: Tensor) -> dict[str, Any]:
    """The prior that the file has, or else the library's default."""
    prior = entry.prior
    if prior is None:
        return {"prior_mu": None, "prior_sigma": scale_of(FanIn(1.0), like)}
    if isinstance(prior.sigma, np.ndarray):
        raise ArtifactError(
            f"{name}: its prior has a sigma for every weight, and a model holds one for the tensor. "
            "Save the file without priors, or with one sigma a tensor."
        )
    mean: Tensor | None = None
    if isinstance(prior.mu, np.ndarray):
        mean = _wide(prior.mu, like).view(free_shape(entry))
    elif prior.mu:
        mean = torch.full(free_shape(entry), float(prior.mu))
    return {"prior_mu": mean, "prior_sigma": float(prior.sigma)}


def noise_of(pocket: Pocket) -> Noise:
    """The family that the file describes, which was seen to draw a finite number."""
    if not pocket.noise:
        return Gaussian()
    description = noise_description(pocket)
    mu, sigma = torch.zeros(1), torch.ones(1)
    try:
        noise = Noise.from_dict(description)
        drawn = noise.place(mu, sigma, noise.z(stream_on(mu.device, WhichDraw.of(0, 0), tensor=0), mu, sigma))
    except Exception as error:  # families check what a programmer may get wrong; a file may hold anything
        raise ArtifactError(f"noise: cannot be made from its description: {error}") from error
    if not bool(drawn.isfinite()):
        raise ArtifactError(f"noise: {type(noise).__name__} draws {drawn.item()}. Save the model again.")
    return noise


def _plain_copies(pocket: Pocket, model: nn.Module) -> Iterator[Copy]:
    """The deterministic tensors of the model, and their values in its own types."""
    state = model.state_dict(keep_vars=True)
    for name in pocket.tensors:
        entry = resolve(pocket, name)
        if isinstance(entry, Plain):
            source = torch.from_numpy(_writable(entry.values)).view(entry.shape)
            values = source.to(state[name])
            if values.is_floating_point():
                _require_finite(name, values, {"number": values[source.isfinite()]})
            elif not torch.equal(values.to(source), source):
                raise ArtifactError(
                    f"{name}: holds {entry.dtype}, and the model {values.dtype}, which cannot hold them all. "
                    "Build the model in the types of the file."
                )
            yield state[name], values


def _require_finite(name: str, like: Tensor, parts: Mapping[str, Tensor]) -> None:
    for what, values in parts.items():
        if values.is_floating_point() and not bool(values.isfinite().all()):
            raise ArtifactError(
                f"{name}: a {what} of the file lies beyond {like.dtype}, the model's type. "
                "Load it into a model of a wider type, such as float32."
            )


# --- does the file fit the model? --------------------------------------------------------------------------------


def require_match(where: str, pocket: Pocket, model: nn.Module) -> None:
    """The file's tensors must be the model's, by name and shape, and random ones tied where they are in the file."""
    state = {n: t for n, t in model.state_dict(keep_vars=True).items() if isinstance(t, Tensor)}
    learnable = {p.path for p in parameters_with_owners(model) if p.tensor.is_floating_point()}
    differences = [*_differences(pocket, state, learnable)]
    if differences:
        more = f"; and {len(differences) - 8} more" if len(differences) > 8 else ""
        raise ArtifactError(
            f"{where}: written from another architecture ({pocket.architecture}): {'; '.join(differences[:8])}{more}"
        )


def _differences(pocket: Pocket, state: Mapping[str, Tensor], learnable: set[str]) -> Iterator[str]:
    for name, entry in pocket.tensors.items():
        if name not in state:
            yield f"{name} is in the file only"
            continue
        owner, plain = resolve(pocket, name), isinstance(resolve(pocket, name), Plain)
        theirs, ours = tuple(owner.shape), tuple(state[name].shape)
        if theirs != ours:
            yield f"{name} is {theirs} in the file, {ours} in the model"
        elif isinstance(entry, MeanField | Shared) and name not in learnable:
            yield f"{name} is stochastic in the file, and no parameter of the model"
        elif isinstance(entry, Tied) and not (plain or state[name] is state.get(entry.target)):
            yield f"{name} is {entry.target} in the file, a tensor of its own in the model"
    yield from (f"{name} is in the model only" for name in state if name not in pocket.tensors)


# --- arrays as tensors -------------------------------------------------------------------------------------------


def _writable(array: Array) -> Array:
    return np.require(array, requirements="W")


def _wide(array: Array, like: Tensor) -> Tensor:
    """In the wider one of both types: a narrow model gets the logarithm of a sigma that it could not hold."""
    tensor = torch.from_numpy(_writable(array))
    return tensor.to(torch.promote_types(tensor.dtype, like.dtype))
