"""The same seed gives the same bytes: what is promised in docs/guide.md."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import pocketbayes as pb

TRAINED = pb.Plan(epochs=2, finetune_epochs=1, temperature=0.01, bfloat16=False)
UNTRAINED = pb.Plan(epochs=0, temperature=0.01)


@pytest.fixture(autouse=True)
def as_many_threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def compressed(folder: Path, plan: pb.Plan, threads: int) -> bytes:
    """A convolutional network with a norm, on so many threads."""
    torch.set_num_threads(threads)
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(64, 3, 12, 12, generator=g), torch.randint(4, (64,), generator=g)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        stem, body = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3)
        head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))
    model = nn.Sequential(stem, nn.BatchNorm2d(16), nn.ReLU(), body, nn.ReLU(), head)
    path = folder / f"{threads}.pocket"
    loader = pb.data.BatchLoader(x, y, 32)
    pb.compress(model, loader, path=path, max_bytes=2500, plan=plan, graph=False, progress=False)
    return path.read_bytes()


def test_without_training_any_number_of_threads_gives_the_same_bytes(tmp_path: Path) -> None:
    one, two = (compressed(tmp_path, UNTRAINED, threads) for threads in (1, 2))
    assert one == two


def test_with_training_another_process_gives_the_same_bytes_on_as_many_threads(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        other = pool.apply(compressed, (tmp_path / "other", TRAINED, 1))
    assert other == compressed(tmp_path, TRAINED, 1)
