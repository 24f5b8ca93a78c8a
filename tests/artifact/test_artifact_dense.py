from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from artifact_pockets import a_shared, small_pocket

from pocketbayes.artifact import (
    Codebook,
    Fixed,
    MeanField,
    Plain,
    Pocket,
    Shared,
    Tied,
    decode,
    encode,
    inspect,
    mean_weights,
    moments_of,
    sample_weights,
)
from pocketbayes.errors import ArtifactError


def upper(rule: dict[str, object], shape: tuple[int, ...]) -> np.ndarray:
    assert rule == {"rule": "heavy"}
    return np.triu(np.ones(shape, bool), 1)


def test_labels_outliers_and_blends_become_weights_one_by_one() -> None:
    book = Codebook(mu=np.float64([1, 3]), sigma=np.float64([0.5, 2]))
    entry = Shared(
        shape=(2, 2),
        labels=np.array([1, 2, 3, 0]),
        outlier_mu=np.float64([7]),
        outlier_sigma=np.float64([0.1]),
        components=np.array([[0, 1]]),
        alphas=np.float64([[0.25, 0.75]]),
        dtype="float64",
    )
    law = moments_of(Pocket(tensors={"w": entry}, codebook=book), "w")
    m = 0.25 * 1 + 0.75 * 3
    v = 0.25 * (0.5**2 + 1**2) + 0.75 * (2**2 + 3**2) - m**2
    assert np.allclose(law.mu, [[3, 7], [m, 1]], rtol=1e-15)
    assert np.allclose(law.sigma, [[2, 0.1], [np.sqrt(v), 0.5]], rtol=1e-15)


def test_fixed_weights_are_constants_without_spread() -> None:
    pocket = decode(encode(small_pocket()).data)
    law = moments_of(pocket, "head.weight", upper)
    mask = np.triu(np.ones((4, 4), bool), 1)
    assert np.allclose(law.mu[mask], np.linspace(-1, 1, 6), atol=2.0**-11)
    assert (law.sigma[mask] == 0).all()
    assert (law.sigma[~mask] > 0).all()
    signs = moments_of(pocket, "fc.weight")
    assert (signs.mu[mask] == np.where(np.arange(6) % 2 == 0, 0.25, -0.25)).all()


def test_a_rule_that_cannot_be_expanded_is_an_error() -> None:
    pocket = small_pocket()  # its rule does not say which layer it is for
    with pytest.raises(ArtifactError, match=r"head.weight: cannot expand the rule .* 'layer' must be"):
        mean_weights(pocket)
    with pytest.raises(ArtifactError, match="should fix 6 weights"):
        mean_weights(pocket, lambda rule, shape: np.ones(shape, bool))


def test_tied_names_are_one_array() -> None:
    weights = mean_weights(small_pocket(), upper)
    assert weights["tied.weight"] is weights["fc.weight"]
    drawn = sample_weights(small_pocket(), 0, expand=upper)
    assert drawn["tied.weight"] is drawn["fc.weight"]
    assert (drawn["bn.weight"] == weights["bn.weight"]).all()


def test_draws_have_the_mean_and_the_spread_of_the_law() -> None:
    n = 40_000
    entry = MeanField(shape=(n,), mu=np.full(n, 2, np.float32), sigma=np.full(n, 0.5, np.float32))
    pocket = Pocket(tensors={"a": entry, "b": entry}, noise={"family": "Gaussian"})
    draw = sample_weights(pocket, seed=1)
    for values in draw.values():
        z = (values - 2) / 0.5
        assert abs(z.mean()) < 4 / np.sqrt(n)
        assert abs(z.var() - 1) < 4 * np.sqrt(2 / n)
        assert abs((z > 0).mean() - 0.5) < 4 * 0.5 / np.sqrt(n)
    assert abs(np.corrcoef(draw["a"], draw["b"])[0, 1]) < 4 / np.sqrt(n)
    assert (sample_weights(pocket, seed=1)["a"] == draw["a"]).all()
    np.testing.assert_allclose(sample_weights(pocket, seed=1, number=1)["a"] - 2, 2 - draw["a"], atol=1e-6)
    for other in (sample_weights(pocket, seed=2), sample_weights(pocket, seed=1, number=2)):
        assert abs(np.corrcoef(draw["a"], other["a"])[0, 1]) < 4 / np.sqrt(n)
    assert sample_weights(Pocket(tensors={"a": entry}), seed=1)["a"].tobytes() == draw["a"].tobytes()


BAD_NOISE = [
    ({"family": "student"}, "unknown family 'student'"),
    ({"family": ["Gaussian"]}, "unknown family"),
    ({"family": "StudentT", "df": 1.5}, "df must be"),
    ({"family": "StudentT"}, "parameters of StudentT"),
    ({"family": "Empirical", "values": {"array": "missing"}}, "'missing' is not in the file"),
    ({"family": "Empirical", "values": [1.0, float("nan")]}, r"at most 2\^127"),
    ({"family": "Averaged", "noise": {"family": "Laplace"}, "devices": 10**9}, "1024 devices a weight"),
    ({"family": "Averaged", "noise": {"family": "Laplace"}, "devices": 0}, "devices must be"),
    ({"family": "Averaged", "noise": 3, "devices": 2}, "described by an object"),
    (
        {"family": "Drifted", "noise": {}, "time": 1e-300, "reference": 1e300, "exponent": 1.0, "shift": 0.0},
        "parameters of Drifted",
    ),
    ({"family": "GaussianMixture", "weights": [1.0], "means": [], "sigmas": [1.0]}, "equal numbers"),
]


@pytest.mark.parametrize(("noise", "message"), BAD_NOISE, ids=[message for _, message in BAD_NOISE])
def test_noise_that_makes_no_sense_is_not_drawn(noise: dict[str, object], message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        sample_weights(replace(small_pocket(), noise=noise), 0, expand=upper)


def test_a_summary_accounts_for_every_label() -> None:
    rng = np.random.default_rng(0)
    k = 30
    shared = a_shared(rng, k, (100, 50, 3, 3))
    quiet = Shared(shape=(1000,), labels=np.zeros(1000, int))
    tensors = {
        "a": shared,
        "quiet": quiet,
        "bias": Plain(values=np.linspace(0.0, 1.0, 100, dtype=np.float32)),
        "ones": Plain(values=np.ones(100, np.float32)),  # a number in the header
        "tied": Tied(target="a"),
    }
    book = Codebook(mu=np.arange(k, dtype=np.float32), sigma=np.ones(k, np.float32))
    data, sizes, _ = encode(
        Pocket(tensors=dict(tensors), codebook=book, metadata={"note": 1}, library="0.1.0")
    )
    summary = inspect(data)
    by_name = {tensor.name: tensor for tensor in summary.tensors}
    outliers, blends = int((shared.labels == k).sum()), int((shared.labels == k + 1).sum())
    assert (summary.codebook, summary.total_bytes, summary.sections) == (k, len(data), sizes)
    assert (summary.version, summary.library, summary.metadata) == (2, "0.1.0", {"note": 1})
    assert (by_name["a"].kind, by_name["a"].outliers, by_name["a"].blends) == ("shared", outliers, blends)
    assert by_name["tied"].kind == "tied to a"
    assert (by_name["bias"].bits, by_name["ones"].bits) == (8 * (2 * 100 + 1), 0)
    counted = by_name["a"].bits + by_name["quiet"].bits
    stored = 8 * sum(sizes.get(tag, 0) for tag in ("LABL", "OUTL", "BLND"))
    assert 0 <= stored - counted < 64
    assert by_name["quiet"].bits_per_weight < 0.1


def test_a_summary_counts_fixed_weights_as_weights() -> None:
    fixed = Fixed(mask=np.arange(10) < 4, values=0.0)
    entry = MeanField(shape=(10,), mu=np.ones(6, np.float32), sigma=np.ones(6, np.float32), fixed=fixed)
    (tensor,) = inspect(encode(Pocket(tensors={"w": entry})).data).tensors
    assert (tensor.fixed, tensor.bits) == (4, 8 * (1 + 2 * 6 + 2 * 6))
    assert tensor.bits_per_weight == tensor.bits / 10
