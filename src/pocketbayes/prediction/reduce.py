"""From the outputs of all draws to one answer, batch by batch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from pocketbayes import metrics
from pocketbayes.likelihood import Categorical, Heteroscedastic, Homoscedastic, Likelihood, output_tensor
from pocketbayes.prediction.answer import Predictive, Regression
from pocketbayes.prediction.score import class_scores, regression_scores

Answer = TypeVar("Answer")


class Reducer(ABC, Generic[Answer]):
    """Outputs of a batch, draw by draw -> an answer; answers of batches -> one; answer and targets -> scores."""

    def __init__(self, likelihood: Any, keep: bool, modes: int = 1) -> None:
        self.likelihood = likelihood
        self.keep = keep  # what each draw said
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
    """Running means over draws: nothing of size S is kept unless asked for."""

    def __call__(self, outputs: Iterator[Any]) -> Predictive:
        of_mode, entropies = [torch.zeros(())] * self.modes, torch.zeros(())
        kept, count = [], 0
        for output in outputs:
            logits = self.likelihood.logits(output).movedim(1, -1)
            p = logits.flatten(0, -2).double().softmax(-1)  # [N, C]
            of_mode[count % self.modes] = of_mode[count % self.modes] + p
            entropies, count = entropies + torch.special.entr(p).sum(-1), count + 1
            if self.keep:
                kept.append(p)
        probs = torch.stack(of_mode).sum(0) / count
        split = metrics.uncertainty_from_means(probs, entropies / count)
        return Predictive(
            probs=probs,
            entropy=split.total,
            aleatoric=split.aleatoric,
            epistemic=split.epistemic,
            draws=torch.stack(kept) if self.keep else None,
            between_modes=self._between(of_mode, split.total, count) if self.modes > 1 else None,
        )

    def _between(self, of_mode: list[Tensor], total: Tensor, count: int) -> Tensor:
        """The entropy that goes when the mode is known, I(y; m), [N]; `of_mode` are sums of probabilities [N, C]."""
        draws = [len(range(mode, count, self.modes)) for mode in range(self.modes)]
        known = [n * torch.special.entr(p / n).sum(-1) for p, n in zip(of_mode, draws, strict=True)]
        return total - torch.stack(known).sum(0) / count

    def join(self, parts: Sequence[Predictive]) -> Predictive:
        return Predictive(
            probs=torch.cat([p.probs for p in parts]),
            entropy=torch.cat([p.entropy for p in parts]),
            aleatoric=torch.cat([p.aleatoric for p in parts]),
            epistemic=torch.cat([p.epistemic for p in parts]),
            draws=torch.cat([p.draws for p in parts if p.draws is not None], dim=1) if self.keep else None,
            between_modes=_joined([p.between_modes for p in parts]),
        )

    def score(self, answer: Predictive, target: Tensor) -> dict[str, float]:
        return class_scores(answer, target, ignore_index=self.likelihood.ignore_index)


class Normals(Reducer[Regression]):
    """Means and noise of every draw; the total variance is E[sigma^2] + Var[mean].  Eq. (8) of docs/method.md."""

    def _split(self, output: Any) -> tuple[Tensor, Tensor]:
        if isinstance(self.likelihood, Heteroscedastic):
            mean, sigma = self.likelihood.split(output)
            return mean.double(), sigma.double()
        mean = output_tensor(output).double()
        return mean, self.likelihood.sigma.detach().to(mean).expand_as(mean)

    def __call__(self, outputs: Iterator[Any]) -> Regression:
        pairs = [self._split(output) for output in outputs]
        means, sigmas = torch.stack([m for m, _ in pairs]), torch.stack([s for _, s in pairs])  # [S, N, ...]
        epistemic = means.var(0, correction=0)
        return Regression(
            mean=means.mean(0),
            var=epistemic + sigmas.square().mean(0),
            epistemic_var=epistemic,
            draws=means if self.keep else None,
            sigmas=sigmas if self.keep else None,
            between_modes_var=self._between(means) if self.modes > 1 else None,
        )

    def _between(self, means: Tensor) -> Tensor:
        """The variance of the modes' means, each as often as it was drawn."""
        averages = torch.stack([means[mode :: self.modes].mean(0) for mode in range(self.modes)])
        return averages[torch.arange(len(means)) % self.modes].var(0, correction=0)

    def join(self, parts: Sequence[Regression]) -> Regression:
        return Regression(
            mean=torch.cat([p.mean for p in parts]),
            var=torch.cat([p.var for p in parts]),
            epistemic_var=torch.cat([p.epistemic_var for p in parts]),
            draws=torch.cat([p.draws for p in parts if p.draws is not None], 1) if self.keep else None,
            sigmas=torch.cat([p.sigmas for p in parts if p.sigmas is not None], 1) if self.keep else None,
            between_modes_var=_joined([p.between_modes_var for p in parts]),
        )

    def score(self, answer: Regression, target: Tensor) -> dict[str, float]:
        return regression_scores(answer, target)


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    known = [part for part in parts if part is not None]
    return torch.cat(known) if known else None


def reducer(likelihood: Likelihood, *, keep: bool, modes: int = 1) -> Reducer[Any]:
    """The reducer that fits the likelihood; `keep` what each draw said, draws being of so many modes in turn."""
    if isinstance(likelihood, Categorical):
        return Classes(likelihood, keep, modes)
    if isinstance(likelihood, (Homoscedastic, Heteroscedastic)):
        return Normals(likelihood, keep, modes)
    return AnyOutputs(likelihood, keep)
