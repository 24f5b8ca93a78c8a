"""What a loader of batches tells about the data, and which of its batches are a rank's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from itertools import islice
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from pocketbayes.likelihood import unpack
from pocketbayes.runs import ranks

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
        own = sum(unpack(batch).size for batch in loader)
        return sum(ranks.gather(own)) if _is_portion(loader) else own
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


def part(loader: Iterable[Any], batches: int | None = None, *, alike: bool = False) -> Iterable[Any]:
    """The batches of this rank, every n-th one, of the first `batches` or of all; without ranks the loader itself.

    A loader with a `DistributedSampler` is divided already.  With `alike` all ranks have equally many: one that lacks
    a batch takes its first one again.
    """
    divided = isinstance(getattr(innermost(loader), "sampler", None), DistributedSampler)
    if ranks.count() == 1 or divided or _is_portion(loader):
        return (
            loader if batches is None else islice(loader, len(range(ranks.number(), batches, ranks.count())))
        )
    size = len(loader) if isinstance(loader, Sized) else None
    ranks.require_same("batches of the loader", size, "Give every rank the same data: they are divided here.")
    if size is not None:
        size = size if batches is None else min(size, batches)
        if alike and size < ranks.count():
            raise ValueError(
                f"The loader has {size} batches for {ranks.count()} processes. "
                "Take smaller batches, or fewer processes."
            )
        return SizedPortion(loader, size, alike)
    return Portion(loader, batches, False)


def _is_portion(loader: Any) -> bool:
    """Whether the loader, or the one that it draws its batches from, is a part already."""
    return isinstance(loader, (Portion, HeldPortion)) or (
        hasattr(loader, "loader") and _is_portion(loader.loader)
    )


class Portion:
    """Every n-th batch of a loader, from this rank's number on."""

    def __init__(self, loader: Iterable[Any], batches: int | None, alike: bool) -> None:
        self.loader, self.batches, self.alike = loader, batches, alike
        self.batch_size = getattr(loader, "batch_size", None)
        self._source = _skipping(loader, batches)

    def __iter__(self) -> Iterator[Any]:
        torch.set_rng_state(ranks.once(torch.get_rng_state))  # so that all ranks shuffle alike
        found = iter(self.loader if self._source is None else self._source)
        if self._source is None:
            found = islice(found, ranks.number(), self.batches, ranks.count())
        return _filled(found, len(self)) if self.alike and isinstance(self, Sized) else found


class HeldPortion(list[Any]):
    """The batches of this rank, in memory."""


class SizedPortion(Portion):
    """The same of a loader with a length."""

    def __len__(self) -> int:
        """Batches of the rank that has most."""
        assert self.batches is not None
        return -(-self.batches // ranks.count())


def _filled(batches: Iterator[Any], count: int) -> Iterator[Any]:
    """The batches, and the first one again if there is one too few."""
    first, found = None, 0
    for found, batch in enumerate(batches, 1):
        first = batch if found == 1 else first
        yield batch
    if 0 < found < count:
        yield first


class _Every:
    """Every n-th item of a batch sampler."""

    def __init__(self, sampler: Iterable[Any], batches: int | None) -> None:
        self.sampler, self.batches = sampler, batches

    def __iter__(self) -> Iterator[Any]:
        return islice(self.sampler, ranks.number(), self.batches, ranks.count())


def _skipping(loader: Iterable[Any], batches: int | None) -> DataLoader[Any] | None:
    """The same loader, which does not read the batches of other ranks; None where that cannot be."""
    if type(loader) is not DataLoader or isinstance(loader.dataset, IterableDataset):
        return None
    if loader.batch_sampler is None:
        return None
    same = (
        *("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context"),
        *("generator", "prefetch_factor", "persistent_workers"),
    )
    sampler: Any = _Every(loader.batch_sampler, batches)
    return DataLoader(loader.dataset, batch_sampler=sampler, **{name: getattr(loader, name) for name in same})
