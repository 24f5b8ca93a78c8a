"""Fitting families to readings that were drawn from a known one."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from pocketbayes.noise import (
    Bimodal,
    Gaussian,
    GaussianMixture,
    Laplace,
    Law,
    Logistic,
    SkewNormal,
    StudentT,
    Uniform,
    fit_noise,
    fit_states,
    read_readings,
)
from pocketbayes.noise.likelihood import fit_mixture, group, mean_log_likelihood

RNG = np.random.default_rng


def readings(law: Law, cells: int, reads: int) -> np.ndarray:
    """Cells with their own means and sigmas, in ohm."""
    z = law.sample_like(torch.empty(cells, reads), torch.Generator().manual_seed(0)).numpy()
    rng = RNG(1)
    return 5e4 * rng.uniform(0.5, 2, (cells, 1)) + 300 * rng.uniform(0.5, 2, (cells, 1)) * z


SLOW = [
    pytest.param(law, marks=pytest.mark.slow)
    for law in (Laplace(), StudentT(4.0), Uniform(), SkewNormal(6.0), Logistic())
]


@pytest.mark.parametrize("law", [Gaussian(), Bimodal(0.9), *SLOW], ids=str)
def test_the_family_that_made_the_readings_is_chosen(law: Law) -> None:
    found = fit_noise(readings(law, 12, 1500))
    assert type(found.noise) is type(law)
    for key, value in law.to_dict().items():
        if key != "family":
            assert found.noise.to_dict()[key] == pytest.approx(value, rel=0.15)
    best = next(c for c in found.candidates if c.noise == found.noise)
    assert best.ks < 0.02
    worst = max(c.ks for c in found.candidates)
    assert worst > 3 * best.ks


def test_a_mixture_is_found_with_its_parameters() -> None:
    law = GaussianMixture((0.3, 0.7), (-1.0, 1.0), (0.3, 0.6))
    found = fit_noise(readings(law, 1, 10_000).ravel()).noise
    assert isinstance(found, GaussianMixture)
    order = np.argsort(found.means)
    np.testing.assert_allclose(np.array(found.weights)[order], [0.3, 0.7], atol=0.02)
    np.testing.assert_allclose(np.array(found.means)[order], law.means, atol=0.05)
    np.testing.assert_allclose(np.array(found.sigmas)[order], law.sigmas, atol=0.03)


def test_em_never_does_worse_than_sklearn_and_keeps_the_variance() -> None:
    from sklearn.mixture import GaussianMixture as Reference

    z = RNG(0).gamma(2.0, size=4000)
    z = (z - z.mean()) / z.std()
    reference = Reference(3, random_state=0, max_iter=300, tol=1e-6).fit(z[:, None])
    ours = fit_mixture(group(z), 3)
    assert mean_log_likelihood(ours, z) > reference.score(z[:, None]) - 0.003
    w, m, s = ours.components()
    assert float((w * (m**2 + s**2)).sum()) == pytest.approx(1.0, abs=1e-9)


def test_groups_keep_mean_variance_and_the_extreme_reads() -> None:
    for count in (60, 1000, 50_000):
        z = RNG(0).standard_t(3, size=count)
        groups = group(z)
        assert groups.fraction.sum() == pytest.approx(1)
        assert groups.fraction @ groups.z == pytest.approx(z.mean(), abs=1e-12)
        assert groups.fraction @ (groups.z**2 + groups.var) == pytest.approx(np.mean(z**2))
        assert (groups.z[0], groups.z[-1]) == (z.min(), z.max())
        assert groups.z.size <= 1300


def test_one_column_of_readings_is_one_cell() -> None:
    found = fit_noise(torch.randn(3000, generator=torch.Generator().manual_seed(0)))
    assert found.noise == Gaussian()
    assert found.cells.z.shape == (1, 3000)
    assert "1 cell of 3000 reads" in str(found)


def test_the_report_says_how_cells_differ_and_what_to_distrust() -> None:
    rng = RNG(0)
    reads = np.cumsum(rng.normal(size=(20, 1000)), axis=1)  # a random walk: consecutive reads hang together
    reads[4] = 7.0
    text = str(fit_noise(reads))
    assert "19 cells of 1000 reads, 1 constant left out" in text
    assert "consecutive reads correlate" in text
    assert "excess kurtosis from cell to cell" in text
    assert "does not cover" in text
    independent = str(fit_noise(rng.normal(size=(20, 1000))))
    assert "caution" not in independent
    assert "chosen: Gaussian()" in independent


def test_the_readings_themselves_are_a_law_too() -> None:
    found = fit_noise(readings(Laplace(), 3, 500))
    np.testing.assert_allclose(np.sort(found.empirical.values), np.sort(found.cells.z.ravel()), atol=1e-9)
    assert found.table.negentropy() == pytest.approx(Laplace().negentropy(), abs=0.15)


def test_the_plot_shows_the_chosen_family() -> None:
    figure = fit_noise(readings(Bimodal(0.9), 1, 2000).ravel()).plot()
    shown = figure.to_dict()
    left, right = shown["hconcat"]
    families = {row["family"] for row in shown["datasets"][left["layer"][1]["data"]["name"]]}
    assert "Bimodal (chosen)" in families
    assert right["layer"][0]["encoding"]["x"]["title"] == "quantile of Bimodal"


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (np.ones(500), "constant"),
        (np.arange(10.0), "do not show a shape"),
        (np.zeros((3, 4, 5)), r"\[cells, reads\]"),
        (np.array([[1.0] * 60, [2.0] * 59 + [math.nan]]), "read 59 of cell 1"),
        (np.full(100, math.inf), "NaN or infinite"),
    ],
    ids=["constant", "few", "shape", "nan", "inf"],
)
def test_unusable_readings_are_refused(samples: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit_noise(samples)


def test_a_state_dependent_device_is_fitted_from_cells_at_different_values() -> None:
    low, high = readings(Bimodal(0.95), 10, 2000), readings(Laplace(), 10, 2000)
    device = fit_states(np.concatenate([low, high + 1e6]), states=2, scale=1e-5, zero=5e5)
    assert device.mus[0] == pytest.approx(1e-5 * (low.mean() - 5e5), rel=1e-6)
    assert device.sigmas[1] == pytest.approx(1e-5 * math.sqrt(high.var(axis=1).mean()), rel=1e-3)
    assert device.laws[0].excess_kurtosis() == pytest.approx(Bimodal(0.95).excess_kurtosis(), abs=0.1)
    assert device.laws[1].excess_kurtosis() == pytest.approx(3.0, abs=1.0)
    with pytest.raises(ValueError, match="at most one state per cell"):
        fit_states(low, states=11)


def test_readings_come_from_csv_npy_and_npz(tmp_path: Path) -> None:
    reads = RNG(0).normal(size=(3, 60)).round(6)
    np.save(tmp_path / "a.npy", reads)
    np.savez(tmp_path / "a.npz", first=reads, second=reads[0])
    lines = "\n".join(",".join(map(str, row)) for row in reads.T)
    (tmp_path / "a.csv").write_text("cell 1,cell 2,cell 3\n" + lines)
    (tmp_path / "b.csv").write_text("# ohm\n" + lines.replace(",", "; "))
    (tmp_path / "c.txt").write_text("\n".join(map(str, reads[0])))
    for found in (
        read_readings(tmp_path / "a.npy"),
        read_readings(tmp_path / "a.npz", "first"),
        read_readings(tmp_path / "a.csv"),
        read_readings(tmp_path / "b.csv"),
    ):
        np.testing.assert_array_equal(found, reads)
    np.testing.assert_array_equal(read_readings(tmp_path / "c.txt"), reads[0])


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", first=np.zeros(3), second=np.zeros(3))
    np.save(tmp_path / "text.npy", np.array(["a", "b"]))
    (tmp_path / "words.csv").write_text("1\n2\nthree\n")
    (tmp_path / "ragged.csv").write_text("1,2\n3\n")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "a.xlsx").write_text("x")
    for file, message in (
        ("a.npz", "which array.*first, second"),
        ("text.npy", "needs numbers"),
        ("words.csv", "line 3"),
        ("ragged.csv", r"lines of \[1, 2\] columns"),
        ("empty.csv", "empty"),
        ("a.xlsx", "unknown kind"),
        ("nothing.csv", "no such file"),
    ):
        with pytest.raises(ValueError, match=message):
            read_readings(tmp_path / file)
