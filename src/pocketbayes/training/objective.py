"""The ELBO: what training minimises, for `fit` and for loops of one's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pocketbayes.likelihood import Categorical, Likelihood, as_likelihood, unpack
from pocketbayes.posterior.weights import kl_divergence


class Nelbo(NamedTuple):
    """The negative ELBO per training example, and its two parts."""

    loss: Tensor  # nll + temperature kl / num_data
    nll: Tensor  # mean over the batch and the draws, nats
    kl: Tensor  # of all weights, nats, not scaled


def nelbo(
    model: nn.Module,
    batch: Any,
    num_data: int,
    *,
    likelihood: Likelihood | Callable[[Any, Any], Tensor] | None = None,
    temperature: float = 1.0,
    samples: int = 1,
) -> Nelbo:
    """The loss of one batch: mean NLL + (temperature / num_data) KL.  Eq. (5) of docs/method.md.

    Args:
        batch: `(x, ..., y)`, or a dict with labels.
        num_data: how many examples the whole training set has; the KL belongs to all of them together.
        samples: forward passes, each with a draw of its own.
    """
    if num_data < 1:
        raise ValueError(f"num_data must be the number of training examples, got {num_data}.")
    likelihood = Categorical() if likelihood is None else as_likelihood(likelihood)
    parts = unpack(batch)
    outputs = (model(*parts.args, **parts.kwargs) for _ in range(samples))
    nll = torch.stack([likelihood.nll(output, parts.target).mean() for output in outputs]).mean()
    kl = kl_divergence(model)
    return Nelbo(nll + (temperature / num_data) * kl, nll, kl)
