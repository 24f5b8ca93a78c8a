"""What a model says about held-out data, kept: its NLL at any temperature, without another pass."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from pocketbayes.data.loaders import part
from pocketbayes.likelihood import Categorical, Likelihood
from pocketbayes.prediction.answer import Regression
from pocketbayes.prediction.answering import Answering, Samples
from pocketbayes.prediction.evaluate import ask
from pocketbayes.prediction.inputs import device_of, labelled
from pocketbayes.prediction.scales import Scale

REACH = math.log(20.0)  # temperatures from 1/20 to 20 are tried
KNOWN = math.log(2.0)  # a temperature is known if the standard error of its logarithm is at most so much
STEP = 0.1  # of ln T, for the curvature


class HeldOut(ABC):
    """Outputs of S draws for N examples, and the targets."""

    has_temperature: ClassVar[bool] = True

    @abstractmethod
    def log_p(self, temperature: float) -> Tensor:
        """ln p(target) of each draw, [S, N]."""

    def nll(self, temperature: float = 1.0) -> Tensor:
        """-ln of the mean over draws of p(target), in nats: [N]."""
        log_p = self.log_p(temperature)
        return math.log(len(log_p)) - log_p.logsumexp(0)

    def _loss(self, log_temperature: float) -> float:
        return self.nll(math.exp(log_temperature)).mean().item()

    def best_temperature(self) -> float:
        """The temperature with the least mean NLL, in the four digits that a file has."""
        if not self.has_temperature:
            return 1.0
        bounds, options = (-REACH, REACH), {"xatol": 1e-5}
        found = minimize_scalar(self._loss, bounds=bounds, method="bounded", options=options)
        return float(f"{math.exp(found.x):.4g}")

    def known_temperature(self) -> float:
        """The same, or a ValueError where there are too few data to tell it."""
        best, count = self.best_temperature(), self.log_p(1.0).shape[1]
        log_t = math.log(best)
        second = (self._loss(log_t - STEP) - 2 * self._loss(log_t) + self._loss(log_t + STEP)) / STEP**2
        if self.has_temperature and (abs(log_t) > REACH - STEP or count * second * KNOWN**2 < 1):
            raise ValueError(
                f"calibrate: {count:,} validation examples are too few to tell the temperature, which they leave open "
                "by more than a factor of 2. Pass more, above all ones that the network gets wrong."
            )
        return best


class HeldOutClasses(HeldOut):
    """Probabilities [S, N, C], whose logarithms are logits, and labels [N]."""

    def __init__(self, probs: Tensor, labels: Tensor) -> None:
        self.logits = probs.clamp_min(torch.finfo(probs.dtype).tiny).log()
        self.labels = labels.expand(len(probs), -1)[..., None]  # [S, N, 1]

    def log_p(self, temperature: float) -> Tensor:
        logits = self.logits / temperature
        return logits.gather(2, self.labels)[..., 0] - logits.logsumexp(2)


class HeldOutNormals(HeldOut):
    """Means and sigmas [S, N, ...], and targets [N, ...]; the temperature multiplies the variance."""

    def __init__(self, means: Tensor, sigmas: Tensor, targets: Tensor) -> None:
        self.means, self.sigmas, self.targets = means, sigmas, targets.to(means).reshape(means.shape[1:])

    def log_p(self, temperature: float) -> Tensor:
        normal = torch.distributions.Normal(self.means, math.sqrt(temperature) * self.sigmas)
        log_p: Tensor = normal.log_prob(self.targets)
        return log_p.flatten(2).sum(2) if log_p.ndim > 2 else log_p


class HeldOutOutputs(HeldOut):
    """Of a likelihood that is any function of (output, target), and has no temperature."""

    has_temperature = False

    def __init__(self, log_p: Tensor) -> None:
        self.known = log_p

    def log_p(self, temperature: float) -> Tensor:
        return self.known


def held_out(
    model: nn.Module, loader: Iterable[Any], likelihood: Likelihood, samples: Samples, seed: int
) -> HeldOut:
    """Ask the model, at temperature 1, about all batches of the loader."""
    answering = Answering(model, likelihood=likelihood, samples=samples, seed=seed, keep=True, scale=Scale())
    empty = "The loader to calibrate on is empty. Pass one with at least one batch."
    answer, targets = ask(answering, labelled(part(loader), device_of(model)), empty=empty)
    target = torch.cat(targets)
    answering.reduce.score(answer, target)  # which refuses targets that do not fit
    if isinstance(likelihood, Categorical):
        counted = target.flatten() != likelihood.ignore_index
        return HeldOutClasses(answer.draws[:, counted], target.flatten()[counted])
    if isinstance(answer, Regression):
        assert answer.draws is not None and answer.sigmas is not None
        return HeldOutNormals(answer.draws, answer.sigmas, target)
    return HeldOutOutputs(-torch.stack([likelihood.nll(output, target) for output in answer]))
