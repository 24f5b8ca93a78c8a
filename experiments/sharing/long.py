"""Long label training: how much of a network's quality 40, 64 and 90 KB keep after 30 epochs, and in which network.

    python -m experiments.sharing.long --data DIR --parts resnet20-64000 --seeds 0 1 2
    python -m experiments.sharing.long --data DIR --parts resnet20-40000 resnet20-90000 resnet32-90000 --seeds 0
    python -m experiments.sharing.long --data DIR --parts resnet20-64000-rounded     # the plain competitor, as long
    python -m experiments.sharing.long --data DIR --probes            # short runs that choose between recipes
    python -m experiments.sharing.long --probes --set digits --seeds 0 1 2

`pb.compress` from the network in experiments/models, which `train_network` trains (--net resnet32 for a deeper one), taught
by it and by its earlier cycles.  The plain competitor is that of `experiments.sharing.rounding`.  Logit temperatures, and a factor on sigma, are fitted to validation images; these choose
the recipe too.  Probes differ from each other in one thing: on CIFAR-10 with the first training images and few steps, on
digits with a small network without norms, whose 40 epochs take seconds.  The test set is used once for each file, loaded back from disk: with 8 draws, and with one pass through the means.  Killed
and started again, a run goes on where it was.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

import pocketbayes as pb
from experiments.markdown import cost, measured, shown, table
from experiments.record import RESULTS, versions, write_result
from experiments.sharing import rounding
from experiments.sharing.bench import METRICS, PRIOR, Bench, arguments, bench_of, scores
from experiments.sharing.digits import train as train_digits
from experiments.sharing.frontier import SHORT, Part, compress
from experiments.sharing.train_network import NETS
from pocketbayes import data, nets

RESULT = RESULTS / "sharing/long.json"
FOLDER = "long"
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
    bfloat16=True,
)
SHORT_RUN = replace(RECIPE, epochs=3, fisher_batches=20, samples=2)
PROBED = {  # what is run on each data set
    "cifar10": Part(64_000, SHORT_RUN, tested=False, precision=SHORT, images=6_400),
    "digits": Part(
        2_000,
        replace(RECIPE, epochs=40, temperature=0.005, samples=4),
        tested=False,
        alone=True,
        precision=SHORT,
        graph=False,
    ),
}
PROBES: dict[str, dict[str, Any]] = {  # what differs from the first
    "as above": {},
    "channels of equal sigma": {"rescaled": True},
    "a tenth of the temperature": {"cooled": 10.0},
    "learning rate .001": {"lr": 1e-3},
    "learning rate .005": {"lr": 5e-3},
    "sigma by Laplace": {"rho_lr": 0.0},
    "last third with frozen labels": {"frozen": True, "finetune_lr": 1e-3},
    "labels renewed every 4 steps": {"renew_every": 4},
    "lambda rises for 3/4 of the steps": {"anneal": 0.75},
    "half of the targets from teachers": {"distillation": 0.5},
}


@dataclass(frozen=True)
class Digits(Bench):
    """The digits network, trained when it is asked for, on 862 images; 575 judge recipes, as the test images must not."""

    @cached_property
    def _splits(self) -> tuple[data.DataSet, data.DataSet]:
        return data.hold_out(data.load("digits"), 0.4, seed=0)

    def training(self, images: int | None = None) -> Any:
        return self._splits[0].batches(64, shuffle=True)

    def architecture(self) -> dict[str, Any]:
        return {}

    def fresh(self) -> torch.nn.Module:
        return nets.digits_net()

    def plain(self) -> torch.nn.Module:
        with torch.random.fork_rng():
            torch.random.default_generator.manual_seed(0)
            return train_digits(self.fresh(), self.training(), self.validation())

    def teachers(self) -> list[torch.nn.Module]:
        return []  # but itself

    def test_set(self) -> data.DataSet:
        return data.load("digits", split="test")


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
    parser.add_argument(
        "--probes", nargs="*", metavar="NAME", help="all that the data set has, or those named"
    )
    parser.add_argument("--set", default="cifar10", choices=PROBED, help="of the probes")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    try:
        parts = [part_of(text) for text in args.parts]
    except ValueError as error:
        parser.error(str(error))
    if unknown := set(args.probes or ()) - probes_of(args.set).keys():
        parser.error(
            f"no such probe: {', '.join(sorted(unknown))}. There are {', '.join(probes_of(args.set))}."
        )
    for seed in args.seeds:
        for text, (kind, max_bytes, plainly) in zip(args.parts, parts, strict=True):
            bench = bench_of(args, "cifar10", FOLDER, kind)
            start(bench)
            plan = replace(RECIPE, epochs=args.epochs, seed=seed)
            if plainly:
                rounded(bench, f"{text}-{seed}", max_bytes, plan)
            else:
                made(bench, f"{text}-{seed}", Part(max_bytes, plan, precision=SHORT))
        if args.probes is not None:
            bench = bench_of(args, args.set, f"{FOLDER}/{args.set}-probes")
            if args.set == "digits":
                bench = Digits(
                    *(getattr(bench, field) for field in ("name", "folder", "rows", "work", "network"))
                )
            for name in args.probes or probes_of(args.set):
                part = probes_of(args.set)[name]
                made(bench, f"{name}-{seed}", part._replace(plan=replace(part.plan, seed=seed)))
    rows = read(args.rows / FOLDER)
    probes = {name: found for name in PROBED if (found := read(args.rows / FOLDER / f"{name}-probes"))}
    write_result(RESULT, {"command": command(rows), "rows": rows, "probes": probes, "versions": versions()})


def probes_of(name: str) -> dict[str, Part]:
    """Those of a data set.  The digits network has no norms that would take a scale back, and one teacher."""
    there = {
        probe: changed for probe, changed in PROBES.items() if name != "digits" or "rescaled" not in changed
    }
    return {probe: with_changes(PROBED[name], **changed) for probe, changed in there.items()}


def with_changes(
    part: Part, *, rescaled: bool = False, cooled: float = 1.0, frozen: bool = False, **plan: Any
) -> Part:
    assert part.plan.temperature is not None
    plan["temperature"] = part.plan.temperature / cooled
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
    runs = f" --parts {' '.join(parts)} --seeds {' '.join(seeds)}" if found else ""
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
    everything = [rows, *probes.values()]
    paragraphs = [
        measured(result, cost(row["seconds"] for found in everything for row in found.values())),
        f"""The recipe: {recipe(RECIPE)}; norms and biases in {SHORT.plain} bits. A file holds the logit temperatures that were
fitted to validation images, one for {PASSES} draws and one for a pass through the means, so NLL is calibrated.""",
    ]
    if any(row.get("test") for row in rows.values()):
        columns = "| network, at most so many bytes | bytes | epochs | answer | million multiply-adds | accuracy (%) | NLL | ECE |"
        paragraphs.append("Test images:\n\n" + table(columns, result_rows(rows)))
    for name, found in probes.items():
        columns = "| what was changed | seeds | sigmas times | accuracy, draws (%) | NLL, draws | accuracy, means (%) | NLL, means |"
        paragraphs += [f"{probed(name)}:", table(columns, probe_rows(name, found))]
    return "## Long label training\n\n" + "\n\n".join(paragraphs) + "\n"


def recipe(plan: pb.Plan) -> str:
    return (
        f"temperature {plan.temperature:g}, learning rate {plan.lr:g}, of sigma {plan.rho_lr:g}, "
        f"{plan.distillation:.0%} of the targets from teachers, sigma calibrated"
    )


def probed(name: str) -> str:
    """What its probes are."""
    part = PROBED[name]
    images = f", the first {part.images:,} training images" if part.images else ""
    return (
        f"What was tried on {name}, one change at a time: {part.plan.epochs} epochs{images}, at most {part.max_bytes:,} bytes, "
        f"temperature {part.plan.temperature:g} and the rest as above. Validation images; the test images were not used"
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


def probe_rows(name: str, probes: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    runs = dict(by_part(probes))
    for probe in (probe for probe in probes_of(name) if probe in runs):
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
