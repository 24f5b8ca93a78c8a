"""Settings for all tests: repeatable hypothesis runs, one seed, one thread."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))  # zoo, scenarios

torch.set_num_threads(1)  # small networks gain nothing from more, and busy machines lose much

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.random.default_generator.manual_seed(0)
        yield
