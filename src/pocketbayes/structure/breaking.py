"""`break_symmetry`: fix a structured set of weights of a posterior, so that no two neurons may swap."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from pocketbayes.posterior.fixed import FixedEntries
from pocketbayes.posterior.surgery import swap
from pocketbayes.posterior.weights import (
    MeanFieldWeight,
    Site,
    StochasticWeight,
    common,
    require_bayesian,
    sites,
    stochastic_weights,
)
from pocketbayes.structure.network import NeuronGraph
from pocketbayes.structure.schemes import (
    MAP,
    Constant,
    FixedPart,
    Scheme,
    Values,
    Zero,
    count_fixed,
    fix_weights,
)
from pocketbayes.structure.symmetry import Symmetry, residual_symmetry
from pocketbayes.structure.trace import neuron_graph

Layers = Sequence[str] | Mapping[str, tuple[str, str]]


@dataclass(frozen=True, kw_only=True, eq=False)
class SymmetryReport:
    """What `break_symmetry` fixed, and the symmetries before and after."""

    scheme: Scheme
    values: Values
    fixed: dict[str, int]  # weights fixed in each tensor
    weights: int  # weights of all layers, fixed or free
    before: Symmetry
    after: Symmetry
    graph: NeuronGraph

    @property
    def count(self) -> int:
        """How many weights are fixed."""
        return sum(self.fixed.values())

    def __str__(self) -> str:
        name = type(self.scheme).__name__.lower()
        return (
            f"{name}, {type(self.values).__name__.lower()}: {self.count:,} of {self.weights:,} weights fixed "
            f"({self.count / self.weights:.1%})\n  symmetries before: {self.before}\n  after: {self.after}"
        )


def break_symmetry(
    model: nn.Module,
    scheme: Scheme,
    values: Values = Zero(),
    *,
    layers: Layers | None = None,
    odd: bool | Collection[str] = False,
    example: Tensor | None = None,
) -> SymmetryReport:
    """Fix weights to constants, in place, so that permuted networks are no longer equally likely; report what remains.

    Fixed weights have no posterior: no KL, no draw, no gradient, no bits in a file beyond the rule that says which
    they are.  Call it after `bayesianize` and before `share`; an error leaves the model as it was.

    Args:
        model: a mean-field posterior.
        scheme: `Light()`, `Heavy()`, or the control `Random(like=Light())`.
        values: `Zero()`; `Constant(c)`, +c or -c by random signs, with `trained=True` one c trained on the ELBO;
            `MAP()`, the model's own means at this moment, or `MAP(values)` by name.
        layers: where the forward pass cannot be traced, names of the layers from input to output, or
            name -> (stream read, stream written).
        odd: with `layers`, whether the activations are odd, so that signs may flip too.
        example: an input batch, where the layers do not tell how many axes a tensor has.

    Returns:
        How many weights are fixed in each tensor, and the symmetries before and after; print it for a summary.

    Examples:
        >>> model = pb.bayesianize(pb.nets.mlp([4, 5, 3]))
        >>> report = pb.break_symmetry(model, pb.structure.Light())
        >>> report.count, report.before.permutations, report.after.permutations
        (5, 120, 1)
    """
    require_bayesian(model)
    graph = neuron_graph(model, layers, odd, example)
    if not graph.hidden:
        raise ValueError(f"{type(model).__name__}: no hidden neurons, so there is no symmetry to break.")
    found = _sites(model, graph)
    if isinstance(values, MAP) and values.values is None:
        values = MAP({name: site.moments.mu for name, site in found.items()})
    fixed = fix_weights(graph.weights, scheme, values)
    _require_mean_field(found, fixed)
    report = SymmetryReport(
        scheme=scheme,
        values=values,
        fixed=count_fixed(fixed),
        weights=sum(site.moments.mu.numel() for site in found.values()),
        before=residual_symmetry(graph),
        after=residual_symmetry(graph, fixed),
        graph=graph,
    )
    fix_entries(model, _fixed_entries(found, fixed, values))
    return report


def _sites(model: nn.Module, graph: NeuronGraph) -> dict[str, Site]:
    """The stochastic weight of every layer."""
    everything = {site.path: site for site in sites(model)}
    for weight in graph.weights:
        if weight.name not in everything:
            raise ValueError(
                f"{weight.name}: is deterministic, and only random weights can be fixed. Convert it too, or pass "
                "layers= with the random layers."
            )
    return {weight.name: everything[weight.name] for weight in graph.weights}


def _require_mean_field(found: Mapping[str, Site], fixed: Mapping[str, FixedPart]) -> None:
    for name in fixed:
        weight = found[name].weight
        if not isinstance(weight, MeanFieldWeight):
            raise ValueError(f"{name}: is {weight.status}. Break symmetries before sharing.")
        if weight.fixed is not None:
            raise ValueError(
                f"{name}: some of its weights are fixed already. Convert a fresh copy of the model."
            )


def _fixed_entries(
    found: Mapping[str, Site], fixed: Mapping[str, FixedPart], values: Values
) -> dict[str, FixedEntries]:
    c: Tensor | None = None
    if isinstance(values, Constant):
        c = torch.tensor(values.c, dtype=next(iter(found.values())).original.dtype)
        c = nn.Parameter(c) if values.trained else c  # one for the network
    entries = {}
    for name, part in fixed.items():
        like, mask = found[name].original, torch.from_numpy(part.mask)
        constants = torch.from_numpy(part.values[part.mask]).to(like)
        mask = mask.to(like.device)
        if isinstance(values, Constant):
            rule = {**part.rule, "signs": values.seed, **({"trained": True} if values.trained else {})}
            signs = constants.sign().to(torch.int8)
            entries[name] = FixedEntries(mask, rule=rule, signs=signs, c=c)
        elif isinstance(values, Zero):
            entries[name] = FixedEntries(mask, rule=part.rule)
        else:
            entries[name] = FixedEntries(mask, rule=part.rule, values=constants)
    return entries


def fix_entries(model: nn.Module, entries: Mapping[str, FixedEntries]) -> None:
    """Leave only the free weights of these tensors, by name, a posterior, in place."""
    new: dict[int, tuple[StochasticWeight, Tensor]] = {}
    for site in stochastic_weights(model):
        if (fixed := entries.get(site.path)) is None:
            continue
        old, q = site.weight, site.moments
        prior_mu = None if old.prior_mu is None else fixed.take(old.prior_mu)
        kept = {**common(old), "prior_mu": prior_mu, "fixed": fixed}
        new[id(old)] = MeanFieldWeight(sigma=fixed.take(q.sigma.detach()), **kept), fixed.take(q.mu)
    swap(model, new)


# --- the alternative: ordered biases ------------------------------------------------------------------------------


class Ascending(nn.Module):
    """The biases of a layer in ascending order: of a draw, if they are random."""

    def forward(self, bias: Tensor) -> Tensor:
        return bias.sort().values


def order_biases(
    model: nn.Module, *, layers: Layers | None = None, example: Tensor | None = None
) -> list[str]:
    """Let every hidden layer see its biases sorted, in place, which leaves no two neurons to swap; returns their names.

    An alternative to fixing weights, for comparison.  Call it on the plain model and convert that with
    `bayesianize(model, biases=True)`.  Under independent, identical priors the network has the same prior over
    functions as before, since a permutation sorts the biases and carries the other weights along; and the KL of the
    unsorted biases bounds that of the sorted ones from above, so the ELBO remains a bound.  The sorting is a part of
    the architecture: a file of the model is loaded into one with ordered biases.
    """
    if stochastic_weights(model):
        raise ValueError(
            "order_biases: the model is Bayesian already. Order the biases first, then convert it."
        )
    graph = neuron_graph(model, layers, False, example)
    hidden = {int(n) for group in graph.hidden for n in group.neurons}
    outputs = {layer.weight.name: {int(n) for n in layer.outputs.neurons} for layer in graph.layers}
    names = []
    for weight, neurons in outputs.items():
        path = weight.removesuffix("weight").rstrip(".")
        owner = model.get_submodule(path)
        if neurons <= hidden:
            if not isinstance(owner.bias, Tensor):
                raise ValueError(f"{path}: has no biases to order. Use Light() or Heavy() instead.")
            parametrize.register_parametrization(owner, "bias", Ascending())
            names.append(f"{path}.bias" if path else "bias")
    if not names:
        raise ValueError(f"{type(model).__name__}: no hidden neurons, so there is no symmetry to break.")
    return names
