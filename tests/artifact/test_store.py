"""Models of every kind through a pocket file and back."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import pocketbayes as pb
from pocketbayes import nets
from pocketbayes.artifact import FLOAT32
from pocketbayes.errors import ArtifactError
from pocketbayes.posterior.weights import sites, stochastic_weights
from pocketbayes.sharing.outliers import AbsoluteMean, Outliers
from pocketbayes.sharing.shared import SharedWeight
from zoo import ZOO, Animal

OUTLIERS = Outliers(mean=AbsoluteMean(0.35), fisher_fraction=None, smallest_cluster=3)


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 10)
    )


def private() -> nn.Module:
    return pb.bayesianize(net(), prior=pb.Pretrained(0.3))


def by_rate() -> nn.Module:
    model = pb.bayesianize(net())
    pb.share(model, pb.Rate(lambda_=0.5))
    return model


def by_paper(**options: object) -> nn.Module:
    model = pb.bayesianize(net())
    settings = {"components": 24, "outliers": OUTLIERS, "beyond": 1.0, "merge": None, **options}
    pb.share(model, pb.Paper(**settings))
    return model


KINDS: dict[str, Callable[[], nn.Module]] = {
    "private": private,
    "rate": by_rate,
    "paper": by_paper,
    "paper, tied draws": lambda: by_paper(tied=True),
    "another noise": lambda: pb.bayesianize(net(), noise=pb.noise.Bimodal(0.8)),
    "only the last layer": lambda: pb.bayesianize(net(), where="4.*"),
    "biases and norms": lambda: pb.bayesianize(net(), biases=True, norms=True),
}
every_kind = pytest.mark.parametrize("build", KINDS.values(), ids=KINDS)


@every_kind
def test_two_loads_predict_bit_identically_and_save_the_same_bytes(build, tmp_path: Path) -> None:
    model, x = build(), torch.randn(5, 1, 8, 8)
    saved = pb.save(model, tmp_path / "a")
    assert saved.total == (tmp_path / "a").stat().st_size == sum(saved.sections.values())
    first, second = pb.load(tmp_path / "a", net()), pb.load(tmp_path / "a", net())
    assert torch.equal(pb.predict(first, x, seed=3).probs, pb.predict(second, x, seed=3).probs)
    pb.save(first, tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@every_kind
def test_what_is_loaded_is_what_was_saved_within_the_stated_tolerance(build, tmp_path: Path) -> None:
    model = build()
    pb.save(model, tmp_path / "a")
    loaded = pb.load(tmp_path / "a", net())
    assert [s.path for s in sites(loaded)] == [s.path for s in sites(model)]
    for ours, theirs in zip(stochastic_weights(model), stochastic_weights(loaded), strict=True):
        q, p = ours.moments, theirs.moments
        blended = isinstance(ours.weight, SharedWeight) and ours.weight.blend_position.numel()
        # A blend's mean may be a small difference of large ones: its error is relative to those.
        torch.testing.assert_close(
            p.mu, q.mu, rtol=2**-11, atol=2**-11 * q.mu.abs().max().item() if blended else 1e-8
        )
        # ... and its variance holds squares of such differences times alphas in steps of 1/65535.
        torch.testing.assert_close(p.sigma, q.sigma, rtol=0.05 if blended else 2**-8.5, atol=0)
        assert theirs.weight.noise == ours.weight.noise
        if isinstance(ours.weight, SharedWeight):
            assert torch.equal(ours.weight.labels, theirs.weight.labels)
            assert torch.equal(ours.weight.blend_position, theirs.weight.blend_position)
            assert ours.weight.codebook.tied == theirs.weight.codebook.tied
    # Draws of the loaded model differ from the saved one's by no more than the rounding of (mu, sigma).
    x = torch.randn(20, 1, 8, 8)
    gap = (pb.predict(loaded, x, seed=1).probs - pb.predict(model, x, seed=1).probs).abs().max()
    assert gap < 0.02


@every_kind
def test_float32_files_are_exact(build, tmp_path: Path) -> None:
    model, x = build(), torch.randn(5, 1, 8, 8)
    pb.save(model, tmp_path / "a", precision=FLOAT32)
    loaded = pb.load(tmp_path / "a", net())
    torch.testing.assert_close(
        pb.predict(loaded, x, seed=1).probs, pb.predict(model, x, seed=1).probs, rtol=1e-5, atol=1e-5
    )
    pb.save(loaded, tmp_path / "b", precision=FLOAT32)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("animal", [a for a in ZOO if a.name != "resnet-20"], ids=lambda a: a.name)
@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_every_architecture_comes_back(animal: Animal, tmp_path: Path) -> None:
    model = pb.bayesianize(animal.build().eval())
    pb.save(model, tmp_path / "a", precision=FLOAT32)
    loaded = pb.load(tmp_path / "a", animal.build().eval())
    for ours, theirs in zip(sites(model), sites(loaded), strict=True):
        assert ours.path == theirs.path
        torch.testing.assert_close(theirs.moments.mu, ours.moments.mu)
        torch.testing.assert_close(theirs.moments.sigma, ours.moments.sigma)
    assert len(stochastic_weights(loaded)) == animal.stochastic


def test_priors_are_stored_on_request(tmp_path: Path) -> None:
    model = private()
    pb.save(model, tmp_path / "a", priors=True, precision=FLOAT32)
    assert pb.kl_divergence(pb.load(tmp_path / "a", net())).item() == pytest.approx(
        pb.kl_divergence(model).item(), rel=1e-5
    )


def test_read_gives_the_tensors_without_a_model(tmp_path: Path) -> None:
    model = by_paper()
    pb.save(model, tmp_path / "a", metadata={"classes": ["a", "b"]})
    tensors = pb.read(tmp_path / "a")
    assert set(tensors) == set(net().state_dict())
    loaded = pb.load(tmp_path / "a", net())
    for site in stochastic_weights(loaded):
        torch.testing.assert_close(tensors[site.path].mu, site.moments.mu.detach())
    assert torch.equal(tensors["1.running_var"], loaded[1].running_var)
    with pytest.raises(ArtifactError, match="weights"):
        pb.read(tmp_path / "a", max_weights=100)


def test_a_shared_file_is_smaller_than_the_network_it_came_from(tmp_path: Path) -> None:
    model = nets.resnet20()
    plain = 4 * sum(p.numel() for p in model.parameters())
    pb.bayesianize(model)
    pb.share(model, pb.Rate(lambda_=4.0))
    saved = pb.save(model, tmp_path / "a")
    assert saved.total < plain / 6
    overhead = saved.sections["HEAD"] + saved.sections["frame"]
    assert overhead < 3000


def test_another_architecture_gets_the_list_of_differences(tmp_path: Path) -> None:
    pb.save(private(), tmp_path / "a")
    other = nn.Sequential(nn.Conv2d(1, 7, 3), nn.Flatten(), nn.Linear(7 * 36, 10))
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(
        ArtifactError, match=r"0.weight is \(6, 1, 3, 3\) in the file, \(7, 1, 3, 3\) in the model"
    ):
        pb.load(tmp_path / "a", other)
    assert all(torch.equal(v, before[k]) for k, v in other.state_dict().items())
    assert not stochastic_weights(other)


def test_a_converted_model_is_not_loaded_into(tmp_path: Path) -> None:
    pb.save(private(), tmp_path / "a")
    with pytest.raises(ValueError, match="plain architecture"):
        pb.load(tmp_path / "a", private())


def test_a_plain_model_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"pb\.bayesianize"):
        pb.save(net(), tmp_path / "a")
    assert not list(tmp_path.iterdir())


class TwoHeads(nn.Module):
    def __init__(self, tie: str) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(10, 4), nn.Linear(4, 10)
        self.other = nn.Linear(4, 10)
        if "weight" in tie:
            self.head.weight = self.embedding.weight
        if "bias" in tie:
            self.other.bias = self.head.bias


def test_random_weights_that_are_one_in_the_file_must_be_one_in_the_model(tmp_path: Path) -> None:
    pb.save(pb.bayesianize(TwoHeads("weight")), tmp_path / "m.pocket")
    fresh = TwoHeads("")
    before = copy.deepcopy(fresh.state_dict())
    with pytest.raises(ArtifactError, match=r"head\.weight is embedding\.weight in the file"):
        pb.load(tmp_path / "m.pocket", fresh)
    assert all(torch.equal(before[name], value) for name, value in fresh.state_dict().items())


def test_fixed_numbers_that_are_one_in_the_file_are_loaded_twice(tmp_path: Path) -> None:
    model, fresh = TwoHeads("bias"), TwoHeads("")
    pb.save(pb.bayesianize(model), tmp_path / "m.pocket", precision=FLOAT32)
    pb.load(tmp_path / "m.pocket", fresh)
    assert torch.equal(fresh.other.bias, model.head.bias)
    assert torch.equal(fresh.head.bias, model.head.bias)
