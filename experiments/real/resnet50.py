"""ResNet-50 with real ImageNet weights, compressed without training on 300 images without labels.

    python -m experiments.real.resnet50 --weights resnet50_imagenet.safetensors --images DIR

`compress` at its defaults with `epochs=0`, to two sizes, beside two plain ways to round in as many bytes, their norms'
statistics taken anew on the same 300 images.  DIR holds images_224.zip, whose first 300 images are these, and
validation_2000.zip, on which every row is tested once.  Rows are kept in --rows and made where they are missing; a
killed compression goes on from its posterior, which is kept in --runs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import pocketbayes as pb
from experiments.markdown import MACHINE, measured, table
from experiments.real.imagenet import EASY, HELD_OUT, images, inputs, resnet50
from experiments.real.rivals import ROUNDINGS, rival
from experiments.real.scores import logits_of, paired, percent, scores
from experiments.record import RESULTS, command_line, kept, versions, write_result

RESULT = RESULTS / "real/resnet50.json"
CALIBRATION, BATCH, TEST_BATCH = 300, 20, 8
ASKED = {9_500_000: 0.010, 7_000_000: 0.025}  # bytes, and the accuracy that they may cost
OURS, START = "compress", "start"


class Row(NamedTuple):
    """A way to compress, and a size."""

    method: str
    max_bytes: int = 0

    @property
    def name(self) -> str:
        return f"{self.method}-{self.max_bytes}" if self.max_bytes else self.method


ROWS = [Row(START), *(Row(m, size) for m in (OURS, *ROUNDINGS) for size in reversed(ASKED))]


def arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--weights", type=Path, required=True, help="safetensors of the trained network")
    parser.add_argument("--images", type=Path, required=True, help="folder of the two zip files")
    parser.add_argument("--rows", type=Path, default=RESULTS / "real/rows/resnet50", help="finished rows")
    parser.add_argument("--runs", type=Path, default=Path("runs/resnet50"), help="files and checkpoints")
    parser.add_argument("--only", choices=[row.name for row in ROWS], help="make this row alone")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def calibration(folder: Path) -> list[tuple[Tensor]]:
    """Batches of inputs, without labels."""
    x, _ = images(folder / EASY, slice(0, CALIBRATION))
    return [(inputs(part),) for part in x.split(BATCH)]


def compressed(args: argparse.Namespace, row: Row) -> dict[str, Any]:
    """The file of that size, in --runs; what it took."""
    torch.set_num_threads(args.threads)
    started, cpu = time.monotonic(), time.process_time()
    report = pb.compress(
        resnet50(args.weights),
        calibration(args.images),
        path=args.runs / f"{row.name}.pocket",
        max_bytes=row.max_bytes,
        plan=pb.Plan(epochs=0),
        checkpoints=args.runs / row.name,
        progress=False,
    )
    return {
        "bytes": report.bytes,
        "stages": {stage.name: round(stage.seconds) for stage in report.stages},
        "posterior": next(stage.note for stage in report.stages if stage.name == "posterior"),
        "seconds": round(time.monotonic() - started),
        "cpu_seconds": round(time.process_time() - cpu),
        "peak_gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }


def alone(args: argparse.Namespace, row: Row) -> dict[str, Any]:
    """`compressed` in a process of its own, whose peak of memory is its own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(compressed, args, row).result()


def made(args: argparse.Namespace, row: Row) -> dict[str, Any]:
    """A row: what compression took, and what the 2,000 images say."""
    network, facts = resnet50(args.weights), dict[str, Any]()
    if row.method == OURS:
        made = args.rows / f"{row.name}-compression.json"
        facts = kept(made, lambda: alone(args, row))["value"]
        pb.load(args.runs / f"{row.name}.pocket", network)
    elif row.method != START:
        started = time.process_time()
        network, size = rival(network, row.method, row.max_bytes, calibration(args.images))
        facts = {"bytes": size, "cpu_seconds": round(time.process_time() - started)}
    pixels, labels = images(args.images / HELD_OUT)
    logits = logits_of(network, (inputs(x) for x in pixels.split(TEST_BATCH)))
    return facts | scores(logits, labels) | {"hits": (logits.argmax(1) == labels).int().tolist()}


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    args.runs.mkdir(parents=True, exist_ok=True)
    for row in ROWS:
        if args.only in (None, row.name):
            kept(args.rows / f"{row.name}.json", lambda row=row: made(args, row))
    parts = {row.name: args.rows / f"{row.name}.json" for row in ROWS}
    if all(path.exists() for path in parts.values()):
        rows = {name: kept(path, dict)["value"] for name, path in parts.items()}
        write_result(RESULT, summarised(rows) | {"versions": versions(), "command": COMMAND})


COMMAND = "python -m experiments.real.resnet50 --weights resnet50_imagenet.safetensors --images DIR"


def summarised(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The rows, each image's hit replaced by the paired difference from the start."""
    hits = {name: row.pop("hits") for name, row in rows.items()}
    for name, row in rows.items():
        row["gain"], row["gain_error"] = paired(hits[name], hits[START])
    return {"rows": rows, "images": len(hits[START])}


# --- the page ----------------------------------------------------------------------------------------------------

WORDS = {START: "as it came, fp32", OURS: "`compress`, `epochs=0`"} | {
    "palette": "k-means palette by layer",
    "uniform": "rounding, one step a channel",
}


def section(result: dict[str, Any]) -> str:
    rows, ours = result["rows"], [row for row in ROWS if row.method == OURS]
    took = "; ".join(
        f"to {row.max_bytes / 1e6:g} MB {of['cpu_seconds'] / 60:.1f} minutes of CPU time, {of['peak_gigabytes']:.1f} GB"
        for row in ours
        for of in [rows[row.name]]
    )
    lines = (
        (
            WORDS[row.method],
            f"{rows[row.name].get('bytes', 4 * 25_610_152):,}",
            percent(rows[row.name]),
            "" if row.method == START else f"{100 * of['gain']:+.2f} ± {100 * of['gain_error']:.2f}",
            f"{of['nll']:.4f}",
            f"{of['calibrated_nll']:.4f}",
        )
        for row in ROWS
        for of in [rows[row.name]]
    )
    return "\n\n".join(
        [
            "## ResNet-50 without training",
            measured(result, f"on {MACHINE}"),
            f"25.6 M weights trained by others on ImageNet, compressed on {CALIBRATION} images without labels: posterior, "
            "labels, norms' statistics and the values of the codebook, with no setting but `epochs=0` and the size. "
            f"Tested once on {result['images']:,} images of ImageNet's validation set, one pass through the means. The "
            "rivals round the same weights, are entropy-coded the same way, have their other numbers in 16 bits and their "
            "norms' statistics taken anew on the same images. The difference from the start is paired by image. "
            f"Calibrated: logits divided by a temperature that every fourth image chose, scored on the rest. "
            f"Compression took: {took}.",
            table("| | bytes | accuracy, % | points from the start | NLL | calibrated NLL |", lines),
        ]
    )


def headline(result: dict[str, Any]) -> str:
    told = [
        f"{rows['bytes'] / 1e6:.2f} MB {100 * rows['gain']:+.1f} points"
        for row in ROWS
        if row.method == OURS
        for rows in [result["rows"][row.name]]
    ]
    return f"25.6 M weights, 300 images, no labels: {' and '.join(told)} of top-1 from 102.4 MB in fp32."


if __name__ == "__main__":
    main()
