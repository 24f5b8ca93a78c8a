"""Compression without training, from inputs alone."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import pocketbayes as pb
from pocketbayes.compression.post_training import answered, by_channels, own_sigmas, refit, renew_norms
from pocketbayes.likelihood import Homoscedastic

PLAN = pb.Plan(epochs=0)


def images(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Four classes of noisy pictures."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(4, (n,), generator=g)
    centres = torch.randn(4, 2, 6, 6, generator=torch.Generator().manual_seed(7))
    return centres[y] + 1.5 * torch.randn(n, 2, 6, 6, generator=g), y


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            *(nn.Conv2d(2, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
            *(nn.Conv2d(16, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(64, 4)),
        )
        x, y = images(512, 0)
        optimizer = torch.optim.Adam(model.parameters(), 3e-3)
        for _ in range(12):
            for part in torch.randperm(512).split(64):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[part]), y[part]).backward()
                optimizer.step()
    return model.eval()


def fp32_bytes(model: nn.Module) -> int:
    return 4 * sum(p.numel() for p in model.parameters())


def accuracy(model: nn.Module) -> float:
    x, y = images(1000, 1)
    with torch.no_grad(), pb.mean_weights(model):
        return float((model(x).argmax(1) == y).float().mean())


def test_inputs_alone_are_enough(trained: nn.Module, tmp_path: Path) -> None:
    x, _ = images(128, 2)
    model, limit = copy.deepcopy(trained), int(0.18 * fp32_bytes(trained))
    report = pb.compress(
        model, list(x.split(16)), path=tmp_path / "m.pocket", max_bytes=limit, plan=PLAN, progress=False
    )
    assert 0.9 * limit <= report.bytes <= limit
    fresh = copy.deepcopy(trained)
    for parameter in fresh.parameters():
        nn.init.zeros_(parameter)
    assert accuracy(pb.load(tmp_path / "m.pocket", fresh).eval()) >= accuracy(trained) - 0.02


def test_a_regression_needs_no_targets_either(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = pb.nets.mlp([3, 40, 40, 1]), torch.randn(200, 3)
    before = copy.deepcopy(model)(x).detach()
    noise = Homoscedastic(0.1)
    limit = int(0.4 * fp32_bytes(model))
    pb.compress(
        model, [x], path=tmp_path / "m.pocket", max_bytes=limit, likelihood=noise, plan=PLAN, progress=False
    )
    with torch.no_grad(), pb.mean_weights(model):
        assert (model(x) - before).square().mean() < 0.01 * before.var()


def test_the_norms_have_the_statistics_of_the_inputs() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3, momentum=0.2), nn.Linear(3, 2))
    pb.bayesianize(model)
    x = 2 + 3 * torch.randn(64, 3)
    renew_norms(model, [x[:32], x[32:]])
    norm = model[0]
    assert isinstance(norm, nn.BatchNorm1d)
    torch.testing.assert_close(norm.running_mean, x.mean(0))
    torch.testing.assert_close(norm.running_var, torch.stack([x[:32].var(0), x[32:].var(0)]).mean(0))
    assert norm.momentum == 0.2 and model.training and norm.num_batches_tracked == 0


def test_the_answers_are_those_of_the_teachers() -> None:
    teachers = [nn.Linear(3, 2), nn.Linear(3, 2)]
    x = torch.randn(5, 3)
    ((again, target),) = answered([(x, torch.zeros(5))], teachers, None, batches=None)
    torch.testing.assert_close(target, sum(t(x).softmax(1) for t in teachers) / 2)
    assert torch.equal(again, x)


def test_sigmas_by_channels_are_products_with_the_precisions_of_rows_and_columns() -> None:
    torch.manual_seed(0)
    outputs, inputs = torch.rand(5, 1) + 0.1, torch.rand(1, 12) + 0.1
    product = (outputs * inputs).view(5, 3, 2, 2)
    torch.testing.assert_close(by_channels(product), product)
    noisy = product * torch.rand(5, 3, 2, 2).add(0.5)
    found, given = (s.flatten(1).pow(-2) for s in (by_channels(noisy), noisy))
    for axis in (0, 1):
        torch.testing.assert_close(found.sum(axis), given.sum(axis))


def test_a_component_has_the_mean_precision_of_its_members() -> None:
    sigmas = [torch.tensor([1.0, 2.0]), torch.tensor([[0.5], [4.0]])]
    labels = [torch.tensor([0, 3]), torch.tensor([[0], [2]])]  # 3 is an outlier, 1 has no members
    expected = torch.tensor([(2 / (1 + 4)) ** 0.5, 1.0, 4.0], dtype=torch.float64)
    torch.testing.assert_close(own_sigmas(sigmas, labels, 3), expected)


def test_an_empty_loader_says_how_many_inputs_are_enough(trained: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="few hundred inputs"):
        pb.compress(trained, [], path=tmp_path / "m.pocket", max_bytes=4000, plan=PLAN)


@pytest.mark.parametrize(("lr", "moved"), [(1e-3, True), (10.0, False)])
def test_values_move_only_for_the_better(trained: nn.Module, lr: float, moved: bool) -> None:
    x, _ = images(64, 3)
    batches = answered([x], [trained], None, batches=None)
    model = copy.deepcopy(trained)
    with torch.no_grad():
        model[7].weight.mul_(1.3)
    given = copy.deepcopy(model.state_dict())
    refit(model, batches, likelihood=None, epochs=20, lr=lr, progress=False)
    assert moved == any(not torch.equal(v, given[k]) for k, v in model.state_dict().items())


def test_a_tensor_moves_in_proportion_to_its_scale(trained: nn.Module) -> None:
    """Adam's first step is the learning rate, whatever the gradient."""
    model = copy.deepcopy(trained)
    with torch.no_grad():
        model[7].weight.mul_(1.3)
    given = {name: p.detach().clone() for name, p in model.named_parameters()}
    batches = answered([images(64, 3)[0]], [trained], None, batches=None)
    refit(model, batches, likelihood=None, epochs=1, lr=1e-4, progress=False)
    for name in ("0.weight", "4.weight", "7.weight"):
        scale = given[name].square().mean().sqrt()
        step = (model.get_parameter(name) - given[name]).abs().max()
        torch.testing.assert_close(step, 1e-4 * scale, rtol=2e-2, atol=1e-8)


def few(n: int = 48) -> list[tuple[Tensor, Tensor]]:
    x, y = images(n, 4)
    return list(zip(x.split(16), y.split(16), strict=True))


@pytest.mark.parametrize("lr", [2.0, 1e-4])
def test_training_that_destroys_is_not_kept(trained: nn.Module, tmp_path: Path, lr: float) -> None:
    """Few images and a large step: labels without training are what validation data prefer."""
    model, held_out = copy.deepcopy(trained), [images(500, 5)]
    report = pb.compress(
        model,
        few(),
        path=tmp_path / "m.pocket",
        validation_loader=held_out,
        max_bytes=int(0.2 * fp32_bytes(trained)),
        plan=pb.Plan(epochs=3, lr=lr),
        progress=False,
    )
    before, stages = report.stages[0].metrics, {stage.name: stage for stage in report.stages}
    assert report.stages[-2].metrics["accuracy"] > before["accuracy"] - 0.03
    assert not report.warnings
    destroyed = stages["sharing"].metrics["accuracy"] < before["accuracy"] - 0.1
    assert destroyed == (lr == 2.0)
    if destroyed:
        assert stages["untrained"].note == ""


def test_a_file_that_is_clearly_worse_says_so(trained: nn.Module, tmp_path: Path) -> None:
    report = pb.compress(
        copy.deepcopy(trained),
        few(),
        path=tmp_path / "m.pocket",
        validation_loader=[images(500, 5)],
        max_bytes=int(0.09 * fp32_bytes(trained)),
        plan=PLAN,
        progress=False,
    )
    (warning,) = report.warnings
    assert "accuracy fell" in warning and f"warning: {warning}" in str(report)
