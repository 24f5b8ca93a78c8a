"""Long label training: how much of a network's quality 40, 64 and 90 KB keep after 30 epochs, and in which network.

    python -m experiments.sharing.long --data DIR --parts resnet20-64000 --seeds 0 1 2
    python -m experiments.sharing.long --data DIR --parts resnet20-40000 resnet20-90000 resnet32-90000 --seeds 0
    python -m experiments.sharing.long --data DIR --probes          # short runs that choose between recipes

`pb.compress` from the network in experiments/models, which `train_network` trains (--net resnet32 for a deeper one), taught
by it and by its earlier cycles.  Logit temperatures, and a factor on sigma, are fitted to validation images; these choose
the recipe too.  Probes have one size, the first training images and few epochs, and differ from each other in one thing.
The test set is used once for each file, loaded back from disk: with 8 draws, and with one pass through the means.  Killed
and started again, a run goes on where it was.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

import pocketbayes as pb
from experiments.markdown import cost, measured, shown, table
from experiments.record import RESULTS, versions, write_result
from experiments.sharing.bench import METRICS, PRIOR, Bench, arguments, bench_of, scores
from experiments.sharing.frontier import SHORT, Part, compress, in_words
from experiments.sharing.train_network import NETS

RESULT = RESULTS / "sharing/long.json"
FOLDER, SET = "long-cifar10", "cifar10"
PASSES = 8
WAYS = {"draws": PASSES, "means": "mean"}  # of answering
RECIPE = pb.Plan(
    temperature=0.015,
    prior=PRIOR,
    epochs=30,
    finetune_epochs=0,
    lr=2e-3,
    rho_lr=1e-3,
    distillation=0.9,
    calibrate=True,
    samples=PASSES,
)
PROBE = Part(64_000, replace(RECIPE, epochs=3), tested=False, precision=SHORT, images=12_800)
PROBES: dict[str, dict[str, Any]] = {  # what differs from the first
    "base": {},
    "channels of equal sigma": {"rescaled": True},
    "almost no noise": {"temperature": 0.001},
    "lr .001": {"lr": 1e-3},
    "lr .005": {"lr": 5e-3},
    "sigma by Laplace": {"rho_lr": 0.0},
    "last epoch with frozen labels": {"epochs": 2, "finetune_epochs": 1, "finetune_lr": 1e-3},
    "labels renewed every 4 steps": {"renew_every": 4},
    "lambda rises for 3/4 of the steps": {"anneal": 0.75},
    "half of the targets from teachers": {"distillation": 0.5},
}


def made(bench: Bench, name: str, part: Part) -> dict[str, Any]:
    """The row of that name, and the file NAME.pocket under --work."""

    def make() -> dict[str, Any]:
        row = compress(bench, name, part)
        model = pb.load(bench.work / f"{name}.pocket", bench.fresh())
        row["validation"] = judged(model, bench.validation())
        row["test"] = judged(model, bench.test_images()) if part.tested else None
        return row | {"multiply_adds": multiply_adds(bench)}

    return bench.measured(name, make, part.settings(len(bench.teachers())))


def start(bench: Bench) -> dict[str, Any]:
    """The network as it came, one pass, with a logit temperature from validation images."""

    def make() -> dict[str, Any]:
        model = pb.load(bench.network, bench.fresh())
        pb.calibrate(model, bench.validation(), samples=1, sigmas=False)
        size = 4 * sum(t.numel() for t in bench.plain().state_dict().values())
        test = scores(pb.evaluate(model, bench.test_images(), samples="mean"))
        return {"bytes": size, "test": {"means": test}, "multiply_adds": multiply_adds(bench)}

    return bench.measured(f"start-{bench.kind}", make)


def judged(model: torch.nn.Module, images: Any) -> dict[str, dict[str, float]]:
    """Scores of each way of answering."""
    return {way: scores(pb.evaluate(model, images, samples=samples)) for way, samples in WAYS.items()}


@torch.no_grad()
def multiply_adds(bench: Bench) -> int:
    """Of one pass for one image."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        bench.fresh().eval()(torch.zeros(1, *bench.test_set().shape))
    return int(counter.get_total_flops()) // 2


def part_of(text: str) -> tuple[str, int]:
    """The network and the bytes that `resnet32-90000` asks for."""
    found = re.fullmatch(r"(resnet\d+)-(\d+)", text)
    if found is None or found[1] not in NETS:
        raise ValueError(
            f"{text}: no such part. Write a network of {', '.join(NETS)} and bytes: resnet20-64000."
        )
    return found[1], int(found[2])


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--parts", nargs="*", default=[], metavar="NET-BYTES")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--epochs", type=int, default=RECIPE.epochs)
    parser.add_argument("--probes", nargs="*", metavar="NAME", help="all, or those named")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    try:
        parts = [part_of(text) for text in args.parts]
    except ValueError as error:
        parser.error(str(error))
    if unknown := set(args.probes or ()) - set(PROBES):
        parser.error(f"no such probe: {', '.join(sorted(unknown))}. There are {', '.join(PROBES)}.")
    for kind, max_bytes in parts:
        bench = bench_of(args, SET, FOLDER, kind)
        start(bench)
        for seed in args.seeds:
            plan = replace(RECIPE, epochs=args.epochs, seed=seed)
            made(bench, f"{kind}-{max_bytes}-{seed}", Part(max_bytes, plan, precision=SHORT))
    if args.probes is not None:
        bench = bench_of(args, SET, f"{FOLDER}/probes")
        for name in args.probes or PROBES:
            made(bench, name, probe(**PROBES[name]))
    rows, probes = read(args.rows / FOLDER), read(args.rows / FOLDER / "probes")
    write_result(RESULT, {"command": command(rows), "rows": rows, "probes": probes, "versions": versions()})


def probe(rescaled: bool = False, **plan: Any) -> Part:
    return PROBE._replace(plan=replace(PROBE.plan, **plan), rescaled=rescaled)


def read(folder: Any) -> dict[str, Any]:
    """All rows that were made, whenever that was."""
    found = {file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}
    return {name: row.pop("value") | row for name, row in found.items()}


def command(rows: dict[str, Any]) -> str:
    """That makes these rows, and all probes."""
    found = [name.rpartition("-") for name in rows if not name.startswith("start")]
    parts, seeds = (sorted({each[place] for each in found}) for place in (0, 2))
    runs = f" --parts {' '.join(parts)} --seeds {' '.join(seeds)}" if found else ""
    return f"python -m experiments.sharing.long --data DIR{runs} --probes"


# --- what came of it ------------------------------------------------------------------------------------------


def headline(result: dict[str, Any]) -> str:
    """For RESULTS.md."""
    told = [
        f"{name} bytes {shown([r['test']['draws']['accuracy'] for r in runs], 2, 100)} %"
        for name, runs in by_part(result["rows"])
    ]
    return f"{'; '.join(told) or 'recipes compared on validation images'}."


def section(result: dict[str, Any]) -> str:
    """This experiment's part of its page."""
    rows, probes = result["rows"], result["probes"]
    paragraphs = [
        measured(result, cost(row["seconds"] for row in (*rows.values(), *probes.values()))),
        f"""From the same network as above, {describe(PROBE)} unless said otherwise. A file holds the logit temperatures that were fitted to
validation images, one for {PASSES} draws and one for a pass through the means, so NLL is calibrated.""",
    ]
    if any(row.get("test") for row in rows.values()):
        columns = "| network, at most so many bytes | bytes | epochs | answer | million multiply-adds | accuracy (%) | NLL | ECE |"
        paragraphs.append("Test images:\n\n" + table(columns, result_rows(rows)))
    if probes:
        columns = "| what was changed | bytes | sigmas times | draws | means |"
        told = f"{PROBE.images:,} images, {PROBE.plan.epochs} epochs, at most {PROBE.max_bytes:,} bytes"
        paragraphs.append(
            f"What was tried, each beside the first row: {told}. Validation images, accuracy / NLL / ECE; the test images were not used.\n\n"
            + table(columns, probe_rows(probes))
        )
    return "## Long label training\n\n" + "\n\n".join(paragraphs) + "\n"


def describe(part: Part) -> str:
    plan = part.plan
    return (
        f"temperature {plan.temperature:g}, learning rate {plan.lr:g}, of sigma {plan.rho_lr:g}, {plan.distillation:.0%} of the targets "
        f"from teachers, norms and biases in {part.precision.plain} bits"
    )


def by_part(rows: dict[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Runs of all seeds, by network and budget."""
    parts = dict.fromkeys(name.rpartition("-")[0] for name in rows if not name.startswith("start"))
    for part in parts:
        yield part, [row for name, row in rows.items() if name.rpartition("-")[0] == part]


def result_rows(rows: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    for name, row in rows.items():
        if name.startswith("start"):
            kind = name.partition("-")[2]
            yield (
                f"{kind}, as it came, in fp32",
                f"{row['bytes']:,}",
                "",
                "one pass",
                *told([row], "means", 1),
            )
    for name, runs in by_part(rows):
        kind, _, size = name.partition("-")
        sizes = " to ".join(
            f"{b:,}" for b in sorted({min(r["bytes"] for r in runs), max(r["bytes"] for r in runs)})
        )
        epochs = runs[0]["settings"]["plan"]["epochs"]
        for way, passes in (("draws", PASSES), ("means", 1)):
            answer = f"{passes} {way}" if passes > 1 else way
            yield (
                f"{kind}, {int(size):,}, {len(runs)} seed{'s' * (len(runs) > 1)}",
                sizes,
                epochs,
                answer,
                *told(runs, way, passes),
            )


def told(runs: list[dict[str, Any]], way: str, passes: int) -> Iterator[str]:
    """Cost, accuracy, NLL and ECE on the test images."""
    yield f"{passes * runs[0]['multiply_adds'] / 1e6:.0f}"
    for metric, digits, scale in zip(METRICS, (2, 4, 4), (100, 1, 1), strict=True):
        yield shown([run["test"][way][metric] for run in runs], digits, scale)


def probe_rows(probes: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for name in (name for name in PROBES if name in probes):
        row = probes[name]
        factor = row["calibration"].partition(";")[0].removeprefix("sigmas times ")
        yield name, f"{row['bytes']:,}", factor, *(in_words(row["validation"][way]) for way in WAYS)


if __name__ == "__main__":
    main()
