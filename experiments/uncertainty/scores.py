"""What a method says about held-out images, and how good that is, before a temperature and with one."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn

import pocketbayes as pb
from experiments.stopping import at_temperature
from pocketbayes import metrics
from pocketbayes.data import DataSet
from pocketbayes.prediction.average import Samples
from pocketbayes.prediction.held_out import HeldOutClasses
from pocketbayes.prediction.scales import Scales, give_scales


class Said(NamedTuple):
    """The probabilities of every pass for N images, [S, N, C], and the labels, [N]."""

    passes: Tensor
    labels: Tensor

    def at(self, temperature: float) -> Tensor:
        """The mean probabilities, the logits of every pass divided by the temperature, [N, C]."""
        return at_temperature(self.passes, temperature)


def asked(model: nn.Module, images: DataSet, samples: Samples = "mean") -> Said:
    """What every pass says at temperature 1: the means of each mode, or draws."""
    give_scales(model, Scales())
    answer = pb.predict(model, images.inputs(), samples=samples, draws=True)
    assert answer.draws is not None
    return Said(answer.draws, images.y)


def fitted_temperature(validation: Said) -> float:
    """The one with the least NLL on validation images, as `pb.calibrate` finds it."""
    return HeldOutClasses(validation.passes, validation.labels).best_temperature()


def scores(probs: Tensor, labels: Tensor) -> dict[str, float]:
    """Of mean probabilities [N, C]."""
    names = ("accuracy", "nll", "ece", "aurc")
    return {name: round(getattr(metrics, name)(probs, labels), 5) for name in names}


def both_scores(said: Said, temperature: float) -> dict[str, Any]:
    """As said, and at that temperature."""
    return {
        "passes": len(said.passes),
        "temperature": temperature,
        "plain": scores(said.at(1.0), said.labels),
        "calibrated": scores(said.at(temperature), said.labels),
    }
