"""The experiment on tables: its splits, its mixtures against closed forms, a run that goes on where it stopped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.mixture import GaussianMixture

import pocketbayes as pb
from experiments.sharing import tabular
from experiments.sharing import tabular_mixtures as mixtures
from experiments.sharing import tabular_study as study
from experiments.sharing.tabular_mixtures import Plane
from experiments.sharing.tabular_study import Study
from pocketbayes import data
from pocketbayes.data import DataSet, Scaling
from pocketbayes.sharing import Mixture, Outliers


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two tables of a noisy function."""
    generator = np.random.default_rng(0)
    for name in ("power", "kin8nm"):
        x = generator.normal(3.0, 2.0, size=(200, 3))
        y = 5.0 * np.sin(x[:, 0]) + x[:, 1] + generator.normal(size=200)
        np.savez(tmp_path / f"{name}.npz", x=x, y=y)
    return tmp_path


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The experiment in seconds."""
    settings = {
        "TABLES": ("power",),
        "HIDDEN": (16, 16),
        "EPOCHS": 2,
        "POSTERIOR_EPOCHS": 1,
        "TUNING_EPOCHS": 1,
        "TEMPERATURES": (0.1, 0.01),
        "SHARED": (3,),
        "OUTLIERS": (0.0, 0.01),
        "PUBLISHED": pb.Paper(components=4, outliers=Outliers(smallest_cluster=2)),
        "BUDGETS": (0.9,),
        "PLAN": pb.Plan(epochs=1, finetune_epochs=1, components=4, samples=2),
        "SAMPLES": 3,
    }
    for name, value in settings.items():
        monkeypatch.setattr(study, name, value)
    monkeypatch.setattr(mixtures, "COMPONENTS", (1, 2, 4))
    monkeypatch.setattr(mixtures, "DRAWN", 2)
    monkeypatch.setattr(tabular, "SEEDS", 2)


def test_a_split_uses_every_row_once_and_takes_scales_from_training_rows(folder: Path) -> None:
    table = study.load_table(folder, "power", 1)
    assert table.rows == [160, 20, 20]
    with np.load(folder / "power.npz") as file:
        x, y = file["x"], file["y"]
    parts = [table.train.dataset.tensors, table.validation[0], table.test[0]]
    seen, targets = (torch.cat([part[i] for part in parts]).numpy() for i in (0, 1))
    row = np.empty(200, int)  # of the file: scaling keeps the order
    row[seen[:, 0].argsort()] = x[:, 0].argsort()
    train = row[:160]
    np.testing.assert_allclose(seen, ((x - x[train].mean(0)) / x[train].std(0))[row], atol=1e-5)
    np.testing.assert_allclose(targets[:, 0], ((y - y[train].mean()) / y[train].std())[row], atol=1e-5)
    assert table.unit == pytest.approx(y[train].std())
    assert not torch.equal(study.load_table(folder, "power", 2).test[0][0], table.test[0][0])


def test_a_folder_without_the_tables_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"power\.npz: not found.*kin8nm\.npz"):
        study.load_table(tmp_path, "power", 0)


@pytest.mark.parametrize("count", [2, 7, 1000])
def test_held_out_halves_are_disjoint_and_whole(count: int) -> None:
    fit, held = mixtures.halves(count, 3)
    assert not set(fit.tolist()) & set(held.tolist())
    assert sorted([*fit.tolist(), *held.tolist()]) == list(range(count))
    assert 0 <= len(held) - len(fit) <= 1
    assert count < 10 or fit.tolist() != mixtures.halves(count, 4)[0].tolist()


def two_layers(rows: int = 4000) -> Plane:
    """Layers of one Gaussian each, far apart, the first three times as large."""
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(3 * rows, 2, generator=generator, dtype=torch.float64) * 0.1 + torch.tensor(
        [0.0, 3.0]
    )
    second = torch.randn(rows, 2, generator=generator, dtype=torch.float64) * 0.3 + torch.tensor([5.0, 6.0])
    return Plane.of({"first": first.T, "second": second.T})


def test_log_density_is_that_of_scipy() -> None:
    cov = torch.tensor([[[1.0, 0.3], [0.3, 0.5]], [[0.2, 0.0], [0.0, 0.1]]], dtype=torch.float64)
    mean = torch.tensor([[0.0, 1.0], [2.0, 3.0]], dtype=torch.float64)
    pi = torch.tensor([0.3, 0.7], dtype=torch.float64)
    points = torch.randn(5000, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = sum(
        float(p) * stats.multivariate_normal(m.numpy(), c.numpy()).pdf(points.numpy())
        for p, m, c in zip(pi, mean, cov, strict=True)
    )
    np.testing.assert_allclose(
        mixtures.log_density(Mixture(pi.log(), mean, cov), points), np.log(expected), atol=1e-9
    )


def test_a_mixture_of_two_layers_is_that_of_sklearn() -> None:
    plane = two_layers()
    fit, held = mixtures.halves(len(plane.points), 0)
    peer = GaussianMixture(2, random_state=0).fit(plane.points[fit].numpy())
    ours = float(mixtures.log_density(mixtures.fitted(plane.points[fit], 2), plane.points[held]).mean())
    assert ours == pytest.approx(peer.score(plane.points[held].numpy()), abs=2e-3)


def test_layers_apart_save_the_entropy_of_knowing_the_layer() -> None:
    """With one component a layer, the layer tells the component: ln p rises by -ln pi, 0.75 and 0.25 here."""
    plane = two_layers()
    fit, held = mixtures.halves(len(plane.points), 0)
    each = mixtures.by_layer(plane, fit, held, 2, mixtures.fitted(plane.points[fit], 2))
    first = plane.layer[held] == 0
    for way in ("proportions", "own"):
        saved = each[way] - each["one"]
        assert float(saved[first].median()) == pytest.approx(-np.log(0.75), abs=0.02)
        assert float(saved[~first].median()) == pytest.approx(-np.log(0.25), abs=0.04)


def test_the_worst_lose_most_against_their_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixtures, "WORST", 0.4)
    own, one = torch.tensor([0.0, 5.0, 9.0, 1.0, 2.0]), torch.tensor([-3.0, 5.0, 8.0, 1.5, 0.0])
    assert sorted(mixtures.worst_of(own=own, one=one).tolist()) == [0, 4]


@pytest.mark.usefixtures("small")
def test_a_row_finds_the_layer_that_one_gaussian_fits_worst(monkeypatch: pytest.MonkeyPatch) -> None:
    """Across the line between the layers one Gaussian has sd 0.17: too narrow for the tails of the wide one, 0.3."""
    monkeypatch.setattr(mixtures, "DRAWN", 1)
    row = mixtures.mixture_row(two_layers(), 0)
    assert row["best"] in (2, 4) and set(row["k"]) == {"1", "2", "4"}
    assert row["k"]["1"]["own"] > row["k"]["1"]["one"] + 1  # two Gaussians against one
    assert row["layers"]["first"]["share"] == pytest.approx(0.75, abs=0.01)
    assert [row["layers"][name]["worst"] for name in ("first", "second")] == [0, 1]


@pytest.mark.usefixtures("small")
def test_the_resnet_gives_other_weights_to_each_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (40, 3, 32, 32), dtype=torch.uint8, generator=generator)
    scaling = Scaling(torch.zeros(3), torch.ones(3), 255.0)
    made = DataSet(
        name="noise", x=images, y=torch.arange(40) % 10, classes=tuple("0123456789"), scaling=scaling
    )
    monkeypatch.setattr(data, "load", lambda *args, **settings: made)
    rows = mixtures.resnet_rows("nowhere", 20_000, 2)
    first, second = (row["mixture"]["laplace"] for row in rows)
    assert first["k"] != second["k"] and np.isfinite([first["k"][k]["one"] for k in ("1", "2", "4")]).all()
    assert sum(layer["share"] for layer in first["layers"].values()) == pytest.approx(1, abs=2e-3)


def test_the_smallest_k_near_the_best_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixtures, "COMPONENTS", (1, 4, 16, 64))
    nats = {"1": 0.0, "4": 1.0, "16": 1.5, "64": 1.52}
    rows = [{"k": {k: {"one": value + shift} for k, value in nats.items()}} for shift in (-3.0, 7.0)]
    assert [tabular.best_k(rows, (), within) for within in (0.0, 0.05, 0.6, 2.0)] == [64, 16, 4, 1]


@pytest.mark.usefixtures("small")
def test_a_run_goes_on_where_it_stopped_and_its_report_is_whole(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    result = tabular.measure(folder, work, None)
    row = result["tables"]["power"][0]
    parts = {"posterior", "mixture", "published", "sharing 3", "budget 0.9", "seconds"}
    assert set(row) == parts
    assert row["posterior"]["weights"] == 3 * 16 + 16 * 16 + 16 and row["posterior"]["temperature"] in (
        0.1,
        0.01,
    )
    assert row["budget 0.9"]["bytes"] <= 0.9 * row["posterior"]["fp32"]
    assert set(row["sharing 3"]) == {"0", "0.01"}
    counts = [row["sharing 3"][share]["none"]["outliers"] for share in ("0", "0.01")]
    assert counts == [0, 3] and row["sharing 3"]["0"]["none"]["blends"] == 0
    for case in (row["posterior"]["posterior"], row["published"], row["sharing 3"]["0.01"]["blends"]):
        assert np.isfinite(
            [case[rows][metric] for rows in ("validation", "test") for metric in ("rmse", "nll")]
        ).all()

    (work / "power 1 published.json").unlink()
    for part in ("train", "mixtures", "sharing", "compress"):
        monkeypatch.setattr(Study, part, lambda *_, part=part: pytest.fail(f"{part} again"))
    again = tabular.measure(folder, work, None)["tables"]["power"]
    assert [one["published"] for one in again] == [one["published"] for one in result["tables"]["power"]]

    text = tabular.section(result)
    for words in ("`compress` to 90%", "paper's, K = 3", "| 4 |", "power, K = 3: validation rows choose"):
        assert words in text
    assert "ResNet" not in text and "nan" not in text
    resnet = [{"mixture": row["mixture"]} for row in result["tables"]["power"]]
    assert "ResNet-20, Laplace" in tabular.section({**result, "resnet20": resnet})
    monkeypatch.setattr(tabular, "RESULT", tmp_path / "tabular.json")
    tabular.plot({name: Study(folder, work, name, 0).plane() for name in study.TABLES}, result)
    assert 5_000 < (tmp_path / "tabular.svg").stat().st_size < 300_000
