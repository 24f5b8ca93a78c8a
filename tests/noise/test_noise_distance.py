"""Energy distance: unbiased, fast, and exact for sums."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketbayes.noise import (
    Bimodal,
    Empirical,
    Gaussian,
    Laplace,
    Law,
    SkewNormal,
    StudentT,
    TwoPoint,
    Uniform,
    energy_distance,
    marginal_distances,
    predictive_distances,
    sum_energy_distance,
)


def brute(a: np.ndarray, b: np.ndarray) -> float:
    """The U-statistic, pair by pair; rows are samples."""
    across = np.mean([np.linalg.norm(x - y) for x in a for y in b])
    own = [
        np.mean([np.linalg.norm(x - y) for i, x in enumerate(c) for j, y in enumerate(c) if i != j])
        for c in (a, b)
    ]
    return float(2 * across - own[0] - own[1])


@settings(deadline=None, derandomize=True, max_examples=40)
@given(n=st.integers(2, 12), m=st.integers(2, 12), d=st.integers(1, 3), seed=st.integers(0, 99))
def test_it_is_the_u_statistic(n: int, m: int, d: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(n, d)), 1e3 * rng.normal(size=(m, d)).round(3)
    ours = float(energy_distance(torch.from_numpy(a), torch.from_numpy(b)))
    assert ours == pytest.approx(brute(a, b), rel=1e-9, abs=1e-9)


def test_it_is_the_square_of_scipys_up_to_the_bias_correction() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=300), rng.normal(0.5, 2.0, size=200)
    own = [2 * np.mean(np.abs(c[:, None] - c)) / (2 * (len(c) - 1)) for c in (a, b)]
    biased = scipy.stats.energy_distance(a, b) ** 2
    assert float(energy_distance(torch.from_numpy(a), torch.from_numpy(b))) == pytest.approx(
        biased - sum(own), rel=1e-10
    )


def test_between_samples_of_one_law_it_averages_zero() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(50, 4000, generator=generator, dtype=torch.float64) for _ in range(2))
    values = marginal_distances(a, b)
    error = float(values.std()) / math.sqrt(values.numel())
    assert values.shape == (4000,)
    assert abs(float(values.mean())) < 4 * error
    shifted = marginal_distances(a, b + 0.3)
    assert float(shifted.mean()) > 20 * error
    assert float(values[7]) == pytest.approx(float(energy_distance(a[:, 7], b[:, 7])), abs=1e-12)


@pytest.mark.parametrize("outputs", [(), (1,), (3,), (2, 2)])
def test_at_every_input_it_is_the_distance_of_that_inputs_draws(outputs: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(7, 4, *outputs)), rng.normal(0.3, size=(5, 4, *outputs))
    found = predictive_distances(torch.from_numpy(a), torch.from_numpy(b))
    assert found.shape == (4,)
    for i in range(4):
        assert float(found[i]) == pytest.approx(
            brute(a[:, i].reshape(7, -1), b[:, i].reshape(5, -1)), abs=1e-12
        )


def test_draws_at_different_inputs_are_refused() -> None:
    with pytest.raises(ValueError, match="at the same inputs"):
        predictive_distances(torch.zeros(5, 3, 2), torch.zeros(5, 4, 2))
    with pytest.raises(ValueError, match="at the same inputs"):
        predictive_distances(torch.zeros(5), torch.zeros(5))


def test_a_large_offset_does_not_cost_precision() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(2000, generator=generator, dtype=torch.float64) for _ in range(2))
    assert float(energy_distance(a + 1e6, b + 1e6)) == pytest.approx(float(energy_distance(a, b)), abs=1e-8)


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (torch.zeros(1), torch.zeros(5), "at least two samples"),
        (torch.tensor([0.0, math.nan]), torch.zeros(5), "NaN"),
        (torch.zeros(5, 2), torch.zeros(5, 3), "differ in kind"),
        (torch.zeros(5, 2, 2), torch.zeros(5, 2, 2), r"\[n\] or \[n, d\]"),
    ],
)
def test_bad_samples_are_refused(a: torch.Tensor, b: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        energy_distance(a, b)


def test_one_term_agrees_with_integrating_the_distribution_functions() -> None:
    """D^2 = 2 int (F - G)^2 dz."""
    z = torch.linspace(-60, 60, 1_200_001, dtype=torch.float64)
    for law in (Uniform(), Laplace(), Bimodal(0.9), SkewNormal(5.0), TwoPoint(), StudentT(5.0)):
        gap = (law.cdf(z) - Gaussian().cdf(z)).square()
        assert sum_energy_distance(law, 1) == pytest.approx(2 * float(torch.trapezoid(gap, z)), rel=1e-4)


def test_the_gaussian_is_at_distance_zero_from_itself() -> None:
    assert sum_energy_distance(Gaussian(), 9) == pytest.approx(0, abs=1e-25)


def test_bimodal_sums_have_the_known_distance() -> None:
    assert sum_energy_distance(Bimodal(0.9), 64) == pytest.approx(7.80e-7, rel=1e-3)


@pytest.mark.parametrize("law", [Uniform(), Laplace(), Bimodal(0.9), StudentT(12.0)], ids=str)
def test_symmetric_laws_approach_the_gaussian_with_slope_minus_two(law: Law) -> None:
    constant = sum_energy_distance(law, 4096) * 4096**2 / law.excess_kurtosis() ** 2
    assert constant == pytest.approx(0.001837, rel=0.003)


def test_skewed_laws_approach_with_slope_minus_one() -> None:
    law = SkewNormal(5.0)
    assert sum_energy_distance(law, 4096) * 4096 / law.skewness() ** 2 == pytest.approx(0.01175, rel=0.002)


def test_equal_signs_are_a_lattice_and_unequal_ones_are_not() -> None:
    assert sum_energy_distance(TwoPoint(), 256) * 256 == pytest.approx(0.188, rel=0.002)
    binomial = scipy.stats.binom(16, 0.5)
    z = torch.linspace(-12, 12, 480_001, dtype=torch.float64)
    level = torch.from_numpy(binomial.cdf(np.floor(z.numpy() * 2 + 8 + 1e-12)))
    expected = 2 * float(torch.trapezoid((level - Gaussian().cdf(z)).square(), z))
    assert sum_energy_distance(TwoPoint(), 16) == pytest.approx(expected, rel=1e-4)
    c = [
        0.5 + torch.rand(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
        for n in (64, 1024)
    ]
    quartic = [float((x**4).sum() / (x**2).sum() ** 2) for x in c]  # takes the place of 1/n
    constants = [
        sum_energy_distance(TwoPoint(), len(x), x) / (2 * q) ** 2 for x, q in zip(c, quartic, strict=True)
    ]
    assert constants[1] == pytest.approx(0.001837, rel=0.01)
    assert constants[0] == pytest.approx(0.001837, rel=0.1)


@pytest.mark.parametrize("df", [2.5, 3.0])
def test_heavy_tails_approach_with_slope_two_minus_df(df: float) -> None:
    near, far = (sum_energy_distance(StudentT(df), n) for n in (10**6, 10**7))
    assert math.log10(far / near) == pytest.approx(2 - df, abs=0.01)


def test_samples_with_atoms_are_measured_too() -> None:
    law = Empirical(np.random.default_rng(0).gamma(2.0, size=100))
    z = torch.linspace(-12, 12, 480_001, dtype=torch.float64)
    expected = 2 * float(torch.trapezoid((law.cdf(z) - Gaussian().cdf(z)).square(), z))
    assert sum_energy_distance(law, 1) == pytest.approx(expected, rel=1e-3)
    assert sum_energy_distance(law, 256) * 256 / law.skewness() ** 2 == pytest.approx(0.01175, rel=0.05)
