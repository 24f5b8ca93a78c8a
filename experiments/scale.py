"""The networks of the papers at full size, from conversion to a prediction: seconds, memory, bytes.

    python -m experiments.scale [--rows DIR]

Weights are random, with the scales and the tails of trained ones, so what is told is cost and not quality.  Every row is a process
of its own, kept in DIR as soon as it is made; run again, the experiment goes on where it was.
"""

from __future__ import annotations

import math
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from tests.zoo import mend_torchvision
from torch import Tensor, nn

import pocketbayes as pb
from experiments.markdown import MACHINE, measured, table
from experiments.record import RESULTS, command_line, kept, versions, write_result
from pocketbayes.posterior.laplace import noise_cost

RESULT = RESULTS / "scale.json"
IMAGES, DRAWS, SEED, NOISE_COST = 8, 4, 0, 0.03
LOGITS = 4.0  # their standard deviation
NUM_DATA = {"WRN-28-10": 50_000}  # of CIFAR; ImageNet's are the default
IMAGENET = 1_281_167
STAGES = ("Fisher", "convert", "share", "save", "load", "predict")


# --- networks ------------------------------------------------------------------------------------------------------


class WideBlock(nn.Module):
    """Two convolutions of a wide residual network, norm and ReLU before each."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.BatchNorm2d(inputs), nn.BatchNorm2d(outputs)])
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.skip = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[0](x).relu()
        x = x if isinstance(self.skip, nn.Identity) else self.skip(y)
        return x + self.second(self.norms[1](self.first(y)).relu())


def wide_resnet(depth: int = 28, width: int = 10) -> nn.Module:
    """WRN-28-10 of CIFAR: three groups of four blocks."""
    sizes = [16, *(width * size for size in (16, 32, 64))]
    groups = zip(sizes, sizes[1:], (1, 2, 2), strict=False)
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False)]
    for inputs, outputs, stride in groups:
        layers += [
            WideBlock(inputs if i == 0 else outputs, outputs, stride if i == 0 else 1)
            for i in range((depth - 4) // 6)
        ]
    head = (nn.BatchNorm2d(sizes[-1]), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(*layers, *head, nn.Linear(sizes[-1], 10))


def from_timm(name: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        mend_torchvision()  # timm imports it
        import timm

        network: nn.Module = timm.create_model(name, pretrained=False)
        return network

    return build


NETWORKS: dict[str, tuple[Callable[[], nn.Module], int]] = {  # with the size of its images
    "ResNet-18": (from_timm("resnet18"), 224),
    "ResNet-50": (from_timm("resnet50"), 224),
    "ResNet-101": (from_timm("resnet101"), 224),
    "WRN-28-10": (wide_resnet, 32),
    "ViT-B/16": (from_timm("vit_base_patch16_224"), 224),
}
PRESETS: dict[str, Callable[[], pb.Rate | pb.Paper]] = {"rate": pb.Rate, "paper": pb.Paper}


@torch.no_grad()
def as_if_trained(model: nn.Module, images: Tensor) -> nn.Module:
    """Weights of Laplace's law, half as large as at the start, with scales that differ by output; norms that fit them, and
    logits as far apart as those of a network that is sure of its answers: it is such that have Fisher information.
    """
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if isinstance(module, (nn.Conv2d, nn.Linear)) and isinstance(weight, nn.Parameter):
            scale = 0.5 / math.sqrt(weight[0].numel())
            law = torch.distributions.Laplace(0.0, scale)
            spread = torch.randn(len(weight), *[1] * (weight.ndim - 1)).mul(0.3).exp()
            weight.copy_(law.sample(weight.shape) * spread)
        elif isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    model.train()(images)
    head = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    head.weight.mul_(LOGITS / model.eval()(images).std())
    return model


# --- a row ---------------------------------------------------------------------------------------------------------


@contextmanager
def stage(told: dict[str, Any], name: str) -> Iterator[None]:
    """Notes seconds, those of the processor, and the largest memory of the process meanwhile."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    wall, processor = time.perf_counter(), time.process_time()
    yield
    spent = time.perf_counter() - wall, time.process_time() - processor
    told[name] = {"seconds": round(spent[0], 2), "cpu": round(spent[1], 2), "peak_mb": round(peak() / 1e6)}


def peak() -> float:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024.0 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
    return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def row(name: str, preset: str) -> dict[str, Any]:
    """One network, shared by one preset."""
    torch.manual_seed(SEED)
    build, size = NETWORKS[name]
    images = torch.randn(IMAGES, 3, size, size)
    model, told, count = as_if_trained(build(), images), dict[str, Any](), NUM_DATA.get(name, IMAGENET)
    with stage(told, "Fisher"):
        loader = images.split(1)
        fisher = pb.fisher_information(model, [(x,) for x in loader], sampled=True, progress=False)
    with stage(told, "convert"):
        bayes = pb.laplace_sigma(model, fisher, count)
        temperature = min(1.0, NOISE_COST / noise_cost(fisher, bayes))
        pb.bayesianize(model, sigma=pb.laplace_sigma(model, fisher, count, temperature=temperature))
    with stage(told, "share"):
        report = pb.share(model, PRESETS[preset](), fisher=fisher)
    del fisher, bayes
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.pocket"
        with stage(told, "save"):
            saved = pb.save(model, path)
        answers = pb.predict(model, images, samples=DRAWS).probs
        fresh = build()
        del model
        with stage(told, "load"):
            loaded = pb.load(path, fresh)
    with stage(told, "predict"):
        again = pb.predict(loaded, images, samples=DRAWS).probs
    return {
        "weights": report.weights,
        "stages": told,
        "bytes": saved.total,
        "bits": 8 * saved.total / report.weights,
        "components": report.components,
        "outliers": report.outliers,
        "blends": report.blends,
        "temperature": temperature,
        "difference": (answers - again).abs().max().item(),  # of probabilities, before the file and after it
    }


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--rows", type=Path, default=Path("scale-rows"))
    args = parser.parse_args()
    rows: dict[str, Any] = {}
    for name in NETWORKS:
        for preset in PRESETS:
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
                path = args.rows / f"{name.replace('/', '-')}-{preset}.json"
                made = kept(path, lambda n=name, p=preset: process.submit(row, n, p).result())
            rows.setdefault(name, {})[preset] = made["value"]
    write_result(RESULT, {"command": "python -m experiments.scale", "rows": rows, "versions": versions()})


# --- the page ------------------------------------------------------------------------------------------------------


def headline(result: dict[str, Any]) -> str:
    """For RESULTS.md."""
    name, found = max(result["rows"].items(), key=lambda item: item[1]["rate"]["weights"])
    stages = found["rate"]["stages"]
    cpu, most = sum(s["cpu"] for s in stages.values()), max(s["peak_mb"] for s in stages.values())
    return f"{name}, {found['rate']['weights'] / 1e6:.0f} M weights: {cpu:.0f} s of one core and {most / 1e3:.1f} GB."


def section(result: dict[str, Any]) -> str:
    """This experiment's part of its page."""
    pairs = [(name, preset, row) for name, found in result["rows"].items() for preset, row in found.items()]
    size = [
        (
            name,
            preset,
            f"{row['weights'] / 1e6:.1f} M",
            f"{row['bytes'] / 1e6:.2f} MB",
            f"{row['bits']:.2f}",
            f"{row['components']:,}",
            f"{row['outliers']:,}",
            f"{row['blends']:,}",
        )
        for name, preset, row in pairs
    ]
    spent = [
        (
            name,
            preset,
            *(f"{row['stages'][s]['cpu']:.1f} / {row['stages'][s]['peak_mb'] / 1e3:.1f}" for s in STAGES),
        )
        for name, preset, row in pairs
    ]
    return f"""## Networks at full size

{measured(result, f"seed {SEED}", f"one core of {MACHINE}")}

Definitions from timm, WRN-28-10 in the experiment itself; seeded weights with the law and the scales of trained ones. Such files
say what things cost; a trained network's weights differ, and so does its file. Sharing as the presets have it: `Rate()`, and `Paper()` with the paper's thresholds.

{table("| network | preset | weights | file | bits a weight | components | outliers | blends |", size)}

Seconds of one core, and the peak of the process's memory in GB, network and torch included: Fisher information on {IMAGES} images of drawn labels one by one,
conversion at the temperature of a noise cost of {NOISE_COST} nats, sharing, saving without a graph, loading, and {IMAGES} images by {DRAWS} draws.

{table(f"| network | preset | {' | '.join(STAGES)} |", spent)}

Probabilities before the file and after it differ by at most {max(row["difference"] for *_, row in pairs):.1g}: numbers have sixteen bits there.
"""


if __name__ == "__main__":
    main()
