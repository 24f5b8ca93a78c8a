"""Sharing millions of weights by rate, and renewing their labels as a step of training does: time by number of weights.

Every row is a process of its own, so that its peak memory is its own; the weights themselves are not counted.
"""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from torch import nn

import pocketbayes as pb
from benchmarks.sharing import Chunks, draw, timed
from pocketbayes.sharing.evidence import gather_evidence
from pocketbayes.sharing.labels import label_weights
from pocketbayes.sharing.latent import Assignment, make_latent
from pocketbayes.sharing.rate import Rate, fit_codebook

SIZES = (1_000_000, 5_000_000, 25_000_000, 86_000_000)
RATE = Rate(components=64)
ROW = 1000  # inputs of the linear layers that hold the weights in training
RENEWALS = 5


class Row(NamedTuple):
    """What sharing took and reached."""

    seconds: dict[str, float]
    cpu: float  # seconds of all threads together: what a busy machine cannot stretch
    memory: float  # bytes at the peak beyond the weights
    bits: float  # of labels and outliers, a weight
    distortion: float  # nats a weight
    renewal: float  # seconds of processor time


def measure(n: int) -> Row:
    layers = draw(n)
    mu, sigma = zip(*layers, strict=True)
    with timed() as stage:
        evidence = stage("gather", lambda: gather_evidence(mu, sigma))
        fit = stage("fit", lambda: fit_codebook(evidence, RATE))
        shared = stage("label", lambda: label_weights(fit.code, mu, sigma, RATE)).fit
    bits, distortion = shared.bits() / n, float(shared.distortion.sum()) / n
    return Row(stage.seconds, stage.cpu, stage.memory, bits, distortion, renewal(layers))


def renewal(layers: Chunks) -> float:
    """The least processor time of a few renewals, once the code is there."""
    model = nn.ModuleList(nn.Linear(ROW, mu.numel() // ROW, bias=False) for mu, _ in layers)
    sigmas = {}
    for (name, weight), (mu, sigma) in zip(model.named_parameters(), layers, strict=True):
        weight.data, sigmas[name] = mu.view_as(weight), sigma.view_as(weight)
    pb.bayesianize(model, sigma=sigmas)
    make_latent(model, RATE.components)
    assignment, times = Assignment(model, RATE), list[float]()
    assignment.renew()
    for _ in range(RENEWALS):
        start = time.process_time()
        assignment.renew()
        times.append(time.process_time() - start)
    return min(times)


def run() -> None:
    columns = ("weights", "seconds", "CPU s", "CPU ns a weight", "steps", "peak MB")
    table = Table(
        *columns, "bits a weight", "nats a weight", "renewal, CPU ms", title="Sharing by rate, K = 64"
    )
    for n in SIZES:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            row = process.submit(measure, n).result()
        table.add_row(
            f"{n:,}",
            f"{sum(row.seconds.values()):.2f}",
            f"{row.cpu:.2f}",
            f"{row.cpu / n * 1e9:.0f}",
            ", ".join(f"{name} {s:.2f}" for name, s in row.seconds.items()),
            f"{row.memory / 1e6:.0f}",
            f"{row.bits:.3f}",
            f"{row.distortion:.3f}",
            f"{1e3 * row.renewal:.0f}",
        )
    Console(width=160).print(table)
