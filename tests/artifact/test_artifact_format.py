from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from artifact_pockets import make, pockets, same, small_pocket
from hypothesis import given, settings

from pocketbayes.artifact import (
    FLOAT32,
    Codebook,
    Fixed,
    MeanField,
    Plain,
    Pocket,
    Precision,
    Prior,
    Shared,
    Signs,
    Tied,
    decode,
    encode,
    inspect,
)
from pocketbayes.errors import ArtifactError

quick = settings(deadline=None, derandomize=True, max_examples=80)


def close(
    stored: np.ndarray | float, given: np.ndarray | float, bits: int, lost: int, floor: float = 0.0
) -> None:
    """Within 2^(lost - bits) relative, or `floor` of the largest."""
    wide = np.asarray(given, np.complex128)
    relative = 2.0 ** (lost - bits) if bits <= 16 else 2.0**-24 if bits == 32 else 0.0
    assert np.shape(stored) == np.shape(given)
    finite = np.isfinite(wide)
    error = np.abs(np.asarray(stored)[finite] - wide[finite])
    assert (
        error <= np.maximum(relative * np.abs(wide[finite]), floor * np.abs(wide[finite]).max(initial=0))
    ).all()


def check_entry(a: object, b: object, at: Precision) -> None:
    """b is what the file keeps of a: labels, masks and integers exactly, floats as precisely as promised."""
    assert type(a) is type(b)
    if isinstance(a, Tied) or isinstance(b, Tied):
        assert a == b
        return
    assert isinstance(a, Plain | MeanField | Shared)
    assert isinstance(b, Plain | MeanField | Shared)
    assert (a.shape, a.dtype) == (b.shape, b.dtype)
    if isinstance(a, Plain) and isinstance(b, Plain):
        assert a.values.dtype == b.values.dtype
        close(b.values, a.values, at.plain, 5, 2.0 ** (-22 - at.plain))
    if isinstance(a, Shared) and isinstance(b, Shared):
        assert (a.labels == b.labels).all()
        assert a.components.shape[0] == 0 or (a.components == b.components).all()
        assert a.alphas.shape[0] == 0 or np.abs(a.alphas - b.alphas).max() < 1 / 65535
        close(b.outlier_mu, a.outlier_mu, at.mu, 5, 2.0 ** (-22 - at.mu))
        close(b.outlier_sigma, a.outlier_sigma, at.sigma, 7)
    if isinstance(a, MeanField) and isinstance(b, MeanField):
        close(b.mu, a.mu, at.mu, 5, 2.0 ** (-22 - at.mu))
        close(b.sigma, a.sigma, at.sigma, 7)
    if isinstance(a, MeanField | Shared) and isinstance(b, MeanField | Shared):
        check_fixed(a.fixed, b.fixed, at)
        check_prior(a.prior, b.prior, at)


def check_fixed(a: Fixed | None, b: Fixed | None, at: Precision) -> None:
    if a is None or b is None:
        assert a is b
        return
    assert (a.count, same(a.mask, b.mask)) == (b.count, True)
    if isinstance(a.values, np.ndarray):
        assert isinstance(b.values, np.ndarray)
        close(b.values, a.values, at.plain, 5, 2.0 ** (-22 - at.plain))
    else:
        assert same(a.values, b.values)


def check_prior(a: Prior | None, b: Prior | None, at: Precision) -> None:
    if a is None or b is None:
        assert a is b
        return
    close(b.mu, a.mu, at.mu if isinstance(a.mu, np.ndarray) else 64, 5, 2.0 ** (-22 - at.mu))
    close(b.sigma, a.sigma, at.sigma if isinstance(a.sigma, np.ndarray) else 64, 7)


@quick
@given(pockets)
def test_decoding_inverts_encoding(pocket: Pocket) -> None:
    back = decode(encode(pocket).data)
    assert list(back.tensors) == list(pocket.tensors)
    for name, entry in pocket.tensors.items():
        check_entry(entry, back.tensors[name], pocket.precision)
    for name in ("noise", "architecture", "options", "metadata", "library", "precision"):
        assert getattr(back, name) == getattr(pocket, name)
    assert same(back.extras, pocket.extras)
    assert (back.codebook is None) == (pocket.codebook is None)
    if pocket.codebook is not None and back.codebook is not None:
        close(
            back.codebook.mu, pocket.codebook.mu, pocket.precision.mu, 5, 2.0 ** (-22 - pocket.precision.mu)
        )
        close(back.codebook.sigma, pocket.codebook.sigma, pocket.precision.sigma, 7)


@quick
@given(pockets)
def test_encoding_what_was_decoded_gives_the_same_bytes(pocket: Pocket) -> None:
    data = encode(pocket).data
    back = decode(data)
    assert encode(back).data == data
    assert same(decode(data), back)


@quick
@given(pockets)
def test_section_sizes_add_up_to_the_file(pocket: Pocket) -> None:
    data, sizes, _ = encode(pocket)
    assert sum(sizes.values()) == len(data)


def test_float32_keeps_every_bit() -> None:
    pocket = replace(make(3, 6, 40, (32, 32, 32), 2), precision=FLOAT32)
    back = decode(encode(pocket).data)
    assert pocket.codebook is not None
    assert back.codebook is not None
    assert same(back.codebook.mu, pocket.codebook.mu)
    assert same(back.codebook.sigma, pocket.codebook.sigma)


def test_one_tensor_can_ask_for_more_bits_than_the_others() -> None:
    values = np.float32([0.1, 0.2])
    pocket = Pocket(tensors={"a": Plain(values=values), "b": Plain(values=values, bits=32)})
    back = decode(encode(pocket).data)
    assert not same(back.tensors["a"].values, values)
    assert same(back.tensors["b"].values, values)
    assert encode(back).data == encode(pocket).data


@pytest.mark.parametrize(
    ("values", "constant"),
    [
        (np.zeros(16, np.float32), True),
        (np.full(16, -0.0), True),
        (np.full(40, 0.1), True),
        (np.full((4, 4), 7), True),
        (np.ones(9, bool), True),
        (np.float32([0.0, -0.0] * 8), False),
        (np.full(16, np.nan), False),
        (np.zeros(16, np.complex64), False),
        (np.zeros(2), False),  # "0.0" is no shorter
        (np.array(7), False),
    ],
)
def test_a_tensor_of_one_number_takes_a_number_in_the_header(values: np.ndarray, constant: bool) -> None:
    encoded = encode(Pocket(tensors={"t": Plain(values=values, bits=64)}))
    assert ("PLAN" not in encoded.sizes) == constant
    assert same(decode(encoded.data).tensors["t"].values, values)
    assert (inspect(encoded.data).tensors[0].bits == 0) == constant


@pytest.mark.parametrize("values", [[-0.0] * 4, [0.0, -0.0] * 2, [1e-60, 3e-60, 0.0, 1e-60], [0.5000001] * 9])
def test_what_rounding_makes_one_number_takes_a_number_in_the_header(values: list[float]) -> None:
    for dtype in (np.float32, np.float64):
        encoded = encode(Pocket(tensors={"t": Plain(values=np.array(values, dtype))}))
        assert "PLAN" not in encoded.sizes
        assert encode(decode(encoded.data)).data == encoded.data
        assert np.abs(decode(encoded.data).tensors["t"].values - values).max() < 1e-4


def test_a_sigma_below_the_smallest_float_is_stored_as_that() -> None:
    sigma = np.float64([1e-60, 1e-3])
    for bits in (16, 32, 64):
        law = MeanField(shape=(2,), mu=np.zeros(2), sigma=sigma, dtype="float64")
        back = decode(encode(Pocket(tensors={"w": law}, precision=Precision(sigma=bits))).data).tensors["w"]
        assert isinstance(back, MeanField)
        assert back.sigma[0] == 2.0**-126


def test_a_header_for_a_hundred_tensors_is_small() -> None:
    tensors: dict[str, Plain] = {}
    for stage in range(3):
        for block in range(3):
            for conv in (1, 2):
                name = f"layer{stage + 1}.{block}"
                tensors[f"{name}.conv{conv}.weight"] = Plain(values=np.zeros((16, 16, 3, 3), np.float32))
                for part in ("weight", "bias", "running_mean", "running_var"):
                    tensors[f"{name}.bn{conv}.{part}"] = Plain(values=np.zeros(16, np.float32))
                tensors[f"{name}.bn{conv}.num_batches_tracked"] = Plain(values=np.array(1))
    sizes = encode(Pocket(tensors=dict(tensors), library="0.1.0")).sizes
    assert sizes["HEAD"] + sizes["frame"] < 1000


def test_a_fixed_weight_costs_nothing_in_the_stream() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 16, 400 * 400).astype(np.uint8)
    book = Codebook(mu=np.arange(16.0), sigma=np.ones(16))
    mask = np.triu(np.ones((400, 400), bool), 1)
    part = Shared(
        shape=(400, 400),
        labels=labels[: int((~mask).sum())],
        fixed=Fixed(mask={"rule": "heavy"}, values=0.0, count=int(mask.sum())),
    )
    whole = Shared(shape=(400, 400), labels=labels)
    sizes = [encode(Pocket(tensors={"w": entry}, codebook=book)).sizes["LABL"] for entry in (part, whole)]
    assert sizes[0] / sizes[1] == pytest.approx((~mask).mean(), rel=1e-3)


BAD: dict[str, tuple[Pocket, str]] = {
    "no codebook": (
        Pocket(tensors={"w": Shared(shape=(1,), labels=np.array([0]))}),
        "w: shared weights need a codebook",
    ),
    "label range": (
        Pocket(
            tensors={"w": Shared(shape=(1,), labels=np.array([9]))},
            codebook=Codebook(mu=np.ones(2), sigma=np.ones(2)),
        ),
        "w: labels must lie in 0..3",
    ),
    "sigma": (
        Pocket(tensors={"w": MeanField(shape=(2,), mu=np.ones(2), sigma=np.float32([1, 0]))}),
        "w: sigma must be posi",
    ),
    "nan": (
        Pocket(tensors={"w": MeanField(shape=(1,), mu=np.float32([np.nan]), sigma=np.ones(1))}),
        "w: mu must be finite",
    ),
    "shape": (
        Pocket(tensors={"w": MeanField(shape=(3,), mu=np.ones(2), sigma=np.ones(2))}),
        "w: mu and sigma must be flat",
    ),
    "tie": (Pocket(tensors={"w": Tied(target="v")}), "w: tied to 'v'"),
    "tie chain": (
        Pocket(tensors={"a": Plain(values=np.ones(1)), "b": Tied(target="a"), "c": Tied(target="b")}),
        "c: tied to 'b'",
    ),
    "metadata": (Pocket(tensors={}, metadata={"x": float("nan")}), "must be JSON"),
    "metadata type": (Pocket(tensors={}, metadata={"x": np.float32(1)}), "must be JSON"),
    "lone surrogate": (Pocket(tensors={}, metadata={"x": "\ud800"}), "must be JSON"),
    "dtype": (Pocket(tensors={"w": Plain(values=np.array(["a"]))}), "w: cannot store the type"),
    "long header": (Pocket(tensors={}, metadata={"x": "y" * (1 << 22)}), "Shorten the metadata"),
    "fixed count": (
        Pocket(
            tensors={
                "w": MeanField(shape=(2,), mu=np.ones(2), sigma=np.ones(2), fixed=Fixed(mask={}, values=0.0))
            }
        ),
        "Give count= with a rule",
    ),
    "signs": (
        Pocket(
            tensors={
                "w": MeanField(
                    shape=(2,),
                    mu=np.ones(1),
                    sigma=np.ones(1),
                    fixed=Fixed(
                        mask=np.array([True, False]), values=Signs(scale=1.0, positive=np.ones(2, bool))
                    ),
                )
            }
        ),
        "w: 1 fixed weights, but values for",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_pocket_that_does_not_fit_together_is_refused_by_name(case: str) -> None:
    pocket, message = BAD[case]
    with pytest.raises(ArtifactError, match=message.replace("(", r"\(")):
        encode(pocket)


@pytest.mark.parametrize("bits", [{"mu": 7}, {"plain": 17}, {"sigma": 11}, {"sigma": True}])
def test_a_width_that_does_not_exist_is_refused(bits: dict[str, int]) -> None:
    with pytest.raises(ArtifactError, match="precision"):
        Precision(**bits)


def test_reading_and_writing_need_no_torch() -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "import numpy as np, pocketbayes.artifact.format\n"
        "from pocketbayes.artifact import Pocket, Plain, encode, decode, inspect, mean_weights, sample_weights\n"
        "data = encode(Pocket(tensors={'w': Plain(values=np.ones(3))})).data\n"
        "assert mean_weights(decode(data))['w'].sum() == 3 and inspect(data).total_bytes == len(data)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_every_kind_survives_in_one_small_file() -> None:
    pocket = small_pocket()
    data, sizes, _ = encode(pocket)
    tags = ["HEAD", "FREQ", "LABL", "CODE", "OUTL", "BLND", "NORM", "MASK", "FIXD", "PLAN", "PRIO", "XTRA"]
    assert list(sizes) == [*tags, "frame"]
    for name, entry in pocket.tensors.items():
        check_entry(entry, decode(data).tensors[name], pocket.precision)
