"""`load` touches the model last: whatever is wrong with a file, the model stays exactly as it came."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pocketbayes as pb
from pocketbayes.artifact import FLOAT32, Fixed, MeanField, Plain, Pocket, Precision, Prior, Shared, encode
from pocketbayes.artifact.to_pocket import to_pocket
from pocketbayes.errors import ArtifactError
from pocketbayes.posterior.weights import stochastic_weights


def net(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)).to(dtype)


def half(sigma: float) -> nn.Module:
    """A float16 posterior that was trained in float32."""
    return pb.bayesianize(net(), sigma=pb.Absolute(sigma)).half()


def with_entry(name: str, **changes: Any) -> Pocket:
    pocket = to_pocket(pb.bayesianize(net()), precision=FLOAT32)
    return replace(pocket, tensors={**pocket.tensors, name: replace(pocket.tensors[name], **changes)})


def with_noise(noise: Any, **extras: np.ndarray) -> Pocket:
    return replace(to_pocket(pb.bayesianize(net())), noise=noise, extras=extras)


def nested(depth: int) -> dict[str, Any]:
    noise: dict[str, Any] = {"family": "Gaussian"}
    for _ in range(depth):
        noise = {"family": "Programmed", "noise": noise, "mu_levels": [], "sigma_levels": []}
    return noise


def averages(depth: int) -> dict[str, Any]:
    noise: dict[str, Any] = {"family": "Laplace"}
    for _ in range(depth):
        noise = {"family": "Averaged", "noise": noise, "devices": 3}
    return noise


def states() -> dict[str, Any]:
    inner = {"family": "Gaussian"}
    count = 5000
    return {"family": "StateDependent", "mus": [float(k) for k in range(count)], "sigmas": [1.0] * count} | {
        "laws": [inner] * count
    }


MU = np.linspace(-1, 1, 24, dtype=np.float32)
WRONG: dict[str, tuple[Callable[[], Pocket], torch.dtype, str]] = {
    "a prior with a sigma for every weight": (
        lambda: with_entry("0.weight", prior=Prior(mu=0.0, sigma=np.full(24, 0.1, np.float32))),
        torch.float32,
        r"0\.weight: its prior has a sigma for every weight.*Save",
    ),
    "a mean beyond float16": (
        lambda: with_entry("3.weight", mu=np.full(18, 1e6, np.float32)),
        torch.float16,
        r"3\.weight: a mean of the file lies beyond torch\.float16.*float32",
    ),
    "a sigma beyond float16": (
        lambda: with_entry("3.weight", sigma=np.full(18, 1e6, np.float32)),
        torch.float16,
        r"3\.weight: a rho .* beyond",
    ),
    "a bias beyond float16": (
        lambda: with_entry("3.bias", values=np.full(3, 1e6, np.float32)),
        torch.float16,
        r"3\.bias: a number .* beyond",
    ),
    "a constant beyond float16": (
        lambda: with_entry(
            "0.weight",
            mu=MU[:23],
            sigma=np.full(23, 0.1, np.float32),
            fixed=Fixed(mask=np.arange(24).reshape(6, 4) == 0, values=1e6),
        ),
        torch.float16,
        r"0\.weight: a fixed\.values .* beyond",
    ),
    "a rule that nobody knows": (
        lambda: with_entry(
            "0.weight",
            mu=MU[:23],
            sigma=np.full(23, 0.1, np.float32),
            fixed=Fixed(mask={"rule": "x"}, values=0.0, count=1),
        ),
        torch.float32,
        r"0\.weight: cannot expand the rule",
    ),
    "numbers that an integer cannot hold": (
        lambda: with_entry("1.num_batches_tracked", values=np.array(0.5), dtype="float64"),
        torch.float32,
        r"1\.num_batches_tracked: holds float64, and the model torch\.int64",
    ),
    "noise of an unknown family": (
        lambda: with_noise({"family": "Zufall"}),
        torch.float32,
        "noise: .*Zufall",
    ),
    "noise with a word for a number": (
        lambda: with_noise({"family": "Bimodal", "m": "much"}),
        torch.float32,
        "noise: cannot be made",
    ),
    "noise with an array of two axes": (
        lambda: with_noise({"family": "Empirical", "values": {"array": "a"}}, a=np.ones((2, 2))),
        torch.float32,
        "noise: cannot be made",
    ),
    "noise whose array is missing": (
        lambda: with_noise({"family": "Empirical", "values": {"array": "b"}}),
        torch.float32,
        "noise: cannot be made",
    ),
    "noise that draws infinities": (
        lambda: with_noise(
            {"family": "Drifted", "noise": {"family": "Gaussian"}, "time": 1e-300, "reference": 1e300}
            | {"exponent": 300.0, "shift": 0.0}
        ),
        torch.float32,
        "noise: ",
    ),
    "noise of 40 families within each other": (
        lambda: with_noise(nested(40)),
        torch.float32,
        "noise: more than",
    ),
    "noise of 5000 states": (lambda: with_noise(states()), torch.float32, "noise: more than"),
    "noise of few devices of few devices and so on": (
        lambda: with_noise(averages(20)),
        torch.float32,
        "noise: more than",
    ),
    "noise of a thousand million devices": (
        lambda: with_noise({"family": "Averaged", "noise": {"family": "Laplace"}, "devices": 10**9}),
        torch.float32,
        "noise: more than",
    ),
}


def fingerprint(model: nn.Module) -> list[Any]:
    """Everything that loading could change: modules, types, hooks, parameters by identity, and all their bits."""
    found: list[Any] = []
    for name, module in model.named_modules():
        found += [name, type(module), len(module._forward_hooks), len(module._forward_pre_hooks)]
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        found += [name, id(value), value.requires_grad, value.detach().numpy().tobytes()]
    return found


@pytest.mark.parametrize("wrong", WRONG)
def test_a_file_that_does_not_fit_leaves_the_model_as_it_came(wrong: str, tmp_path: Path) -> None:
    pocket, dtype, message = WRONG[wrong][0](), *WRONG[wrong][1:]
    (tmp_path / "a").write_bytes(encode(pocket).data)
    model = net(dtype)
    model[0].weight.requires_grad_(False)
    before = fingerprint(model)
    with pytest.raises(ArtifactError, match=message):
        pb.load(tmp_path / "a", model)
    assert fingerprint(model) == before


def test_a_file_that_fits_changes_the_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(encode(with_entry("0.weight", mu=MU)).data)
    model = net()
    before = fingerprint(model)
    pb.load(tmp_path / "a", model)
    assert fingerprint(model) != before


def test_noise_with_large_whole_numbers_that_are_no_devices_is_loaded(tmp_path: Path) -> None:
    noise = pb.noise.Drifted(pb.noise.averaged(pb.noise.Laplace(), 4), time=10**9, exponent=0.01)
    pb.save(pb.bayesianize(net(), noise=noise), tmp_path / "a")
    model = pb.load(tmp_path / "a", net())
    assert all(site.weight.noise == noise for site in stochastic_weights(model))


def test_a_model_without_shapes_yet_is_told_to_run_first(tmp_path: Path) -> None:
    pb.save(pb.bayesianize(net()), tmp_path / "a")
    with pytest.raises(ValueError, match=r"uninitialized parameter.*forward"):
        pb.load(tmp_path / "a", nn.Sequential(nn.LazyLinear(6)))


def test_sigmas_too_small_for_float16_are_loaded_as_what_they_are(tmp_path: Path) -> None:
    model = half(1e-9)
    pb.save(model, tmp_path / "a")
    loaded = pb.load(tmp_path / "a", net(torch.float16))
    x = torch.randn(5, 4, dtype=torch.float16)
    with pb.one_draw(model, 1), pb.one_draw(loaded, 1):
        assert torch.equal(loaded.eval()(x), model.eval()(x))
    for ours, theirs in zip(stochastic_weights(model), stochastic_weights(loaded), strict=True):
        torch.testing.assert_close(theirs.weight.rho, ours.weight.rho, rtol=2**-9, atol=0)


@pytest.mark.parametrize("infinite", ["mean", "sigma", "outlier"])
def test_an_infinite_moment_is_not_saved(infinite: str, tmp_path: Path) -> None:
    model = half(0.1)
    if infinite == "outlier":
        model = pb.bayesianize(net())
        pb.share(model, pb.Rate(lambda_=0.01, outlier_bits=0.0))
        model.half()
    site = stochastic_weights(model)[0]
    tensor = site.weight.rho if infinite == "sigma" else site.original
    assert tensor.numel()
    with torch.no_grad():
        tensor.view(-1)[0] = torch.inf
    with pytest.raises(ArtifactError, match=r"0\.weight.*(mu|sigma) must be .*inf"):
        pb.save(model, tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_a_mean_that_rounding_makes_infinite_is_not_saved(tmp_path: Path) -> None:
    model = half(0.1)
    with torch.no_grad():
        model[0].parametrizations.weight.original[0, 0] = 65504
    pb.save(model, tmp_path / "a", precision=Precision(mu=16))
    assert pb.load(tmp_path / "a", net(torch.float16))[0].parametrizations.weight.original[0, 0] == 65504
    with pytest.raises(ArtifactError, match=r"0\.weight: .*infinite in float16.*More bits"):
        pb.save(model, tmp_path / "b", precision=Precision(mu=10))


def test_a_prior_of_one_mean_for_all_weights_is_that_of_the_loaded_model(tmp_path: Path) -> None:
    pocket = with_entry("0.weight", prior=Prior(mu=0.25, sigma=0.5))
    (tmp_path / "a").write_bytes(encode(pocket).data)
    weight = stochastic_weights(pb.load(tmp_path / "a", net()))[0].weight
    assert weight.prior_sigma == 0.5
    assert torch.equal(weight.prior_mu, torch.full((6, 4), 0.25))


def test_weights_fixed_by_a_mask_of_their_own_survive_loading_and_saving(tmp_path: Path) -> None:
    mask = np.arange(24).reshape(6, 4) % 5 == 0
    free = int((~mask).sum())
    fixed = Fixed(mask=mask, values=np.float32([0.5, -1, 2, 0, 3]))
    pocket = with_entry("0.weight", mu=MU[:free], sigma=np.full(free, 0.1, np.float32), fixed=fixed)
    (tmp_path / "a").write_bytes(encode(pocket).data)
    model = pb.load(tmp_path / "a", net())
    with pb.mean_weights(model):
        weight = model[0].weight.detach().numpy()
    expected = np.zeros((6, 4), np.float32)
    expected[mask], expected[~mask] = fixed.values, MU[:free]
    np.testing.assert_array_equal(weight, expected)
    pb.save(model, tmp_path / "b", precision=FLOAT32)
    assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()


def test_components_that_no_weight_uses_stay_in_the_codebook(tmp_path: Path) -> None:
    """So that the labels that are saved again are those of the file."""
    pocket = to_pocket(pb.bayesianize(net()), precision=FLOAT32)
    book = pb.artifact.Codebook(np.float32([0, 1, 2]), np.float32([0.1, 0.2, 0.3]))
    labels = {
        name: np.array([0, 2] * (e.mu.size // 2))
        for name, e in pocket.tensors.items()
        if isinstance(e, MeanField)
    }
    tensors = {
        name: Shared(shape=e.shape, labels=labels[name]) if name in labels else e
        for name, e in pocket.tensors.items()
    }
    (tmp_path / "a").write_bytes(encode(replace(pocket, tensors=tensors, codebook=book)).data)
    model = pb.load(tmp_path / "a", net())
    with pb.mean_weights(model):
        assert torch.equal(model[0].weight.detach(), torch.tensor([[0.0, 2.0] * 2] * 6))
    again = to_pocket(model)
    assert again.codebook is not None
    assert again.codebook.components == 3
    assert all((again.tensors[name].labels == labels[name]).all() for name in labels)


def test_a_copy_of_a_loaded_model_has_a_memory_of_its_own(tmp_path: Path) -> None:
    pb.save(pb.bayesianize(net()), tmp_path / "a")
    model = pb.load(tmp_path / "a", net())
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[0].parametrizations.weight.original += 1
    assert not torch.equal(
        other[0].parametrizations.weight.original, model[0].parametrizations.weight.original
    )
    assert isinstance(with_entry("3.bias").tensors["3.bias"], Plain)
