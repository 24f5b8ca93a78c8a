"""CIFAR-10 ResNets of depth 20 to 56, trained by others: bytes against accuracy, without training and after a short one.

    python -m experiments.real.cifar --data DIR --weights DIR

The second DIR holds cifar10_resnet20.safetensors and those of depth 32, 44 and 56.  Each is compressed at its defaults, by
`epochs=0` on 300 training images without labels and by training on 5,000 with labels, beside two plain ways to round in
as many bytes, their norms' statistics taken anew on the same 300 images.  All are tested once on the 10,000 test
images.  Rows are kept in --rows and made where they are missing.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import pocketbayes as pb
from experiments.given import given_images
from experiments.markdown import cost, measured, table
from experiments.real.rivals import ROUNDINGS, rival
from experiments.real.scores import logits_of, percent, scores
from experiments.record import RESULTS, command_line, kept, versions, write_result
from pocketbayes import nets
from pocketbayes.data.batches import DataSet

RESULT = RESULTS / "real/cifar.json"
COMMAND = "python -m experiments.real.cifar --data DIR --weights DIR"
DEPTHS, FRACTIONS = (20, 32, 44, 56), (0.1, 0.07)
FEW, BATCH, SHORT, TEST_BATCH = 300, 20, 5000, 250
OURS = {"untrained": pb.Plan(epochs=0), "trained": pb.Plan()}
WORDS = {
    "start": "as it came, fp32",
    "untrained": "`compress`, `epochs=0`",
    "trained": "`compress`, 5,000 images",
    "palette": "k-means palette by layer",
    "uniform": "rounding, one step a channel",
}


class Row(NamedTuple):
    """A network, a way to compress it, and the fraction of its bytes."""

    depth: int
    method: str
    fraction: float = 1.0

    @property
    def name(self) -> str:
        return f"{self.depth}-{self.method}-{self.fraction:g}"


def rows() -> Iterator[Row]:
    """All of one network before the next; training, which takes longest, at the end."""
    for late in (False, True):
        for depth in DEPTHS:
            if not late:
                yield Row(depth, "start")
            methods = ("trained",) if late else ("untrained", *ROUNDINGS)
            yield from (Row(depth, method, part) for method in methods for part in FRACTIONS)


def arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--data", default=None, help="folder of the data sets (or POCKETBAYES_DATA)")
    parser.add_argument("--weights", type=Path, required=True, help="folder of the networks")
    parser.add_argument("--rows", type=Path, default=RESULTS / "real/rows/cifar", help="finished rows")
    return parser.parse_args()


def network(depth: int, folder: Path) -> nn.Module:
    found = nets.by_name(f"resnet{depth}")().to(memory_format=torch.channels_last)
    found.load_state_dict(load_file(folder / f"cifar10_resnet{depth}.safetensors"))
    return found.eval()


def fp32_bytes(model: nn.Module) -> int:
    return 4 * sum(p.numel() for p in model.parameters())


def few(train: DataSet) -> list[tuple[Tensor]]:
    """Inputs without labels."""
    return [(x,) for x in train.inputs(slice(0, FEW)).split(BATCH)]


def made(row: Row, weights: Path, train: DataSet, test: DataSet) -> dict[str, Any]:
    """One row, tested."""
    model, facts = network(row.depth, weights), dict[str, Any](bytes=0)
    budget = int(row.fraction * fp32_bytes(model))
    if row.method in ROUNDINGS:
        model, facts["bytes"] = rival(model, row.method, budget, few(train))
    elif row.method in OURS:
        plan = OURS[row.method]
        labelled = train.subset(slice(0, SHORT)).batches(100, shuffle=True)
        with tempfile.TemporaryDirectory() as work:
            facts["bytes"] = pb.compress(
                network(row.depth, weights),
                few(train) if plan.epochs == 0 else labelled,
                path=f"{work}/net.pocket",
                max_bytes=budget,
                plan=plan,
                progress=False,
            ).bytes
            pb.load(f"{work}/net.pocket", model)
    else:
        facts["bytes"] = fp32_bytes(model)
    return facts | scores(logits_of(model, test.inputs().split(TEST_BATCH)), test.targets())


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    train, test = given_images(args.data), given_images(args.data, "test")
    found = {
        row.name: kept(args.rows / f"{row.name}.json", lambda row=row: made(row, args.weights, train, test))
        for row in rows()
    }
    result = {
        "rows": {name: part["value"] for name, part in found.items()},
        "seconds": sum(part["seconds"] for part in found.values()),
        "versions": versions(),
        "command": COMMAND,
    }
    write_result(RESULT, result)


# --- the page ----------------------------------------------------------------------------------------------------


def section(result: dict[str, Any]) -> str:
    lines = [
        (
            f"ResNet-{depth}, {WORDS[method]}",
            f"{of['bytes']:,}",
            percent(of),
            f"{of['nll']:.4f}",
            f"{of['calibrated_nll']:.4f}",
        )
        for depth in DEPTHS
        for fraction in (1.0, *FRACTIONS)
        for method in WORDS
        if (of := result["rows"].get(Row(depth, method, fraction).name))
    ]
    return "\n\n".join(
        [
            "## CIFAR-10 ResNets, without training and after a short one",
            measured(result, cost([result["seconds"]])),
            f"Networks trained by others. `epochs=0` saw {FEW} training images without labels, in the same way as the rivals' "
            f"norms; the short training is `compress` at its defaults on {SHORT:,} labelled training images. One pass "
            "through the means, 10,000 test images. Calibrated: logits divided by a temperature that every fourth image "
            "chose, scored on the rest. The rivals round the same weights, are entropy-coded the same way and have their "
            "other numbers in 16 bits.",
            table("| | bytes | accuracy, % | NLL | calibrated NLL |", lines),
        ]
    )


def headline(result: dict[str, Any]) -> str:
    found, least = result["rows"], FRACTIONS[-1]
    told = [
        f"ResNet-{depth} {percent(found[Row(depth, 'untrained', least).name])} % (rounding "
        f"{max(percent(found[Row(depth, rounding, least).name]) for rounding in ROUNDINGS)} %)"
        for depth in DEPTHS
    ]
    return f"at {100 * least:g} % of fp32 without training: {', '.join(told)}."


if __name__ == "__main__":
    main()
