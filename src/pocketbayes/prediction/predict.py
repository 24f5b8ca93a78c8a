"""`predict`: draws of the network reduced to an answer that says how sure it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict, Unpack, overload

from torch import Tensor, nn

from pocketbayes.likelihood import Categorical, Heteroscedastic, Homoscedastic, Likelihood
from pocketbayes.prediction.answer import Predictive as Predictive
from pocketbayes.prediction.answer import Regression as Regression
from pocketbayes.prediction.answering import Answering, Samples
from pocketbayes.prediction.inputs import device_of, slices
from pocketbayes.runs.progress import track


class _Options(TypedDict, total=False):
    """What `predict` takes, whatever the likelihood."""

    samples: Samples
    tolerance: float | None
    seed: int
    batch_size: int
    draws: bool
    max_bytes: int
    progress: bool


@overload
def predict(
    model: nn.Module, x: Any, *, likelihood: Categorical | None = None, **options: Unpack[_Options]
) -> Predictive: ...


@overload
def predict(
    model: nn.Module, x: Any, *, likelihood: Homoscedastic | Heteroscedastic, **options: Unpack[_Options]
) -> Regression: ...


@overload
def predict(
    model: nn.Module,
    x: Any,
    *,
    likelihood: Likelihood | Callable[[Any, Any], Tensor] | None,
    **options: Unpack[_Options],
) -> Predictive | Regression | Tensor: ...


def predict(
    model: nn.Module,
    x: Any,
    *,
    samples: Samples = 30,
    tolerance: float | None = None,
    seed: int = 0,
    likelihood: Likelihood | Callable[[Any, Any], Tensor] | None = None,
    batch_size: int = 256,
    draws: bool = False,
    max_bytes: int = 2 << 30,
    progress: bool = False,
) -> Predictive | Regression | Tensor:
    """What the model says about `x`, averaged over draws of its weights.  Eq. (6) of docs/method.md.

    The draws depend on the seed alone, and are the same for every input.  Those of a mode come in pairs whose noise is
    mirrored, z and -z, and much of the error of one is undone by the other: on ResNet-20 four do better than eight
    independent ones.  So ask for an even number, or with M modes for a multiple of 2M.  A plain model is run once.
    Answers have the logit temperature that `calibrate` has found for them.  The model is left as it is, and threads may
    predict at the same time.

    Args:
        model: a network that `bayesianize` converted, or a plain one.
        x: a tensor, a tuple of tensors or a dict of tensors, the examples along the first axis.
        samples: S, the draws; "mean" for one pass of each mode through the means of its weights; "auto" for as many
            draws as each input needs, at most 30.
        tolerance: an input is finished when the standard error of its probabilities, a length over the classes, is at
            most so much; classes only.  "auto" has 0.02.
        seed: of the draws.
        likelihood: `Categorical()` by default; `Homoscedastic(...)`, `Heteroscedastic()`, or a function of
            (output, target).
        batch_size: examples in a forward pass; the answer does not depend on it.
        draws: keep what each draw said.
        max_bytes: memory for drawn weights; draws beyond it are made again for each batch.
        progress: show a bar on a terminal.

    Returns:
        A `Predictive` for a categorical likelihood, a `Regression` for a Homoscedastic or Heteroscedastic one, and the
        outputs themselves, [S, N, ...], for any other.

    Examples:
        >>> import torch, pocketbayes as pb
        >>> model = pb.bayesianize(torch.nn.Linear(4, 3))
        >>> answer = pb.predict(model, torch.randn(5, 4), samples=8)
        >>> bool(torch.allclose(answer.entropy, answer.aleatoric + answer.epistemic))
        True
    """
    inputs = list(slices(x, batch_size, device_of(model)))
    answering = Answering(
        model,
        likelihood=likelihood,
        samples=samples,
        tolerance=tolerance,
        seed=seed,
        max_bytes=max_bytes,
        keep=draws,
    )
    parts = [answering(batch) for batch in track(inputs, "predict", enabled=progress)]
    answer: Predictive | Regression | Tensor = answering.reduce.join(parts)
    return answer
