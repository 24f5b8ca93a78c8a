"""`pocketbayes evaluate` and `pocketbayes predict`, the scores and the threshold behind them."""

from __future__ import annotations

import csv
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy.special import logsumexp
from scipy.stats import norm
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss, roc_auc_score

import pocketbayes as pb
from cli_runs import complaint, result, run
from pocketbayes import artifact, data
from pocketbayes.artifact.predictor import ValueAnswers, score
from pocketbayes.cli import output
from pocketbayes.cli.network import given_net
from pocketbayes.data import Scaling
from pocketbayes.data.inputs import arranged
from pocketbayes.prediction.answer import Predictive, Regression, in_units
from pocketbayes.prediction.threshold import choose_threshold, selective

DOCS = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()


def documented(command: str) -> dict[str, object]:
    section = DOCS.partition(f"\n## {command}\n")[2]
    return dict(json.loads(section.partition("```json\n")[2].partition("```")[0]))


def without_card(source: Path, target: Path, *, graph: bool = True, **changes: object) -> None:
    """The same file with other metadata, perhaps without the network's graph."""
    pocket = artifact.decode(source)
    pocket = pocket if graph else replace(pocket, graph=b"")
    pocket.metadata.update(changes)
    for key in [key for key, value in pocket.metadata.items() if value is None]:
        del pocket.metadata[key]
    target.write_bytes(artifact.encode(pocket).data)


# --- evaluate --------------------------------------------------------------------------------------------------


def test_evaluate_and_predict_agree_with_scikit_learn(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test = data.load("digits", split="test")
    np.save("test.npy", test.x.numpy())
    answers = result(
        "predict small.pocket --net shopnets:net test.npy --top 10 --samples 8 --seed 2", capsys
    )["predictions"]
    probs = np.array([[row["top"][str(c)] for c in range(10)] for row in answers])
    assert np.allclose(probs.sum(1), 1)
    found = result("evaluate small.pocket --net shopnets:net --data digits --samples 8 --seed 2", capsys)
    labels, metrics = test.y.numpy(), found["metrics"]
    assert metrics["accuracy"] == pytest.approx(
        accuracy_score(labels, [int(row["class"]) for row in answers])
    )
    assert metrics["nll"] == pytest.approx(log_loss(labels, probs), rel=1e-5)
    assert metrics["brier"] == pytest.approx(brier_score_loss(labels, probs, labels=range(10)), rel=1e-5)
    sure = np.array([row["verdict"] == "sure" for row in answers])
    wrong = probs.argmax(1) != labels
    assert metrics["answered"] == pytest.approx(sure.mean())
    assert metrics["risk"] == pytest.approx(wrong[sure].mean())


def test_foreign_inputs_are_told_by_their_entropy(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noise = torch.randint(0, 17, (60, 8, 8), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    np.savez("noise.npz", x=noise.numpy())
    found = result(
        "evaluate small.pocket --net shopnets:net --data digits --ood noise.npz --samples 4", capsys
    )["metrics"]
    np.save("test.npy", data.load("digits", split="test").x.numpy())
    entropies = [
        [
            row["entropy"]
            for row in result(f"predict small.pocket --net shopnets:net {file} --samples 4", capsys)[
                "predictions"
            ]
        ]
        for file in ("test.npy", "noise.npz")
    ]
    foreign = np.repeat([0, 1], [len(e) for e in entropies])
    assert found["auroc"] == pytest.approx(roc_auc_score(foreign, np.concatenate(entropies)), abs=1e-5)
    assert {"aupr", "fpr85", "fpr95"} <= set(found)


def test_one_pass_and_as_many_as_needed_are_ways_to_answer(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, test = pb.open("small.pocket", given_net("shopnets:net")), data.load("digits", split="test")
    np.save("some.npy", test.x[:20].numpy())
    for way in ("mean", "auto"):
        found = result(f"predict small.pocket --net shopnets:net some.npy --samples {way}", capsys)
        expected = model.predict(test.x[:20], samples=way)
        confidence = [row["confidence"] for row in found["predictions"]]
        assert found["samples"] == way and confidence == pytest.approx(expected.confidence.tolist(), abs=1e-6)
    assert all(
        row["epistemic"] == 0
        for row in result("predict small.pocket --net shopnets:net some.npy --samples mean", capsys)[
            "predictions"
        ]
    )
    found = result("evaluate small.pocket --net shopnets:net --data digits --samples auto", capsys)
    assert 4 <= found["metrics"]["passes"] < 30
    assert run("evaluate small.pocket --net shopnets:net --data digits --samples mean") == 0
    assert "359 test examples, one pass" in capsys.readouterr().out
    assert "write a number of draws, mean or auto" in complaint(
        "predict small.pocket --net shopnets:net some.npy --samples all", 2, capsys
    )


def test_a_file_made_with_alpha_gives_sets_and_intervals_with_that_coverage(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = (
        "compress --net shopnets:net --weights plain.safetensors --data digits --max-bytes 2600 --epochs 1"
    )
    made = result(f"{small} --renew-every 5 --alpha 0.2 --calibrate --out sets --no-page", capsys)
    assert made["bytes"] <= 2600
    metadata = artifact.decode("sets.pocket").metadata
    assert metadata["conformal"]["alpha"] == 0.2 and metadata["logit_temperature"]["mean"] > 0
    coverage = made["test"]["after"]["set_coverage"]
    assert coverage == pytest.approx(0.8, abs=4 * math.sqrt(0.16 * (1 / 359 + 1 / 144)))
    found = result("evaluate sets.pocket --net shopnets:net --data digits", capsys)["metrics"]
    assert found["set_coverage"] == coverage
    np.save("some.npy", data.load("digits", split="test").x[:20].numpy())
    rows = result("predict sets.pocket --net shopnets:net some.npy --csv some.csv", capsys)["predictions"]
    answer = pb.open("sets.pocket", given_net("shopnets:net")).predict(np.load("some.npy"))
    assert answer.sets is not None
    assert [row["set"] for row in rows] == [[str(c) for c in s.nonzero()[:, 0].tolist()] for s in answer.sets]
    with Path("some.csv").open() as file:
        assert [row["set"] for row in csv.DictReader(file)] == ["; ".join(row["set"]) for row in rows]
    assert run("predict sets.pocket --net shopnets:net some.npy") == 0
    assert "with probability 0.8" in capsys.readouterr().out
    line = (
        "train --net mlp:8 --data shopnets:line --epochs 30 --lr 0.01 --batch-size 20 --bayesian --alpha 0.1"
    )
    scores = result(f"{line} --temperature 0.1 --validation 0.3 --out line", capsys)["test"]["after"]
    assert scores["interval_coverage"] == pytest.approx(0.9, abs=0.25)
    np.save("rows.npy", np.zeros((3, 4), np.float32))
    (first, *_) = result("predict line.pocket rows.npy", capsys)["predictions"]
    assert first["lower"] < first["mean"] < first["upper"]
    assert "Pass at least" in complaint(f"{small} --alpha 0.001 --out never", 2, capsys)
    assert "needs validation data" in complaint(f"{small} --alpha 0.1 --validation 0 --out never", 2, capsys)


def test_what_takes_long_says_what_would_take_less(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "SLOW", 359 * 3)
    for samples, said in (("3", True), ("2", False), ("mean", False), ("auto", False)):
        capsys.readouterr()
        assert run(f"evaluate small.pocket --net shopnets:net --data digits --samples {samples}") == 0
        assert ("--samples mean takes one" in capsys.readouterr().err) == said


def test_results_have_the_documented_keys(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = result("evaluate small.pocket --net shopnets:net --data digits --samples 2", capsys)
    assert set(found) == set(documented("evaluate"))
    assert set(found["metrics"]) == set(documented("evaluate")["metrics"])  # type: ignore[call-overload]
    np.save("one.npy", np.zeros((8, 8)))
    found, expected = (
        result("predict small.pocket --net shopnets:net one.npy --samples 2", capsys),
        documented("predict"),
    )
    assert set(found) == set(expected)
    assert set(found["predictions"][0]) == set(expected["predictions"][0])  # type: ignore[index]


def test_a_person_sees_tables(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save("one.npy", np.zeros((8, 8)))
    capsys.readouterr()
    assert run("evaluate small.pocket --net shopnets:net --data digits --samples 2") == 0
    assert run("predict small.pocket --net shopnets:net one.npy --samples 2") == 0
    shown = capsys.readouterr().out
    for text in ("359 test examples, 2 draws", "Brier score", "one.npy[0]", "epistemic", '"not sure" is'):
        assert text in shown


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("evaluate none.pocket --data digits", 1, "none.pocket"),
        ("evaluate shopnets.py --data digits", 1, "neither a pocket file nor safetensors"),
        ("evaluate small.pocket --net shopnets:net --data diabetes", 1, "made for inputs of shape (1, 8, 8)"),
        ("evaluate narrow.pocket --data diabetes", 1, "made for inputs of shape (4,)"),
        ("evaluate narrow.pocket --data shopnets:line --ood digits", 2, "--ood"),
        ("evaluate small.pocket --net shopnets:net --data digits --ood diabetes", 1, "--ood diabetes"),
        ("evaluate small.pocket --data digits --net mlp:3", 1, "does not fit"),
        ("evaluate small.pocket --data digits --net shopnets:other", 1, "no 'other'"),
        ("evaluate bare.pocket --data digits", 1, "do not say how to use it"),
        ("evaluate nameless.pocket --data digits", 1, "does not name its network"),
        ("predict none.pocket a.npy", 1, "none.pocket"),
        ("predict small.pocket --net shopnets:net none.npy", 1, "none.npy"),
        ("predict small.pocket --net shopnets:net shopnets.py", 1, "not an image"),
        ("predict small.pocket --net shopnets:net odd.npy", 1, "(5, 7)"),
        ("predict small.pocket --net shopnets:net holes.npy", 1, "not finite"),
        ("predict small.pocket --net shopnets:net words.npy", 1, "numbers"),
        ("predict small.pocket --net shopnets:net words.csv", 1, "number"),
        ("predict narrow.pocket picture.png", 1, "not images"),
        ("predict small.pocket --net shopnets:net picture.png --csv nowhere/a.csv", 1, "nowhere"),
        ("predict small.pocket --net shopnets:net picture.png --threshold 2", 2, "--threshold"),
    ],
)
def test_what_cannot_be_answered_is_one_line(
    command: str, code: int, message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    without_card(here / "small.pocket", here / "bare.pocket", shape=None)
    without_card(here / "small.pocket", here / "nameless.pocket", graph=False, net=None)
    np.save("odd.npy", np.zeros((5, 7)))
    np.save("holes.npy", np.full((1, 8, 8), np.nan))
    np.save("words.npy", np.array(["a"]))
    (here / "words.csv").write_text("a,b\n1,c\n")
    Image.new("L", (8, 8)).save("picture.png")
    assert message in complaint(command, code, capsys)


# --- predict ---------------------------------------------------------------------------------------------------


def test_an_image_file_is_the_array_it_holds(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pixels = np.arange(64).reshape(8, 8) % 17  # 0..16, as the digits have it
    Image.fromarray((pixels * 15).astype(np.uint8)).save("grey.png")
    Image.fromarray((pixels * 15).astype(np.uint8)).convert("RGB").save("colour.png")
    np.save("array.npy", pixels * 15 * 16 / 255)
    found = result(
        "predict small.pocket --net shopnets:net grey.png colour.png array.npy --samples 3", capsys
    )["predictions"]
    assert [row["input"] for row in found] == ["grey.png", "colour.png", "array.npy[0]"]
    for row in found:
        assert row["confidence"] == pytest.approx(found[0]["confidence"], rel=1e-5)
        assert row["entropy"] == pytest.approx(row["aleatoric"] + row["epistemic"])


def test_the_verdict_follows_the_threshold(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save("test.npy", data.load("digits", split="test").x.numpy()[:50])
    found = result("predict small.pocket --net shopnets:net test.npy --threshold 0.7", capsys)
    assert found["threshold"] == 0.7
    for row in found["predictions"]:
        assert row["verdict"] == ("sure" if row["confidence"] >= 0.7 else "not sure")
    without_card(here / "small.pocket", here / "open.pocket", unsure=None)
    assert (
        result("predict open.pocket --net shopnets:net test.npy", capsys)["predictions"][0]["verdict"] is None
    )
    assert run("predict open.pocket --net shopnets:net test.npy") == 0
    shown = capsys.readouterr().out
    assert "no threshold" in shown and "verdict" not in shown.splitlines()[1]


def test_a_regression_has_intervals_and_a_csv(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "ROWS.CSV").write_text("a,b,c,d\n0,0,0,0\n1,0,0,0\n")
    found = result("predict narrow.pocket ROWS.CSV --csv out.csv", capsys)["predictions"]
    assert [row["input"] for row in found] == ["ROWS.CSV[0]", "ROWS.CSV[1]"]
    for row in found:
        assert row["high"] - row["mean"] == pytest.approx(norm.ppf(0.975) * row["sigma"], rel=1e-5)
        assert 0 < row["epistemic_sigma"] < row["sigma"]
    with (here / "out.csv").open() as file:
        written = list(csv.DictReader(file))
    assert [float(row["mean"]) for row in written] == pytest.approx([row["mean"] for row in found])


def test_classes_are_written_to_a_csv(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save("two.npy", np.zeros((2, 8, 8)))
    found = result(
        "predict small.pocket --net shopnets:net two.npy --csv out.csv --samples 2 --top 2", capsys
    )["predictions"]
    with (here / "out.csv").open() as file:
        written = list(csv.DictReader(file))
    assert [row["class"] for row in written] == [row["class"] for row in found]
    assert written[0]["top"].count(";") == 1


def test_a_file_moved_away_from_its_module_is_opened_by_naming_another(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for graph, name in ((True, "moved"), (False, "bare")):
        without_card(
            shop / "small.pocket", tmp_path / f"{name}.pocket", graph=graph, net="elsewhere.nets:net"
        )
    monkeypatch.chdir(tmp_path)
    assert "elsewhere.nets:net" in complaint("evaluate bare.pocket --data digits", 1, capsys)
    by_its_graph = result("evaluate moved.pocket --data digits --samples 2", capsys)
    shutil.copy(shop / "shopnets.py", tmp_path / "othershop.py")
    found = result("evaluate moved.pocket --data digits --net othershop:net --samples 2", capsys)
    assert found["metrics"]["accuracy"] > 0.5
    assert by_its_graph["metrics"]["nll"] == pytest.approx(found["metrics"]["nll"], rel=1e-4)


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        ((5, 3, 4, 6), (3, 4, 6)),
        ((3, 4, 6), (3, 4, 6)),
        ((5, 4, 6, 3), (3, 4, 6)),
        ((4, 6, 3), (3, 4, 6)),
        ((5, 4, 6), (1, 4, 6)),
        ((4, 6), (1, 4, 6)),
        ((5, 24), (1, 4, 6)),
        ((7,), (7,)),
        ((5, 7), (7,)),
    ],
)
def test_arrays_are_arranged_for_the_network(shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    array = np.arange(math.prod(shape)).reshape(shape)
    found = arranged("a.npy", array, wanted)
    assert found.shape[1:] == wanted and len(found) == math.prod(shape) // math.prod(wanted)
    assert sorted(found.ravel()) == list(range(math.prod(shape)))


# --- scores and thresholds -------------------------------------------------------------------------------------


def predictive(confidence: list[float], right: list[bool]) -> tuple[Predictive, torch.Tensor]:
    """Two classes, the first one always chosen."""
    p = torch.tensor(confidence, dtype=torch.float64)
    zero = torch.zeros_like(p)
    answer = Predictive(probs=torch.stack([p, 1 - p], 1), entropy=zero, aleatoric=zero, epistemic=zero)
    return answer, (~torch.tensor(right)).long()


@given(
    st.lists(st.tuples(st.integers(5001, 10000), st.booleans()), min_size=1, max_size=12),
    st.none() | st.floats(0, 1),
)
def test_the_threshold_is_the_smallest_that_keeps_the_risk(
    examples: list[tuple[int, bool]], max_risk: float | None
) -> None:
    confidence, right = [c / 10000 for c, _ in examples], [r for _, r in examples]
    answer, labels = predictive(confidence, right)
    found = choose_threshold(answer, labels, max_risk)
    allowed = right.count(False) / len(right) / 2 if max_risk is None else max_risk

    def risk(threshold: float) -> float:
        kept = [r for c, r in zip(confidence, right, strict=True) if c >= threshold - 1e-9]
        return kept.count(False) / len(kept)

    good = [c for c in confidence if risk(c) <= allowed + 1e-12]
    assert found == pytest.approx(min(good) if good else 1.0, abs=1.01e-4)
    if good:
        sure = [c >= found for c in confidence]
        share = selective(answer, labels, found).answered
        assert share == pytest.approx(sum(sure) / len(sure))


def test_regression_scores_are_those_of_the_mixture_in_the_units_of_the_data() -> None:
    rng = np.random.default_rng(0)
    draws, sigmas = rng.normal(size=(4, 6, 2)), rng.uniform(0.5, 1.5, size=(4, 6, 2))
    mean, std, y = np.array([10.0, -3.0]), np.array([2.0, 0.5]), rng.normal(size=(6, 2))
    answer = Regression(
        mean=torch.from_numpy(draws.mean(0)),
        var=torch.from_numpy(draws.var(0) + (sigmas**2).mean(0)),
        epistemic_var=torch.from_numpy(draws.var(0)),
        draws=torch.from_numpy(draws),
        sigmas=torch.from_numpy(sigmas),
    )
    targets = y * std + mean
    scaling = Scaling(torch.from_numpy(mean), torch.from_numpy(std))
    found = score(ValueAnswers(**vars(in_units(answer, scaling))), torch.from_numpy(targets))
    log_p = norm.logpdf(targets, draws * std + mean, sigmas * std).sum(2)  # [S, N]
    assert found["nll"] == pytest.approx(-(logsumexp(log_p, 0) - math.log(4)).mean())
    assert found["rmse"] == pytest.approx(np.sqrt(((targets - (draws.mean(0) * std + mean)) ** 2).mean()))
    assert found["sigma"] == pytest.approx((np.sqrt(draws.var(0) + (sigmas**2).mean(0)) * std).mean())
