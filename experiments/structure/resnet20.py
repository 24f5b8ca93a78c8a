"""Symmetry-breaking schemes on ResNet-20 and CIFAR-10, from trained weights and a short training.

    python -m experiments.structure.resnet20 --data DIR --weights cifar10_resnet20.safetensors

Channels that a residual stream ties move together, and a fixed entry is a whole kernel.  The prior is zero-mean, since
one around the trained weights would break the symmetry by itself.  One pass over a part of the training images under a
cold posterior; nothing is chosen by looking at results.  Parts are kept under --work.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import pocketbayes as pb
from experiments.given import given_images, given_network
from experiments.markdown import listed, measured, table
from experiments.record import RESULTS, command_line, kept, versions, write_result
from experiments.structure.schemes import scheme_of
from pocketbayes.data import DataSet, crop_flip, hold_out
from pocketbayes.structure import MAP, Zero, neuron_graph, residual_symmetry

RESULT = RESULTS / "structure/resnet20.json"
SCHEMES = ("vanilla", "light, 0", "light, MAP", "heavy, 0", "heavy, MAP", "random as light, 0")
SEED = 0
BATCH, LR, RHO_LR, TEMPERATURE = 128, 1e-3, 1e-2, 0.05
SAMPLES = 5
PRIOR = pb.ZeroMean(0.2)
METRICS = ("accuracy", "nll", "ece")


class Material:
    """The trained network, images to train on, and test images."""

    def __init__(self, folder: Path | None, weights: Path, steps: int, images: int) -> None:
        whole, tested = given_images(folder), given_images(folder, "test")
        self.num_data = len(whole)
        self.train = part_of(whole, steps * BATCH)
        self.test = part_of(tested, images)
        self.weights = weights

    def network(self) -> nn.Module:
        return given_network(self.weights)


def part_of(images: DataSet, count: int) -> DataSet:
    """So many images, all classes alike."""
    return hold_out(images, count / len(images), SEED)[1] if count < len(images) else images


def run(material: Material, name: str) -> dict[str, Any]:
    """One scheme: scores before training and after it."""
    model = pb.bayesianize(material.network(), prior=PRIOR)
    if name == "vanilla":
        left = residual_symmetry(neuron_graph(material.network())).log10_permutations
        row: dict[str, Any] = {"fixed": 0, "permutations": left}
    else:
        report = pb.break_symmetry(model, scheme_of(name, SEED), MAP() if name.endswith("MAP") else Zero())
        row = {"fixed": report.count, "permutations": report.after.log10_permutations}
    history = pb.fit(
        model,
        material.train.batches(BATCH, shuffle=True, augment=crop_flip),
        epochs=1,
        num_data=material.num_data,
        lr=LR,
        rho_lr=RHO_LR,
        temperature=TEMPERATURE,
        anneal=0.0,
        seed=SEED,
        progress=False,
    )
    found = pb.evaluate(model, material.test.batches(250), samples=SAMPLES, seed=SEED)
    return {
        **row,
        "train_nll": round(history[-1].nll, 4),
        "kl": round(history[-1].kl),
        **{metric: round(float(found[metric]), 5) for metric in METRICS},
    }


def scored(row: dict[str, Any]) -> tuple[str, str, str]:
    return f"{row['accuracy']:.4f}", f"{row['nll']:.3f}", f"{row['ece']:.3f}"


def gaps(rows: dict[str, Any]) -> str:
    """Accuracy and NLL minus vanilla's."""
    plain = rows["vanilla"]
    return "; ".join(
        f"“{name}” {row['accuracy'] - plain['accuracy']:+.4f} and {row['nll'] - plain['nll']:+.3f}"
        for name, row in rows.items()
        if name != "vanilla"
    )


def headline(result: dict[str, Any]) -> str:
    """For RESULTS.md."""
    few = {name: result["rows"][name] for name in ("vanilla", "light, 0", "heavy, 0", "heavy, MAP")}
    return f"accuracy and NLL minus vanilla's: {gaps(few)}."


def section(result: dict[str, Any]) -> str:
    """This experiment's part of its page."""
    rows, start = result["rows"], result["start"]
    plain = rows["vanilla"]
    cells = [("given weights, deterministic", 0, "", *scored(start), "")]
    cells += [
        (name, f"{row['fixed']:,}", f"{row['permutations']:.2f}", *scored(row), f"{row['kl']:,}")
        for name, row in rows.items()
    ]
    error = (plain["accuracy"] * (1 - plain["accuracy"]) / result["images"]) ** 0.5
    far = [
        name for name, row in rows.items() if abs(row["accuracy"] - plain["accuracy"]) > 2 * 2**0.5 * error
    ]
    return f"""## ResNet-20 on CIFAR-10

{measured(result, f"seed {SEED}", f"{result['seconds'] / 60:.0f} minutes of one core")}

CIFAR-10 from the given weights: {result["steps"]} steps of {BATCH} images at temperature {TEMPERATURE}, prior N(0, {PRIOR.sigma}^2), one seed; {SAMPLES} draws on
{result["images"]:,} test images, on which an accuracy has a standard error of {error:.4f}. So short a training tells what a scheme costs a
trained network, not which posterior would be best in the end.

{table("| scheme | fixed kernels' weights | log10 permutations | accuracy | NLL | ECE | KL (nats) |", cells)}

The symmetry goes as computed: from 10^{plain["permutations"]:.2f} permutations to 10^{rows["light, 0"]["permutations"]:.2f} with light zeros and 10^{rows["heavy, 0"]["permutations"]:.2f} with heavy ones.
Accuracy and NLL minus vanilla's: {gaps(rows)}. Away from vanilla's accuracy by more than two standard errors: {listed(far)}.
"""


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument(
        "--data", type=Path, default=None, help="folder of the data sets (or POCKETBAYES_DATA)"
    )
    parser.add_argument("--weights", type=Path, required=True, help="safetensors of the trained network")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--images", type=int, default=2000, help="of the test set")
    parser.add_argument("--work", type=Path, default=Path("runs/structure_resnet20"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.work.mkdir(parents=True, exist_ok=True)
    material = Material(args.data, args.weights, args.steps, args.images)
    parts = {name: kept(args.work / f"{name}.json", partial(run, material, name)) for name in SCHEMES}
    start = pb.evaluate(material.network(), material.test.batches(250))
    result = {
        "command": "python -m experiments.structure.resnet20 --data DIR --weights cifar10_resnet20.safetensors",
        "rows": {name: part["value"] for name, part in parts.items()},
        "start": {metric: round(float(start[metric]), 5) for metric in METRICS},
        "steps": args.steps,
        "images": args.images,
        "seed": SEED,
        "seconds": sum(part["seconds"] for part in parts.values()),
        "versions": versions(),
    }
    write_result(RESULT, result)


if __name__ == "__main__":
    main()
