from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from pocketbayes.errors import ConvergenceWarning
from pocketbayes.moments import Codebook
from pocketbayes.sharing import pairwise
from pocketbayes.sharing.evidence import coarsen, gather_evidence
from pocketbayes.sharing.labels import label_weights, share_by_rate
from pocketbayes.sharing.rate import Rate, RateCode, fit_bits, fit_codebook


def network(seed: int = 0, sizes: tuple[int, ...] = (300, 800, 1500)) -> tuple[list[Tensor], list[Tensor]]:
    """Layers of different scales: Laplace means, log-normal sigmas."""
    g = torch.Generator().manual_seed(seed)
    mu, sigma = [], []
    for i, n in enumerate(sizes):
        scale = 0.1 / (i + 1)
        sign = 2 * torch.randint(0, 2, (n,), generator=g) - 1
        mu.append(scale * torch.empty(n).exponential_(generator=g) * sign)
        sigma.append(0.3 * scale * (0.4 * torch.randn(n, generator=g)).exp())
    return mu, sigma


def costs(code: RateCode, layer: int, mu: Tensor, sigma: Tensor, rate: Rate) -> Tensor:
    """[N, K + 1] of distortion and label cost, from torch.distributions."""
    shared = Normal(*code.codebook)
    distortion = kl_divergence(shared, Normal(mu.double()[:, None], sigma.double()[:, None]))
    nats = -code.frequency[layer].log()
    outliers = math.inf if rate.outlier_bits is None else rate.outlier_bits * math.log(2)
    outlier = rate.lambda_ * (nats[-1] + outliers).expand(len(mu), 1)
    return torch.cat([distortion + rate.lambda_ * nats[:-1], outlier], 1)


def entropy_bits(label: Tensor) -> float:
    n = np.unique(label.numpy(), return_counts=True)[1]
    return float(-(n * np.log2(n / n.sum())).sum())


def some_code(layers: int = 3) -> RateCode:
    mu = torch.linspace(-0.3, 0.3, 9, dtype=torch.float64)
    frequency = torch.linspace(1, 4, 10, dtype=torch.float64).softmax(0).expand(layers, 10).clone()
    frequency[0, 2] = 0.0
    return RateCode(Codebook(mu, 0.01 + mu.abs() / 4), frequency / frequency.sum(1, keepdim=True))


@pytest.mark.parametrize("outlier_bits", [32.0, None])
@pytest.mark.parametrize("lambda_", [0.05, 2.0])
def test_labels_are_the_cheapest_by_brute_force(lambda_: float, outlier_bits: float | None) -> None:
    mu, sigma = network()
    rate, code = Rate(lambda_=lambda_, outlier_bits=outlier_bits), some_code()
    result = label_weights(code, mu, sigma, rate)
    expected = [costs(code, i, *layer, rate).argmin(1) for i, layer in enumerate(zip(mu, sigma, strict=True))]
    used = torch.cat(expected).unique()
    position = {int(k): i for i, k in enumerate(used[used < 9])} | {9: result.fit.codebook.components}
    for label, want in zip(result.labels, expected, strict=True):
        assert label.tolist() == [position[int(k)] for k in want]
        assert label.dtype == torch.uint8


def test_reported_costs_are_those_of_the_labels() -> None:
    mu, sigma = network()
    rate = Rate(lambda_=0.3, components=16)
    result = share_by_rate(mu, sigma, rate)
    fit = result.fit
    for i, (m, s, label, outlier) in enumerate(zip(mu, sigma, result.labels, result.outliers, strict=True)):
        inside = label[~outlier].long()
        shared = Normal(fit.codebook.mu[inside], fit.codebook.sigma[inside])
        lost = kl_divergence(shared, Normal(m[~outlier].double(), s[~outlier].double())).sum()
        assert float(fit.distortion[i]) == pytest.approx(float(lost), rel=1e-8)
        assert float(fit.label_bits[i]) == pytest.approx(entropy_bits(label), rel=1e-9)
        assert int(fit.outliers[i]) == int(outlier.sum())
    assert fit.bits() == pytest.approx(sum(map(entropy_bits, result.labels)) + 32 * int(fit.outliers.sum()))


def test_codebook_is_the_best_for_its_labels() -> None:
    mu, sigma = network()
    result = share_by_rate(mu, sigma, Rate(lambda_=0.5, components=8))
    m, s, label = (torch.cat([t.view(-1).double() for t in ts]) for ts in (mu, sigma, result.labels))
    book = result.fit.codebook
    for k in range(book.components):
        own = label == k
        tau = s[own].pow(-2)
        assert float(book.mu[k]) == pytest.approx(float((tau * m[own]).sum() / tau.sum()), abs=1e-12)
        assert float(book.sigma[k] ** 2) == pytest.approx(float(1 / tau.mean()), rel=1e-9)

        def lost(at: Tensor, width: Tensor, own: Tensor = own) -> float:
            return float(kl_divergence(Normal(at, width), Normal(m[own], s[own])).sum())

        best = lost(book.mu[k], book.sigma[k])
        assert best <= min(lost(book.mu[k] + 1e-3, book.sigma[k]), lost(book.mu[k], 1.05 * book.sigma[k]))


@pytest.mark.parametrize("lambda_", [0.01, 0.3, 3.0])
def test_objective_never_rises(lambda_: float) -> None:
    evidence = gather_evidence(*network())
    fit = fit_codebook(evidence, Rate(lambda_=lambda_, tolerance=1e-6), some_code())
    assert len(fit.history) > 3
    assert max(np.diff(fit.history)) <= 1e-9 * abs(fit.history[0])


def test_more_lambda_never_takes_more_label_bits() -> None:
    evidence = gather_evidence(*network())
    lambdas = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0]
    rate = Rate(outlier_bits=None, components=32)
    afresh = [fit_codebook(evidence, replace(rate, lambda_=t)) for t in lambdas]
    onwards = [fit_codebook(evidence, replace(rate, lambda_=lambdas[0]))]
    for t in lambdas[1:]:  # each from the code of the one before
        onwards.append(fit_codebook(evidence, replace(rate, lambda_=t), onwards[-1].code))
    for fits in (afresh, onwards):
        bits = [fit.bits() for fit in fits]
        distortion = [float(fit.distortion.sum()) for fit in fits]
        assert all(b <= 1.01 * a for a, b in itertools.pairwise(bits))
        assert all(b >= 0.99 * a for a, b in itertools.pairwise(distortion))
        assert bits[-1] < bits[0] / 3


def test_little_lambda_leaves_little_distortion() -> None:
    mu, sigma = network(sizes=(300, 300))
    fit = fit_codebook(gather_evidence(mu, sigma), Rate(lambda_=1e-6, components=600))
    assert float(fit.distortion.sum()) / 600 < 1e-3
    coarse = fit_codebook(gather_evidence(mu, sigma), Rate(lambda_=1.0))
    assert float(coarse.distortion.sum()) / 600 > 0.1


def test_distinct_weights_are_reproduced_when_each_may_have_a_component() -> None:
    values = torch.tensor([[-1.0, 0.1], [0.0, 0.2], [0.0, 0.01], [2.0, 0.1]])
    pick = torch.randint(0, 4, (300,), generator=torch.Generator().manual_seed(0))
    mu, sigma = values[pick].unbind(1)
    result = share_by_rate([mu], [sigma], Rate(lambda_=1e-3, outlier_bits=None))
    assert result.fit.codebook.components == 4
    shared = result.labels[0].long()
    torch.testing.assert_close(result.fit.codebook.mu[shared].float(), mu)
    torch.testing.assert_close(result.fit.codebook.sigma[shared].float(), sigma)


def test_lone_far_weights_escape_unless_forbidden() -> None:
    mu, sigma = network(sizes=(4000,))
    mu[0][:3] = torch.tensor([9.0, -7.0, 30.0])
    open_, shut = (share_by_rate(mu, sigma, Rate(components=4, outlier_bits=b)) for b in (32.0, None))
    assert bool(open_.outliers[0][:3].all())
    assert int(open_.fit.outliers[0]) < 200
    assert not shut.outliers[0].any()
    assert float(shut.fit.distortion.sum()) > float(open_.fit.distortion.sum())


def test_a_fit_is_the_same_every_time() -> None:
    mu, sigma = network()
    first, second = (share_by_rate(mu, sigma, Rate(lambda_=0.3)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.labels, second.labels, strict=True))
    assert torch.equal(first.fit.codebook.mu, second.fit.codebook.mu)


def test_labels_are_the_same_for_any_number_of_threads() -> None:
    mu, sigma = network(sizes=(70_000, 300))
    found, before = [], torch.get_num_threads()
    for number in (1, 2):
        torch.set_num_threads(number)
        found.append(share_by_rate(mu, sigma, Rate(lambda_=0.3)))
    torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*(result.labels for result in found), strict=True))
    assert found[0].fit.history == found[1].fit.history


def test_a_warm_start_is_no_worse_and_a_lost_label_may_return() -> None:
    mu, sigma = network()
    rate = Rate(lambda_=0.3)
    cold = share_by_rate(mu, sigma, rate)
    moved = [
        m + 0.2 * s * torch.randn(m.shape, generator=torch.Generator().manual_seed(2))
        for m, s in zip(mu, sigma, strict=True)
    ]
    evidence = gather_evidence(moved, sigma)
    warm = fit_codebook(evidence, replace(rate, max_iterations=3), cold.fit.code)
    again = fit_codebook(evidence, rate)
    assert warm.history[-1] < 1.02 * again.history[-1]
    closed = cold.fit.code.frequency.clone()
    closed[0, :-1] = 0.0
    closed[0, 0] = 1.0
    returned = fit_codebook(evidence, rate, cold.fit.code._replace(frequency=closed))
    assert int((returned.code.frequency[0] > 0).sum()) > 3


def test_binned_layers_come_close_to_exact_ones() -> None:
    mu, sigma = network(sizes=(20_000, 9000))
    rate = Rate(lambda_=0.3)
    exact, binned = (gather_evidence(mu, sigma, exact_below=n) for n in (1 << 17, 0))
    assert len(binned.phi) < len(exact.phi) * 0.9
    torch.testing.assert_close(binned.phi.sum(0), exact.phi.sum(0))
    assert len(coarsen(exact).phi) < 4200
    fits = [fit_codebook(e, rate) for e in (exact, binned, coarsen(exact))]
    for fit in fits[1:]:
        assert fit.history[-1] == pytest.approx(fits[0].history[-1], rel=0.02)
    for fit in fits:  # judged on the weights themselves
        result = label_weights(fit.code, mu, sigma, rate)
        assert result.fit.history[-1] == pytest.approx(fits[0].history[-1], rel=0.01)


def objective(groups: Tensor, lambda_: float) -> float:
    """J of groups [L, K, 4] at their best codebook and frequencies, written out weight by weight elsewhere."""
    total = 0.0
    n, t, u, c = groups.unbind(2)
    for k in range(groups.shape[1]):
        m, v = float(u[:, k].sum() / t[:, k].sum()), float(n[:, k].sum() / t[:, k].sum())
        own = 0.5 * (v + m * m) * t[:, k] - m * u[:, k] - 0.5 * math.log(v) * n[:, k] + c[:, k]
        total += float(own.sum())
    fraction = n / n.sum(1, keepdim=True)
    return total - lambda_ * float(torch.special.xlogy(n, fraction).sum())


def test_joining_changes_the_objective_by_its_closed_form() -> None:
    evidence = gather_evidence(*network())
    label = torch.arange(len(evidence.phi)) % 7
    groups = pairwise.group(evidence.phi, evidence.layer, label, 3, 7)
    change = pairwise.changes(groups, 2, 0.7)
    for other in (0, 5):
        joined = groups.clone()
        joined[:, 2] += joined[:, other]
        joined = torch.cat([joined[:, :other], joined[:, other + 1 :]], 1)
        assert float(change[other]) == pytest.approx(
            objective(joined, 0.7) - objective(groups, 0.7), abs=1e-6
        )
    assert math.isinf(float(change[2]))


@pytest.mark.parametrize("fraction", [0.5, 0.1])
def test_a_budget_of_bits_is_met_and_nearly_used(fraction: float) -> None:
    evidence = coarsen(gather_evidence(*network()))
    full = fit_codebook(evidence, Rate(lambda_=0.01, components=32)).bits()
    fit, lambda_ = fit_bits(evidence, fraction * full, Rate(components=32))
    assert 0.9 * fraction * full < fit.bits() <= fraction * full
    assert lambda_ > 0.01


def test_a_generous_budget_takes_the_smallest_lambda_tried() -> None:
    evidence = gather_evidence(*network(sizes=(60,)))
    fit, lambda_ = fit_bits(evidence, 1e9, Rate(lambda_=1.0), steps=1)
    assert lambda_ < 1e-4
    assert fit.bits() <= 1e9


@given(
    st.lists(st.tuples(st.floats(-5, 5, width=32), st.floats(0.0625, 2, width=32)), min_size=1, max_size=30),
    st.floats(0.01, 10),
    st.integers(1, 6),
    st.sampled_from([None, 0.0, 32.0]),
)
@settings(deadline=None, derandomize=True, max_examples=40)
def test_any_weights_can_be_shared(
    weights: list[tuple[float, float]], lambda_: float, components: int, outlier_bits: float | None
) -> None:
    mu, sigma = (torch.tensor(w) for w in zip(*weights, strict=True))
    rate = Rate(lambda_=lambda_, components=components, outlier_bits=outlier_bits)
    result = share_by_rate([mu], [sigma], rate)
    book = result.fit.codebook
    assert 1 <= book.components <= components
    assert int(result.labels[0].max()) <= book.components - (outlier_bits is None)
    assert bool(book.mu.isfinite().all())
    assert bool((book.sigma > 0).all())
    assert float(result.fit.distortion.sum()) > -1e-6


def test_stopping_at_the_limit_warns() -> None:
    evidence = gather_evidence(*network())
    with pytest.warns(ConvergenceWarning, match="max_iterations"):
        assert not fit_codebook(evidence, Rate(max_iterations=1)).converged


def test_bad_input_is_named() -> None:
    mu, sigma = network()
    with pytest.raises(ValueError, match="lambda_"):
        Rate(lambda_=0.0)
    with pytest.raises(ValueError, match="components"):
        Rate(components=0)
    with pytest.raises(ValueError, match="outlier_bits"):
        Rate(outlier_bits=-1.0)
    with pytest.raises(ValueError, match="layer 1: mu has shape"):
        gather_evidence(mu, [sigma[0], sigma[1][:5], sigma[2]])
    with pytest.raises(ValueError, match="layer 0: sigma must be positive"):
        gather_evidence(mu, [sigma[0] * 0, *sigma[1:]])
    with pytest.raises(ValueError, match="layer 2: mu holds NaN"):
        gather_evidence([*mu[:2], mu[2] * float("nan")], sigma)
    with pytest.raises(ValueError, match="no weights"):
        gather_evidence([torch.zeros(0)], [torch.zeros(0)])
    with pytest.raises(ValueError, match="each layer"):
        gather_evidence(mu, sigma[:2])
    with pytest.raises(ValueError, match="layers"):
        fit_codebook(gather_evidence(mu, sigma), Rate(), some_code(layers=2))
    with pytest.raises(ValueError, match="code: is for 2 layers"):
        label_weights(some_code(layers=2), mu, sigma, Rate())
    with pytest.raises(ValueError, match="max_bits"):
        fit_bits(gather_evidence(mu, sigma), -1.0, Rate())
