"""The pocket file beside its alternatives: bytes of the same labels, and how fast a posterior is back in memory.

`python benchmarks/artifact.py [weights.safetensors]`; without weights, networks of ResNet-20's and ResNet-18's shapes
are drawn whose kernels are about as smooth as trained ones.
"""

from __future__ import annotations

import heapq
import importlib
import lzma
import math
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from safetensors.numpy import load_file, save_file

from pocketbayes.artifact import Codebook, Pocket, Shared, decode, encode, moments_of
from pocketbayes.runs.files import write_atomically

Floats = NDArray[np.float32]
RATE = 0.05  # nats of distortion, in layer variances, that a nat of label is worth: about 2.4 bits a weight


def resnet_shapes(widths: tuple[int, ...], blocks: int) -> dict[str, tuple[int, ...]]:
    """The convolutions and the classifier of a residual network, without its shortcuts."""
    shapes: dict[str, tuple[int, ...]] = {"conv1.weight": (widths[0], 3, 3, 3)}
    last = widths[0]
    for stage, width in enumerate(widths, 1):
        for block in range(blocks):
            shapes[f"layer{stage}.{block}.conv1.weight"] = (width, last, 3, 3)
            shapes[f"layer{stage}.{block}.conv2.weight"] = (width, width, 3, 3)
            last = width
    return shapes | {"linear.weight": (10, last)}


def draw_weights(shapes: dict[str, tuple[int, ...]], smooth: float = 0.7) -> dict[str, Floats]:
    """He-scaled weights; cells of a kernel share a part `smooth` of their standard deviation."""
    rng = np.random.default_rng(0)
    drawn = {}
    for name, shape in shapes.items():
        common = rng.standard_normal((*shape[:2], *(1 for _ in shape[2:])), np.float32)
        own = rng.standard_normal(shape, np.float32)
        scale = math.sqrt(2 / math.prod(shape[1:]))
        drawn[name] = np.float32(scale) * (smooth * common + np.float32(math.sqrt(1 - smooth**2)) * own)
    return drawn


def quantise(weights: dict[str, Floats], k: int = 64, rounds: int = 12) -> Pocket:
    """One codebook for all layers by rate-penalised Lloyd iterations: min_k (w - m_k)^2 / 2 var - RATE ln pi_k."""
    flat = {name: w.reshape(-1) for name, w in weights.items()}
    sample = {name: w[:: max(1, w.size // 20_000)] for name, w in flat.items()}
    mu = np.quantile(np.concatenate(list(sample.values())), np.linspace(0.0005, 0.9995, k)).astype(np.float32)
    prices = {name: np.zeros(k, np.float32) for name in flat}
    for _ in range(rounds):
        total, mass = np.zeros(k), np.full(k, 1e-12)
        for name, w in sample.items():
            labels = assign(w, mu, prices[name], float(flat[name].var()))
            counts = np.bincount(labels, minlength=k)
            prices[name] = (-RATE * np.log((counts + 1e-3) / w.size)).astype(np.float32)
            total += np.bincount(labels, w, k) / flat[name].var()
            mass += counts / flat[name].var()
        mu = np.where(mass > 1e-9, total / mass, mu).astype(np.float32)
    found = {name: assign(w, mu, prices[name], float(w.var())) for name, w in flat.items()}
    used = np.unique(np.concatenate([np.unique(labels) for labels in found.values()]))
    rank = np.searchsorted(used, np.arange(k)).astype(np.uint8)
    tensors = {name: Shared(shape=weights[name].shape, labels=rank[labels]) for name, labels in found.items()}
    book = Codebook(mu=mu[used], sigma=np.full(len(used), 0.003, np.float32))
    return Pocket(tensors=dict(tensors), codebook=book, noise={"family": "Gaussian"})


def assign(w: Floats, mu: Floats, price: Floats, var: float) -> NDArray[np.int64]:
    """The cheapest component of each weight, a hundred thousand at a time."""
    parts = [
        ((part[:, None] - mu) ** 2 / (2 * var) + price).argmin(1)
        for part in np.split(w, range(100_000, w.size, 100_000))
    ]
    return np.concatenate(parts)


def huffman_bits(counts: NDArray[np.int64]) -> int:
    """Bits of all labels under their best prefix code: the sum of the merged weights."""
    heap = [int(c) for c in counts if c]
    heapq.heapify(heap)
    total = 0
    while len(heap) > 1:
        merged = heapq.heappop(heap) + heapq.heappop(heap)
        total += merged
        heapq.heappush(heap, merged)
    return total


def sizes_of(pocket: Pocket) -> dict[str, float]:
    """Bytes of the labels, layer by layer, under each code; tables are counted for ours and for byte compressors."""
    layers = [entry.labels for entry in pocket.tensors.values() if isinstance(entry, Shared)]
    counts = [np.bincount(labels) for labels in layers]
    k = len(pocket.codebook or ())
    ours = encode(pocket).sizes
    joined = b"".join(labels.tobytes() for labels in layers)
    shannon = sum(float(-(c[c > 0] * np.log2(c[c > 0] / c.sum())).sum()) for c in counts) / 8
    sizes: dict[str, float] = {
        "pocket file (labels and tables)": ours.get("LABL", 0) + ours["FREQ"],
        "Shannon bound without contexts": shannon,
        "Huffman, one code a layer": sum(huffman_bits(c) for c in counts) / 8,
        "lzma": len(lzma.compress(joined, preset=6)),
        "zlib": len(zlib.compress(joined, 9)),
        "plain bit-packing": sum(labels.size for labels in layers) * max(1, math.ceil(math.log2(k))) / 8,
    }
    try:
        zstandard = importlib.import_module("zstandard")
    except ImportError:
        return sizes
    return sizes | {"zstd": len(zstandard.ZstdCompressor(level=19).compress(joined))}


def best_of(action: Callable[[], object], rounds: int = 7) -> float:
    """Processor seconds of the fastest run: everything here uses one core, and the machine may have other work."""
    times = []
    for _ in range(rounds):
        begun = time.process_time()
        action()
        times.append(time.process_time() - begun)
    return min(times)


def times_of(pocket: Pocket, folder: Path) -> dict[str, tuple[int, float]]:
    """(bytes, seconds) until labels, and until dense float32 (mu, sigma), are in memory."""
    ours, theirs = folder / "model.pocket", folder / "model.safetensors"
    write_atomically(ours, encode(pocket).data)
    laws = {name: moments_of(pocket, name) for name in pocket.tensors}
    save_file(
        {f"{name}.{part}": array for name, law in laws.items() for part, array in law._asdict().items()},
        theirs,
    )

    def dense() -> None:
        found = decode(ours)
        for name in found.tensors:
            moments_of(found, name)

    def touch() -> None:  # safetensors maps lazily; a copy is what the pocket file gives too
        for array in load_file(theirs).values():
            array.copy()

    return {
        "pocket: decode": (ours.stat().st_size, best_of(lambda: decode(ours))),
        "pocket: decode to float32 mu, sigma": (ours.stat().st_size, best_of(dense)),
        "safetensors: float32 mu, sigma": (theirs.stat().st_size, best_of(touch)),
    }


def show(title: str, pocket: Pocket) -> None:
    weights = sum(entry.labels.size for entry in pocket.tensors.values() if isinstance(entry, Shared))
    sizes = sizes_of(pocket)
    first = next(iter(sizes.values()))
    table = Table(
        "code",
        "bytes",
        "bits a weight",
        "ratio",
        title=f"{title}: {weights:,} labels, K = {len(pocket.codebook or ())}",
    )
    for name, size in sorted(sizes.items(), key=lambda item: item[1]):
        table.add_row(name, f"{size:,.0f}", f"{8 * size / weights:.3f}", f"{size / first:.3f}")
    speed = Table(
        "reader",
        "file",
        "ms",
        "M weights/s",
        title=f"{title}: one core, processor time, file in the page cache",
    )
    with tempfile.TemporaryDirectory() as folder:
        for name, (size, seconds) in times_of(pocket, Path(folder)).items():
            speed.add_row(name, f"{size:,}", f"{1e3 * seconds:.1f}", f"{weights / seconds / 1e6:.1f}")
    Console().print(table, speed)


def run(weights: str | None = None) -> None:
    """Print bytes and speed for the given weights, or for two synthetic networks."""
    if weights is not None:
        tensors = {name: array for name, array in load_file(weights).items() if array.ndim > 1}
        show(Path(weights).stem, quantise(tensors))
        return
    show("synthetic ResNet-20", quantise(draw_weights(resnet_shapes((16, 32, 64), 3))))
    show("synthetic ResNet-18", quantise(draw_weights(resnet_shapes((64, 128, 256, 512), 2))))


if __name__ == "__main__":
    run(*sys.argv[1:2])
