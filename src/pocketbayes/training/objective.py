"""The ELBO: what training minimises, for `fit`, `fit_map` and loops of one's own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from pocketbayes.likelihood import Batch, Likelihood, OfModes, as_likelihood, unpack
from pocketbayes.posterior.modes import modes_of, using
from pocketbayes.posterior.weights import device_of_parameters, kl_divergence


class Nelbo(NamedTuple):
    """The negative ELBO per training example, and its two parts.  Scalars."""

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
    autocast: torch.dtype | None = None,
    forward: Callable[..., Any] | None = None,
    penalty: Callable[[nn.Module], Tensor] = kl_divergence,
    draw: Callable[[int], AbstractContextManager[Any]] = nullcontext,
    backward: Callable[[Tensor], None] | None = None,
) -> Nelbo:
    """The loss of one batch, mean NLL + (temperature / num_data) KL.  Eq. (5) of docs/method.md.

    `fit` minimises this function; call it in a training loop of your own.

    Args:
        model: a network that `bayesianize` converted.
        batch: `(x, ..., y)`, or a dict with labels; the examples along the first axis.
        num_data: how many examples the whole training set has: the KL belongs to all of them together.
        likelihood: `Categorical()` by default; `Homoscedastic(...)`, `Heteroscedastic()`, or a function of
            (output, target).
        temperature: the weight of the KL; 1 is Bayes.
        samples: forward passes of each mode, each with a draw of its own.
        autocast: the type that forward passes compute in, such as `torch.bfloat16`.
        forward: what is called in the place of the model, such as its compiled twin.
        penalty: what stands in the place of the KL, in nats; -ln p(w) trains a mode, as `fit_map` does.
        draw: the context that pass number s runs in.
        backward: called with each pass's part of the loss while its draw is open, so that no more than one graph is
            in memory; the parts add up to the loss.

    Returns:
        The loss and its parts, scalars in nats; without gradients if `backward` took them.

    Examples:
        >>> import torch, pocketbayes as pb
        >>> model = pb.bayesianize(torch.nn.Linear(4, 3))
        >>> parts = pb.nelbo(model, (torch.randn(8, 4), torch.randint(3, (8,))), num_data=100)
        >>> parts.loss.backward()
        >>> torch.equal(parts.loss, parts.nll + parts.kl / 100)
        True
    """
    if num_data < 1:
        raise ValueError(f"num_data must be the number of training examples, got {num_data}.")
    if samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}.")
    likelihood = as_likelihood(likelihood)
    parts = batch if isinstance(batch, Batch) else unpack(batch)
    losses, nlls, modes = [], [], len(modes_of(model))
    passes, targets = samples * modes, parts.target if isinstance(parts.target, OfModes) else (parts.target,)
    device = device_of_parameters(model).type
    for s in range(passes):
        with using(model, s), draw(s):
            mine = parts._replace(target=targets[s % modes % len(targets)])
            nll = _nll(model if forward is None else forward, device, mine, likelihood, autocast)
            loss = nll / passes
            if s == passes - 1:  # the penalty has no noise: once a step is enough
                kl = penalty(model)
                loss = loss + temperature * kl / num_data
            if backward is not None:
                backward(loss)
                loss, nll = loss.detach(), nll.detach()
        losses.append(loss)
        nlls.append(nll)
    return Nelbo(torch.stack(losses).sum(), torch.stack(nlls).mean(), kl if backward is None else kl.detach())


def computing(dtype: torch.dtype | None, device: str) -> AbstractContextManager[Any]:
    """Where forward passes compute in that type; None leaves it to the caller."""
    return nullcontext() if dtype is None else torch.autocast(device, dtype=dtype)


def _nll(
    forward: Callable[..., Any],
    device: str,
    batch: Batch,
    likelihood: Likelihood,
    autocast: torch.dtype | None,
) -> Tensor:
    """The mean NLL of the batch in one draw of the weights, nats."""
    with computing(autocast, device):
        output = forward(*batch.args, **batch.kwargs)
    if autocast is not None:  # else the loss would be rounded like a weight
        output = pytree.tree_map_only(Tensor, lambda t: t.float() if t.dtype == autocast else t, output)
    return likelihood.nll(output, batch.target).mean()
