"""Sharing millions of weights by a mixture, beside the mixtures and k-means of scikit-learn and faiss.

Every row is a process of its own, so that its peak memory is its own; the weights themselves are not counted.
"""

from __future__ import annotations

import ctypes
import gc
import math
import multiprocessing
import resource
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from torch import Tensor

from pocketbayes.sharing import (
    Merge,
    Mixture,
    RelativeDistance,
    assign,
    blend_weights,
    fit_mixture,
    log_joint,
    make_grid,
    make_histogram,
    merge_components,
)

LAYERS = 20
SCORED = 20_000  # weights whose exact log-likelihood is taken


class Row(NamedTuple):
    """What one method took and reached."""

    seconds: dict[str, float]
    cpu: float  # seconds of all threads together: what a busy machine cannot stretch
    memory: float  # bytes at the peak beyond the weights
    log_likelihood: float  # nats a weight, exact, on the same sample for all
    components: int


Chunks = list[tuple[Tensor, Tensor]]
T = TypeVar("T")


def draw(n: int, seed: int = 0) -> Chunks:
    """Layers of different scales with Laplace means and log-normal sigmas that grow with |mu|."""
    g = torch.Generator().manual_seed(seed)
    layers = []
    for i in range(LAYERS):
        size = n // LAYERS + (i < n % LAYERS)
        scale = 0.02 * math.exp(0.5 * float(torch.randn(1, generator=g)))
        mu = torch.empty(size).exponential_(generator=g).mul_(scale)
        mu.mul_(torch.empty(size).bernoulli_(generator=g).mul_(2).sub_(1))
        mu.add_(torch.empty(size).normal_(0, 0.3 * scale, generator=g))
        sigma = torch.empty(size).normal_(0, 0.3, generator=g).exp_()
        sigma.mul_((mu.abs() / scale).add_(0.5).pow_(0.4)).mul_(0.2 * scale)
        layers.append((mu, sigma))
    return layers


def flat(chunks: Chunks) -> NDArray[np.float32]:
    """[n, 2] standardised points, as the peers want them."""
    x = torch.stack([torch.cat([pair[axis] for pair in chunks]) for axis in (0, 1)], 1)
    return ((x - x.mean(0)) / x.std(0)).numpy()


def pocketbayes(n: int, components: int) -> Row:
    """Histogram, mixture and assignment; merging and blending are timed but belong to no peer."""
    chunks = draw(n)
    with timed() as stage:
        grid = stage("grid", lambda: make_grid(chunks))
        histogram = stage("histogram", lambda: make_histogram(chunks, grid))
        fit = stage("mixture", lambda: fit_mixture(histogram.atoms(), components))
        stage.rename("mixture", f"mixture in {fit.iterations} iterations")
        labels = stage("assignment", lambda: assign(fit.mixture, histogram, chunks))
    with timed() as later:
        later("merge", lambda: merge_components(fit.mixture, Merge(distance=RelativeDistance(0.1))))
        mu, sigma = zip(*chunks, strict=True)
        later("blend", lambda: blend_weights(fit.mixture, mu, sigma, labels))
    apart = {f"{name} (apart)": value for name, value in later.seconds.items()}
    return Row(
        stage.seconds | apart, stage.cpu, stage.memory, score(fit.mixture, chunks), fit.mixture.components
    )


def sklearn_mixture(n: int, components: int, steps: int = 100) -> Row:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    chunks = draw(n)
    x = flat(chunks)
    peer = GaussianMixture(components, tol=2e-4, max_iter=steps, init_params="k-means++", random_state=0)
    with timed() as stage, warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        stage("fit and assign", lambda: peer.fit_predict(x))
    mixture = Mixture(*(torch.from_numpy(a) for a in (np.log(peer.weights_), peer.means_, peer.covariances_)))
    seconds = {f"{name}, {peer.n_iter_} iterations": value for name, value in stage.seconds.items()}
    return Row(seconds, stage.cpu, stage.memory, score(unstandardise(mixture, chunks), chunks), components)


def sklearn_mixture_cut_short(n: int, components: int) -> Row:
    """Two iterations only: with so many components each takes long."""
    return sklearn_mixture(n, components, steps=2)


def sklearn_minibatch(n: int, components: int) -> Row:
    from sklearn.cluster import MiniBatchKMeans

    chunks = draw(n)
    x = flat(chunks)
    with timed() as stage:
        peer = MiniBatchKMeans(components, batch_size=16_384, max_iter=1, n_init=1, random_state=0)
        labels = stage("fit and assign", lambda: peer.fit_predict(x))
    return Row(stage.seconds, stage.cpu, stage.memory, *score_clusters(labels, chunks))


def faiss_kmeans(n: int, components: int) -> Row:
    import faiss

    chunks = draw(n)
    x = flat(chunks)
    with timed() as stage:
        peer = faiss.Kmeans(2, components, niter=20, seed=0)
        stage("fit", lambda: peer.train(x))
        labels = stage("assign", lambda: peer.index.search(x, 1)[1][:, 0])
    return Row(stage.seconds, stage.cpu, stage.memory, *score_clusters(labels, chunks))


def score(mixture: Mixture, chunks: Chunks) -> float:
    """Exact mean of ln p over a sample of the weights."""
    n = sum(mu.numel() for mu, _ in chunks)
    x = torch.stack([torch.cat([pair[axis] for pair in chunks])[:: -(-n // SCORED)] for axis in (0, 1)], 1)
    return float(torch.cat([log_joint(mixture, part).logsumexp(1) for part in x.split(1000)]).mean())


def score_clusters(labels: NDArray[np.integer], chunks: Chunks) -> tuple[float, int]:
    """Clusters as a mixture with their own weights, means and covariances; and how many hold weights."""
    x, which = torch.from_numpy(flat(chunks)), torch.from_numpy(labels.astype(np.int64))
    n = torch.bincount(which).double()
    used = n > 0
    sums = [torch.bincount(which, f.double())[used] / n[used] for f in (x[:, 0], x[:, 1])]
    mean = torch.stack(sums, 1)
    off = x.double() - torch.zeros(len(n), 2, dtype=torch.float64).masked_scatter_(used[:, None], mean)[which]
    pairs = [(0, 0), (0, 1), (1, 0), (1, 1)]
    cov = torch.stack([torch.bincount(which, off[:, i] * off[:, j])[used] / n[used] for i, j in pairs], 1)
    mixture = Mixture((n[used] / n.sum()).log(), mean, cov.view(-1, 2, 2) + 1e-6 * torch.eye(2))
    return score(unstandardise(mixture, chunks), chunks), int(used.sum())


def unstandardise(mixture: Mixture, chunks: Chunks) -> Mixture:
    columns = [torch.cat([pair[axis] for pair in chunks]) for axis in (0, 1)]
    shift, scale = (torch.stack([f(c).double() for c in columns]) for f in (torch.mean, torch.std))
    return Mixture(mixture.log_pi, mixture.mean * scale + shift, mixture.cov * (scale[:, None] * scale))


class Stage:
    """Seconds of each step, processor time and the peak of memory over all of them."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.cpu = self.memory = 0.0

    def rename(self, old: str, new: str) -> None:
        self.seconds[new] = self.seconds.pop(old)

    def __call__(self, name: str, step: Callable[[], T]) -> T:
        start = time.perf_counter()
        result = step()
        self.seconds[name] = time.perf_counter() - start
        return result


@contextmanager
def timed() -> Iterator[Stage]:
    stage = Stage()
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # what was freed must not hide what is taken
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before, start = peak(), time.process_time()
    yield stage
    stage.cpu, stage.memory = time.process_time() - start, peak() - before


def peak() -> float:
    """The largest resident size so far, in bytes."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024.0 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
    return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


CASES: list[tuple[int, int, list[Callable[[int, int], Row]]]] = [
    (50_000, 100, [pocketbayes, sklearn_mixture]),
    (40_000, 2000, [pocketbayes, sklearn_mixture_cut_short]),
    (1_000_000, 2000, [pocketbayes, sklearn_minibatch, faiss_kmeans]),
    (11_000_000, 2000, [pocketbayes, faiss_kmeans]),
    (86_000_000, 2000, [pocketbayes]),
]


def run() -> None:
    title = "Sharing weights by a mixture over (mu, sigma)"
    table = Table(
        "weights", "K", "method", "seconds", "CPU s", "steps", "peak MB", "ln p a weight", title=title
    )
    for n, components, methods in CASES:
        for method in methods:
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
                try:
                    row = process.submit(method, n, components).result()
                except ImportError as missing:
                    table.add_row(
                        f"{n:,}", str(components), method.__name__, f"needs {missing.name}", "", "", ""
                    )
                    continue
            own = {name: s for name, s in row.seconds.items() if not name.endswith("(apart)")}
            steps = ", ".join(f"{name} {s:.2f}" for name, s in row.seconds.items())
            table.add_row(
                f"{n:,}",
                str(row.components),
                method.__name__,
                f"{sum(own.values()):.2f}",
                f"{row.cpu:.2f}",
                steps,
                f"{row.memory / 1e6:.0f}",
                f"{row.log_likelihood:.4f}",
            )
        table.add_section()
    Console(width=160).print(table)
