"""What may not be finite in training, found before it does harm: data, loss, statistics of norms, gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from pocketbayes.errors import NonFiniteError
from pocketbayes.likelihood import Batch
from pocketbayes.posterior.weights import StochasticWeight


class FiniteChecks:
    """The checks of one run; each raises a `NonFiniteError` that names the place and the tensor."""

    def __init__(self, model: nn.Module, likelihood: nn.Module) -> None:
        self.modules = (model, likelihood)
        self.statistics = _statistics(model)
        self.finite = {  # a mask may hold infinities on purpose
            name: t
            for name, t in self.statistics.items()
            if t.is_floating_point() and t.numel() and bool(torch.isfinite(t).all())
        }
        self.where = ""

    @contextmanager
    def batch(self, batch: Batch, where: str) -> Iterator[None]:
        """Around all that is done with a batch: one that fails leaves no trace in the statistics of norms."""
        self.where = where
        self._data(batch)
        before = [t.clone() for t in self.statistics.values()]
        try:
            yield
        except NonFiniteError:
            for t, old in zip(self.statistics.values(), before, strict=True):
                t.copy_(old)
            raise

    def _data(self, batch: Batch) -> None:
        for name, t in (*enumerate(batch.args), *batch.kwargs.items(), ("target", batch.target)):
            if isinstance(t, Tensor) and t.is_floating_point() and not bool(torch.isfinite(t).all()):
                raise NonFiniteError(
                    f"{self.where}: the data are not finite: input {name!r} has NaN or infinity."
                )

    def loss(self, loss: Tensor) -> None:
        """The loss, and what a pass leaves in the model: a norm's running variance may overflow where it does not."""
        if not bool(torch.isfinite(loss)):
            self._complain("value", lambda p: p)
        if not self.finite:
            return
        largest = torch._foreach_norm(list(self.finite.values()), math.inf)
        finite = torch.isfinite(torch.stack(largest))
        if not bool(finite.all()):
            bad = list(self.finite)[int((~finite).nonzero()[0])]
            raise NonFiniteError(
                f"{self.where}: {bad} is not finite after this batch, and is put back. "
                "Look for huge values in the inputs."
            )

    def gradients(self, parameters: Iterable[Tensor], clip: float | None) -> None:
        """Clip them; their norm tells whether all are finite."""
        if not bool(torch.isfinite(nn.utils.clip_grad_norm_(parameters, clip or math.inf))):
            self._complain("gradient", lambda p: p.grad)

    def _complain(self, what: str, of: Callable[[Tensor], Tensor | None]) -> None:
        named = [pair for module in self.modules for pair in module.named_parameters()]
        bad = [name for name, p in named if (t := of(p)) is not None and not bool(torch.isfinite(t).all())]
        culprit = (
            f"the {what} of {bad[0]} is not finite" if bad else "the loss is not finite, the parameters are"
        )
        raise NonFiniteError(
            f"{self.where}: {culprit}. The model is as before this step. "
            "Lower the learning rate, pass clip=1.0, or look for outliers in the data."
        )


def _statistics(model: nn.Module) -> dict[str, Tensor]:
    """Buffers that a forward pass may change, such as a norm's running mean; random weights have none."""
    inside = tuple(f"{name}." for name, m in model.named_modules() if isinstance(m, StochasticWeight))
    return {name: t for name, t in model.named_buffers() if not name.startswith(inside)}
