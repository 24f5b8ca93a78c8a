"""ResNet-20 on CIFAR-10 from trained weights through the sharing paper's Algorithm 1, with its thresholds.

    python -m experiments.resnet20_paper --data DIR --weights cifar10_resnet20.safetensors

Stage 1 takes the widths of a diagonal Laplace posterior; stage 3 trains codebook, outliers, biases and norms.  The test
set is used once, on the file loaded back from disk.
"""

from __future__ import annotations

import argparse
import platform
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

import pocketbayes as pb
from experiments.record import write_result
from experiments.resnet20_rate import IMAGENET
from pocketbayes import data, nets
from pocketbayes.data import crop_flip, hold_out

RESULT = Path(__file__).with_suffix(".json")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=None, help="folder of the data sets (or POCKETBAYES_DATA)")
    parser.add_argument("--weights", required=True, help="safetensors of the trained network")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--temperature", type=float, default=0.02)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    return parser.parse_args()


def main() -> None:
    args = arguments()
    if args.threads:
        torch.set_num_threads(args.threads)
    started = time.time()
    train, validation = hold_out(data.load("cifar10", args.data, scaling=IMAGENET), 0.1, args.seed)
    loader = train.batches(128, shuffle=True, augment=crop_flip)
    network = nets.resnet20().to(memory_format=torch.channels_last)
    network.load_state_dict(load_file(args.weights))
    information = pb.sensitivity(network, loader, batches=100, seed=args.seed)
    sigma = pb.laplace_sigma(network, information, len(train), prior=0.2, temperature=args.temperature)
    pb.bayesianize(network, prior=pb.ZeroMean(0.2), sigma=sigma)
    shared_at = time.time()
    report = pb.share(network, pb.Paper(), sensitivity=information)
    sharing = time.time() - shared_at
    print(report, f"{sharing:.1f} s", flush=True)
    held_out = validation.batches(250)
    before = dict(pb.evaluate(network, held_out, samples=8, seed=args.seed))
    print("validation, shared:", before, flush=True)
    name = f"resnet20-paper-{args.seed}"
    args.runs.mkdir(parents=True, exist_ok=True)
    options = {"lr": args.lr, "rho_lr": args.lr, "beta": args.temperature, "anneal": 0.0, "seed": args.seed}
    pb.fit(network, loader, epochs=args.epochs, checkpoint=args.runs / f"{name}.safetensors", **options)
    after = dict(pb.evaluate(network, held_out, samples=8, seed=args.seed))
    print("validation, fine-tuned:", after, flush=True)
    saved = pb.save(network, args.runs / f"{name}.pocket")
    print(saved, flush=True)
    loaded = pb.load(args.runs / f"{name}.pocket", nets.resnet20())
    test = data.load("cifar10", args.data, "test", scaling=IMAGENET).batches(250)
    metrics = pb.evaluate(loaded, test, samples=30, seed=args.seed)
    print("test, 30 draws, loaded from disk:", metrics, flush=True)
    result = {
        "command": f"python -m experiments.resnet20_paper --data DIR --weights cifar10_resnet20.safetensors --epochs {args.epochs}",
        "bytes": saved.total,
        "sections": saved.sections,
        "components": report.components,
        "components_before_merging": report.components_before_merging,
        "outliers": report.outliers,
        "blends": report.blends,
        "bits_a_label": report.bits_per_weight,
        "trainable": report.trainable,
        "validation": {"shared": before, "fine-tuned": after},
        "test": dict(metrics),
        "epochs": args.epochs,
        "seconds": {"sharing": round(sharing, 1), "all": round(time.time() - started)},
        "seed": args.seed,
        "versions": {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "threads": torch.get_num_threads(),
        },
    }
    write_result(RESULT, result)


def section(result: dict[str, Any]) -> str:
    """This experiment's part of RESULTS.md."""
    t, v = result["test"], result["versions"]
    return f"""## ResNet-20 on CIFAR-10 from trained weights, by the paper's Algorithm 1

`{result["command"]}`, seed {result["seed"]}, {result["seconds"]["all"]} s ({result["seconds"]["sharing"]} s of it sharing) on {v["threads"]} core(s) of a shared two-core x86
machine, torch {v["torch"]}, {result["epochs"]} epoch(s) of fine-tuning. K = 6000, tau_w = 0.2, the 1 % most sensitive weights and clusters
under 20 as outliers, W2^2 threshold 1.5e-7. The paper's own row: 91.04 % / 0.303 / 0.037, 0.71 MB.

| file (bytes) | components (before merging) | outliers | blends | trainable scalars | test accuracy | NLL | ECE |
|---|---|---|---|---|---|---|---|
| {result["bytes"]:,} | {result["components"]} ({result["components_before_merging"]}) | {result["outliers"]:,} | {result["blends"]:,} | {result["trainable"]:,} | {t["accuracy"]:.4f} | {t["nll"]:.4f} | {t["ece"]:.4f} |
"""


if __name__ == "__main__":
    main()
