"""Scalar regression trained with each noise family: predictive bands side by side, held-out log predictive density.

    python -m experiments.noise.regression --device rram_read_noise.npz

A tanh net [1, 50, 1], all weights and biases random with prior N(0, 1), 40 points with a gap between them.  It is trained
from the same starts with each family; and trained with Gaussian noise, then put on each device with its means and
variances.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.markdown import measured, one_core, picture, table
from experiments.noise.common import laws, mean_error
from experiments.noise.small import GRID, SIGMA, Points, distance, outputs, points, train
from experiments.record import RESULTS, command_line, new_figure, save_figure, versions, write_result
from pocketbayes.metrics import log_predictive_density
from pocketbayes.noise import Gaussian, Noise

RESULT = RESULTS / "noise/regression.json"
STEPS, DRAWS, SEEDS = 4000, 2000, 5


def families(device: Path) -> dict[str, Noise]:
    """All shapes but Student-t with 5 degrees of freedom, which lies between the others."""
    return {"Gaussian": Gaussian(), **{n: law for n, law in laws(device).items() if n != "Student-t 5"}}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--device", type=Path, required=True, help="npz of measured read noise")
    args = parser.parse_args()
    torch.set_num_threads(1)
    started = time.process_time()
    data, held_out, named = points(40, 0), points(400, 1), families(args.device)
    nets = train([1, 50, 1], data, named, SEEDS, STEPS)
    print(f"trained: {time.process_time() - started:.0f} s", flush=True)
    x, known = torch.cat([held_out.x, GRID]), len(held_out.x)
    own = [outputs(net, Gaussian(), GRID, DRAWS, seed) for seed, net in enumerate(nets["Gaussian"])]
    rows: dict[str, dict[str, list[float]]] = {}
    bands: dict[str, Any] = {}
    for number, (name, noise) in enumerate(named.items()):
        rows[name] = {}
        for key, several in (("trained", nets[name]), ("swapped", nets["Gaussian"])):
            drawn = [outputs(net, noise, x, DRAWS, 100 * number + s + 50) for s, net in enumerate(several)]
            rows[name][key] = [
                log_predictive_density(d[:, :known], SIGMA, held_out.y[:, 0].double()) for d in drawn
            ]
            rows[name][f"{key}_distance"] = [
                distance(a, d[:, known:]) for a, d in zip(own, drawn, strict=True)
            ]
            if key == "trained":
                bands[name] = [drawn[0][:, known:].mean(0), drawn[0][:, known:].std(0)]
    result = {
        "command": "python -m experiments.noise.regression --device rram_read_noise.npz",
        "rows": rows,
        "starts_apart": [distance(a, b) for i, a in enumerate(own) for b in own[:i]],
        "draws": DRAWS,
        "steps": STEPS,
        "seed": list(range(SEEDS)),
        "seconds": round(time.process_time() - started),
        "versions": versions(),
    }
    write_result(RESULT, result)
    plot(bands, data)


def headline(result: dict[str, Any]) -> str:
    """For RESULTS.md."""
    each = {name: mean_error(row["trained"])[0] for name, row in result["rows"].items()}
    gaussian, others = each.pop("Gaussian"), each.values()
    return (
        f"log predictive density {gaussian:.4f} trained with Gaussian noise, {min(others):.4f} to {max(others):.4f} "
        f"with {len(others)} other shapes."
    )


def section(result: dict[str, Any]) -> str:
    """This experiment's part of its page."""
    apart = result["starts_apart"]
    rows = (
        [name]
        + [
            "{:.4f} ± {:.4f}".format(*mean_error(row[key]))
            for key in ("trained", "trained_distance", "swapped", "swapped_distance")
        ]
        for name, row in result["rows"].items()
    )
    return f"""## Scalar regression trained with each noise

{measured(result, one_core(result["seconds"]))} A tanh net [1, 50, 1], 40 points, {result["steps"]} steps, {len(result["seed"])} seeds.
LPD is the log predictive density (nats, larger is better) on 400 held-out points with {result["draws"]} draws. Distances are energy
distances to the net trained and drawn with Gaussian noise, over its sigma, mean over a grid from -2.5 to 2.5. The first
layer has one input, where the shape could show most. Two nets trained with Gaussian noise from different starts are
{np.mean(apart):.3f} apart ({min(apart):.3f} to {max(apart):.3f}). ± is a standard error over seeds.

{table("| noise | trained with it: LPD | distance | trained with Gaussian, put on it: LPD | distance |", rows)}

{picture(RESULT, "predictive bands of each noise")}
"""


def plot(bands: dict[str, Any], data: Points) -> None:
    """Mean and two standard deviations of the function for the net trained with each noise."""
    figure = new_figure(11, 4.6)
    axes = figure.subplots(2, 4, sharex=True, sharey=True).ravel()
    x = GRID[::2, 0].numpy()
    for ax, (name, (mean, sigma)) in zip(axes, bands.items(), strict=True):
        mean, sigma = mean[::2].numpy(), sigma[::2].numpy()
        ax.fill_between(x, mean - 2 * sigma, mean + 2 * sigma, alpha=0.3, lw=0)
        ax.plot(x, mean, lw=1.2)
        ax.plot(data.x[:, 0], data.y[:, 0], ".", color="0.2", ms=4)
        ax.set(title=name, ylim=(-3, 3))
        ax.grid(alpha=0.3)
    figure.supxlabel("x")
    figure.supylabel("y")
    save_figure(figure, RESULT)


if __name__ == "__main__":
    main()
