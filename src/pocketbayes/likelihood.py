"""How outputs become observations: p(y | f(x)), its negative logarithm, and what a model hands out as a batch.

Examples:
    >>> pb.likelihood.Homoscedastic(1.0).nll(torch.zeros(2, 1), torch.tensor([[0.0], [2.0]]))  # nats
    tensor([0.9189, 2.9189])
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softplus


class Batch(NamedTuple):
    """One batch: what the model is called with, and the targets."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    target: Any

    @property
    def size(self) -> int:
        tensors = [t for t in (*self.args, *self.kwargs.values()) if isinstance(t, Tensor)]
        return len(tensors[0]) if tensors else len(self.target)


TARGET_KEYS = ("labels", "label", "targets", "target", "y")


def unpack(batch: Any, device: torch.device | None = None) -> Batch:
    """`(x, ..., y)`, or a dict whose targets stand under "labels", "label", "target", "targets" or "y"."""
    if isinstance(batch, Mapping):
        key = target_key(batch)
        kwargs = {k: _to(v, device) for k, v in batch.items() if k != key}
        return Batch((), kwargs, _to(batch[key], device))
    if isinstance(batch, (tuple, list)) and len(batch) >= 2:
        *args, target = (_to(v, device) for v in batch)
        return Batch(tuple(args), {}, target)
    raise ValueError(
        f"A batch must be (x, y), (x1, x2, ..., y) or a dict with labels, got {type(batch).__name__}. Without labels "
        "work compress with Plan(epochs=0), fisher_information with sampled=True, and predict."
    )


class OfModes(tuple[Any, ...]):
    """A target of its own for each mode."""


def unpack_inputs(batch: Any, device: torch.device | None = None) -> Batch:
    """A tensor, a tuple or a dict of inputs, perhaps with targets, which nobody may ask for."""
    if isinstance(batch, Tensor):
        return Batch((_to(batch, device),), {}, None)
    if isinstance(batch, Mapping):
        kwargs = {k: _to(v, device) for k, v in batch.items() if k not in TARGET_KEYS}
        return Batch((), kwargs, None)
    return unpack(batch, device) if len(batch) > 1 else Batch((_to(batch[0], device),), {}, None)


def target_key(batch: Mapping[str, Any]) -> str:
    """The key under which a dict batch has its targets."""
    key = next((k for k in TARGET_KEYS if k in batch), None)
    if key is None:
        raise ValueError(
            f"A dict batch needs its targets under one of {TARGET_KEYS}, got keys {list(batch)}."
        )
    return key


def _to(value: Any, device: torch.device | None) -> Any:
    if isinstance(value, OfModes):
        return OfModes(_to(each, device) for each in value)
    return value.to(device) if device is not None and isinstance(value, Tensor) else value


def output_tensor(output: Any) -> Tensor:
    """The tensor in a model's output: itself, its `logits`, or the first of a tuple."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping) and "logits" in output:
        return output_tensor(output["logits"])
    if hasattr(output, "logits"):
        return output_tensor(output.logits)
    if isinstance(output, (tuple, list)) and output:
        return output_tensor(output[0])
    raise ValueError(
        f"Cannot find the predictions in an output of type {type(output).__name__}. "
        "Wrap the model so that it returns a tensor, or pass a likelihood of your own."
    )


class Likelihood(nn.Module, ABC):
    """p(y | output).  A module, since its noise may be trained."""

    @abstractmethod
    def nll(self, output: Any, target: Any) -> Tensor:
        """-ln p(y | output) in nats, one for each example: [N]."""

    def answer(self, output: Any) -> Any:
        """Targets that say what this output says: those by which another output's NLL tells how far it is from it."""
        return self.sample(output)

    def sample(self, output: Any) -> Any:
        """Targets drawn from p(y | output), by torch's global generator."""
        raise ValueError(
            f"{type(self).__name__}: a likelihood that is a function of (output, target) draws no targets. "
            "Use the targets of the data, or a Likelihood with a `sample` method."
        )

    @property
    def draws_targets(self) -> bool:
        """Whether it has that method."""
        return type(self).sample is not Likelihood.sample


class Categorical(Likelihood):
    """Classes from logits [N, C, ...] with integer targets [N, ...]; an example's positions add up.

    `class_dim=-1` is for models that put the classes last, [N, T, C], as language models do.  Positions whose target
    is `ignore_index` do not count.  Targets may also be soft: probabilities [N, C, ...], floating, the classes second
    wherever the model puts them, and all zero at positions that do not count.
    """

    def __init__(self, *, class_dim: int = 1, ignore_index: int = -100) -> None:
        super().__init__()
        self.class_dim = class_dim
        self.ignore_index = ignore_index

    def logits(self, output: Any) -> Tensor:
        """The output's logits as [N, C, ...]."""
        logits = output_tensor(output)
        if logits.ndim < 2:
            raise ValueError(f"Logits must be [N, C, ...], got shape {tuple(logits.shape)}.")
        logits = logits.movedim(self.class_dim, 1)
        if logits.shape[1] == 1:
            raise ValueError(
                "Logits [N, C, ...] with a single class (C = 1): its probability is always 1. Give the model two "
                "outputs for two classes, or pass Homoscedastic(...) for a number, or a function of (output, target)."
            )
        return logits

    def nll(self, output: Any, target: Tensor) -> Tensor:
        """-ln p(y | output), or the cross entropy -sum_c q_c ln p(c | output) with soft targets q: [N]."""
        logits = self.logits(output)
        self.check(logits, target)
        if _is_soft(logits, target):
            each = soft_cross_entropy(logits, target)
        else:
            each = cross_entropy(logits, target.long(), reduction="none", ignore_index=self.ignore_index)
        return each.flatten(1).sum(1) if each.ndim > 1 else each

    def answer(self, output: Any) -> Tensor:
        """Its probabilities, [N, C, ...]."""
        return self.logits(output).detach().softmax(1)

    def sample(self, output: Any) -> Tensor:
        """Labels [N, ...] drawn from the softmax of the logits."""
        logits = self.logits(output).detach().movedim(1, -1)  # [N, ..., C]
        labels: Tensor = torch.distributions.Categorical(logits=logits).sample()
        return labels

    def probabilities(self, logits: Tensor, target: Tensor) -> Tensor:
        """Targets for logits [N, C, ...] as probabilities of that shape: 1 at the label, or all zero if ignored."""
        self.check(logits, target)
        if _is_soft(logits, target):
            return target
        classes = torch.arange(logits.shape[1], device=target.device).view(-1, *[1] * (logits.ndim - 2))
        counted = (target != self.ignore_index).unsqueeze(1)
        return ((target.long().unsqueeze(1) == classes) & counted).to(logits.dtype)

    def check(self, logits: Tensor, target: Tensor) -> None:
        """Targets must fit logits [N, C, ...] in shape and range."""
        if _is_soft(logits, target):
            _check_soft(logits, target)
            return
        if logits.shape[:1] + logits.shape[2:] != target.shape:
            raise ValueError(
                f"Logits [N, C, ...] of shape {tuple(logits.shape)} and labels of shape {tuple(target.shape)} do not "
                "fit. Labels are integers [N, ...], or probabilities [N, C, ...] as floats; use "
                "Categorical(class_dim=-1) if the model puts the classes last."
            )
        classes = logits.shape[1]
        known = (target >= 0) & (target < classes) & (target == target.long())  # NaN is no class
        bad = ~known & (target != self.ignore_index)
        if bool(bad.any()):
            where = int(bad.flatten().nonzero()[0])
            raise ValueError(
                f"Label {target.flatten()[where].item()} at position {where} of the batch is no class: "
                f"the model has {classes} outputs, so labels are whole numbers from 0 to {classes - 1}."
            )


def soft_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """-sum_c q_c ln softmax(logits)_c in nats, both [N, C, ...]: [N, ...].  A class with q = 0 adds nothing."""
    log_p = logits.log_softmax(1).masked_fill(target == 0, 0.0)  # 0 ln 0 is 0, where a logit is -inf
    return -(target * log_p).sum(1)


def _is_soft(logits: Tensor, target: Tensor) -> bool:
    return target.is_floating_point() and target.ndim == logits.ndim


def _check_soft(logits: Tensor, target: Tensor) -> None:
    """Soft targets are distributions over the classes, or all zero."""
    if logits.shape != target.shape:
        raise ValueError(
            f"Logits [N, C, ...] of shape {tuple(logits.shape)} and soft targets of shape {tuple(target.shape)} do "
            "not fit. Soft targets are [N, C, ...], the classes second even with class_dim=-1."
        )
    total = target.sum(1)  # [N, ...]
    slack = max(1e-3, 4 * torch.finfo(target.dtype).eps)
    good = (target >= 0).all(1) & (((total - 1).abs() <= slack) | (total == 0))  # NaN is neither
    if not bool(good.all()):
        where = int((~good).flatten().nonzero()[0])
        q = target.movedim(1, -1).flatten(0, -2)[where]
        raise ValueError(
            f"The soft target at position {where} of the batch is no distribution: its values, from {q.min():.4g} to "
            f"{q.max():.4g}, add up to {q.sum():.4g}. Pass probabilities that add up to 1 over the classes, the second "
            "axis, or zeros alone where a position does not count."
        )


class Homoscedastic(Likelihood):
    """y ~ N(output, sigma^2), independent for each output; sigma given, or learned with `learned=True`.

    A sigma that is not given is learned: it starts at the residuals, and validation data have the last word.
    """

    def __init__(self, sigma: float | None = None, *, learned: bool = False) -> None:
        super().__init__()
        if sigma is not None and not (math.isfinite(sigma) and sigma > 0):
            raise ValueError(f"Homoscedastic: sigma must be positive, got {sigma}.")
        self.is_open = sigma is None
        self.learned = learned or self.is_open
        log_sigma = torch.tensor(math.log(1.0 if sigma is None else sigma))
        if self.learned:
            self.log_sigma: Tensor = nn.Parameter(log_sigma)
        else:
            self.register_buffer("log_sigma", log_sigma)

    @torch.no_grad()
    def set_sigma(self, sigma: float) -> None:
        self.log_sigma.fill_(math.log(sigma))
        self.is_open = False

    @property
    def sigma(self) -> Tensor:
        return self.log_sigma.exp()

    def nll(self, output: Any, target: Tensor) -> Tensor:
        mean = output_tensor(output)
        return gaussian_nll(mean, self.log_sigma.to(mean.device), targets_like(mean, target))

    def answer(self, output: Any) -> Tensor:
        """The output itself."""
        return output_tensor(output).detach()

    def sample(self, output: Any) -> Tensor:
        """Targets in the shape of the output."""
        mean = output_tensor(output).detach()
        return mean + self.sigma.detach().to(mean.device) * torch.randn_like(mean)


class Heteroscedastic(Likelihood):
    """y ~ N(m, softplus(s)^2) from outputs [N, 2 D]: D means, then D raw scales."""

    def __init__(self, floor: float = 1e-3) -> None:
        super().__init__()
        if not (math.isfinite(floor) and floor > 0):
            raise ValueError(f"Heteroscedastic likelihood: floor must be positive, got {floor}.")
        self.floor = floor

    def split(self, output: Any) -> tuple[Tensor, Tensor]:
        """The means and the standard deviations, [N, D] each."""
        tensor = output_tensor(output)
        if tensor.shape[-1] % 2:
            raise ValueError(
                f"A heteroscedastic head needs an even number of outputs, got {tensor.shape[-1]}."
            )
        mean, raw = tensor.chunk(2, dim=-1)
        return mean, softplus(raw) + self.floor

    def nll(self, output: Any, target: Tensor) -> Tensor:
        mean, sigma = self.split(output)
        return gaussian_nll(mean, sigma.log(), targets_like(mean, target))

    def sample(self, output: Any) -> Tensor:
        """Targets [N, D]."""
        mean, sigma = self.split(output)
        return (mean + sigma * torch.randn_like(mean)).detach()


class Custom(Likelihood):
    """A user's function of (output, target): -ln p for each example [N].

    Their mean as a scalar is enough for training; `evaluate`, which averages draws for each example, needs them all.
    """

    def __init__(self, function: Callable[[Any, Any], Tensor]) -> None:
        super().__init__()
        self.function = function

    def nll(self, output: Any, target: Any) -> Tensor:
        each: Tensor = self.function(output, target)
        return each.reshape(-1)


def as_likelihood(likelihood: Likelihood | Callable[[Any, Any], Tensor] | None) -> Likelihood:
    """The likelihood itself, one made of a function of (output, target), or `Categorical()` for None."""
    if likelihood is None:
        return Categorical()
    return likelihood if isinstance(likelihood, Likelihood) else Custom(likelihood)


def gaussian_nll(mean: Tensor, log_sigma: Tensor, target: Tensor) -> Tensor:
    """-ln N(y; mean, sigma^2), summed over all but the first axis: [N]."""
    each = 0.5 * ((target - mean) / log_sigma.exp()).square() + log_sigma + 0.5 * math.log(2 * math.pi)
    return each.flatten(1).sum(1) if each.ndim > 1 else each


def targets_like(mean: Tensor, target: Tensor) -> Tensor:
    """Targets in the shape and type of the predictions."""
    if mean.shape == target.shape:
        return target.to(mean.dtype)
    if mean.shape == (*target.shape, 1):
        return target.to(mean.dtype).unsqueeze(-1)
    raise ValueError(
        f"Predictions of shape {tuple(mean.shape)} and targets of shape {tuple(target.shape)} do not fit; "
        "make them equal (they would broadcast to a wrong loss)."
    )
