"""From the outputs of all draws to one answer, batch by batch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from pocketbayes import metrics
from pocketbayes.likelihood import Categorical, Heteroscedastic, Homoscedastic, Likelihood, output_tensor
from pocketbayes.prediction.answer import Predictive, Regression
from pocketbayes.prediction.scales import Scale
from pocketbayes.prediction.score import class_scores, regression_scores

Answer = TypeVar("Answer")
LEAST = 4  # draws from which a variance between draws is estimated


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


class Sums:
    """Sums over the draws of each row: of its probabilities mode by mode, their squares and their entropies."""

    def __init__(self, like: Tensor, modes: int) -> None:
        self.of_mode = like.new_zeros(modes, *like.shape)  # [M, N, C]
        self.drawn = torch.zeros(modes, len(like), dtype=torch.int64, device=like.device)
        self.squares, self.entropies = torch.zeros_like(like[:, 0]), torch.zeros_like(like[:, 0])  # [N]
        self.number = 0  # of the next draw

    def add(self, p: Tensor, rows: Tensor | slice = slice(None)) -> None:
        """The next draw, of these rows, [n, C]."""
        mode = self.number % len(self.drawn)
        self.of_mode[mode][rows] += p
        self.drawn[mode][rows] += 1
        self.squares[rows] += p.square().sum(-1)
        self.entropies[rows] += torch.special.entr(p).sum(-1)
        self.number += 1

    @property
    def probs(self) -> Tensor:
        """[N, C], over all modes."""
        return self.of_mode.sum(0)

    @property
    def count(self) -> Tensor:
        """Draws of each row, [N]."""
        return self.drawn.sum(0)

    @property
    def entropies_of_modes(self) -> Tensor:
        """The mean over draws of the entropy of their mode, [N]; what it lacks of the entropy of all is I(y; m)."""
        p = self.of_mode / self.drawn.clamp_min(1)[..., None]
        known: Tensor = (self.drawn * torch.special.entr(p).sum(-1)).sum(0) / self.count
        return known

    def error(self, rows: Tensor) -> Tensor:
        """Standard error of the mean probabilities, as a length over the classes, [n]; infinite for few draws, and
        where there are more of one mode than of another.
        """
        n = self.drawn[:, rows].sum(0).double()
        total = self.of_mode[:, rows].sum(0)
        spread = self.squares[rows] - total.square().sum(-1) / n  # sum over draws of |p - mean|^2
        error = (spread.clamp_min(0) / (n * (n - 1))).sqrt()
        return torch.where((n < LEAST) | (n % len(self.drawn) > 0), math.inf, error)


class Classes(Reducer[Predictive]):
    """Running sums over draws: nothing of size S is kept unless asked for."""

    def probabilities(self, output: Any) -> Tensor:
        """Of one draw, in rows: [N, C], all positions of an example one after the other."""
        logits = self.likelihood.logits(output).movedim(1, -1)
        p: Tensor = (logits.flatten(0, -2).double() / self.scale.temperature).softmax(-1)
        return p

    def __call__(self, outputs: Iterator[Any]) -> Predictive:
        sums, kept = None, []
        for output in outputs:
            p = self.probabilities(output)
            sums = Sums(p, self.modes) if sums is None else sums
            sums.add(p)
            if self.keep:
                kept.append(p)
        assert sums is not None
        return self._answer(sums, torch.stack(kept) if self.keep else None)

    def as_needed(
        self, outputs_of: Callable[[Callable[[], Tensor]], Iterator[Any]], size: int, tolerance: float
    ) -> Predictive:
        """Draws of each of `size` inputs until the standard errors of its probabilities are within the tolerance."""
        sums, left = None, torch.arange(size)

        def unfinished() -> Tensor:
            return left

        for output in outputs_of(unfinished):
            p = self.probabilities(output)
            positions = torch.arange(len(p) // len(left))
            rows = (left[:, None] * len(positions) + positions).flatten().to(p.device)
            sums = Sums(p, self.modes) if sums is None else sums
            sums.add(p, rows)
            error = sums.error(rows).view(len(left), -1).amax(1).cpu()
            left = left[error > tolerance]
        assert sums is not None
        return self._answer(sums, None)

    def _answer(self, sums: Sums, draws: Tensor | None) -> Predictive:
        probs = sums.probs / sums.count[:, None]
        split = metrics.uncertainty_from_means(probs, sums.entropies / sums.count)
        return Predictive(
            probs=probs,
            entropy=split.total,
            aleatoric=split.aleatoric,
            epistemic=split.epistemic,
            passes=sums.count,
            draws=draws,
            quantile=self.scale.quantile,
            between_modes=split.total - sums.entropies_of_modes if self.modes > 1 else None,
        )

    def join(self, parts: Sequence[Predictive]) -> Predictive:
        return Predictive(
            probs=torch.cat([p.probs for p in parts]),
            entropy=torch.cat([p.entropy for p in parts]),
            aleatoric=torch.cat([p.aleatoric for p in parts]),
            epistemic=torch.cat([p.epistemic for p in parts]),
            passes=torch.cat([p.passes for p in parts if p.passes is not None]),
            draws=torch.cat([p.draws for p in parts if p.draws is not None], dim=1) if self.keep else None,
            quantile=self.scale.quantile,
            between_modes=_joined([p.between_modes for p in parts]),
        )

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
        pairs = [self._split(output) for output in outputs]
        means, sigmas = torch.stack([m for m, _ in pairs]), torch.stack([s for _, s in pairs])  # [S, N, ...]
        epistemic = means.var(0, correction=0)
        return Regression(
            mean=means.mean(0),
            var=epistemic + sigmas.square().mean(0),
            epistemic_var=epistemic,
            draws=means if self.keep else None,
            sigmas=sigmas if self.keep else None,
            quantile=self.scale.quantile,
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
            quantile=self.scale.quantile,
            between_modes_var=_joined([p.between_modes_var for p in parts]),
        )

    def score(self, answer: Regression, target: Tensor) -> dict[str, float]:
        return regression_scores(answer, target)


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    known = [part for part in parts if part is not None]
    return torch.cat(known) if known else None


def reducer(likelihood: Likelihood, *, keep: bool, scale: Scale = Scale(), modes: int = 1) -> Reducer[Any]:
    """The reducer that fits the likelihood; `keep` what each draw said, draws being of so many modes in turn."""
    if isinstance(likelihood, Categorical):
        return Classes(likelihood, keep, scale, modes)
    if isinstance(likelihood, (Homoscedastic, Heteroscedastic)):
        return Normals(likelihood, keep, scale, modes)
    return AnyOutputs(likelihood, keep, scale)
