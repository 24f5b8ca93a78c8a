"""A training step against the same network's deterministic step, beside bayesian-torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import pocketbayes as pb
from benchmarks import peers
from benchmarks.timing import compare, milliseconds, ratio
from pocketbayes import nets
from pocketbayes.sharing.latent import Assignment, make_latent
from pocketbayes.sharing.rate import Rate

NUM_DATA = 50_000
RATE = Rate(components=64)


def deterministic(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    return _step(model, lambda: cross_entropy(model(x), y))


def ours(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    pb.bayesianize(model)
    return _step(model, lambda: pb.nelbo(model, (x, y), NUM_DATA).loss)


def sharing(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    """A step of training that alternates with labels, which are renewed after it."""
    pb.bayesianize(model, sigma=pb.Relative(0.1))
    make_latent(model, RATE.components)
    assignment = Assignment(model, RATE)
    assignment.renew()
    train = _step(model, lambda: pb.nelbo(model, (x, y), NUM_DATA).loss)

    def step() -> None:
        train()
        assignment.renew()

    return step


def theirs(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    peers.bayesian_torch(model)
    return _step(model, lambda: cross_entropy(model(x), y) + peers.bayesian_torch_kl(model) / NUM_DATA)


def _step(model: nn.Module, loss: Callable[[], Tensor]) -> Callable[[], None]:
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "ResNet-20, batch 128": (nets.resnet20, (128, 3, 32, 32), 1),
    "MLP 784-512-512-10, batch 128": (lambda: nets.mlp([784, 512, 512, 10]), (128, 784), 20),
}


def run() -> None:
    table = Table(
        "network",
        "step",
        "ms",
        "to deterministic",
        title="Training step (forward, loss with KL, backward, Adam)",
    )
    for name, (build, shape, repeat) in CASES.items():
        x, y = torch.randn(shape), torch.randint(10, shape[:1])
        makers = {"deterministic": deterministic, "pocketbayes": ours, "pocketbayes, sharing": sharing}
        makers["bayesian-torch 0.5.0"] = theirs
        steps = {}
        for who, make in makers.items():
            try:
                steps[who] = make(build(), x, y)
            except ImportError:
                continue
        times = compare(
            {who: (lambda s=step, r=repeat: [s() for _ in range(r)]) for who, step in steps.items()}
        )
        for who in steps:
            table.add_row(
                name,
                who,
                f"{milliseconds(times, who) / repeat:.1f}",
                f"{ratio(times, who, 'deterministic'):.2f}",
            )
    Console().print(table)
