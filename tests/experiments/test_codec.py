"""The mark that the coder is measured by: a mixture of contexts that learns as it goes."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.sharing import codec
from pocketbayes.artifact import Codebook, Pocket, Shared, encode

SHAPE = (48, 48, 3, 3)
FREQUENCY = np.array([0.1, 0.2, 0.4, 0.2, 0.1])


def pocket_of(labels: np.ndarray) -> Pocket:
    book = Codebook(mu=np.linspace(-2, 2, 5, dtype=np.float32), sigma=np.full(5, 0.1, np.float32))
    entry = Shared(shape=SHAPE, labels=labels.astype(np.uint8).reshape(-1))
    return Pocket(tensors={"conv.weight": entry}, codebook=book, noise={"family": "Gaussian"})


def test_independent_labels_cost_their_entropy_under_every_code() -> None:
    pocket = pocket_of(np.random.default_rng(0).choice(5, SHAPE, p=FREQUENCY))
    entropy = -(FREQUENCY * np.log2(FREQUENCY)).sum() * np.prod(SHAPE) / 8
    assert codec.stored(pocket, contexts=False) == pytest.approx(entropy, rel=0.01)
    assert codec.stored(pocket, contexts=True) == pytest.approx(entropy, rel=0.01)
    assert entropy * 0.99 < codec.mixed(pocket) < 1.06 * entropy  # it has everything to learn


def test_the_mixture_sees_what_kernels_do_not_tell() -> None:
    draws = np.random.default_rng(1)
    size = draws.choice([0, 1, 2], (1, SHAPE[1], 1, 1))  # of each input channel
    pocket = pocket_of(2 + size * draws.choice([-1, 1], SHAPE))
    signs = np.prod(SHAPE) * (size > 0).mean() / 8
    assert signs < codec.mixed(pocket) < 1.15 * signs
    assert codec.stored(pocket, contexts=True) > 1.3 * signs


def test_stored_bytes_are_those_of_the_file() -> None:
    pocket = pocket_of(np.random.default_rng(2).choice(5, SHAPE, p=FREQUENCY))
    sizes = encode(pocket).sizes
    assert codec.stored(pocket, contexts=True) == pytest.approx(sizes["LABL"] + sizes["FREQ"], abs=20)
    assert codec.speed(pocket) > 0
