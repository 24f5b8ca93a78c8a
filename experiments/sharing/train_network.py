"""Train ResNet-20, or a deeper one, from scratch: the plain network that the tables and our own pocket files start from.

    python -m experiments.sharing.train_network --data DIR --set cifar10 --epochs 40
    python -m experiments.sharing.train_network --data DIR --set cifar10 --epochs 40 --lr 0.1 --again     # one more cycle
    python -m experiments.sharing.train_network --data DIR --set cifar10 --epochs 40 --seed 1 --bfloat16     # another mode
    python -m experiments.sharing.train_network --data DIR --set cifar10 --epochs 40 --net resnet32 --bfloat16     # deeper
    python -m experiments.sharing.train_network --data DIR --set mnist --epochs 8

SGD with momentum and one cycle of the learning rate; random shifts, and mirror images for CIFAR-10, whose first epochs see
windows of 24 x 24 pixels, 44 % less work.  With --bfloat16 forward passes are compiled and compute in bfloat16, twice as
fast on processors that have it.  Validation images are held out of the training set, the test set is not touched.
Killed and started again, it goes on where it was.  What comes out is experiments/models/resnet20-SET-start.pocket, with the
network as the means of a posterior so narrow that sharing changes next to nothing, and the record of its training beside
it.  One more cycle keeps the network it started from as resnet20-SET-cycle-N.pocket: snapshots of several cycles teach
well together (`teachers`).  Another seed's network stands beside the first, as resnet20-SET-start-SEED.pocket, a deeper one as resnet32-SET-start.pocket.  Rows in experiments/results/sharing/rows that were measured from an earlier network are to be removed then.
"""

from __future__ import annotations

import copy
import json
import math
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import pocketbayes as pb
from experiments.record import command_line, versions, write_result
from pocketbayes import data, nets
from pocketbayes.artifact.card import card_of
from pocketbayes.runs.files import write_atomically
from pocketbayes.training.history import Epoch

MODELS = Path(__file__).parents[1] / "models"
BATCH, WINDOW = 128, 24
SETS = ("cifar10", "mnist")
NETS = tuple(name for name in nets.NAMES if name.startswith("resnet"))
HELD_OUT = 0.05


def splits(name: str, folder: str | None) -> tuple[data.DataSet, data.DataSet]:
    """(training, validation) images; every experiment that starts from these networks holds out the same ones."""
    return data.hold_out(data.load(name, folder), HELD_OUT, seed=0)


def augmentation(name: str) -> Any:
    """Shifts of up to four pixels for photographs, with mirror images; of two for digits, without."""
    if name == "mnist":
        return partial(data.crop_flip, padding=2, flip=False)
    return data.crop_flip


def mostly_windows(x: Tensor) -> Tensor:
    """Three batches of four are windows, with 44 % less work; the fourth is photographs as they are, shifted."""
    if torch.rand(()) < 0.75:
        return data.crop_flip(x, padding=0, size=WINDOW)
    return data.crop_flip(x)


def architecture(images: data.DataSet) -> dict[str, Any]:
    """What `nets.resnet20` is asked for."""
    channels = images.shape[0]
    return {} if channels == 3 else {"in_channels": channels}


class Stage(NamedTuple):
    name: str
    epochs: int
    augment: Any


def stages(name: str, epochs: int) -> list[Stage]:
    """Photographs are seen through small windows at first; a digit is told by the whole of it."""
    small = 0 if name == "mnist" else round(0.55 * epochs)
    windows = Stage("windows", small, partial(data.crop_flip, padding=0, size=WINDOW))
    whole = Stage("whole", epochs - small, augmentation(name))
    return [stage for stage in (windows, whole) if stage.epochs]


def start_path(models: Path, name: str, seed: int = 0, kind: str = "resnet20") -> Path:
    """Where the network of this seed is kept."""
    return models / f"{kind}-{name}-start{f'-{seed}' * (seed > 0)}.pocket"


def one_cycle(done: float) -> float:
    """The learning rate over its peak when a fraction of all steps is done: up in a quarter of them, then down to zero."""
    warm = 0.25
    if done < warm:
        return 0.04 + 0.96 * math.sin(math.pi / 2 * done / warm) ** 2
    return math.cos(math.pi / 2 * min(1.0, (done - warm) / (1 - warm))) ** 2


def train(
    name: str,
    folder: str,
    *,
    epochs: int,
    lr: float,
    weight_decay: float,
    seed: int,
    work: Path,
    models: Path = MODELS,
    again: bool = False,
    bfloat16: bool = False,
    kind: str = "resnet20",
) -> dict[str, Any]:
    training, validation = splits(name, folder)
    path = start_path(models, name, seed, kind)
    torch.manual_seed(seed)
    net = fresh(training.shape[0], kind)
    earlier: list[dict[str, Any]] = []
    if again:
        net = load_start(path, training.shape[0], kind)
        last = json.loads(path.with_suffix(".json").read_text())
        earlier = [*last.pop("earlier"), last]
        cycle = path.name.replace("-start", f"-cycle-{len(earlier) - 1}")
        write_atomically(models / cycle, path.read_bytes())
        seed, work = seed + len(earlier), work / f"cycle-{len(earlier)}"
        work.mkdir(parents=True, exist_ok=True)
    if bfloat16:
        net.compile(dynamic=False)  # copies of the network are not compiled
    curve: list[Epoch] = []
    for stage in stages(name, epochs):
        loader = training.batches(BATCH, shuffle=True, augment=stage.augment)
        done, steps = len(curve) * len(loader), epochs * len(loader)
        history = pb.fit_map(
            net,
            loader,
            epochs=stage.epochs,
            optimizer=lambda groups: torch.optim.SGD(
                groups[0]["params"], lr=lr, momentum=0.9, weight_decay=weight_decay, nesterov=True
            ),
            schedule=lambda optimizer, done=done, steps=steps: torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: one_cycle((done + step) / steps)
            ),
            autocast=torch.bfloat16 if bfloat16 else None,
            checkpoint=work / f"{stage.name}.safetensors",
            checkpoint_seconds=120.0,
            seed=seed,
            on_epoch=lambda e: print(f"epoch {e.epoch} nll {e.nll:.4f} {e.seconds:.0f} s", flush=True),
            progress=False,
        )
        curve += history.epochs
    net = copy.deepcopy(net)
    exact = pb.evaluate(net, validation.batches(500))
    size = save_start(net, training, path, seed, kind)
    small = pb.evaluate(load_start(path, training.shape[0], kind), validation.batches(500))
    record = {
        "command": f"python -m experiments.sharing.train_network --data DIR --set {name} --epochs {epochs} --lr {lr} --weight-decay {weight_decay} --seed {seed - len(earlier)}"
        + " --again" * again
        + " --bfloat16" * bfloat16
        + f" --net {kind}" * (kind != "resnet20"),
        "seed": seed,
        "epochs": epochs,
        "seconds": round(sum(e.seconds for e in curve)),
        "training_nll": [round(e.nll, 4) for e in curve],
        "validation": {
            "trained": {k: round(v, 4) for k, v in exact.items()},
            "in the file": {k: round(v, 4) for k, v in small.items()},
        },
        "bytes": size,
        "versions": versions(),
        "earlier": earlier,
    }
    write_result(path.with_suffix(".json"), record)
    return record


def save_start(net: nn.Module, training: data.DataSet, path: Path, seed: int, kind: str) -> int:
    """The network in a file, of fewer than 200 KB for ResNet-20, with sigma by Laplace at a temperature near zero; returns its bytes."""
    posterior = copy.deepcopy(net)
    found = pb.fisher_information(
        net, training.batches(BATCH, shuffle=True), batches=100, seed=seed, progress=False
    )
    sigma = pb.laplace_sigma(net, found, len(training), prior=0.2, temperature=0.001)
    pb.bayesianize(posterior, prior=pb.ZeroMean(0.2), sigma=sigma)
    pb.share(posterior, pb.Rate(lambda_=0.25, components=256))
    card = card_of(kind, architecture(training), training)
    path.parent.mkdir(parents=True, exist_ok=True)
    return pb.save(posterior, path, metadata=card.metadata()).total


def fresh(channels: int, kind: str = "resnet20") -> nn.Module:
    """The architecture, with weights from the current generator."""
    network: nn.Module = nets.by_name(kind)(in_channels=channels)
    return network.to(memory_format=torch.channels_last)


def load_start(path: Path, channels: int, kind: str = "resnet20") -> nn.Module:
    """The plain network out of its file."""
    network: nn.Module = pb.to_deterministic(pb.load(path, fresh(channels, kind)))
    return network.to(memory_format=torch.channels_last)


def teachers(path: Path, channels: int, kind: str = "resnet20") -> list[nn.Module]:
    """The network out of its file, and those of its earlier cycles."""
    earlier = sorted(path.parent.glob(path.name.replace("-start", "-cycle-[0-9]")))
    return [load_start(each, channels, kind) for each in (path, *earlier)]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--set", default="cifar10", choices=SETS)
    parser.add_argument("--net", default="resnet20", choices=NETS)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--weight-decay", type=float, default=5e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--again", action="store_true", help="one more cycle for the network that is in experiments/models"
    )
    parser.add_argument(
        "--bfloat16", action="store_true", help="compute forward passes in bfloat16, compiled"
    )
    parser.add_argument(
        "--work", type=Path, help="folder of unfinished training; runs/NET_SET_SEED by default"
    )
    given = parser.parse_args()
    work = given.work or Path("runs") / f"{given.net}_{given.set}_{given.seed}"
    work.mkdir(parents=True, exist_ok=True)
    record = train(
        given.set,
        given.data,
        epochs=given.epochs,
        lr=given.lr,
        weight_decay=given.weight_decay,
        seed=given.seed,
        work=work,
        again=given.again,
        bfloat16=given.bfloat16,
        kind=given.net,
    )
    print(f"{record['bytes']:,} bytes", json.dumps(record["validation"]))


if __name__ == "__main__":
    main()
