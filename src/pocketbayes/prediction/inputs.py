"""What a model is asked about: batches on its device, finite, with their targets or without."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pocketbayes.likelihood import Batch, unpack, unpack_inputs


def device_of(model: nn.Module) -> torch.device | None:
    return next((p.device for p in model.parameters()), None)


def labelled(loader: Iterable[Any], device: torch.device | None) -> Iterator[Batch]:
    """The batches of a loader, checked."""
    for number, raw in enumerate(loader):
        batch = unpack(raw, device)
        _require_finite(batch, number)
        yield batch


def unlabelled(loader: Iterable[Any], device: torch.device | None) -> Iterator[Batch]:
    """Batches of inputs, checked; labels, if any, are left aside."""
    for number, raw in enumerate(loader):
        batch = unpack_inputs(raw, device)
        _require_finite(batch, number)
        yield batch


def slices(x: Any, size: int, device: torch.device | None) -> Iterator[Batch]:
    """A tensor, a tuple or a dict of tensors in batches of `size` examples, checked."""
    args = (x,) if isinstance(x, Tensor) else tuple(x) if isinstance(x, (tuple, list)) else ()
    kwargs = dict(x) if isinstance(x, Mapping) else {}
    tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor)]
    if not tensors or len(tensors[0]) == 0:
        raise ValueError(
            "Nothing to predict: give a tensor (or a tuple or dict of them) with at least one example."
        )
    if size < 1:
        raise ValueError(f"batch_size must be at least 1, got {size}.")
    _require_finite(Batch(args, kwargs, None), 0)
    for start in range(0, len(tensors[0]), size):
        part = slice(start, start + size)
        batch = Batch(
            tuple(t[part] if isinstance(t, Tensor) else t for t in args),
            {k: t[part] if isinstance(t, Tensor) else t for k, t in kwargs.items()},
            None,
        )
        yield _to_device(batch, device)


def _to_device(batch: Batch, device: torch.device | None) -> Batch:
    if device is None:
        return batch
    return Batch(
        tuple(t.to(device) if isinstance(t, Tensor) else t for t in batch.args),
        {k: t.to(device) if isinstance(t, Tensor) else t for k, t in batch.kwargs.items()},
        batch.target,
    )


def _require_finite(batch: Batch, number: int) -> None:
    for name, t in (*enumerate(batch.args), *batch.kwargs.items()):
        if isinstance(t, Tensor) and t.is_floating_point() and not bool(torch.isfinite(t).all()):
            example = int((~torch.isfinite(t)).reshape(len(t), -1).any(1).nonzero()[0])
            raise ValueError(
                f"Input {name!r} of batch {number} has NaN or infinity, first in example {example}. "
                "Clean the data before predicting."
            )
