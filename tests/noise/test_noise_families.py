"""Laws that every standardised noise family obeys, against scipy, torch.distributions and brute force."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pocketbayes.noise import (
    Averaged,
    Bimodal,
    Drifted,
    Empirical,
    Gaussian,
    GaussianMixture,
    Laplace,
    Law,
    Logistic,
    Noise,
    Programmed,
    QuantileTable,
    SkewNormal,
    StateDependent,
    StudentT,
    TwoPoint,
    Uniform,
    averaged,
    gauss_rule,
)

GAMMA = np.random.default_rng(7).gamma(2.0, size=2000)
MIXTURE = GaussianMixture((0.3, 0.5, 0.2), (-2.0, 0.0, 4.0), (0.5, 1.0, 0.2))
CONTINUOUS: list[Law] = [
    Gaussian(),
    Uniform(),
    Laplace(),
    Logistic(),
    StudentT(2.5),
    StudentT(5.5),
    StudentT(300.0),
    SkewNormal(0.0),
    SkewNormal(4.0),
    SkewNormal(-40.0),
    Bimodal(0.0),
    Bimodal(0.9),
    Bimodal(0.999),
    MIXTURE,
    QuantileTable.of(GAMMA),
    averaged(Laplace(), 3),
    averaged(Bimodal(0.95), 2),
]
ATOMIC: list[Law] = [TwoPoint(), Empirical(GAMMA), averaged(TwoPoint(), 5)]
ALL = CONTINUOUS + ATOMIC


def name(law: object) -> str:
    return str(law)[:28]


def scipy_law(law: Law) -> scipy.stats.rv_continuous | None:
    """The same law in scipy, standardised with scipy's own mean and standard deviation."""
    known = {
        Gaussian: lambda q: scipy.stats.norm(),
        Uniform: lambda q: scipy.stats.uniform(),
        Laplace: lambda q: scipy.stats.laplace(),
        Logistic: lambda q: scipy.stats.logistic(),
        StudentT: lambda q: scipy.stats.t(q.df),
        SkewNormal: lambda q: scipy.stats.skewnorm(q.alpha),
    }
    return known[type(law)](law) if type(law) in known else None


SCIPY = [law for law in CONTINUOUS if scipy_law(law) is not None]


@pytest.mark.parametrize("law", ALL, ids=name)
def test_the_mean_is_zero_and_the_variance_one(law: Law) -> None:
    assert law.rule.mean(torch.ones_like) == pytest.approx(1.0, abs=1e-12)
    assert law.rule.mean(lambda z: z) == pytest.approx(0.0, abs=1e-10)
    assert law.rule.mean(lambda z: z * z) == pytest.approx(1.0, abs=1e-8)


@pytest.mark.parametrize("law", [x for x in ALL if x.moment_order() > 4], ids=name)
def test_skewness_and_kurtosis_are_the_third_and_fourth_moments(law: Law) -> None:
    assert law.rule.mean(lambda z: z**3) == pytest.approx(law.skewness(), abs=1e-8)
    assert law.rule.mean(lambda z: z**4) - 3 == pytest.approx(law.excess_kurtosis(), abs=1e-7)


def test_a_mixture_has_the_third_and_fourth_moments_of_its_parts() -> None:
    w, m, s = (np.array(part) for part in (MIXTURE.weights, MIXTURE.means, MIXTURE.sigmas))
    assert MIXTURE.skewness() == pytest.approx(np.sum(w * (m**3 + 3 * m * s**2)), abs=1e-9)
    kurtosis = np.sum(w * (m**4 + 6 * (m * s) ** 2 + 3 * s**4)) - 3
    assert MIXTURE.excess_kurtosis() == pytest.approx(kurtosis, abs=1e-9)


def test_moments_that_do_not_exist_are_reported_as_such() -> None:
    assert math.isinf(StudentT(3.5).excess_kurtosis())
    assert StudentT(3.5).skewness() == 0.0
    assert math.isnan(StudentT(2.5).skewness())
    assert StudentT(2.5).moment_order() == 2.5


@pytest.mark.parametrize("law", SCIPY, ids=name)
def test_density_distribution_and_entropy_agree_with_scipy(law: Law) -> None:
    other = scipy_law(law)
    assert other is not None
    mean, sd = other.mean(), other.std()
    z = np.linspace(-1.7, 3.0, 41)
    np.testing.assert_allclose(law.cdf(torch.from_numpy(z)), other.cdf(mean + sd * z), atol=1e-12)
    density = sd * other.pdf(mean + sd * z)
    np.testing.assert_allclose(law.log_prob(torch.from_numpy(z)).exp(), density, rtol=1e-9, atol=1e-14)
    assert law.entropy() == pytest.approx(float(other.entropy()) - math.log(sd), abs=1e-6)
    skewness, kurtosis = (float(x) for x in other.stats("sk"))
    if law.moment_order() > 4:
        assert law.skewness() == pytest.approx(skewness, abs=1e-9)
        assert law.excess_kurtosis() == pytest.approx(kurtosis, abs=1e-9)


@pytest.mark.parametrize("law", [MIXTURE, Bimodal(0.9)], ids=name)
def test_mixtures_agree_with_torch_distributions(law: Law) -> None:
    w, m, s = law.components()  # type: ignore[attr-defined]
    other = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(w), torch.distributions.Normal(m, s)
    )
    z = torch.linspace(-3, 3, 61, dtype=torch.float64)
    torch.testing.assert_close(law.log_prob(z), other.log_prob(z))
    torch.testing.assert_close(law.cdf(z), other.cdf(z))
    assert float(other.mean) == pytest.approx(0, abs=1e-12)
    assert float(other.variance) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("law", CONTINUOUS, ids=name)
def test_entropy_by_quadrature_equals_the_closed_form(law: Law) -> None:
    seen = law.rule.weights > 0
    quadrature = -float((law.rule.weights * law.log_prob(law.rule.nodes))[seen].sum())
    assert law.entropy() == pytest.approx(quadrature, abs=1e-9)
    assert law.negentropy() == pytest.approx(0.5 * math.log(2 * math.pi * math.e) - law.entropy())
    assert law.negentropy() >= -1e-12


@pytest.mark.parametrize("law", [SkewNormal(4.0), Bimodal(0.9), MIXTURE, averaged(Laplace(), 3)], ids=name)
def test_entropy_without_a_closed_form_equals_a_million_draws(law: Law) -> None:
    generator = torch.Generator().manual_seed(3)
    z = law.sample_like(torch.empty(1_000_000), generator).double()
    if isinstance(law, Averaged):  # its density is a long series: looked up in a fine table
        grid = torch.linspace(-18, 18, 6001, dtype=torch.float64)
        surprise = -torch.from_numpy(np.interp(z.numpy(), grid.numpy(), law.log_prob(grid).numpy()))
    else:
        surprise = -law.log_prob(z)
    error = float(surprise.std()) / math.sqrt(surprise.numel())
    assert abs(float(surprise.mean()) - law.entropy()) < 4 * error
    assert abs(float(surprise.mean()) - law.entropy() - 0.1) > 4 * error  # a tenth of a nat would be seen


@pytest.mark.parametrize("law", CONTINUOUS, ids=name)
@settings(deadline=None, derandomize=True, max_examples=25)
@given(u=st.floats(1e-6, 1 - 1e-6))
def test_the_inverse_inverts_the_distribution_function(law: Law, u: float) -> None:
    level = torch.tensor([u], dtype=torch.float64)
    assert float(law.cdf(law.icdf(level))) == pytest.approx(u, abs=1e-12)


@pytest.mark.parametrize("law", ATOMIC, ids=name)
@settings(deadline=None, derandomize=True, max_examples=50)
@given(u=st.floats(1e-6, 1 - 1e-6))
def test_with_atoms_the_inverse_is_the_first_value_that_reaches_the_level(law: Law, u: float) -> None:
    z = law.icdf(torch.tensor([u], dtype=torch.float64))
    assert float(law.cdf(z)) >= u - 1e-12
    assert float(law.cdf(z - 1e-9)) < u + 1e-12


@pytest.mark.parametrize(
    "law", [x for x in CONTINUOUS if not isinstance(x, Averaged | QuantileTable)], ids=name
)
def test_log_density_has_the_gradient_of_finite_differences(law: Law) -> None:
    z = torch.tensor([-0.91, 0.37, 1.43], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(law.log_prob, (z,))


@pytest.mark.parametrize("law", [x for x in ALL if x.moment_order() > 4], ids=name)
def test_the_characteristic_function_is_the_expected_exponential(law: Law) -> None:
    t = torch.tensor([0.3, 1.0, 2.5], dtype=torch.float64)
    phi = law.characteristic(t)
    for i, x in enumerate(t.tolist()):
        assert float(phi[i].real) == pytest.approx(law.rule.mean(lambda z, x=x: (x * z).cos()), abs=2e-7)
        assert float(phi[i].imag) == pytest.approx(law.rule.mean(lambda z, x=x: (x * z).sin()), abs=2e-7)


@pytest.mark.parametrize("law", ALL, ids=name)
def test_gauss_rules_integrate_polynomials_exactly(law: Law) -> None:
    n = int(min(6, (law.moment_order() + 1 - 1e-9) // 2, law.rule.nodes.numel()))
    n = 2 if isinstance(law, Averaged) else n  # its density is known to 1e-16, not to a fraction of itself
    rule = gauss_rule(law, n)
    assert rule.nodes.numel() == n
    for degree in range(2 * n):
        exact = law.rule.mean(lambda z, k=degree: z**k)
        scale = max(1.0, law.rule.mean(lambda z, k=degree: z.abs() ** k))
        assert rule.mean(lambda z, k=degree: z**k) == pytest.approx(exact, abs=1e-9 * scale)


@pytest.mark.parametrize("law", SCIPY, ids=name)
def test_gauss_rules_have_the_moments_that_scipy_knows(law: Law) -> None:
    other = scipy_law(law)
    assert other is not None
    mean, sd = other.mean(), other.std()
    n = int(min(4, (law.moment_order() + 1 - 1e-9) // 2))
    raw = [float(other.moment(k)) for k in range(1, 2 * n)]  # E x^k, and z = (x - mean) / sd
    for degree in range(2 * n):
        terms = [
            math.comb(degree, k) * (-mean) ** (degree - k) * (raw[k - 1] if k else 1.0)
            for k in range(degree + 1)
        ]
        scale = sum(abs(t) for t in terms) / sd**degree
        found = gauss_rule(law, n).mean(lambda z, k=degree: z**k)
        assert found == pytest.approx(sum(terms) / sd**degree, abs=1e-8 * max(1.0, scale))


def test_the_gauss_rule_of_the_gaussian_is_gauss_hermite() -> None:
    nodes, weights = np.polynomial.hermite_e.hermegauss(12)
    rule = gauss_rule(Gaussian(), 12)
    np.testing.assert_allclose(rule.nodes, nodes, atol=1e-12)
    np.testing.assert_allclose(rule.weights, weights / weights.sum(), atol=1e-14)


def test_the_gauss_rule_of_the_uniform_is_gauss_legendre() -> None:
    nodes, weights = np.polynomial.legendre.leggauss(9)
    rule = gauss_rule(Uniform(), 9)
    np.testing.assert_allclose(rule.nodes, math.sqrt(3) * nodes, atol=1e-12)
    np.testing.assert_allclose(rule.weights, weights / 2, atol=1e-13)


def test_a_gauss_rule_beyond_the_moments_that_exist_is_refused() -> None:
    gauss_rule(StudentT(5.5), 3)
    with pytest.raises(ValueError, match="moments up to 7"):
        gauss_rule(StudentT(5.5), 4)
    with pytest.raises(ValueError, match="2 atoms"):
        gauss_rule(TwoPoint(), 3)


def test_known_values() -> None:
    assert Bimodal(0.9).excess_kurtosis() == pytest.approx(-2 * 0.9**4)
    assert TwoPoint().excess_kurtosis() == pytest.approx(-2)
    assert math.isinf(TwoPoint().negentropy())
    assert math.isinf(Empirical(GAMMA).negentropy())
    assert Laplace().negentropy() == pytest.approx(
        0.5 * math.log(2 * math.pi * math.e) - 1 - 0.5 * math.log(2)
    )


def test_the_mean_of_two_uniform_devices_is_triangular() -> None:
    law = averaged(Uniform(), 2)
    half = math.sqrt(6)
    z = torch.linspace(-2.4, 2.4, 49, dtype=torch.float64)
    np.testing.assert_allclose(
        law.cdf(z), scipy.stats.triang(0.5, loc=-half, scale=2 * half).cdf(z.numpy()), atol=1e-6
    )
    assert law.entropy() == pytest.approx(0.5 + math.log(half), abs=1e-6)


def test_the_mean_of_gaussian_devices_is_gaussian_and_of_signs_is_binomial() -> None:
    assert averaged(Gaussian(), 7) == Gaussian()
    values, probabilities = averaged(TwoPoint(), 4).rule
    assert values.tolist() == [-2, -1, 0, 1, 2]
    np.testing.assert_allclose(probabilities, scipy.stats.binom(4, 0.5).pmf(range(5)))


def test_heavy_tails_stay_heavy_in_the_mean_of_devices() -> None:
    law = averaged(StudentT(3.0), 2)
    assert law.rule.mean(lambda z: z * z) == pytest.approx(1.0, abs=1e-5)
    far = torch.tensor([-150.0, -90.0], dtype=torch.float64)
    generator = torch.Generator().manual_seed(5)
    z = law.sample_like(torch.empty(1_000_000), generator).double()
    share = float((z.abs() > 4).double().mean())
    expected = 2 * float(law.cdf(torch.tensor(-4.0, dtype=torch.float64)))
    assert abs(share - expected) < 4 * math.sqrt(expected / 1e6)
    ratio = float(law.cdf(far)[1] / law.cdf(far)[0])
    assert ratio == pytest.approx((150 / 90) ** 3, rel=0.01)


DESCRIBED: list[Noise] = [
    *ALL,
    StateDependent((0.0, 1.0), (0.1, 0.2), (Bimodal(0.9), QuantileTable.of(GAMMA))),
    Drifted(Programmed(Laplace(), (-1.0, 0.0, 1.0), (0.1, 0.2)), time=10.0, exponent=0.05, shift=0.01),
]


@pytest.mark.parametrize("noise", DESCRIBED, ids=name)
def test_a_description_survives_json_and_gives_an_equal_family(noise: Noise) -> None:
    text = json.dumps(noise.to_dict(), default=np.ndarray.tolist)
    again = Noise.from_dict(json.loads(text))
    assert again == noise
    assert hash(again) == hash(noise)
    assert Noise.from_dict(noise.to_dict()) == noise
    assert all((other == noise) == (other is noise) for other in DESCRIBED)


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ({"family": "Cauchy"}, "unknown family 'Cauchy'"),
        ({"family": "Law"}, "unknown family 'Law'"),
        ({}, "unknown family None"),
        ({"family": "StudentT"}, r"has the parameters \['df'\]"),
        ({"family": "StudentT", "df": 3.0, "x": 1}, r"got \['df', 'x'\]"),
        ({"family": "StudentT", "df": "three"}, "wrong type"),
        ({"family": "StudentT", "df": 1.5}, "df must exceed 2"),
    ],
)
def test_bad_descriptions_are_refused(description: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Noise.from_dict(description)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: StudentT(2.0), "variance is infinite"),
        (lambda: StudentT(math.nan), "variance is infinite"),
        (lambda: StudentT(math.inf), "Gaussian"),
        (lambda: SkewNormal(math.nan), "alpha"),
        (lambda: Bimodal(1.0), "TwoPoint"),
        (lambda: Bimodal(-0.1), "m must be in"),
        (lambda: GaussianMixture((1.0,), (0.0, 1.0), (1.0,)), "equal numbers"),
        (lambda: GaussianMixture((0.5, -0.5), (0.0, 1.0), (1.0, 1.0)), "positive"),
        (lambda: GaussianMixture((0.5, 0.5), (0.0, math.nan), (1.0, 1.0)), "finite"),
        (lambda: Empirical([1.0]), "at least two different values"),
        (lambda: Empirical([3.0, 3.0, 3.0]), "at least two different values"),
        (lambda: Empirical([1.0, math.nan]), "NaN"),
        (lambda: Empirical([[1.0, 2.0]]), "one-dimensional"),
        (lambda: QuantileTable([0.0, 2.0, 1.0]), "increase strictly"),
        (lambda: QuantileTable([0.0, 1.0, 1.0]), "increase strictly"),
        (lambda: QuantileTable.of([1.0, 1.0]), "constant"),
        (lambda: averaged(Laplace(), 0), "positive integer"),
        (lambda: averaged(Empirical(GAMMA), 3).rule, "too many sums"),
        (lambda: TwoPoint().log_prob(torch.zeros(1)), "no density"),
        (lambda: StateDependent((0.0,), (0.1,), (TwoPoint(),)), "no density"),
        (lambda: StateDependent((0.0, 0.0), (0.1, 0.1), (Laplace(), Uniform())), "two laws for one state"),
        (lambda: StateDependent((0.0,), (-0.1,), (Laplace(),)), "sigmas positive"),
        (lambda: Programmed(Laplace(), mu_levels=(1.0, 0.0)), "increase strictly"),
        (lambda: Programmed(Laplace(), sigma_levels=(0.0, 1.0)), "positive"),
        (lambda: Drifted(Laplace(), time=0.0), "time must be positive"),
    ],
)
def test_impossible_parameters_are_refused(build: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()  # type: ignore[operator]


def test_a_mixture_is_standardised_whatever_its_units() -> None:
    shifted = GaussianMixture((3.0, 5.0, 2.0), (98.0, 100.0, 104.0), (0.5, 1.0, 0.2))
    for part, other in zip(shifted.components(), MIXTURE.components(), strict=True):
        torch.testing.assert_close(part, other)


def test_equal_readings_are_spread_by_a_quantile_table() -> None:
    coarse = np.round(np.random.default_rng(0).normal(size=5000) * 2) / 2
    law = QuantileTable.of(coarse)
    z: Tensor = law.icdf(torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64))
    np.testing.assert_allclose(z, scipy.stats.norm.ppf([0.1, 0.5, 0.9]), atol=0.06)
