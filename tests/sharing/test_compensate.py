"""Labels that make up for each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import pocketbayes as pb
from pocketbayes.moments import Moments
from pocketbayes.sharing.compensate import Factor, compensated_labels, factor, input_moments
from pocketbayes.sharing.labels import label_weights, share_by_rate
from pocketbayes.sharing.rate import Rate, RateCode

RATE = Rate(lambda_=2.0, components=12)
DAMPING = 0.02


def inputs(n: int = 300, size: int = 20) -> Tensor:
    g = torch.Generator().manual_seed(0)
    return torch.randn(n, size, generator=g) @ torch.randn(size, size, generator=g) + torch.randn(
        n, 1, generator=g
    )


def posterior(moments: Tensor, rows: int = 30) -> Moments[Tensor]:
    g = torch.Generator().manual_seed(1)
    precision = moments.diagonal() * (0.5 + torch.rand(rows, 1, generator=g))
    return Moments(0.1 * torch.randn(precision.shape, generator=g), 0.05 * precision.rsqrt())


def code_for(q: Moments[Tensor]) -> RateCode:
    return share_by_rate([q.mu], [q.sigma], RATE).fit.code


def values(code: RateCode, labels: Tensor, mu: Tensor) -> Tensor:
    """What the labels stand for; an outlier stays where it was."""
    table = torch.cat([code.codebook.mu.float(), torch.zeros(1)])
    return torch.where(labels == code.codebook.components, mu, table[labels])


def correlations(moments: Tensor) -> np.ndarray:
    power = moments.diagonal().double().sqrt()
    c = (moments.double() / power[:, None] / power / (1 + DAMPING)).numpy()
    np.fill_diagonal(c, 1.0)
    return c


def case() -> tuple[Tensor, Moments[Tensor], RateCode, Factor]:
    x = inputs()
    moments = x.T @ x / len(x)
    q = posterior(moments)
    return moments, q, code_for(q), factor(moments, DAMPING)


def test_labels_of_independent_weights_are_the_cheapest_ones() -> None:
    _, q, code, _ = case()
    (found,) = compensated_labels([q], [None], code, RATE)
    assert torch.equal(found.labels, label_weights(code, [q.mu], [q.sigma], RATE).labels[0].long())
    torch.testing.assert_close(found.mu, q.mu)


def test_a_weight_is_labelled_at_its_mean_given_those_before() -> None:
    """By the conditional mean of a Gaussian, solved weight by weight."""
    moments, q, code, f = case()
    (found,) = compensated_labels([q], [f], code, RATE)
    shared = values(code, found.labels, found.mu).double().numpy()
    order, c = f.order.numpy(), correlations(moments)
    for row in (0, 7):
        sigma, mu = q.sigma[row].double().numpy(), q.mu[row].double().numpy()
        precision = c / np.outer(sigma, sigma)
        for j in (1, 9, 19):
            fixed, free = order[:j], order[j:]
            gap = precision[np.ix_(free, fixed)] @ (shared[row, fixed] - mu[fixed])
            mean = mu[free] - np.linalg.solve(precision[np.ix_(free, free)], gap)
            assert found.mu[row, order[j]].item() == pytest.approx(mean[0], rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("size", [20, 300])  # also more than a block
def test_the_distortion_is_that_of_the_joint_posterior(size: int) -> None:
    """1/2 d^T P d for the means, and for the variances the divergence of each from the mean-field one."""
    x = inputs(2 * size, size)
    moments = x.T @ x / len(x)
    q = posterior(moments)
    code = code_for(q)
    (found,) = compensated_labels([q], [factor(moments, DAMPING)], code, RATE)
    d = ((values(code, found.labels, found.mu) - q.mu) / q.sigma).double().numpy()
    shared = found.labels < code.codebook.components
    ratio = code.codebook.sigma[found.labels[shared]].square() / q.sigma[shared].double().square()
    variances = 0.5 * float((ratio - 1 - ratio.log()).sum())
    means = 0.5 * np.einsum("ri,ij,rj->", d, correlations(moments), d)
    assert found.distortion == pytest.approx(means + variances, rel=1e-3)


def test_outputs_change_less_than_with_independent_labels() -> None:
    x = inputs()
    _, q, code, f = case()
    errors = []
    for given in (f, None):
        (found,) = compensated_labels([q], [given], code, RATE)
        change = x @ (values(code, found.labels, found.mu) - q.mu).T
        errors.append(float(change.square().mean()))
    assert errors[0] < 0.6 * errors[1]


def test_the_moments_are_those_of_the_inputs() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(12, 5))
    x = torch.randn(6, 2, 4, 4)
    pb.bayesianize(model)
    found = input_moments(model, [x[:4], (x[4:], torch.zeros(2))])
    padded = torch.nn.functional.pad(x, (1, 1, 1, 1))
    patches = [padded[n, :, i : i + 3, j : j + 3].flatten() for n in range(6) for i in (0, 2) for j in (0, 2)]
    columns = torch.stack(patches)
    torch.testing.assert_close(found["0.weight"], columns.T @ columns / 24)
    with torch.no_grad(), pb.mean_weights(model):
        hidden = model[:3](x)
    torch.testing.assert_close(found["3.weight"], hidden.T @ hidden / 6)


def test_a_dead_input_leaves_the_others_as_they_are() -> None:
    x = inputs()
    x[:, 3] = 0
    f = factor(x.T @ x / len(x), DAMPING)
    assert bool(torch.isfinite(f.root).all())
    assert f.root.diagonal()[f.order == 3].item() == pytest.approx(1.0)
