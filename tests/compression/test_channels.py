"""Channels in one unit: norms take their scales back."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import pocketbayes as pb
from pocketbayes.compression.channels import norms_behind, scale_channels
from pocketbayes.posterior.weights import stochastic_weights


class Residual(nn.Module):
    """Norms behind layers and elsewhere: before a layer, behind a sum, behind an output that is read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.followed, self.norm = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.summed, self.after_sum = nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.twice, self.after_twice = nn.Conv2d(6, 6, 1, bias=False), nn.BatchNorm2d(6)
        self.plain, self.without = nn.Conv2d(6, 6, 1), nn.BatchNorm2d(6, affine=False)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.followed(x)).relu()
        x = self.after_sum(self.summed(x) + x)
        y = self.twice(x)
        x = self.without(self.plain(self.after_twice(y) + y))
        return self.head(x.mean((2, 3)))


def seeded() -> nn.Module:
    torch.manual_seed(0)
    model = Residual()
    for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
        norm.running_mean.normal_()
        norm.running_var.uniform_(1e-4, 2.0)
        if norm.affine:
            norm.weight.data.uniform_(-1.0, 2.0)
            norm.bias.data.normal_()
    sigma = {
        name: 0.1 * torch.rand_like(p) * torch.logspace(-2, 1, len(p)).view(-1, *[1] * (p.dim() - 1))
        for name, p in model.named_parameters()
        if p.dim() > 1
    }
    return pb.bayesianize(model, sigma=sigma).eval()


def centres(model: nn.Module) -> dict[str, Tensor]:
    """The geometric mean of each channel's sigmas."""
    return {
        s.path: s.moments.sigma.detach().flatten(1).log().mean(1).exp() for s in stochastic_weights(model)
    }


def test_answers_stay_in_means_and_in_draws() -> None:
    model, x = seeded(), torch.randn(5, 3, 8, 8)
    scaled = copy.deepcopy(model)
    scale_channels(scaled)
    with torch.no_grad():
        with pb.mean_weights(model), pb.mean_weights(scaled):
            torch.testing.assert_close(scaled(x), model(x))
        ours, theirs = (pb.predict(m, x, samples=4, seed=1).probs for m in (scaled, model))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_only_what_a_norm_takes_back_is_scaled() -> None:
    model = seeded()
    before = centres(model)
    scale_channels(model)
    after = centres(model)
    assert [name for name in before if not torch.allclose(before[name], after[name])] == ["followed.weight"]
    others = [s.moments.sigma for s in stochastic_weights(model) if s.path != "followed.weight"]
    unit = torch.cat([sigma.detach().log().flatten() for sigma in others]).mean().exp()
    torch.testing.assert_close(after["followed.weight"], unit.expand(6), rtol=1e-4, atol=0)


def test_where_every_channel_has_a_norm_all_sigmas_have_one_geometric_mean() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5, bias=False), nn.BatchNorm1d(5), nn.Linear(5, 2), nn.BatchNorm1d(2))
    pb.bayesianize(model, sigma={"0.weight": torch.rand(5, 3) + 0.1, "2.weight": torch.rand(2, 5) + 0.01})
    logs = torch.cat([s.moments.sigma.log().flatten() for s in stochastic_weights(model)])
    scale_channels(model)
    for found in centres(model).values():
        torch.testing.assert_close(found, logs.mean().exp().detach().expand(len(found)), rtol=1e-4, atol=0)


class Untraceable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(3, 2), nn.BatchNorm1d(2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        return self.norm(x) if bool(x.sum() > 0) else self.norm(-x)


@pytest.mark.parametrize("used_twice", [False, True])
def test_a_network_whose_norms_cannot_be_told_stays(used_twice: bool) -> None:
    torch.manual_seed(0)
    layer, norm = nn.Linear(3, 3), nn.BatchNorm1d(3)
    model = nn.Sequential(layer, norm, layer, norm) if used_twice else Untraceable()
    assert norms_behind(model) == {}
    pb.bayesianize(model)
    before = copy.deepcopy(model.state_dict())
    scale_channels(model)
    for name, tensor in model.state_dict().items():
        assert torch.equal(torch.as_tensor(tensor), torch.as_tensor(before[name]))
