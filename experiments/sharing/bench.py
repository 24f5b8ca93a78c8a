"""ResNet-20 as the tables need it: data, the network they start from, its posterior, sharing with fine-tuning, scores.

All tables of one data set share a folder, --rows, of the rows that are done, so a row that stands in several tables is
made once, and a broken run goes on where it was, on another machine too.  Networks and unfinished training are under --work.
Validation images are those that `train_network` held out; the test set is used once for a row, on the pocket file loaded
back from disk.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import pocketbayes as pb
from experiments.markdown import shown
from experiments.record import RESULTS, command_line, kept
from experiments.sharing.train_network import (
    MODELS,
    architecture,
    augmentation,
    fresh,
    load_start,
    mostly_windows,
    splits,
    start_path,
    teachers,
)
from pocketbayes import data
from pocketbayes.posterior.weights import sites
from pocketbayes.runs.checkpoint import load_checkpoint, save_checkpoint
from pocketbayes.sharing import Outliers
from pocketbayes.sharing.outliers import before_sharing

ROWS = RESULTS / "sharing" / "rows"
BATCH, DRAWS, EPOCHS = 128, 30, 3
TEMPERATURE, PRIOR, LR = 0.02, 0.2, 5e-4
METRICS = ("accuracy", "nll", "ece")
PROTOCOL = f"""ResNet-20, CIFAR-10, one posterior, {EPOCHS} epochs of fine-tuning a row, {DRAWS} draws, 10,000 test images,
files loaded from disk. The time is besides training the posterior."""  # of Tables 8 and 10


class Posterior(NamedTuple):
    """Stage 1: a mean and a sigma for each weight, and the Fisher information that sigma and outliers come from."""

    model: nn.Module
    fisher: dict[str, Tensor]


@dataclass(frozen=True)
class Bench:
    """One data set, the network trained on it, and the folders of what was measured and made from them."""

    name: str  # cifar10 or mnist
    folder: str | None  # of the data sets
    rows: Path  # one json file for each
    work: Path
    network: Path  # the trained one, a pocket file
    kind: str = "resnet20"  # its architecture

    @cached_property
    def _splits(self) -> tuple[data.DataSet, data.DataSet]:
        return splits(self.name, self.folder)

    @property
    def images(self) -> int:
        """For training."""
        return len(self._splits[0])

    def augmentation(self) -> Any:
        """Of a batch of training images."""
        return augmentation(self.name)

    def training(self, images: int | None = None) -> Any:
        """Batches of all training images, or of the first so many."""
        found = self._splits[0]
        some = found if images is None else replace(found, x=found.x[:images], y=found.y[:images])
        return some.batches(BATCH, shuffle=True, augment=self.augmentation())

    def validation(self) -> Any:
        return self.held_out().batches(250)

    def held_out(self) -> data.DataSet:
        """The validation images."""
        return self._splits[1]

    def test_images(self) -> Any:
        return self.test_set().batches(250)

    def test_set(self) -> data.DataSet:
        return data.load(self.name, self.folder, "test")

    def fresh(self) -> nn.Module:
        """The architecture, with weights from the current generator."""
        return fresh(self._splits[0].shape[0], self.kind)

    def architecture(self) -> dict[str, Any]:
        return architecture(self._splits[0])

    def plain(self) -> nn.Module:
        """The trained network."""
        return load_start(self.network, self._splits[0].shape[0], self.kind)

    def rescaled(self) -> nn.Module:
        """The trained network, with channels of equal sigma."""
        network = self.plain()
        fisher = pb.fisher_information(network, self.training(), batches=20, seed=0)
        rescale_channels(network, pb.laplace_sigma(network, fisher, self.images, prior=PRIOR))
        return network

    def teachers(self) -> list[nn.Module]:
        """The trained network and its earlier cycles."""
        return teachers(self.network, self._splits[0].shape[0], self.kind)

    def start(self) -> dict[str, Any]:
        """The trained network's row, with the bytes of its numbers in fp32."""
        plain = self.plain()
        return {"bytes": 4 * sum(t.numel() for t in plain.state_dict().values()), "test": self.score(plain)}

    # --- stage 1 -------------------------------------------------------------------------------------------------

    def posterior(self) -> Posterior:
        """Three epochs on the tempered ELBO, from the trained network with sigma by Laplace."""
        path = self.work / "posterior.safetensors"
        network = self.plain()
        if not path.exists():
            self.work.mkdir(parents=True, exist_ok=True)
            fisher = pb.fisher_information(network, self.training(), batches=100, seed=0)
            sigma = pb.laplace_sigma(network, fisher, self.images, prior=PRIOR, temperature=TEMPERATURE)
            pb.bayesianize(network, prior=pb.ZeroMean(PRIOR), sigma=sigma)
            self.fit(network, "posterior", EPOCHS, seed=0)
            save_checkpoint(path, {"model": dict(network.state_dict()), "fisher": fisher})
            return Posterior(network, fisher)
        found = load_checkpoint(path)
        pb.bayesianize(network, prior=pb.ZeroMean(PRIOR))
        network.load_state_dict(found["model"])
        return Posterior(network, found["fisher"])

    def fit(self, model: nn.Module, name: str, epochs: int, seed: int, **settings: Any) -> pb.History:
        """On the tempered ELBO, resumable under that name."""
        checkpoint = self.work / f"{name}-training.safetensors"
        settings = {"lr": LR, "rho_lr": LR, "temperature": TEMPERATURE, "anneal": 0.0} | settings
        return pb.fit(
            model,
            self.training(),
            epochs=epochs,
            seed=seed,
            checkpoint=checkpoint,
            checkpoint_seconds=120.0,
            progress=False,
            on_epoch=lambda e: print(f"{name} epoch {e.epoch}: {e}", flush=True),
            **settings,
        )

    # --- rows ----------------------------------------------------------------------------------------------------

    def row(
        self, name: str, how: pb.Paper, *, seed: int = 0, start: Callable[[], Posterior] | None = None
    ) -> dict[str, Any]:
        """The posterior that `start` makes, if the row is not there yet, shared, fine-tuned for three epochs, saved, loaded
        back and scored; kept under that name."""
        settings = {"how": repr(how), "epochs": EPOCHS, "temperature": TEMPERATURE, "lr": LR, "seed": seed}
        return self.measured(name, lambda: self.make_row(name, how, seed, start), settings)

    def measured(
        self, name: str, make: Callable[[], dict[str, Any]], settings: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """The row of that name, made unless it is there, with its settings and the seconds of CPU time it took."""
        part = kept(self.rows / f"{name}.json", make, settings)
        return part.pop("value") | part

    def make_row(
        self, name: str, how: pb.Paper, seed: int = 0, start: Callable[[], Posterior] | None = None
    ) -> dict[str, Any]:
        """Leaves the file NAME.pocket under --work."""
        model, fisher = (start or self.posterior)()
        own = outliers_of_their_own(model, fisher, how.outliers)
        report = pb.share(model, how, fisher=fisher)
        print(f"{name}: {report}", flush=True)
        self.fit(model, name, EPOCHS, seed)
        path = self.work / f"{name}.pocket"
        saved = pb.save(model, path)
        (self.work / f"{name}-training.safetensors").unlink(missing_ok=True)
        return {
            "bytes": saved.total,
            "components": report.components,
            "components_before_merging": report.components_before_merging,
            "outliers": report.outliers,
            "outliers_of_their_own": own,
            "blends": report.blends,
            "scalars": report.trainable,
            "bits_a_label": report.bits_per_weight,
            "cost_of_widths": cost_of_sigma(path, fisher),
            "validation": scores(pb.evaluate(model, self.validation(), samples=8, seed=seed)),
            "test": self.score_file(path, seed),
            "seed": seed,
        }

    def score_file(self, path: Path, seed: int = 0) -> dict[str, float]:
        """On the whole test set, the file loaded from disk, 30 draws."""
        return self.score(pb.load(path, self.fresh()), seed)

    def score(self, model: nn.Module, seed: int = 0) -> dict[str, float]:
        return scores(pb.evaluate(model, self.test_images(), samples=DRAWS, seed=seed))


@dataclass(frozen=True)
class LongBench(Bench):
    """For long training of CIFAR-10: most batches are windows, and our ResNet-20s from all seeds teach together."""

    def augmentation(self) -> Any:
        return mostly_windows

    def teachers(self) -> list[nn.Module]:
        found = {self.network: self.kind}
        for kind in (self.kind, "resnet20"):
            for path in sorted(self.network.parent.glob(f"{kind}-{self.name}-start*.pocket")):
                found.setdefault(path, kind)
        return [load_start(path, self._splits[0].shape[0], kind) for path, kind in found.items()]


@torch.no_grad()
def rescale_channels(network: nn.Module, sigma: dict[str, Tensor]) -> None:
    """Scale every channel of a CIFAR ResNet's convolutions so that the geometric mean of its sigmas is that of all weights.

    The norm behind takes the scale back, so answers are the same, and one codebook suits all channels.
    """
    middle = torch.cat([each.log().flatten() for each in sigma.values()]).mean()
    for name, conv in network.named_modules():
        if isinstance(conv, nn.Conv2d):
            scale = (middle - sigma[f"{name}.weight"].log().mean((1, 2, 3))).exp()
            norm: Any = network.get_submodule(name.replace("conv", "bn"))
            before = (norm.running_var + norm.eps).sqrt()
            conv.weight.mul_(scale.view(-1, 1, 1, 1))
            norm.running_mean.mul_(scale)
            norm.running_var.mul_(scale.square())
            norm.weight.mul_((norm.running_var + norm.eps).sqrt() / (scale * before))


def outliers_of_their_own(model: nn.Module, fisher: dict[str, Tensor], rules: Outliers) -> int:
    """How many weights are outliers by their mean or Fisher information, whatever clusters the others form."""
    found = list(sites(model))
    masks = before_sharing(rules, [site.moments.mu for site in found], [fisher[site.path] for site in found])
    return sum(int(mask.sum()) for mask in masks)


def cost_of_sigma(path: Path, fisher: dict[str, Tensor]) -> dict[str, float]:
    """1/2 sum_i g_i sigma_i^2 of a file, the nats a draw adds to the training NLL to second order, and the part of it that
    falls to the hundredth of the weights with the most."""
    found = pb.read(path)
    each = torch.cat([(g.double() * found[name][1] ** 2).flatten() / 2 for name, g in fisher.items()])
    worst = each.topk(max(1, len(each) // 100)).values
    return {"nats": round(float(each.sum()), 5), "worst": round(float(worst.sum() / each.sum()), 4)}


def scores(evaluation: Any) -> dict[str, float]:
    return {name: round(evaluation[name], 5) for name in METRICS}


def quality(runs: Sequence[dict[str, Any]]) -> tuple[str, str, str]:
    """Cells of a table: accuracy in percent, NLL and ECE on the test images, over runs with other seeds."""
    found = {key: [run["test"][key] for run in runs] for key in METRICS}
    return shown(found["accuracy"], 2, 100), shown(found["nll"], 4), shown(found["ece"], 4)


def counts(row: dict[str, Any], *names: str) -> list[str]:
    """Cells of a table, empty where the row has no such number."""
    return [f"{row[name]:,}" if name in row else "" for name in names]


def slashed(values: Sequence[object]) -> str:
    """In one cell of a table."""
    return " / ".join(f"{x:,}" if isinstance(x, int) else str(x) for x in values)


def bench_of(
    args: argparse.Namespace,
    name: str = "cifar10",
    folder: str = "",
    kind: str = "resnet20",
    of: type[Bench] = Bench,
) -> Bench:
    """A data set's bench; its rows and its work are in that folder below --rows and --work."""
    network = args.network or start_path(MODELS, name, kind=kind)
    return of(name, args.data, args.rows / folder, args.work / folder, network, kind)


def arguments(description: str | None, *, network: bool = True) -> argparse.ArgumentParser:
    """--data, --network, --work, --threads: what every table asks for."""
    parser = command_line(description)
    parser.add_argument("--data", default=None, help="folder of the data sets (or POCKETBAYES_DATA)")
    parser.set_defaults(network=None)
    if network:
        parser.add_argument(
            "--network",
            type=Path,
            help="from experiments.sharing.train_network; the one in experiments/models by default",
        )
    parser.add_argument(
        "--rows", type=Path, default=ROWS, help="folder of rows that are done; another one measures all anew"
    )
    parser.add_argument(
        "--work", type=Path, default=Path("runs/tables"), help="folder for networks and unfinished training"
    )
    parser.add_argument("--threads", type=int, default=1)
    return parser
