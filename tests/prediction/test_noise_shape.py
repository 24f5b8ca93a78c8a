"""Does the posterior mind the shape of its noise?  Cases where the answer is known."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn

import pocketbayes as pb
from pocketbayes.likelihood import Homoscedastic
from pocketbayes.noise import Bimodal, Gaussian, Laplace, TwoPoint, sum_energy_distance
from pocketbayes.posterior.weights import stochastic_weights
from pocketbayes.prediction.noise_shape import Interval, shape_sensitivity


def linear(fan_in: int) -> nn.Module:
    """One output, the sum of equal terms, variance one: the distances of sums are known."""
    layer = nn.Linear(fan_in, 1, bias=False)
    nn.init.zeros_(layer.weight)
    return pb.bayesianize(layer, sigma=pb.Absolute(1.0))


def ones(fan_in: int, inputs: int = 1) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.full((inputs, fan_in), fan_in**-0.5), torch.zeros(inputs, 1))]


def report_on(fan_in: int, families: object, **settings: object) -> object:
    settings = {"samples": 1000, "repeats": 4, "likelihood": Homoscedastic(1.0), **settings}
    return shape_sensitivity(linear(fan_in), ones(fan_in), families, **settings)  # type: ignore[arg-type]


def test_distances_of_a_linear_model_are_those_of_sums() -> None:
    report = report_on(2, {"signs": TwoPoint(), "bimodal": Bimodal(0.95)}, samples=4000)
    for row, law in zip(report.rows, (TwoPoint(), Bimodal(0.95)), strict=True):
        exact = sum_energy_distance(law, 2)  # characteristic functions, not draws
        assert row.distance.mean == pytest.approx(exact, abs=3 * row.distance.half + 1e-3)
        assert row.distance.low > report.floor.distance.mean
    assert abs(report.floor.distance.mean) < exact / 10


def test_a_sensitive_network_and_one_that_is_not_are_told_apart() -> None:
    """y ~ N(sum, 0.2^2) at y = 0: one sign is never near, the sum of 64 is as Gaussian as can be."""
    for fan_in, sensitive in ((1, True), (64, False)):
        report = report_on(
            fan_in, {"signs": TwoPoint()}, samples=600, tolerance=0.2, likelihood=Homoscedastic(0.2)
        )
        said = report.verdict(report.rows[0])
        assert ("the network is sensitive to it" in said) == sensitive, said
        assert ("is not sensitive" in said) != sensitive, said
        assert not sensitive or "can be told apart" in said


def test_the_change_of_the_nll_is_the_exact_one() -> None:
    """One term at y = 0: the mean of N(0; +-1, 0.5^2) against N(0; 0, 1 + 0.5^2)."""
    report = report_on(1, {"signs": TwoPoint()}, likelihood=Homoscedastic(0.5))
    exact = [
        -math.log(0.5 * sum(scipy.stats.norm(m, 0.5).pdf(0.0) for m in (-1, 1))),
        -scipy.stats.norm(0, math.hypot(1, 0.5)).logpdf(0.0),
    ]
    change = report.rows[0].changes["nll"]
    assert change.mean == pytest.approx(exact[0] - exact[1], abs=3 * change.half)


def test_classification_has_accuracy_nll_and_ece_and_the_model_stays_as_it_was() -> None:
    torch.manual_seed(0)
    model = pb.bayesianize(nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3)), noise=Laplace())
    x = torch.randn(30, 5)
    report = shape_sensitivity(model, [(x, x[:, :3].argmax(1))], [TwoPoint()], samples=20, repeats=3, seed=1)
    assert list(report.rows[0].changes) == ["accuracy", "nll", "ece"]
    assert report.inputs == 30
    assert all(site.weight.noise == Laplace() for site in stochastic_weights(model))
    again = shape_sensitivity(model, [(x, x[:, :3].argmax(1))], [TwoPoint()], samples=20, repeats=3, seed=1)
    assert again == report
    text = str(report)
    assert "TwoPoint: " in text and "Gaussian again" in text
    stored = json.loads(json.dumps(report.as_dict()))
    assert stored["rows"]["TwoPoint"]["changes"]["nll"] == list(report.rows[0].changes["nll"])
    shown = report.plot().to_dict()
    names = [half["layer"][1]["data"]["name"] for half in shown["hconcat"]]
    means = [shown["datasets"][name][0]["mean"] for name in names]
    assert means == [report.rows[0].distance.mean, report.rows[0].changes["nll"].mean]


def test_a_likelihood_of_ones_own_is_scored_by_its_nll() -> None:
    likelihood = pb.likelihood.Custom(lambda output, y: (output - y).abs().sum(1))
    report = report_on(4, [Gaussian(), Laplace()], likelihood=likelihood, samples=50)
    assert list(report.scores) == ["nll"]
    assert [row.name for row in report.rows] == ["Gaussian", "Laplace"]


def test_the_interval_is_students() -> None:
    values = [0.3, 0.1, 0.4, 0.15]
    low, high = scipy.stats.t.interval(0.95, 3, np.mean(values), scipy.stats.sem(values))
    interval = Interval.of(values)
    assert (interval.low, sum(interval)) == pytest.approx((low, high))
    assert Interval(-0.2, 0.1).largest == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"samples": 3}, "4 or more samples"),
        ({"repeats": 1}, "4 or more samples and 2 or more repeats"),
        ({"tolerance": 0.0}, "tolerance must be positive"),
        ({"families": ["bimodal"]}, "must be a pocketbayes.noise.Noise"),
        ({"families": {"x": Bimodal}}, "must be a pocketbayes.noise.Noise"),
        ({"families": []}, "no families"),
    ],
)
def test_calls_without_meaning_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shape_sensitivity(linear(2), ones(2), **settings)  # type: ignore[arg-type]


def test_an_empty_loader_and_a_plain_model_are_refused() -> None:
    with pytest.raises(ValueError, match="loader is empty"):
        shape_sensitivity(linear(2), [])
    with pytest.raises(ValueError, match="no stochastic weights"):
        shape_sensitivity(nn.Linear(2, 2), ones(2))
