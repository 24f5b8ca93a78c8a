"""Whether a network knows its inputs as the data have them, or standardised."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from pocketbayes.data import DataSet, Scaling
from pocketbayes.likelihood import output_tensor

CHECKED = 1000  # training examples by which the scaling of inputs is judged
BETTER = 0.7  # of the NLL is much better


@torch.no_grad()
def scaling_warning(network: nn.Module, data: DataSet) -> str:
    """Weights from elsewhere may know inputs as they are: what to say where these give much better answers, or ""."""
    if data.classes is None:
        return ""
    few = data.subset(slice(0, CHECKED))
    plain = replace(few, scaling=Scaling(np.zeros(1), np.ones(1), data.scaling.full))
    scaled, unscaled = (
        cross_entropy(output_tensor(network.eval()(d.inputs())), d.y, ignore_index=-1).item()
        for d in (few, plain)
    )
    if unscaled >= BETTER * scaled:
        return ""
    return (
        "warning: inputs are standardised, and the network answers better to inputs that are not (NLL "
        f"{unscaled:.3g} instead of {scaled:.3g}). If it was trained on those, add --mean 0 --std 1"
    )
