"""What a prediction says and how sure it is: `Predictive` for classes, `Regression` for numbers.

Tensors, or numpy arrays where there is no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pocketbayes.arrays import like, namespace
from pocketbayes.data import Scaling

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Predictive:
    """Classification: p(y | x), the mean over draws of probabilities, and how its entropy splits (nats).

    entropy = aleatoric + epistemic: the part that every draw agrees on, and the part from their disagreement; and
    epistemic = between_modes + within_modes.
    N counts examples, or all positions of them; C classes, S draws.

    Args:
        probs: [N, C].
        entropy, aleatoric, epistemic: [N].
        passes: of the network, that each answer took, [N].
        draws: probabilities of each draw, [S, N, C], on request.
        quantile: of conformal scores, where `pb.conformal` has measured it.
        between_modes: the part of epistemic from the disagreement of modes, [N], where there are several.

    Examples:
        >>> import torch, pocketbayes as pb
        >>> answer = pb.predict(pb.bayesianize(torch.nn.Linear(4, 3)), torch.randn(5, 4))
        >>> answer.probs.shape, answer.labels.shape, answer.confidence.shape
        (torch.Size([5, 3]), torch.Size([5]), torch.Size([5]))
    """

    probs: Tensor
    entropy: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    passes: Tensor | None = None
    draws: Tensor | None = None
    quantile: float | None = None
    between_modes: Tensor | None = None

    @property
    def within_modes(self) -> Tensor:
        """The rest of epistemic, from the disagreement of draws of one mode, [N]."""
        return self.epistemic if self.between_modes is None else self.epistemic - self.between_modes

    @property
    def labels(self) -> Tensor:
        """The most probable class, [N]."""
        return self.probs.argmax(1)

    @property
    def confidence(self) -> Tensor:
        """Its probability, [N]."""
        largest: Tensor = namespace(self.probs).amax(self.probs, 1)
        return largest

    @property
    def sets(self) -> Tensor | None:
        """Which classes are in each prediction set, bool [N, C]: those probable enough that the truth is in the set
        with the probability 1 - alpha of `pb.conformal`.  None without it.  An empty set says "none of them".
        """
        return None if self.quantile is None else 1 - self.probs <= self.quantile


@dataclass(frozen=True, kw_only=True)
class Regression:
    """Regression: the predictive mean, its variance, and the part of it that comes from the weights.

    In the units of the network's output, and their square.

    Args:
        mean: [N, ...].
        var: in all, of the weights and of the likelihood's noise, [N, ...].
        epistemic_var: that of the weights, [N, ...].
        draws, sigmas: means and noise of each draw, [S, N, ...], on request.
        quantile: of conformal scores, where `pb.conformal` has measured it.
        between_modes_var: the part of epistemic_var from the disagreement of modes, where there are several.

    Examples:
        >>> import torch, pocketbayes as pb
        >>> model, noise = pb.bayesianize(torch.nn.Linear(4, 1)), pb.likelihood.Homoscedastic(0.5)
        >>> answer = pb.predict(model, torch.randn(5, 4), likelihood=noise)
        >>> bool((answer.var >= answer.epistemic_var + 0.249).all())
        True
    """

    mean: Tensor
    var: Tensor
    epistemic_var: Tensor
    draws: Tensor | None = None
    sigmas: Tensor | None = None
    quantile: float | None = None
    between_modes_var: Tensor | None = None

    @property
    def lower(self) -> Tensor | None:
        """Lower ends of intervals that hold the truth with the probability 1 - alpha of `pb.conformal`, all those of an
        example together, [N, ...].  None without it.
        """
        return None if self.quantile is None else self.mean - self.quantile * self.var**0.5

    @property
    def upper(self) -> Tensor | None:
        """Their upper ends, [N, ...]."""
        return None if self.quantile is None else self.mean + self.quantile * self.var**0.5


def in_units(answer: Regression, scaling: Scaling | None) -> Regression:
    """A prediction of standardised targets in the units of the data, float64."""
    if scaling is None:
        return answer
    mean, std = (like(part.astype(np.float64), answer.mean) for part in (scaling.mean, scaling.std))
    return replace(
        answer,
        mean=answer.mean * std + mean,
        var=answer.var * std**2,
        epistemic_var=answer.epistemic_var * std**2,
        between_modes_var=None if answer.between_modes_var is None else answer.between_modes_var * std**2,
        draws=None if answer.draws is None else answer.draws * std + mean,
        sigmas=None if answer.sigmas is None else answer.sigmas * std,
    )
