"""`describe`: what became of every parameter of a model, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn

from pocketbayes.posterior.convert import reason_to_skip
from pocketbayes.posterior.draws import root_hooks
from pocketbayes.posterior.surgery import parameters_with_owners
from pocketbayes.posterior.weights import MeanFieldWeight, Site, StochasticWeight, sites


class ParameterRow(NamedTuple):
    """One parameter: where it is, what it is, how many numbers it holds, and a remark."""

    path: str
    status: str  # "stochastic", "shared", "tied" or "deterministic"
    shape: tuple[int, ...]
    note: str
    fixed: int = 0  # how many of its numbers are constants

    @property
    def numel(self) -> int:
        return int(torch.Size(self.shape).numel())


class Description(tuple[ParameterRow, ...]):
    """The rows of a model's parameters; printable."""

    def numbers(self, status: str) -> int:
        """How many numbers the parameters of that status hold, without the fixed ones among them."""
        return sum(row.numel - row.fixed for row in self if row.status == status)

    def __str__(self) -> str:
        cells = [(r.path, r.status, "x".join(map(str, r.shape)) or "scalar", r.note) for r in self]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)] if cells else []
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells]
        counts = {status: self.numbers(status) for status in dict.fromkeys(r.status for r in self)}
        if fixed := sum(row.fixed for row in self):
            counts["fixed"] = fixed
        return "\n".join([*lines, ", ".join(f"{n:,} {status}" for status, n in counts.items())])

    __repr__ = __str__


def describe(model: nn.Module) -> Description:
    """What is stochastic, tied or deterministic in a model, and why; for a plain model, what would become of it.

    Args:
        model: any network.

    Returns:
        A row for each parameter (path, status, shape, note, fixed); print it for a table, `numbers(status)` counts.

    Examples:
        >>> pb.describe(pb.nets.mlp([4, 3]))
        0.weight  stochastic     3x4  would be converted
        0.bias    deterministic  3    fewer than two dimensions (pass biases=True to convert)
        12 stochastic, 3 deterministic
    """
    rows = list(_stochastic_rows(model))
    if not rows:
        return Description(_plain_rows(model))
    skipped = {
        f"{prefix}.{path}" if prefix else path: reason
        for prefix, hook in root_hooks(model)
        for path, reason in hook.skipped.items()
    }
    inside = {id(p) for m in model.modules() if isinstance(m, StochasticWeight) for p in m.parameters()}
    inside |= {id(site.original) for site in sites(model)}
    rows += [
        ParameterRow(
            p.path, "deterministic", tuple(p.tensor.shape), skipped.get(p.path, "outside the converted part")
        )
        for p in parameters_with_owners(model)
        if id(p.tensor) not in inside
    ]
    return Description(rows)


def _stochastic_rows(model: nn.Module) -> Iterator[ParameterRow]:
    first: dict[int, str] = {}
    for site in sites(model):
        shape, fixed = tuple(site.shape), site.weight.fixed
        owner = first.setdefault(id(site.weight), site.path)
        if owner != site.path:
            yield ParameterRow(site.path, "tied", shape, f"one draw with {owner}")
        else:
            count = 0 if fixed is None else fixed.count
            yield ParameterRow(site.path, site.weight.status, shape, _note(site), count)


def _note(site: Site) -> str:
    sigma = site.moments.sigma.detach().float().median().item()
    fixed = site.weight.fixed
    note = f"median sigma {sigma:.2g}"
    if isinstance(site.weight, MeanFieldWeight):
        centre = "0" if site.weight.prior_mu is None else "w0"
        note += f", prior N({centre}, {site.weight.prior_sigma:.2g}^2)"
    return note if fixed is None else f"{note}, {fixed.count:,} fixed ({fixed.rule['rule']})"


def _plain_rows(model: nn.Module) -> Iterator[ParameterRow]:
    for p in parameters_with_owners(model):
        reason = reason_to_skip(p, where=None, biases=False, norms=False)
        status, note = ("stochastic", "would be converted") if reason is None else ("deterministic", reason)
        yield ParameterRow(p.path, status, tuple(p.tensor.shape), note)
        for path, _, _ in p.places[1:]:
            yield ParameterRow(path, "tied", tuple(p.tensor.shape), f"one draw with {p.path}")
