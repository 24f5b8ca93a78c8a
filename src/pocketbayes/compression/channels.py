"""Channels in one unit, at no bytes: a BatchNorm behind a layer takes back the scale of each of its channels.

All weights share one codebook, and each wants its values as far apart as its sigma is wide.  Channels whose sigmas
have one geometric mean want the same values.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn

from pocketbayes.posterior.gaussian import rho_from_sigma
from pocketbayes.posterior.modes import modes_of
from pocketbayes.posterior.norms import BatchNorm
from pocketbayes.posterior.weights import MeanFieldWeight, Site, stochastic_weights
from pocketbayes.sharing.threads import operators_alone
from pocketbayes.structure.tracer import LayerTracer

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # whose first axis is their outputs'


@operators_alone()
@torch.no_grad()
def scale_channels(model: nn.Module) -> None:
    """Give channels with a norm behind them sigmas of the geometric mean that the other weights have, in place.

    The means scale with the sigmas, the norms take it back, and the answers stay.  If every channel has a norm, the
    geometric mean is that of all weights.  A network that torch.fx cannot trace stays as it is.
    """
    for network in modes_of(model):
        norms, found = norms_behind(network), stochastic_weights(network)
        followed = [(site, norms[id(site.owner)]) for site in found if _scalable(site, norms)]
        apart = [site for site in found if all(site is not other for other, _ in followed)] or found
        logs = [site.moments.sigma.double().log() for site in apart]
        unit = sum(float(x.sum()) for x in logs) / max(1, sum(x.numel() for x in logs))
        for site, norm in followed:
            _scale(site, norm, (unit - site.moments.sigma.flatten(1).log().mean(1)).exp())


def norms_behind(model: nn.Module) -> dict[int, BatchNorm]:
    """By the id of a layer, the BatchNorm that alone reads its output, and reads nothing else."""
    try:
        graph = LayerTracer().trace(model)
    except Exception:  # tracing runs the user's code on proxies: it may fail in any way
        return {}
    calls: dict[int, list[fx.Node]] = {}
    for node in graph.nodes:
        if node.op == "call_module":
            calls.setdefault(id(model.get_submodule(str(node.target))), []).append(node)
    found = {}
    for layer, nodes in calls.items():
        readers = list(nodes[0].users)
        if len(nodes) == len(readers) == 1 and readers[0].op == "call_module":
            norm = model.get_submodule(str(readers[0].target))
            if isinstance(norm, BatchNorm) and len(calls[id(norm)]) == 1:
                found[layer] = norm
    return found


def _scalable(site: Site, norms: dict[int, BatchNorm]) -> bool:
    """Whether a norm takes the scale of the weight's channels."""
    norm, plain = norms.get(id(site.owner)), site.name == "weight" and isinstance(site.owner, LAYERS)
    if norm is None or not plain or site.weight.fixed is not None or "bias" not in site.owner._parameters:
        return False
    known = (norm.running_mean, norm.running_var, norm._parameters.get("weight"))
    return isinstance(site.weight, MeanFieldWeight) and all(t is not None for t in known)


def _scale(site: Site, norm: BatchNorm, factor: Tensor) -> None:
    """Multiply the channels with these factors [R], and divide in the norm."""
    weight, mean, var = site.weight, norm.running_mean, norm.running_var
    assert isinstance(weight, MeanFieldWeight) and mean is not None and var is not None
    by_row = factor.view(-1, *[1] * (site.original.dim() - 1))
    weight.rho.copy_(rho_from_sigma(site.moments.sigma * by_row))
    site.original.mul_(by_row)
    if weight.prior_mu is not None:
        weight.prior_mu.mul_(by_row)
    weight.prior_sigma *= float(factor.log().mean().exp())
    bias = site.owner._parameters["bias"]
    if bias is not None:
        bias.mul_(factor)
    norm.weight.div_(factor * (var + norm.eps).sqrt())
    mean.mul_(factor)
    var.mul_(factor.square())
    norm.weight.mul_((var + norm.eps).sqrt())
