"""Makes the golden pocket files: `python tests/golden/make_golden.py` writes those that do not exist yet.

A golden file is never rewritten.  If the bytes must change, raise the format's version, keep reading the old files,
and add new ones in a folder of their own.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from pocketbayes.artifact import (
    FLOAT32,
    VERSION,
    Codebook,
    Fixed,
    Normal,
    Plain,
    Pocket,
    Precision,
    Prior,
    Shared,
    Signs,
    Tied,
    encode,
)

FOLDER = Path(__file__).parent


def scramble(size: int, seed: int) -> np.ndarray:
    """Integers 0..65535 that are the same on every machine (Lehmer's generator, upper bits)."""
    state, found = seed, []
    for _ in range(size):
        state = state * 48271 % 2147483647
        found.append(state >> 15)
    return np.array(found, np.int64)


def numbers(size: int, seed: int, scale: float = 1.0) -> np.ndarray:
    """Floats in (-scale, scale)."""
    return (scale * (scramble(size, seed) - 32767.5) / 32768).astype(np.float32)


def plain() -> Pocket:
    values = {
        "fc.weight": Plain(values=numbers(12, 1).reshape(3, 4)),
        "fc.bias": Plain(values=numbers(3, 2, 1e-6)),
        "half": Plain(values=numbers(4, 3).astype(np.float16)),
        "brain": Plain(values=np.float32([1.0, -0.5, 3.0]), dtype="bfloat16"),
        "double": Plain(values=numbers(2, 4).astype(np.float64), bits=64),
        "mask": Plain(values=np.float32([[0, -np.inf], [0, 0]])),
        "steps": Plain(values=np.array(78200)),
        "empty": Plain(values=np.zeros((0, 3), np.float32)),
        "flags": Plain(values=scramble(11, 5) % 2 == 0),
        "wave": Plain(values=np.complex64([1 + 2j, -3j])),
        "tied": Tied(target="fc.weight"),
    }
    return Pocket(
        tensors=dict(values), metadata={"classes": ["cat", "dög"], "threshold": 0.25}, library="0.1.0"
    )


def constant() -> Pocket:
    """Tensors of one number each."""
    values = {
        "mean": Plain(values=np.full(8, -0.0, np.float32)),
        "var": Plain(values=np.full((3, 8), 1e-5)),
        "half": Plain(values=np.full(9, 0.333251953125, np.float16)),
        "count": Plain(values=np.full(6, -300, np.int16)),
        "flags": Plain(values=np.zeros(7, bool)),
        "short": Plain(values=np.zeros(2, np.float32)),
    }
    return Pocket(tensors=dict(values), extras={"steps": np.full(5, 2, np.uint8)}, library="0.2.0")


def dense() -> Pocket:
    """Private laws with fixed weights and priors, in short floats."""
    upper = np.triu(np.ones((5, 5), bool), 1)
    signs = Signs(scale=0.5, positive=scramble(10, 6) % 2 == 0)
    sigma = np.exp2(-(scramble(15, 7) % 20)).astype(np.float32)
    tensors = {
        "a": Normal(shape=(5, 5), mu=numbers(15, 8), sigma=sigma, fixed=Fixed(mask=upper, values=signs)),
        "b": Normal(shape=(3, 5), mu=numbers(15, 9), sigma=sigma, prior=Prior(mu=numbers(15, 10), sigma=0.1)),
        "c": Normal(
            shape=(5, 5),
            mu=numbers(15, 11),
            sigma=sigma,
            fixed=Fixed(mask={"rule": "heavy"}, values=numbers(10, 12), count=10),
            prior=Prior(mu=0.0, sigma=sigma),
        ),
    }
    noise = {"family": "empirical"}
    table = np.sort(numbers(9, 13, 2.0)).astype(np.float64)
    return Pocket(
        tensors=dict(tensors),
        noise=noise,
        extras={"quantiles": table},
        precision=Precision(plain=10, mu=12, sigma=13),
        library="0.1.0",
    )


def shared() -> Pocket:
    """Smooth kernels (contexts), a matrix with outliers and blends, one with holes."""
    k = 12
    kernels = np.repeat(scramble(96, 14) % k, 9)
    noisy = np.where(scramble(864, 15) % 8 == 0, scramble(864, 16) % k, kernels)
    symbols = scramble(300, 17) % 40
    labels = np.where(symbols < k + 2, symbols, (symbols // 3) % 3)
    outliers, blends = int((labels == k).sum()), int((labels == k + 1).sum())
    alphas = (1 + scramble(4 * blends, 18) % 50).reshape(blends, 4).astype(np.float64)
    matrix = Shared(
        shape=(15, 20),
        labels=labels,
        outlier_mu=numbers(outliers, 19, 3.0),
        outlier_sigma=np.full(outliers, 0.01, np.float32),
        components=(scramble(4 * blends, 20) % k).reshape(blends, 4),
        alphas=alphas / alphas.sum(1, keepdims=True),
    )
    mask = (scramble(30, 21) % 3 == 0).reshape(5, 6)
    holes = Shared(
        shape=(5, 6), labels=scramble(int((~mask).sum()), 22) % 2, fixed=Fixed(mask=mask, values=0.0)
    )
    tensors = {
        "conv.weight": Shared(shape=(12, 8, 3, 3), labels=noisy),
        "fc.weight": matrix,
        "out.weight": holes,
        "bn.weight": Plain(values=numbers(8, 23)),
    }
    book = Codebook(mu=numbers(k, 24, 0.3), sigma=np.exp2(-(scramble(k, 25) % 12)).astype(np.float32))
    return Pocket(
        tensors=dict(tensors),
        codebook=book,
        noise={"family": "Gaussian"},
        architecture="f00d",
        library="0.1.0",
    )


def shared_float32() -> Pocket:
    """The same in float32."""
    pocket = shared()
    return Pocket(
        tensors=pocket.tensors,
        codebook=pocket.codebook,
        options={"tied_draws": True},
        precision=FLOAT32,
        library="0.1.0",
    )


def two_modes() -> Pocket:
    """Everything that modes share and do not: labels, outliers, blends, masks, priors, a counter that is common."""
    first = shared()
    k = first.codebook.components
    conv, matrix, holes = (first.tensors[f"{name}.weight"] for name in ("conv", "fc", "out"))
    labels = np.where(scramble(300, 26) % 9 == 0, k, (matrix.labels + 1) % k)
    outliers = int((labels == k).sum())
    mask = (scramble(30, 27) % 4 == 0).reshape(5, 6)
    free = int((~mask).sum())
    second = {
        "conv.weight": Shared(shape=conv.shape, labels=(conv.labels + 1) % k),
        "fc.weight": Shared(
            shape=matrix.shape,
            labels=labels,
            outlier_mu=numbers(outliers, 28),
            outlier_sigma=np.full(outliers, 0.02, np.float32),
        ),
        "out.weight": Shared(
            shape=holes.shape,
            labels=scramble(free, 29) % k,
            fixed=Fixed(mask=mask, values=0.25),
            prior=Prior(mu=0.0, sigma=0.5),
        ),
        "bn.weight": Plain(values=numbers(8, 30)),
    }
    tensors = [{**dict(mode), "bn.count": Plain(values=np.array(7800))} for mode in (first.tensors, second)]
    return Pocket(
        tensors=tensors[0],
        others=(tensors[1],),
        codebook=first.codebook,
        noise={"family": "Gaussian"},
        library="0.2.0",
    )


MAKERS = {
    "plain": plain,
    "dense": dense,
    "shared": shared,
    "shared_float32": shared_float32,
    "two_modes": two_modes,  # since version 2, and all below
    "constant": constant,
}


def main() -> None:
    folder = FOLDER / f"v{VERSION}"
    folder.mkdir(exist_ok=True)
    for name, maker in MAKERS.items():
        path = folder / f"{name}.pocket"
        if not path.exists():
            path.write_bytes(encode(maker()).data)
            sys.stdout.write(f"{path}: {path.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
