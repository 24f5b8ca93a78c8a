"""Learning from another network: targets that mix the labels with a teacher's answers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any

import torch
from torch import Tensor, nn

from pocketbayes.ensemble import unwrap
from pocketbayes.errors import NonFiniteError
from pocketbayes.likelihood import Batch, Categorical, Likelihood, as_likelihood, target_key, unpack
from pocketbayes.loop import count_examples
from pocketbayes.posterior.convert import to_deterministic
from pocketbayes.posterior.weights import stochastic_weights


class Distilled:
    """The batches of a loader with soft targets q = (1 - a) onehot(y) + a softmax(teacher(x)).

    Eq. (22) of docs/method.md, for `fit`, `fit_map` or `nelbo` with a `Categorical` likelihood.  The teacher is copied
    as it is now, a Bayesian one at its means, and asked in evaluation mode about the very inputs that are handed on,
    augmented or not.  Positions that the labels leave out (`ignore_index`) stay left out: their q is zero.  Targets
    that are soft already are mixed like labels.  The NLL of such batches contains the entropy of q; judge on labels.

    Args:
        loader: batches `(x, ..., y)` or dicts; shuffling and random numbers are the loader's own.
        share: a, the part of the teacher, from 0 (labels alone) to 1.
        likelihood: the one to train with, which knows where the classes are in an output.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        teacher: nn.Module,
        *,
        share: float = 0.5,
        likelihood: Likelihood | Callable[[Any, Any], Tensor] | None = None,
    ) -> None:
        if not 0 <= share <= 1:
            raise ValueError(f"Distillation: the teacher's share must be from 0 to 1, got {share}.")
        if not isinstance(teacher, nn.Module):
            raise ValueError(f"Distillation: the teacher must be an nn.Module, got {type(teacher).__name__}.")
        self.loader, self.share = loader, share
        self.likelihood = require_classes(likelihood)
        self.teacher = frozen(teacher)
        self.device = next((p.device for p in self.teacher.parameters()), None)

    def __len__(self) -> int:
        if not isinstance(self.loader, Sized):
            raise TypeError("The loader to distil for has no length. Use a DataLoader or a list.")
        return len(self.loader)

    @property
    def dataset(self) -> Any:
        """What tells the number of examples: the loader's data set, or for a list of batches their range."""
        if isinstance(self.loader, (list, tuple)):
            return range(count_examples(self.loader))
        return self.loader.dataset  # type: ignore[attr-defined]

    def __iter__(self) -> Iterator[Any]:
        # Not a generator function: the loader draws its order now, and not when the first batch is asked for.
        return (self._softened(raw, number) for number, raw in enumerate(self.loader))

    def _softened(self, raw: Any, number: int) -> Any:
        """The batch, a tuple or a dict as it was, with soft targets [N, C, ...]."""
        batch = unpack(raw, self.device)
        soft = self.soft_targets(batch)
        if not bool(torch.isfinite(soft).all()):
            raise NonFiniteError(
                f"batch {number}: the teacher's answers are not finite. "
                "Look for NaN or infinity in the inputs, or in the teacher's weights."
            )
        return {**batch.kwargs, target_key(raw): soft} if isinstance(raw, Mapping) else (*batch.args, soft)

    @torch.no_grad()
    def soft_targets(self, batch: Batch) -> Tensor:
        """q = (1 - a) onehot(y) + a softmax(teacher(x)), [N, C, ...]; zero where there is no label."""
        logits = self.likelihood.logits(self.teacher(*batch.args, **batch.kwargs))
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        labels = self.likelihood.probabilities(logits, batch.target)
        mixed = (1 - self.share) * labels + self.share * logits.softmax(1)
        return torch.where(labels.sum(1, keepdim=True) > 0, mixed, 0.0)


def frozen(model: nn.Module) -> nn.Module:
    """A copy of the model in evaluation mode, a Bayesian one at its means; training the model does not move it."""
    model = unwrap(model)
    twin = to_deterministic(model) if stochastic_weights(model) else copy.deepcopy(model)
    return twin.eval()


def require_classes(likelihood: Likelihood | Callable[[Any, Any], Tensor] | None) -> Categorical:
    """The likelihood, `Categorical()` by default, or the complaint that it has no classes to share."""
    found = Categorical() if likelihood is None else as_likelihood(likelihood)
    if not isinstance(found, Categorical):
        raise ValueError(
            "Distillation mixes probabilities of classes, so it needs a Categorical likelihood, got "
            f"{type(found).__name__}. Leave distillation out, or train on targets of your own."
        )
    return found
