"""ResNet-20 on CIFAR-10 from trained weights into a pocket file of at most so many bytes, by rate and distortion.

    python -m experiments.resnet20_rate --data DIR --weights cifar10_resnet20.safetensors --max-bytes 110000

Validation data are held out of the training set; the test set is used once, on the file loaded back from disk.
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
from pocketbayes import data, nets
from pocketbayes.data import Scaling, crop_flip, hold_out

RESULT = Path(__file__).with_suffix(".json")
IMAGENET = Scaling(torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225]), 255.0)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=None, help="folder of the data sets (or POCKETBAYES_DATA)")
    parser.add_argument("--weights", required=True, help="safetensors of the trained network")
    parser.add_argument("--max-bytes", type=int, default=110_000)
    parser.add_argument("--epochs", type=int, default=3, help="of alternating training; one more settles")
    parser.add_argument("--settling-epochs", type=int, default=1)
    parser.add_argument("--temperature", type=float, default=0.05)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder for checkpoints and the file")
    parser.add_argument("--out", type=Path, default=RESULT)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    if args.threads:
        torch.set_num_threads(args.threads)
    started = time.time()
    train, validation = hold_out(data.load("cifar10", args.data, scaling=IMAGENET), 0.1, args.seed)
    network = nets.resnet20().to(memory_format=torch.channels_last)
    network.load_state_dict(load_file(args.weights))
    name = f"resnet20-{args.max_bytes}-{args.seed}"
    args.runs.mkdir(parents=True, exist_ok=True)
    plan = pb.Plan(
        temperature=args.temperature,
        prior=0.2,
        epochs=args.epochs,
        settling_epochs=args.settling_epochs,
        lr=args.lr,
        seed=args.seed,
    )
    report = pb.compress(
        network,
        train.batches(128, shuffle=True, augment=crop_flip),
        path=args.runs / f"{name}.pocket",
        validation_loader=validation.batches(250),
        max_bytes=args.max_bytes,
        plan=plan,
        checkpoints=args.runs / f"{name}-checkpoints",
    )
    print(report, flush=True)
    compressed = time.time() - started
    test = data.load("cifar10", args.data, "test", scaling=IMAGENET)
    loaded = pb.load(args.runs / f"{name}.pocket", nets.resnet20())
    metrics = pb.evaluate(loaded, test.batches(250), samples=30, seed=args.seed)
    print("test, 30 draws, loaded from disk:", metrics, flush=True)
    result = {
        "command": f"python -m experiments.resnet20_rate --data DIR --weights cifar10_resnet20.safetensors "
        f"--max-bytes {args.max_bytes} --epochs {args.epochs} --temperature {args.temperature} --seed {args.seed}",
        "bytes": report.bytes,
        "sections": report.saved.sections,
        "bits_a_label": report.sharing.bits_per_weight,
        "components": report.sharing.components,
        "outliers": report.sharing.outliers,
        "trainable": report.sharing.trainable,
        "stages": [stage._asdict() for stage in report.stages],
        "test": dict(metrics),
        "seconds": {"compress": round(compressed), "all": round(time.time() - started)},
        "seed": args.seed,
        "versions": {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "threads": torch.get_num_threads(),
        },
    }
    write_result(args.out, result)


def section(result: dict[str, Any]) -> str:
    """This experiment's part of RESULTS.md."""
    t, v = result["test"], result["versions"]
    lines = [
        "## ResNet-20 on CIFAR-10 from trained weights, by rate and distortion",
        "",
        f"`{result['command']}`, seed {result['seed']}, {result['seconds']['all']} s on {v['threads']} core(s) of a shared "
        f"two-core x86 machine, torch {v['torch']}. The start has 91.73 % / 0.373 / 0.053 in 1.08 MB. Validation metrics after "
        "each stage are on images that the given weights were trained on, so they flatter the start. The run predates two changes of `compress` "
        "(bisection of lambda when settling; the best settled epoch is kept), so the command gives other last digits today.",
        "",
        "| file (bytes) | bits a label | components | outliers | test accuracy | NLL | ECE |",
        "|---|---|---|---|---|---|---|",
        f"| {result['bytes']:,} | {result['bits_a_label']:.2f} | {result['components']} | {result['outliers']} | {t['accuracy']:.4f} "
        f"| {t['nll']:.4f} | {t['ece']:.4f} |",
        "",
        "Bytes by section: " + ", ".join(f"{k} {n:,}" for k, n in result["sections"].items()) + ".",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
