"""A model as a Pocket: every weight straight to the entry it is, under the names of the plain architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pocketbayes import __version__
from pocketbayes.arrays import Array, to_numpy
from pocketbayes.artifact.pocket import Entry, Fixed, MeanField, Plain, Pocket, Precision, Prior, Shared, Tied
from pocketbayes.errors import ArtifactError
from pocketbayes.moments import Codebook
from pocketbayes.posterior.fixed import FixedEntries
from pocketbayes.posterior.modes import modes_of
from pocketbayes.posterior.weights import MeanFieldWeight, Site, require_bayesian, sites, unwrap
from pocketbayes.prediction.scales import scales_of
from pocketbayes.runs.ranks import require_whole
from pocketbayes.sharing.shared import SharedWeight, TrainableCodebook


def to_pocket(
    model: nn.Module,
    *,
    precision: Precision = Precision(),
    priors: bool = False,
    metadata: Mapping[str, Any] | None = None,
) -> Pocket:
    """The model as arrays, tensor by tensor."""
    require_whole(model)
    networks, found = modes_of(model), require_bayesian(model)
    noise, extras = _describe_noise(found)
    book = _one_codebook(found)
    tensors, *others = (_entries(network, priors) for network in networks)
    return Pocket(
        tensors=tensors,
        others=tuple(others),
        codebook=None if book is None else Codebook(to_numpy(book.mu), _sigma(book.rho)),
        noise=noise,
        extras=extras,
        architecture=type(networks[0]).__name__.removeprefix("Parametrized"),
        options={"tied_draws": True} if book is not None and book.tied else {},
        metadata={**(metadata or {}), **scales_of(unwrap(model)).metadata()},
        precision=precision,
        library=__version__,
    )


def _entries(model: nn.Module, priors: bool) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    first: dict[int, str] = {}
    inside: list[str] = []
    for site in sites(model, every_name=True):
        inside.append(f"{site.path.removesuffix(site.name)}parametrizations.{site.name}.")
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
            Tied(target=known) if known != name else Plain(values=to_numpy(value), dtype=_dtype(value))
        )
    return entries


def _stochastic(site: Site, priors: bool) -> Entry:
    weight = site.weight
    common: dict[str, Any] = {
        "shape": tuple(site.shape),
        "dtype": _dtype(site.original),
        "fixed": _fixed(weight.fixed),
        "prior": _prior(site) if priors else None,
    }
    if isinstance(weight, SharedWeight):
        return Shared(
            labels=_labels(weight),
            outlier_mu=to_numpy(site.original),
            outlier_sigma=_sigma(weight.rho),
            components=to_numpy(weight.blend_component),
            alphas=to_numpy(weight.blend_alpha),
            **common,
        )
    mu, sigma = site.moments
    exact = _sigma(weight.rho) if isinstance(weight, MeanFieldWeight) else to_numpy(sigma)
    return MeanField(mu=to_numpy(mu).reshape(-1), sigma=exact.reshape(-1), **common)


def _labels(weight: SharedWeight) -> Array:
    """[free] the file's labels, in which K + 1 marks a blend."""
    labels = to_numpy(weight.labels)
    if not weight.blend_position.numel():
        return labels
    mark = weight.codebook.components + 1
    labels = labels.astype(np.min_scalar_type(mark))
    labels[to_numpy(weight.blend_position)] = mark
    return labels


def _fixed(entries: FixedEntries | None) -> Fixed | None:
    """Fixed weights by their rule, if they have one: then they take no bits but for constants that differ."""
    if entries is None:
        return None
    rule = {key: value for key, value in entries.rule.items() if key != "shape"}
    mask = to_numpy(entries.mask) if rule["rule"] == "mask" else rule
    c = 0.0 if entries.c is None else entries.c.item()
    return Fixed(
        mask=mask,
        values=c if entries.values is None else to_numpy(entries.values),
        count=entries.count,
    )


def _prior(site: Site) -> Prior:
    mean = site.weight.prior_mu
    return Prior(mu=0.0 if mean is None else to_numpy(mean).reshape(-1), sigma=site.weight.prior_sigma)


def _one_codebook(found: list[Site]) -> TrainableCodebook | None:
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


# --- tensors as arrays -------------------------------------------------------------------------------------------


def _sigma(rho: Tensor) -> Array:
    """softplus in float64: what is rounded for the file is the exact sigma of this rho."""
    sigma: Array = torch.nn.functional.softplus(rho.detach().cpu().double()).float().numpy()
    return sigma


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
