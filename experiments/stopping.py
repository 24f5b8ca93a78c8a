"""As many draws as an input needs: mean passes against NLL, for several bounds.  ResNet-20/CIFAR-10, from its file.

    python -m experiments.stopping --data DIR

Every image is given 30 draws once; what answers stopped earlier would have been follows from these, since draw s of an
input is the same whatever its batch mates do.  Temperatures, and the bound that the library has for a default, are
chosen on validation images, the first 2,000 of those that every experiment with this network holds out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

import pocketbayes as pb
from experiments.markdown import measured, one_core, table
from experiments.record import RESULTS, command_line, versions, write_result
from experiments.sharing.train_network import MODELS, splits
from pocketbayes import data, metrics
from pocketbayes.likelihood import Categorical
from pocketbayes.prediction.answer import Predictive
from pocketbayes.prediction.answering import MOST, TOLERANCE
from pocketbayes.prediction.held_out import HeldOutClasses
from pocketbayes.prediction.reduce import Classes
from pocketbayes.prediction.scales import Scale

RESULT = RESULTS / "stopping.json"
FILE = MODELS / "resnet20-cifar10.pocket"
VALIDATION = 2000  # images
BOUNDS = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1)
FIXED = (1, 4, 8, 10, 16, MOST)


def asked(model: nn.Module, images: data.DataSet) -> tuple[Tensor, Tensor]:
    """Probabilities at the means [1, N, C], and of every draw [S, N, C]."""
    x = images.inputs()
    draws = (
        pb.predict(model, x, samples=samples, draws=True, progress=True).draws for samples in ("mean", MOST)
    )
    means, drawn = (d for d in draws if d is not None)
    return means, drawn


def stored(draws: Tensor) -> Callable[[Callable[[], Tensor]], Iterator[Tensor]]:
    """Draws that were made before, [S, N, C], in place of a network: as logits, for the inputs wanted."""

    def outputs(wanted: Callable[[], Tensor]) -> Iterator[Tensor]:
        for draw in draws:
            if not len(at := wanted()):
                return
            yield draw[at].log()

    return outputs


def as_needed(draws: Tensor, bound: float) -> Predictive:
    return Classes(Categorical(), keep=False).as_needed(stored(draws), draws.shape[1], bound)


def calibrated(draws: Tensor, temperature: float) -> Tensor:
    """The mean probabilities at a logit temperature, [N, C]."""
    return Classes(Categorical(), keep=False, scale=Scale(temperature))(iter(draws.log())).probs


def scores(probs: Tensor, labels: Tensor) -> dict[str, float]:
    found = {name: getattr(metrics, name)(probs, labels) for name in ("accuracy", "nll", "ece")}
    return {name: round(value, 5) for name, value in found.items()}


def fixed_rows(
    validation: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], known: Tensor, labels: Tensor
) -> Iterator[dict[str, Any]]:
    """Means, and several numbers of draws, each with a temperature of its own."""
    ways = {"means": (validation[0], test[0])}
    ways |= {f"{n} draw{'s' * (n > 1)}": (validation[1][:n], test[1][:n]) for n in FIXED}
    for name, (held_out, draws) in ways.items():
        temperature = HeldOutClasses(held_out, known).best_temperature()
        yield {
            "way": name,
            "passes": len(draws),
            "plain": scores(draws.mean(0), labels),
            "temperature": temperature,
            "calibrated": scores(calibrated(draws, temperature), labels),
        }


def bound_row(draws: Tensor, labels: Tensor, bound: float) -> dict[str, Any]:
    answer = as_needed(draws, bound)
    assert answer.passes is not None
    at_most = (answer.passes == MOST).double().mean().item()
    passes = {"passes": round(answer.passes.double().mean().item(), 3), "at most": round(at_most, 4)}
    return {"bound": bound, **passes, **scores(answer.probs, labels)}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--data", required=True, help="a folder with cifar10.npz")
    args = parser.parse_args()
    torch.set_num_threads(1)
    started = time.process_time()
    model = pb.load(FILE, pb.nets.resnet20()).eval()
    held_out = splits("cifar10", args.data)[1].subset(slice(0, VALIDATION))
    images = data.load("cifar10", args.data, "test", scaling=held_out.scaling)
    validation, test = asked(model, held_out), asked(model, images)
    result = {
        "command": "python -m experiments.stopping --data DIR",
        "file": {"name": FILE.name, "bytes": FILE.stat().st_size},
        "images": {"validation": len(held_out), "test": len(images)},
        "default": TOLERANCE,
        "fixed": list(fixed_rows(validation, test, held_out.y, images.y)),
        "validation": [bound_row(validation[1], held_out.y, bound) for bound in BOUNDS],
        "test": [bound_row(test[1], images.y, bound) for bound in BOUNDS],
        "all draws on validation": scores(validation[1].mean(0), held_out.y),
        "seconds": round(time.process_time() - started),
        "versions": versions(),
    }
    write_result(RESULT, result)


def of_default(result: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = next(row for row in result["test"] if row["bound"] == result["default"])
    return row


def headline(result: dict[str, Any]) -> str:
    """For RESULTS.md."""
    row, most = of_default(result), result["fixed"][-1]
    return (
        f"with {row['passes']:.1f} passes on the mean the NLL is {row['nll']:.4f}, with {most['passes']} draws of every "
        f"input {most['plain']['nll']:.4f}; one pass with a temperature {result['fixed'][0]['calibrated']['nll']:.4f}."
    )


def section(result: dict[str, Any]) -> str:
    """This experiment's part of its page."""
    fixed = (
        (
            row["way"],
            row["passes"],
            f"{100 * row['plain']['accuracy']:.2f} %",
            *(f"{row['plain'][key]:.4f}" for key in ("nll", "ece")),
            f"{row['temperature']:.3f}",
            *(f"{row['calibrated'][key]:.4f}" for key in ("nll", "ece")),
        )
        for row in result["fixed"]
    )
    bounds = (
        (
            f"{row['bound']:g}" + " (default)" * (row["bound"] == result["default"]),
            f"{row['passes']:.2f}",
            f"{100 * row['at most']:.1f} %",
            f"{100 * row['accuracy']:.2f} %",
            *(f"{row[key]:.4f}" for key in ("nll", "ece")),
        )
        for row in result["test"]
    )
    images = result["images"]
    return f"""## Passes: the means, draws, and as many draws as an input needs

{measured(result, one_core(result["seconds"]))}

The file {result["file"]["name"]} ({result["file"]["bytes"]:,} bytes), {images["test"]:,} test images. Temperatures are fitted on
{images["validation"]:,} validation images, and the default bound was chosen there.

{table("| | passes | accuracy | NLL | ECE | temperature | NLL with it | ECE with it |", fixed)}

Stopped when the standard error of an image's probabilities, as a length over the classes, is within a bound, after 4 draws at the
earliest and {result["fixed"][-1]["passes"]} at the latest; without temperature:

{table("| bound | mean passes | images with all draws | accuracy | NLL | ECE |", bounds)}
"""


if __name__ == "__main__":
    main()
