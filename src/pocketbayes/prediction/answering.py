"""How a model answers batches: by one pass, by a number of draws, or by as many draws as each input needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from pocketbayes.likelihood import Batch, Homoscedastic, Likelihood, as_likelihood
from pocketbayes.posterior.weights import stochastic_weights, unwrap
from pocketbayes.prediction.average import Samples as Samples
from pocketbayes.prediction.average import passes, tolerance_of
from pocketbayes.prediction.ensemble import Ensemble
from pocketbayes.prediction.reduce import Classes, reducer
from pocketbayes.prediction.scales import Scale, scales_of


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
        most = passes(samples)
        if scale is None:
            one_pass = samples == "mean" or not stochastic_weights(model)
            scale = scales_of(unwrap(model)).mean if one_pass else scales_of(unwrap(model)).draws
        self.ensemble = Ensemble(
            model, samples="mean" if samples == "mean" else most, seed=seed, max_bytes=max_bytes
        )
        modes = self.ensemble.modes
        self.reduce = reducer(likelihood_for(model, likelihood), keep=keep, scale=scale, modes=modes)
        can_stop = isinstance(self.reduce, Classes) and not self.reduce.keep
        self.tolerance = tolerance_of(samples, tolerance, can_stop=can_stop)

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


def likelihood_for(
    model: nn.Module, likelihood: Likelihood | Callable[[Any, Any], Tensor] | None
) -> Likelihood:
    """The likelihood given, or by default the one that the model was trained with: regression, if it has noise."""
    noise = scales_of(unwrap(model)).noise
    return as_likelihood(
        Homoscedastic(noise, learned=True) if likelihood is None and noise is not None else likelihood
    )
