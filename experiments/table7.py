"""Table 7 of the sharing paper: telling foreign images apart.  ResNet-20, CIFAR-10 against SVHN and CIFAR-100.

    python -m experiments.table7 --data DIR --ood OTHER     # a folder with svhn_1083.npz and cifar100_916.npz: x

By the entropy of the prediction: the trained network, its posterior, the posterior shared by the paper's algorithm, and
our pocket file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import pocketbayes as pb
from experiments.record import cost, kept, versions, write_result
from experiments.resnet20 import DRAWS, Bench, arguments, bench_of
from experiments.table5 import paper_file
from experiments.train_network import MODELS
from pocketbayes import metrics
from pocketbayes.data import Scaling

RESULT = Path(__file__).with_suffix(".json")
FOREIGN = {"SVHN": "svhn_1083.npz", "CIFAR-100": "cifar100_916.npz"}


def foreign(path: Path, scaling: Scaling) -> Tensor:
    """Images as CIFAR-10's are given to the network, [N, 3, 32, 32]."""
    with np.load(path) as file:
        return scaling.apply(torch.from_numpy(file["x"]).permute(0, 3, 1, 2))


def models(bench: Bench, files: Sequence[Path]) -> Iterator[tuple[str, Callable[[], nn.Module]]]:
    """By name, each loaded when it is needed."""
    yield "deterministic", bench.plain
    yield "posterior", lambda: bench.posterior().model
    yield "shared by the paper's algorithm", lambda: pb.load(paper_file(bench), bench.fresh())
    for path in files:
        yield f"ours, {path.stat().st_size:,} bytes", lambda path=path: pb.load(path, bench.fresh())


def plain(name: str) -> str:
    """As part of a file's name."""
    return re.sub(r"\W+", "-", name.lower())


def measure(model: nn.Module, bench: Bench, others: dict[str, Tensor]) -> dict[str, dict[str, float]]:
    """AUROC, AUPR and FPR85 by the entropy of the prediction, foreign images being the positive class."""
    inside = pb.predict(model, bench.test_set().inputs(), samples=DRAWS).entropy
    found = {}
    for name, x in others.items():
        outside = pb.predict(model, x, samples=DRAWS).entropy
        found[name] = {
            "auroc": metrics.auroc(inside, outside),
            "aupr": metrics.aupr(inside, outside),
            "fpr85": metrics.fpr_at_tpr(inside, outside, 0.85),
        }
    return found


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--ood", type=Path, required=True, help="folder of the foreign images")
    parser.add_argument("--pockets", type=Path, nargs="*", default=[MODELS / "resnet20-cifar10.pocket"])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    bench = bench_of(args)
    others = {name: foreign(args.ood / file, bench.test_set().scaling) for name, file in FOREIGN.items()}
    parts = {
        name: kept(args.rows / f"ood-{plain(name)}.json", lambda make=make: measure(make(), bench, others))
        for name, make in models(bench, args.pockets)
    }
    result = {
        "command": "python -m experiments.table7 --data DIR --ood OTHER",
        "images": {name: len(x) for name, x in others.items()},
        "rows": {name: part["value"] for name, part in parts.items()},
        "seconds": sum(part["seconds"] for part in parts.values()),
        "versions": versions(),
    }
    write_result(RESULT, result)


def auroc_error(area: float, positives: int, negatives: int = 10_000) -> float:
    """Standard error of an AUROC after Hanley and McNeil (1982)."""
    one, other = area / (2 - area), 2 * area**2 / (1 + area)
    variance = area * (1 - area) + (positives - 1) * (one - area**2) + (negatives - 1) * (other - area**2)
    return math.sqrt(variance / (positives * negatives))


def section(result: dict[str, Any]) -> str:
    """This experiment's part of RESULTS.md."""
    sets = result["images"]
    lines = [
        "| | " + " | ".join(f"{name}: AUROC | AUPR | FPR85" for name in sets) + " |",
        "|---" * (1 + 3 * len(sets)) + "|",
    ]
    for name, found in result["rows"].items():
        cells = [f"{found[other][key]:.3f}" for other in sets for key in ("auroc", "aupr", "fpr85")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    table = "\n".join(lines)
    spread = {
        name: [auroc_error(found[name]["auroc"], count) for found in result["rows"].values()]
        for name, count in sets.items()
    }
    errors = ", ".join(f"at most {max(each):.3f} for {name}" for name, each in spread.items())
    images = ", ".join(f"{count:,} of {name}" for name, count in sets.items())
    return f"""## Table 7: foreign images

`{result["command"]}`, seed 0, {cost([result["seconds"]])}, torch {result["versions"]["torch"]}. ResNet-20 trained on CIFAR-10; its 10,000 test images against {images}, ranked by the entropy of the prediction, {DRAWS} draws.
Foreign images are the positive class, so AUPR depends on how many there are: chance is {", ".join(f"{count / (count + 10_000):.3f}" for count in sets.values())}. The paper's ResNet-18 against all of SVHN: .887 / .840 / .293.

{table}

Standard errors of the AUROCs (Hanley and McNeil): {errors}.
"""


if __name__ == "__main__":
    main()
