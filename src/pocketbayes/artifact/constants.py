"""Weights that are constants, to and from a pocket file: the torch side of `Fixed`."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from pocketbayes.artifact.dense import fixed_mask, fixed_signs, fixed_values
from pocketbayes.artifact.pocket import Fixed, Normal, Pocket, Shared
from pocketbayes.posterior.fixed import FixedEntries
from pocketbayes.posterior.weights import Site, stochastic_weights
from pocketbayes.structure.breaking import fix_entries


def to_file(entries: FixedEntries | None) -> Fixed | None:
    """Fixed weights by their rule, so that they take no bits but for constants that follow from nothing."""
    if entries is None:
        return None
    rule = {key: value for key, value in entries.rule.items() if key != "shape"}
    if entries.values is None:
        return Fixed(mask=rule, values=0.0 if entries.c is None else entries.c.item(), count=entries.count)
    values = entries.values.cpu()
    wide = values.float() if values.dtype == torch.bfloat16 else values  # numpy has no bfloat16
    return Fixed(mask=rule, values=wide.numpy(), count=entries.count)


def install_fixed(pocket: Pocket, model: nn.Module) -> None:
    """Fixed weights again, with one trained c for all tensors that had it."""
    entries: dict[str, FixedEntries] = {}
    trained: dict[float, nn.Parameter] = {}
    for site in stochastic_weights(model):
        entry = pocket.tensors[site.path]
        if isinstance(entry, (Normal, Shared)) and entry.fixed is not None:
            entries[site.path] = _entries_of(site, entry, trained)
    if entries:
        fix_entries(model, entries)


def _entries_of(site: Site, entry: Normal | Shared, trained: dict[float, nn.Parameter]) -> FixedEntries:
    fixed, like = entry.fixed, site.original
    assert fixed is not None
    rule = dict(fixed.mask) if isinstance(fixed.mask, dict) else {"rule": "mask"}
    mask = fixed_mask(fixed, entry.shape, site.path)
    kept = FixedEntries(torch.from_numpy(mask.copy()), rule=rule)
    if isinstance(fixed.values, float) and fixed.values and "signs" in rule:
        signs = torch.from_numpy(fixed_signs(rule, entry.shape)[mask.reshape(-1)])
        c = like.new_tensor(fixed.values)
        c = trained.setdefault(fixed.values, nn.Parameter(c)) if rule.get("trained") else c
        return FixedEntries(kept.mask, rule=rule, signs=signs, c=c)
    values = np.broadcast_to(np.asarray(fixed_values(fixed, mask, entry.shape), np.float64), (fixed.count,))
    return (
        kept if not values.any() else FixedEntries(kept.mask, rule=rule, values=torch.tensor(values).to(like))
    )
