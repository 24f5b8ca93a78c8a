"""Six networks of different kinds through `compress` with nothing but a size.

    python -m experiments.real.defaults --data DIR --uci DIR --weights DIR

To a quarter and to a tenth of fp32.  What is told is what `compress` reports: the quality on validation data before and
after, by draws, and the noise cost that the Fisher information predicted beside the one measured.  The last DIR
holds the CIFAR-10 ResNets; as they were trained on all training images, validation images are the first 4,000 of
the test set.  The other networks are trained here first.  Rows are kept in --rows and made where they are missing.
"""

from __future__ import annotations

import argparse
import copy
import re
import tempfile
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import pocketbayes as pb
from experiments.given import given_images
from experiments.markdown import cost, measured, table
from experiments.real.cifar import fp32_bytes, network
from experiments.real.vit import ViT
from experiments.record import RESULTS, command_line, kept, versions, write_result
from experiments.sharing.tabular_study import load_table
from pocketbayes import data, nets
from pocketbayes.data.batches import DataSet
from pocketbayes.likelihood import Homoscedastic, Likelihood
from pocketbayes.runs import randomness

RESULT = RESULTS / "real/defaults.json"
COMMAND = "python -m experiments.real.defaults --data DIR --uci DIR --weights DIR"
FRACTIONS = {0.25: (0.005, 0.01), 0.1: (0.015, 0.03)}  # accuracy and nats that may be lost
BATCH, HELD_OUT, RESNET_IMAGES = 100, 4000, 10_000
NOTE = re.compile(r"noise costs (\S+) ± \S+ nats, predicted (\S+)")


class Case(NamedTuple):
    """A trained network and its data."""

    model: nn.Module
    train: Iterable[Any]
    validation: Iterable[Any]
    likelihood: Likelihood | None = None


def trained(
    make: Callable[[], nn.Module],
    train: Iterable[Any],
    validation: Iterable[Any],
    epochs: int,
    **options: Any,
) -> Case:
    """By Adam, ending as it was after its best epoch."""
    with randomness.forked(0):
        model = make()
    pb.fit_map(model, train, epochs=epochs, validation=validation, progress=False, **options)
    return Case(model, train, validation)


def parted(whole: DataSet, held_out: int, augment: Callable[[Tensor], Tensor] | None = None) -> list[Any]:
    """Batches to train on and to validate on."""
    last = slice(len(whole) - held_out, None)
    rest = whole.subset(slice(0, len(whole) - held_out)).batches(BATCH, shuffle=True, augment=augment)
    return [rest, whole.subset(last).batches(4 * BATCH)]


def digits(args: argparse.Namespace) -> Case:
    return trained(nets.digits_net, *parted(data.load("digits"), 400), epochs=40)


def fashion(args: argparse.Namespace) -> Case:
    return trained(nets.lenet, *parted(data.load("fashion-mnist", args.data), 10_000), epochs=8)


def regression(args: argparse.Namespace) -> Case:
    table = load_table(args.uci, "kin8nm", 0)
    likelihood = Homoscedastic()
    make = partial(nets.mlp, [8, 100, 100, 1])
    case = trained(make, table.train, table.validation, epochs=100, likelihood=likelihood)
    return case._replace(likelihood=Homoscedastic())


def transformer(args: argparse.Namespace) -> Case:
    return trained(ViT, *parted(given_images(args.data), 5000), epochs=6)


def resnet(args: argparse.Namespace, depth: int) -> Case:
    train, held_out = given_images(args.data), given_images(args.data, "test")
    few = train.subset(slice(0, RESNET_IMAGES)).batches(BATCH, shuffle=True)
    return Case(network(depth, args.weights), few, held_out.subset(slice(0, HELD_OUT)).batches(4 * BATCH))


CASES: dict[str, Callable[[argparse.Namespace], Case]] = {
    "digits net": digits,
    "MLP, regression (kin8nm)": regression,
    "LeNet, Fashion-MNIST": fashion,
    "ResNet-20, CIFAR-10": partial(resnet, depth=20),
    "ViT, CIFAR-10": transformer,
    "ResNet-56, CIFAR-10": partial(resnet, depth=56),
}


def arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--data", default=None, help="folder of the data sets (or POCKETBAYES_DATA)")
    parser.add_argument("--uci", type=Path, required=True, help="folder with kin8nm.npz")
    parser.add_argument("--weights", type=Path, required=True, help="folder of the CIFAR-10 ResNets")
    parser.add_argument("--rows", type=Path, default=RESULTS / "real/rows/defaults", help="finished rows")
    return parser.parse_args()


def row(case: Case, fraction: float) -> dict[str, Any]:
    """What `compress` reports of one network at one size."""
    with tempfile.TemporaryDirectory() as work:
        report = pb.compress(
            copy.deepcopy(case.model),
            case.train,
            path=f"{work}/net.pocket",
            validation_loader=case.validation,
            max_bytes=int(fraction * fp32_bytes(case.model)),
            likelihood=copy.deepcopy(case.likelihood),
            progress=False,
        )
    before, posterior, after = report.stages[0], report.stages[1], report.stages[-2]
    costs = NOTE.search(posterior.note)
    assert costs, posterior.note
    return {
        "bytes": report.bytes,
        "before": before.metrics,
        "after": after.metrics,
        "noise_cost": {"measured": float(costs[1]), "predicted": float(costs[2])},
        "stages": list(map(str, report.stages)),
    }


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    found = {}
    for name, make in CASES.items():
        case = cache(partial(make, args))  # trained where a row is missing
        stem = re.sub(r"\W+", "-", name.lower()).strip("-")
        found[name] = {
            f"{fraction:g}": kept(
                args.rows / f"{stem}-{fraction:g}.json",
                lambda case=case, fraction=fraction: row(case(), fraction),
            )
            for fraction in FRACTIONS
        }
    result = {
        "rows": {name: {f: part["value"] for f, part in parts.items()} for name, parts in found.items()},
        "seconds": sum(part["seconds"] for parts in found.values() for part in parts.values()),
        "versions": versions(),
        "command": COMMAND,
    }
    write_result(RESULT, result)


# --- the page ----------------------------------------------------------------------------------------------------


def lost(of: dict[str, Any]) -> tuple[str, float]:
    """The measure of quality, and how much of it went."""
    if "accuracy" in of["before"]:
        return "accuracy", of["before"]["accuracy"] - of["after"]["accuracy"]
    return "nll", of["after"]["nll"] - of["before"]["nll"]


def holds(of: dict[str, Any], fraction: float) -> bool:
    """Whether no more was lost than may be."""
    what, loss = lost(of)
    return loss <= FRACTIONS[fraction][what == "nll"]


def section(result: dict[str, Any]) -> str:
    lines = [
        (
            name,
            f"{100 * fraction:g} %",
            f"{of['bytes']:,}",
            *(f"{of[when][what]:.4f}" for when in ("before", "after")),
            f"{100 * loss:+.2f} points" if what == "accuracy" else f"{loss:+.4f} nats",
            "yes" if holds(of, fraction) else "no",
            f"{of['noise_cost']['predicted']:.3g}",
            f"{of['noise_cost']['measured']:.3g}",
        )
        for name, parts in result["rows"].items()
        for fraction in FRACTIONS
        for of in [parts[f"{fraction:g}"]]
        for what, loss in [lost(of)]
    ]
    allowed = " and ".join(
        f"{100 * points:g} points or {nats:g} nats at {100 * fraction:g} %"
        for fraction, (points, nats) in FRACTIONS.items()
    )
    return "\n\n".join(
        [
            "## Six networks with no setting but the size",
            measured(result, cost([result["seconds"]])),
            f"`compress` with a size, training and validation data, and nothing else. Quality is that of validation data "
            f"by 8 draws: accuracy, or NLL of a regression in nats of standardised targets. At most {allowed} may be lost. "
            "The noise cost is that of the posterior before sharing: predicted from the Fisher information, and measured.",
            table(
                "| | of fp32 | bytes | before | after | lost | holds | predicted noise cost, nats | measured |",
                lines,
            ),
        ]
    )


def headline(result: dict[str, Any]) -> str:
    kept_ = [holds(of, float(f)) for parts in result["rows"].values() for f, of in parts.items()]
    return f"{sum(kept_)} of {len(kept_)} files keep their quality."


if __name__ == "__main__":
    main()
