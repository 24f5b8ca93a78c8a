from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Normal
from torch.distributions import kl_divergence as reference_kl

from pocketbayes.moments import Moments
from pocketbayes.posterior.gaussian import gaussian_kl, rho_from_sigma, sigma_from_rho, total_gaussian_kl

means = st.floats(-5, 5)
sigmas = st.floats(1e-4, 5)


@given(means, sigmas, means, sigmas)
def test_kl_is_that_of_torch_distributions(mu: float, sigma: float, m: float, s: float) -> None:
    q_mu, q_sigma, p_mu, p_sigma = torch.tensor([mu, sigma, m, s], dtype=torch.float64)
    q = Moments(q_mu, q_sigma)
    expected = reference_kl(Normal(q_mu, q_sigma), Normal(p_mu, p_sigma))
    torch.testing.assert_close(gaussian_kl(q, m, s), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(total_gaussian_kl(q, m, s), expected, rtol=1e-9, atol=1e-9)


@given(st.floats(1e-12, 50))
def test_softplus_inverts_its_inverse(sigma: float) -> None:
    exact = torch.tensor(sigma, dtype=torch.float64)
    torch.testing.assert_close(sigma_from_rho(rho_from_sigma(exact)), exact, rtol=1e-8, atol=0)


def test_small_sigmas_survive_single_precision() -> None:
    sigma = torch.logspace(-9, 1, 200)
    torch.testing.assert_close(sigma_from_rho(rho_from_sigma(sigma)), sigma, rtol=2e-5, atol=0)
