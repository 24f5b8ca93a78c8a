"""As many draws as an input needs: mean passes against NLL, for several bounds.  ResNet-20/CIFAR-10, from its file.

    python -m experiments.stopping --data DIR --keep FOLDER

Every image is given 30 draws once; what answers stopped earlier would have been follows from these, since draw s of an
input is the same whatever its batch mates do.  Temperatures, and the bound that the library has for a default, are
chosen on validation images, the first 2,000 of those that every experiment with this network holds out.  Which draws
come first is luck that all images have in common, so figures are means over several orders of the mirrored pairs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

import pocketbayes as pb
from experiments.markdown import measured, one_core, table
from experiments.record import RESULTS, command_line, versions, write_result
from experiments.sharing.train_network import MODELS, splits
from pocketbayes import data, metrics
from pocketbayes.likelihood import Categorical
from pocketbayes.prediction.answer import Predictive
from pocketbayes.prediction.average import MOST, PAIRED, PRIOR_ROUNDS, TOLERANCE
from pocketbayes.prediction.held_out import HeldOutClasses
from pocketbayes.prediction.reduce import Classes
from pocketbayes.prediction.scales import Scale
from pocketbayes.runs.files import write_atomically

RESULT = RESULTS / "stopping.json"
FILE = MODELS / "resnet20-cifar10.pocket"
VALIDATION = 2000  # images
BOUNDS = (0.005, 0.01, 0.02, 0.03, 0.04, 0.05)
FIXED = (1, 2, 4, 8, 16, MOST)
ALONE = (2, 4, 8)  # draws of as many pairs
ORDERS = 10  # of the pairs, the first their own


class Said(NamedTuple):
    """What was said of N images: [1, N, C] by the means, [S, N, C] by the draws; and the labels."""

    means: Tensor
    draws: Tensor
    labels: Tensor


def asked(model: nn.Module, images: data.DataSet, path: Path) -> Said:
    """Kept in a file, since it takes a while."""
    if not path.exists():
        x = images.inputs()
        means, draws = (pb.predict(model, x, samples=way, draws=True).draws for way in ("mean", MOST))
        assert means is not None and draws is not None
        write_atomically(path, to_bytes({"means": means, "draws": draws}))
    return Said(**load_file(path), labels=images.y)


def orders() -> list[Tensor]:
    """Of the draws; pairs stay together."""
    shuffled = (
        torch.randperm(MOST // 2, generator=torch.Generator().manual_seed(k)) for k in range(1, ORDERS)
    )
    pairs = [torch.arange(MOST // 2), *shuffled]
    return [torch.stack([2 * order, 2 * order + 1], 1).flatten() for order in pairs]


def as_needed(draws: Tensor, bound: float) -> Predictive:
    """The library's answer, by its own rule, from draws that were made before: [S, N, C], in place of a network."""

    def outputs(wanted: Callable[[], Tensor]) -> Iterator[Tensor]:
        for draw in draws:
            if not len(at := wanted()):
                return
            yield draw[at].log()

    return Classes(Categorical(), keep=False).as_needed(outputs, draws.shape[1], bound)


def at_temperature(draws: Tensor, temperature: float) -> Tensor:
    """The mean probabilities, [N, C]."""
    return Classes(Categorical(), keep=False, scale=Scale(temperature))(iter(draws.log())).probs


# --- rows of the tables ------------------------------------------------------------------------------------------


def scores(probs: Tensor, labels: Tensor) -> dict[str, float]:
    return {name: getattr(metrics, name)(probs, labels) for name in ("accuracy", "nll", "ece")}


def averaged(rows: Iterable[dict[str, float]]) -> dict[str, float]:
    """Means over orders, and the standard error of the NLL's."""
    rows = list(rows)
    found = {name: round(float(np.mean([row[name] for row in rows])), 5) for name in rows[0]}
    error = np.std([row["nll"] for row in rows], ddof=1) / math.sqrt(len(rows)) if len(rows) > 1 else 0.0
    return {**found, "error": round(float(error), 5)}


def fixed_row(name: str, pairs: list[tuple[Said, Said]], which: Callable[[Said], Tensor]) -> dict[str, Any]:
    """The same number of draws for all, with a temperature from validation data and without; a pair for each order."""
    rows = []
    for validation, test in pairs:
        temperature = HeldOutClasses(which(validation), validation.labels).best_temperature()
        plain = scores(which(test).mean(0), test.labels)
        scaled = scores(at_temperature(which(test), temperature), test.labels)
        rows.append((temperature, plain, scaled))
    return {
        "way": name,
        "passes": len(which(pairs[0][1])),
        "temperature": round(float(np.mean([row[0] for row in rows])), 4),
        "plain": averaged(row[1] for row in rows),
        "calibrated": averaged(row[2] for row in rows),
    }


def fixed_rows(validation: Said, test: Said) -> Iterator[dict[str, Any]]:
    def drawn(name: str, chosen: list[Tensor]) -> dict[str, Any]:
        each = [
            (validation._replace(draws=validation.draws[at]), test._replace(draws=test.draws[at]))
            for at in chosen
        ]
        return fixed_row(name, each, lambda said: said.draws)

    yield fixed_row("means", [(validation, test)], lambda said: said.means)
    for n in ALONE:
        yield drawn(f"{n} draws, not mirrored", [order[: 2 * n : 2] for order in orders()])
    for n in FIXED:
        chosen = orders() if n < MOST else orders()[:1]
        yield drawn(f"{n} draws" if n > 1 else "1 draw", [order[:n] for order in chosen])


def bound_row(said: Said, bound: float) -> dict[str, Any]:
    """Stopped at that bound."""
    answers = [as_needed(said.draws[order], bound) for order in orders()]
    passes = torch.stack([answer.passes for answer in answers if answer.passes is not None]).double()
    own = scores(answers[0].probs, said.labels)
    return {
        "bound": bound,
        "passes": round(passes.mean().item(), 3),
        "with all": round((passes == MOST).double().mean().item(), 4),
        "own order": {"passes": round(passes[0].mean().item(), 3), "nll": round(own["nll"], 5)},
        **averaged(scores(answer.probs, said.labels) for answer in answers),
    }


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--data", required=True, help="a folder with cifar10.npz")
    parser.add_argument("--keep", type=Path, required=True, help="a folder for what every draw said")
    args = parser.parse_args()
    torch.set_num_threads(1)
    started = time.process_time()
    model = pb.load(FILE, pb.nets.resnet20()).eval()
    held_out = splits("cifar10", args.data)[1].subset(torch.arange(VALIDATION))
    validation = asked(model, held_out, args.keep / "validation.safetensors")
    test = asked(model, data.load("cifar10", args.data, "test"), args.keep / "test.safetensors")
    result = {
        "command": "python -m experiments.stopping --data DIR --keep FOLDER",
        "file": {"name": FILE.name, "bytes": FILE.stat().st_size},
        "images": {"validation": len(validation.labels), "test": len(test.labels)},
        "default": TOLERANCE,
        "orders": ORDERS,
        "fixed": list(fixed_rows(validation, test)),
        "validation": [bound_row(validation, bound) for bound in BOUNDS],
        "test": [bound_row(test, bound) for bound in BOUNDS],
        "all draws on validation": averaged([scores(validation.draws.mean(0), validation.labels)]),
        "seconds": round(time.process_time() - started),
        "versions": versions(),
    }
    write_result(RESULT, result)


# --- the page ----------------------------------------------------------------------------------------------------


def of_default(result: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = next(row for row in result["test"] if row["bound"] == result["default"])
    return row


def headline(result: dict[str, Any]) -> str:
    """For RESULTS.md."""
    row, most = of_default(result), result["fixed"][-1]
    return (
        f"with {row['passes']:.1f} passes on the mean the NLL is {row['nll']:.4f}, with {most['passes']} draws of every "
        f"input {most['plain']['nll']:.4f}; one pass with a temperature has {result['fixed'][0]['calibrated']['nll']:.4f}."
    )


def with_error(row: dict[str, float]) -> str:
    return f"{row['nll']:.4f}" + (f" ± {row['error']:.4f}" if row["error"] else "")


def section(result: dict[str, Any]) -> str:
    """This experiment's part of its page."""
    most, images, own = result["fixed"][-1]["plain"]["nll"], result["images"], of_default(result)["own order"]
    fixed = (
        (
            row["way"],
            row["passes"],
            f"{100 * row['plain']['accuracy']:.2f} %",
            with_error(row["plain"]),
            f"{row['plain']['ece']:.4f}",
            f"{row['temperature']:.3f}",
            with_error(row["calibrated"]),
            f"{row['calibrated']['ece']:.4f}",
        )
        for row in result["fixed"]
    )
    bounds = (
        (
            f"{row['bound']:g}" + " (default)" * (row["bound"] == result["default"]),
            f"{row['passes']:.2f}",
            f"{100 * row['with all']:.1f} %",
            f"{100 * row['accuracy']:.2f} %",
            with_error(row),
            f"{row['nll'] - most:+.4f}",
            f"{row['ece']:.4f}",
        )
        for row in result["test"]
    )
    return f"""## How many passes an input needs

{measured(result, one_core(result["seconds"]))}

The file {result["file"]["name"]} ({result["file"]["bytes"]:,} bytes), {images["test"]:,} test images. Temperatures are fitted on
{images["validation"]:,} validation images, and the default bound was chosen there. Which draws come first is luck that all images
have in common, so figures are means over {result["orders"]} orders of the same {MOST // 2} mirrored pairs of draws, ± their standard
error over these. Draws that are not mirrored are the first of as many pairs.

{table("| | passes | accuracy | NLL | ECE | temperature | NLL with it | ECE with it |", fixed)}

Stopped when the standard error of an image's probabilities, as a length over the classes, is within a bound, after a pair at the
earliest and {MOST} draws at the latest. It comes from how far the means of pairs are apart, and to begin with, as if from {PRIOR_ROUNDS} pairs more, from
how far draws are apart: a pair's mean is taken to have {PAIRED:g} of the variance of a draw. Without temperature:

{table(f"| bound | mean passes | images with all draws | accuracy | NLL | above {MOST} draws | ECE |", bounds)}

In the order that seed 0 has, the default takes {own["passes"]:.2f} passes, and its NLL is {own["nll"]:.4f}.
"""


if __name__ == "__main__":
    main()
