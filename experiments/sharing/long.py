"""Long label training: how much of a network's quality 40, 64 and 90 KB keep after many epochs, and in which network.

    python -m experiments.sharing.long --data DIR --parts resnet20-64000 --seeds 0 1 2
    python -m experiments.sharing.long --data DIR --parts resnet20-40000 resnet20-90000 resnet32-90000 --seeds 0
    python -m experiments.sharing.long --data DIR --parts resnet20-64000-rounded     # the plain competitor, as long
    python -m experiments.sharing.long --data DIR --probes            # short runs that choose between recipes

`pb.compress` from the network in experiments/models, which `train_network` trains (--net resnet32 for a deeper one), taught
by it and by our ResNet-20s from other seeds; three batches of four see windows of 24 x 24 pixels.  The plain competitor is
that of `experiments.sharing.rounding`.  Logit temperatures, and a factor on sigma, are fitted to validation images; these
choose the recipe too.  Probes differ from each other in one thing, with half of the training images and few epochs.  The
test set is used once for each file, loaded back from disk: with 8 draws, and with one pass through the means.  Killed and
started again, a run goes on where it was.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import pocketbayes as pb
from experiments.markdown import cost, measured, shown, table
from experiments.record import RESULTS, versions, write_result
from experiments.sharing import rounding
from experiments.sharing.bench import METRICS, PRIOR, Bench, LongBench, arguments, bench_of, scores
from experiments.sharing.frontier import SHORT, Part, compress
from experiments.sharing.train_network import NETS

RESULT = RESULTS / "sharing/long.json"
FOLDER = "long"
PASSES = 8
WAYS = {"draws": PASSES, "means": "mean"}  # of answering
RECIPE = pb.Plan(
    temperature=0.0015,
    prior=PRIOR,
    epochs=24,
    finetune_epochs=0,
    lr=1e-3,
    rho_lr=0.0,
    distillation=0.9,
    calibrate=True,
    samples=PASSES,
    bfloat16=True,
)
SHORT_RUN = replace(RECIPE, epochs=4, fisher_batches=40)
PROBED = Part(64_000, SHORT_RUN, tested=False, precision=SHORT, images=24_000)
PROBES: dict[str, dict[str, Any]] = {  # what differs from the first
    "as above": {},
    "channels of equal sigma": {"rescaled": True},
    "ten times the temperature": {"heated": 10.0},
    "learning rate .0005": {"lr": 5e-4},
    "learning rate .002": {"lr": 2e-3},
    "sigma trained too": {"rho_lr": 1e-3},
    "last third with frozen labels": {"frozen": True, "finetune_lr": 5e-4},
    "labels renewed every 4 steps": {"renew_every": 4},
    "lambda rises for three quarters of the steps": {"anneal": 0.75},
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


def rounded(bench: Bench, name: str, max_bytes: int, plan: pb.Plan) -> dict[str, Any]:
    """The plain competitor's row: the same bytes, epochs and teachers, one pass with a temperature."""

    def make() -> dict[str, Any]:
        row = rounding.make(
            bench, max_bytes, name=name, epochs=plan.epochs, seed=plan.seed, bfloat16=plan.bfloat16
        )
        found = {images: {"means": row[images]["calibrated"]} for images in ("validation", "test")}
        return row | found | {"multiply_adds": multiply_adds(bench)}

    settings = {"plan": {"epochs": plan.epochs, "lr": rounding.LR, "seed": plan.seed}, "max_bytes": max_bytes}
    return bench.measured(name, make, settings)


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


def part_of(text: str) -> tuple[str, int, bool]:
    """The network, the bytes, and whether it is the competitor that `resnet32-90000` or `resnet32-90000-rounded` asks for."""
    found = re.fullmatch(r"(resnet\d+)-(\d+)(-rounded)?", text)
    if found is None or found[1] not in NETS:
        raise ValueError(
            f"{text}: no such part. Write a network of {', '.join(NETS)} and bytes, resnet20-64000, or resnet20-64000-rounded."
        )
    return found[1], int(found[2]), bool(found[3])


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--parts", nargs="*", default=[], metavar="NET-BYTES")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--epochs", type=int, default=RECIPE.epochs)
    parser.add_argument("--probes", nargs="*", choices=PROBES, metavar="NAME", help="all, or those named")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    try:
        parts = [part_of(text) for text in args.parts]
    except ValueError as error:
        parser.error(str(error))
    for seed in args.seeds:
        for text, (kind, max_bytes, plainly) in zip(args.parts, parts, strict=True):
            bench = bench_of(args, "cifar10", FOLDER, kind, LongBench)
            start(bench)
            plan = replace(RECIPE, epochs=args.epochs, seed=seed)
            if plainly:
                rounded(bench, f"{text}-{seed}", max_bytes, plan)
            else:
                made(bench, f"{text}-{seed}", Part(max_bytes, plan, precision=SHORT))
        if args.probes is not None:
            bench = bench_of(args, "cifar10", f"{FOLDER}/probes", of=LongBench)
            for name in args.probes or PROBES:
                part = with_changes(PROBED, **PROBES[name])
                made(bench, f"{name}-{seed}", part._replace(plan=replace(part.plan, seed=seed)))
    rows = read(args.rows / FOLDER)
    probes = read(args.rows / FOLDER / "probes")
    write_result(RESULT, {"command": command(rows), "rows": rows, "probes": probes, "versions": versions()})


def with_changes(
    part: Part, *, rescaled: bool = False, heated: float = 1.0, frozen: bool = False, **plan: Any
) -> Part:
    assert part.plan.temperature is not None
    plan["temperature"] = part.plan.temperature * heated
    if frozen:
        plan["finetune_epochs"] = part.plan.epochs // 3
        plan["epochs"] = part.plan.epochs - plan["finetune_epochs"]
    return part._replace(plan=replace(part.plan, **plan), rescaled=rescaled)


def read(folder: Path) -> dict[str, Any]:
    """All rows that were made, whenever that was."""
    found = {file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}
    return {name: row.pop("value") | row for name, row in found.items()}


def command(rows: dict[str, Any]) -> str:
    """That makes these rows."""
    found = [name.rpartition("-") for name in rows if not name.startswith("start")]
    parts, seeds = (sorted({each[place] for each in found}) for place in (0, 2))
    epochs = {row["settings"]["plan"]["epochs"] for row in rows.values() if "settings" in row}
    other = "".join(f" --epochs {n}" for n in epochs if epochs != {RECIPE.epochs})
    runs = f" --parts {' '.join(parts)} --seeds {' '.join(seeds)}{other}" if found else ""
    return f"python -m experiments.sharing.long --data DIR{runs}"


# --- what came of it ------------------------------------------------------------------------------------------


def headline(result: dict[str, Any]) -> str:
    """For RESULTS.md."""
    words = [
        f"{row} accuracy {shown([r['test'][way]['accuracy'] for r in runs], 2, 100)} %"
        for row, runs in by_part(result["rows"])
        for way in list(runs[0]["test"])[:1]
    ]
    return f"{'; '.join(words)}." if words else "recipes, compared on validation images."


def section(result: dict[str, Any]) -> str:
    """This experiment's part of its page."""
    rows, probes = result["rows"], result["probes"]
    paragraphs = [
        measured(result, cost(row["seconds"] for row in [*rows.values(), *probes.values()])),
        f"""The recipe: {recipe(RECIPE)}; norms and biases in {SHORT.plain} bits. A file holds the logit temperatures that were
fitted to validation images, one for {PASSES} draws and one for a pass through the means, so NLL is calibrated.""",
    ]
    if any(row.get("test") for row in rows.values()):
        columns = "| network, at most so many bytes | bytes | epochs | answer | million multiply-adds | accuracy (%) | NLL | ECE |"
        paragraphs.append("Test images:\n\n" + table(columns, result_rows(rows)))
    if probes:
        columns = "| what was changed | seeds | sigmas times | accuracy, draws (%) | NLL, draws | accuracy, means (%) | NLL, means |"
        paragraphs += [f"{probed()}:", table(columns, probe_rows(probes))]
    return "## Long label training\n\n" + "\n\n".join(paragraphs) + "\n"


def recipe(plan: pb.Plan) -> str:
    return (
        f"temperature {plan.temperature:g}, learning rate {plan.lr:g}, sigma by Laplace and calibrated at the end, "
        f"{plan.distillation:.0%} of the targets from teachers"
    )


def probed() -> str:
    """What probes are."""
    return (
        f"What was tried, one change at a time: {PROBED.plan.epochs} epochs, the first {PROBED.images:,} training images, at most "
        f"{PROBED.max_bytes:,} bytes, and the rest as above. Validation images; the test images were not used"
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
        kind, max_bytes, plainly = part_of(name)
        found = [run["bytes"] for run in runs]
        sizes = " to ".join(f"{size:,}" for size in sorted({min(found), max(found)}))
        for way in runs[0]["test"]:
            passes = PASSES if way == "draws" else 1
            yield (
                f"{kind}, {max_bytes:,}{', plain competitor' * plainly}, {len(runs)} seed{'s' * (len(runs) > 1)}",
                sizes,
                runs[0]["settings"]["plan"]["epochs"],
                f"{passes} {way}" if passes > 1 else way,
                *told(runs, way, passes),
            )


def told(runs: list[dict[str, Any]], way: str, passes: int) -> Iterator[str]:
    """Cost, accuracy, NLL and ECE on the test images."""
    yield f"{passes * runs[0]['multiply_adds'] / 1e6:.0f}"
    for metric, digits, scale in zip(METRICS, (2, 4, 4), (100, 1, 1), strict=True):
        yield shown([run["test"][way][metric] for run in runs], digits, scale)


def probe_rows(probes: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    runs = dict(by_part(probes))
    for probe in (probe for probe in PROBES if probe in runs):
        found = runs[probe]
        factors = [factor_of(row) for row in found]
        values = (
            shown([row["validation"][way][metric] for row in found], digits, scale)
            for way in WAYS
            for metric, digits, scale in (("accuracy", 2, 100), ("nll", 4, 1))
        )
        yield probe, len(found), shown(factors, 2), *values


def factor_of(row: dict[str, Any]) -> float:
    """What calibration multiplied sigmas by."""
    found = re.match(r"sigmas times ([\d.]+)", row["calibration"])
    return float(found[1]) if found else 1.0


if __name__ == "__main__":
    main()
