"""Does fixing weights so that neurons cannot swap help mean-field inference?  UCI energy, boston and concrete.

    python -m experiments.structure_uci --data DIR      # a folder with energy.npz, boston.npz, concrete.npz: x and y

tanh MLPs [d, 50, 50, outputs], N(0, 1) priors, fixed observation noise on standardised targets.  Split s tests on the
s-th fifth of the shuffled rows; energy has five seeds a split, the others one.  All schemes of a split and seed
start alike and see the same noise.  Settings are the paper's, but for the estimator of the gradient, taken for its cost
and variance, and shorter MAP training; “rows as heavy” was added after a pilot of 2 000 steps on energy.
Parts are kept under --work, so a broken run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from experiments import structure_uci_report
from experiments.batched import (
    Estimator,
    Local,
    Means,
    Networks,
    Plan,
    Schedule,
    Task,
    Trainer,
    Weights,
    mean_outputs,
    nelbo,
    predict,
    score,
)
from experiments.structure_plans import Sizes, deterministic_plans, plans, symmetries, versions
from pocketbayes.files import write_atomically

RESULT = Path(__file__).with_suffix(".json")
DATASETS = {"energy": 5, "boston": 1, "concrete": 1}  # seeds for each split
SPLITS = 5
CHECKED = 5  # splits of energy on which two schemes are also trained with 16 draws of the weights a step
HIDDEN = (50, 50)
NOISE = 0.1  # of standardised targets
DRAWS = 1000  # for predictions
ROWS = 256  # for one step
START_C = Sizes(light=4.0, heavy=1.0)
BAYESIAN = Schedule(steps=10_000, lr=1e-2, final_lr=3e-3)
DETERMINISTIC = Schedule(steps=3_000, lr=1e-2, final_lr=1e-3)


# --- data -----------------------------------------------------------------------------------------------------


class Split(NamedTuple):
    train: Task
    x: Tensor  # [M, d] test inputs
    y: Tensor  # [M, outputs] test targets

    @property
    def widths(self) -> tuple[int, ...]:
        return (self.x.shape[1], *HIDDEN, self.y.shape[1])


def load_split(folder: Path, name: str, split: int) -> Split:
    """A fifth of the rows for testing; means and scales come from the other rows alone."""
    with np.load(folder / f"{name}.npz") as file:
        x, y = file["x"], file["y"].reshape(len(file["x"]), -1)
    tested = np.zeros(len(x), bool)
    tested[np.random.default_rng(0).permutation(len(x))[split::SPLITS]] = True
    parts = []
    for values in (x, y):
        seen = values[~tested]
        scaled = (values - seen.mean(0)) / np.maximum(seen.std(0), 1e-12)
        parts += [torch.tensor(scaled[rows], dtype=torch.float32) for rows in (~tested, tested)]
    return Split(Task(parts[0], parts[2], NOISE), parts[1], parts[3])


# --- one split and seed ---------------------------------------------------------------------------------------


class Trainers(NamedTuple):
    bayesian: Trainer
    deterministic: Trainer


def trainers(compiled: bool, steps: int | None = None) -> Trainers:
    """Of one data set: compiled losses are specialised to shapes."""
    schedules = [s if steps is None else Schedule(steps=steps) for s in (BAYESIAN, DETERMINISTIC)]
    return Trainers(Trainer(schedules[0], Local(ROWS), compiled), Trainer(schedules[1], Means(), compiled))


def run(data: Split, seed: int, tools: Trainers) -> dict[str, Any]:
    """All schemes on one split with one seed."""
    started = time.monotonic()
    plain = deterministic_plans(data.widths, seed)
    networks = Networks(data.widths, list(plain.values()), seed)
    curve = tools.deterministic.train(networks, data.train, seed)
    with torch.no_grad():
        outputs = mean_outputs(networks, data.x)[:, None]  # [R, 1, M, D]
    rows = {"deterministic": _rows(plain, networks, curve, outputs, data)}
    schemes = plans(data.widths, seed, networks.values(run=0), START_C)
    networks = Networks(data.widths, list(schemes.values()), seed)
    curve = tools.bayesian.train(networks, data.train, seed)
    rows["bayesian"] = _rows(schemes, networks, curve, predict(networks, data.x, DRAWS, seed), data)
    return {**rows, "seconds": round(time.monotonic() - started)}


def _rows(
    schemes: Mapping[str, Plan], networks: Networks, curve: Tensor, outputs: Tensor, data: Split
) -> dict[str, Any]:
    rows = {}
    with torch.no_grad():
        kl = networks.kl()
    for number, (name, plan) in enumerate(schemes.items()):
        scores = score(outputs[number], data.y, NOISE)
        rows[name] = {
            "fixed": sum(int(part.mask.sum()) for part in plan.fixed.values()),
            **{key: round(value, 6) for key, value in scores._asdict().items()},
            "kl": round(kl[number].item(), 2),
            "nelbo": [round(value, 1) for value in curve[number].tolist()],
            "c": round(networks.c[number].item(), 4) if plan.trained else None,
        }
    return rows


def check(data: Split, seed: int, compiled: bool) -> dict[str, Any]:
    """Two schemes with 16 draws of the weights and all rows in every step, instead of the local estimator."""
    started = time.monotonic()
    every = deterministic_plans(data.widths, seed)
    schemes = {name: every[name] for name in ("vanilla", "heavy, 0")}
    networks = Networks(data.widths, list(schemes.values()), seed)
    curve = Trainer(BAYESIAN, Weights(16), compiled).train(networks, data.train, seed)
    rows = _rows(schemes, networks, curve, predict(networks, data.x, DRAWS, seed), data)
    estimators = {
        "16 draws": Weights(16),
        "4 draws": Weights(4),
        "local": Local(),
        "local, part": Local(ROWS),
    }
    noise = {name: gradient_noise(networks, data.train, how) for name, how in estimators.items()}
    return {"bayesian": rows, "gradient": noise, "seconds": round(time.monotonic() - started)}


def gradient_noise(networks: Networks, task: Task, estimator: Estimator, repeats: int = 40) -> dict[str, Any]:
    """Variance of an estimator's gradient, summed over parameters, of each network; and CPU time for one gradient."""
    generator, started, gradients = torch.Generator().manual_seed(0), time.process_time(), []
    for _ in range(repeats):
        loss = nelbo(networks, estimator, estimator.draw(networks, task, generator)).sum()
        found = torch.autograd.grad(loss, [t for t in networks.parameters() if t is not networks.c])
        gradients.append(torch.cat([gradient.flatten(1) for gradient in found], 1))
    milliseconds = 1000 * (time.process_time() - started) / repeats / len(networks.c)
    variance = torch.stack(gradients).var(0).sum(1)  # [R]
    return {"variance": [round(v) for v in variance.tolist()], "milliseconds": round(milliseconds, 2)}


# --- the whole experiment -------------------------------------------------------------------------------------


def chunks() -> Iterator[tuple[str, int, int]]:
    """(data set, split, seed): one seed of everything first, then more seeds."""
    for seed in range(max(DATASETS.values())):
        for name, seeds in DATASETS.items():
            if seed < seeds:
                yield from ((name, split, seed) for split in range(SPLITS))


def run_all(data: Path, work: Path, make: Callable[[], Trainers]) -> None:
    """Every part that is not there yet."""
    work.mkdir(parents=True, exist_ok=True)
    tools: dict[str, Trainers] = {}
    for name, split, seed in chunks():
        path = work / f"{name}_{split}_{seed}.json"
        if not path.exists():
            tools.setdefault(name, make())
            part = run(load_split(data, name, split), seed, tools[name])
            write_atomically(path, (json.dumps(part) + "\n").encode())
            lpp = {key: round(row["lpp"], 3) for key, row in part["bayesian"].items()}
            print(f"{name} split {split} seed {seed}: {part['seconds']} s, LPP {lpp}", flush=True)


def run_checks(data: Path, work: Path, compiled: bool) -> None:
    for split in range(CHECKED):
        path = work / f"check_{split}_0.json"
        if not path.exists():
            part = check(load_split(data, "energy", split), 0, compiled)
            write_atomically(path, (json.dumps(part) + "\n").encode())


def assemble(data: Path, work: Path) -> dict[str, Any]:
    """The result from the parts that are there."""
    result: dict[str, Any] = {
        "command": "python -m experiments.structure_uci --data DIR --compile",
        "settings": {"steps": BAYESIAN.steps, "rows": ROWS, "noise": NOISE, "draws": DRAWS},
        "versions": versions(),
    }
    parts = {path.stem: json.loads(path.read_text()) for path in sorted(work.glob("*_*_*.json"))}
    result["seconds"] = sum(part.pop("seconds") for part in parts.values())
    for name in ("check", *DATASETS):
        found = [(stem.split("_"), part) for stem, part in parts.items() if stem.startswith(f"{name}_")]
        result[name] = {"rows": [{"split": int(key[1]), "seed": int(key[2]), **part} for key, part in found]}
        if name != "check":
            widths = load_split(data, name, 0).widths
            result[name] |= {"widths": widths, "symmetry": symmetries(widths, 0)}
    return result


section = structure_uci_report.section


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("runs/structure_uci"))
    parser.add_argument("--compile", action="store_true", help="twice as fast; needs a C++ compiler")
    parser.add_argument(
        "--assemble", action="store_true", help="from the parts that are there; train nothing"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    if not options.assemble:
        run_all(options.data, options.work, lambda: trainers(options.compile))
        run_checks(options.data, options.work, options.compile)
    result = assemble(options.data, options.work)
    write_atomically(RESULT, (json.dumps(result) + "\n").encode())
    structure_uci_report.plot(result, RESULT.with_suffix(".svg"))


if __name__ == "__main__":
    main()
