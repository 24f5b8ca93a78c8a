"""The numbers of a story, held to scikit-learn, scipy and numpy."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import special, stats
from sklearn import metrics as reference

import pocketbayes as pb
from pocketbayes import artifact
from pocketbayes.prediction.scales import Scales, give_scales
from pocketbayes.prediction.score import regression_scores
from pocketbayes.report import Story, gather
from pocketbayes.report.record import from_record
from report_models import NOISE, Case


@pytest.fixture(scope="module")
def probs(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """What the plain network and the posterior say, [N, C] each."""
    with torch.no_grad():
        plain = case.before.eval()(case.test.inputs()).double().softmax(1).numpy()
    return plain, pb.predict(case.model, case.test.inputs(), samples=5, seed=3).probs.numpy()


@pytest.fixture(scope="module")
def labels(case: Case) -> np.ndarray:
    return case.test.y.numpy()


def rows(story: Story) -> dict[str, tuple[float | None, float, float | None]]:
    return {row.key: (row.before, row.after, row.error) for row in story.table}


# --- classification --------------------------------------------------------------------------------------------


def test_the_table_has_the_scores_that_scikit_learn_computes(story, probs, labels) -> None:
    found = rows(story)
    for side, p in enumerate(probs):
        assert found["accuracy"][side] == pytest.approx(reference.accuracy_score(labels, p.argmax(1)))
        assert found["nll"][side] == pytest.approx(reference.log_loss(labels, p), rel=1e-6)
        squares = ((p - np.eye(10)[labels]) ** 2).sum(1)
        assert found["brier"][side] == pytest.approx(squares.mean(), rel=1e-6)
    assert probs[0].shape == probs[1].shape and not np.allclose(*probs, atol=1e-3)


def test_standard_errors_are_those_of_paired_differences(story, probs, labels) -> None:
    n = np.arange(len(labels))
    nll = [-np.log(p[n, labels]) for p in probs]
    hits = [(p.argmax(1) == labels).astype(float) for p in probs]
    assert rows(story)["nll"][2] == pytest.approx(stats.sem(nll[1] - nll[0]), rel=1e-5)
    assert rows(story)["accuracy"][2] == pytest.approx(stats.sem(hits[1] - hits[0]), rel=1e-5)
    assert rows(story)["ece"][2] is None


def test_auroc_is_that_of_entropy_on_test_data_and_out_of_distribution_inputs(case, story, probs) -> None:
    foreign = pb.predict(case.model, case.ood, samples=5, seed=3).probs.numpy()
    entropies = [stats.entropy(p, axis=1) for p in (probs[1], foreign)]
    truth = np.repeat([0, 1], [len(e) for e in entropies])
    assert rows(story)["auroc"][1] == pytest.approx(
        reference.roc_auc_score(truth, np.concatenate(entropies)), abs=1e-9
    )
    assert list(story.entropies.heights) == ["test data", "out-of-distribution inputs"]
    for fractions, values in zip(story.entropies.heights.values(), entropies, strict=True):
        expected = np.histogram(values, len(fractions), (0.0, math.log(10)))[0] / len(values)
        np.testing.assert_allclose(fractions, expected)


def test_reliability_groups_predictions_by_confidence(story, probs, labels) -> None:
    for table, p, side in (
        (story.reliability["before"], probs[0], 0),
        (story.reliability["after"], probs[1], 1),
    ):
        sure, right = p.max(1), p.argmax(1) == labels
        group = np.ceil(sure * 15).astype(int)  # bins closed on the right
        for number, found in zip(np.unique(group), zip(*table, strict=True), strict=True):
            inside = group == number
            np.testing.assert_allclose(found, [sure[inside].mean(), right[inside].mean(), inside.sum()])
        gaps = np.abs(table.confidence - table.accuracy) * table.size
        assert rows(story)["ece"][side] == pytest.approx(gaps.sum() / len(labels))


def test_risk_falls_to_that_of_the_surest(story, probs, labels) -> None:
    sure, wrong = probs[1].max(1), probs[1].argmax(1) != labels
    order = np.argsort(-sure)
    for coverage, risk in zip(*story.risk["after"], strict=True):
        assert risk == pytest.approx(wrong[order[: round(coverage * len(labels))]].mean())
    assert story.risk["after"].x[-1] == 1 and len(story.risk["after"].x) <= 200


def test_the_threshold_of_the_file_stands_on_the_risk_curve(case, probs, labels, tmp_path: Path) -> None:
    sure, wrong = probs[1].max(1), probs[1].argmax(1) != labels
    for unsure in (0.8, 1.01):
        file = tmp_path / f"{unsure}.pocket"
        pb.save(case.model, file, metadata={"unsure": unsure})
        mark = gather(case.model, file, case.test, samples=5, seed=3).threshold
        assert mark.confidence == unsure and mark.answered == pytest.approx((sure >= unsure).mean())
        if unsure < 1:
            assert mark.risk == pytest.approx(wrong[sure >= unsure].mean())
        else:
            assert math.isnan(mark.risk)


def test_boxes_have_the_quantiles_of_their_class(story, probs, labels) -> None:
    sure, right = probs[1].max(1), probs[1].argmax(1) == labels
    assert [box.name for box in story.confidence] == list("0123456789")
    for c, box in enumerate(story.confidence):
        of_class = labels == c
        np.testing.assert_allclose(box.quantiles, np.quantile(sure[of_class], [0.05, 0.25, 0.5, 0.75, 0.95]))
        assert box.size == of_class.sum() and box.accuracy == pytest.approx(right[of_class].mean())
        assert box.right == pytest.approx(sure[of_class & right].mean())


def test_the_gallery_shows_raw_images_by_confidence(case, story, probs, labels) -> None:
    sure, said = probs[1].max(1), probs[1].argmax(1)
    shown = story.gallery
    assert [p.confidence for p in shown.surest] == pytest.approx(np.sort(sure)[::-1][:8])
    assert [p.confidence for p in shown.least_sure] == pytest.approx(np.sort(sure)[:8])
    assert [p.confidence for p in shown.sure_and_wrong] == pytest.approx(
        np.sort(sure[said != labels])[::-1][:8]
    )
    least = sure.argmin()
    raw = case.test.x[least, 0].numpy()
    np.testing.assert_array_equal(shown.least_sure[0].pixels, np.round(raw / 16 * 255))
    assert shown.least_sure[0].truth == str(labels[least])


def test_unlabelled_examples_are_left_out(case) -> None:
    y = case.test.y.clone()
    y[100:] = -1
    story = gather(case.model, case.file, replace(case.test, y=y), samples=2)
    assert story.examples == 100
    with pytest.raises(ValueError, match="no labels"):
        gather(case.model, case.file, replace(case.test, y=torch.full_like(y, -1)), samples=2)


def test_test_data_of_other_classes_are_refused(case) -> None:
    other = replace(case.test, classes=tuple("0123456789ab"))
    with pytest.raises(ValueError, match="12 classes"):
        gather(case.model, case.file, other, samples=2)


def test_a_plain_model_is_refused(case) -> None:
    with pytest.raises(ValueError, match="no stochastic weights"):
        gather(case.before, case.file, case.test)


# --- the file --------------------------------------------------------------------------------------------------


def test_sizes_are_those_of_the_file_and_of_the_network(case, story) -> None:
    before, after, _ = rows(story)["bytes"]
    assert after == case.file.stat().st_size == sum(story.sections.values())
    assert before == sum(4 * t.numel() for t in case.before.state_dict().values())
    pocket = artifact.decode(case.file)
    shared = [e for e in pocket.tensors.values() if isinstance(e, artifact.Shared)]
    plain = [e for e in pocket.tensors.values() if isinstance(e, artifact.Plain)]
    scalars = 2 * pocket.codebook.components + sum(2 * e.outlier_mu.size for e in shared)
    assert rows(story)["scalars"][1] == scalars + sum(e.values.size for e in plain)


def test_the_plane_holds_every_weight_of_the_file(case, story) -> None:
    pocket = artifact.decode(case.file)
    k = pocket.codebook.components
    labels = np.concatenate([e.labels for e in pocket.tensors.values() if isinstance(e, artifact.Shared)])
    counts = np.bincount(labels, minlength=k + 2)
    np.testing.assert_allclose(story.plane.components.mu, pocket.codebook.mu, rtol=1e-5)
    np.testing.assert_allclose(story.plane.components.sigma, pocket.codebook.sigma, rtol=1e-4)
    np.testing.assert_array_equal(story.plane.members, counts[:k])
    assert story.plane.outliers.total == counts[k] > 0
    assert story.plane.blends.total == counts[k + 1] > 0
    assert story.plane.unshared is None


def test_layers_are_the_tensors_of_the_network(case, story) -> None:
    expected = {name: t.numel() for name, t in case.before.state_dict().items()}
    assert {layer.name: math.prod(layer.shape) for layer in story.layers} == expected
    assert 0 < sum(layer.bits for layer in story.layers) / 8 < case.file.stat().st_size


def test_the_density_of_the_weights_counts_them(case, story) -> None:
    names = [layer.name for layer in story.layers if layer.kind == "shared"]
    values = np.concatenate([case.before.state_dict()[name].numpy().ravel() for name in names])
    width = np.diff(story.weights.edges)
    inside = (values >= story.weights.edges[0]) & (values <= story.weights.edges[-1])
    assert (story.weights.heights["before"] * width).sum() == pytest.approx(inside.mean(), abs=1e-9)


def test_another_network_before_is_refused(case) -> None:
    other = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    with pytest.raises(ValueError, match="the plain network has no"):
        gather(case.model, case.file, case.test, before=other, samples=2)


# --- regression ------------------------------------------------------------------------------------------------


def test_a_regression_has_scores_and_intervals_of_its_mixture(fitted) -> None:
    story = gather(fitted.model, fitted.file, fitted.test, **fitted.options())
    likelihood = pb.likelihood.Homoscedastic(NOISE)
    answer = pb.predict(
        fitted.model, fitted.test.inputs(), samples=5, seed=3, likelihood=likelihood, draws=True
    )
    draws, y = answer.draws.numpy()[..., 0], fitted.test.targets().numpy()[:, 0].astype(float)
    scale, shift = fitted.test.target_scaling.std.item(), fitted.test.target_scaling.mean.item()
    raw = fitted.test.y.numpy()[:, 0]
    rmse = reference.root_mean_squared_error(raw, draws.mean(0) * scale + shift)
    assert rows(story)["rmse"][1] == pytest.approx(rmse, rel=1e-5)
    log_p = special.logsumexp(stats.norm.logpdf(y, draws, NOISE), axis=0) - math.log(5)
    assert rows(story)["nll"][1] == pytest.approx(
        math.log(scale) - log_p.mean(), rel=1e-5
    )  # per unit of the data
    below = stats.norm.cdf(y, draws, NOISE).mean(0)
    for level, share in zip(*story.intervals.coverage["after"], strict=True):
        inside = (below >= (1 - level) / 2) & (below <= (1 + level) / 2)
        assert share == pytest.approx(
            inside.mean(), abs=1.5 / len(y)
        )  # a target on the edge may fall either way
    np.testing.assert_allclose(story.intervals.truth, raw, rtol=1e-4)
    np.testing.assert_allclose(story.intervals.sigma, np.sqrt(draws.var(0) + NOISE**2) * scale, rtol=1e-4)
    assert story.classes is None and story.gallery is None and not story.reliability


def test_the_scores_of_a_regression_are_in_the_units_of_the_data(fitted) -> None:
    likelihood = pb.likelihood.Homoscedastic(NOISE)
    story = gather(fitted.model, fitted.file, fitted.test, **fitted.options())
    inputs = fitted.test.inputs()
    answer = pb.predict(fitted.model, inputs, likelihood=likelihood, samples=5, seed=3, draws=True)
    told = regression_scores(answer, fitted.test.y, fitted.test.target_scaling)
    assert {key: rows(story)[key][1] for key in ("rmse", "nll")} == pytest.approx(
        {key: told[key] for key in ("rmse", "nll")}, rel=1e-5
    )


def test_errors_by_certainty_are_flat_where_all_are_equally_certain(fitted) -> None:
    story = gather(fitted.model, fitted.file, fitted.test, **fitted.options())
    np.testing.assert_allclose(story.risk["before"].y, rows(story)["rmse"][0])
    assert np.ptp(story.risk["after"].y) > 0 and story.risk["after"].y[-1] == pytest.approx(
        rows(story)["rmse"][1]
    )


def test_unknown_noise_is_not_guessed(fitted, tmp_path: Path) -> None:
    file, silent = tmp_path / "silent.pocket", copy.deepcopy(fitted.model)
    give_scales(silent, Scales())
    pb.save(silent, file)
    with pytest.raises(ValueError, match="noise of this regression is unknown"):
        gather(silent, file, fitted.test)
    told = gather(silent, file, fitted.test, likelihood=pb.likelihood.Homoscedastic(NOISE), samples=2)
    assert told.intervals is not None


# --- the record ------------------------------------------------------------------------------------------------


def test_the_record_gives_curves_stages_and_settings(case, story) -> None:
    assert [run.stage for run in story.runs] == ["posterior", "fine-tuning"]
    assert story.runs[0].nll.tolist() == [e["nll"] for e in case.record["histories"]["posterior"]]
    expected = [e["validation"]["nll"] for e in case.record["histories"]["posterior"]]
    assert story.runs[0].validation.tolist() == expected
    assert story.stages[0] == ("sharing", 1.5, {"nll": 0.25}, "24 components")
    assert story.settings == {"max_bytes": 9000}
    assert story.facts["command"] == case.record["command"] and story.facts["seed"] == 0


@pytest.mark.parametrize(
    "record", [None, {}, {"stages": [{}], "histories": {"a": [{}], "b": []}}, {"stages": None}]
)
def test_any_key_of_the_record_may_be_absent(record) -> None:
    told = from_record(record)
    assert all(np.isnan(run.nll).all() for run in told["runs"]) and "seed" not in told["facts"]


@pytest.mark.parametrize(
    "record",
    [[], {"stages": {}}, {"stages": [3]}, {"histories": []}, {"histories": {"a": 1}}, {"settings": 1}],
)
def test_a_record_of_another_shape_is_refused(record) -> None:
    with pytest.raises(ValueError, match="pocketbayes compress"):
        from_record(record)
