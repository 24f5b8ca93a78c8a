"""Draws of every family: golden bits, moments and distribution functions of the law, slices, devices and states."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch

from pocketbayes.drawing import WhichDraw, WordStream, shape_of, tensor_number
from pocketbayes.moments import Moments
from pocketbayes.noise import (
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
)
from pocketbayes.noise.counter import DeviceStream

SAMPLES = np.arange(2000.0) ** 2  # skewed
MIXTURE = GaussianMixture((0.3, 0.5, 0.2), (-2.0, 0.0, 4.0), (0.5, 1.0, 0.2))
LAWS: list[Law] = [
    Gaussian(),
    Uniform(),
    Laplace(),
    Logistic(),
    StudentT(5.5),
    StudentT(9.0),
    SkewNormal(4.0),
    Bimodal(0.9),
    MIXTURE,
    QuantileTable.of(SAMPLES),
    TwoPoint(),
    Empirical(SAMPLES),
    averaged(Uniform(), 3),
    averaged(TwoPoint(), 4),
]
STATES = StateDependent((-1.0, 0.0, 1.0), (0.1, 0.2, 0.1), (Bimodal(0.9), Laplace(), SkewNormal(4.0)))
DEVICE = Drifted(Programmed(STATES, (-1.0, 0.0, 1.0), (0.1, 0.2)), time=9.0, exponent=0.5, shift=0.25)
N = 400_000


def name(noise: Noise) -> str:
    return str(noise)[:28]


def stream(number: int = 4) -> WordStream:
    return WordStream(WhichDraw.of(1, number), tensor=tensor_number("fc.weight"))


def at(mu: float, sigma: float, count: int = N) -> Moments:
    return Moments(np.full(count, mu, np.float32), np.full(count, sigma, np.float32))


def draws(noise: Noise, q: Moments | None = None, number: int = 4, **more: Any) -> np.ndarray:
    return shape_of(noise.to_dict()).z(stream(number), q or at(0.0, 1.0), **more)


# Elements 0 to 3 of draw 4 of seed 1, one mode, tensor "fc.weight": float32 in hexadecimal, big-endian.
GOLDEN = {
    "Gaussian()": "3f6c2f7e 3faa2245 c033b175 3edb5e8d",
    "Uniform()": "3f8eba7a 3fb4f491 bfdc98a7 3f131197",
    "Laplace()": "3f3ada35 3f9951df c06fdeb7 3e91e5fc",
    "Logistic()": "3f57d5be 3fa1a7d8 c0536528 3ec29d08",
    "StudentT(df=5.5)": "3f4da056 3f9b2f60 c066acfe 3eb8c039",
    "StudentT(df=9.0)": "3f5b8fc2 3fa287e3 c05054e3 3ec7f8a2",
    "SkewNormal(alpha=4.0)": "3f67824e 3fb8447f bff72de3 3e9b0850",
    "Bimodal(m=0.9)": "3f87c403 3fa57889 c0017a56 3f35dcb9",
    "GaussianMixture(weights=(0.3": "3fcca1f3 3fdbf2ee bfc505d3 3e407a42",
    "QuantileTable(values=array([": "3f92e30d 3fd2f2f2 bf8f19d6 3ebce0e1",
    "TwoPoint()": "3f800000 3f800000 3f800000 bf800000",
    "Empirical(values=array([-1.1": "3f92cd95 3fd30f9b bf8f10ff 3ebca8e8",
    "Averaged(noise=Uniform(), de": "3f617500 bd522ff6 c0318640 bf749100",
    "AveragedAtoms(noise=TwoPoint": "00000000 00000000 40000000 bf800000",
    "StateDependent(mus=(-1.0, 0.": "bef63456 bf2dd0ee bfbbce6b 3d4695c3",
}


MIRRORED = "bf6a272d bf95cc06 4063708a bf0c1788"  # of draw 5, SkewNormal(4)


@pytest.mark.parametrize("noise", [*LAWS, STATES], ids=name)
def test_golden_draws(noise: Noise) -> None:
    z = draws(noise, at(0.3, 0.15, 4))
    assert z.dtype == np.float32
    assert z.astype(">f4").tobytes().hex(" ", 4) == GOLDEN[name(noise)]
    if isinstance(noise, SkewNormal):
        z = draws(noise, at(0.3, 0.15, 4), number=5)
        assert z.astype(">f4").tobytes().hex(" ", 4) == MIRRORED


def wrong_moments(z: np.ndarray, law: Law) -> bool:
    """Whether one of the first moments is more than five standard errors from the law's, errors from the sample."""
    expected = [0.0, 1.0, law.skewness(), law.excess_kurtosis() + 3]
    orders = [k for k in (1, 2, 3, 4) if 2 * k < law.moment_order()]
    powers = {k: z.astype(np.float64) ** k for k in orders}
    return any(
        abs(x.mean() - expected[k - 1]) > 5 * x.std() / math.sqrt(len(z)) + 3e-6 for k, x in powers.items()
    )


@pytest.mark.parametrize("law", LAWS, ids=name)
def test_draws_have_the_moments_of_the_law(law: Law) -> None:
    z = draws(law)
    assert not wrong_moments(z, law)
    assert wrong_moments(1.05 * z, law)  # a sigma off by five per cent is seen
    assert wrong_moments(z + np.float32(0.02), law)


SCIPY = {
    "Gaussian": (Gaussian(), scipy.stats.norm()),
    "Uniform": (Uniform(), scipy.stats.uniform()),
    "Laplace": (Laplace(), scipy.stats.laplace()),
    "Logistic": (Logistic(), scipy.stats.logistic()),
    "StudentT": (StudentT(3.0), scipy.stats.t(3.0)),
    "SkewNormal": (SkewNormal(-9.0), scipy.stats.skewnorm(-9.0)),
    "two uniforms": (averaged(Uniform(), 2), scipy.stats.triang(0.5)),
}


@pytest.mark.parametrize(("noise", "law"), SCIPY.values(), ids=SCIPY)
def test_draws_follow_the_distribution_function_of_scipy(noise: Noise, law: Any) -> None:
    def distance(z: np.ndarray) -> float:
        level = np.sort(law.cdf(law.mean() + law.std() * z.astype(np.float64)))
        return float(np.abs(level - (np.arange(N) + 0.5) / N).max())

    critical = 2.3 / math.sqrt(N)  # passed once in ten thousand by the right law
    assert distance(draws(noise)) < critical
    assert distance(1.05 * draws(noise)) > critical


def test_four_signs_are_binomial() -> None:
    counts = np.unique(draws(averaged(TwoPoint(), 4)), return_counts=True)[1]
    assert scipy.stats.chisquare(counts, N * scipy.stats.binom(4, 0.5).pmf(range(5))).pvalue > 1e-4


def test_measured_samples_are_drawn_equally_often() -> None:
    values, counts = np.unique(draws(Empirical(SAMPLES[:64])), return_counts=True)
    np.testing.assert_allclose(values, np.sort(scipy.stats.zscore(SAMPLES[:64])), rtol=1e-6)
    assert scipy.stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize("noise", [*LAWS, STATES, DEVICE], ids=name)
def test_slices_drawn_apart_are_the_whole(noise: Noise) -> None:
    rng = np.random.default_rng(0)
    mu, sigma = (rng.uniform(0.1, 1, 40_000).astype(np.float32) for _ in range(2))
    whole = draws(noise, Moments(mu, sigma))
    for low, high in ((0, 1), (1, 777), (777, 33_333), (33_333, 40_000), (40_000, 40_000)):
        part = draws(noise, Moments(mu[low:high], sigma[low:high]), start=low)
        assert part.tobytes() == whole[low:high].tobytes()


@pytest.mark.parametrize("noise", [*LAWS, STATES, DEVICE], ids=name)
def test_torchs_integers_draw_the_same_bits(noise: Noise) -> None:
    mu = torch.linspace(-1.5, 1.5, 5000)
    sigma = torch.linspace(0.05, 0.3, 5000)
    for number in (4, 5):
        there = DeviceStream(WhichDraw.of(1, number), tensor=stream().where[0], device=torch.device("cpu"))
        expected = draws(noise, Moments(mu.numpy(), sigma.numpy()), number)
        assert noise.z(there, mu, sigma).numpy().tobytes() == expected.tobytes()


SYMMETRIC = (Gaussian, Uniform, Laplace, Logistic, StudentT, Bimodal, TwoPoint)


@pytest.mark.parametrize("law", LAWS, ids=name)
def test_the_second_draw_of_a_pair_mirrors_the_first(law: Law) -> None:
    first, second, next_pair = (draws(law, number=number) for number in (4, 5, 6))
    inner = getattr(law, "noise", law)
    if isinstance(inner, SYMMETRIC):
        assert np.array_equal(second, -first)
        assert not np.array_equal(next_pair, -first)  # the control: independent draws
    elif inner is law:  # one word each: F(z) -> 1 - F(z)
        order = np.argsort(first, kind="stable")
        assert (np.diff(second[order]) <= 0).all()
        assert not (np.diff(next_pair[order]) <= 0).all()
    assert not wrong_moments(second, law)


def test_a_law_of_ones_own_is_drawn_through_its_quantiles() -> None:
    class Triangular(Uniform):
        def icdf(self, u: torch.Tensor) -> torch.Tensor:
            return torch.where(u < 0.5, (2 * u).sqrt() - 1, 1 - (2 - 2 * u).sqrt()) * math.sqrt(6)

    z = Triangular().z(
        DeviceStream(WhichDraw.of(1, 2), tensor=3, device=torch.device("cpu")),
        *map(torch.from_numpy, at(0, 1)),
    )
    law = scipy.stats.triang(0.5, -math.sqrt(6), 2 * math.sqrt(6))
    level = np.sort(law.cdf(z.double().numpy()))
    assert np.abs(level - (np.arange(N) + 0.5) / N).max() < 2.3 / math.sqrt(N)
    del Noise.families["Triangular"]


def test_at_each_of_its_states_a_device_draws_the_law_of_that_state() -> None:
    for mu, sigma, law in zip(STATES.mus, STATES.sigmas, STATES.laws, strict=True):
        z = draws(STATES, at(mu, sigma))
        assert not wrong_moments(z, law)
        level = np.sort(law.cdf(torch.from_numpy(z).double()).numpy())
        assert np.abs(level - (np.arange(N) + 0.5) / N).max() < 2.3 / math.sqrt(N)


def test_between_states_the_law_is_their_mixture_by_inverse_squared_distance() -> None:
    z = draws(StateDependent((0.0, 1.0), (0.1, 0.1), (Bimodal(0.9), SkewNormal(9.0))), at(0.3, 0.1))
    a = 0.7**2 / (0.7**2 + 0.3**2)
    levels = [
        law.cdf(torch.from_numpy(np.sort(z)).double()).numpy() for law in (Bimodal(0.9), SkewNormal(9.0))
    ]
    mixed = a * levels[0] + (1 - a) * levels[1]
    grid = (np.arange(N) + 0.5) / N
    assert np.abs(mixed - grid).max() < 2.3 / math.sqrt(N)
    assert np.abs(levels[0] - grid).max() > 2.3 / math.sqrt(N)


def test_a_programmed_and_drifted_device_places_what_it_draws() -> None:
    """By hand: levels first, then w(t) = (t / t0)^(-exponent) w + shift ln(t / t0)."""
    shape = shape_of(DEVICE.to_dict())
    q = Moments(np.float64([-5, 0.4, 0.6]), np.float64([0.01, 0.14, 0.16]))
    z = shape.z(stream(), q)
    levels = Moments(np.float64([-1, 0, 1]), np.float64([0.1, 0.1, 0.2]))
    np.testing.assert_array_equal(z, shape_of(STATES.to_dict()).z(stream(), levels))
    w = (levels.mu + levels.sigma * z) / 3 + 0.25 * math.log(9)
    np.testing.assert_allclose(shape.place(stream(), q, z), w, rtol=1e-12)
