"""What a loader of batches tells about the data: how many examples there are, and how many batches in an epoch."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from pocketbayes.likelihood import unpack

SAMPLERS_OF_ALL = (SequentialSampler, RandomSampler, WeightedRandomSampler, DistributedSampler)
EMPTY = "The loader to train on is empty. Pass one with at least one batch."


def innermost(loader: Iterable[Any]) -> Iterable[Any]:
    """The loader itself, or the one that it draws its batches from, as `Distilled` does."""
    while isinstance(inner := getattr(loader, "loader", None), Iterable):
        loader = inner
    return loader


def count_examples(loader: Iterable[Any]) -> int:
    """How many examples there are to train on, whatever the length of an epoch."""
    loader = innermost(loader)
    if isinstance(loader, (list, tuple)) and not loader:
        raise ValueError(EMPTY)
    dataset, sampler = getattr(loader, "dataset", None), getattr(loader, "sampler", None)
    in_batches = isinstance(loader, DataLoader) and loader.batch_sampler is None
    if isinstance(sampler, BatchSampler):
        sampler, in_batches = sampler.sampler, False
    if isinstance(dataset, Sized) and not in_batches:
        if isinstance(sampler, Sized) and not isinstance(sampler, SAMPLERS_OF_ALL):
            return min(len(sampler), len(dataset))  # a part of the data set
        return len(dataset)
    if isinstance(loader, (list, tuple)):
        return sum(unpack(batch).size for batch in loader)
    raise ValueError(
        "fit cannot tell how many training examples there are: the loader's data set has no length, or holds batches. "
        "Pass num_data=, the size of the whole training set (the KL is divided by it)."
    )


def length(loader: Iterable[Any]) -> int:
    """Batches in an epoch."""
    if not isinstance(loader, Sized):
        raise ValueError(
            "The loader has no length: the schedules of learning rate and temperature need one. "
            "Use a DataLoader or a list."
        )
    if not len(loader):
        raise ValueError(EMPTY)
    return len(loader)
