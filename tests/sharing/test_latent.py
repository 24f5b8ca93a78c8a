from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

import pocketbayes as pb
from pocketbayes.posterior.weights import stochastic_weights
from pocketbayes.sharing import labels
from pocketbayes.sharing.evidence import sample, spots
from pocketbayes.sharing.labels import Table, share_by_rate
from pocketbayes.sharing.latent import SAMPLE, Assignment, LatentWeight, freeze, make_latent
from pocketbayes.sharing.rate import Rate, RateCode, prices


def latent_model(*widths: int, components: int = 16) -> nn.Module:
    """Linear layers with heavy tails of mu and sigmas that spread over two e-folds."""
    g = torch.Generator().manual_seed(0)
    model = nn.Sequential(*(nn.Linear(a, b, bias=False) for a, b in itertools.pairwise(widths)))
    sigma = {}
    for name, p in model.named_parameters():
        scale = 0.1 / p.shape[1] ** 0.5
        normal, chi = torch.randn(p.shape, generator=g), torch.randn(4, *p.shape, generator=g).square().sum(0)
        p.data = scale * normal / (chi / 4).sqrt()
        sigma[name] = 0.4 * scale * (0.5 * torch.randn(p.shape, generator=g)).exp()
    pb.bayesianize(model, sigma=sigma)
    make_latent(model, components)
    return model


def weights(model: nn.Module) -> list[LatentWeight]:
    return [site.weight for site in stochastic_weights(model)]


def excess(assignment: Assignment, rate: Rate, chosen: list[Tensor]) -> float:
    """By what fraction labels cost more than the cheapest ones, at the code before; costs from torch.distributions."""
    code, total, best = assignment._open_code(rate), 0.0, 0.0
    for i, (m, s, label) in enumerate(zip(*assignment.latents(), chosen, strict=True)):
        own = Normal(m.double().view(-1, 1), s.double().view(-1, 1))
        cost = kl_divergence(Normal(*code.codebook), own) - rate.lambda_ * code.frequency[i, :-1].log()
        outlier = rate.lambda_ * (32 * torch.tensor(2.0).log() - code.frequency[i, -1:].log())
        cost = torch.cat([cost, outlier.expand(len(cost), 1)], 1)
        total += float(cost.gather(1, label.view(-1, 1).long()).sum())
        best += float(cost.amin(1).sum())
    return total / best - 1


def renewed(model: nn.Module, rate: Rate, code: RateCode | None = None) -> tuple[Assignment, Assignment]:
    """An assignment with the code (or one that is fitted) before a renewal, and another after it."""
    before, after = Assignment(model, rate), Assignment(model, rate)
    before.code = after.code = code or share_by_rate(*before.latents(), rate).fit.code
    after.renew()
    return before, after


@pytest.mark.parametrize("lambda_", [0.1, 1.0])
def test_labels_of_a_large_layer_cost_little_more_than_the_cheapest(
    lambda_: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rate, model = Rate(lambda_=lambda_, components=16), latent_model(300, 200)
    assert SAMPLE < 300 * 200
    before, _ = renewed(model, rate)
    assert 0 < excess(before, rate, [w.labels for w in weights(model)]) < 0.01
    monkeypatch.setattr(labels, "CELLS", (16, 4))  # the control: few cells are not enough
    renewed(model, rate, before.code)
    assert excess(before, rate, [w.labels for w in weights(model)]) > 0.01


def test_labels_of_a_small_layer_are_the_cheapest() -> None:
    rate, model = Rate(lambda_=0.3, components=16), latent_model(60, 50, 40)
    before, _ = renewed(model, rate)
    assert excess(before, rate, [w.labels for w in weights(model)]) == pytest.approx(0.0, abs=1e-9)


def test_a_sample_of_a_large_layer_finds_nearly_the_code_of_all_weights() -> None:
    rate, model = Rate(lambda_=0.3, components=8), latent_model(400, 300)
    before, after = renewed(model, rate)
    exact = before.share().fit.code
    used = after.code.frequency[0, :8] > 0.02
    assert int(used.sum()) > 3
    pair = (code.frequency[0, :8][used] for code in (after.code, exact))
    torch.testing.assert_close(*pair, rtol=0.1, atol=0.01)
    moved = (after.code.codebook.mu[:8] - exact.codebook.mu)[used] / exact.codebook.sigma[used]
    assert float(moved.abs().max()) < 0.2


@pytest.mark.parametrize("period", [3, 9, 32, 288, 576])
def test_a_sample_has_no_period(period: int) -> None:
    position = spots(512 * 512 * 9, 1 << 13)
    count = torch.bincount(position % period, minlength=period).double()
    assert float(count.min()) > 0.3 * float(count.mean())
    strided = torch.arange(0, 512 * 512 * 9, 288)  # the control
    assert int(torch.bincount(strided % period, minlength=period).min()) == 0
    assert len(position.unique()) == len(position)
    assert torch.equal(sample(torch.arange(100), 100), torch.arange(100))


def test_any_value_has_a_cell() -> None:
    code = Assignment(latent_model(30, 20), Rate(components=16))._open_code(Rate(components=16))
    table = Table.of(torch.randn(100), torch.randn(100) - 5, prices(code, Rate())[0])
    extreme = torch.tensor([0.0, 1e38, -1e38, float("inf"), float("nan"), 1e-38])
    label = table.look_up(*torch.cartesian_prod(extreme, extreme).unbind(1))
    assert int(label.max()) <= 16
    assert Table.of(torch.zeros(9), torch.zeros(9), prices(code, Rate())[0]).scale[0] > 0


def test_forward_passes_see_the_shared_values_and_gradients_reach_the_latent_ones() -> None:
    model = latent_model(40, 30, components=8)
    Assignment(model, Rate(lambda_=0.5, components=8)).renew()
    (site,) = stochastic_weights(model)
    weight, (mu, sigma) = site.weight, site.moments
    shared = weight.labels < 8
    assert bool(shared.any())
    label = weight.labels[shared].long()
    torch.testing.assert_close(mu[shared], weight.shared_mu[label])
    torch.testing.assert_close(sigma[shared], weight.shared_sigma[label])
    (mu * 3 + sigma * 0).sum().backward()
    torch.testing.assert_close(site.original.grad, torch.full_like(mu, 3.0))


def test_labels_do_not_depend_on_the_layout_in_memory() -> None:
    found = []
    for layout in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(0)
        model = pb.bayesianize(nn.Conv2d(40, 50, 3, bias=False))
        make_latent(model, 16)
        model.to(memory_format=layout)
        Assignment(model, Rate(lambda_=0.1, components=16)).renew()
        found.append(weights(model)[0].labels.contiguous())
    assert torch.equal(*found)
    assert len(found[0].unique()) > 4


def test_sharing_changes_nothing_and_freezing_keeps_its_labels() -> None:
    model = latent_model(60, 50)
    assignment = Assignment(model, Rate(lambda_=0.5, components=16))
    assignment.renew()
    state, code = copy.deepcopy(model.state_dict()), assignment.code
    result = assignment.share()
    assert assignment.code is code
    after = model.state_dict()
    assert all(torch.equal(state[name], after[name]) for name in state)
    freeze(model, result)
    mu = stochastic_weights(model)[0].moments.mu.detach()
    inside = ~result.outliers[0]
    torch.testing.assert_close(mu[inside], result.fit.codebook.mu[result.labels[0][inside].long()].float())


def test_renewal_is_the_same_for_any_number_of_threads() -> None:
    found, before = [], torch.get_num_threads()
    for number in (1, 2):
        torch.set_num_threads(number)
        model = latent_model(300, 200, 50)
        assignment = Assignment(model, Rate(lambda_=0.3, components=16), max_bits=100_000.0)
        assignment.aim()
        for _ in range(3):
            assignment.renew()
        found.append(
            ([w.labels for w in weights(model)], assignment.code.codebook.mu, assignment.rate.lambda_)
        )
    torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(found[0][0], found[1][0], strict=True))
    assert torch.equal(found[0][1], found[1][1])
    assert found[0][2] == found[1][2]


def test_lambda_is_steered_to_the_bits() -> None:
    model = latent_model(300, 200)
    assignment = Assignment(model, Rate(components=16), max_bits=120_000.0)
    assignment.aim()
    assignment.rate = Rate(lambda_=assignment.rate.lambda_ / 2, components=16)
    for _ in range(60):
        assignment.renew()
    assert assignment.share().fit.bits() == pytest.approx(120_000, rel=0.03)


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="make_latent"):
        Assignment(pb.bayesianize(nn.Linear(2, 2)), Rate())
    with pytest.raises(ValueError, match="room for 16"):
        Assignment(latent_model(10, 10), Rate(components=17))
    model = latent_model(30, 20)
    stochastic_weights(model)[0].original.data.fill_(float("nan"))
    with pytest.raises(ValueError, match="NaN"):
        Assignment(model, Rate(components=16)).renew()
