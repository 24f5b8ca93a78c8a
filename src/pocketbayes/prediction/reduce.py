"""From the outputs of all draws to one answer, batch by batch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from pocketbayes.likelihood import Categorical, Heteroscedastic, Homoscedastic, Likelihood, output_tensor
from pocketbayes.prediction.answer import Predictive, Regression
from pocketbayes.prediction.average import as_needed, join, of_classes, of_normals
from pocketbayes.prediction.scales import Scale
from pocketbayes.prediction.score import class_scores, regression_scores

Answer = TypeVar("Answer")


class Reducer(ABC, Generic[Answer]):
    """Outputs of a batch, draw by draw -> an answer; answers of batches -> one; answer and targets -> scores."""

    def __init__(self, likelihood: Any, keep: bool, scale: Scale = Scale(), modes: int = 1) -> None:
        self.likelihood = likelihood
        self.keep = keep  # what each draw said
        self.scale = scale
        self.modes = modes  # draw s is of mode s mod M

    @abstractmethod
    def __call__(self, outputs: Iterator[Any]) -> Answer: ...

    @abstractmethod
    def join(self, parts: Sequence[Answer]) -> Answer: ...

    @abstractmethod
    def score(self, answer: Answer, target: Tensor) -> dict[str, float]: ...


class AnyOutputs(Reducer[Tensor]):
    """Knows nothing of the likelihood: all outputs are kept, [S, N, ...]; the score is the log-mean-exp NLL."""

    def __call__(self, outputs: Iterator[Any]) -> Tensor:
        return torch.stack([output_tensor(output) for output in outputs])

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(parts), dim=1)

    def score(self, answer: Tensor, target: Tensor) -> dict[str, float]:
        log_p = -torch.stack([self.likelihood.nll(output, target) for output in answer])  # [S, N]
        if log_p.shape[1] != len(target):
            raise ValueError(
                f"The likelihood gives {log_p.shape[1]} value{'s' * (log_p.shape[1] != 1)} for {len(target)} examples. "
                "An average over draws needs -ln p of each example: return them all, as with reduction='none'."
            )
        return {"nll": -(log_p.logsumexp(0) - math.log(len(log_p))).mean().item()}


class Classes(Reducer[Predictive]):
    """Probabilities from the logits of every draw."""

    def probabilities(self, output: Any) -> Tensor:
        """Of one draw, in rows: [N, C], all positions of an example one after the other."""
        logits = self.likelihood.logits(output).movedim(1, -1)
        p: Tensor = (logits.flatten(0, -2).double() / self.scale.temperature).softmax(-1)
        return p

    def __call__(self, outputs: Iterator[Any]) -> Predictive:
        return of_classes(
            map(self.probabilities, outputs), keep=self.keep, quantile=self.scale.quantile, modes=self.modes
        )

    def as_needed(
        self, outputs_of: Callable[[Callable[[], Tensor]], Iterator[Any]], size: int, tolerance: float
    ) -> Predictive:
        """Draws of each of `size` inputs until the standard errors of its probabilities are within the tolerance."""
        return as_needed(
            lambda left: map(self.probabilities, outputs_of(lambda: torch.from_numpy(left()))),
            size,
            tolerance,
            quantile=self.scale.quantile,
            modes=self.modes,
        )

    def join(self, parts: Sequence[Predictive]) -> Predictive:
        return join(parts)

    def score(self, answer: Predictive, target: Tensor) -> dict[str, float]:
        return class_scores(answer, target, ignore_index=self.likelihood.ignore_index)


class Normals(Reducer[Regression]):
    """Means and noise of every draw; the total variance is E[sigma^2] + Var[mean].  Eq. (8) of docs/method.md."""

    def _split(self, output: Any) -> tuple[Tensor, Tensor]:
        factor = math.sqrt(self.scale.temperature)
        if isinstance(self.likelihood, Heteroscedastic):
            mean, sigma = self.likelihood.split(output)
            return mean.double(), factor * sigma.double()
        mean = output_tensor(output).double()
        return mean, factor * self.likelihood.sigma.detach().to(mean).expand_as(mean)

    def __call__(self, outputs: Iterator[Any]) -> Regression:
        return of_normals(
            map(self._split, outputs), keep=self.keep, quantile=self.scale.quantile, modes=self.modes
        )

    def join(self, parts: Sequence[Regression]) -> Regression:
        return join(parts)

    def score(self, answer: Regression, target: Tensor) -> dict[str, float]:
        return regression_scores(answer, target)


def reducer(likelihood: Likelihood, *, keep: bool, scale: Scale = Scale(), modes: int = 1) -> Reducer[Any]:
    """The reducer that fits the likelihood; `keep` what each draw said, draws being of so many modes in turn."""
    if isinstance(likelihood, Categorical):
        return Classes(likelihood, keep, scale, modes)
    if isinstance(likelihood, (Homoscedastic, Heteroscedastic)):
        return Normals(likelihood, keep, scale, modes)
    return AnyOutputs(likelihood, keep, scale)
