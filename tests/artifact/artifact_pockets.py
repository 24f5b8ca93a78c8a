"""Pockets for the tests: strategies that make any, one with everything in it, and what it means for two to be equal."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st

from pocketbayes.artifact import (
    Codebook,
    Entry,
    Fixed,
    MeanField,
    Plain,
    Pocket,
    Precision,
    Prior,
    Shared,
    Signs,
    Tied,
)

WIDTHS = {"plain": [8, 12, 16, 32, 64], "mu": [10, 16, 32, 64], "sigma": [12, 16, 32, 64]}


def a_law(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    spread = 10.0 ** rng.uniform(-6, 3)
    mu = (spread * rng.standard_normal(size)).astype(np.float32)
    return mu, (spread * 10.0 ** rng.uniform(-6, 0, size)).astype(np.float32)


def a_fixed(rng: np.random.Generator, shape: tuple[int, ...]) -> Fixed:
    mask = np.asarray(rng.random(shape) < rng.random())
    count = int(mask.sum())
    values: Any = [
        0.0,
        float(rng.standard_normal()),
        Signs(scale=0.3, positive=rng.random(count) < 0.5),
        rng.standard_normal(count).astype(np.float32),
        rng.standard_normal(count),
    ][rng.integers(5)]
    if rng.random() < 0.3:
        return Fixed(mask={"rule": "heavy", "layer": 1}, values=values, count=count)
    return Fixed(mask=mask, values=values)


def a_prior(rng: np.random.Generator, size: int) -> Prior:
    mu, sigma = a_law(rng, size)
    return Prior(mu=[0.0, mu][rng.integers(2)], sigma=[0.5, sigma][rng.integers(2)])


def a_shape(rng: np.random.Generator) -> tuple[int, ...]:
    return [(), (0, 4), (7,), (5, 6), (4, 3, 5), (9, 8, 3, 3), (2, 2, 20, 3, 4), (8, 4, 1, 1)][
        rng.integers(8)
    ]


def a_shared(rng: np.random.Generator, k: int, shape: tuple[int, ...], **parts: Any) -> Shared:
    fixed = parts.get("fixed")
    free = math.prod(shape) - (fixed.count if fixed else 0)
    wave = np.cumsum(rng.standard_normal(free)) * rng.choice(
        [0.2, 1.0, 5.0]
    )  # neighbours alike: contexts pay
    labels = np.clip(np.round(wave + k / 2), 0, k - 1).astype(rng.choice(["int64", "int32"]))
    labels[rng.random(free) < rng.choice([0, 0.1])] = k
    labels[rng.random(free) < rng.choice([0, 0.1])] = k + 1
    mu, sigma = a_law(rng, int((labels == k).sum()))
    mix = int(rng.integers(1, 6))
    alphas = rng.dirichlet(np.ones(mix), int((labels == k + 1).sum())).astype(np.float32)
    ids = rng.integers(0, k, alphas.shape)
    return Shared(
        shape=shape, labels=labels, outlier_mu=mu, outlier_sigma=sigma, components=ids, alphas=alphas, **parts
    )


def a_plain(rng: np.random.Generator) -> Plain:
    shape = a_shape(rng)
    dtype = rng.choice(
        ["float64", "float32", "float16", "bfloat16", "int8", "int64", "uint16", "bool", "complex64"]
    )
    values = rng.standard_normal(shape) * 10.0 ** rng.uniform(-4, 3)
    if rng.random() < 0.2:
        values = np.full(shape, rng.choice([0.0, -0.0, 1.0, -7.0, 0.1]))
    if dtype == "bfloat16":
        top = np.asarray(values, np.float32).reshape(-1).view(np.uint32) & 0xFFFF0000
        return Plain(values=top.view(np.float32).reshape(shape), dtype="bfloat16")
    if rng.random() < 0.1:
        values = np.where(rng.random(shape) < 0.5, -np.inf, values)
        dtype = "float32"
    array = (
        np.asarray(values) > 0
        if dtype == "bool"
        else np.asarray(np.clip(values, -100, 100) if "int" in dtype else values)
    )
    return Plain(values=np.abs(array).astype(dtype) if dtype[0] == "u" else array.astype(dtype))


def an_entry(rng: np.random.Generator, k: int) -> Entry:
    kind = rng.integers(3)
    if kind == 0:
        return a_plain(rng)
    shape = a_shape(rng)
    fixed = a_fixed(rng, shape) if rng.random() < 0.4 else None
    free = math.prod(shape) - (fixed.count if fixed else 0)
    parts: dict[str, Any] = {"fixed": fixed, "prior": a_prior(rng, free) if rng.random() < 0.3 else None}
    if kind == 1 or k == 0:
        mu, sigma = a_law(rng, free)
        return MeanField(
            shape=shape, mu=mu, sigma=sigma, dtype=str(rng.choice(["float32", "bfloat16"])), **parts
        )
    return a_shared(rng, k, shape, **parts)


def again(rng: np.random.Generator, entry: Entry, k: int) -> Entry:
    """The entry as another mode may have it: other numbers, but sometimes the same plain ones."""
    if isinstance(entry, Tied) or (isinstance(entry, Plain) and rng.random() < 0.5):
        return entry
    if isinstance(entry, Plain):
        other = np.where(rng.random(entry.shape) < 0.5, entry.values, np.zeros_like(entry.values))
        return Plain(values=other.astype(entry.values.dtype), dtype=entry.dtype)
    fixed = a_fixed(rng, entry.shape) if rng.random() < 0.4 else None
    free = math.prod(entry.shape) - (fixed.count if fixed else 0)
    parts: dict[str, Any] = {"fixed": fixed, "prior": a_prior(rng, free) if rng.random() < 0.3 else None}
    if isinstance(entry, Shared):
        return a_shared(rng, k, entry.shape, **parts)
    mu, sigma = a_law(rng, free)
    return MeanField(shape=entry.shape, mu=mu, sigma=sigma, dtype=entry.dtype, **parts)


def make(seed: int, entries: int, k: int, widths: tuple[int, int, int], modes: int) -> Pocket:
    rng = np.random.default_rng(seed)
    tensors: dict[str, Entry] = {f"layer{i}.weight": an_entry(rng, k) for i in range(entries)}
    if entries:
        tensors["tied.weight"] = Tied(target="layer0.weight")
    mu, sigma = a_law(rng, k)
    return Pocket(
        tensors=tensors,
        others=tuple({name: again(rng, e, k) for name, e in tensors.items()} for _ in range(modes - 1)),
        codebook=Codebook(mu=mu, sigma=sigma) if k else None,
        noise={"family": "empirical"},
        architecture={"class": "Näht", "hash": "00ff"},
        options={"tied_draws": False},
        metadata={"classes": ["cat", "狗"], "mean": [0.5, 1e-300], "nested": {"a": None}},
        extras={"quantiles": rng.standard_normal(5), "grid": np.arange(3, dtype=np.int32)},
        precision=Precision(plain=widths[0], mu=widths[1], sigma=widths[2]),
        library="0.1.0",
    )


pockets = st.builds(
    make,
    seed=st.integers(0, 2**32 - 1),
    entries=st.integers(0, 6),
    k=st.sampled_from([0, 1, 2, 5, 40, 300]),
    widths=st.tuples(*(st.sampled_from(WIDTHS[name]) for name in ("plain", "mu", "sigma"))),
    modes=st.sampled_from([1, 1, 2, 3]),
)


def small_pocket() -> Pocket:
    """Every kind of entry and every section, in under two kilobytes."""
    rng = np.random.default_rng(7)
    k = 6
    mu, sigma = a_law(rng, k)
    mask = np.triu(np.ones((4, 4), bool), 1)
    flat_kernels = np.repeat(rng.integers(0, k, 64), 9)  # as smooth as kernels can be, so contexts pay
    kernel = Shared(shape=(8, 8, 3, 3), labels=np.where(rng.random(576) < 0.05, 0, flat_kernels))
    labels = np.tile([0, 1, k, 2, k + 1], 2)
    mixed = Shared(
        shape=(4, 4),
        labels=labels,
        outlier_mu=np.float32([0.5, -1]),
        outlier_sigma=np.float32([0.1, 0.2]),
        components=np.array([[0, 1, 2], [3, 4, 5]]),
        alphas=np.float32([[0.5, 0.25, 0.25], [1, 0, 0]]),
        fixed=Fixed(mask=mask, values=Signs(scale=0.25, positive=np.arange(6) % 2 == 0)),
    )
    dense_mu, dense_sigma = a_law(rng, 10)
    ruled = Fixed(mask={"rule": "heavy"}, values=np.linspace(-1, 1, 6).astype(np.float32), count=6)
    dense = MeanField(
        shape=(4, 4), mu=dense_mu, sigma=dense_sigma, fixed=ruled, prior=Prior(mu=dense_mu, sigma=0.1)
    )
    tensors: dict[str, Entry] = {"conv.weight": kernel, "fc.weight": mixed, "head.weight": dense}
    tensors["bn.weight"] = Plain(values=np.float32([0.5, 1.5, 2.5]))
    tensors["bn.num_batches_tracked"] = Plain(values=np.array(7800))
    tensors["tied.weight"] = Tied(target="fc.weight")
    return Pocket(
        tensors=tensors,
        codebook=Codebook(mu=mu, sigma=sigma),
        noise={"family": "Gaussian"},
        metadata={"classes": ["a", "b"]},
        extras={"table": np.arange(4.0)},
        library="0.1.0",
    )


def same(a: object, b: object) -> bool:
    """Equal types, and equal contents bit by bit (NaN equals NaN)."""
    if isinstance(a, np.ndarray):
        return (
            isinstance(b, np.ndarray)
            and a.dtype == b.dtype
            and a.shape == b.shape
            and a.tobytes() == b.tobytes()
        )
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)  # type: ignore[call-overload,index]
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))  # type: ignore[arg-type]
    if hasattr(a, "__dataclass_fields__"):
        return all(same(getattr(a, name), getattr(b, name)) for name in a.__dataclass_fields__)
    return a == b
