"""Regression at defaults: `fit`, and `compress` to a quarter, beside a plain MLP whose noise validation data chose.

    python -m experiments.real.regression --data DIR

DIR holds boston, concrete, energy, kin8nm, power and wine.npz, each with x and y.  A tenth of the rows is for testing,
another for validation, by seed; x and y are standardised by the training rows.  The MLP is trained by Adam and ends as it
was after its best epoch by validation NLL.  `fit` and `compress` begin with it and are given no setting but the
epochs and the size.  Rows are kept in --rows and made where they are missing.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from pathlib import Path
from typing import Any

import torch

import pocketbayes as pb
from experiments.markdown import cost, marked, measured, shown, table
from experiments.record import RESULTS, command_line, kept, summary, versions, write_result
from experiments.sharing.tabular_study import fp32_bytes, load_table
from pocketbayes import metrics, nets
from pocketbayes.likelihood import Homoscedastic
from pocketbayes.runs import randomness

RESULT = RESULTS / "real/regression.json"
COMMAND = "python -m experiments.real.regression --data DIR"
SETS = ("boston", "concrete", "energy", "wine", "kin8nm", "power")
SEEDS, HIDDEN, EPOCHS, FRACTION = 3, (100, 100), 100, 0.25
NEAR = 0.05  # nats within which a result is as good as the plain MLP's


def arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the npz files")
    parser.add_argument("--rows", type=Path, default=RESULTS / "real/rows/regression", help="finished rows")
    return parser.parse_args()


def row(folder: Path, name: str, seed: int) -> dict[str, Any]:
    """Test NLL, in nats of standardised targets, of one set and seed."""
    data = load_table(folder, name, seed)
    with randomness.forked(seed):
        plain = nets.mlp([data.test[0][0].shape[1], *HIDDEN, data.test[0][1].shape[1]])
    training: dict[str, Any] = {"epochs": EPOCHS, "validation": data.validation, "progress": False}
    pb.fit_map(plain, data.train, likelihood=Homoscedastic(), seed=seed, **training)
    posterior = pb.bayesianize(copy.deepcopy(plain))
    pb.fit(posterior, data.train, likelihood=Homoscedastic(), seed=seed, **training)
    with tempfile.TemporaryDirectory() as work:
        report = pb.compress(
            copy.deepcopy(plain),
            data.train,
            path=f"{work}/net.pocket",
            validation_loader=data.validation,
            max_bytes=int(FRACTION * fp32_bytes(plain)),
            likelihood=Homoscedastic(),
            plan=pb.Plan(seed=seed),
            progress=False,
        )
        loaded = pb.load(
            f"{work}/net.pocket", nets.mlp([plain[0].in_features, *HIDDEN, plain[-1].out_features])
        )
    return {
        "plain": plain_nll(plain, data.validation[0], data.test[0]),
        "fit": pb.evaluate(posterior, data.test, samples=30)["nll"],
        "compress": pb.evaluate(loaded, data.test, samples=30)["nll"],
        "bytes": report.bytes,
        "temperature": next(stage.note for stage in report.stages if stage.name == "posterior"),
    }


@torch.no_grad()
def plain_nll(
    model: torch.nn.Module,
    validation: tuple[torch.Tensor, torch.Tensor],
    test: tuple[torch.Tensor, torch.Tensor],
) -> float:
    """Of the test rows, the noise being the root mean square of the residuals of validation rows."""
    sigma = (model(validation[0]) - validation[1]).square().mean().sqrt().item()
    outputs = test[1].shape[1]
    return outputs * metrics.gaussian_nll(model(test[0]).reshape(-1), sigma, test[1].reshape(-1))


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    found = {
        name: [
            kept(args.rows / f"{name}-{seed}.json", lambda name=name, seed=seed: row(args.data, name, seed))
            for seed in range(SEEDS)
        ]
        for name in SETS
    }
    result = {
        "rows": {name: [part["value"] for part in parts] for name, parts in found.items()},
        "seconds": sum(part["seconds"] for parts in found.values() for part in parts),
        "versions": versions(),
        "command": COMMAND,
    }
    write_result(RESULT, result)


# --- the page ----------------------------------------------------------------------------------------------------


def gaps(rows: list[dict[str, Any]], way: str) -> list[float]:
    """Above the plain MLP, by seed."""
    return [row[way] - row["plain"] for row in rows]


def section(result: dict[str, Any]) -> str:
    lines = [
        (
            name,
            shown([row["plain"] for row in rows], 3),
            *(
                text
                for way in ("fit", "compress")
                for text in (
                    shown([row[way] for row in rows], 3),
                    marked(summary([[gap] for gap in gaps(rows, way)])),
                )
            ),
        )
        for name, rows in result["rows"].items()
    ]
    return "\n\n".join(
        [
            "## Regression at defaults",
            measured(result, cost([result["seconds"]])),
            f"An MLP of {HIDDEN[0]} and {HIDDEN[1]} hidden units on six UCI sets, {SEEDS} seeds, each with its own split. "
            "Test NLL in nats of standardised targets, below zero where errors are small; the noise of the plain MLP is "
            "the root mean square of its validation residuals. `fit` and `compress` begin with that MLP, at their "
            "defaults, and `load` gives back the noise with the weights. Differences are paired by seed; bold beyond the "
            "95 % quantile of Student's t.",
            table("| | plain MLP | `fit` | − plain | `compress` to 25 % | − plain |", lines),
        ]
    )


def headline(result: dict[str, Any]) -> str:
    near = {
        way: sum(summary([gaps(rows, way)]).mean <= NEAR for rows in result["rows"].values())
        for way in ("fit", "compress")
    }
    return (
        f"within {NEAR} nats of a plain MLP: `fit` on {near['fit']}, `compress` on {near['compress']} of "
        f"{len(result['rows'])} UCI sets."
    )


if __name__ == "__main__":
    main()
