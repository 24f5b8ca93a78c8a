from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pocketbayes.moments import Codebook
from pocketbayes.sharing.blend import blend_weights, blended_moments, component_moments
from pocketbayes.sharing.mixture import Mixture


def grid_mixture() -> Mixture:
    """Nine overlapping components with correlated covariances around sigma = 1."""
    mean = torch.cartesian_prod(torch.arange(3.0), torch.arange(3.0)).double() * 0.2 + torch.tensor(
        [0.0, 1.0]
    )
    cov = torch.tensor([[0.01, 0.004], [0.004, 0.02]], dtype=torch.float64).expand(9, 2, 2)
    log_pi = torch.linspace(1, 2, 9, dtype=torch.float64).log_softmax(0)
    return Mixture(log_pi, mean, cov * torch.linspace(0.5, 1.5, 9, dtype=torch.float64)[:, None, None])


def points(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 2, generator=g, dtype=torch.float64) * 0.25 + torch.tensor([0.2, 1.2])
    return x[:, 0], x[:, 1].abs()


def joint(mixture: Mixture, mu: Tensor, sigma: Tensor) -> Tensor:
    normal = torch.distributions.MultivariateNormal(mixture.mean, mixture.cov)
    return mixture.log_pi + normal.log_prob(torch.stack([mu, sigma], 1)[:, None])


def test_the_moments_of_a_component_are_those_of_a_hierarchical_draw() -> None:
    mixture = grid_mixture()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        pair = torch.distributions.MultivariateNormal(mixture.mean[4], mixture.cov[4]).sample((400_000,))
        w = pair[:, 0] + pair[:, 1] * torch.randn(400_000, dtype=torch.float64)
    law = component_moments(mixture)
    assert float(law.mu[4]) == pytest.approx(float(w.mean()), abs=4 * float(w.std()) / 400_000**0.5)
    assert float(law.sigma[4] ** 2) == pytest.approx(
        float(w.var()), abs=4 * float(w.var()) * (2 / 400_000) ** 0.5
    )


def test_the_moments_of_a_blend_are_those_of_a_mixture() -> None:
    book = Codebook(torch.tensor([0.0, 1.0, 5.0]), torch.tensor([1.0, 2.0, 3.0]))
    component, alpha = torch.tensor([[0, 2], [1, 0]]), torch.tensor([[0.25, 0.75], [1.0, 0.0]])
    blended = blended_moments(book, component, alpha)
    for row in range(2):
        peer = torch.distributions.MixtureSameFamily(
            torch.distributions.Categorical(alpha[row]),
            torch.distributions.Normal(book.mu[component[row]], book.sigma[component[row]]),
        )
        torch.testing.assert_close(blended.mu[row], peer.mean)
        torch.testing.assert_close(blended.sigma[row], peer.stddev)


def test_weights_beyond_the_ellipse_and_no_others_are_blended() -> None:
    mixture = grid_mixture()
    mu, sigma = points(3000)
    label = joint(mixture, mu, sigma).argmax(1)
    offset = torch.stack([mu, sigma], 1) - mixture.mean[label]
    distance = torch.einsum("ni,nij,nj->n", offset, torch.linalg.inv(mixture.cov)[label], offset)
    (found,) = blend_weights(mixture, [mu], [sigma], [label])
    torch.testing.assert_close(found.weight, (distance > 5.991).nonzero().squeeze(1))
    assert 0 < len(found.weight) < 3000


def test_alphas_are_the_largest_responsibilities_made_to_sum_to_one() -> None:
    mixture = grid_mixture()
    mu, sigma = points(2000)
    label = joint(mixture, mu, sigma).argmax(1)
    (found,) = blend_weights(mixture, [mu], [sigma], [label], k=4)
    top = joint(mixture, mu, sigma)[found.weight].topk(4, dim=1)
    torch.testing.assert_close(found.component, top.indices)
    torch.testing.assert_close(found.alpha, top.values.softmax(1))
    assert found.alpha.dtype == torch.float64


def test_far_weights_whose_densities_underflow_still_have_alphas() -> None:
    mixture = grid_mixture()
    (found,) = blend_weights(mixture, [torch.tensor([50.0])], [torch.tensor([1.0])], [torch.tensor([8])])
    assert bool(found.alpha.isfinite().all())
    assert float(found.alpha.sum()) == pytest.approx(1.0)


def test_tensors_keep_their_own_positions() -> None:
    mixture = grid_mixture()
    mu, sigma = points(600)
    label = joint(mixture, mu, sigma).argmax(1).to(torch.int16)
    (whole,) = blend_weights(mixture, [mu], [sigma], [label])
    parts = blend_weights(
        mixture,
        [mu[:400].view(20, 20), mu[400:]],
        [sigma[:400].view(20, 20), sigma[400:]],
        [label[:400], label[400:]],
    )
    torch.testing.assert_close(torch.cat([parts[0].weight, parts[1].weight + 400]), whole.weight)
    torch.testing.assert_close(torch.cat([p.alpha for p in parts]), whole.alpha)


def test_nothing_is_blended_when_all_weights_are_inside() -> None:
    mixture = grid_mixture()
    found = blend_weights(mixture, [mixture.mean[:, 0]], [mixture.mean[:, 1]], [torch.arange(9)])
    assert len(found[0].weight) == 0
    assert found[0].alpha.shape == (0, 5)


def test_bad_input_is_named() -> None:
    mixture = grid_mixture()
    with pytest.raises(ValueError, match="k must"):
        blend_weights(mixture, [], [], [], k=0)
    with pytest.raises(ValueError, match="beyond"):
        blend_weights(mixture, [], [], [], beyond=-1.0)
