"""The plain competitor: ResNet-20/CIFAR-10 rounded to one step a layer, trained straight through, in our file format.

    python -m experiments.sharing.rounding --data DIR --bytes 64000 90000

Weights are integers times the step of their layer in every forward pass, and gradients go straight through the rounding.
Steps are in proportion to one over the root of a layer's mean Fisher information, which is best where they are small, and
their common factor follows the entropy of the integers until the file fills its budget.  Epochs, teachers, learning rate
and coder are those of our best row (`experiments.sharing.frontier`).  The answer is one pass with a temperature that is
fitted to validation images; the test images are used once for each file, loaded back from disk.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import pocketbayes as pb
from experiments.markdown import cost, measured, table
from experiments.record import RESULTS, versions, write_result
from experiments.sharing.bench import Bench, arguments, bench_of
from experiments.sharing.frontier import CALM, SHORT
from experiments.sharing.train_network import MODELS
from experiments.uncertainty.scores import asked, both_scores, fitted_temperature
from pocketbayes.artifact.card import card_of
from pocketbayes.moments import Codebook
from pocketbayes.posterior.norms import BatchNorm, fold_statistics
from pocketbayes.posterior.weights import stochastic_weights
from pocketbayes.runs.files import write_atomically
from pocketbayes.sharing.install import install
from pocketbayes.sharing.mixture import label_dtype
from pocketbayes.training.compiled import compiling_pays

RESULT = RESULTS / "sharing/rounding.json"
COMMAND = "python -m experiments.sharing.rounding --data DIR"
LR = 1e-3
EVERY = 20  # steps of training from one look at the entropy to the next
NARROW = 1e-3  # sigma in the file, which one pass through the means does not use


class Rounded(nn.Module):
    """A weight as integers times a step; the gradient is that of the weight itself."""

    step: Tensor

    def __init__(self, step: float) -> None:
        super().__init__()
        self.register_buffer("step", torch.tensor(step))

    def forward(self, weight: Tensor) -> Tensor:
        rounded: Tensor = weight + (self.step * (weight / self.step).round() - weight).detach()
        return rounded


def rounded_layers(net: nn.Module) -> list[tuple[nn.Module, Rounded]]:
    return [
        (module, module.parametrizations.weight[0])
        for module in net.modules()
        if parametrize.is_parametrized(module, "weight")
    ]


def integers(module: nn.Module, rounding: Rounded) -> Tensor:
    return (module.parametrizations.weight.original.detach() / rounding.step).round()  # type: ignore[union-attr]


@torch.no_grad()
def entropy(net: nn.Module) -> float:
    """Bits of all integers, each layer coded by its own frequencies."""
    total = 0.0
    for layer in rounded_layers(net):
        counts = integers(*layer).flatten().unique(return_counts=True)[1].double()
        total -= float((counts * (counts / counts.sum()).log2()).sum())
    return total


@torch.no_grad()
def scale_steps(net: nn.Module, factor: float) -> None:
    for _, rounding in rounded_layers(net):
        rounding.step.mul_(factor)


def round_weights(net: nn.Module, loader: Iterable[Any]) -> None:
    """Every weight of more than one dimension, with steps as small as the Fisher information is large."""
    fisher = pb.fisher_information(net, loader, batches=CALM.fisher_batches, seed=CALM.seed, progress=False)
    for name, found in fisher.items():
        module = net.get_submodule(name.rpartition(".")[0])
        parametrize.register_parametrization(module, "weight", Rounded(float(found.mean().rsqrt())))


# --- the file ----------------------------------------------------------------------------------------------------


def in_pocket_form(net: nn.Module, plain: nn.Module) -> nn.Module:
    """The plain network with weights that are labels of one codebook: where a norm follows, integers, with the step in
    its scale.
    """
    state = {
        name.replace(".parametrizations.weight.original", ".weight"): t
        for name, t in net.state_dict().items()
    }
    plain.load_state_dict({name: t for name, t in state.items() if not name.endswith(".step")})
    fold_statistics(plain)
    layers = [m for m in plain.modules() if isinstance(m, (nn.Conv2d, nn.Linear, BatchNorm))]
    norm_after = {layer: norm for layer, norm in pairwise(layers) if isinstance(norm, BatchNorm)}
    own = [layer for layer in layers if not isinstance(layer, BatchNorm)]
    weights = []
    for layer, (module, rounding) in zip(own, rounded_layers(net), strict=True):
        norm, weight = norm_after.get(layer), integers(module, rounding)
        if norm is None:
            weight *= rounding.step
        else:
            with torch.no_grad():
                norm.weight.mul_(rounding.step)
        weights.append(weight)
    values, labels = torch.cat([w.flatten() for w in weights]).unique(return_inverse=True)
    pb.bayesianize(plain, prior=pb.ZeroMean(1.0), sigma=pb.Absolute(NARROW))
    pieces = labels.to(label_dtype(len(values) + 1)).split([w.numel() for w in weights])
    shaped = [piece.view(w.shape) for piece, w in zip(pieces, weights, strict=True)]
    book = Codebook(values, torch.full_like(values, NARROW))
    install(plain, stochastic_weights(plain), book, shaped, [None] * len(shaped))
    return plain


@dataclass(frozen=True)
class Writer:
    """Writes files of a bench's network."""

    bench: Bench

    def __call__(self, net: nn.Module, path: Path, *, graph: bool = True) -> int:
        """Returns the bytes."""
        images = self.bench.held_out()
        card = card_of(self.bench.kind, self.bench.architecture(), images).metadata()
        example = images.inputs(slice(0, 2)) if graph else None
        pocket = in_pocket_form(net, self.bench.fresh())
        return pb.save(pocket, path, precision=SHORT, metadata=card, example=example).total


def fill(net: nn.Module, path: Path, max_bytes: int, write: Writer) -> int:
    """The file with the smallest steps that fit, to a thousandth; returns its bytes."""
    low, high = 1.0, 1.0  # factors on the steps: too small, large enough
    given = [rounding.step.clone() for _, rounding in rounded_layers(net)]
    room = max_bytes - write(net, path) + write(net, path, graph=False)

    @torch.no_grad()
    def fits(factor: float) -> bool:
        for (_, rounding), step in zip(rounded_layers(net), given, strict=True):
            rounding.step.copy_(factor * step)
        return write(net, path, graph=False) <= room

    while not fits(high):
        low, high = high, 1.05 * high
    while low == high or fits(low):
        low, high = low / 1.05, low
    while high / low > 1.002:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    fits(high)
    return write(net, path)


# --- training ----------------------------------------------------------------------------------------------------


class Steered:
    """The batches of a loader; now and then the steps are moved so that the entropy stays what it is to be."""

    def __init__(self, loader: Any, net: nn.Module, bits: float) -> None:
        self.loader, self.net, self.bits = loader, net, bits
        self.batch_size = loader.batch_size

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(self.loader):
            if number % EVERY == 0:
                weights = sum(integers(*layer).numel() for layer in rounded_layers(self.net))
                scale_steps(self.net, 2 ** ((entropy(self.net) - self.bits) / weights))
            yield batch


def make(
    bench: Bench,
    max_bytes: int,
    *,
    name: str | None = None,
    epochs: int = CALM.epochs,
    seed: int = CALM.seed,
    bfloat16: bool | None = None,
) -> dict[str, Any]:
    """The file of that size under --work, and its scores."""
    bench.work.mkdir(parents=True, exist_ok=True)
    path, write = bench.work / f"{name or f'rounding-{max_bytes}'}.pocket", Writer(bench)
    net, loader = bench.plain(), bench.training()
    teachers = bench.teachers()
    round_weights(net, loader)
    weights = sum(integers(*layer).numel() for layer in rounded_layers(net))
    scale_steps(net, 2 ** ((entropy(net) - 2.0 * weights) / weights))
    fill(net, path, max_bytes, write)
    bits = entropy(net)  # which the file of this size has: the coder's gain follows
    fast = compiling_pays(net, loader, epochs) if bfloat16 is None else bfloat16
    autocast = torch.bfloat16 if fast else None
    lessons = pb.Distilled(
        Steered(loader, net, bits), teachers, fraction=CALM.distillation, autocast=autocast, compiled=fast
    )
    if fast:
        net.compile(dynamic=False)
    pb.fit_map(
        net,
        lessons,
        epochs=epochs,
        lr=LR,
        num_data=bench.images,
        autocast=autocast,
        checkpoint=path.with_suffix(".safetensors"),
        checkpoint_seconds=120.0,
        seed=seed,
        progress=False,
        on_epoch=lambda e: print(f"epoch {e.epoch} nll {e.nll:.4f} {e.seconds:.0f} s", flush=True),
    )
    net = copy.deepcopy(net)
    size = fill(net, path, max_bytes, write)
    held_out = asked(pb.load(path, bench.fresh()), bench.held_out())
    temperature = fitted_temperature(held_out)
    test = asked(pb.load(path, bench.fresh()), bench.test_set())
    return {
        "bytes": size,
        "bits_a_weight": entropy(net) / weights,
        "teachers": len(teachers),
        "validation": both_scores(held_out, temperature),
        "test": both_scores(test, temperature),
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--bytes", type=int, nargs="*", default=[64_000, 90_000])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    bench = bench_of(args, "cifar10", "rounding")
    settings = {"epochs": CALM.epochs, "lr": LR, "distillation": CALM.distillation, "seed": CALM.seed}
    runs = {
        str(size): bench.measured(str(size), partial(make, bench, size), settings | {"max_bytes": size})
        for size in args.bytes
    }
    for size, run in runs.items():
        path = bench.work / f"rounding-{size}.pocket"
        if path.exists():
            write_atomically(MODELS / f"resnet20-cifar10-{path.name}", path.read_bytes())
            write_result(MODELS / f"resnet20-cifar10-{path.stem}.json", {"command": COMMAND, **run})
    write_result(RESULT, {"command": COMMAND, "files": runs, "versions": versions()})


# --- the page ----------------------------------------------------------------------------------------------------


def headline(result: dict[str, Any]) -> str:
    """For RESULTS.md."""
    told = (
        f"{run['bytes']:,} bytes have accuracy {100 * run['test']['calibrated']['accuracy']:.2f} % and NLL "
        f"{run['test']['calibrated']['nll']:.4f} in one pass"
        for run in result["files"].values()
    )
    return "; ".join(told) + "."


def section(result: dict[str, Any]) -> str:
    """This experiment's part of its page."""
    rows = (
        (
            f"{run['bytes']:,}",
            f"{100 * run['test']['calibrated']['accuracy']:.2f}",
            f"{run['test']['plain']['nll']:.4f}",
            f"{run['test']['calibrated']['nll']:.4f}",
            f"{run['test']['calibrated']['ece']:.4f}",
        )
        for run in result["files"].values()
    )
    runs = list(result["files"].values())
    spent, settings = cost(run["seconds"] for run in runs), runs[0]["settings"]
    return f"""## The plain competitor: rounding, straight through

{measured(result, "seed 0", spent)} The network of the rows above, its weights rounded to one step a layer in every forward pass of
{settings["epochs"]} epochs, {settings["distillation"]:.0%} of the targets from {runs[0]["teachers"]} teachers. No posterior: a file in our format, entropy-coded by
the same coder, answers in one pass. 10,000 test images, files loaded from disk, temperatures from 2,500 validation images.

{table("| bytes | accuracy (%) | NLL | NLL with temperature | ECE with temperature |", rows)}
"""


if __name__ == "__main__":
    main()
