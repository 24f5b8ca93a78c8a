"""Symmetry-breaking schemes on ResNet-20 and CIFAR-10, from trained weights and a short training.

    python -m experiments.structure_resnet20 --data DIR --weights cifar10_resnet20.safetensors

Channels that a residual stream ties move together, and a fixed entry is a whole kernel.  The prior is zero-mean, since
one around the trained weights would break the symmetry by itself.  One pass over a part of the training images under a
cold posterior; nothing is chosen by looking at results.  Writes structure_resnet20.json; parts are kept under --work.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import pocketbayes as pb
from experiments.given import given_images, given_network
from experiments.record import kept, listed, versions, write_result
from experiments.structure_plans import scheme_of
from pocketbayes.data import DataSet, crop_flip, hold_out
from pocketbayes.structure import MAP, Zero, neuron_graph, residual_symmetry

RESULT = Path(__file__).with_suffix(".json")
SCHEMES = ("vanilla", "light, 0", "light, MAP", "heavy, 0", "heavy, MAP", "random as light, 0")
SEED = 0
BATCH, LR, RHO_LR, BETA = 128, 1e-3, 1e-2, 0.05
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
        temperature=BETA,
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


def section(result: dict[str, Any]) -> str:
    """This experiment's part of RESULTS.md."""
    rows, start = result["rows"], result["start"]
    lines = [
        "| scheme | fixed kernels' weights | log10 permutations | accuracy | NLL | ECE | KL (nats) |",
        "|---|---|---|---|---|---|---|",
        f"| given weights, deterministic | 0 | | {start['accuracy']:.4f} | {start['nll']:.3f} | {start['ece']:.3f} | |",
    ]
    lines += [
        f"| {name} | {row['fixed']:,} | {row['permutations']:.2f} | {row['accuracy']:.4f} | {row['nll']:.3f} "
        f"| {row['ece']:.3f} | {row['kl']:,} |"
        for name, row in rows.items()
    ]
    plain = rows["vanilla"]
    error = (plain["accuracy"] * (1 - plain["accuracy"]) / result["images"]) ** 0.5
    gaps = "; ".join(
        f"“{name}” {row['accuracy'] - plain['accuracy']:+.4f} and {row['nll'] - plain['nll']:+.3f}"
        for name, row in rows.items()
        if name != "vanilla"
    )
    far = [
        name for name, row in rows.items() if abs(row["accuracy"] - plain["accuracy"]) > 2 * 2**0.5 * error
    ]
    return f"""## Structured partial stochasticity on ResNet-20

`{result["command"]}`, seed {SEED}, {result["seconds"] / 60:.0f} minutes of one core, torch {result["versions"]["torch"]}.

CIFAR-10 from the given weights: {result["steps"]} steps of {BATCH} images at beta = {BETA}, prior N(0, {PRIOR.sigma}^2), one seed; {SAMPLES} draws on
{result["images"]:,} test images, on which an accuracy has a standard error of {error:.4f}. So short a training tells what a scheme costs a trained
network, not which posterior would be best in the end.

{chr(10).join(lines)}

The symmetry goes as computed: from 10^{plain["permutations"]:.2f} permutations to 10^{rows["light, 0"]["permutations"]:.2f} with light zeros and 10^{rows["heavy, 0"]["permutations"]:.2f} with heavy ones.
Accuracy and NLL minus vanilla's: {gaps}. Away from vanilla's accuracy by more than two standard errors: {listed(far)}.
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default=None, help="folder of the data sets (or POCKETBAYES_DATA)"
    )
    parser.add_argument("--weights", type=Path, required=True, help="safetensors of the trained network")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--images", type=int, default=2000, help="of the test set")
    parser.add_argument("--work", type=Path, default=Path("runs/structure_resnet20"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.work.mkdir(parents=True, exist_ok=True)
    material = Material(options.data, options.weights, options.steps, options.images)
    parts = {name: kept(options.work / f"{name}.json", partial(run, material, name)) for name in SCHEMES}
    start = pb.evaluate(material.network(), material.test.batches(250))
    result = {
        "command": "python -m experiments.structure_resnet20 --data DIR --weights cifar10_resnet20.safetensors",
        "rows": {name: part["value"] for name, part in parts.items()},
        "start": {metric: round(float(start[metric]), 5) for metric in METRICS},
        "steps": options.steps,
        "images": options.images,
        "seed": SEED,
        "seconds": sum(part["seconds"] for part in parts.values()),
        "versions": versions(),
    }
    write_result(RESULT, result)
    print(section(result))


if __name__ == "__main__":
    main()
