"""Steering to a budget: what is frozen is what the network was trained with."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import pocketbayes as pb
from pocketbayes.artifact import encode
from pocketbayes.artifact.to_pocket import to_pocket
from pocketbayes.compression.steering import FILLED, Steering
from pocketbayes.posterior.weights import stochastic_weights
from pocketbayes.sharing.latent import make_latent
from pocketbayes.sharing.rate import Rate

MAX_BYTES, SMALLEST, STEPS = 12_000, 1_000, 400


def size_of(model: nn.Module) -> int:
    return len(encode(to_pocket(model)).data)


def steered(max_bytes: int) -> tuple[nn.Module, Steering]:
    """A latent network whose weights move a little at each of 400 steps, less and less, as in training."""
    torch.manual_seed(0)
    model = pb.bayesianize(nn.Sequential(nn.Conv2d(16, 64, 3), nn.Conv2d(64, 64, 3)), sigma=pb.Absolute(0.01))
    make_latent(model, 32)
    steering = Steering(
        model, Rate(components=32), max_bytes=max_bytes, smallest=SMALLEST, size_of=size_of, anneal=0.25
    )
    for step in range(STEPS):
        with torch.no_grad():
            for p in (site.original for site in stochastic_weights(model)):
                p.add_(0.001 * (1 - step / STEPS) * torch.randn(p.shape))
        steering((step + 1) / STEPS)
    return model, steering


def seen(model: nn.Module) -> list[Tensor]:
    """The means and sigmas that forward passes see."""
    return [t.detach().clone() for site in stochastic_weights(model) for t in site.moments]


def test_frozen_weights_are_those_that_the_network_was_trained_with() -> None:
    model, steering = steered(MAX_BYTES)
    before = seen(model)
    steering.freeze()
    assert FILLED * MAX_BYTES <= size_of(model) <= MAX_BYTES
    for after, was in zip(seen(model), before, strict=True):
        torch.testing.assert_close(after, was)


@pytest.mark.parametrize("factor", [0.7, 1.1])
def test_other_labels_are_chosen_where_the_file_would_not_fit_or_not_fill_the_budget(factor: float) -> None:
    model, steering = steered(MAX_BYTES)
    before, budget = seen(model), int(factor * MAX_BYTES)
    steering.max_bytes = budget
    steering.freeze()
    assert 0.97 * budget <= size_of(model) <= budget
    assert any(not torch.allclose(a, b) for a, b in zip(seen(model), before, strict=True))


def test_the_distortion_is_that_of_the_frozen_labels() -> None:
    model, steering = steered(MAX_BYTES)
    latent = [
        [t.detach().clone() for t in weight] for weight in zip(*steering.assignment.latents(), strict=True)
    ]
    told = steering.freeze()
    pairs = zip(latent, stochastic_weights(model), strict=True)
    kl = torch.distributions.kl_divergence
    normal = torch.distributions.Normal
    own = [kl(normal(*site.moments), normal(*q)).sum() for q, site in pairs]
    assert told == pytest.approx(torch.stack(own).sum().item(), rel=1e-3)
