"""Table 6 of the sharing paper: time, beside Bayes by Backprop.  ResNet-20, random images of CIFAR-10's size.

    python -m experiments.sharing.table6

Times are ratios within one run, alternating, on one thread: the machine is shared.  Bayes by Backprop is our own
unshared posterior used as such code is written: new weights are drawn for every pass of every batch.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import pocketbayes as pb
from experiments.markdown import MACHINE, measured, table
from experiments.record import RESULTS, command_line, versions, write_result
from pocketbayes import nets
from pocketbayes.posterior.weights import stochastic_weights
from pocketbayes.sharing.latent import Assignment, make_latent

RESULT = RESULTS / "sharing/table6.json"
BATCH, IMAGES, DRAWS, PAPER_DRAWS = 128, 1024, 30, 10


def posterior() -> nn.Module:
    torch.manual_seed(0)
    return pb.bayesianize(nets.resnet20().to(memory_format=torch.channels_last), prior=pb.ZeroMean(0.2))


def shared(model: nn.Module) -> nn.Module:
    pb.share(model, pb.Rate(components=64))
    return model


def step(model: nn.Module, x: Tensor, y: Tensor, draws: int) -> Callable[[], None]:
    """One step of training on `draws` draws."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    bayesian = bool(stochastic_weights(model))

    def run() -> None:
        model.train()
        if bayesian:
            pb.nelbo(
                model,
                (x, y),
                50_000,
                samples=draws,
                draw=partial(pb.one_draw, model),
                backward=Tensor.backward,
            )
        else:
            for _ in range(draws):
                (cross_entropy(model(x), y) / draws).backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


def renewed(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    """A step of training that alternates with re-assignment, as `compress` takes it."""
    make_latent(model, 64)
    assignment, train = Assignment(model, pb.Rate(components=64), max_bits=600_000.0), step(model, x, y, 1)
    assignment.aim()

    def run() -> None:
        train()
        assignment.renew()

    return run


def by_backprop(model: nn.Module, x: Tensor) -> Callable[[], None]:
    """Prediction that draws anew for every pass."""

    @torch.no_grad()
    def run() -> None:
        model.eval()
        for part in x.split(BATCH):
            torch.stack([model(part).softmax(1) for _ in range(DRAWS)]).mean(0)

    return run


def ours(model: nn.Module, x: Tensor, draws: int = DRAWS) -> Callable[[], None]:
    return lambda: pb.predict(model, x, samples=draws, batch_size=BATCH)


def passes(model: nn.Module, x: Tensor) -> Callable[[], None]:
    """As many passes of the plain network as there are draws: the limit."""

    @torch.no_grad()
    def run() -> None:
        model.eval()
        for part in x.split(BATCH):
            for _ in range(DRAWS):
                model(part).softmax(1)

    return run


def alternating(jobs: dict[str, Callable[[], None]], repeats: int) -> dict[str, float]:
    """Median seconds of each, one after the other in every round."""
    found: dict[str, list[float]] = {name: [] for name in jobs}
    for number in range(repeats + 1):
        for name, job in jobs.items():
            started = time.perf_counter()
            job()
            if number:  # the first round warms up
                found[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in found.items()}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    x = torch.randn(IMAGES, 3, 32, 32).to(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (BATCH,))
    batch = x[:BATCH]
    plain = nets.resnet20().to(memory_format=torch.channels_last)
    training = alternating(
        {
            "deterministic": step(plain, batch, y, 1),
            f"Bayes by Backprop, {PAPER_DRAWS} draws": step(posterior(), batch, y, PAPER_DRAWS),
            "posterior, 1 draw": step(posterior(), batch, y, 1),
            "sharing, labels renewed after each step": renewed(posterior(), batch, y),
            "fine-tuning, shared": step(shared(posterior()), batch, y, 1),
        },
        args.repeats,
    )
    inference = alternating(
        {
            f"{DRAWS} passes of the plain network": passes(plain, x),
            f"Bayes by Backprop, {DRAWS} draws": by_backprop(posterior(), x),
            f"unshared, {DRAWS} draws": ours(posterior(), x),
            f"shared, {DRAWS} draws": ours(shared(posterior()), x),
            "shared, 5 draws": ours(shared(posterior()), x, 5),
        },
        max(1, args.repeats // 2),
    )
    result = {
        "command": "python -m experiments.sharing.table6",
        "training": training,
        "inference": inference,
        "repeats": args.repeats,
        "versions": versions(),
    }
    write_result(RESULT, result)


def headline(result: dict[str, Any]) -> str:
    """For RESULTS.md."""
    step, inference = result["training"], result["inference"]
    by_backprop = f"Bayes by Backprop, {PAPER_DRAWS} draws"
    passes, ours = (inference[f"{DRAWS} passes of the plain network"], inference[f"shared, {DRAWS} draws"])
    return (
        f"a step with one draw takes {step['posterior, 1 draw']:.2f} s, with {PAPER_DRAWS} draws {step[by_backprop]:.2f} s; "
        f"{DRAWS} draws of {IMAGES:,} images take {ours:.1f} s, {DRAWS} passes of a plain network {passes:.1f} s."
    )


def section(result: dict[str, Any]) -> str:
    """This experiment's part of its page."""
    rounds = result["repeats"]
    parts = []
    for name, title in (("training", f"one step, batch {BATCH}"), ("inference", f"{IMAGES:,} images")):
        times = result[name]
        reference = next(value for key, value in times.items() if key.startswith("Bayes by Backprop"))
        rows = [(key, f"{value:.2f}", f"{reference / value:.1f}") for key, value in times.items()]
        parts.append(table(f"| {title} | seconds | times faster than Bayes by Backprop |", rows))
    tables = "\n\n".join(parts)
    return f"""## Table 6: time

{measured(result, f"one thread of {MACHINE}")} Medians of {rounds} alternating rounds for steps and {max(1, rounds // 2)} for
inference; read the ratios. Bayes by Backprop is our own unshared posterior, drawing anew for every pass of every batch.
ResNet-20, images of 32 x 32. The paper compares GPU hours of ResNet-18 (5.8 times faster at inference) with unequal
numbers of epochs and, it seems, of draws.

{tables}

Sharing makes files small, not passes fast: a pass costs what it costs. The gain over Bayes by Backprop comes in training
from one draw a step instead of {PAPER_DRAWS}, at inference from drawing each set of weights once for all batches. What five draws
cost in quality is not measured here.
"""


if __name__ == "__main__":
    main()
