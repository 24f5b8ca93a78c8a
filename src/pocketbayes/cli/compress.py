"""`pocketbayes compress`: network, weights, data and a budget in; pocket file, record and page out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from pocketbayes.cli import options as o
from pocketbayes.cli.entry import Interrupted, app, examples
from pocketbayes.cli.job import Job
from pocketbayes.cli.output import columns_table, console, emit, rows_table, say

_EXAMPLES = examples(
    "compress --net mymodel:net --weights net.safetensors --data mnist --max-bytes 20KB --out small.pocket",
    "compress --net resnet20 --weights r20.safetensors --data cifar10 --augment --max-accuracy-drop 0.005 -o r20",
    "compress --config job.toml --seed 3",
)


@app.command(epilog=_EXAMPLES)
def compress(
    context: typer.Context,
    net: o.Net = None,
    weights: o.Weights = None,
    data: o.Data = None,
    out: o.Out = None,
    max_bytes: o.MaxBytes = None,
    max_accuracy_drop: o.MaxAccuracyDrop = None,
    max_nll_rise: o.MaxNllRise = None,
    folder: o.Folder = None,
    batch_size: o.BatchSize = 128,
    validation: o.Validation = 0.1,
    augment: o.Augment = False,
    mean: o.Mean = None,
    std: o.Std = None,
    image_size: o.ImageSize = None,
    targets: o.Targets = 1,
    ood: o.Ood = None,
    max_risk: o.MaxRisk = None,
    test_samples: o.TestSamples = 30,
    page: o.Page = True,
    restart: o.Restart = False,
    temperature: o.Temperature = 0.1,
    prior: o.PriorScale = "fan-in",
    fisher_batches: o.FisherBatches = 200,
    posterior_epochs: o.PosteriorEpochs = 0,
    epochs: o.SharingEpochs = 4,
    finetune_epochs: o.FinetuneEpochs = 1,
    lr: o.Lr = 2e-3,
    rho_lr: o.RhoLr = 0.0,
    finetune_lr: o.FinetuneLr = 3e-4,
    distillation: o.Distillation = 0.0,
    calibrate: o.Calibrate = False,
    renew_every: o.RenewEvery = 1,
    anneal: o.Anneal = 0.25,
    components: o.Components = 64,
    tries: o.Tries = 4,
    samples: o.ValidationSamples = 8,
    seed: o.Seed = 0,
    config: o.Config = None,
    as_json: o.AsJson = False,
    debug: o.Debug = False,
) -> None:
    """Turn a trained network into a pocket file that keeps a budget.

    The budget is a size, or the largest loss on validation data. Beside OUT.pocket stand OUT.json, the record of
    the run, and OUT.html, its page. Interrupted, the same command goes on where it was.
    """
    job = Job(context)
    try:
        record = job.run()
    except KeyboardInterrupt as interruption:
        raise Interrupted("Run the same command again to go on.") from interruption
    if as_json:
        emit(record)
    else:
        show(record, job.out)


def show(record: Mapping[str, Any], out: Path) -> None:
    """Stages, before and after, and where the files are."""
    shown, test = console(), record["test"]
    keys = [k for k in ("accuracy", "rmse", "nll") if any(k in s["metrics"] for s in record["stages"])]
    rows = (
        (s["name"], f"{s['seconds']:.0f} s", *(_score(s["metrics"], key) for key in keys), s["note"])
        for s in record["stages"]
    )
    shown.print(rows_table(("stage", "time", *(f"validation {key}" for key in keys), "note"), rows))
    before = {**test["before"], "bytes": record["plain_bytes"]}
    after = {**test["after"], "bytes": record["bytes"]}
    title = f"{test['examples']:,} test examples"
    shown.print(columns_table(title, {"before": before, f"after, {test['samples']} draws": after}))
    say(f"{out}: {record['bytes']:,} bytes, {record['ratio']:.1f} times smaller than fp32")
    for suffix in (".json", ".html")[: 2 if record["page"] else 1]:
        say(f"{out.with_suffix(suffix)}")


def _score(metrics: Mapping[str, float], key: str) -> str:
    return f"{metrics[key]:.4f}" if key in metrics else ""
