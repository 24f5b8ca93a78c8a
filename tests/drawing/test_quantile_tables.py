"""Tables of quantiles against scipy's laws; arithmetic against numpy's."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable

import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from pocketbayes.drawing import exact, tables
from pocketbayes.drawing.tables import LEVELS, SIZE

GAMMA = np.sort(np.random.default_rng(7).gamma(2.0, size=2000))


TABLES = {
    "gaussian": (tables.gaussian, scipy.stats.norm()),
    "uniform": (tables.uniform, scipy.stats.uniform()),
    "laplace": (tables.laplace, scipy.stats.laplace()),
    "logistic": (tables.logistic, scipy.stats.logistic()),
    "student 2.5": (lambda: tables.student(2.5), scipy.stats.t(2.5)),
    "student 3": (lambda: tables.student(3.0), scipy.stats.t(3.0)),
    "student 5.5": (lambda: tables.student(5.5), scipy.stats.t(5.5)),
    "student 1e6": (lambda: tables.student(1e6), scipy.stats.t(1e6)),
    "skew 4": (lambda: tables.skew_normal(4.0), scipy.stats.skewnorm(4.0)),
    "skew -40": (lambda: tables.skew_normal(-40.0), scipy.stats.skewnorm(-40.0)),
}
# CRC-32 of each table as little-endian float32: the same on every machine, for ever.
CHECKSUMS = {
    "gaussian": 0x48FADF65,
    "uniform": 0x23CAD278,
    "laplace": 0xF84CB2B9,
    "logistic": 0x746D3092,
    "student 3": 0x162EF1E4,
    "skew 4": 0xA5600023,
}
every_table = pytest.mark.parametrize(("make", "law"), TABLES.values(), ids=TABLES)


def standard_quantiles(law: scipy.stats.rv_continuous, levels: np.ndarray) -> np.ndarray:
    return (law.ppf(levels) - law.mean()) / law.std()


def scale_of(table: np.ndarray, law: scipy.stats.rv_continuous) -> float:
    """What the quantiles of the law were multiplied by, for a table of finite size to have unit variance."""
    inner, expected = table[1:-1].astype(np.float64), standard_quantiles(law, LEVELS[1:-1])
    return float((inner * expected).sum() / (expected * expected).sum())


@every_table
def test_entries_are_the_quantiles_of_the_law_in_scipy(make: Callable[[], np.ndarray], law) -> None:
    inner, expected = make()[1:-1], standard_quantiles(law, LEVELS[1:-1])
    scale = scale_of(make(), law)
    np.testing.assert_allclose(inner, scale * expected, rtol=3e-7, atol=3e-7)
    assert scale == pytest.approx(1.0, abs=6e-4)
    assert not np.allclose(inner, 1.001 * scale * expected, rtol=3e-7, atol=3e-7)


@every_table
def test_a_table_has_zero_mean_and_unit_variance_enumerated(make: Callable[[], np.ndarray], law) -> None:
    values = make().astype(np.float64)
    assert values.shape == (SIZE,)
    assert (np.diff(values) > 0).all()
    assert values.mean() == pytest.approx(0.0, abs=1e-9)
    assert (values**2).mean() == pytest.approx(1.0, abs=1e-7)


@pytest.mark.parametrize("df", [2.5, 3.0, 5.5])
def test_the_outermost_entries_hold_the_variance_of_heavy_tails(df: float) -> None:
    """E[z^2; u < 1/65536] by scipy's quadrature in x = 1/z, in units of the law's own variance."""
    law = scipy.stats.t(df)
    cut = law.ppf(1 / SIZE)
    moment, _ = scipy.integrate.quad(lambda x: law.pdf(1 / x) / x**4, 1 / cut, 0, epsabs=0)
    assert tables.student(df)[0] == pytest.approx(-math.sqrt(SIZE * moment / law.var()), rel=6e-4)
    middle = standard_quantiles(law, LEVELS[:1])[0]
    assert tables.student(df)[0] < 1.1 * middle  # the control: a mere quantile would be smaller


@pytest.mark.parametrize("table", CHECKSUMS)
def test_tables_are_the_same_bits_on_every_machine(table: str) -> None:
    make, _ = TABLES[table]
    assert zlib.crc32(make().astype("<f4").tobytes()) == CHECKSUMS[table]


@pytest.mark.parametrize("m", [0.0, 0.5, 0.9, 0.999])
def test_mixtures_have_the_distribution_function_of_scipy(m: float) -> None:
    s = math.sqrt(1 - m * m)
    values = tables.mixture((0.5, 0.5), (-m, m), (s, s)).astype(np.float64)[1:-1]
    level = 0.5 * (scipy.stats.norm.cdf(values, -m, s) + scipy.stats.norm.cdf(values, m, s))
    np.testing.assert_allclose(level, LEVELS[1:-1], rtol=0, atol=2e-6)


def test_unequal_mixtures_are_moved_to_zero_mean_and_unit_variance() -> None:
    w, m, s = (0.3, 0.5, 0.2), (98.0, 100.0, 104.0), (0.5, 1.0, 0.2)
    mean = sum(a * b for a, b in zip(w, m, strict=True))
    sd = math.sqrt(sum(a * (c * c + (b - mean) ** 2) for a, b, c in zip(w, m, s, strict=True)))
    z = tables.mixture(w, tuple((b - mean) / sd for b in m), tuple(c / sd for c in s)).astype(np.float64)
    level = sum(a * scipy.stats.norm.cdf(mean + sd * z, b, c) for a, b, c in zip(w, m, s, strict=True))
    np.testing.assert_allclose(level[1:-1], LEVELS[1:-1], rtol=0, atol=2e-6)


def test_samples_are_drawn_equally_often_and_standardised() -> None:
    values, counts = np.unique(tables.samples(GAMMA), return_counts=True)
    assert len(values) == 2000
    assert set(counts) == {32, 33}  # 65536 / 2000
    np.testing.assert_allclose(values, (GAMMA - GAMMA.mean()) / GAMMA.std(), atol=2e-3)
    few = tables.samples(
        np.array([0.0, 1.0, 5.0, 6.0])
    )  # a divisor of 65536: exactly the sample's own moments
    np.testing.assert_allclose(np.unique(few), (np.array([0, 1, 5, 6]) - 3) / math.sqrt(6.5), rtol=1e-7)


def test_steps_are_linear_between_their_values() -> None:
    knots = np.array([-1.0, 0.0, 0.5, 4.0])
    expected = np.interp(LEVELS, [0, 1 / 3, 2 / 3, 1], knots)
    expected = (expected - expected.mean()) / expected.std()
    np.testing.assert_allclose(tables.steps(knots), expected, rtol=0, atol=3e-7)


# --- what quantisation costs: the figures of docs/format.md -----------------------------------------------


def test_the_largest_gaussian_draw_is_stated() -> None:
    assert float(tables.gaussian()[-1]) == pytest.approx(4.3925, abs=1e-4)
    assert float(tables.gaussian()[-2]) == pytest.approx(scipy.stats.norm.ppf(1 - 1.5 / SIZE), rel=1e-5)


@every_table
def test_kolmogorovs_distance_to_the_law_is_that_of_a_grid_of_65536(
    make: Callable[[], np.ndarray], law
) -> None:
    """At a jump: half a step, a whole one at the ends, and what scaling by c adds, |c - 1| max z f(z) < |c - 1| / 2."""
    level = law.cdf(law.mean() + law.std() * make().astype(np.float64))
    steps = np.arange(SIZE + 1) / SIZE
    distance = max(np.abs(level - steps[:-1]).max(), np.abs(level - steps[1:]).max())
    assert distance < 1.01 / SIZE + abs(scale_of(make(), law) - 1) / 2


def test_the_kurtosis_of_the_gaussian_table_is_stated() -> None:
    z = tables.gaussian().astype(np.float64)
    assert abs((z**3).mean()) < 1e-9
    assert (z**4).mean() - 3 == pytest.approx(-1.78e-4, abs=1e-6)


# --- arithmetic --------------------------------------------------------------------------------------------------


def test_logarithms_and_exponentials_agree_with_numpys() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([10 ** rng.uniform(-300, 300, 20_000), rng.uniform(0.5, 2, 20_000)])
    np.testing.assert_allclose(exact.log(x), np.log(x), rtol=1e-15, atol=2e-16)
    np.testing.assert_allclose(exact.log1p(x), np.log1p(x), rtol=1e-15)
    y = rng.uniform(-700, 700, 40_000)
    np.testing.assert_allclose(exact.exp(y), np.exp(y), rtol=4e-16)
    assert (exact.exp(np.array([-1e4, -1200.0])) == 0).all()


def test_the_normal_distribution_function_agrees_with_scipys() -> None:
    x = np.linspace(-37, 9, 9001)
    np.testing.assert_allclose(exact.normal_cdf(x), scipy.stats.norm.cdf(x), rtol=2e-12)
    np.testing.assert_allclose(exact.normal_cdf(x[x > -6]), scipy.stats.norm.cdf(x[x > -6]), rtol=3e-14)
