"""Channels-last memory, in which convolutions are fastest, for networks whose code allows it.

Code that asks for a `view` of what a convolution returns depends on the other layout; one batch tells.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pocketbayes.runs import randomness


def channels_last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor


def prefer_channels_last(model: nn.Module, shape: Sequence[int]) -> None:
    """Lay out the weights of a network for images channels-last, unless it cannot run then; `shape` is one input's."""
    if len(shape) != 3:
        return
    training, given = model.training, [(tensor, tensor.data) for tensor in model.parameters()]
    model.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    try:
        with torch.no_grad(), randomness.forked():
            model(torch.zeros(2, *shape))
    except RuntimeError:
        for tensor, values in given:
            tensor.data = values
    finally:
        model.train(training)
