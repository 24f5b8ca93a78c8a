from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.mixture import GaussianMixture
from torch import Tensor

from pocketbayes.errors import ConvergenceWarning
from pocketbayes.sharing import histogram as histogram_module
from pocketbayes.sharing import tiles as tiles_module
from pocketbayes.sharing.histogram import Atoms, make_histogram
from pocketbayes.sharing.mixture import (
    Mixture,
    assign,
    fit_mixture,
    log_joint,
    top_components,
)


def weight_like(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Laplace means whose sigmas are log-normal and grow with |mu|, as after variational training."""
    g = torch.Generator().manual_seed(seed)
    mu = 0.02 * torch.empty(n).exponential_(generator=g) * (2 * torch.randint(0, 2, (n,), generator=g) - 1)
    sigma = 0.004 * (50 * mu.abs() + 0.5).pow(0.4) * (0.3 * torch.randn(n, generator=g)).exp()
    return mu + 0.005 * torch.randn(n, generator=g), sigma


def points_of(mu: Tensor, sigma: Tensor) -> Atoms:
    mean = torch.stack([mu, sigma], 1).double()
    return Atoms(torch.ones(len(mu), dtype=torch.float64), mean, torch.zeros_like(mean))


def known_mixture(k: int, seed: int = 0) -> Mixture:
    g = torch.Generator().manual_seed(seed)
    root = 0.3 * torch.randn(k, 2, 2, generator=g, dtype=torch.float64)
    weight = torch.rand(k, generator=g, dtype=torch.float64) + 0.2
    mean = 4 * torch.randn(k, 2, generator=g, dtype=torch.float64)
    cov = root @ root.mT + 0.05 * torch.eye(2, dtype=torch.float64)
    return Mixture((weight / weight.sum()).log(), mean + torch.tensor([0.0, 40.0]), cov)


def sample(mixture: Mixture, n: int, seed: int = 1) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    k = torch.multinomial(mixture.log_pi.exp(), n, replacement=True, generator=g)
    noise = torch.randn(n, 2, 1, generator=g, dtype=torch.float64)
    return mixture.mean[k] + (torch.linalg.cholesky(mixture.cov)[k] @ noise).squeeze(2)


def by_sklearn(x: np.ndarray, start: Mixture, tolerance: float, iterations: int) -> GaussianMixture:
    peer = GaussianMixture(
        start.components,
        weights_init=start.log_pi.exp().numpy(),
        means_init=start.mean.numpy(),
        precisions_init=torch.linalg.inv(start.cov).numpy(),
        tol=tolerance,
        max_iter=iterations,
        reg_covar=0.0,
    )
    return peer.fit(x)


def test_log_joint_is_that_of_torch_distributions() -> None:
    mixture = known_mixture(7)
    x = sample(mixture, 50)
    normal = torch.distributions.MultivariateNormal(mixture.mean, mixture.cov)
    expected = mixture.log_pi + normal.log_prob(x[:, None])
    torch.testing.assert_close(log_joint(mixture, x), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_few_steps_are_those_of_sklearn_from_the_same_start() -> None:
    mixture = known_mixture(6)
    x = sample(mixture, 4000)
    start = mixture._replace(mean=mixture.mean + 0.3, cov=mixture.cov * 1.5)
    with pytest.warns(ConvergenceWarning):
        ours = fit_mixture(points_of(*x.T), 6, start=start, tolerance=1e-12, max_iterations=6, floor=1e-12)
    peer = by_sklearn(x.numpy(), start, 0.0, 5)
    order = peer.means_[:, 0].argsort()
    mine = ours.mixture.mean[:, 0].argsort()
    np.testing.assert_allclose(ours.mixture.mean[mine], peer.means_[order], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(ours.mixture.cov[mine], peer.covariances_[order], rtol=1e-5, atol=1e-7)
    assert ours.log_likelihood == pytest.approx(peer.score(x.numpy()), abs=1e-6)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    ("n", "components"), [(15_000, 12), pytest.param(50_000, 32, marks=pytest.mark.slow)]
)
def test_binned_likelihood_is_within_a_hundredth_nat_of_pointwise_sklearn(
    n: int, components: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(histogram_module, "EXACT_BELOW", 0)
    mu, sigma = weight_like(n)
    atoms = make_histogram([(mu, sigma)], bins=128).atoms()
    assert len(atoms.n) < n / 2
    with pytest.warns(ConvergenceWarning):
        start = fit_mixture(atoms, components, max_iterations=1).mixture
    ours = fit_mixture(atoms, components, start=start, tolerance=1e-5).mixture
    x = torch.stack([mu, sigma], 1).double()
    scale = x.std(0)
    scaled = Mixture(start.log_pi, start.mean / scale, start.cov / (scale[:, None] * scale))
    peer = by_sklearn((x / scale).numpy(), scaled, 1e-5, 80)
    theirs = peer.score((x / scale).numpy()) - float(scale.log().sum())
    assert float(log_joint(ours, x).logsumexp(1).mean()) == pytest.approx(theirs, abs=0.01)
    assert float(log_joint(start, x).logsumexp(1).mean()) < theirs - 0.01  # the start is not as good


@pytest.mark.parametrize("components", [3, 40, 300])
def test_likelihood_never_falls(components: int) -> None:
    fit = fit_mixture(make_histogram([weight_like(90_000)], bins=128).atoms(), components, tolerance=1e-5)
    assert fit.converged
    assert min(np.diff(fit.history)) > -1e-7
    assert fit.iterations > 3


def test_reported_likelihood_is_a_close_lower_bound() -> None:
    mu, sigma = weight_like(90_000)
    fit = fit_mixture(make_histogram([(mu, sigma)]).atoms(), 100)
    exact = log_joint(fit.mixture, torch.stack([mu, sigma], 1)).logsumexp(1).mean()
    assert 0 <= float(exact) - fit.log_likelihood < 0.01


def test_few_candidates_lose_little_likelihood(monkeypatch: pytest.MonkeyPatch) -> None:
    x = points_of(*weight_like(4000))
    few = fit_mixture(x, 100)
    monkeypatch.setattr(tiles_module, "CANDIDATES", 100)
    everything = fit_mixture(x, 100)
    assert few.log_likelihood == pytest.approx(everything.log_likelihood, abs=0.01)


def test_a_twentieth_lies_beyond_the_ellipse_weighted_by_responsibility() -> None:
    true = known_mixture(8)
    x = sample(true, 40_000)
    fitted = fit_mixture(points_of(*x.T), 8, start=true).mixture
    offset = x[:, None] - fitted.mean
    distance = torch.einsum("nki,kij,nkj->nk", offset, torch.linalg.inv(fitted.cov), offset)
    r = log_joint(fitted, x).softmax(1)
    share = (r * (distance > 5.991)).sum(1)
    error = float(share.std()) / len(x) ** 0.5
    assert float(share.mean()) == pytest.approx(0.05, abs=4 * error)
    wide = (r * (distance > 4.605)).sum(1).mean()  # the 90 % ellipse must be told apart
    assert abs(float(wide) - 0.05) > 4 * error


def test_as_many_components_as_distinct_weights_reproduce_them() -> None:
    g = torch.Generator().manual_seed(3)
    mu, sigma = torch.randn(40, generator=g) * 0.05, torch.rand(40, generator=g) * 1e-3
    pick = torch.randint(0, 40, (500,), generator=g)
    pick[:40] = torch.arange(40)
    chunks = [
        (mu[pick[:300]].view(30, 10), sigma[pick[:300]].view(30, 10)),
        (mu[pick[300:]], sigma[pick[300:]]),
    ]
    histogram = make_histogram(chunks)
    fit = fit_mixture(histogram.atoms(), 40)
    assert fit.mixture.components == 40
    for (m, s), label in zip(chunks, assign(fit.mixture, histogram, chunks), strict=True):
        assert label.shape == m.shape
        assert label.dtype == torch.uint8
        shared = fit.mixture.mean[label.long()]
        torch.testing.assert_close(shared[..., 0].float(), m, rtol=0, atol=0)
        torch.testing.assert_close(shared[..., 1].float(), s, rtol=0, atol=0)
    assert float(fit.mixture.cov.abs().max()) < 1e-10


def test_more_components_than_distinct_weights_give_one_for_each() -> None:
    fit = fit_mixture(make_histogram([(torch.tensor([0.0, 1.0, 1.0]), torch.ones(3))]).atoms(), 10)
    assert fit.mixture.components == 2
    torch.testing.assert_close(fit.mixture.log_pi.exp(), torch.tensor([1 / 3, 2 / 3], dtype=torch.float64))


@pytest.mark.parametrize("n", [2000, 90_000])
def test_a_constant_sigma_is_no_obstacle(n: int) -> None:
    mu, _ = weight_like(n)
    sigma = torch.full_like(mu, 1e-3)
    fit = fit_mixture(make_histogram([(mu, sigma)]).atoms(), 16, tolerance=1e-3)
    torch.testing.assert_close(fit.mixture.mean[:, 1], torch.full_like(fit.mixture.mean[:, 1], 1e-3))
    assert float(fit.mixture.cov[:, 1, 1].max()) < 1e-11
    assert np.isfinite(fit.log_likelihood)


def test_a_spike_of_equal_weights_takes_one_component_and_leaves_the_others() -> None:
    mu, sigma = weight_like(90_000)
    mu[:60_000], sigma[:60_000] = 0.0, 1e-3
    fit = fit_mixture(make_histogram([(mu, sigma)]).atoms(), 50, tolerance=1e-3)
    assert fit.mixture.components > 40
    assert float(fit.mixture.log_pi.exp().sum()) == pytest.approx(1.0)


def test_labels_are_the_most_probable_components() -> None:
    mixture = known_mixture(60)
    x = sample(mixture, 3000)
    best, joint = top_components(mixture, points_of(*x.T), 3)
    expected = log_joint(mixture, x).topk(3, dim=1)
    torch.testing.assert_close(best[:, 0], expected.indices[:, 0])
    torch.testing.assert_close(joint[:, 0], expected.values[:, 0], rtol=1e-9, atol=1e-9)


@given(
    st.lists(st.tuples(st.integers(-3, 3), st.integers(1, 3)), min_size=1, max_size=40), st.integers(1, 12)
)
@settings(deadline=None, derandomize=True, max_examples=40)
def test_any_weights_give_a_proper_mixture(weights: list[tuple[int, int]], components: int) -> None:
    mu, sigma = (torch.tensor(w, dtype=torch.float32) for w in zip(*weights, strict=True))
    mixture = fit_mixture(make_histogram([(mu, sigma)]).atoms(), components, tolerance=1e-3).mixture
    assert mixture.components <= components
    assert float(mixture.log_pi.exp().sum()) == pytest.approx(1.0, abs=1e-5)
    assert bool((torch.linalg.eigvalsh(mixture.cov) > 0).all())
    mean = (mixture.log_pi.exp()[:, None] * mixture.mean).sum(0)
    torch.testing.assert_close(mean, torch.stack([mu, sigma], 1).double().mean(0), rtol=1e-3, atol=0.02)


def test_stopping_at_the_limit_warns() -> None:
    with pytest.warns(ConvergenceWarning, match="max_iterations"):
        fit = fit_mixture(points_of(*weight_like(2000)), 20, max_iterations=2)
    assert not fit.converged


def test_bad_input_is_named() -> None:
    atoms = points_of(*weight_like(100))
    with pytest.raises(ValueError, match="components"):
        fit_mixture(atoms, 0)
    with pytest.raises(ValueError, match="outliers"):
        fit_mixture(points_of(torch.zeros(0), torch.zeros(0)), 3)
    with pytest.raises(ValueError, match="NaN"):
        fit_mixture(atoms._replace(mean=atoms.mean * float("nan")), 3)
    with pytest.raises(ValueError, match="floor"):
        fit_mixture(atoms, 3, floor=0.0)
    with pytest.raises(ValueError, match="k:"):
        top_components(known_mixture(3), atoms, 4)
