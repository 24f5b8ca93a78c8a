"""Train ResNet-20 from scratch, the plain network that our own pocket files start from.

    python -m experiments.train_network --data DIR --set cifar10 --epochs 40

SGD with momentum and a one-cycle schedule; random shifts (and mirror images for CIFAR-10).  Validation images are held out
of the training set, the test set is not touched.  Killed and started again, it goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

import pocketbayes as pb
from pocketbayes import data, nets
from pocketbayes.files import write_atomically

BATCH = 128
HELD_OUT = {"cifar10": 0.05, "mnist": 0.05, "fashion-mnist": 0.05}


def splits(name: str, folder: str, seed: int) -> tuple[data.DataSet, data.DataSet]:
    """(training, validation) images; every experiment that starts from these networks holds out the same ones."""
    return data.hold_out(data.load(name, folder), HELD_OUT[name], seed)


def augmentation(name: str) -> Any:
    """Shifts of up to four pixels for photographs, with mirror images; of two for digits, without."""
    if name == "mnist":
        return lambda x: data.crop_flip(x, padding=2, flip=False)
    return data.crop_flip


def train(
    name: str, folder: str, *, epochs: int, lr: float, weight_decay: float, seed: int, work: Path
) -> dict[str, Any]:
    training, validation = splits(name, folder, seed)
    torch.manual_seed(seed)
    net = nets.resnet20(in_channels=training.shape[0]).to(memory_format=torch.channels_last)
    loader = training.batches(BATCH, shuffle=True, augment=augmentation(name))
    steps = epochs * len(loader)
    history = pb.fit_map(
        net,
        loader,
        epochs=epochs,
        optimizer=lambda groups: torch.optim.SGD(
            groups[0]["params"], lr=lr, momentum=0.9, weight_decay=weight_decay, nesterov=True
        ),
        schedule=lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(
            optimizer, lr, total_steps=steps + 1, pct_start=0.25
        ),
        checkpoint=work / "training.safetensors",
        checkpoint_seconds=120.0,
        seed=seed,
        on_epoch=lambda e: print(f"epoch {e.epoch} nll {e.nll:.4f} {e.seconds:.0f} s", flush=True),
        progress=False,
    )
    scores = pb.evaluate(net, validation.batches(500))
    write_atomically(
        work / "network.safetensors", save({k: v.contiguous() for k, v in net.state_dict().items()})
    )
    return {
        "command": f"python -m experiments.train_network --data DIR --set {name} --epochs {epochs} --lr {lr} --weight-decay {weight_decay} --seed {seed}",
        "seed": seed,
        "epochs": epochs,
        "seconds": round(sum(e.seconds for e in history.epochs)),
        "training_nll": [round(e.nll, 4) for e in history.epochs],
        "validation": {k: round(v, 4) for k, v in scores.items()},
        "versions": {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "threads": torch.get_num_threads(),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True)
    parser.add_argument("--set", default="cifar10", choices=HELD_OUT)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--weight-decay", type=float, default=5e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--work", type=Path, help="folder of checkpoint, network and record; runs/resnet20_SET by default"
    )
    given = parser.parse_args()
    work = given.work or Path("runs") / f"resnet20_{given.set}"
    work.mkdir(parents=True, exist_ok=True)
    record = train(
        given.set,
        given.data,
        epochs=given.epochs,
        lr=given.lr,
        weight_decay=given.weight_decay,
        seed=given.seed,
        work=work,
    )
    write_atomically(work / "record.json", json.dumps(record, indent=1).encode())
    print(json.dumps(record["validation"]))


if __name__ == "__main__":
    main()
