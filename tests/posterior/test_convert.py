from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import pocketbayes as pb
from pocketbayes import nets
from pocketbayes.posterior.weights import sites, stochastic_weights


def paths(model: nn.Module) -> set[str]:
    return {site.path for site in sites(model)}


def conv_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))


def test_weights_are_converted_and_the_rest_is_reported() -> None:
    model = pb.bayesianize(conv_net())
    assert paths(model) == {"0.weight", "4.weight"}
    described = {row.path: row for row in pb.describe(model)}
    assert described["0.weight"].status == "stochastic"
    assert described["1.weight"].status == "deterministic"
    assert "normalisation" in described["1.weight"].note
    assert "biases=True" in described["0.bias"].note
    assert set(described) == {"0.weight", "0.bias", "1.weight", "1.bias", "4.weight", "4.bias"}
    assert "468 stochastic" in str(pb.describe(model))


def test_a_plain_model_is_described_by_what_would_become_of_it() -> None:
    assert [row.status for row in pb.describe(nn.Linear(2, 2))] == ["stochastic", "deterministic"]


def test_biases_and_norms_come_on_request() -> None:
    assert paths(pb.bayesianize(conv_net(), biases=True)) == {"0.weight", "0.bias", "4.weight", "4.bias"}
    assert paths(pb.bayesianize(conv_net(), norms=True)) == {"0.weight", "1.weight", "1.bias", "4.weight"}


@pytest.mark.parametrize("where", ["4.*", ["4.weight"], lambda name, parameter: parameter.shape[0] == 3])
def test_where_chooses_by_pattern_or_predicate(where) -> None:
    assert paths(pb.bayesianize(conv_net(), where=where)) == {"4.weight"}


def test_ties_are_described() -> None:
    model = nn.ModuleDict({"a": nn.Embedding(4, 3), "b": nn.Linear(3, 4, bias=False)})
    model["b"].weight = model["a"].weight
    rows = {row.path: row for row in pb.describe(pb.bayesianize(model))}
    assert rows["b.weight"].status == "tied"
    assert "a.weight" in rows["b.weight"].note


def test_priors_and_sigmas_are_as_asked() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    before = copy.deepcopy(model)
    given = {"0.weight": torch.full((3, 4), 0.2), "1.weight": torch.rand(2, 3) + 0.1}
    pb.bayesianize(model, prior={"0.*": pb.Pretrained(0.3), "*": pb.ZeroMean(pb.FanIn(2.0))}, sigma=given)
    first, second = stochastic_weights(model)
    assert torch.equal(first.weight.prior_mu, before[0].weight)
    assert second.weight.prior_mu is None
    assert (first.weight.prior_sigma, second.weight.prior_sigma) == (0.3, pytest.approx(2 / 3**0.5))
    for site in (first, second):
        torch.testing.assert_close(site.moments.sigma, given[site.path])


def test_relative_sigma_follows_the_weights_down_to_its_floor() -> None:
    model = nn.Linear(50, 40)
    w = model.weight.detach().clone()
    pb.bayesianize(model, sigma=pb.Relative(0.2, floor=0.5))
    expected = 0.2 * w.abs().clamp_min(0.5 * w.square().mean().sqrt())
    torch.testing.assert_close(stochastic_weights(model)[0].moments.sigma, expected, rtol=1e-4, atol=0)


def test_separately_converted_parts_draw_independently() -> None:
    a, b = nn.Linear(40, 40, bias=False), nn.Linear(40, 40, bias=False)
    model = nn.ModuleList(
        [pb.bayesianize(a, sigma=pb.Absolute(1.0)), pb.bayesianize(b, sigma=pb.Absolute(1.0))]
    )
    with pb.one_draw(model, 0), torch.no_grad():
        noise = [(s.original - getattr(s.owner, s.name)).flatten() for s in stochastic_weights(model)]
    assert abs(torch.corrcoef(torch.stack(noise))[0, 1]) < 0.1


BAD = {
    "converting twice": (lambda: pb.bayesianize(pb.bayesianize(nn.Linear(2, 2))), "Bayesian already"),
    "an unknown pattern": (lambda: pb.bayesianize(conv_net(), where="head.*"), "matches no parameter"),
    "no parameters": (lambda: pb.bayesianize(nn.ReLU()), "no parameters"),
    "only norms": (lambda: pb.bayesianize(nn.LayerNorm(3)), "norms=True"),
    "integer weights": (lambda: pb.bayesianize(integers()), "floating-point"),
    "frozen weights": (lambda: pb.bayesianize(nn.Linear(2, 2).requires_grad_(False)), "frozen"),
    "lazy layers": (lambda: pb.bayesianize(nn.LazyLinear(3)), "forward pass"),
    "sigma of zero": (lambda: pb.Absolute(0.0), "positive"),
    "negative prior": (lambda: pb.ZeroMean(-1.0), "positive"),
    "no sigma given": (lambda: pb.bayesianize(nn.Linear(2, 2), sigma={}), "no initial sigma"),
    "a number as sigma": (lambda: pb.bayesianize(nn.Linear(2, 2), sigma=0.1), "pb.Absolute"),
    "sigma of another shape": (
        lambda: pb.bayesianize(nn.Linear(2, 2), sigma={"weight": torch.ones(3)}),
        "shape",
    ),
    "zero in sigma": (
        lambda: pb.bayesianize(nn.Linear(2, 2), sigma={"weight": torch.zeros(2, 2)}),
        "positive",
    ),
    "no prior for a layer": (
        lambda: pb.bayesianize(nn.Linear(2, 2), prior={"x*": pb.ZeroMean()}),
        "no prior",
    ),
    "not Bayesian": (lambda: pb.kl_divergence(nn.Linear(2, 2)), "pb.bayesianize"),
}


def integers() -> nn.Module:
    model = nn.Module()
    model.weight = nn.Parameter(torch.ones(2, 2, dtype=torch.int32), requires_grad=False)
    return model


@pytest.mark.parametrize(("attempt", "message"), BAD.values(), ids=BAD)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_bad_input_gets_an_error_that_teaches(attempt, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        attempt()


def test_a_failed_conversion_leaves_the_model_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    with torch.no_grad():
        model[1].weight[0, 0] = torch.nan
    keys = set(model.state_dict())
    with pytest.raises(ValueError, match=r"1.weight.*not finite"):
        pb.bayesianize(model)
    assert set(model.state_dict()) == keys
    assert type(model[0]) is nn.Linear
    assert not model._forward_pre_hooks


def test_the_way_back_does_not_touch_the_bayesian_model() -> None:
    model = pb.bayesianize(nets.mlp([3, 4, 2]))
    pb.to_deterministic(model)
    pb.to_deterministic(model)
    assert not torch.equal(model(torch.ones(1, 3)), model(torch.ones(1, 3)))


class Constant(nn.Module):
    """A network of buffers only."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("w", torch.ones(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


def test_a_network_without_parameters_answers_and_does_not_learn(tmp_path) -> None:
    loader = pb.data.BatchLoader(torch.ones(8, 4), torch.arange(8) % 3, 4)
    assert pb.predict(Constant(), torch.ones(2, 4)).probs.shape == (2, 3)
    for learn in (
        lambda: pb.fit_map(Constant(), loader, epochs=1),
        lambda: pb.fisher_information(Constant(), loader),
        lambda: pb.compress(Constant(), loader, path=tmp_path / "x.pocket", max_bytes=100),
    ):
        with pytest.raises(ValueError, match="has no parameters"):
            learn()


def test_the_state_of_a_bayesian_model_goes_through_torch_save(tmp_path) -> None:
    model, x = pb.bayesianize(nets.mlp([3, 4, 2])), torch.ones(1, 3)
    torch.save(model.state_dict(), tmp_path / "state.pt")
    other = pb.bayesianize(nets.mlp([3, 4, 2]))
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    with pb.one_draw(model, 1), pb.one_draw(other, 1):
        assert torch.equal(model(x), other(x))


@pytest.mark.parametrize("cut", [lambda net: net[:2], lambda net: net[0]], ids=["a slice", "a layer"])
def test_a_part_of_a_bayesian_network_is_one_too(cut) -> None:
    net = pb.bayesianize(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), sigma=pb.Absolute(0.5))
    part, x = cut(net), torch.randn(5, 4)
    layer = part if isinstance(part, nn.Linear) else part[0]
    plain = pb.to_deterministic(part)
    weight = plain.weight if isinstance(plain, nn.Linear) else plain[0].weight
    assert torch.equal(weight, layer.parametrizations.weight.original)
    with pb.mean_weights(part):
        assert torch.equal(part(x), plain(x))
    with pb.one_draw(part, 3):
        drawn = part(x)
        assert torch.equal(part(x), drawn)
    assert not torch.equal(drawn, plain(x))
    with pb.one_draw(net, 3):
        assert torch.equal(part(x), drawn)
    assert pb.predict(part, x).probs.shape == (5, 8)


def test_one_draw_says_that_a_compiled_network_draws_by_itself() -> None:
    net = pb.bayesianize(nets.mlp([4, 8, 3]))
    with pytest.warns(UserWarning, match="compiled"), pb.one_draw(torch.compile(net, backend="eager"), 3):
        pass
