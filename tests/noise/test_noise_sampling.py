"""Draws have the law they claim, in every dtype, with a generator and when traced."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

from pocketbayes.noise import (
    Bimodal,
    Empirical,
    Gaussian,
    GaussianMixture,
    Laplace,
    Law,
    Logistic,
    QuantileTable,
    SkewNormal,
    StateDependent,
    StudentT,
    TwoPoint,
    Uniform,
    averaged,
)

GAMMA = np.random.default_rng(7).gamma(2.0, size=2000)
MIXTURE = GaussianMixture((0.3, 0.5, 0.2), (-2.0, 0.0, 4.0), (0.5, 1.0, 0.2))
LAWS: list[Law] = [
    Gaussian(),
    Uniform(),
    Laplace(),
    Logistic(),
    StudentT(3.0),
    StudentT(5.5),
    SkewNormal(4.0),
    Bimodal(0.9),
    MIXTURE,
    QuantileTable.of(GAMMA),
    TwoPoint(),
    Empirical(GAMMA),
    averaged(Uniform(), 3),
]
CONTINUOUS = [law for law in LAWS if not law.has_atoms and "Averaged" not in str(law)]
N = 400_000


def name(law: object) -> str:
    return str(law)[:28]


def draws(law: Law, seed: int = 0, count: int = N, dtype: torch.dtype = torch.float32) -> Tensor:
    return law.sample_like(torch.empty(count, dtype=dtype), torch.Generator().manual_seed(seed))


def wrong_moments(z: Tensor, kurtosis: float) -> bool:
    """Whether mean or variance is more than five standard errors from 0 and 1."""
    z = z.double()
    mean_error, var_error = 1 / math.sqrt(z.numel()), math.sqrt((kurtosis + 2) / z.numel())
    return abs(float(z.mean())) > 5 * mean_error or abs(float(z.square().mean()) - 1) > 5 * var_error + 1e-6


@pytest.mark.parametrize("traced", [False, True], ids=["generator", "global"])
@pytest.mark.parametrize("law", [x for x in LAWS if math.isfinite(x.excess_kurtosis())], ids=name)
def test_draws_have_zero_mean_and_unit_variance_within_their_errors(law: Law, traced: bool) -> None:
    torch.manual_seed(1)
    z = law.sample_like(torch.empty(N)) if traced else draws(law)
    assert not wrong_moments(z, law.excess_kurtosis())
    assert wrong_moments(1.05 * z, law.excess_kurtosis())  # a sigma off by five per cent is seen
    assert wrong_moments(z + 0.02, law.excess_kurtosis())


@pytest.mark.parametrize("law", CONTINUOUS, ids=name)
def test_draws_follow_the_distribution_function(law: Law) -> None:
    def distance(z: Tensor) -> float:
        level = law.cdf(z.double().sort().values).numpy()
        return float(np.abs(level - (np.arange(z.numel()) + 0.5) / z.numel()).max())

    z = draws(law)
    critical = 2.3 / math.sqrt(N)  # passed once in ten thousand by the right law
    assert distance(z) < critical
    assert distance(z * 1.05) > critical


def test_draws_of_samples_are_those_samples_equally_often() -> None:
    law = Empirical(GAMMA[:50])
    z = draws(law, count=100_000).double()
    index = torch.searchsorted(law.rule.nodes, z - 1e-4)
    counts = torch.bincount(index, minlength=50).numpy()
    assert scipy.stats.chisquare(counts).pvalue > 1e-4
    np.testing.assert_allclose(z.unique(), np.sort(law.values), atol=1e-6)


def test_signs_are_fair_independent_bits() -> None:
    z = draws(TwoPoint(), count=1_000_003).double()
    assert set(z.unique().tolist()) == {-1.0, 1.0}
    for lag in (1, 2, 3, 7, 8, 31, 32, 63, 64):
        assert abs(float((z[lag:] * z[:-lag]).mean())) < 5 / math.sqrt(z.numel())


@pytest.mark.parametrize("law", [Laplace(), StudentT(3.0), SkewNormal(4.0)], ids=name)
def test_the_tails_of_draws_are_as_heavy_as_the_law_says(law: Law) -> None:
    z = draws(law, count=4_000_000).double()
    for level in (2.0**-10, 2.0**-13, 2.0**-16):  # as fine as 16 random bits tell
        low, high = law.icdf(torch.tensor([level, 1 - level], dtype=torch.float64)).tolist()
        for count in (int((z < low).sum()), int((z > high).sum())):
            assert abs(count - level * z.numel()) < 5 * math.sqrt(level * z.numel())


@pytest.mark.parametrize(
    "law", [Laplace(), StudentT(2.5), StudentT(3.0), Logistic(), SkewNormal(-40.0)], ids=name
)
def test_the_table_itself_has_unit_variance_tails_and_all(law: Law) -> None:
    """Enumerated, not drawn: the plain quantiles of StudentT(3) lose more than one per cent of it."""
    z = law.quantiles.double()
    assert float(z.mean()) == pytest.approx(0.0, abs=1e-7)
    assert float(z.square().mean()) == pytest.approx(1.0, abs=2e-6)
    if law in (StudentT(2.5), StudentT(3.0)):
        level = (torch.arange(1 << 16).double() + 0.5) / (1 << 16)
        assert (
            float(law.icdf(level).square().mean()) < 0.99
        )  # the control: without the tails' own second moment


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("law", LAWS, ids=name)
def test_draws_take_the_shape_and_dtype_asked_for(law: Law, dtype: torch.dtype) -> None:
    for shape in ((3, 5), (), (0,), (40_000,)):
        like = torch.empty(shape, dtype=dtype)
        for generator in (None, torch.Generator().manual_seed(0)):
            z = law.sample_like(like, generator)
            assert z.shape == like.shape
            assert z.dtype == dtype
    if dtype == torch.float64 and type(law) is not Gaussian:
        assert abs(float(draws(law, count=N, dtype=dtype).mean())) < 5 / math.sqrt(N)


@pytest.mark.parametrize("law", LAWS, ids=name)
def test_a_seed_repeats_the_draws_and_another_changes_them(law: Law) -> None:
    assert torch.equal(draws(law, 3, 70_000), draws(law, 3, 70_000))
    assert not torch.equal(draws(law, 3, 70_000), draws(law, 4, 70_000))


@pytest.mark.parametrize("law", LAWS, ids=name)
def test_neighbouring_draws_and_chunks_are_independent(law: Law) -> None:
    z = torch.tanh(draws(law, count=200_000).double())
    z = z - z.mean()
    for lag in (1, 2, 1 << 16):
        correlation = float((z[lag:] * z[:-lag]).mean() / z.square().mean())
        assert abs(correlation) < 5 / math.sqrt(z.numel() - lag)


@pytest.mark.parametrize("law", LAWS, ids=name)
def test_vmap_draws_differently_for_every_example(law: Law) -> None:
    weight = torch.zeros(200)
    torch.manual_seed(0)
    z = torch.vmap(lambda x: x + law.sample_like(weight), randomness="different")(torch.zeros(4, 1))
    assert z.shape == (4, 200)
    assert not torch.equal(z[0], z[1])


@pytest.mark.parametrize("law", LAWS, ids=name)
def test_exported_programs_draw_anew_at_every_call(law: Law) -> None:
    class Noisy(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + law.sample_like(x)

    program = torch.export.export(Noisy(), (torch.zeros(64, 100),)).module()
    a, b = program(torch.zeros(64, 100)), program(torch.zeros(64, 100))
    assert not torch.equal(a, b)
    assert float(a.std()) == pytest.approx(1.0, abs=0.3)


SLOW = [pytest.param(x, marks=pytest.mark.slow) for x in (Bimodal(0.9), MIXTURE, QuantileTable.of(GAMMA))]


@pytest.mark.parametrize("law", [Laplace(), TwoPoint(), *SLOW], ids=name)
def test_draws_compile_into_one_graph(law: Law) -> None:
    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, on the way to the compiler
        drawn = torch.compile(law.sample_like, fullgraph=True, backend="aot_eager")(torch.empty(100, 100))
    assert not wrong_moments(drawn, law.excess_kurtosis())


def test_a_state_dependent_device_draws_the_law_of_its_state() -> None:
    noise = StateDependent((-1.0, 0.0, 1.0), (0.1, 0.2, 0.1), (Bimodal(0.9), Laplace(), SkewNormal(4.0)))
    for mu, sigma, law in zip(noise.mus, noise.sigmas, noise.laws, strict=True):
        state = torch.full((N,), mu), torch.full((N,), sigma)
        z = noise.sample_at(*state, torch.Generator().manual_seed(0)).double()
        level = law.cdf(z.sort().values).numpy()
        assert np.abs(level - (np.arange(N) + 0.5) / N).max() < 2.3 / math.sqrt(N)
        assert not wrong_moments(z, law.excess_kurtosis())


def test_between_states_the_draws_are_a_mixture_that_is_still_standardised() -> None:
    noise = StateDependent((0.0, 1.0), (0.1, 0.1), (Bimodal(0.9), SkewNormal(9.0)))
    mu, sigma = torch.full((N,), 0.3), torch.full((N,), 0.1)
    z = noise.sample_at(mu, sigma, torch.Generator().manual_seed(0))
    a = 0.7**2 / (0.7**2 + 0.3**2)  # inverse squared distances
    kurtosis = a * Bimodal(0.9).excess_kurtosis() + (1 - a) * SkewNormal(9.0).excess_kurtosis()
    assert not wrong_moments(z, kurtosis)
    cube = z.double() ** 3
    assert abs(float(cube.mean()) - (1 - a) * SkewNormal(9.0).skewness()) < 5 * float(cube.std()) / math.sqrt(
        N
    )
