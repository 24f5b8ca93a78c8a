from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as sk
from torchmetrics.functional.classification import multiclass_calibration_error

from pocketbayes import metrics

seeds = st.integers(0, 10_000)
property_test = settings(deadline=None, derandomize=True, max_examples=30)


def predictions(seed: int, n: int = 200, classes: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    return logits.softmax(1), torch.randint(classes, (n,), generator=generator)


def scores(seed: int, levels: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores of familiar and foreign inputs; with few levels there are many ties within and between them."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=rng.integers(1, 60)), rng.normal(0.7, size=rng.integers(1, 40))
    if levels is not None:
        a, b = np.round(a * levels) / levels, np.round(b * levels) / levels
    return torch.from_numpy(a), torch.from_numpy(b)


def positives(scores_in: torch.Tensor, scores_out: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    truth = np.r_[np.zeros(len(scores_in)), np.ones(len(scores_out))]
    return truth, torch.cat([scores_in, scores_out]).numpy()


HALF_SURE = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]])
LABELS = torch.tensor([0, 1])


def test_the_numbers_of_a_case_done_by_hand() -> None:
    assert metrics.accuracy(HALF_SURE, LABELS) == 0.5
    assert metrics.nll(HALF_SURE, LABELS) == pytest.approx((math.log(2) + math.log(10)) / 2, abs=1e-7)
    # row 0: .25 + 2 * .0625 = .375; row 1: .01 + .81 + .64 = 1.46
    assert metrics.brier(HALF_SURE, LABELS) == pytest.approx((0.375 + 1.46) / 2, abs=1e-7)
    # one right at confidence .5, one wrong at .8, in different bins
    assert metrics.ece(HALF_SURE, LABELS) == pytest.approx((0.5 + 0.8) / 2, abs=1e-7)


@property_test
@given(seeds)
def test_classification_scores_agree_with_scikit_learn(seed: int) -> None:
    probs, labels = predictions(seed)
    names = list(range(5))
    assert metrics.accuracy(probs, labels) == pytest.approx(sk.accuracy_score(labels, probs.argmax(1)))
    assert metrics.nll(probs, labels) == pytest.approx(sk.log_loss(labels, probs, labels=names))
    one_hot = np.eye(5)[labels.numpy()]
    assert metrics.brier(probs, labels) == pytest.approx(((probs.numpy() - one_hot) ** 2).sum(1).mean())


@property_test
@given(seeds, st.sampled_from([1, 10, 15]))
def test_ece_agrees_with_torchmetrics(seed: int, bins: int) -> None:
    probs, labels = predictions(seed)
    reference = multiclass_calibration_error(probs, labels, num_classes=5, n_bins=bins)
    assert metrics.ece(probs, labels, bins) == pytest.approx(
        reference.item(), abs=2e-6
    )  # it counts in float32


def test_calibrated_predictions_have_a_small_ece_and_overconfident_ones_do_not() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(20_000, 4, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    # E |mean of n Bernoullis - p| <= sqrt(p(1-p)/n); weighted by n/N, summed over 15 bins: <= .5 sqrt(15/N)
    bound = 0.5 * math.sqrt(15 / 20_000)
    assert metrics.ece(logits.softmax(1), labels) < bound
    assert metrics.ece((2 * logits).softmax(1), labels) > 3 * bound


def test_reliability_bins_hold_every_example_once_and_certainty_is_in_the_last_bin() -> None:
    probs = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.75, 0.25], [0.55, 0.45]])
    table = metrics.reliability(probs, torch.tensor([0, 0, 0, 1]), bins=4)
    assert table.size.tolist() == [0, 0, 2, 2]  # 0.75 belongs to (0.5, 0.75]
    assert table.accuracy[3] == 0.5
    assert table.confidence[3] == 1.0
    assert table.confidence[2].item() == pytest.approx(0.65, abs=1e-7)
    assert table.accuracy[0].isnan()
    assert table.edges.tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_a_probability_of_zero_costs_a_finite_amount_set_by_its_dtype() -> None:
    for dtype, cost in [(torch.float32, 126 * math.log(2)), (torch.float64, 1022 * math.log(2))]:
        sure = torch.tensor([[1.0, 0.0]], dtype=dtype)
        assert metrics.nll(sure, torch.tensor([1])) == pytest.approx(cost)


@property_test
@given(seeds)
def test_entropy_agrees_with_scipy_and_zero_probabilities_add_nothing(seed: int) -> None:
    probs, _ = predictions(seed, n=20)
    with_zero = torch.cat([probs, torch.zeros(20, 1, dtype=probs.dtype)], 1)
    torch.testing.assert_close(metrics.entropy(with_zero), torch.from_numpy(stats.entropy(probs, axis=1)))


@property_test
@given(seeds)
def test_epistemic_uncertainty_is_the_mean_divergence_of_draws_from_their_mean(seed: int) -> None:
    draws = torch.stack([predictions(seed + s, n=20)[0] for s in range(7)])  # [S, N, C]
    total, aleatoric, epistemic = metrics.uncertainty(draws)
    divergence = stats.entropy(draws.numpy(), draws.mean(0, keepdim=True).numpy(), axis=-1).mean(0)
    torch.testing.assert_close(epistemic, torch.from_numpy(divergence))
    torch.testing.assert_close(total, aleatoric + epistemic)


def test_identical_draws_have_no_epistemic_uncertainty_and_contradictory_ones_have_nothing_else() -> None:
    same = predictions(0, n=50)[0].float().expand(30, -1, -1)
    assert metrics.uncertainty(same).epistemic.abs().max() < 1e-12
    sure = torch.eye(2)[:, None]  # two draws, each certain of another class
    total, aleatoric, epistemic = metrics.uncertainty(sure)
    assert (total.item(), aleatoric.item(), epistemic.item()) == pytest.approx(
        (math.log(2), 0.0, math.log(2))
    )


def test_uncertainty_from_running_means_never_turns_negative() -> None:
    probs = predictions(1, n=50)[0]
    rounded_up = metrics.entropy(probs) + 1e-7
    assert (metrics.uncertainty_from_means(probs, rounded_up).epistemic >= 0).all()


def test_class_confidence_groups_by_the_true_class() -> None:
    probs = torch.tensor([[0.9, 0.1, 0.0], [0.7, 0.3, 0.0], [0.4, 0.6, 0.0]], dtype=torch.float64)
    table = metrics.class_confidence(probs, torch.tensor([0, 0, 0]))
    assert table.mean[0].item() == pytest.approx((0.9 + 0.7 + 0.6) / 3)
    assert table.accuracy[0].item() == pytest.approx(2 / 3)
    assert table.quantiles[0].tolist() == pytest.approx(
        np.quantile([0.9, 0.7, 0.6], [0.05, 0.25, 0.5, 0.75, 0.95])
    )
    assert table.size.tolist() == [3, 0, 0]
    assert table.mean[1:].isnan().all()
    assert table.quantiles[1:].isnan().all()


def test_risk_coverage_of_a_case_done_by_hand() -> None:
    probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]])
    curve = metrics.risk_coverage(probs, torch.tensor([0, 1, 0, 1]))
    assert curve.coverage.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert curve.risk.tolist() == pytest.approx([0, 1 / 2, 1 / 3, 2 / 4])
    assert metrics.aurc(probs, torch.tensor([0, 1, 0, 1])) == pytest.approx((1 / 2 + 1 / 3 + 1 / 2) / 4)


@property_test
@given(seeds)
def test_the_risk_of_tied_examples_is_its_mean_over_random_orders_and_ignores_the_given_one(
    seed: int,
) -> None:
    probs, labels = predictions(seed, n=40, classes=3)
    confidence = (probs.amax(1) * 5).round()  # a handful of levels
    risk = metrics.risk_coverage(probs, labels, confidence).risk
    shuffle = torch.randperm(40, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(
        metrics.risk_coverage(probs[shuffle], labels[shuffle], confidence[shuffle]).risk, risk
    )
    rng = np.random.default_rng(seed)
    wrong = (probs.argmax(1) != labels).double().numpy()
    ranks = np.arange(1, 41)
    orders = [np.lexsort((rng.random(40), -confidence.numpy())) for _ in range(2000)]
    curves = np.stack([wrong[order].cumsum() / ranks for order in orders])
    error = curves.std(0) / math.sqrt(len(orders))
    assert (np.abs(curves.mean(0) - risk.numpy()) <= 5 * error + 1e-12).all()


@property_test
@given(seeds, st.sampled_from([None, 2, 10]))
def test_detection_scores_agree_with_scikit_learn_ties_or_not(seed: int, levels: int | None) -> None:
    familiar, foreign = scores(seed, levels)
    truth, values = positives(familiar, foreign)
    assert metrics.auroc(familiar, foreign) == pytest.approx(sk.roc_auc_score(truth, values))
    assert metrics.aupr(familiar, foreign) == pytest.approx(sk.average_precision_score(truth, values))
    false_positives, true_positives, _ = sk.roc_curve(truth, values, drop_intermediate=False)
    for target in (0.85, 0.95, 1.0):
        first = np.argmax(true_positives >= target - 1e-12)
        assert metrics.fpr_at_tpr(familiar, foreign, target) == pytest.approx(false_positives[first])


def test_out_of_distribution_is_the_positive_class() -> None:
    familiar, foreign = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.9])
    assert metrics.auroc(familiar, foreign) == 1.0
    assert metrics.aupr(familiar, foreign) == 1.0
    assert metrics.fpr_at_tpr(familiar, foreign) == 0.0
    assert metrics.auroc(foreign, familiar) == 0.0
    assert metrics.fpr_at_tpr(foreign, familiar) == 1.0


def test_no_rounding_asks_for_one_foreign_input_too_many() -> None:
    foreign = torch.arange(20.0)
    familiar = torch.tensor([0.5, 1.5])
    assert metrics.fpr_at_tpr(familiar, foreign, 0.95) == 0.5  # 19 of 20 score 1 or more
    assert metrics.fpr_at_tpr(familiar, foreign, 0.951) == 1.0
    hundred = torch.arange(100.0)
    assert metrics.fpr_at_tpr(torch.tensor([44.5, 45.5]), hundred, 0.55) == 0.5  # in floats 0.55 * 100 > 55


def test_regression_scores_agree_with_torch_and_scipy() -> None:
    generator = torch.Generator().manual_seed(3)
    mean, targets = torch.randn(2, 50, 2, generator=generator, dtype=torch.float64)
    assert metrics.rmse(mean, targets) == pytest.approx(math.sqrt(sk.mean_squared_error(targets, mean)))
    sigma = torch.rand(50, 2, generator=generator, dtype=torch.float64) + 0.1
    reference = -stats.norm(mean.numpy(), sigma.numpy()).logpdf(targets.numpy()).mean()
    assert metrics.gaussian_nll(mean, sigma, targets) == pytest.approx(reference)


def test_log_predictive_density_is_that_of_the_equal_mixture_of_draws() -> None:
    generator = torch.Generator().manual_seed(4)
    means = torch.randn(9, 30, 2, generator=generator, dtype=torch.float64)
    targets = torch.randn(30, 2, generator=generator, dtype=torch.float64)
    mixture = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(torch.ones(30, 9, dtype=torch.float64)),
        torch.distributions.Independent(torch.distributions.Normal(means.transpose(0, 1), 0.3), 1),
    )
    joint = metrics.log_predictive_density(means, 0.3, targets)
    assert joint == pytest.approx(mixture.log_prob(targets).mean().item())
    single = [metrics.log_predictive_density(means[..., d], 0.3, targets[:, d]) for d in range(2)]
    assert metrics.log_predictive_density(means, 0.3, targets, per_output=True) == pytest.approx(
        sum(single) / 2
    )
    one_draw = metrics.log_predictive_density(means[:1, :, 0], 0.3, targets[:, 0])
    assert one_draw == pytest.approx(-metrics.gaussian_nll(means[0, :, 0], 0.3, targets[:, 0]))


def test_log_predictive_density_survives_targets_far_from_every_draw() -> None:
    far = metrics.log_predictive_density(torch.zeros(3, 1), 0.01, torch.ones(1))
    assert far == pytest.approx(-0.5 * 100**2 - math.log(0.01) - 0.5 * math.log(2 * math.pi))


def test_half_precision_probabilities_and_small_integer_labels_are_fine() -> None:
    probs, labels = predictions(5)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        assert metrics.brier(probs.to(dtype), labels.to(torch.uint8)) == pytest.approx(
            metrics.brier(probs, labels), abs=0.02
        )


@pytest.mark.parametrize(
    ("probs", "labels", "message"),
    [
        (torch.rand(3), torch.zeros(3, dtype=torch.long), r"probs must be \[N, C\]"),
        (HALF_SURE, torch.tensor([0]), r"labels \[N\], got \(2, 3\) and \(1,\)"),
        (HALF_SURE, torch.tensor([0, 3]), r"labels\[1\] is 3, outside 0\.\.2"),
        (HALF_SURE, torch.tensor([-1, 0]), r"labels\[0\] is -1"),
        (HALF_SURE, torch.tensor([0.0, 1.0]), "integer dtype"),
        (torch.tensor([[0.5, 0.5], [math.nan, 1.0]]), LABELS, r"probs\[1, 0\] is nan"),
        (torch.tensor([[0.5, 0.5], [0.5, 0.6]]), LABELS, r"row 1 sums to 1\.1"),
        (torch.tensor([[0.5, 0.5], [2.0, -1.0]]), LABELS, r"probs\[1, 1\] is negative.*softmax"),
        (torch.rand(0, 3), torch.zeros(0, dtype=torch.long), "empty"),
    ],
)
def test_bad_predictions_are_refused_with_value_and_place(
    probs: torch.Tensor, labels: torch.Tensor, message: str
) -> None:
    for function in (
        metrics.accuracy,
        metrics.nll,
        metrics.ece,
        metrics.brier,
        metrics.aurc,
        metrics.class_confidence,
    ):
        with pytest.raises(ValueError, match=message):
            function(probs, labels)


def test_other_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="bins must be at least 1"):
        metrics.ece(HALF_SURE, LABELS, bins=0)
    with pytest.raises(ValueError, match=r"draws must be \[S, N, C\]"):
        metrics.uncertainty(HALF_SURE)
    with pytest.raises(ValueError, match=r"mean_entropy must be \[2\]"):
        metrics.uncertainty_from_means(HALF_SURE, torch.zeros(3))
    with pytest.raises(ValueError, match=r"confidence must be \[2\]"):
        metrics.risk_coverage(HALF_SURE, LABELS, torch.zeros(3))
    with pytest.raises(ValueError, match="scores_out: empty"):
        metrics.auroc(torch.zeros(3), torch.zeros(0))
    with pytest.raises(ValueError, match=r"scores_in\[1\] is inf"):
        metrics.aupr(torch.tensor([0.0, math.inf]), torch.zeros(2))
    with pytest.raises(ValueError, match=r"0\.95 for 95"):
        metrics.fpr_at_tpr(torch.zeros(2), torch.zeros(2), 95)
    with pytest.raises(ValueError, match="every pair"):
        metrics.rmse(torch.zeros(3), torch.zeros(3, 1))
    with pytest.raises(ValueError, match="sigma must be positive, got -1"):
        metrics.gaussian_nll(torch.zeros(3), -1.0, torch.zeros(3))
    with pytest.raises(ValueError, match="the same without S"):
        metrics.log_predictive_density(torch.zeros(3, 4), 1.0, torch.zeros(3))
