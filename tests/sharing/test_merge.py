from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import sqrtm
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from pocketbayes.sharing.merge import (
    AbsoluteDistance,
    Barycentre,
    Components,
    Merge,
    MomentMatch,
    PaperEq6,
    RelativeDistance,
    merge_components,
    wasserstein2,
)
from pocketbayes.sharing.mixture import Mixture

RULES = [MomentMatch(), Barycentre(), PaperEq6()]


def gaussians(k: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    root = torch.randn(k, 2, 2, generator=g, dtype=torch.float64)
    mean = torch.randn(k, 2, generator=g, dtype=torch.float64)
    return mean, root @ root.mT + 0.1 * torch.eye(2, dtype=torch.float64)


def random_mixture(k: int, seed: int = 0) -> Mixture:
    mean, cov = gaussians(k, seed)
    g = torch.Generator().manual_seed(seed + 100)
    log_pi = torch.rand(k, generator=g, dtype=torch.float64).log_softmax(0)
    return Mixture(log_pi, 0.1 * mean + torch.tensor([0.0, 1.0]), 1e-4 * cov)


def root(a: np.ndarray) -> np.ndarray:
    return np.real(sqrtm(a))


def test_distance_is_that_of_scipy_square_roots() -> None:
    m, s = gaussians(40)
    ours = wasserstein2(m[:20], s[:20], m[20:], s[20:])
    for i in range(20):
        a, b = s[i].numpy(), s[20 + i].numpy()
        cross = root(root(a) @ b @ root(a))
        expected = ((m[i] - m[20 + i]) ** 2).sum().item() + np.trace(a + b - 2 * cross)
        assert float(ours[i]) == pytest.approx(expected, rel=1e-9)


def test_distance_is_the_cost_of_moving_samples() -> None:
    m, s = gaussians(2, seed=3)
    rng = np.random.default_rng(0)
    x, y = (torch.from_numpy(rng.multivariate_normal(m[i].numpy(), s[i].numpy(), 700)) for i in (0, 1))
    cost = torch.cdist(x, y).square().numpy()
    i, j = linear_sum_assignment(cost)
    assert float(wasserstein2(m[0], s[0], m[1], s[1])) == pytest.approx(cost[i, j].mean(), rel=0.1)
    assert cost.mean() > 1.5 * cost[i, j].mean()  # moving at random costs more


def test_distance_vanishes_only_between_equals() -> None:
    m, s = gaussians(5)
    assert float(wasserstein2(m, s, m, s).max()) < 1e-12
    assert float(wasserstein2(m, s, m, 1.1 * s).min()) > 1e-4


def test_moment_match_is_the_mean_and_covariance_of_samples_of_both() -> None:
    m, s = gaussians(2, seed=5)
    w1, w2 = torch.tensor([[0.3]], dtype=torch.float64), torch.tensor([[0.7]], dtype=torch.float64)
    mean, cov = MomentMatch()(Components(w1, m[:1], s[:1]), Components(w2, m[1:], s[1:]))
    rng = np.random.default_rng(0)
    parts = [rng.multivariate_normal(m[i].numpy(), s[i].numpy(), n) for i, n in ((0, 60_000), (1, 140_000))]
    x = np.concatenate(parts)
    np.testing.assert_allclose(mean[0], x.mean(0), atol=0.02)
    np.testing.assert_allclose(cov[0], np.cov(x.T), atol=0.06)


def test_barycentre_solves_its_fixed_point_and_is_nearest_to_both() -> None:
    m, s = gaussians(2, seed=7)
    w1, w2 = torch.tensor([[0.4]], dtype=torch.float64), torch.tensor([[0.6]], dtype=torch.float64)
    mean, cov = Barycentre()(Components(w1, m[:1], s[:1]), Components(w2, m[1:], s[1:]))
    r = root(cov[0].numpy())
    fixed = 0.4 * root(r @ s[0].numpy() @ r) + 0.6 * root(r @ s[1].numpy() @ r)
    np.testing.assert_allclose(fixed, cov[0].numpy(), rtol=1e-8)

    def loss(at: Tensor, of: Tensor) -> float:
        return float(0.4 * wasserstein2(at, of, m[0], s[0]) + 0.6 * wasserstein2(at, of, m[1], s[1]))

    _, matched = MomentMatch()(Components(w1, m[:1], s[:1]), Components(w2, m[1:], s[1:]))
    assert loss(mean[0], cov[0]) < loss(mean[0], 1.02 * cov[0])
    assert loss(mean[0], cov[0]) < loss(mean[0] + 0.01, cov[0])
    assert loss(mean[0], cov[0]) < loss(mean[0], matched[0])


def test_equal_components_merge_to_themselves_but_by_the_paper_to_half_as_much_again() -> None:
    m, s = gaussians(1)
    half = torch.tensor([[0.5]], dtype=torch.float64)
    for rule, factor in zip(RULES, (1.0, 1.0, 1.5), strict=True):
        mean, cov = rule(Components(half, m, s), Components(half, m, s))
        torch.testing.assert_close(mean, m)
        torch.testing.assert_close(cov, factor * s)


@pytest.mark.parametrize("rule", RULES)
@given(k=st.integers(1, 30), seed=st.integers(0, 50), factor=st.floats(0.001, 0.5))
@settings(deadline=None, derandomize=True, max_examples=15)
def test_merging_never_raises_the_number_and_leaves_no_pair_to_merge(
    rule: MomentMatch | Barycentre | PaperEq6, k: int, seed: int, factor: float
) -> None:
    before = random_mixture(k, seed)
    merged = merge_components(before, Merge(distance=RelativeDistance(factor), rule=rule))
    after = merged.mixture
    assert after.components <= k
    assert merged.new_of_old.shape == (k,)
    assert sorted(set(merged.new_of_old.tolist())) == list(range(after.components))
    mass = torch.zeros(after.components, dtype=torch.float64)
    mass.index_add_(0, merged.new_of_old, before.log_pi.exp())
    torch.testing.assert_close(mass, after.log_pi.exp())
    bound = (factor * float(before.mean[:, 1].median())) ** 2
    i, j = torch.triu_indices(after.components, after.components, 1)
    distance = wasserstein2(after.mean[i], after.cov[i], after.mean[j], after.cov[j])
    assert bool((distance >= bound).all())


def test_moment_matching_keeps_the_mixture_mean_and_covariance() -> None:
    before = random_mixture(60, 2)
    after = merge_components(before, Merge(distance=RelativeDistance(0.2))).mixture
    assert 1 <= after.components < 60

    def moments(mixture: Mixture) -> tuple[Tensor, Tensor]:
        pi = mixture.log_pi.exp()
        mean = pi @ mixture.mean
        d = mixture.mean - mean
        return mean, torch.einsum("k,kij->ij", pi, mixture.cov + d[:, :, None] * d[:, None, :])

    for a, b in zip(moments(before), moments(after), strict=True):
        torch.testing.assert_close(a, b)


def test_the_closest_pair_merges_first() -> None:
    mean = torch.tensor([[0.0, 1.0], [1.0, 1.0], [1.4, 1.0]], dtype=torch.float64)
    cov = 1e-6 * torch.eye(2, dtype=torch.float64).expand(3, 2, 2)
    mixture = Mixture(torch.full((3,), 1 / 3, dtype=torch.float64).log(), mean, cov)
    merged = merge_components(mixture, Merge(distance=AbsoluteDistance(1.1)))
    assert merged.new_of_old.tolist() == [0, 1, 1]  # the merged mean, 1.2, is too far for the first


def test_gradient_and_variance_conditions_forbid_merging() -> None:
    mixture = random_mixture(20, 4)
    near = RelativeDistance(10.0)
    assert merge_components(mixture, Merge(distance=near)).mixture.components == 1
    gradient = torch.arange(20.0)
    kept = merge_components(mixture, Merge(distance=near, gradient=0.5), gradient)
    assert kept.mixture.components == 20
    assert merge_components(mixture, Merge(distance=near, gradient=30.0), gradient).mixture.components == 1
    assert merge_components(mixture, Merge(distance=near, variance=1e-9)).mixture.components > 1


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="gradient"):
        merge_components(random_mixture(3), Merge(gradient=1.0))
    with pytest.raises(ValueError, match="variance"):
        Merge(variance=-1.0)
    with pytest.raises(ValueError, match="tau_d"):
        AbsoluteDistance(0.0)
    with pytest.raises(ValueError, match="factor"):
        RelativeDistance(-1.0)
