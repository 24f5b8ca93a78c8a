"""The digits network into files of 50, 25, 10 and fewer percent of its fp32 size: accuracy and NLL against bytes.

    python -m experiments.sharing.digits

Deterministic network, then `compress` for each budget from the same start; validation data held out of training, the
test set used once for each file, loaded back from disk.
"""

from __future__ import annotations

import copy
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import pocketbayes as pb
from experiments.markdown import measured, one_core, picture, table
from experiments.record import RESULTS, new_figure, save_figure, versions, write_result
from pocketbayes import data, nets
from pocketbayes.data import hold_out

RESULT = RESULTS / "sharing/digits.json"
FRACTIONS = (0.5, 0.25, 0.1, 0.075, 0.05)
SEED = 0
PLAN = pb.Plan(temperature=0.003, epochs=20, finetune_epochs=5, seed=SEED)


def train(network: nn.Module, loader: Any, validation: Any, epochs: int = 40) -> nn.Module:
    """Adam with weight decay, stopped where the validation NLL is best."""
    optimizer = torch.optim.AdamW(network.parameters(), 2e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(loader))
    best, kept = float("inf"), copy.deepcopy(network.state_dict())
    for _ in range(epochs):
        network.train()
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(network(x), y).backward()
            optimizer.step()
            schedule.step()
        nll = pb.evaluate(network, validation).nll
        if nll < best:
            best, kept = nll, copy.deepcopy(network.state_dict())
    network.load_state_dict(kept)
    return network


def main() -> None:
    torch.set_num_threads(1)
    torch.random.default_generator.manual_seed(SEED)
    started = time.time()
    training, validation = hold_out(data.load("digits"), 0.2, SEED)
    test = data.load("digits", split="test").batches(256)
    loader, held_out = training.batches(64, shuffle=True), validation.batches(256)
    network = train(nets.digits_net(), loader, held_out)
    fp32 = 4 * sum(p.numel() for p in network.parameters())
    rows = [{"bytes": fp32, "budget": None, "test": dict(pb.evaluate(network, test))}]
    with tempfile.TemporaryDirectory() as folder:
        for fraction in FRACTIONS:
            path, model = Path(folder) / "digits.pocket", copy.deepcopy(network)
            budget = int(fraction * fp32)
            report = pb.compress(
                model,
                loader,
                path=path,
                validation_loader=held_out,
                max_bytes=budget,
                plan=PLAN,
                progress=False,
            )
            loaded = pb.load(path, nets.digits_net())
            scores = dict(pb.evaluate(loaded, test, samples=30, seed=SEED))
            rows.append({"bytes": report.bytes, "budget": budget, "share": fraction, "test": scores})
            print(
                f"{fraction:5.1%}  {report.bytes:6,} bytes  accuracy {scores['accuracy']:.4f}  nll {scores['nll']:.4f}"
            )
    result = {
        "command": "python -m experiments.sharing.digits",
        "rows": rows,
        "seed": SEED,
        "seconds": round(time.time() - started),
        "versions": versions(),
    }
    write_result(RESULT, result)
    plot(rows)


def headline(result: dict[str, Any]) -> str:
    """For RESULTS.md."""
    first, small = result["rows"][0], result["rows"][3]
    return (
        f"{small['bytes']:,} bytes: {small['test']['accuracy']:.4f}, NLL {small['test']['nll']:.4f}; "
        f"plain {first['test']['accuracy']:.4f}, {first['test']['nll']:.4f}."
    )


def section(result: dict[str, Any]) -> str:
    """This experiment's part of its page."""
    rows = (
        (
            "deterministic, fp32" if row["budget"] is None else f"{row['budget']:,}",
            f"{row['bytes']:,}",
            f"{row['bytes'] / result['rows'][0]['bytes']:.1%}",
            *(f"{row['test'][key]:.4f}" for key in ("accuracy", "nll", "ece")),
        )
        for row in result["rows"]
    )
    return f"""## Digits: files of a given size

{measured(result, f"seed {result['seed']}", one_core(result["seconds"]))} One network, `compress(max_bytes=...)` from the same start for
each budget. The file is loaded back and scored with 30 draws on test images used once for each row.

{table("| budget (bytes) | file (bytes) | of fp32 | accuracy | NLL | ECE |", rows)}

{picture(RESULT, "accuracy and NLL against bytes")}
"""


def plot(rows: list[dict[str, Any]]) -> None:
    figure = new_figure(9, 3.5)
    axes = figure.subplots(1, 2)
    for ax, name, label in zip(axes, ("accuracy", "nll"), ("test accuracy", "test NLL (nats)"), strict=True):
        ax.axhline(
            rows[0]["test"][name],
            color="0.6",
            linestyle="--",
            label=f"deterministic, {rows[0]['bytes'] / 1000:.0f} KB",
        )
        ax.plot(
            [r["bytes"] / 1000 for r in rows[1:]],
            [r["test"][name] for r in rows[1:]],
            "o-",
            label="pocket file",
        )
        ax.set(xlabel="file (KB)", ylabel=label, xscale="log")
        ax.set_xticks([5, 10, 20, 50], ["5", "10", "20", "50"])
        ax.minorticks_off()
        ax.grid(alpha=0.3)
        ax.legend()
    save_figure(figure, RESULT)


if __name__ == "__main__":
    main()
