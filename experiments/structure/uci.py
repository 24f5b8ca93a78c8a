"""Does fixing weights so that neurons cannot swap help mean-field inference?  UCI energy, boston and concrete.

    python -m experiments.structure.uci --data DIR      # a folder with energy.npz, boston.npz, concrete.npz: x and y

tanh MLPs [d, 50, 50, outputs], N(0, 1) priors, fixed observation noise on standardised targets.  Split s tests on the
s-th fifth of the shuffled rows; energy has five seeds a split, the others one.  All schemes of a split and seed
start alike and see the same noise.  Settings are the paper's, but for shorter MAP training: 16 draws of the weights for
each step, on all rows.  The same was measured with the local reparameterisation on 256 random rows, much less work, with
more controls (“rows as heavy” was added after a pilot of 2 000 steps on energy).
Parts are kept under --work, so a broken run goes on where it stopped; with --extend it goes on, on another machine too, from
those that the result file holds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from experiments.record import command_line, versions
from experiments.structure import uci_report
from experiments.structure.batched import (
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
    predict,
    score,
)
from experiments.structure.schemes import Sizes, deterministic_plans, plans, symmetries
from pocketbayes.files import write_atomically

RESULT = uci_report.RESULT
DATASETS = {"energy": 5, "boston": 1, "concrete": 1}  # seeds for each split
SPLITS = 5
HIDDEN = (50, 50)
NOISE = 0.1  # of standardised targets
DRAWS = 1000  # for predictions
ESTIMATORS: dict[str, Estimator] = {"draws": Weights(16), "local": Local(256)}
SCHEMES = (  # with draws; the local estimator has all plans
    "vanilla",
    *(f"{kind}, {value}" for kind in ("light", "heavy") for value in ("0", "±c", "MAP")),
    "random as heavy, 0",
    "ordered biases",
)
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


@cache
def trainers(estimator: str, dataset: str, compiled: bool, steps: int | None = None) -> Trainers:
    """Of one data set: compiled losses are specialised to shapes.  The kernel of `native` cannot be compiled."""
    schedules = [s if steps is None else Schedule(steps=steps) for s in (BAYESIAN, DETERMINISTIC)]
    return Trainers(
        Trainer(schedules[0], ESTIMATORS[estimator], compiled and estimator == "local"),
        Trainer(schedules[1], Means(), compiled),
    )


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
    if isinstance(tools.bayesian.estimator, Weights):
        schemes = {name: schemes[name] for name in SCHEMES}
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


# --- the whole experiment -------------------------------------------------------------------------------------


def chunks() -> Iterator[tuple[str, int, int]]:
    """(data set, split, seed): one seed of everything first, then more seeds."""
    for seed in range(max(DATASETS.values())):
        for name, seeds in DATASETS.items():
            if seed < seeds:
                yield from ((name, split, seed) for split in range(SPLITS))


def run_chunk(
    data: Path,
    work: Path,
    estimator: str,
    chunk: tuple[str, int, int],
    compiled: bool,
    steps: int | None = None,
) -> None:
    """One part, unless it is there."""
    name, split, seed = chunk
    path = work / estimator / f"{name}_{split}_{seed}.json"
    if not path.exists():
        part = run(load_split(data, name, split), seed, trainers(estimator, name, compiled, steps))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, (json.dumps(part) + "\n").encode())
        lpp = {key: round(row["lpp"], 3) for key, row in part["bayesian"].items()}
        print(f"{estimator} {name} split {split} seed {seed}: {part['seconds']} s, LPP {lpp}", flush=True)


def _prepare_process() -> None:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def run_all(data: Path, work: Path, estimators: Sequence[str], compiled: bool, processes: int) -> None:
    with ProcessPoolExecutor(
        processes, mp_context=get_context("spawn"), initializer=_prepare_process
    ) as pool:
        jobs = [
            pool.submit(run_chunk, data, work, estimator, chunk, compiled)
            for estimator in estimators
            for chunk in chunks()
        ]
        for job in jobs:
            job.result()


def unpack(work: Path) -> None:
    """The parts that the result file holds, where they are missing."""
    result = json.loads(RESULT.read_text())
    for estimator in ESTIMATORS:
        for name, found in result[estimator].items():
            for row in found["rows"]:
                path = work / estimator / f"{name}_{row.pop('split')}_{row.pop('seed')}.json"
                if not path.exists():
                    path.parent.mkdir(parents=True, exist_ok=True)
                    write_atomically(path, (json.dumps(row) + "\n").encode())


def assemble(data: Path, work: Path) -> dict[str, Any]:
    """The result from the parts that are there."""
    result: dict[str, Any] = {
        "command": "python -m experiments.structure.uci --data DIR --compile",
        "settings": {"steps": BAYESIAN.steps, "noise": NOISE, "draws": DRAWS},
        "versions": versions(),
        "seconds": {},
    }
    for estimator in ESTIMATORS:
        result[estimator] = {}
        parts = {
            path.stem: json.loads(path.read_text()) for path in sorted((work / estimator).glob("*.json"))
        }
        result["seconds"][estimator] = sum(part["seconds"] for part in parts.values())
        for name in DATASETS:
            found = [(stem.split("_"), part) for stem, part in parts.items() if stem.startswith(f"{name}_")]
            rows = [{"split": int(key[1]), "seed": int(key[2]), **part} for key, part in found]
            widths = load_split(data, name, 0).widths
            result[estimator][name] = {"rows": rows, "widths": widths, "symmetry": symmetries(widths, 0)}
    return result


headline, section = uci_report.headline, uci_report.section


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("runs/uci"))
    parser.add_argument("--estimators", nargs="+", default=list(ESTIMATORS), choices=ESTIMATORS)
    parser.add_argument("--processes", type=int, default=1, help="parts at once, one thread each")
    parser.add_argument("--compile", action="store_true", help="twice as fast with the local estimator")
    parser.add_argument(
        "--assemble", action="store_true", help="from the parts that are there; train nothing"
    )
    parser.add_argument("--extend", action="store_true", help="keep the parts that the result file holds")
    args = parser.parse_args()
    if args.extend:
        unpack(args.work)
    torch.set_num_threads(1)
    if not args.assemble:
        run_all(args.data, args.work, args.estimators, args.compile, args.processes)
    result = assemble(args.data, args.work)
    write_atomically(RESULT, (json.dumps(result) + "\n").encode())
    uci_report.plot(result, RESULT.with_suffix(".svg"))


if __name__ == "__main__":
    main()
