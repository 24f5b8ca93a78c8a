"""A posterior with M modes: the mixture of M posteriors, each with probability 1/M."""

from __future__ import annotations

import copy
import math
import pickle
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal, kl_divergence

import pocketbayes as pb
from pocketbayes.posterior.weights import Site, stochastic_weights
from pocketbayes.sharing.latent import Assignment, make_latent
from pocketbayes.sharing.outliers import AbsoluteMean, Outliers
from scenarios import LinearGaussian, linear_gaussian

DRAWS = 3000
Networks = list[nn.Module]


def networks(count: int) -> Networks:
    return [nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double() for _ in range(count)]


def mean_field(plain: Networks, noise: pb.noise.Noise = pb.noise.Gaussian()) -> pb.Modes:
    return pb.bayesianize(plain, sigma=pb.Relative(0.5, floor=0.5), noise=noise)


def by_rate(plain: Networks) -> pb.Modes:
    model = mean_field(plain)
    pb.share(model, pb.Rate(lambda_=0.5, components=8, outlier_bits=8.0))
    return model


def by_paper(plain: Networks) -> pb.Modes:
    model = mean_field(plain)
    outliers = Outliers(mean=AbsoluteMean(0.35), fisher_fraction=None, smallest_cluster=2)
    report = pb.share(model, pb.Paper(components=6, outliers=outliers, merge=None, beyond=1.0))
    assert report.outliers > 0
    assert report.blends > 0
    return model


def latent(plain: Networks) -> pb.Modes:
    model = mean_field(plain)
    make_latent(model, 8)
    Assignment(model, pb.Rate(lambda_=0.5, components=8)).renew()
    return model


def partly_fixed(plain: Networks) -> pb.Modes:
    each = [pb.bayesianize(net, sigma=pb.Relative(0.5, floor=0.5)) for net in plain]
    for net in each:
        pb.break_symmetry(net, pb.structure.Light(), pb.structure.Constant(0.4))
    return pb.Modes(each)


KINDS: dict[str, Callable[[Networks], pb.Modes]] = {
    "mean-field": mean_field,
    "fixed": partly_fixed,
    "rate": by_rate,
    "paper": by_paper,
    "latent": latent,
    "two-point noise": lambda plain: mean_field(plain, pb.noise.TwoPoint()),
}
every_kind = pytest.mark.parametrize("build", KINDS.values(), ids=KINDS)
every_count = pytest.mark.parametrize("count", [1, 2, 3])


def first_sites(model: pb.Modes) -> list[Site]:
    return [stochastic_weights(network)[0] for network in model]


def free(site: Site, value: Tensor) -> Tensor:
    return value.flatten() if site.weight.fixed is None else site.weight.fixed.take(value)


def weight_of(model: pb.Modes, site: Site, number: int) -> Tensor:
    with pb.one_draw(model, 5, number):
        return free(site, getattr(site.owner, site.name))


def mixture(model: pb.Modes) -> MixtureSameFamily:
    """Of the first tensor of all modes, by torch.distributions."""
    q = [site.moments for site in first_sites(model)]
    mu, sigma = torch.stack([m.mu.flatten() for m in q]), torch.stack([m.sigma.flatten() for m in q])
    return MixtureSameFamily(Categorical(torch.ones(len(q)).double()), Independent(Normal(mu, sigma), 1))


@every_kind
@every_count
@torch.no_grad()
def test_draws_have_the_moments_of_the_mixture(build, count: int) -> None:
    model = build(networks(count))
    sites = first_sites(model)
    first = [s for s in range(2 * DRAWS) if s // count % 2 == 0]  # of each pair, so that they are independent
    drawn = [weight_of(model, sites[s % count], s) for s in first]
    w, law = torch.stack(drawn), mixture(model)  # [S, weights]
    within = torch.stack([s.moments.sigma.flatten().square() for s in sites]).mean(0)
    error = (within / DRAWS).sqrt()  # as many draws of each mode: modes add nothing to it
    assert ((w.mean(0) - law.mean) / error).abs().max() < 4.5
    modes = torch.stack([w[m::count].mean(0) for m in range(count)])
    assert (w.var(0) / law.variance - 1).abs().max() < 4.5 * (2 / (DRAWS / count)) ** 0.5
    assert (
        (modes - law.mean) / error
    ).square().mean() > 2 or count == 1  # the control: one mode is not the mixture


@every_kind
@every_count
@torch.no_grad()
def test_the_draws_of_a_pair_have_the_means_between_them(build, count: int) -> None:
    model = build(networks(count))
    for mode, site in enumerate(first_sites(model)):
        w = [weight_of(model, site, k * count + mode) for k in range(6)]
        mu = site.moments.mu.flatten()
        for k in (0, 2, 4):
            torch.testing.assert_close((w[k] + w[k + 1]) / 2, mu)
            assert not torch.allclose(w[k], mu, atol=0.01)
        assert not torch.allclose((w[1] + w[2]) / 2, mu, atol=0.01)  # a control: of two pairs


@every_kind
@every_count
def test_the_kl_is_the_mean_over_modes(build, count: int) -> None:
    model = build(networks(count))
    expected = sum(
        kl_divergence(Normal(*s.moments), Normal(torch.zeros_like(s.moments.mu), s.weight.prior_sigma)).sum()
        for s in stochastic_weights(model)
    )
    torch.testing.assert_close(pb.kl_divergence(model), expected / count)


@pytest.mark.parametrize("apart", [0.0, 0.2, 1.0, 30.0])
@every_count
@torch.no_grad()
def test_the_kl_of_the_mixture_lies_within_ln_m_below_the_bound(count: int, apart: float) -> None:
    nets = [nn.Linear(3, 1, bias=False).double() for _ in range(count)]
    for number, net in enumerate(nets):
        net.weight.fill_(0.3 + apart * number)
    model = pb.bayesianize(nets, prior=pb.ZeroMean(2.0), sigma=pb.Absolute(0.5))
    law, prior = (
        mixture(model),
        Independent(Normal(torch.zeros(3).double(), torch.full((3,), 2.0).double()), 1),
    )
    w = law.component_distribution.sample((20_000,))  # [S, modes, weights]: as many of each mode
    terms = law.log_prob(w) - prior.log_prob(w)
    exact, error, bound = terms.mean(), terms.std(0).mean() / terms.numel() ** 0.5, pb.kl_divergence(model)
    assert exact - 4 * error <= bound <= exact + math.log(count) + 4 * error
    if apart == 0:  # one mode in truth
        assert (bound - exact).abs() < 4 * error
    if apart == 30:  # as far from each other as can be
        assert (bound - exact - math.log(count)).abs() < 4 * error
        assert count == 1 or bound - exact > 4 * error  # the control: the bound is not the KL


@every_kind
def test_a_prediction_is_of_the_modes_in_turn(build) -> None:
    model, x = build(networks(3)), torch.randn(4, 6).double()
    answer = pb.predict(model, x, samples=7, seed=2, draws=True)
    for number in range(7):
        with pb.one_draw(model, 2, number):
            assert model.chosen == number % 3
            torch.testing.assert_close(answer.draws[number], model[number % 3](x).softmax(-1))
            torch.testing.assert_close(answer.draws[number], model(x).softmax(-1))
        plain = pb.to_deterministic(model, 2, number)
        torch.testing.assert_close(answer.draws[number], plain(x).softmax(-1))


@pytest.mark.parametrize("samples", [1, 2, 3, 7, 9])
def test_the_epistemic_part_splits_into_between_and_within_modes(samples: int) -> None:
    answer = pb.predict(mean_field(networks(3)), torch.randn(50, 6).double(), samples=samples, draws=True)
    of_mode = [answer.draws[m::3] for m in range(min(3, samples))]
    entropy = lambda p: torch.special.entr(p).sum(-1)  # noqa: E731
    within = sum(len(p) * (entropy(p.mean(0)) - entropy(p).mean(0)) for p in of_mode) / samples
    torch.testing.assert_close(answer.within_modes, within, atol=1e-9, rtol=0)
    between = 0 if answer.between_modes is None else answer.between_modes
    torch.testing.assert_close(answer.epistemic, between + within)
    if samples > 1:
        assert between.mean() > 0.001


def test_the_variance_of_a_regression_splits_too() -> None:
    model, noise = mean_field(networks(2)), pb.likelihood.Homoscedastic(0.5)
    answer = pb.predict(model, torch.randn(9, 6).double(), samples=6, draws=True, likelihood=noise)
    means = answer.draws.view(3, 2, 9, 3)  # draws of each mode
    between = means.mean(0).var(0, correction=0)
    torch.testing.assert_close(answer.between_modes_var, between)
    torch.testing.assert_close(answer.epistemic_var, between + means.var(0, correction=0).mean(0))


def test_plain_modes_are_an_ensemble() -> None:
    nets, x = networks(3), torch.randn(4, 6).double()
    answer = pb.predict(pb.Modes(nets), x, samples=30)
    torch.testing.assert_close(answer.probs, torch.stack([net(x).softmax(-1) for net in nets]).mean(0))
    torch.testing.assert_close(answer.between_modes, answer.epistemic)


def test_means_are_those_of_the_chosen_mode() -> None:
    model, x = mean_field(networks(2)), torch.randn(4, 6).double()
    plain = pb.to_deterministic(model)
    for mode in (0, 1):
        with model.using(mode), pb.mean_weights(model):
            assert torch.equal(model(x), plain[mode](x))
    with pb.mean_weights(model):
        assert torch.equal(model(x), plain[0](x))
        with model.using(1):
            assert torch.equal(model(x), plain[1](x))


def test_a_plain_call_is_of_any_mode() -> None:
    nets = [nn.Linear(1, 1, bias=False) for _ in range(3)]
    for number, net in enumerate(nets):
        nn.init.constant_(net.weight, number)
    model, counts = pb.Modes(nets), torch.zeros(3)
    for _ in range(600):
        counts[int(model(torch.ones(1, 1)))] += 1
    assert ((counts - 200) / (600 * 2 / 9) ** 0.5).abs().max() < 4.5


def test_threads_choose_modes_of_their_own() -> None:
    model = pb.Modes(networks(2))
    seen: list[int | None] = []
    with model.using(1):
        thread = threading.Thread(target=lambda: seen.append(model.chosen))
        thread.start()
        thread.join()
        assert (model.chosen, seen) == (1, [None])
    assert model.chosen is None


def test_copies_and_pickles_are_whole() -> None:
    model, x = by_rate(networks(2)), torch.randn(4, 6).double()
    twin = copy.deepcopy(model)
    assert torch.equal(pb.predict(twin, x, samples=4).probs, pb.predict(model, x, samples=4).probs)
    assert len({id(s.weight.codebook) for s in stochastic_weights(twin)}) == 1
    plain = pb.to_deterministic(model)
    with plain.using(1):
        assert torch.equal(pickle.loads(pickle.dumps(plain))[1](x), plain(x))


def test_the_loss_is_the_mean_of_the_modes_losses() -> None:
    model = by_rate(networks(3))
    batch = torch.randn(8, 6).double(), torch.randint(3, (8,))
    with pb.mean_weights(model):
        together = pb.nelbo(model, batch, 100, temperature=0.5)
        apart = [pb.nelbo(network, batch, 100, temperature=0.5) for network in model]
    for whole, parts in zip(together, zip(*apart, strict=True), strict=True):
        torch.testing.assert_close(whole, torch.stack(parts).mean())


def test_every_mode_of_a_linear_model_reaches_the_exact_posterior() -> None:
    case: LinearGaussian = linear_gaussian()
    nets = [nn.Linear(case.x.shape[1], 1, bias=False).double() for _ in range(2)]
    model = pb.bayesianize(nets, prior=pb.ZeroMean(case.prior_sigma), sigma=pb.Absolute(0.1))
    noise = pb.likelihood.Homoscedastic(case.noise)
    settings = {"lr": 0.03, "rho_lr": 0.1, "samples": 8, "anneal": 0.0, "progress": False}
    pb.fit(model, [(case.x, case.y)], epochs=600, likelihood=noise, **settings)
    for site in stochastic_weights(model):
        mu, sigma = (part.detach().flatten() for part in site.moments)
        assert ((mu - case.mu).abs() / case.sigma).max() < 0.3
        assert (sigma / case.sigma - 1).abs().max() < 0.1


def test_noise_and_calibration_are_of_all_modes() -> None:
    model = mean_field(networks(2))
    pb.with_noise(model, pb.noise.TwoPoint())
    assert {type(s.weight.noise) for s in stochastic_weights(model)} == {pb.noise.TwoPoint}
    before = [s.moments.sigma.detach().clone() for s in stochastic_weights(model)]
    x = torch.randn(400, 6).double()
    answers = torch.where(torch.rand(400) < 0.3, torch.randint(3, (400,)), pb.predict(model, x).labels)
    found = pb.calibrate(model, [(x, answers)], samples=4)
    for site, sigma in zip(stochastic_weights(model), before, strict=True):
        torch.testing.assert_close(site.moments.sigma, found.factor * sigma)


def test_fisher_information_is_that_of_each_mode() -> None:
    nets, batches = networks(2), [(torch.randn(16, 6).double(), torch.randint(3, (16,)))]
    found = pb.fisher_information(pb.Modes(nets), batches, progress=False)
    for mode, net in enumerate(nets):
        for name, f in pb.fisher_information(net, batches, progress=False).items():
            assert torch.equal(found[f"modes.{mode}.{name}"], f)
    sigma = pb.laplace_sigma(pb.Modes(nets), found, 100)
    model = pb.bayesianize(nets, sigma=sigma)
    for site in stochastic_weights(model):
        torch.testing.assert_close(site.moments.sigma, sigma[site.path])


# --- what cannot be a mode ---------------------------------------------------------------------------------------


def wider() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3)).double()


BAD: dict[str, tuple[Callable[[], Networks], str]] = {
    "no network": (list, "1 to 255 networks, got 0"),
    "another width": (
        lambda: [*networks(2), wider()],
        "mode 2 differs from mode 0: 0.weight is 7x6 float64, and 5x6",
    ),
    "another depth": (lambda: [networks(1)[0], networks(1)[0][:1]], "2.weight is missing"),
    "another type": (
        lambda: [networks(1)[0], networks(1)[0].float()],
        "0.weight is 5x6 float32, and 5x6 float64",
    ),
    "one converted": (
        lambda: [networks(1)[0], mean_field(networks(1))[0]],
        "0.weight is stochastic 5x6 float64, and 5x6 float64 there",
    ),
    "another prior": (
        lambda: [
            pb.bayesianize(net, prior=pb.ZeroMean(s)) for net, s in zip(networks(2), (0.1, 0.2), strict=True)
        ],
        r"the prior of 0.weight is N\(0, 0.2\^2\), and N\(0, 0.1\^2\)",
    ),
    "another noise": (
        lambda: [
            pb.bayesianize(net, noise=noise)
            for net, noise in zip(networks(2), (pb.noise.Gaussian(), pb.noise.TwoPoint()), strict=True)
        ],
        r"the noise of 0.weight is TwoPoint\(\), and Gaussian\(\)",
    ),
    "the same twice": (lambda: networks(1) * 2, "0.weight of mode 1 is also in mode 0"),
    "a codebook each": (
        lambda: [by_rate(networks(1))[0] for _ in range(2)],
        "a codebook of its own. Share them",
    ),
}


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD)
def test_networks_that_are_not_alike_are_refused(make: Callable[[], Networks], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pb.Modes(make())


def test_modes_of_modes_are_refused() -> None:
    with pytest.raises(TypeError, match="mode 0 must be one network, got Modes"):
        pb.Modes([pb.Modes(networks(2))])


def test_a_failed_conversion_leaves_every_mode_as_it_was() -> None:
    nets = networks(2)
    nn.init.constant_(nets[1][2].weight, math.nan)
    with pytest.raises(ValueError, match="not finite"):
        pb.bayesianize(nets)
    assert not any(stochastic_weights(net) for net in nets)
