from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import pocketbayes as pb
from experiments.sharing.int8 import (
    load_quantised,
    pack,
    quantise_means,
    quantise_sigma,
    save_quantised,
    unpack,
)
from pocketbayes.posterior.weights import stochastic_weights


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))


def posterior(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = pb.bayesianize(net())
    with torch.no_grad():
        for site in stochastic_weights(model):
            site.weight.rho.add_(torch.randn_like(site.weight.rho))
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.uniform_(-1, 1)
                module.weight.uniform_(0.5, 2)
    return model.eval()


def test_means_are_off_by_half_a_step_of_their_channel_at_most() -> None:
    mu = torch.randn(6, 5, 3, 3) * torch.logspace(-3, 2, 6).view(-1, 1, 1, 1)
    error = (quantise_means(mu).values() - mu).abs().flatten(1).amax(1)
    half_steps = mu.flatten(1).abs().amax(1) / 254
    assert (error <= 1.001 * half_steps).all()
    assert (error > 0.5 * half_steps).all()  # and not by less than 8 bits would allow


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_sigmas_are_as_near_as_k_means_of_sklearn_brings_them(bits: int) -> None:
    from sklearn.cluster import KMeans

    sigma = (0.02 * torch.randn(40, 25).exp()).double()
    ours = quantise_sigma(sigma, bits, rounds=200)
    logs = sigma.log().reshape(-1, 1).numpy()
    best = KMeans(2**bits, n_init=10, random_state=0).fit(logs).inertia_
    error = float((ours.values().log() - sigma.log()).square().sum())
    assert best * 0.999 < error < best * 1.15
    assert len(ours.levels) == 2**bits


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_packing_is_undone_and_takes_so_many_bits(bits: int) -> None:
    labels = torch.randint(0, 2**bits, (7, 3, 5), dtype=torch.uint8)
    packed = pack(labels, bits)
    assert len(packed) == -(-labels.numel() * bits // 8)
    assert torch.equal(unpack(packed, bits, (7, 3, 5)), labels)


@pytest.mark.parametrize("bits", [1, 4])
def test_a_saved_posterior_comes_back_quantised_with_everything_deterministic(
    tmp_path: Path, bits: int
) -> None:
    model, other = posterior(0), posterior(1)
    size = save_quantised(model, tmp_path / "q.safetensors", bits)
    assert size == (tmp_path / "q.safetensors").stat().st_size
    load_quantised(tmp_path / "q.safetensors", other)
    for ours, theirs in zip(stochastic_weights(other), stochastic_weights(model), strict=True):
        mu, sigma = theirs.moments
        torch.testing.assert_close(ours.moments.mu, quantise_means(mu.detach()).values())
        torch.testing.assert_close(ours.moments.sigma, quantise_sigma(sigma.detach(), bits).values())
        assert not torch.equal(ours.moments.mu, mu)
    x = torch.randn(8, 3, 8, 8)

    def answers(m: nn.Module) -> Tensor:
        with pb.mean_weights(m), torch.no_grad():
            return m(x)

    assert (
        (answers(other) - answers(model)).abs().max()
        < 0.05
        < (answers(posterior(1)) - answers(model)).abs().max()
    )
