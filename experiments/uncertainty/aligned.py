"""Whether a second mode is cheaper to code given the first: ResNet-20/CIFAR-10, its neurons permuted to match or not.

    python -m experiments.uncertainty.aligned --data DIR

Two networks trained apart share a codebook.  The labels of the second are coded by the contexts of the file format, or by
these together with the level of the first one's weight at the same place, in five steps as well; a layer takes what is
less, its frequency tables included.  So it is for the second network as it was trained, and for the same network with its
neurons permuted to match those of the first (`pb.structure.align`), which computes the same function.
"""

from __future__ import annotations

import copy
import math
import time
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import pocketbayes as pb
from experiments.markdown import measured, one_core, table
from experiments.record import RESULTS, versions, write_result
from experiments.sharing.bench import PRIOR, arguments, bench_of
from experiments.sharing.train_network import load_start, start_path
from pocketbayes.artifact.codec import choose_step, layer_of
from pocketbayes.artifact.context import (
    CONTEXTS,
    columns_of,
    contexts,
    levels_at,
    levels_of,
    predictions,
    slabs,
)
from pocketbayes.posterior.weights import stochastic_weights

RESULT = RESULTS / "uncertainty/aligned.json"
LAMBDAS = (1.0, 4.0)
TEMPERATURE = 0.015
BATCHES = 20  # for the Fisher information
TABLE_BITS = 6.0  # of a symbol in a frequency table, about


def permuted(net: nn.Module, reference: nn.Module) -> tuple[nn.Module, pb.structure.Alignment]:
    """The network with its neurons in the order that matches the reference."""
    graph, state = pb.structure.neuron_graph(net), dict(net.state_dict())
    found = pb.structure.align(graph, state, dict(reference.state_dict()))
    twin = pb.nets.resnet20()
    twin.load_state_dict(pb.structure.permute_weights(graph, state, found.permutation))
    return twin.to(memory_format=torch.channels_last).eval(), found


# --- bits ---------------------------------------------------------------------------------------------------------


def bits_of(labels: NDArray[Any], groups: NDArray[Any], symbols: int) -> float:
    """Labels [n] by the frequencies of their groups [n], with what the tables take."""
    counts = np.zeros((int(groups.max()) + 1, symbols))
    np.add.at(counts, (groups, labels), 1)
    total = np.maximum(counts.sum(1, keepdims=True), 1)
    shannon = -(counts * np.log2(np.where(counts > 0, counts, total) / total)).sum()
    return float(shannon + TABLE_BITS * (counts > 0).sum())


def layer_bits(
    own: NDArray[Any], first: NDArray[Any], shape: tuple[int, ...], levels: NDArray[Any]
) -> dict[str, float]:
    """Of the second network's labels, alone and given those of the first."""
    layer, symbols = layer_of(shape, own.size), len(levels)
    step = choose_step(own, layer, levels)[0]
    if step:
        columns = columns_of(own, layer.kernel)
        means, known = levels_at(columns, levels), levels_at(columns_of(first, layer.kernel), levels)
        parts = [
            (columns[s.cells].reshape(-1), contexts(predictions(means, s), step), known[s.cells].reshape(-1))
            for s in slabs(layer.kernel)
        ]
        labels, context, there = (np.concatenate(each) for each in zip(*parts, strict=True))
    else:
        labels, context, there = own, np.zeros(own.size, np.int64), levels[first]
    beside = contexts(there.astype(np.int16), max(1, int(np.abs(there.astype(np.int64)).mean() / 2)))
    alone = bits_of(labels, context.astype(np.int64), symbols)
    given = bits_of(labels, CONTEXTS * context.astype(np.int64) + beside, symbols)
    return {"alone": alone, "given": min(alone, given)}


class Narrow(NamedTuple):
    """A network and the sigmas of its posterior."""

    net: nn.Module
    sigma: dict[str, Tensor]

    def bayesian(self) -> nn.Module:
        net: nn.Module = copy.deepcopy(self.net)
        return pb.bayesianize(net, prior=pb.ZeroMean(PRIOR), sigma=self.sigma)


def measure(first: Narrow, second: Narrow, lambda_: float) -> dict[str, Any]:
    """Bits a weight of the second network, both shared together."""
    nets = [first.bayesian(), second.bayesian()]
    model = pb.Modes(nets)
    report = pb.share(model, pb.Rate(lambda_=lambda_))
    layers = [stochastic_weights(net) for net in nets]
    codebook: Any = layers[0][0].weight.codebook  # type: ignore[attr-defined]
    levels = levels_of(codebook.values().mu.detach().cpu().numpy())
    total = {"alone": 0.0, "given": 0.0}
    for one, other in zip(*layers, strict=True):
        a, b = (site.weight.labels.cpu().numpy().reshape(-1).astype(np.int64) for site in (one, other))  # type: ignore[attr-defined]
        for name, bits in layer_bits(b, a, tuple(other.shape), levels).items():
            total[name] += bits
    count = sum(site.moments.mu.numel() for site in layers[1])
    return {name: round(bits / count, 4) for name, bits in total.items()} | {"components": report.components}


def main() -> None:
    args = arguments(__doc__).parse_args()
    torch.set_num_threads(args.threads)
    bench, started = bench_of(args), time.process_time()

    def narrow(net: nn.Module) -> Narrow:
        fisher = pb.fisher_information(net, bench.training(), batches=BATCHES, seed=0, progress=False)
        return Narrow(net, pb.laplace_sigma(net, fisher, bench.images, prior=PRIOR, temperature=TEMPERATURE))

    paths = [start_path(bench.network.parent, "cifar10", seed) for seed in (0, 1)]
    first, second = (load_start(path, 3).eval() for path in paths)
    moved, found = permuted(second, first)
    x = bench.held_out().inputs(slice(0, 100))
    with torch.no_grad():
        change = float((moved(x) - second(x)).abs().max())
    reference, others = narrow(first), {"as trained": narrow(second), "aligned": narrow(moved)}
    rows = [
        {"lambda": lambda_, "second": name, **measure(reference, other, lambda_)}
        for lambda_ in LAMBDAS
        for name, other in others.items()
    ]
    result = {
        "command": "python -m experiments.uncertainty.aligned --data DIR",
        "likeness": {"as trained": round(found.before, 4), "aligned": round(found.after, 4)},
        "change": change,
        "rows": rows,
        "seconds": round(time.process_time() - started),
        "versions": versions(),
    }
    write_result(RESULT, result)


# --- the page -----------------------------------------------------------------------------------------------------


def saved(row: dict[str, Any]) -> float:
    """The fraction of the bits that knowing the first network saves."""
    return float(1 - row["given"] / row["alone"])


def headline(result: dict[str, Any]) -> str:
    """For RESULTS.md."""
    best = max(saved(row) for row in result["rows"] if row["second"] == "aligned")
    return f"labels of a second mode given those of an aligned first take {best:.2%} fewer bits."


def section(result: dict[str, Any]) -> str:
    """This experiment's part of its page."""
    rows = (
        (
            f"{row['lambda']:g}",
            row["second"],
            f"{row['alone']:.3f}",
            f"{row['given']:.3f}",
            f"{saved(row):.2%}",
        )
        for row in result["rows"]
    )
    like = result["likeness"]
    bound = -0.5 * math.log2(1 - like["aligned"] ** 2)
    return f"""## Aligned modes

{measured(result, "seed 0", one_core(result["seconds"]))}

Two ResNet-20 trained apart, in one posterior with one codebook. Bits a weight for the labels of the second: by the contexts of the file
format alone, and by these together with the level of the first network's weight at the same place; a layer takes what is less,
frequency tables included. Aligned, the second network's neurons are permuted to match those of the first: the mean cosine of their
layers rises from {like["as trained"]:.3f} to {like["aligned"]:.3f}, its outputs change by at most {result["change"]:.0e}. Were the
weights normal, a correlation of {like["aligned"]:.2f} would be worth {bound:.2f} bits each, -1/2 log2(1 - c^2), and the tables that tell
it cost as much: modes are coded on their own.

{table("| lambda | second network | alone | given the first | saved |", rows)}
"""


if __name__ == "__main__":
    main()
