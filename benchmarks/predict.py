"""Prediction with 30 draws against 30 passes of the plain network, beside bayesian-torch; the limit is below 1.

And one pass through the means against one plain pass; the limit is 1.1.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import pocketbayes as pb
from benchmarks import peers
from benchmarks.timing import compare, milliseconds, ratio, seconds
from pocketbayes import nets
from pocketbayes.prediction.ensemble import Ensemble

SAMPLES = 30
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "ResNet-20, batch 1": (nets.resnet20, (1, 3, 32, 32), 10),
    "ResNet-20, batch 128": (nets.resnet20, (128, 3, 32, 32), 1),
    "MLP 784-512-512-10, batch 1": (lambda: nets.mlp([784, 512, 512, 10]), (1, 784), 20),
    "MLP 784-512-512-10, batch 128": (lambda: nets.mlp([784, 512, 512, 10]), (128, 784), 10),
}


@torch.no_grad()
def run() -> None:
    table = Table(
        "network", "predictor", "ms", "to 30 plain passes", "drawing alone", title="30 draws of a prediction"
    )
    single = Table("network", "ms", "to one plain pass", title="One pass through the means")
    for name, (build, shape, repeat) in CASES.items():
        x = torch.randn(shape)
        plain = build().eval()
        ensemble = Ensemble(pb.bayesianize(build()).eval(), samples=SAMPLES)
        drawing = seconds(lambda e=ensemble: [e._weights(s) for s in range(SAMPLES)])
        list(ensemble.outputs(x))
        predictors = {
            "30 plain passes": lambda p=plain, x=x: [p(x) for _ in range(SAMPLES)],
            "pocketbayes, draws at hand": lambda e=ensemble, x=x: list(e.outputs(x)),
        }
        try:
            peer = peers.bayesian_torch(build()).eval()
            predictors["bayesian-torch 0.5.0"] = lambda p=peer, x=x: [p(x) for _ in range(SAMPLES)]
        except ImportError:
            pass
        means = Ensemble(pb.bayesianize(build()).eval(), samples="mean")
        once = {
            "one plain pass": lambda p=plain, x=x: p(x),
            "pocketbayes, the means": lambda e=means, x=x: list(e.outputs(x)),
        }
        often = 30 * repeat
        one_pass = compare({k: (lambda f=f, r=often: [f() for _ in range(r)]) for k, f in once.items()}, 9)
        spent, to_plain = (
            milliseconds(one_pass, "pocketbayes, the means") / often,
            ratio(one_pass, *reversed(once)),
        )
        single.add_row(name, f"{spent:.2f}", f"{to_plain:.2f}")
        rounds = 5 if repeat == 1 else 9
        times = compare(
            {k: (lambda f=f, r=repeat: [f() for _ in range(r)]) for k, f in predictors.items()}, rounds
        )
        for who in predictors:
            shown = f"{1e3 * drawing:.0f} ms, once" if who.startswith("pocketbayes") else ""
            spent = milliseconds(times, who) / repeat
            table.add_row(name, who, f"{spent:.0f}", f"{ratio(times, who, '30 plain passes'):.2f}", shown)
    Console().print(single)
    Console().print(table)
