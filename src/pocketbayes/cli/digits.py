"""The story that `pocketbayes demo` tells: one network on scikit-learn's digits, stage by stage.

A stage takes the network of the stage before it, and leaves one of its own and its file; all are judged on the same
images, the compressed one as it is read back from its file.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pocketbayes import metrics, nets
from pocketbayes.artifact import store
from pocketbayes.cli.card import card_of
from pocketbayes.cli.record import of_compression, versions
from pocketbayes.compression.compress import compress
from pocketbayes.compression.plan import Plan
from pocketbayes.data import DataSet, hold_out, load
from pocketbayes.posterior.convert import bayesianize
from pocketbayes.prediction.predict import Predictive, predict
from pocketbayes.runs import randomness
from pocketbayes.runs.files import write_atomically
from pocketbayes.training.fit import fit, fit_map

BATCH = 64
TEMPERATURE = 0.01  # validation data choose 0.003 or 0.01: experiments/digits_calibration.py
BUDGET = 9_000  # bytes, a tenth of the network's numbers in 32 bits
PAGE = "report.html"
LABELLED = 300  # few labels, where it matters to know what one does not know
VALIDATION = 0.3  # of them

ROWS = {
    "bytes": "file (bytes)",
    "accuracy": "accuracy",
    "nll": "NLL (nats)",
    "ece": "calibration error (ECE)",
    "brier": "Brier score",
    "confidence_right": "confidence when right",
    "confidence_wrong": "confidence when wrong",
    "confidence_foreign": "confidence on photographs",
    "auroc": "digit or photograph (AUROC)",
}
LEGEND = (
    f"Trained on {LABELLED} of scikit-learn's digits, a part of them for validation.  "
    "NLL, ECE and Brier: lower is better.  "
    "Photographs: 8 x 8 patches of scikit-learn's two pictures, which no digit classifier should be sure about.  "
    "AUROC: how well predictive entropy tells them from digits; 0.5 is chance."
)


class Material(NamedTuple):
    """What all stages share."""

    train: DataSet
    validation: DataSet
    test: DataSet
    foreign: Tensor  # [N, 1, 8, 8], scaled like the digits


class Stage(NamedTuple):
    """One column of the table."""

    name: str
    seconds: float  # of training
    scores: dict[str, float]
    file: Path
    record: dict[str, Any]  # of a compression: its stages and training curves


class Result(NamedTuple):
    """What a stage hands over."""

    model: nn.Module
    file: Path
    record: dict[str, Any]


class Setting(NamedTuple):
    """How all stages are run."""

    material: Material
    folder: Path
    seed: int
    epochs: int
    progress: bool


def stages(folder: Path, *, seed: int = 0, epochs: int = 80, progress: bool = True) -> Iterator[Stage]:
    """Every stage in turn, as soon as it is trained and judged; files are written to `folder`, a page at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    with one_thread():
        setting = Setting(digits(seed), folder, seed, epochs, progress)
        model = first = untrained(seed)
        for name, advance in STORY.items():
            started = time.monotonic()
            model, file, record = advance(model, setting)
            first = model if name == "deterministic" else first
            seconds = time.monotonic() - started
            scores = {**judge(model, setting.material, seed), "bytes": float(file.stat().st_size)}
            yield Stage(name, seconds, scores, file, record)
        tell(first, model, file, record, setting)


@contextmanager
def one_thread() -> Iterator[None]:
    """Tensors this small make threads wait for each other; and sums do not depend on the number of cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def untrained(seed: int) -> nn.Module:
    """The network before training; the caller's generators are left alone."""
    with randomness.forked():
        randomness.seed_all(seed)
        return nets.digits_net()


def digits(seed: int) -> Material:
    """Few of scikit-learn's digits to train on, all its test images, and as many photographs."""
    everything, test = load("digits"), load("digits", split="test")
    _, labelled = hold_out(everything, LABELLED / len(everything), seed)
    train, validation = hold_out(labelled, VALIDATION, seed)
    return Material(train, validation, test, test.scaling.apply(photograph_patches(len(test), seed)))


def photograph_patches(count: int, seed: int) -> Tensor:
    """Random 8 x 8 patches of scikit-learn's photographs in grey, each stretched to 0..16: [count, 1, 8, 8]."""
    from sklearn.datasets import load_sample_images

    generator = torch.Generator().manual_seed(seed)
    grey = torch.stack(
        [torch.tensor(image).float().mean(2) for image in load_sample_images().images]
    )  # [2, H, W]
    windows = grey.unfold(1, 8, 1).unfold(2, 8, 1)  # a view [2, H - 7, W - 7, 8, 8]
    places = [torch.randint(size, (count,), generator=generator) for size in windows.shape[:3]]
    patches = windows[places[0], places[1], places[2]]  # [count, 8, 8]
    low, high = patches.amin((1, 2), keepdim=True), patches.amax((1, 2), keepdim=True)
    return (16 * (patches - low) / (high - low).clamp_min(1)).round()[:, None]


# --- the stages ------------------------------------------------------------------------------------------------


def deterministic(model: nn.Module, setting: Setting) -> Result:
    """The network as one would train it without us: AdamW, cosine, the best epoch by validation NLL."""
    from safetensors.torch import save

    train_deterministic(
        model,
        setting.material.train,
        setting.material.validation,
        seed=setting.seed,
        epochs=setting.epochs,
        progress=setting.progress,
    )
    file = setting.folder / "plain.safetensors"
    write_atomically(file, save(dict(model.state_dict())))
    return Result(model, file, {})


def bayesian(model: nn.Module, setting: Setting) -> Result:
    """The trained network made Bayesian and trained on."""
    model = bayesianize(copy.deepcopy(model))
    fit(
        model,
        setting.material.train.batches(BATCH, shuffle=True),
        validation=setting.material.validation.batches(256),
        epochs=setting.epochs,
        lr=3e-3,
        temperature=TEMPERATURE,
        seed=setting.seed,
        progress=setting.progress,
    )
    file = setting.folder / "bayesian.pocket"
    store.save(model, file)
    return Result(model, file, {})


def compressed(model: nn.Module, setting: Setting) -> Result:
    """The posterior within the budget of bytes, read back from its file."""
    file, material = setting.folder / "digits.pocket", setting.material
    epochs = max(1, setting.epochs // 2)
    report = compress(
        copy.deepcopy(model),
        material.train.batches(BATCH, shuffle=True),
        path=file,
        validation_loader=material.validation.batches(256),
        max_bytes=BUDGET,
        plan=Plan(
            temperature=TEMPERATURE, epochs=epochs, finetune_epochs=max(1, epochs // 4), seed=setting.seed
        ),
        metadata=card_of("digits_net", {}, material.train).metadata(),
        progress=setting.progress,
    )
    return Result(store.load(file, nets.digits_net()), file, of_compression(report))


STORY: dict[str, Callable[[nn.Module, Setting], Result]] = {
    "deterministic": deterministic,
    "Bayesian": bayesian,
    "in a pocket": compressed,
}


def tell(before: nn.Module, model: nn.Module, file: Path, record: dict[str, Any], setting: Setting) -> Path:
    """The report page of the compressed network; returns its path."""
    from pocketbayes import report

    material, seed = setting.material, setting.seed
    record = {**record, "seed": seed, "versions": versions(), "command": f"pocketbayes demo --seed {seed}"}
    story = report.gather(
        model, file, material.test, before=before, ood=material.foreign, record=record, seed=seed
    )
    return report.write_page(setting.folder / PAGE, story)


def train_deterministic(
    model: nn.Module,
    train: DataSet,
    validation: DataSet,
    *,
    epochs: int,
    lr: float = 1e-2,
    weight_decay: float = 0.1,
    seed: int = 0,
    progress: bool = False,
) -> nn.Module:
    """The plain network, trained in place with AdamW and a cosine, left at its best epoch by validation NLL."""
    fit_map(
        model,
        train.batches(BATCH, shuffle=True),
        validation=validation.batches(256),
        epochs=epochs,
        lr=lr,
        optimizer=lambda groups: torch.optim.AdamW(groups, weight_decay=weight_decay),
        seed=seed,
        progress=progress,
    )
    return model


# --- the verdict -----------------------------------------------------------------------------------------------


def judge(model: nn.Module, material: Material, seed: int) -> dict[str, float]:
    """The measures of ROWS, from 30 draws; NaN where there is nothing to average."""
    familiar: Predictive = predict(model, material.test.inputs(), seed=seed)
    foreign: Predictive = predict(model, material.foreign, seed=seed)
    probs, labels = familiar.probs, material.test.y
    right = familiar.labels == labels
    return {
        "accuracy": metrics.accuracy(probs, labels),
        "nll": metrics.nll(probs, labels),
        "ece": metrics.ece(probs, labels),
        "brier": metrics.brier(probs, labels),
        "confidence_right": familiar.confidence[right].mean().item(),
        "confidence_wrong": familiar.confidence[~right].mean().item(),
        "confidence_foreign": foreign.confidence.mean().item(),
        "auroc": metrics.auroc(familiar.entropy, foreign.entropy),
    }
