"""`save`, `load`, `read`: a model's posterior to and from a pocket file.  The torch side of the format."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pocketbayes import __version__
from pocketbayes.artifact import Codebook as FileCodebook
from pocketbayes.artifact import (
    Entry,
    Normal,
    Plain,
    Pocket,
    Precision,
    Prior,
    Shared,
    Tied,
    decode,
    encode,
    law_of,
)
from pocketbayes.artifact.constants import install_fixed, to_file
from pocketbayes.artifact.dense import fixed_mask
from pocketbayes.artifact.pocket import noise_of
from pocketbayes.errors import ArtifactError
from pocketbayes.noise import Gaussian as GaussianNoise
from pocketbayes.noise import Noise
from pocketbayes.posterior.convert import bayesianize, parameters_with_owners
from pocketbayes.posterior.gaussian import Moments
from pocketbayes.posterior.priors import FanIn, FixedPrior
from pocketbayes.posterior.weights import Site, require_bayesian, sites, stochastic_weights, unwrap
from pocketbayes.runs.files import write_atomically
from pocketbayes.sharing.share import install
from pocketbayes.sharing.shared import Blends, SharedWeight

NOISE_TABLES = 1 << 20  # numbers that a file may hold beside the model's own: the law of a measured device
_NUMPY_LACKS = {torch.bfloat16: "bfloat16"}


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
        metadata: anything JSON: class names, normalisation, a threshold.
    """
    encoded = encode(to_pocket(model, precision=precision, priors=priors, metadata=metadata))
    write_atomically(path, encoded.data)
    return Saved(len(encoded.data), encoded.sizes)


def load(path: str | os.PathLike[str], model: nn.Module, *, max_weights: int | None = None) -> nn.Module:
    """Rebuild a saved posterior in a freshly built, plain model of its architecture, in place; returns the model.

    Everything in the file is checked, against itself and against the model, before the model is touched.
    """
    if stochastic_weights(model):
        raise ValueError("load needs the plain architecture, freshly built; this model is Bayesian already.")
    limit = (
        sum(p.numel() for p in model.parameters()) + sum(b.numel() for b in model.buffers()) + NOISE_TABLES
    )
    pocket = decode(path, max_weights=limit if max_weights is None else max_weights)
    _require_match(str(path), pocket, model)
    return from_pocket(pocket, model)


def read(path: str | os.PathLike[str], *, max_weights: int = 1 << 28) -> dict[str, Tensor | Moments]:
    """The tensors of a file without a model: a `Moments(mu, sigma)` for stochastic ones, plain tensors otherwise."""
    pocket = decode(path, max_weights=max_weights)
    found: dict[str, Tensor | Moments] = {}
    for name, entry in pocket.tensors.items():
        target = _target(pocket, entry)
        if isinstance(target, Plain):
            found[name] = _torch(target.values, target.dtype)
        else:
            law = law_of(pocket, name)
            found[name] = Moments(torch.from_numpy(law.mu), torch.from_numpy(law.sigma))
    return found


# --- model -> pocket ---------------------------------------------------------------------------------------------


def to_pocket(
    model: nn.Module,
    *,
    precision: Precision = Precision(),
    priors: bool = False,
    metadata: Mapping[str, Any] | None = None,
) -> Pocket:
    """The model as arrays, tensor by tensor, under the names of the plain architecture."""
    model = unwrap(model)
    found = require_bayesian(model)
    noise, extras = _describe_noise(found)
    codebook = _one_codebook(found)
    book = None if codebook is None else FileCodebook(mu=_numpy(codebook.mu), sigma=_sigma(codebook.rho))
    return Pocket(
        tensors=_entries(model, priors),
        codebook=book,
        noise=noise,
        extras=extras,
        architecture=type(model).__mro__[0].__name__.removeprefix("Parametrized"),
        options={"tied_draws": True} if codebook is not None and codebook.tied else {},
        metadata=dict(metadata or {}),
        precision=precision,
        library=__version__,
    )


def _entries(model: nn.Module, priors: bool) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    first: dict[int, str] = {}
    inside: list[str] = []
    for site in sites(model, every_name=True):
        owner = site.path[: len(site.path) - len(site.name)]
        inside.append(f"{owner}parametrizations.{site.name}.")
        known = first.setdefault(id(site.weight), site.path)
        entries[site.path] = Tied(target=known) if known != site.path else _stochastic(site, priors)
    plain: dict[tuple[Any, ...], str] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if name.startswith(tuple(inside)):
            continue
        if not isinstance(value, Tensor):
            raise ArtifactError(f"{name}: a pocket file holds tensors, this is {type(value).__name__}.")
        key = (value.data_ptr(), value.shape, value.stride()) if value.numel() else (name,)
        known = plain.setdefault(key, name)
        entries[name] = (
            Tied(target=known) if known != name else Plain(values=_numpy(value), dtype=_dtype(value))
        )
    return entries


def _stochastic(site: Site, priors: bool) -> Entry:
    weight = site.weight
    prior = _prior(site) if priors else None
    if isinstance(weight, SharedWeight):
        k = weight.codebook.components
        labels = weight.labels.long().index_fill(0, weight.blend_position.long(), k + 1)
        return Shared(
            shape=tuple(site.shape),
            labels=labels.cpu().numpy(),
            outlier_mu=_numpy(site.original),
            outlier_sigma=_sigma(weight.rho),
            components=_numpy(weight.blend_component.int()),
            alphas=_numpy(weight.blend_alpha),
            dtype=_dtype(site.original),
            fixed=to_file(weight.fixed),
            prior=prior,
        )
    mu = site.moments.mu
    rho = getattr(weight, "rho", None)
    sigma = _sigma(rho) if isinstance(rho, Tensor) and rho.shape == mu.shape else _numpy(site.moments.sigma)
    return Normal(
        shape=tuple(site.shape),
        mu=_numpy(mu).reshape(-1),
        sigma=sigma.reshape(-1),
        dtype=_dtype(mu),
        fixed=to_file(weight.fixed),
        prior=prior,
    )


def _prior(site: Site) -> Prior:
    mean = getattr(site.weight, "prior_mu", None)
    return Prior(mu=0.0 if mean is None else _numpy(mean).reshape(-1), sigma=site.weight.prior_sigma)


def _one_codebook(found: list[Site]) -> Any:
    books = {id(s.weight.codebook): s.weight.codebook for s in found if isinstance(s.weight, SharedWeight)}
    if len(books) > 1:
        raise ArtifactError(
            f"{len(books)} codebooks in one model: a file holds one. Share the whole model at once."
        )
    return next(iter(books.values()), None)


def _describe_noise(found: list[Site]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The family as JSON, its arrays aside under names of their own."""
    noise = found[0].weight.noise
    for site in found[1:]:
        if site.weight.noise != noise:
            raise ArtifactError(f"{site.path}: another noise family than {found[0].path}; a file holds one.")
    extras: dict[str, Any] = {}

    def aside(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            extras[f"noise{len(extras)}"] = value
            return {"array": f"noise{len(extras) - 1}"}
        if isinstance(value, Mapping):
            return {k: aside(v) for k, v in value.items()}
        return [aside(v) for v in value] if isinstance(value, (list, tuple)) else value

    described: dict[str, Any] = aside(noise.to_dict())
    return described, extras


def _noise_from(pocket: Pocket) -> Noise:
    description = noise_of(pocket)
    try:
        return Noise.from_dict(description) if description else GaussianNoise()
    except ValueError as error:
        raise ArtifactError(f"noise: {error}") from error


# --- pocket -> model ---------------------------------------------------------------------------------------------


def from_pocket(pocket: Pocket, model: nn.Module) -> nn.Module:
    """Convert the plain model and give it the pocket's values, in place."""
    noise = _noise_from(pocket)
    names = [n for n, e in pocket.tensors.items() if isinstance(e, (Normal, Shared))]
    laws = {name: law_of(pocket, name) for name in names}
    parameters = {p.path: p for p in parameters_with_owners(model)}
    for name in names:
        parameters[name].tensor.requires_grad_(True)
    with torch.no_grad():
        for name in names:
            parameters[name].tensor.copy_(torch.from_numpy(laws[name].mu))
        _load_plain(pocket, model)
    sigma = {
        name: torch.from_numpy(
            np.where(law.sigma > 0, law.sigma, 1).astype(law.sigma.dtype)
        )  # 0 is of fixed weights
        for name, law in laws.items()
    }
    prior = {_escape(name): _loaded_prior(name, pocket.tensors[name]) for name in names}
    bayesianize(
        model, where=lambda n, _: n in sigma, biases=True, norms=True, sigma=sigma, prior=prior, noise=noise
    )
    install_fixed(pocket, model)
    if pocket.codebook is not None:
        _install_shared(pocket, model)
    return model


def _escape(name: str) -> str:
    return name.replace("[", "[[]")


def _loaded_prior(name: str, entry: Entry) -> FixedPrior:
    assert isinstance(entry, (Normal, Shared))
    prior, fixed = entry.prior, entry.fixed
    if prior is None:
        return FixedPrior(FanIn(1.0))
    if isinstance(prior.mu, float):
        return FixedPrior(float(prior.sigma))
    mean = np.zeros(entry.shape, prior.mu.dtype)
    mean[np.ones(entry.shape, bool) if fixed is None else ~fixed_mask(fixed, entry.shape, name)] = prior.mu
    return FixedPrior(float(prior.sigma), at=torch.from_numpy(mean))


def _load_plain(pocket: Pocket, model: nn.Module) -> None:
    state = model.state_dict(keep_vars=True)
    for name, entry in ((name, _target(pocket, entry)) for name, entry in pocket.tensors.items()):
        if isinstance(entry, Plain):
            state[name].copy_(_torch(entry.values, entry.dtype).view(entry.shape))


def _install_shared(pocket: Pocket, model: nn.Module) -> None:
    book = pocket.codebook
    assert book is not None
    found = [s for s in stochastic_weights(model) if isinstance(pocket.tensors[s.path], Shared)]
    labels, blends = [], []
    for site in found:
        entry = pocket.tensors[site.path]
        assert isinstance(entry, Shared)
        label = torch.from_numpy(entry.labels.astype(np.int64))
        position = (label == len(book) + 1).nonzero()[:, 0]
        mixed = Blends(
            position,
            torch.from_numpy(entry.components.astype(np.int64)),
            torch.from_numpy(np.array(entry.alphas)),
        )
        blends.append(mixed if len(position) else None)
        whole = label.index_fill(0, position, 0)  # `install` labels blends itself
        labels.append(whole if entry.fixed is not None else whole.view(entry.shape))
    tied = bool(pocket.options.get("tied_draws", False))
    install(
        model,
        found,
        torch.from_numpy(np.array(book.mu)),
        torch.from_numpy(np.array(book.sigma)),
        labels,
        blends,
        tied=tied,
    )


def _require_match(path: str, pocket: Pocket, model: nn.Module) -> None:
    """The file's tensors must be the model's, by name and shape, and random ones tied where they are in the file."""
    state = {n: t for n, t in model.state_dict(keep_vars=True).items() if isinstance(t, Tensor)}
    ours = {name: tuple(t.shape) for name, t in state.items()}
    theirs = {name: _shape(pocket, entry) for name, entry in pocket.tensors.items()}
    differences = [
        f"{n} is {theirs[n]} in the file, {ours[n]} in the model"
        for n in ours
        if ours[n] != theirs.get(n, ours[n])
    ]
    differences += [f"{n} is in the file only" for n in theirs if n not in ours]
    differences += [f"{n} is in the model only" for n in ours if n not in theirs]
    learnable = {p.path for p in parameters_with_owners(model)}
    differences += [
        f"{n} is stochastic in the file, and no parameter of the model"
        for n, e in pocket.tensors.items()
        if isinstance(e, (Normal, Shared)) and n in ours and n not in learnable
    ]
    differences += [
        f"{n} is {e.target} in the file, a tensor of its own in the model"
        for n, e in pocket.tensors.items()
        if isinstance(e, Tied)
        and not isinstance(pocket.tensors[e.target], Plain)
        and {n, e.target} <= state.keys()
        and state[n] is not state[e.target]
    ]
    if differences:
        more = f"; and {len(differences) - 8} more" if len(differences) > 8 else ""
        raise ArtifactError(
            f"{path}: written from another architecture ({pocket.architecture}): {'; '.join(differences[:8])}{more}"
        )


def _shape(pocket: Pocket, entry: Entry) -> tuple[int, ...]:
    return tuple(_target(pocket, entry).shape)


def _target(pocket: Pocket, entry: Entry) -> Plain | Normal | Shared:
    """What a tied entry is tied to."""
    target = pocket.tensors[entry.target] if isinstance(entry, Tied) else entry
    assert not isinstance(target, Tied)
    return target


# --- tensors and arrays --------------------------------------------------------------------------------------------


def _numpy(tensor: Tensor) -> Any:
    t = tensor.detach().cpu()
    return (t.float() if t.dtype in _NUMPY_LACKS else t).contiguous().numpy()


def _sigma(rho: Tensor) -> Any:
    """softplus in float64: what is rounded for the file is the exact sigma of this rho."""
    return torch.nn.functional.softplus(rho.detach().cpu().double()).float().numpy()


def _dtype(tensor: Tensor) -> str:
    return _NUMPY_LACKS.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))


def _torch(values: Any, dtype: str) -> Tensor:
    return torch.from_numpy(np.array(values)).to(getattr(torch, dtype))
