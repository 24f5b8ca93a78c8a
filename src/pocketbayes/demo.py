"""The story that `pocketbayes demo` tells: one network on scikit-learn's digits, stage by stage.

A stage takes the network of the stage before it and returns one of its own; all are judged on the same images.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pocketbayes import metrics, nets, randomness
from pocketbayes.data import DataSet, hold_out, load
from pocketbayes.posterior.convert import bayesianize
from pocketbayes.prediction import Predictive, evaluate, predict
from pocketbayes.progress import track
from pocketbayes.train import fit

BATCH = 64
LABELLED = 300  # few labels, where it matters to know what one does not know
VALIDATION = 0.3  # of them

ROWS = {
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


def stages(*, seed: int = 0, epochs: int = 80, progress: bool = True) -> Iterator[Stage]:
    """Every stage in turn, as soon as it is trained and judged."""
    with one_thread():
        material = digits(seed)
        model = untrained(seed)
        for name, advance in STORY.items():
            started = time.monotonic()
            model = advance(model, material, seed, epochs, progress)
            seconds = time.monotonic() - started
            yield Stage(name, seconds, judge(model, material, seed))


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


def deterministic(
    model: nn.Module, material: Material, seed: int, epochs: int, progress: bool = False
) -> nn.Module:
    """The network as one would train it without us: AdamW, cosine, the best epoch by validation NLL."""
    return train_deterministic(
        model, material.train, material.validation, seed=seed, epochs=epochs, progress=progress
    )


def bayesian(
    model: nn.Module, material: Material, seed: int, epochs: int, progress: bool = False
) -> nn.Module:
    """The trained network made Bayesian and trained on."""
    model = bayesianize(copy.deepcopy(model))
    fit(
        model,
        material.train.batches(BATCH, shuffle=True),
        validation=material.validation.batches(256),
        epochs=epochs,
        lr=3e-3,
        beta=0.01,  # validation data choose 0.003 or 0.01: experiments/digits_calibration.py
        seed=seed,
        progress=progress,
    )
    return model


STORY: dict[str, Callable[[nn.Module, Material, int, int, bool], nn.Module]] = {
    "deterministic": deterministic,
    "Bayesian": bayesian,
}


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
    loader, held_out = train.batches(BATCH, shuffle=True), validation.batches(256)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(loader))
    best, best_nll = model.state_dict(), math.inf
    with randomness.forked():
        randomness.seed_all(seed)
        for _ in track(range(epochs), "train", enabled=progress):
            model.train()
            for x, y in loader:
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                optimizer.step()
                schedule.step()
            nll = evaluate(model, held_out).nll
            if nll < best_nll:
                best, best_nll = copy.deepcopy(model.state_dict()), nll
    model.load_state_dict(best)
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
