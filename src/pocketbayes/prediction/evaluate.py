"""`evaluate`: how good and how honest the answers are on a data set, and how well they tell OOD inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from pocketbayes.data.loaders import part
from pocketbayes.likelihood import Batch, Categorical, Likelihood
from pocketbayes.posterior.modes import unwrap
from pocketbayes.prediction.answering import Answering, Samples, likelihood_for
from pocketbayes.prediction.inputs import device_of, labelled, unlabelled
from pocketbayes.prediction.score import Evaluation, ood_scores
from pocketbayes.runs import ranks
from pocketbayes.runs.progress import track


def evaluate(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    likelihood: Likelihood | Callable[[Any, Any], Tensor] | None = None,
    samples: Samples = 30,
    tolerance: float | None = None,
    seed: int = 0,
    ood: Iterable[Any] | None = None,
    max_bytes: int = 2 << 30,
    progress: bool = False,
) -> Evaluation:
    """How good and how honest the predictions are on the batches of `loader`.

    Args:
        model: a network that `bayesianize` converted, or a plain one, which is run once.
        loader: batches `(x, ..., y)`, or dicts with labels.
        likelihood: `Categorical()` by default; `Homoscedastic(...)`, `Heteroscedastic()`, or a function of
            (output, target).
        samples, tolerance: draws of the weights, as in `predict`; "mean" for one pass, "auto" for as many as needed.
        seed: of the draws.
        ood: batches of out-of-distribution inputs: tensors, or batches as in `loader`, whose labels are left aside.
        max_bytes: memory for drawn weights; draws beyond it are made again for each batch.
        progress: show a bar on a terminal.

    Returns:
        For classes accuracy, NLL (nats), ECE, Brier and the mean total and epistemic entropy (nats); for regression
        RMSE, NLL, the mean sigmas and the coverage of 95 % intervals; otherwise the NLL.  With `ood` also AUROC, AUPR
        and the false-positive rates at 85 and 95 % true positives, by predictive entropy.

    Examples:
        >>> import torch, pocketbayes as pb
        >>> model = pb.bayesianize(torch.nn.Linear(4, 3))
        >>> scores = pb.evaluate(model, [(torch.randn(20, 4), torch.randint(3, (20,)))], samples=4)
        >>> 0 <= scores.accuracy <= 1
        True
    """
    ranks.require_same_network(unwrap(model))
    likelihood = likelihood_for(model, likelihood)
    if ood is not None and not isinstance(likelihood, Categorical):
        raise ValueError("ood= needs a categorical likelihood: it ranks inputs by predictive entropy.")
    answering = Answering(
        model,
        likelihood=likelihood,
        samples=samples,
        tolerance=tolerance,
        seed=seed,
        max_bytes=max_bytes,
        keep=not isinstance(likelihood, Categorical),
    )
    device = device_of(model)
    batches = labelled(track(part(loader), "evaluate", enabled=progress), device)
    empty = "The loader to evaluate on is empty. Pass one with at least one batch."
    answer, targets = ask(answering, batches, empty=empty)
    result = Evaluation(answering.reduce.score(answer, torch.cat(targets)))
    if ood is not None:
        empty = "ood= is empty. Pass batches of out-of-distribution inputs."
        outside, _ = ask(answering, unlabelled(part(ood), device), empty=empty)
        result |= ood_scores(answer, outside)
    return result


def ask(answering: Answering, batches: Iterable[Batch], *, empty: str) -> tuple[Any, list[Any]]:
    """One answer for all batches, those of the other ranks too, and their targets; a ValueError that says `empty` if
    there are none.
    """
    parts, targets = [], []
    for batch in batches:
        parts.append(answering(batch))
        targets.append(batch.target)
    parts, targets = ranks.gather_in_turn(parts), ranks.gather_in_turn(targets)
    if not parts:
        raise ValueError(empty)
    return answering.reduce.join(parts), targets
