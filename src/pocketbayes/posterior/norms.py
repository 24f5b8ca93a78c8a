"""BatchNorm outside training is a scale and a shift: its running statistics folded into them."""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

import torch
from torch import Tensor, nn

BatchNorm: TypeAlias = nn.modules.batchnorm._BatchNorm


def fold_statistics(model: nn.Module) -> None:
    """Give every BatchNorm with weights of its own mean 0 and variance 1, in place; evaluated, it does the same.

        weight (x - mean) / sqrt(var + eps) + bias = scale x / sqrt(1 + eps) + shift

    Norms whose weight or bias is stochastic, or read elsewhere too, stay.
    """
    norms = [module for module in model.modules() if isinstance(module, BatchNorm)]
    readers = Counter(id(p) for module in model.modules() for p in module._parameters.values())
    for norm in norms:
        own = [norm._parameters.get(name) for name in ("weight", "bias")]
        if norm.running_var is not None and all(p is not None and readers[id(p)] == 1 for p in own):
            _fold(norm)


@torch.no_grad()
def _fold(norm: BatchNorm) -> None:
    mean, var, weight, bias = norm.running_mean, norm.running_var, norm.weight, norm.bias
    assert isinstance(mean, Tensor) and isinstance(var, Tensor)
    scale = weight.double() / (var.double() + norm.eps).sqrt()
    bias.copy_(bias.double() - scale * mean.double())
    weight.copy_(scale * (1 + norm.eps) ** 0.5)
    mean.zero_()
    var.fill_(1.0)
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.clamp_(min=1)


def is_folded(norm: BatchNorm) -> bool:
    """Whether its statistics are those of a new norm although it has seen batches: only folding leaves them so."""
    mean, var, seen = norm.running_mean, norm.running_var, norm.num_batches_tracked
    if mean is None or var is None or seen is None:
        return False
    return bool(seen > 0) and not bool(mean.any()) and bool((var == 1).all())


def train_mode(model: nn.Module) -> None:
    """`model.train()`, except that folded norms stay a scale and a shift: a batch's statistics are not in them."""
    model.train()
    for module in model.modules():
        if isinstance(module, BatchNorm) and is_folded(module):
            module.eval()
