"""Does fixing weights so that neurons cannot swap help mean-field inference?  UCI energy, boston and concrete.

    python -m experiments.structure.uci --data DIR      # a folder with energy.npz, boston.npz, concrete.npz: x and y

tanh MLPs [d, 50, 50, outputs], N(0, 1) priors, fixed observation noise on standardised targets.  Split s tests on the
s-th fifth of the shuffled rows; energy has five seeds a split, the others one.  All schemes of a split and seed
start alike.  Settings are the paper's, but for shorter MAP training: 16 draws of the weights for
each step, on all rows.  The same was measured with the local reparameterisation on 256 random rows, much less work, with
more controls (“rows as heavy” was added after a pilot of 2 000 steps on energy).
Parts are kept under --work, so a broken run goes on where it stopped; with --extend it goes on, on another machine too, from
those that the result file holds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from experiments.record import command_line, kept, versions, write_result
from experiments.structure import uci_report
from experiments.structure.schemes import DETERMINISTIC, Choice, Sizes, as_floats, schemes, symmetries
from experiments.structure.training import (
    Draws,
    Estimator,
    Local,
    Schedule,
    Task,
    kl,
    mean_outputs,
    posterior,
    predict,
    score,
    train,
    train_means,
    trained_constant,
    weights_by_name,
)

RESULT = uci_report.RESULT
DATASETS = {"energy": 5, "boston": 1, "concrete": 1}  # seeds for each split
SPLITS = 5
HIDDEN = (50, 50)
NOISE = 0.1  # of standardised targets
DRAWS = 1000  # for predictions
ESTIMATORS: dict[str, Estimator] = {"draws": Draws(16), "local": Local(256)}
SCHEMES = (  # with draws; the local estimator has all
    "vanilla",
    *(f"{kind}, {value}" for kind in ("light", "heavy") for value in ("0", "±c", "MAP")),
    "random as heavy, 0",
    "ordered biases",
)
START_C = Sizes(light=4.0, heavy=1.0)
BAYESIAN = Schedule(steps=10_000, lr=1e-2, final_lr=3e-3)
MAP_TRAINING = Schedule(steps=3_000, lr=1e-2, final_lr=1e-3)


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


def run(data: Split, seed: int, estimator: Estimator) -> dict[str, Any]:
    """All schemes on one split with one seed."""
    plain = schemes(seed, {}, START_C)
    models = {name: posterior(data.widths, plain[name], seed) for name in DETERMINISTIC}
    deterministic = {}
    for name, model in models.items():
        curve = train_means(model, data.train, MAP_TRAINING, seed)
        deterministic[name] = row(plain[name], model, curve, mean_outputs(model, data.x), data)
    every = schemes(seed, weights_by_name(models["vanilla"]), START_C)
    bayesian = {}
    for name in SCHEMES if isinstance(estimator, Draws) else every:
        model = posterior(data.widths, every[name], seed)
        curve = train(model, data.train, estimator, BAYESIAN, seed)
        bayesian[name] = row(every[name], model, curve, predict(model, data.x, NOISE, DRAWS, seed), data)
    return {"deterministic": deterministic, "bayesian": bayesian}


def row(choice: Choice, model: nn.Module, curve: Tensor, outputs: Tensor, data: Split) -> dict[str, Any]:
    """What is kept of one trained network."""
    c = trained_constant(model)
    return {
        "fixed": choice.count(data.widths),
        **{key: round(value, 6) for key, value in score(outputs, data.y, NOISE)._asdict().items()},
        "kl": round(kl(model).item(), 2),
        "nelbo": as_floats(curve, 1),
        "c": None if c is None else round(c, 4),
    }


# --- the whole experiment -------------------------------------------------------------------------------------


def chunks() -> Iterator[tuple[str, int, int]]:
    """(data set, split, seed): one seed of everything first, then more seeds."""
    for seed in range(max(DATASETS.values())):
        for name, seeds in DATASETS.items():
            if seed < seeds:
                yield from ((name, split, seed) for split in range(SPLITS))


def run_chunk(data: Path, work: Path, estimator: str, chunk: tuple[str, int, int]) -> None:
    """One part, unless it is there."""
    name, split, seed = chunk
    path = work / estimator / f"{name}_{split}_{seed}.json"
    kept(path, lambda: run(load_split(data, name, split), seed, ESTIMATORS[estimator]))


def _prepare_process() -> None:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def run_all(data: Path, work: Path, estimators: Sequence[str], processes: int) -> None:
    with ProcessPoolExecutor(
        processes, mp_context=get_context("spawn"), initializer=_prepare_process
    ) as pool:
        one = partial(run_chunk, data, work)
        jobs = [pool.submit(one, estimator, chunk) for estimator in estimators for chunk in chunks()]
        for job in jobs:
            job.result()


def unpack(work: Path) -> None:
    """The parts that the result file holds, where they are missing."""
    result = json.loads(RESULT.read_text())
    for estimator in ESTIMATORS:
        for name, found in result[estimator].items():
            for part in found["rows"]:
                path = work / estimator / f"{name}_{part.pop('split')}_{part.pop('seed')}.json"
                if not path.exists():
                    path.parent.mkdir(parents=True, exist_ok=True)
                    write_result(path, {"seconds": part.pop("seconds"), "value": part}, indent=None)


def assemble(data: Path, work: Path) -> dict[str, Any]:
    """The result from the parts that are there."""
    result: dict[str, Any] = {
        "command": "python -m experiments.structure.uci --data DIR",
        "settings": {"steps": BAYESIAN.steps, "noise": NOISE, "draws": DRAWS},
        "versions": versions(),
        "seconds": {},
    }
    for estimator in ESTIMATORS:
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in DATASETS}
        for path in sorted((work / estimator).glob("*.json")):
            name, split, seed = path.stem.split("_")
            part = json.loads(path.read_text())
            value = part["value"]
            found[name].append({"split": int(split), "seed": int(seed), **value, "seconds": part["seconds"]})
        result["seconds"][estimator] = sum(one["seconds"] for rows in found.values() for one in rows)
        result[estimator] = {}
        for name, rows in found.items():
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
    parser.add_argument(
        "--assemble", action="store_true", help="from the parts that are there; train nothing"
    )
    parser.add_argument("--extend", action="store_true", help="keep the parts that the result file holds")
    args = parser.parse_args()
    if args.extend:
        unpack(args.work)
    torch.set_num_threads(1)
    if not args.assemble:
        run_all(args.data, args.work, args.estimators, args.processes)
    result = assemble(args.data, args.work)
    write_result(RESULT, result, indent=None)
    uci_report.plot(result)


if __name__ == "__main__":
    main()
