"""KL against closed forms, brute force and finite differences; devices and state-dependent gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch import distributions as dist

from pocketbayes.noise import (
    Bimodal,
    Drifted,
    Empirical,
    Gaussian,
    GaussianMixture,
    Laplace,
    Law,
    Logistic,
    Programmed,
    QuantileTable,
    SkewNormal,
    StateDependent,
    StudentT,
    TwoPoint,
    Uniform,
    averaged,
    cross_entropy,
    kl_to_prior,
    shape_term,
)

MU = torch.tensor([0.3, -1.0, 0.0, 2.0, 0.02], dtype=torch.float64)
SIGMA = torch.tensor([0.5, 0.01, 2.0, 0.7, 0.05], dtype=torch.float64)
SPIKE_AND_SLAB = GaussianMixture((0.5, 0.5), (0.0, 0.0), (1.0, 0.02))
LAWS: list[Law] = [
    Gaussian(),
    Uniform(),
    Laplace(),
    Logistic(),
    StudentT(5.5),
    SkewNormal(4.0),
    Bimodal(0.9),
    GaussianMixture((0.3, 0.7), (0.0, 3.0), (1.0, 0.3)),
    QuantileTable.of(torch.linspace(-1, 2, 40) ** 3, size=64),
]
SMOOTH = [law for law in LAWS if not isinstance(law, QuantileTable)]


def name(law: object) -> str:
    return str(law)[:28]


def scaled(law: dist.Distribution, mu: float, sigma: float) -> dist.Distribution:
    return dist.TransformedDistribution(law, [dist.AffineTransform(mu, sigma)])


@pytest.mark.parametrize("law", LAWS, ids=name)
def test_kl_to_a_gaussian_prior_is_that_of_the_gaussian_plus_the_negentropy(law: Law) -> None:
    plain = dist.kl_divergence(
        dist.Normal(MU, SIGMA), dist.Normal(0.1, torch.tensor(0.7, dtype=torch.float64))
    )
    torch.testing.assert_close(kl_to_prior(law, MU, SIGMA, Gaussian(), 0.1, 0.7), plain + law.negentropy())


@pytest.mark.parametrize("law", LAWS, ids=name)
def test_quadrature_agrees_with_the_closed_form_for_a_gaussian_prior(law: Law) -> None:
    quadrature = cross_entropy(law, MU, SIGMA, Gaussian()) - law.entropy() - SIGMA.log()
    torch.testing.assert_close(quadrature, kl_to_prior(law, MU, SIGMA), rtol=1e-10, atol=1e-10)


def test_kl_of_gaussian_and_laplace_noise_to_a_laplace_prior_have_their_closed_forms() -> None:
    b = 0.7
    folded = SIGMA * math.sqrt(2 / math.pi) * torch.exp(-0.5 * (MU / SIGMA) ** 2) + MU * torch.erf(
        MU / SIGMA / math.sqrt(2)
    )
    gaussian = math.log(2 * b) + folded / b - 0.5 * torch.log(2 * math.pi * math.e * SIGMA**2)
    ours = kl_to_prior(Gaussian(), MU, SIGMA, Laplace(), 0.0, math.sqrt(2) * b)
    torch.testing.assert_close(ours, gaussian, rtol=1e-11, atol=1e-11)
    both = dist.kl_divergence(
        dist.Laplace(MU, SIGMA / math.sqrt(2)), dist.Laplace(0.0, torch.tensor(b, dtype=torch.float64))
    )
    ours = kl_to_prior(Laplace(), MU, SIGMA, Laplace(), 0.0, math.sqrt(2) * b)
    torch.testing.assert_close(ours, both, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("prior", [Laplace(), SPIKE_AND_SLAB, StudentT(4.0), Logistic()], ids=name)
@pytest.mark.parametrize("law", LAWS, ids=name)
def test_kl_to_any_prior_agrees_with_a_fine_trapezoid(law: Law, prior: Law) -> None:
    low, high = math.asinh(float(law.core[0])), math.asinh(float(law.core[-1]))
    z = torch.linspace(low, high, 400_001, dtype=torch.float64).sinh()
    middle = 0.5 * (z[1:] + z[:-1])
    mass = law.cdf(z).diff()
    mass = mass / mass.sum()
    for i in (0, 2, 4):
        crossed = -float((mass * prior.log_prob((MU[i] + SIGMA[i] * middle) / 0.7)).sum()) + math.log(0.7)
        expected = crossed - law.entropy() - float(SIGMA[i].log())
        ours = float(kl_to_prior(law, MU, SIGMA, prior, 0.0, 0.7)[i])
        assert ours == pytest.approx(expected, abs=2e-6)
        assert ours >= 0


@pytest.mark.parametrize("law", LAWS, ids=name)
def test_kl_to_a_spike_and_slab_agrees_with_a_million_draws(law: Law) -> None:
    z = law.sample_like(torch.empty(1_000_000), torch.Generator().manual_seed(0)).double()
    mixture = dist.MixtureSameFamily(
        dist.Categorical(torch.tensor([0.5, 0.5], dtype=torch.float64)),
        dist.Normal(torch.zeros(2, dtype=torch.float64), torch.tensor([1.0, 0.02], dtype=torch.float64)),
    )
    sd = float(mixture.stddev)
    for i in (0, 4):
        log = law.log_prob(z) - SIGMA[i].log() - mixture.log_prob(MU[i] + SIGMA[i] * z)
        error = float(log.std()) / 1000
        ours = float(kl_to_prior(law, MU, SIGMA, SPIKE_AND_SLAB, 0.0, sd)[i])
        assert abs(ours - float(log.mean())) < 4 * error
        assert abs(ours + 0.05 - float(log.mean())) > 4 * error


@pytest.mark.parametrize("prior", [Gaussian(), Laplace(), SPIKE_AND_SLAB], ids=name)
@pytest.mark.parametrize("law", LAWS, ids=name)
def test_gradients_of_kl_equal_finite_differences(law: Law, prior: Law) -> None:
    mu, sigma = MU[:3].clone().requires_grad_(), SIGMA[:3].clone().requires_grad_()
    m, s = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (0.1, 0.7))
    assert torch.autograd.gradcheck(
        lambda *x: kl_to_prior(law, x[0], x[1], prior, x[2], x[3]), (mu, sigma, m, s)
    )


def test_kl_of_many_weights_is_computed_in_blocks_with_the_same_values() -> None:
    mu, sigma = torch.randn(3, 1200, dtype=torch.float64), torch.rand(3, 1200, dtype=torch.float64) + 0.01
    whole = kl_to_prior(Bimodal(0.9), mu, sigma, Laplace(), 0.0, 0.5)
    assert whole.shape == mu.shape
    torch.testing.assert_close(
        whole[1, 7:9], kl_to_prior(Bimodal(0.9), mu[1, 7:9], sigma[1, 7:9], Laplace(), 0.0, 0.5)
    )


@pytest.mark.parametrize(("order", "tolerance"), [(8, 1e-9), (4, 2e-3)])
def test_fewer_nodes_per_panel_cost_a_known_precision(order: int, tolerance: float) -> None:
    for law in (Gaussian(), Laplace(), Bimodal(0.9), SkewNormal(4.0)):
        rough = kl_to_prior(law, MU, SIGMA, Laplace(), 0.0, 0.5, order=order)
        fine = kl_to_prior(law, MU, SIGMA, Laplace(), 0.0, 0.5)
        torch.testing.assert_close(rough, fine, rtol=0, atol=tolerance)


@pytest.mark.parametrize("law", [TwoPoint(), Empirical([0.0, 1.0, 5.0])], ids=name)
def test_laws_with_atoms_use_the_kl_of_their_gaussian(law: Law) -> None:
    assert math.isinf(law.negentropy())
    assert shape_term(law, MU, SIGMA).tolist() == [0.0] * 5
    for prior in (Gaussian(), Laplace()):
        torch.testing.assert_close(
            kl_to_prior(law, MU, SIGMA, prior, 0.0, 0.5),
            kl_to_prior(Gaussian(), MU, SIGMA, prior, 0.0, 0.5),
        )


def test_a_prior_with_atoms_is_refused() -> None:
    with pytest.raises(ValueError, match="prior TwoPoint has atoms"):
        kl_to_prior(Gaussian(), MU, SIGMA, TwoPoint())


def test_kl_in_float32_is_close_to_float64() -> None:
    single = kl_to_prior(Laplace(), MU.float(), SIGMA.float(), Laplace(), 0.0, 0.5)
    assert single.dtype == torch.float32
    torch.testing.assert_close(
        single.double(), kl_to_prior(Laplace(), MU, SIGMA, Laplace(), 0.0, 0.5), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("law", [*LAWS, TwoPoint()], ids=name)
def test_draws_have_the_gradients_one_and_z(law: Law) -> None:
    mu, sigma = MU.clone().requires_grad_(), SIGMA.clone().requires_grad_()
    w = law.draw(mu, sigma, torch.Generator().manual_seed(0))
    grad_mu, grad_sigma = torch.autograd.grad(w.sum(), (mu, sigma))
    torch.testing.assert_close(grad_mu, torch.ones_like(MU))
    torch.testing.assert_close(grad_sigma, ((w - mu) / sigma).detach())


DEVICE = StateDependent(
    (-1.0, 0.0, 1.0),
    (0.1, 0.5, 0.3),
    (Bimodal(0.6), Laplace(), GaussianMixture((0.3, 0.7), (0.0, 3.0), (1.0, 0.8))),
)


def bisect(mu: Tensor, sigma: Tensor, u: Tensor) -> Tensor:
    """w = mu + sigma F^-1(u | mu, sigma), by bisection: the definition of a reparameterised draw."""
    low, high = torch.full_like(u, -40.0), torch.full_like(u, 40.0)
    for _ in range(100):
        middle = 0.5 * (low + high)
        below = DEVICE.cdf_at(mu, sigma, middle) < u
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return mu + sigma * 0.5 * (low + high)


def test_implicit_gradients_equal_finite_differences_of_the_inverse_transform() -> None:
    u = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
    mu, sigma = torch.full_like(u, 0.3), torch.full_like(u, 0.25)
    z = (bisect(mu, sigma, u) - mu) / sigma
    mu_leaf, sigma_leaf = mu.clone().requires_grad_(), sigma.clone().requires_grad_()
    w = DEVICE.place(mu_leaf, sigma_leaf, z)
    torch.testing.assert_close(w.detach(), mu + sigma * z)
    ours = torch.autograd.grad(w.sum(), (mu_leaf, sigma_leaf))
    h = 1e-5
    numeric_mu = (bisect(mu + h, sigma, u) - bisect(mu - h, sigma, u)) / (2 * h)
    numeric_sigma = (bisect(mu, sigma + h, u) - bisect(mu, sigma - h, u)) / (2 * h)
    torch.testing.assert_close(ours[0], numeric_mu, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours[1], numeric_sigma, rtol=1e-5, atol=1e-6)
    assert float((ours[0] - 1).abs().max()) > 0.01  # the shape does change with the state


def test_the_inverse_at_a_state_inverts_the_distribution_function_and_lies_between_the_laws() -> None:
    u = torch.linspace(0.001, 0.999, 41, dtype=torch.float64)
    mu, sigma = torch.full_like(u, 0.3), torch.full_like(u, 0.25)
    z = DEVICE.icdf_at(mu, sigma, u)
    torch.testing.assert_close(DEVICE.cdf_at(mu, sigma, z), u, rtol=0, atol=1e-12)
    torch.testing.assert_close(mu + sigma * z, bisect(mu, sigma, u), rtol=0, atol=1e-9)


def test_at_every_state_the_law_is_standardised_and_its_moments_are_those_of_its_density() -> None:
    z = torch.linspace(-40, 40, 400_001, dtype=torch.float64)
    for mu, sigma in ((0.0, 0.5), (0.3, 0.25), (-3.0, 0.2)):
        state = torch.full_like(z, mu), torch.full_like(z, sigma)
        density = DEVICE.log_prob_at(*state, z).exp()
        moments = [float(torch.trapezoid(density * z**k, z)) for k in range(5)]
        assert moments[:3] == pytest.approx([1, 0, 1], abs=1e-6)
        one = torch.tensor([mu]).double(), torch.tensor([sigma]).double()
        assert float(DEVICE.skewness_at(*one)) == pytest.approx(moments[3], abs=1e-6)
        assert float(DEVICE.excess_kurtosis_at(*one)) == pytest.approx(moments[4] - 3, abs=1e-5)


def test_interpolation_weights_are_one_at_their_own_state_and_constant_outside() -> None:
    mus, sigmas = torch.tensor(DEVICE.mus), torch.tensor(DEVICE.sigmas)
    torch.testing.assert_close(DEVICE.weights(mus, sigmas), torch.eye(3))
    outside = DEVICE.weights(torch.tensor([1.0, 9.0]), torch.tensor([0.3, 0.3]))
    torch.testing.assert_close(outside[0], outside[1])


def test_negentropy_follows_the_state_and_its_gradient_finite_differences() -> None:
    at_states = DEVICE.negentropy_at(torch.tensor(DEVICE.mus).double(), torch.tensor(DEVICE.sigmas).double())
    torch.testing.assert_close(
        at_states, torch.tensor([x.negentropy() for x in DEVICE.laws]).double(), atol=1e-7, rtol=0
    )
    mu = torch.tensor([0.3, -0.5], dtype=torch.float64, requires_grad=True)
    sigma = torch.tensor([0.25, 0.3], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(DEVICE.negentropy_at, (mu, sigma))
    assert torch.autograd.gradcheck(lambda a, b: kl_to_prior(DEVICE, a, b), (mu, sigma))
    plain = dist.kl_divergence(dist.Normal(mu, sigma), dist.Normal(0.0, torch.tensor(1.0).double()))
    torch.testing.assert_close(kl_to_prior(DEVICE, mu, sigma), plain + DEVICE.negentropy_at(mu, sigma))


def test_what_has_no_meaning_without_a_state_says_so() -> None:
    for call in (lambda: DEVICE.sample_like(MU), DEVICE.negentropy):
        with pytest.raises(ValueError, match="depends on the state"):
            call()
    with pytest.raises(ValueError, match="differs from weight to weight"):
        kl_to_prior(DEVICE, MU, SIGMA, Laplace())
    with pytest.raises(ValueError, match="no single law"):
        averaged(DEVICE, 2)


def test_programmed_levels_are_the_nearest_and_pass_gradients_through() -> None:
    device = Programmed(TwoPoint(), mu_levels=(-1.0, 0.0, 1.0), sigma_levels=(0.25, 0.5))
    mu = torch.tensor([-7.0, 0.49, 0.51], dtype=torch.float64, requires_grad=True)
    sigma = torch.tensor([0.01, 0.3, 9.0], dtype=torch.float64, requires_grad=True)
    w = device.draw(mu, sigma, torch.Generator().manual_seed(0))
    torch.testing.assert_close(device.program(mu, sigma)[0].detach(), torch.tensor([-1.0, 0.0, 1.0]).double())
    torch.testing.assert_close(
        (w - torch.tensor([-1.0, 0.0, 1.0])).abs().detach(), torch.tensor([0.25, 0.25, 0.5]).double()
    )
    w.sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(mu.grad, torch.ones(3).double())


def test_drift_scales_and_shifts_the_weight_and_its_kl() -> None:
    device = Drifted(Laplace(), time=100.0, reference=1.0, exponent=0.5, shift=0.1)
    fresh = Laplace().draw(MU, SIGMA, torch.Generator().manual_seed(0))
    aged = device.draw(MU, SIGMA, torch.Generator().manual_seed(0))
    torch.testing.assert_close(aged, 0.1 * fresh + 0.1 * math.log(100))
    expected = kl_to_prior(Laplace(), 0.1 * MU + 0.1 * math.log(100), 0.1 * SIGMA, Laplace())
    torch.testing.assert_close(kl_to_prior(device, MU, SIGMA, Laplace()), expected)
    assert device.at(1.0).draw(MU, SIGMA, torch.Generator().manual_seed(0)).equal(fresh)


def test_devices_compose() -> None:
    device = Drifted(Programmed(averaged(TwoPoint(), 4), mu_levels=(0.0, 1.0)), time=4.0, exponent=0.5)
    z = device.draw(
        torch.full((100_000,), 0.9), torch.full((100_000,), 0.2), torch.Generator().manual_seed(0)
    )
    assert device.has_atoms
    assert float(z.mean()) == pytest.approx(0.5, abs=5 * 0.1 / math.sqrt(1e5))
    assert float(z.std()) == pytest.approx(0.1, rel=0.02)
    inner = Drifted(DEVICE, time=4.0, exponent=0.5).draw(MU, SIGMA, torch.Generator().manual_seed(0))
    torch.testing.assert_close(inner, 0.5 * DEVICE.draw(MU, SIGMA, torch.Generator().manual_seed(0)))
