"""The story that `pocketbayes demo` tells: one network on scikit-learn's digits, stage by stage.

A stage takes the network of the stage before it, and leaves one of its own and its file; all are judged on the same
images, the compressed one as it is read back from its file.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pocketbayes import nets
from pocketbayes.artifact import store
from pocketbayes.artifact.card import card_of
from pocketbayes.artifact.network_predictor import NetworkPredictor
from pocketbayes.artifact.predictor import ClassAnswers, score
from pocketbayes.cli.record import of_compression, versions
from pocketbayes.compression.compress import compress
from pocketbayes.compression.plan import Plan
from pocketbayes.data import DataSet, hold_out, load
from pocketbayes.data.photographs import photograph_patches
from pocketbayes.posterior.convert import bayesianize
from pocketbayes.prediction.score import TITLES, ood_scores
from pocketbayes.runs import randomness
from pocketbayes.runs.files import write_atomically
from pocketbayes.sharing.threads import operators_alone
from pocketbayes.training.fit import fit, fit_map

BATCH = 64
TEMPERATURE = 0.01  # validation data choose 0.003 or 0.01: experiments/digits_calibration.py
BUDGET = 9_000  # bytes, a tenth of the network's numbers in 32 bits
PAGE = "report.html"
LABELLED = 300  # few labels, where it matters to know what one does not know
VALIDATION = 0.3  # of them

ROWS = {
    "bytes": "file (bytes)",
    **{key: TITLES[key] for key in ("accuracy", "nll", "ece", "brier")},
    "confidence_right": "confidence when right",
    "confidence_wrong": "confidence when wrong",
    "confidence_photographs": "confidence on photographs",
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
    photographs: Tensor  # [N, 1, 8, 8], raw like the digits


class DemoStage(NamedTuple):
    """One column of the table."""

    name: str
    seconds: float  # of training
    scores: dict[str, float]
    file: Path


Stage = tuple[nn.Module, Path, dict[str, Any]]  # what one hands over: network, file and record


class Demo(NamedTuple):
    """How all stages are run."""

    material: Material
    folder: Path
    seed: int
    epochs: int

    def predictor(self, model: nn.Module) -> NetworkPredictor:
        """The model, and what the digits are like."""
        return NetworkPredictor(model=model, card=card_of("digits_net", {}, self.material.train))


def stages(folder: Path, *, seed: int = 0, epochs: int = 80) -> Iterator[DemoStage]:
    """Every stage in turn, as soon as it is trained and judged; files are written to `folder`, a page at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    with operators_alone():  # tensors are small; and sums do not depend on the number of cores
        demo = Demo(digits(seed), folder, seed, epochs)
        model = first = untrained(seed)
        for name, advance in STORY.items():
            started = time.monotonic()
            model, file, record = advance(model, demo)
            first = model if name == "deterministic" else first
            seconds = time.monotonic() - started
            yield DemoStage(name, seconds, judge(model, demo) | {"bytes": float(file.stat().st_size)}, file)
        tell(first, model, file, record, demo)


def untrained(seed: int) -> nn.Module:
    """The network before training; the caller's generators are left alone."""
    with randomness.forked(seed):
        return nets.digits_net()


def digits(seed: int) -> Material:
    """Few of scikit-learn's digits to train on, all its test images, and as many photographs."""
    everything, test = load("digits"), load("digits", split="test")
    _, labelled = hold_out(everything, LABELLED / len(everything), seed)
    train, validation = hold_out(labelled, VALIDATION, seed)
    return Material(train, validation, test, photograph_patches(len(test), seed))


# --- the stages ------------------------------------------------------------------------------------------------


def deterministic(model: nn.Module, demo: Demo) -> Stage:
    """The network as one would train it without us: AdamW, cosine, the best epoch by validation NLL."""
    from safetensors.torch import save

    fit_map(
        model,
        demo.material.train.batches(BATCH, shuffle=True),
        validation=demo.material.validation.batches(256),
        epochs=demo.epochs,
        optimizer=partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
        lr=0.01,
        seed=demo.seed,
    )
    file = demo.folder / "plain.safetensors"
    write_atomically(file, save(dict(model.state_dict())))
    return model, file, {}


def bayesian(model: nn.Module, demo: Demo) -> Stage:
    """The trained network made Bayesian and trained on."""
    model = bayesianize(copy.deepcopy(model))
    fit(
        model,
        demo.material.train.batches(BATCH, shuffle=True),
        validation=demo.material.validation.batches(256),
        epochs=demo.epochs,
        lr=3e-3,
        temperature=TEMPERATURE,
        seed=demo.seed,
    )
    file = demo.folder / "bayesian.pocket"
    store.save(model, file)
    return model, file, {}


def compressed(model: nn.Module, demo: Demo) -> Stage:
    """The posterior within the budget of bytes, read back from its file."""
    file, material, epochs = demo.folder / "digits.pocket", demo.material, max(1, demo.epochs // 2)
    plan = Plan(temperature=TEMPERATURE, epochs=epochs, finetune_epochs=max(1, epochs // 4), seed=demo.seed)
    report = compress(
        copy.deepcopy(model),
        material.train.batches(BATCH, shuffle=True),
        path=file,
        validation_loader=material.validation.batches(256),
        max_bytes=BUDGET,
        plan=plan,
        metadata=demo.predictor(model).card.metadata(),
        graph=False,
    )
    return store.load(file, nets.digits_net()), file, of_compression(report)


STORY: dict[str, Callable[[nn.Module, Demo], Stage]] = {
    "deterministic": deterministic,
    "Bayesian": bayesian,
    "compressed": compressed,
}


def tell(before: nn.Module, model: nn.Module, file: Path, record: dict[str, Any], demo: Demo) -> Path:
    """The report page of the compressed network; returns its path."""
    from pocketbayes import report

    test, seed = demo.material.test, demo.seed
    record = {**record, "seed": seed, "versions": versions(), "command": f"pocketbayes demo --seed {seed}"}
    ood = test.scaling.apply(demo.material.photographs)
    story = report.gather(model, file, test, before=before, ood=ood, record=record, seed=seed)
    return report.write_page(demo.folder / PAGE, story)


# --- the verdict -----------------------------------------------------------------------------------------------


def judge(model: nn.Module, demo: Demo) -> dict[str, float]:
    """The measures of ROWS, from 30 draws; NaN where there is nothing to average."""
    test, predictor = demo.material.test, demo.predictor(model)
    answer = predictor.predict(test.x, seed=demo.seed)
    photographs = predictor.predict(demo.material.photographs, seed=demo.seed)
    assert isinstance(answer, ClassAnswers) and isinstance(photographs, ClassAnswers)
    right = answer.labels == test.y
    found = score(answer, test.y) | ood_scores(answer, photographs)
    found |= {
        "confidence_right": answer.confidence[right].mean().item(),
        "confidence_wrong": answer.confidence[~right].mean().item(),
        "confidence_photographs": photographs.confidence.mean().item(),
    }
    return {key: found[key] for key in ROWS if key in found}
