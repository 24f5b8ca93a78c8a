"""Learning from other networks: targets that mix the labels with a teacher's answers, or with those of several."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

import torch
from torch import Tensor, nn

from pocketbayes.errors import NonFiniteError
from pocketbayes.likelihood import (
    Batch,
    Categorical,
    Likelihood,
    OfModes,
    as_likelihood,
    target_key,
    unpack,
)
from pocketbayes.posterior.convert import to_deterministic
from pocketbayes.posterior.modes import modes_of
from pocketbayes.posterior.weights import stochastic_weights, unwrap
from pocketbayes.training.compiled import CompiledForward, batch_size_of
from pocketbayes.training.objective import computing


class Distilled:
    """The batches of a loader with soft targets q = (1 - a) onehot(y) + a softmax(teacher(x)).

    Eq. (23) of docs/method.md, for `fit`, `fit_map` or `nelbo` with a `Categorical` likelihood.  Several teachers
    answer with the mean of their probabilities.  They are copied as they are now, Bayesian ones at their means, and
    asked in evaluation mode about the very inputs that are handed on, augmented or not.  Positions that the labels
    leave out (`ignore_index`) stay left out: their q is zero.  Targets that are soft already are mixed like labels.
    The NLL of such batches contains the entropy of q; judge on labels.

    Args:
        loader: batches `(x, ..., y)` or dicts; shuffling and random numbers are the loader's own.
        teacher: a network, or a list of them.
        fraction: a, the teacher's part of the targets, from 0 (labels alone) to 1.
        by_mode: each teacher's answers are for the mode of its number alone, which keeps modes apart; otherwise all
            learn from the mean.
        likelihood: the one to train with, which knows where the classes are in an output.
        autocast, compiled: how teachers compute, as in `fit`.

    Returns:
        An iterable with the length of `loader`, whose batches have targets [N, C, ...].

    Examples:
        >>> import torch, pocketbayes as pb
        >>> batches = [(torch.randn(8, 4), torch.randint(3, (8,)))]
        >>> ((x, q),) = pb.Distilled(batches, torch.nn.Linear(4, 3), fraction=0.5)
        >>> q.shape, bool((q.max(1).values > 0.5).all())
        (torch.Size([8, 3]), True)
    """

    def __init__(
        self,
        loader: Iterable[Any],
        teacher: nn.Module | Sequence[nn.Module],
        *,
        fraction: float = 0.5,
        by_mode: bool = False,
        likelihood: Likelihood | Callable[[Any, Any], Tensor] | None = None,
        autocast: torch.dtype | None = None,
        compiled: bool = False,
    ) -> None:
        if not 0 <= fraction <= 1:
            raise ValueError(f"Distillation: the teacher's fraction must be from 0 to 1, got {fraction}.")
        self.loader, self.fraction, self.by_mode = loader, fraction, by_mode
        self.likelihood = require_classes(likelihood)
        self.autocast, teachers = autocast, [frozen(each) for each in several(teacher)]
        self.device = next((p.device for each in teachers for p in each.parameters()), None)
        size = batch_size_of(loader)
        self.teachers = [CompiledForward(each, size) if compiled else each for each in teachers]

    def __len__(self) -> int:
        if not isinstance(self.loader, Sized):
            raise TypeError("The loader to distil for has no length. Use a DataLoader or a list.")
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        # Not a generator function: the loader draws its order now, and not when the first batch is asked for.
        return (self._softened(raw, number) for number, raw in enumerate(self.loader))

    def _softened(self, raw: Any, number: int) -> Any:
        """The batch, a tuple or a dict as it was, with soft targets [N, C, ...]."""
        batch = unpack(raw, self.device)
        soft = self.soft_targets(batch)
        if not all(bool(torch.isfinite(each).all()) for each in soft):
            raise NonFiniteError(
                f"batch {number}: the teacher's answers are not finite. "
                "Look for NaN or infinity in the inputs, or in the teacher's weights."
            )
        target = soft if self.by_mode else soft[0]
        return (
            {**batch.kwargs, target_key(raw): target} if isinstance(raw, Mapping) else (*batch.args, target)
        )

    @torch.no_grad()
    def soft_targets(self, batch: Batch) -> OfModes:
        """q = (1 - a) onehot(y) + a softmax(teacher(x)), [N, C, ...], for each mode or one for all; zero where there is
        no label.
        """
        answers = [self._logits(teacher, batch) for teacher in self.teachers]
        labels = self.likelihood.probabilities(answers[0], batch.target)
        taught = torch.stack([logits.softmax(1) for logits in answers])
        mixed = (1 - self.fraction) * labels + self.fraction * (
            taught if self.by_mode else taught.mean(0)[None]
        )
        return OfModes(torch.where(labels.sum(1, keepdim=True) > 0, q, 0.0) for q in mixed)

    def _logits(self, teacher: Callable[..., Any], batch: Batch) -> Tensor:
        with computing(self.autocast, "cpu" if self.device is None else self.device.type):
            answer = teacher(*batch.args, **batch.kwargs)
        logits = self.likelihood.logits(answer)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))


def several(teacher: nn.Module | Sequence[nn.Module]) -> list[nn.Module]:
    """One teacher or more, every mode one of its own, or the complaint that there is none."""
    teachers: list[Any] = list(teacher) if isinstance(teacher, (list, tuple, nn.ModuleList)) else [teacher]
    for each in teachers or [None]:
        if not isinstance(each, nn.Module):
            raise ValueError(
                "Distillation: the teacher must be an nn.Module, or a list of them, "
                f"got {'an empty list' if each is None else type(each).__name__}."
            )
    return [network for each in teachers for network in modes_of(each)]


def frozen(model: nn.Module) -> nn.Module:
    """A copy of the model in evaluation mode, a Bayesian one at its means; training the model does not move it."""
    model = unwrap(model)
    twin = to_deterministic(model) if stochastic_weights(model) else copy.deepcopy(model)
    return twin.eval()


def require_classes(likelihood: Likelihood | Callable[[Any, Any], Tensor] | None) -> Categorical:
    """The likelihood, `Categorical()` by default, or the complaint that it has no classes to mix."""
    found = as_likelihood(likelihood)
    if not isinstance(found, Categorical):
        raise ValueError(
            "Distillation mixes probabilities of classes, so it needs a Categorical likelihood, got "
            f"{type(found).__name__}. Leave distillation out, or train on targets of your own."
        )
    return found
