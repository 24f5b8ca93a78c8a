"""Table 7 of the sharing paper: telling out-of-distribution images apart.  ResNet-20, CIFAR-10 against SVHN and CIFAR-100.

    python -m experiments.sharing.table7 --data DIR --ood OTHER     # a folder with svhn_1083.npz and cifar100_916.npz: x

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
from experiments.markdown import cost, measured, table
from experiments.record import RESULTS, kept, versions, write_result
from experiments.sharing.bench import DRAWS, Bench, arguments, bench_of
from experiments.sharing.table5 import paper_file
from experiments.sharing.train_network import MODELS
from pocketbayes import metrics
from pocketbayes.data import Scaling

RESULT = RESULTS / "sharing/table7.json"
OOD = {"SVHN": "svhn_1083.npz", "CIFAR-100": "cifar100_916.npz"}


def load_ood(path: Path, scaling: Scaling) -> Tensor:
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


def as_file_name(name: str) -> str:
    """As part of a file's name."""
    return re.sub(r"\W+", "-", name.lower())


def measure(model: nn.Module, bench: Bench, others: dict[str, Tensor]) -> dict[str, dict[str, float]]:
    """AUROC, AUPR and FPR85 by the entropy of the prediction, out-of-distribution images being the positive class."""
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
    parser.add_argument("--ood", type=Path, required=True, help="folder of the out-of-distribution images")
    parser.add_argument("--pockets", type=Path, nargs="*", default=[MODELS / "resnet20-cifar10.pocket"])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    bench = bench_of(args)
    others = {name: load_ood(args.ood / file, bench.test_set().scaling) for name, file in OOD.items()}
    parts = {
        name: kept(
            args.rows / f"ood-{as_file_name(name)}.json", lambda make=make: measure(make(), bench, others)
        )
        for name, make in models(bench, args.pockets)
    }
    result = {
        "command": "python -m experiments.sharing.table7 --data DIR --ood OTHER",
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


def headline(result: dict[str, Any]) -> str:
    """For RESULTS.md."""
    areas = {
        row: [f"{found[name]['auroc']:.3f}" for name in result["images"]]
        for row, found in result["rows"].items()
        if row.startswith(("deterministic", "ours"))
    }
    told = "; ".join(f"{row} {' and '.join(each)}" for row, each in areas.items())
    return f"AUROC against {' and '.join(result['images'])}: {told}."


def section(result: dict[str, Any]) -> str:
    """This experiment's part of its page."""
    sets, rows = result["images"], result["rows"]
    cells = (
        (name, *(f"{found[other][key]:.3f}" for other in sets for key in ("auroc", "aupr", "fpr85")))
        for name, found in rows.items()
    )
    worst = {
        name: max(auroc_error(found[name]["auroc"], count) for found in rows.values())
        for name, count in sets.items()
    }
    errors = ", ".join(f"at most {error:.3f} for {name}" for name, error in worst.items())
    images = ", ".join(f"{count:,} of {name}" for name, count in sets.items())
    chance = ", ".join(f"{count / (count + 10_000):.3f}" for count in sets.values())
    return f"""## Table 7: out-of-distribution images

{measured(result, "seed 0", cost([result["seconds"]]))} ResNet-20 trained on CIFAR-10. Its 10,000 test images against {images},
ranked by the entropy of the prediction, {DRAWS} draws. Out-of-distribution images are the positive class, so AUPR depends on how
many there are: chance is {chance}. The paper's ResNet-18 against all of SVHN: .887 / .840 / .293.

{table("| | " + " | ".join(f"{name}: AUROC | AUPR | FPR85" for name in sets) + " |", cells)}

Standard errors of the AUROCs (Hanley and McNeil): {errors}.
"""


if __name__ == "__main__":
    main()
