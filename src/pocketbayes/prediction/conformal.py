"""Split-conformal prediction: sets of classes, and intervals of numbers, that hold the truth as often as is asked for.

Whatever the network, if new data are like the validation data.  A class is in the set if its score, 1 - p, is at most
the quantile of the scores that true classes have in validation data.  Among all such rules this one has the smallest
sets on average (Sadinle, Lei and Wasserman, 2019), and it needs no random numbers: its coverage is exact up to
1 / (N + 1) where scores do not tie.  The price: where alpha is above the error rate, unsure answers have empty sets.
The score of a regression is the largest |y - mean| / sigma of an example's targets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pocketbayes.data.loaders import part
from pocketbayes.likelihood import Likelihood
from pocketbayes.posterior.weights import stochastic_weights, unwrap
from pocketbayes.prediction.answer import Predictive, Regression
from pocketbayes.prediction.answering import Answering, likelihood_for
from pocketbayes.prediction.evaluate import ask
from pocketbayes.prediction.inputs import device_of, labelled
from pocketbayes.prediction.scales import Scales, give_scales, scales_of
from pocketbayes.runs.progress import track


class Conformal(NamedTuple):
    """Which scores are allowed, so that prediction sets miss the truth with probability alpha."""

    alpha: float
    mean: float  # the largest score, for one pass through the means
    draws: float  # and for draws
    examples: int  # of the validation data


def conformal(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    alpha: float = 0.1,
    likelihood: Likelihood | Callable[[Any, Any], Tensor] | None = None,
    samples: int = 30,
    seed: int = 0,
    progress: bool = False,
) -> Conformal:
    """Let the model's answers have prediction sets, or intervals, that miss the truth with probability `alpha`.

    They hold on average over validation and new data of one kind, for one pass and for so many draws.  The model keeps
    what was found, `save` writes it, and `calibrate` and training undo it: call this last.

    Args:
        model: a network, Bayesian or plain.
        loader: batches held out of training; not the test set.
        alpha: the probability of a miss.
        likelihood: `Categorical()` by default; `Homoscedastic(...)` or `Heteroscedastic()`.
        samples: draws of an answer; as many as predictions will have.
        seed: of the draws.
        progress: show a bar on a terminal.

    Returns:
        The largest score of a class in the set, 1 - p; or half the length of an interval, in predictive sigmas.

    Examples:
        >>> import torch, pocketbayes as pb
        >>> model, x = pb.bayesianize(torch.nn.Linear(4, 3)), torch.randn(100, 4)
        >>> found = pb.conformal(model, [(x, torch.randint(3, (100,)))], alpha=0.2)
        >>> pb.predict(model, x).sets.shape
        torch.Size([100, 3])
    """
    _require_probability(alpha)
    likelihood = likelihood_for(model, likelihood)
    ways: tuple[Any, ...] = ("mean", samples) if stochastic_weights(model) else ("mean",)
    empty = "The loader of conformal is empty. Pass one with at least one batch."
    found, batches = [], list(loader)
    for way in ways:
        answering = Answering(model, likelihood=likelihood, samples=way, seed=seed, keep=False)
        asked = labelled(track(part(batches), "conformal", enabled=progress), device_of(model))
        answer, targets = ask(answering, asked, empty=empty)
        scores = conformal_scores(answer, torch.cat(targets), getattr(likelihood, "ignore_index", None))
        found.append(conformal_quantile(scores, alpha))
    give_quantiles(model, alpha, found[0], found[-1])
    return Conformal(alpha, found[0], found[-1], len(scores))


def give_quantiles(model: nn.Module, alpha: float, mean: float, draws: float) -> None:
    """Let the model's answers have prediction sets."""
    old = scales_of(unwrap(model))
    give_scales(
        unwrap(model),
        Scales(old.mean._replace(quantile=mean), old.draws._replace(quantile=draws), alpha, old.noise),
    )


def conformal_scores(
    answer: Predictive | Regression | Tensor, target: Tensor, ignored: int | None = None
) -> Tensor:
    """How badly each target fits its answer, [N]."""
    if isinstance(answer, Predictive):
        target = target.flatten()
        counted = target != ignored
        return 1 - answer.probs[counted].gather(1, target[counted, None])[:, 0]
    if isinstance(answer, Regression):
        score = (target.to(answer.mean).reshape(answer.mean.shape) - answer.mean).abs() / answer.var.sqrt()
        return score.flatten(1).amax(1) if score.ndim > 1 else score
    raise ValueError(
        "conformal: sets are of classes, and intervals of Gaussian likelihoods. Pass one of them."
    )


def conformal_quantile(scores: Tensor, alpha: float) -> float:
    """The score that the next one exceeds with probability at most alpha, from N of them, [N]."""
    return scores.sort().values[rank_of_quantile(len(scores), alpha) - 1].item()


def rank_of_quantile(examples: int, alpha: float) -> int:
    """Its place among so many sorted scores, from 1: ceil((N + 1) (1 - alpha))."""
    _require_probability(alpha)
    rank = math.ceil((examples + 1) * (1 - alpha) - 1e-9)  # the slack keeps 100 * 0.9 at 90
    if rank > examples:
        raise ValueError(
            f"conformal: {examples} examples cannot tell what happens once in {1 / alpha:.4g} cases. "
            f"Pass at least {math.ceil(1 / alpha - 1e-9) - 1}, or a larger alpha."
        )
    return rank


def _require_probability(alpha: float) -> None:
    if not 0 < alpha < 1:
        raise ValueError(f"conformal: alpha is a probability between 0 and 1, got {alpha}.")
