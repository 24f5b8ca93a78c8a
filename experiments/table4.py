"""Table 4 of the sharing paper: ResNet-20 on CIFAR-10 and MNIST, shared and quantised, with and without pretraining.

    python -m experiments.table4 --data DIR --set cifar10
    python -m experiments.table4 --data DIR --set mnist

With pretraining the posterior starts at the network of `experiments.train_network`; without, at random weights, and is
trained on the tempered ELBO alone.  INT8 keeps the same posterior number by number (`experiments.int8`).
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import pocketbayes as pb
from experiments.int8 import BITS, load_quantised, save_quantised
from experiments.record import summary, versions
from experiments.resnet20 import DRAWS, EPOCHS, METRICS, PRIOR, TEMPERATURE, Bench, Posterior, arguments
from experiments.table5 import SEEDS, paper_row
from pocketbayes.checkpoint import load_checkpoint, save_checkpoint
from pocketbayes.files import write_atomically

RESULT = Path(__file__).with_suffix(".json")
SCRATCH_EPOCHS = {"cifar10": 20, "mnist": 10}
PAPER = {
    "cifar10": {
        "shared, with pretraining": "91.04 / .303 / .037, 0.71 MB",
        "shared, without pretraining": "90.91 / .303 / .040, 1.62 MB",
        "INT8, sigma in 4 bits": "90.92 / .266 / .0178, 0.87 MB",
        "INT8, sigma in 2 bits": "90.85 / .273 / .0255, 0.72 MB",
        "INT8, sigma in 1 bits": "90.96 / .266 / .0071, 0.54 MB",
    },
    "mnist": {
        "shared, without pretraining": "99.52 / .013 / .001, 0.40 MB",
        "INT8, sigma in 4 bits": "99.36 / .020 / .0022, 0.10 MB",
        "INT8, sigma in 2 bits": "99.32 / .024 / .0028, 0.08 MB",
        "INT8, sigma in 1 bits": "99.34 / .027 / .0035, 0.06 MB",
    },
}  # its ECEs of INT8 are percentages


def from_scratch(bench: Bench) -> Posterior:
    """A posterior trained from random weights: Adam with a one-cycle schedule."""
    path = bench.work / "scratch.safetensors"
    torch.manual_seed(0)
    model = pb.bayesianize(bench.fresh(), prior=pb.ZeroMean(PRIOR))
    if path.exists():
        found = load_checkpoint(path)
        model.load_state_dict(found["model"])
        return Posterior(model, found["sensitivity"])
    bench.work.mkdir(parents=True, exist_ok=True)
    epochs = SCRATCH_EPOCHS[bench.name]
    steps = epochs * len(bench.training())
    bench.fit(
        model,
        "scratch",
        epochs,
        seed=0,
        anneal=0.3,
        schedule=lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(
            optimizer, [4e-3, 2e-2], total_steps=steps + 1, pct_start=0.25
        ),
    )
    sensitivity = pb.sensitivity(model, bench.training(), batches=100, seed=0)
    save_checkpoint(path, {"model": dict(model.state_dict()), "sensitivity": sensitivity})
    return Posterior(model, sensitivity)


def dense_rows(bench: Bench, name: str, model: nn.Module) -> dict[str, Any]:
    """The unshared posterior, and the same in 8 + 1, 2 or 4 bits a weight."""

    def unshared() -> dict[str, Any]:
        path = bench.work / f"{name}.pocket"
        return {"bytes": pb.save(model, path).total, "test": bench.score_file(path)}

    def quantised(bits: int) -> dict[str, Any]:
        path = bench.work / f"{name}-int8-{bits}.safetensors"
        size = save_quantised(model, path, bits)
        loaded = load_quantised(path, pb.bayesianize(bench.fresh(), prior=pb.ZeroMean(PRIOR)))
        return {"bytes": size, "test": bench.score(loaded)}

    rows = {"unshared": bench.measured(f"{name}-unshared", unshared)}
    for bits in BITS:
        row = bench.measured(f"{name}-int8-{bits}", lambda bits=bits: quantised(bits))
        rows[f"INT8, sigma in {bits} bits"] = row
    return rows


def rows_of(bench: Bench) -> dict[str, list[dict[str, Any]]]:
    """By name, one run or several."""
    rows: dict[str, Any] = {}
    if bench.name == "cifar10":
        rows["deterministic, fp32"] = bench.measured("start", bench.start)
        rows |= dense_rows(bench, "posterior", bench.posterior().model)
        rows["shared, with pretraining"] = [paper_row(bench, seed) for seed in range(SEEDS)]
    scratch = from_scratch(bench)
    if bench.name == "mnist":
        rows |= dense_rows(bench, "scratch", scratch.model)
    rows["shared, without pretraining"] = bench.row("scratch-shared", pb.Paper(), start=scratch)
    return {name: found if isinstance(found, list) else [found] for name, found in rows.items()}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--set", default="cifar10", choices=SCRATCH_EPOCHS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    bench = Bench("cifar10", args.data, args.rows, args.work, args.network)
    if args.set == "mnist":
        bench = replace(bench, name="mnist", rows=args.rows / "mnist", work=args.work / "mnist", network=None)
    result = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    result[args.set] = {
        "command": f"python -m experiments.table4 --data DIR --set {args.set}",
        "rows": rows_of(bench),
        "versions": versions(),
    }
    write_atomically(RESULT, (json.dumps(result, indent=1) + "\n").encode())


def section(result: dict[str, Any]) -> str:
    """This experiment's part of RESULTS.md."""
    parts = "\n\n".join(table(name, part) for name, part in result.items())
    return f"""## Table 4: shared and quantised

ResNet-20, the posterior at temperature {TEMPERATURE}, {EPOCHS} epochs of fine-tuning after sharing, {DRAWS} draws, 10,000 test images, files loaded from disk; bytes are those of the files (INT8: safetensors with packed
bits, everything deterministic in fp32). Without pretraining: {SCRATCH_EPOCHS["cifar10"]} epochs on CIFAR-10 and {SCRATCH_EPOCHS["mnist"]} on MNIST from random weights. INT8 quantises the unshared posterior of the same table, without training after it.

{parts}
"""


def table(name: str, part: dict[str, Any]) -> str:
    lines = []
    for row, runs in part["rows"].items():
        means = [summary([[run["test"][key]] for run in runs]) for key in METRICS]
        digits = (f"{100 * means[0].mean:.2f}", *(f"{m.mean:.4f}" for m in means[1:]))
        errors = (
            (f" ± {100 * means[0].error:.2f}", *(f" ± {m.error:.4f}" for m in means[1:]))
            if len(runs) > 1
            else ("",) * 3
        )
        counts = [
            f"{runs[0][key]:,}" if key in runs[0] else ""
            for key in ("outliers", "blends", "components", "scalars")
        ]
        cells = (
            row,
            *counts,
            f"{runs[0]['bytes']:,}",
            *(a + b for a, b in zip(digits, errors, strict=True)),
            PAPER[name].get(row, ""),
        )
        lines.append(f"| {' | '.join(cells)} |")
    rows = "\n".join(lines)
    return f"""### {name}

`{part["command"]}`, torch {part["versions"]["torch"]}; {SEEDS} seeds where there is a ±, else seed 0.

| | outliers | blends | components | trained scalars | bytes | accuracy (%) | NLL | ECE | paper |
|---|---|---|---|---|---|---|---|---|---|
{rows}"""


if __name__ == "__main__":
    main()
