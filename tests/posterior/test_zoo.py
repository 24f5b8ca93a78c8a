"""Laws that hold for every model a user may bring."""

from __future__ import annotations

import contextlib
import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import pocketbayes as pb
from pocketbayes.posterior.weights import sites, stochastic_weights
from pocketbayes.prediction.ensemble import Ensemble
from zoo import ZOO, Animal, hugging_face, vision_transformers

TINY = pb.Absolute(1e-12)
WIDE = pb.Absolute(0.3)

ANIMALS = list(ZOO)
for more in (hugging_face, vision_transformers):
    with contextlib.suppress(ImportError):
        ANIMALS += more()
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections")
every_animal = pytest.mark.parametrize("animal", ANIMALS, ids=lambda a: a.name)


def tensors(output: Any) -> list[Tensor]:
    return [t for t in pytree.tree_leaves(_plain(output)) if isinstance(t, Tensor)]


def _plain(output: Any) -> Any:
    return dict(output) if hasattr(output, "keys") else output


def call(model: nn.Module, inputs: tuple[Any, ...]) -> list[Tensor]:
    return tensors(model(*inputs))


def distance(a: list[Tensor], b: list[Tensor]) -> float:
    assert len(a) == len(b)
    return max((x - y).abs().max().item() for x, y in zip(a, b, strict=True))


def build(animal: Animal) -> tuple[nn.Module, tuple[Any, ...]]:
    return animal.build().eval(), animal.inputs()


@every_animal
def test_at_vanishing_sigma_the_output_is_the_source_models(animal: Animal) -> None:
    model, x = build(animal)
    expected = call(model, x)
    assert distance(call(pb.bayesianize(copy.deepcopy(model), sigma=TINY), x), expected) < 1e-5
    assert distance(call(pb.bayesianize(copy.deepcopy(model), sigma=WIDE), x), expected) > 1e-3  # the control


@every_animal
def test_every_intended_weight_is_stochastic(animal: Animal) -> None:
    model, _ = build(animal)
    pb.bayesianize(model, sigma=WIDE)
    assert len(stochastic_weights(model)) == animal.stochastic
    assert len(list(sites(model))) == animal.sites
    with torch.no_grad():
        for site in sites(model):
            with pb.one_draw(model, 1):
                first = getattr(site.owner, site.name)
            with pb.one_draw(model, 2):
                second = getattr(site.owner, site.name)
            assert bool((first != second).all()), site.path


@every_animal
def test_a_plain_call_is_one_draw(animal: Animal) -> None:
    """Every access of one weight in one forward pass, at all its sites, sees the same tensor."""
    model, x = build(animal)
    pb.bayesianize(model, sigma=WIDE)
    seen: dict[int, list[Tensor]] = {}
    for site in stochastic_weights(model):
        site.weight.register_forward_hook(
            lambda weight, _, w: seen.setdefault(weight.index, []).append(w.detach().clone())
        )
    first = call(model, x)
    assert seen
    for draws in seen.values():
        assert all(torch.equal(draws[0], again) for again in draws)
    assert distance(first, call(model, x)) > 1e-4  # another call is another draw


@every_animal
def test_state_dicts_make_the_round_trip(animal: Animal) -> None:
    source, x = build(animal)
    model = pb.bayesianize(copy.deepcopy(source), sigma=WIDE, prior=pb.Pretrained(0.2))
    other = pb.bayesianize(animal.build().eval(), sigma=pb.Absolute(0.1), prior=pb.Pretrained(0.3))
    other.load_state_dict(model.state_dict())
    with pb.one_draw(model, 5):
        expected = call(model, x)
    with pb.one_draw(other, 5):
        assert distance(call(other, x), expected) < 1e-6
    assert pb.kl_divergence(other).item() == pytest.approx(pb.kl_divergence(model).item(), rel=1e-5)


@every_animal
def test_a_plain_checkpoint_sets_the_means(animal: Animal) -> None:
    source, x = build(animal)
    expected = call(source, x)
    model = pb.bayesianize(animal.build().eval(), sigma=TINY)
    model.load_state_dict(source.state_dict())
    assert distance(call(model, x), expected) < 1e-5


@every_animal
def test_a_copy_is_independent_even_after_a_training_step(animal: Animal) -> None:
    model, x = build(animal)
    pb.bayesianize(model, sigma=WIDE)
    sum(t.sum() for t in call(model, x) if t.requires_grad).backward()
    twin = copy.deepcopy(model)
    with pb.one_draw(model, 3), torch.no_grad():
        expected = call(model, x)
        assert distance(call(twin, x), expected) > 1e-4  # the twin is not in that draw
    with pb.one_draw(twin, 3), torch.no_grad():
        assert distance(call(twin, x), expected) < 1e-6


@every_animal
def test_the_way_back_leaves_a_plain_module(animal: Animal) -> None:
    source, x = build(animal)
    model = pb.bayesianize(copy.deepcopy(source), sigma=WIDE)
    plain = pb.to_deterministic(model)
    assert set(plain.state_dict()) == set(source.state_dict())
    assert distance(call(plain, x), call(source, x)) < 1e-5
    with pb.one_draw(model, 7):
        assert distance(call(pb.to_deterministic(model, seed=7), x), call(model, x)) < 1e-5
    with pb.mean_weights(model):
        assert distance(call(model, x), call(source, x)) < 1e-5


@every_animal
def test_prediction_runs_the_draws_it_names(animal: Animal) -> None:
    model, x = build(animal)
    pb.bayesianize(model, sigma=pb.Absolute(0.05))
    fast = [tensors(output) for output in Ensemble(model, samples=3, seed=11).outputs(*x)]
    for number, output in enumerate(fast):
        with pb.one_draw(model, 11, number), torch.no_grad():
            expected = call(model, x)
            assert distance(output, expected) < 1e-4 * (1 + max(t.abs().max().item() for t in expected))


@every_animal
def test_export_keeps_the_randomness(animal: Animal) -> None:
    if animal.name == "data-dependent control flow":
        pytest.skip("torch.export cannot trace it, converted or not")
    source, x = build(animal)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = call(source, x)
        still = torch.export.export(pb.bayesianize(copy.deepcopy(source), sigma=TINY), x).module()
        assert distance(call(still, x), expected) < 1e-5
        exported = torch.export.export(pb.bayesianize(source, sigma=WIDE), x)
        noises = [n for n in exported.graph.nodes if "randn" in str(n.target)]
        assert len(noises) == animal.stochastic  # one draw for each weight, ties included
        module = exported.module()
        assert distance(call(module, x), call(module, x)) > 1e-4
