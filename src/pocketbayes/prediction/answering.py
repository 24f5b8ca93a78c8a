"""How a model answers batches: by one pass, by a number of draws, or by as many draws as each input needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from torch import Tensor, nn

from pocketbayes.likelihood import Batch, Likelihood, as_likelihood
from pocketbayes.posterior.weights import stochastic_weights, unwrap
from pocketbayes.prediction.ensemble import Ensemble
from pocketbayes.prediction.reduce import Classes, reducer
from pocketbayes.prediction.scales import Scale, scales_of

Samples = int | Literal["mean", "auto"]
MOST = 30  # draws of "auto"
TOLERANCE = 0.01  # of "auto": the standard error of an input's probabilities at which it is finished


class Answering:
    """A model, and all that decides how it answers: passes, likelihood, and the scales that validation data chose."""

    def __init__(
        self,
        model: nn.Module,
        *,
        likelihood: Likelihood | Callable[[Any, Any], Tensor] | None,
        samples: Samples,
        tolerance: float | None = None,
        seed: int,
        max_bytes: int = 2 << 30,
        keep: bool,
        scale: Scale | None = None,
    ) -> None:
        if isinstance(samples, str) and samples not in ("mean", "auto"):
            raise ValueError(f'samples must be "mean", "auto" or a number of draws, got {samples!r}.')
        if scale is None:
            one_pass = samples == "mean" or not stochastic_weights(model)
            scale = scales_of(unwrap(model)).mean if one_pass else scales_of(unwrap(model)).draws
        self.reduce = reducer(as_likelihood(likelihood), keep=keep, scale=scale)
        self.tolerance = TOLERANCE if samples == "auto" and tolerance is None else tolerance
        if self.tolerance is not None:
            self._require_stoppable(samples, self.tolerance)
        most = MOST if samples == "auto" else samples
        self.ensemble = Ensemble(model, samples=most, seed=seed, max_bytes=max_bytes)

    def _require_stoppable(self, samples: Samples, tolerance: float) -> None:
        if not tolerance > 0:
            raise ValueError(f"tolerance must be positive, got {tolerance}.")
        if samples == "mean":
            raise ValueError('tolerance= is of draws, and samples="mean" makes none. Give one or the other.')
        if not isinstance(self.reduce, Classes) or self.reduce.keep:
            raise ValueError(
                "Stopping when an input's probabilities are known is for classes, and keeps no draws. "
                'Give a number of draws, or samples="mean".'
            )

    def __call__(self, batch: Batch) -> Any:
        """The answer for one batch."""
        if self.tolerance is None:
            return self.reduce(self.ensemble.outputs(*batch.args, **batch.kwargs))
        assert isinstance(self.reduce, Classes)
        return self.reduce.as_needed(
            lambda wanted: self.ensemble.outputs_of(batch.args, batch.kwargs, wanted),
            batch.size,
            self.tolerance,
        )
