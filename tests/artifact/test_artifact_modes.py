"""A file with M modes: every mode's numbers, one codebook, and the draws of each in turn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from artifact_pockets import small_pocket
from torch import nn

import pocketbayes as pb
from pocketbayes.artifact import Plain, Pocket, Shared, decode, encode, inspect, mean_weights, sample_weights
from pocketbayes.errors import ArtifactError
from pocketbayes.posterior.weights import stochastic_weights


def network() -> nn.Module:
    layers = [nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 16, 3)]
    return nn.Sequential(*layers)


def posterior(modes: int) -> pb.Modes:
    """Shared, with batch norms that have seen data, the first mode's more than the others'."""
    nets = [network() for _ in range(modes)]
    for number, net in enumerate(nets):
        for _ in range(300 if number == 0 else 2):
            net(torch.randn(4, 1, 6, 6))
    model = pb.bayesianize(nets, sigma=pb.Relative(0.3))
    pb.share(model, pb.Rate(lambda_=1.0, components=8, outlier_bits=8.0))
    return model.eval()


@pytest.mark.parametrize("modes", [1, 2, 3])
def test_a_loaded_file_predicts_what_was_saved(tmp_path: Path, modes: int) -> None:
    model, x, given = posterior(modes), torch.randn(5, 1, 6, 6), network()
    pb.save(model, tmp_path / "m.pocket", precision=pb.artifact.FLOAT32)
    loaded = pb.load(tmp_path / "m.pocket", given)
    assert (loaded is given) if modes == 1 else (len(loaded) == modes and loaded[0] is given)
    expected, found = (pb.predict(m, x, samples=7, seed=3, draws=True) for m in (model, loaded))
    torch.testing.assert_close(found.draws, expected.draws, rtol=1e-4, atol=1e-5)
    assert len({id(s.weight.codebook) for s in stochastic_weights(loaded)}) == 1
    pb.save(loaded, tmp_path / "again.pocket", precision=pb.artifact.FLOAT32)
    torch.testing.assert_close(pb.kl_divergence(loaded), pb.kl_divergence(model))


@pytest.mark.parametrize("modes", [1, 2, 3])
def test_draws_without_torch_are_those_of_torch(tmp_path: Path, modes: int) -> None:
    pb.save(posterior(modes), tmp_path / "m.pocket")
    model, pocket = pb.load(tmp_path / "m.pocket", network()), decode(tmp_path / "m.pocket")
    for number in range(2 * modes + 1):
        expected, found = (
            pb.to_deterministic(model, 1, number).state_dict(),
            sample_weights(pocket, 1, number),
        )
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value.numpy(), rtol=1e-5, atol=1e-7)
    means = [pb.to_deterministic(m).state_dict() for m in (model if modes > 1 else [model])]
    for mode, expected in enumerate(means):
        for name, found in mean_weights(pocket, mode=mode).items():
            np.testing.assert_array_equal(found, expected[name].numpy())
        read = pb.read(tmp_path / "m.pocket", mode=mode)
        assert torch.equal(read["0.weight"].mu, expected["0.weight"])


def test_names_stand_once_and_are_those_of_the_plain_network(tmp_path: Path) -> None:
    pb.save(posterior(3), tmp_path / "m.pocket")
    summary = inspect(tmp_path / "m.pocket")
    assert [t.name for t in summary.tensors if t.kind == "shared"] == ["0.weight", "4.weight"]
    assert {t.name for t in summary.tensors} == set(network().state_dict())
    assert summary.modes == 3
    alone = [posterior(1) for _ in range(3)]
    sizes = [pb.save(model, tmp_path / "one.pocket").sections for model in alone]
    header = summary.sections["HEAD"]
    assert header < 1.2 * max(each["HEAD"] for each in sizes)


def test_what_is_equal_in_all_modes_stands_once() -> None:
    pocket, table = small_pocket(), Plain(values=np.arange(1000.0, dtype=np.float32))
    first = {**pocket.tensors, "table": table}
    once = replace(pocket, tensors=first, others=(first, first))
    twice = replace(once, others=(first, {**first, "table": Plain(values=table.values[::-1].copy())}))
    one, two = (encode(each).sizes["PLAN"] for each in (once, twice))
    assert two - one == 2 * len(table.values) * 2 + 2  # three copies instead of one, with an exponent each
    found = decode(encode(once).data)
    assert found.others[1]["table"] is found.tensors["table"]
    assert {t.name: t.modes for t in inspect(encode(once).data).tensors}["table"] == 1


def test_an_integer_takes_the_bytes_that_the_largest_of_all_modes_needs() -> None:
    counts = [Plain(values=np.array(n)) for n in (3, 70_000)]
    pocket = Pocket(tensors={"count": counts[0]}, others=({"count": counts[1]},))
    found = decode(encode(pocket).data)
    assert [mode["count"].values.item() for mode in found.modes] == [3, 70_000]


def test_every_mode_of_a_pocket_has_the_same_entries() -> None:
    pocket = small_pocket()
    fewer = {name: entry for name, entry in pocket.tensors.items() if name != "bn.weight"}
    with pytest.raises(ArtifactError, match=r"bn.weight: is missing in mode 1, "):
        encode(replace(pocket, others=(fewer,)))
    plain = {**pocket.tensors, "conv.weight": Plain(values=np.zeros((8, 8, 3, 3), np.float32))}
    with pytest.raises(ArtifactError, match=r"conv.weight: is .*Plain.* in mode 1, .*Shared"):
        encode(replace(pocket, others=(plain,)))
    with pytest.raises(ArtifactError, match="256 modes, at most 255"):
        encode(replace(pocket, others=(pocket.tensors,) * 255))
    conv = pocket.tensors["conv.weight"]
    assert isinstance(conv, Shared)
    wrong = {**pocket.tensors, "conv.weight": replace(conv, labels=conv.labels + 100)}
    with pytest.raises(ArtifactError, match=r"conv.weight: labels must lie in"):
        encode(replace(pocket, others=(wrong,)))


def test_a_file_that_does_not_fit_leaves_the_network_alone(tmp_path: Path) -> None:
    pb.save(posterior(2), tmp_path / "m.pocket")
    other = nn.Sequential(*network()[:4], nn.Linear(6 * 16, 4))
    with pytest.raises(ArtifactError, match="another architecture"):
        pb.load(tmp_path / "m.pocket", other)
    assert not stochastic_weights(other)
    with pytest.raises(ArtifactError, match="more than max_weights"):
        pb.load(tmp_path / "m.pocket", network(), max_weights=400)  # enough for one mode
    with pytest.raises(ValueError, match="has the modes 0 to 1, not 2"):
        pb.read(tmp_path / "m.pocket", mode=2)
