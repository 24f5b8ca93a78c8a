"""The tables' scripts on a shallow network of the same kind and a handful of tiny images."""

from __future__ import annotations

import json
import pickle
import sys
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pocketbayes as pb
from experiments.sharing import (
    bench,
    frontier,
    long,
    table4,
    table5,
    table6,
    table7,
    table8,
    table10,
    tables,
    train_network,
)
from pocketbayes import data, nets
from pocketbayes.compression import compress
from pocketbayes.data import DataSet, Scaling
from pocketbayes.posterior.weights import sites
from pocketbayes.prediction.held_out import HeldOut

NAMES = ("cifar10", "mnist")
CLASSES = tuple(map(str, range(10)))


def images(name: str, count: int, seed: int) -> DataSet:
    """Classes that differ in brightness, so that there is something to learn."""
    channels = 1 if name == "mnist" else 3
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 10
    x = (20 * y.view(-1, 1, 1, 1) + torch.randint(0, 40, (count, channels, 8, 8), generator=generator)).byte()
    scaling = Scaling(torch.full((channels,), 0.43), torch.full((channels,), 0.25), 255.0)
    return DataSet(name=name, x=x, y=y, classes=CLASSES, scaling=scaling)


@pytest.fixture(autouse=True)
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Data, a network and settings of a size for tests; results go to the test's folder."""
    monkeypatch.setattr(
        data,
        "load",
        lambda name, folder=None, split="train": images(
            name, 100 if split == "train" else 40, int(split == "test")
        ),
    )
    monkeypatch.setattr(nets, "resnet20", lambda in_channels=3: nets.CifarResNet(1, 10, in_channels))
    monkeypatch.setattr(bench, "BATCH", 64)
    monkeypatch.setattr(compress, "LOST", float("inf"))
    known = HeldOut.best_temperature  # of networks that know nothing, from five images
    monkeypatch.setattr(HeldOut, "known_temperature", known)
    monkeypatch.setattr(train_network, "WINDOW", 8)
    monkeypatch.setattr(bench, "EPOCHS", 1)
    monkeypatch.setattr(bench, "DRAWS", 2)
    small = {name: replace(how, components=40) for name, how in table5.CONFIGURATIONS.items()}
    monkeypatch.setattr(table5, "CONFIGURATIONS", small)
    monkeypatch.setattr(
        pb, "Paper", lambda **given: small["outliers and blends"].__class__(**{"components": 40} | given)
    )
    for module in (table4, table5, table6, table7, table8, table10, frontier, long):
        monkeypatch.setattr(module, "RESULT", tmp_path / f"{module.__name__.rpartition('.')[2]}.json")
    torch.manual_seed(0)
    for name, channels in (("cifar10", 3), ("mnist", 1)):
        start = pb.bayesianize(nets.resnet20(in_channels=channels), sigma=pb.Absolute(1e-4))
        pb.save(start, tmp_path / f"{name}.pocket")
    return tmp_path


def run(
    module: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str, name: str = "cifar10"
) -> Any:
    """The command; returns the result it wrote."""

    network = [
        "--network",
        str(folder / f"{name}.pocket"),
        "--work",
        str(folder / "work"),
        "--rows",
        str(folder / "rows"),
    ]
    monkeypatch.setattr(sys, "argv", ["program", *network, *options])
    module.main()
    return json.loads(module.RESULT.read_text())


def test_rows_of_the_ablation_differ_in_what_is_left_out_and_are_made_once(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(table5, tiny, monkeypatch, "--seeds", "2")
    rows = {name: runs[0] for name, runs in result["rows"].items()}
    assert rows["no outliers"]["outliers"] == rows["neither"]["outliers"] == 0 < rows["no blends"]["outliers"]
    assert rows["no blends"]["blends"] == rows["neither"]["blends"] == 0 < rows["no outliers"]["blends"]
    for name, runs in result["rows"].items():
        for seed, row in enumerate(runs):
            file = tiny / "work" / f"{name.replace(' ', '-')}-{seed}.pocket"
            assert row["bytes"] == file.stat().st_size
            loaded = pb.evaluate(
                pb.load(file, nets.resnet20()),
                data.load("cifar10", split="test").batches(40),
                samples=2,
                seed=seed,
            )
            assert row["test"]["nll"] == pytest.approx(loaded.nll, abs=2e-4)
    assert rows["no outliers"]["outliers_of_their_own"] == 0
    text = table5.section(result)
    assert all(f"| {name} | " in text for name in table5.CONFIGURATIONS)
    monkeypatch.setattr(pb, "share", None)  # nothing is made again
    assert run(table5, tiny, monkeypatch, "--seeds", "2")["rows"] == result["rows"]


def test_thresholds_and_merging_share_the_row_of_the_whole_algorithm(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    thresholds = run(table8, tiny, monkeypatch, "--taus", "0.2", "0.1")
    merging = run(table10, tiny, monkeypatch)
    assert thresholds["rows"]["0.1"]["outliers"] > thresholds["rows"]["0.2"]["outliers"]
    assert merging["rows"]["after merging"] == thresholds["rows"]["0.2"]
    before = merging["rows"]["before merging"]
    assert before["components"] >= merging["rows"]["after merging"]["components"]
    assert "| 0.1 | " in table8.section(thresholds) and "| before merging | " in table10.section(merging)
    assert table8.RESULT.with_suffix(".svg").exists()


def test_a_row_tells_which_outliers_stand_by_themselves_and_what_its_sigma_costs(tiny: Path) -> None:
    made = bench.Bench("cifar10", None, tiny / "rows", tiny / "work", tiny / "cifar10.pocket")
    row = table5.ablated(made, "outliers and blends", 0)
    model, sensitivity = made.posterior()
    weights = [
        (g, abs(mu))
        for site in sites(model)
        for g, mu in zip(
            sensitivity[site.path].flatten().tolist(), site.moments.mu.flatten().tolist(), strict=True
        )
    ]
    important = sorted((g for g, _ in weights), reverse=True)[: len(weights) // 100]
    own = sum(mu > 0.2 or g >= important[-1] for g, mu in weights)
    assert row["outliers_of_their_own"] == own and len(important) < own <= row["outliers"]
    loaded = pb.load(tiny / "work" / "outliers-and-blends-0.pocket", nets.resnet20())
    costs = [(sensitivity[s.path] * s.moments.sigma.detach() ** 2 / 2).flatten() for s in sites(loaded)]
    each = torch.cat(costs).sort(descending=True)[0]
    cost, worst = row["cost_of_widths"]["nats"], row["cost_of_widths"]["worst"]
    assert cost == pytest.approx(float(each.sum()), rel=1e-3)
    assert worst == pytest.approx(float(each[: len(each) // 100].sum() / each.sum()), abs=1e-4)


class Inline:
    """A pool that works in this process, where the tests' small settings are."""

    def __init__(self, *_: Any) -> None:
        pass

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def submit(self, call: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(pickle.loads(pickle.dumps(call))())  # what a process would be handed
        return done


def test_rows_made_side_by_side_are_those_the_tables_look_for(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tables, "ProcessPoolExecutor", Inline)
    monkeypatch.setattr(
        frontier, "COURSES", {n: frontier.Course((), pb.Plan(), 1, pb.Plan(), {}) for n in NAMES}
    )
    monkeypatch.setattr(bench, "MODELS", tiny)
    for name in NAMES:
        (tiny / f"resnet20-{name}-start.pocket").write_bytes((tiny / f"{name}.pocket").read_bytes())
    where = ["--rows", str(tiny / "rows"), "--work", str(tiny / "w")]
    monkeypatch.setattr(sys, "argv", ["program", *where, "--list", "--match", "table*"])
    tables.main()
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == len(set(listed)) == 12 + 1 + 5 + 3 and not (tiny / "rows").exists()
    monkeypatch.setattr(
        sys, "argv", ["program", *where, "--match", "table10 *", "table5 0 outliers*", "table8 0.1"]
    )
    tables.main()
    rows = {path.stem: path.read_bytes() for path in (tiny / "rows").glob("*.json")}
    assert set(rows) == {"unmerged", "outliers-and-blends-0", "tau-0.1"}
    run(table10, tiny, monkeypatch)
    run(table8, tiny, monkeypatch, "--taus", "0.1", "0.2")
    assert rows == {path.stem: path.read_bytes() for path in (tiny / "rows").glob("*.json")}
    monkeypatch.setattr(sys, "argv", ["program", *where, "--match", "nonsense"])
    with pytest.raises(SystemExit):
        tables.main()


def test_table_4_has_both_sets_and_quantised_rows_are_smaller_with_fewer_bits(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table4, "SCRATCH_EPOCHS", {"cifar10": 1, "mnist": 1})
    run(table4, tiny, monkeypatch, "--set", "cifar10", "--seeds", "1")
    result = run(table4, tiny, monkeypatch, "--set", "mnist")
    for name in ("cifar10", "mnist"):
        rows = result[name]["rows"]
        sizes = [rows[f"INT8, sigma in {bits} bits"][0]["bytes"] for bits in (1, 2, 4)]
        assert sizes == sorted(sizes)
        weights = sum(
            p.numel() for p in nets.resnet20(1 if name == "mnist" else 3).parameters() if p.ndim > 1
        )
        assert sizes[1] - sizes[0] == pytest.approx(weights / 8, rel=0.01)
        assert sizes[0] < rows["unshared"][0]["bytes"]
        (shared,), (calibrated,) = rows["shared, without pretraining"], rows[table4.CALIBRATED]
        told = len('"logit_temperature":[1.116,1.128],')  # what a calibrated file says beside its sigmas
        assert abs(calibrated["bytes"] - shared["bytes"]) < 20 + told and calibrated["factor"] > 0
        folder = tiny / "work" / table4.FOLDERS[name]
        sigmas = [
            pb.read(folder / f"scratch-{which}.pocket")["conv1.weight"][1]
            for which in ("shared", "calibrated")
        ]
        ratio = (sigmas[1] / sigmas[0]).median()  # blends have a part that does not scale
        assert float(ratio) == pytest.approx(calibrated["factor"], rel=5e-3)
    text = table4.section(result)
    assert "| shared, with pretraining | " in text
    assert "On mnist without pretraining, validation images choose sigma times" in text


def test_out_of_distribution_images_are_told_apart_by_every_model(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tiny / "ood"
    other.mkdir()
    for file in table7.OOD.values():
        np.savez(other / file, x=np.random.default_rng(0).integers(0, 256, (30, 8, 8, 3), dtype=np.uint8))
    made = bench.Bench("cifar10", None, tiny / "rows", tiny / "work", tiny / "cifar10.pocket")
    table5.ablated(made, "neither", 0)
    pocket = tiny / "work" / "neither-0.pocket"
    result = run(table7, tiny, monkeypatch, "--ood", str(other), "--pockets", str(pocket))
    assert list(result["rows"])[-1] == f"ours, {pocket.stat().st_size:,} bytes" and len(result["rows"]) == 4
    values = [v for row in result["rows"].values() for part in row.values() for v in part.values()]
    assert all(0 <= value <= 1 for value in values)
    assert "30 of SVHN" in table7.section(result)


def test_the_frontier_keeps_its_budgets_and_publishes_the_file_that_validation_prefers(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "mnist"
    best = replace(frontier.PLAN, epochs=1, samples=2)
    curve = replace(best, rho_lr=1e-3, finetune_epochs=0)
    course = frontier.Course((30_000, 25_000), curve, 25_000, best, {20_000: best})
    monkeypatch.setattr(frontier, "COURSES", {name: course})
    monkeypatch.setattr(frontier, "SEEDS", 2)
    monkeypatch.setattr(frontier, "MODELS", tiny / "models")
    (tiny / "mnist-cycle-0.pocket").write_bytes((tiny / "mnist.pocket").read_bytes())
    first = run(frontier, tiny, monkeypatch, "--set", name, "--parts", "best-0", name=name)
    assert list(first[name]["runs"]) == ["best-0"]
    assert "| **best, 1 seed** | " in frontier.section(first)
    tried = tiny / "rows" / "frontier-mnist" / "tried" / "other.json"
    tried.parent.mkdir()
    row = json.loads((tried.parent.parent / "best-0.json").read_text())
    row["value"]["test"] = None
    tried.write_text(json.dumps(row))
    result = run(frontier, tiny, monkeypatch, "--set", name, name=name)
    runs = result[name]["runs"]
    assert runs["best-0"] == first[name]["runs"]["best-0"]
    assert all(run["bytes"] <= run["max_bytes"] for run in runs.values())
    untested = [key for key, run in runs.items() if run["test"] is None]
    assert untested == ["self-taught", "labels-alone"]
    assert "sigmas times" in runs["best-1"]["calibration"]
    chosen = min(("best-0", "best-1"), key=lambda key: runs[key]["validation"]["calibration"]["nll"])
    published = (tiny / "models" / "resnet20-mnist.pocket").read_bytes()
    assert published == (tiny / "work" / "frontier-mnist" / f"{chosen}.pocket").read_bytes()
    assert f'"seed": {chosen[-1]}' in (tiny / "models" / "resnet20-mnist.json").read_text()
    text = frontier.section(result)
    assert "What was tried for 25,000 bytes" in text and "What was tried" not in frontier.section(first)
    assert text.count("| not used |") == 1
    assert "| pushed, at most 20,000 | " in text and "norms and biases in 12 bits" in text
    assert "| curve, at most 30,000 | " in text and "with labels alone" in text and "best, 2 seeds" in text
    monkeypatch.setattr(frontier, "COURSES", {name: course._replace(curve=best)})
    sizes = [run["bytes"] for run in frontier.on_curve(name, runs)]
    assert sizes == sorted(sizes) and len(sizes) == 3  # the best row is one of them
    assert frontier.RESULT.with_suffix(".svg").exists()
    assert runs["best-0"]["settings"]["teachers"] == 2 and "from 2 teachers" in text
    with pytest.raises(SystemExit):
        run(frontier, tiny, monkeypatch, "--set", name, "--parts", "nonsense", name=name)
    (tiny / "mnist-cycle-1.pocket").write_bytes((tiny / "mnist.pocket").read_bytes())
    with pytest.raises(ValueError, match="made with other settings"):  # three teachers now
        run(frontier, tiny, monkeypatch, "--set", name, "--parts", "best-0", name=name)


def test_long_training_keeps_its_budget_and_probes_do_not_see_the_test_images(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = {"epochs": 1, "samples": 1, "calibrate": False, "bfloat16": False}
    monkeypatch.setattr(long, "RECIPE", replace(long.RECIPE, **quick))
    monkeypatch.setattr(long, "WAYS", {"draws": 2, "means": "mean"})
    quickly = long.PROBED._replace(plan=long.RECIPE, images=64, max_bytes=30_000)
    monkeypatch.setattr(long, "PROBED", quickly)
    chosen = ("channels of equal sigma",)
    plain = "resnet20-25000-rounded"
    parts = ("--parts", "resnet20-25000", plain, "--epochs", "1")
    result = run(long, tiny, monkeypatch, *parts, "--probes", *chosen)
    rows, probes = result["rows"], result["probes"]
    assert list(rows) == ["resnet20-25000-0", f"{plain}-0", "start-resnet20"]
    assert [row["test"] for row in probes.values()] == [None]
    for name in list(rows)[:2]:
        pocket = tiny / "work" / "long" / f"{name}.pocket"
        assert pocket.stat().st_size == rows[name]["bytes"] <= 25_000
        again = pb.evaluate(
            pb.load(pocket, nets.resnet20()), images("cifar10", 40, 1).batches(40), samples="mean"
        )
        assert again.accuracy == pytest.approx(rows[name]["test"]["means"]["accuracy"])
    text = long.section(result)
    assert f"--parts resnet20-25000 {plain} --seeds 0\n" in text
    assert "| resnet20, 25,000, plain competitor, 1 seed | " in text
    assert "| resnet20, 25,000, 1 seed | " in text and "| channels of equal sigma | 1 | " in text
    assert run(long, tiny, monkeypatch) == result
    for options in (("--parts", "resnet20"), ("--parts", "lenet-40000"), ("--probes", "nonsense")):
        with pytest.raises(SystemExit):
            run(long, tiny, monkeypatch, *options)


def test_channels_rescaled_for_one_sigma_answer_as_before(tiny: Path) -> None:
    torch.manual_seed(0)
    network = nets.resnet20()
    network(torch.randn(64, 3, 8, 8))  # statistics of the norms
    network.eval()
    x = torch.randn(16, 3, 8, 8)
    before = network(x)
    sigma = {n: torch.rand_like(p) + 0.1 for n, p in network.named_parameters() if p.ndim > 1}
    weights = {n: p.detach().clone() for n, p in network.named_parameters() if n in sigma}
    bench.rescale_channels(network, sigma)
    assert torch.allclose(network(x), before, atol=1e-5)
    middle = torch.cat([s.log().flatten() for s in sigma.values()]).mean().exp()
    for name, conv in network.named_modules():
        if isinstance(conv, torch.nn.Conv2d):
            factor = (conv.weight / weights[f"{name}.weight"]).mean((1, 2, 3), keepdim=True)
            even = (sigma[f"{name}.weight"] * factor).log().mean((1, 2, 3)).exp()
            assert torch.allclose(even, middle.expand_as(even), rtol=1e-3)


def test_a_training_killed_between_its_stages_ends_with_the_same_bits(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_network, "WINDOW", 6)
    settings = {"epochs": 4, "lr": 0.05, "weight_decay": 0.0, "seed": 0}
    works = [tiny / "whole", tiny / "killed"]
    for work in works:
        work.mkdir()
    record = train_network.train("cifar10", "", work=works[0], models=works[0], **settings)
    assert len(record["training_nll"]) == 4 and record["training_nll"][-1] < record["training_nll"][0]
    sides = []

    def killed(net: Any, loader: Any, **given: Any) -> pb.History:
        sides.append(next(iter(loader))[0].shape[-1])
        if len(sides) == 2:
            raise KeyboardInterrupt
        return fit_map(net, loader, **given)

    fit_map = pb.fit_map
    monkeypatch.setattr(pb, "fit_map", killed)
    with pytest.raises(KeyboardInterrupt):
        train_network.train("cifar10", "", work=works[1], models=works[1], **settings)
    assert sides == [6, 8]
    monkeypatch.setattr(pb, "fit_map", fit_map)
    again = train_network.train("cifar10", "", work=works[1], models=works[1], **settings)
    assert again["training_nll"] == record["training_nll"]
    files = [(work / "resnet20-cifar10-start.pocket").read_bytes() for work in works]
    assert files[0] == files[1]
    more = train_network.train("cifar10", "", work=works[1], models=works[1], again=True, **settings)
    assert (works[1] / "resnet20-cifar10-cycle-0.pocket").read_bytes() == files[1]
    taught = train_network.teachers(works[1] / "resnet20-cifar10-start.pocket", 3)
    assert len(taught) == 2 and taught[0].state_dict().keys() == taught[1].state_dict().keys()
    assert not torch.equal(*(teacher.get_parameter("conv1.weight") for teacher in taught))
    assert more["earlier"] == [{k: v for k, v in again.items() if k != "earlier"}]
    assert more["training_nll"][-1] < again["training_nll"][-1] and more["command"].endswith(
        "--seed 0 --again"
    )
    exact, small = record["validation"]["trained"], record["validation"]["in the file"]
    assert small["nll"] == pytest.approx(exact["nll"], abs=0.1) and len(files[0]) == record["bytes"]


def test_the_learning_rate_goes_up_and_down_once() -> None:
    rates = [train_network.one_cycle(step / 100) for step in range(101)]
    assert (
        rates[0] == pytest.approx(0.04) and max(rates) == rates[25] == 1.0 and rates[100] == pytest.approx(0)
    )
    assert rates[:26] == sorted(rates[:26]) and rates[25:] == sorted(rates[25:], reverse=True)


def test_times_are_there_for_training_and_inference(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table6, "IMAGES", 4)
    monkeypatch.setattr(table6, "BATCH", 2)
    monkeypatch.setattr(table6, "DRAWS", 2)
    monkeypatch.setattr(table6, "PAPER_DRAWS", 2)
    monkeypatch.setattr(sys, "argv", ["program", "--repeats", "1"])
    table6.main()

    result = json.loads(table6.RESULT.read_text())
    assert all(seconds > 0 for part in ("training", "inference") for seconds in result[part].values())
    assert "| Bayes by Backprop, 2 draws | " in table6.section(result)
