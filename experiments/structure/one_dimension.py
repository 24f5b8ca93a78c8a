"""One input, 30 points of a Gaussian process with a gap between them: what do symmetry-breaking schemes predict?

    python -m experiments.structure.one_dimension                 # needs numpyro for the NUTS reference

A tanh MLP [1, 50, 50, 1], N(0, 1) priors, observation noise 0.05.  Seed s has a function, points and initial
values of its own; all schemes of a seed share them.  On a smaller network, [1, 20, 20, 1], and the problem of seed 0
they are compared with the exact posterior of the plain and of the heavily masked network, from NUTS.
Parts are kept under --work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from experiments.markdown import measured, picture, table
from experiments.nuts import Reference, nuts_mlp
from experiments.record import (
    RESULTS,
    Summary,
    command_line,
    kept,
    new_figure,
    save_figure,
    summary,
    versions,
    write_result,
)
from experiments.structure.schemes import Choice, Sizes, as_floats, schemes, symmetries
from experiments.structure.training import (
    Draws,
    Estimator,
    Local,
    Schedule,
    Task,
    posterior,
    predict,
    score,
    train,
    train_means,
    weights_by_name,
)

RESULT = RESULTS / "structure/one_dimension.json"
WIDTHS, SMALL = (1, 50, 50, 1), (1, 20, 20, 1)
SEEDS, CHECKED = 5, 2  # seeds, and those trained with 16 draws of the weights too
POINTS, NOISE, LENGTHSCALE = 30, 0.05, 0.2
OUTER, INNER = 2.5, 0.75  # points lie between them, on both sides of zero
GRID = np.linspace(-3.0, 3.0, 121)
START_C = Sizes(light=15.0, heavy=5.0)
BAYESIAN = Schedule(steps=10_000, lr=1e-2, final_lr=1e-3)
MAP_TRAINING = Schedule(steps=5_000, lr=1e-2, final_lr=1e-3)
DRAWS = 1000
REFERENCES = ("vanilla", "heavy, 0")
Array = NDArray[np.float64]


class Problem(NamedTuple):
    task: Task
    truth: Array  # [grid]: the function that the points were taken from


def problem(seed: int) -> Problem:
    """A function drawn from the Gaussian process, and noisy values of it at random points around the gap."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(INNER, OUTER, POINTS) * np.repeat([-1.0, 1.0], POINTS // 2)
    places = np.concatenate([x, GRID])
    covariance = np.exp(-0.5 * ((places[:, None] - places) / LENGTHSCALE) ** 2)
    values, vectors = np.linalg.eigh(covariance)
    f = vectors @ (np.sqrt(values.clip(0)) * rng.normal(size=len(places)))
    y = f[:POINTS] + NOISE * rng.normal(size=POINTS)
    x_tensor, y_tensor = (torch.tensor(v[:, None], dtype=torch.float32) for v in (x, y))
    return Problem(Task(x_tensor, y_tensor, NOISE), f[POINTS:])


def regions() -> dict[str, NDArray[np.bool_]]:
    """Where on the grid the function is asked for."""
    size = np.abs(GRID)
    return {"data": (size >= INNER) & (size <= OUTER), "gap": size < INNER, "outside": size > OUTER}


def run(
    widths: tuple[int, ...], seed: int, estimator: Estimator, names: tuple[str, ...] | None = None
) -> dict[str, dict[str, Any]]:
    """Every scheme, or those named, on the problem of that seed."""
    given, grid = problem(seed), torch.tensor(GRID[:, None], dtype=torch.float32)
    plain = posterior(widths, Choice(), seed)
    train_means(plain, given.task, MAP_TRAINING, seed)
    every = schemes(seed, weights_by_name(plain), START_C)
    rows = {}
    for name in names or every:
        model = posterior(widths, every[name], seed)
        curve = train(model, given.task, estimator, BAYESIAN, seed)
        outputs = predict(model, grid, NOISE, DRAWS, seed)
        rows[name] = {
            "fixed": every[name].count(widths),
            "nelbo": as_floats(curve, 1),
            **prediction(outputs, given),
        }
    return rows


def prediction(outputs: Tensor, given: Problem) -> dict[str, Any]:
    """Scores by region, mean and standard deviation of f on the grid, from outputs [S, grid, 1]."""
    truth = torch.tensor(given.truth[:, None])
    places = {name: torch.from_numpy(where) for name, where in regions().items()}
    scores = {name: score(outputs[:, where], truth[where], NOISE)._asdict() for name, where in places.items()}
    return {
        "scores": {name: {key: round(v, 5) for key, v in values.items()} for name, values in scores.items()},
        "mean": as_floats(outputs.mean(0), 4),
        "sigma": as_floats(outputs.std(0), 4),
    }


# --- against the exact posterior ------------------------------------------------------------------------------


def reference(name: str, chains: int, warmup: int, draws: int) -> dict[str, Any]:
    """NUTS on the network of that scheme and the problem of seed 0."""
    given, started = problem(0), time.monotonic()
    fixed = schemes(0, {}, START_C)[name].fixed(SMALL)
    x, y = (t.double().numpy() for t in given.task[:2])
    exact = nuts_mlp(
        SMALL, x, y, NOISE, at=GRID[:, None], warmup=warmup, draws=draws, chains=chains, seed=0, fixed=fixed
    )
    return {
        **_summary_of(exact, given),
        "chains": chains,
        "warmup": warmup,
        "draws": draws,
        "seconds": round(time.monotonic() - started),
    }


def _summary_of(exact: Reference, given: Problem) -> dict[str, Any]:
    outputs = torch.tensor(exact.outputs.reshape(-1, len(GRID), 1))
    return {
        **prediction(outputs, given),
        "convergence": {key: round(value, 3) for key, value in exact.convergence._asdict().items()},
    }


# --- report ---------------------------------------------------------------------------------------------------


class Distance(NamedTuple):
    """Between two predictions over a region."""

    mean: float  # root mean square difference of the means
    ratio: float  # geometric mean of the ratio of their standard deviations


def distance(row: dict[str, Any], exact: dict[str, Any], region: str) -> Distance:
    where = regions()[region]
    mean, exact_mean, sigma, exact_sigma = (
        np.array(given[key])[where] for key in ("mean", "sigma") for given in (row, exact)
    )
    gap = float(np.sqrt(np.mean((mean - exact_mean) ** 2)))
    return Distance(gap, float(np.exp(np.log(sigma / exact_sigma).mean())))


def schemes_table(result: dict[str, Any]) -> str:
    """All schemes on [1, 50, 50, 1], means over seeds."""
    lines, rows = [], result["rows"]
    for name, first in rows[0].items():
        nelbo = summary([row[name]["nelbo"][-1]] for row in rows)
        near, lpp, gap = (
            summary([row[name]["scores"][region][key]] for row in rows)
            for region, key in (("data", "rmse"), ("data", "lpp"), ("gap", "rmse"))
        )
        lines.append(
            (
                name,
                f"{first['fixed']:,}",
                f"{result['symmetry'][name]['permutations']:.1f}",
                f"{nelbo.mean:,.0f} ± {nelbo.error:.0f}",
                near,
                f"{lpp.mean:.2f} ± {lpp.error:.2f}",
                f"{gap.mean:.2f} ± {gap.error:.2f}",
                f"{np.mean([row[name]['gap_sigma'] for row in rows]):.2f}",
            )
        )
    return table(
        "| scheme | fixed | log10 permutations | NELBO | RMSE at data | LPP at data | RMSE in the gap | sigma in the gap |",
        lines,
    )


def nuts_table(result: dict[str, Any]) -> str:
    """Variational answers on the small network against the exact posterior of the same network."""
    lines = []
    for name, exact in result["nuts"].items():
        row, found = result["small"][name], exact["convergence"]
        near, gap = (distance(row, exact, region) for region in ("data", "gap"))
        errors = (exact["scores"]["data"]["rmse"], row["scores"]["data"]["rmse"], near.mean)
        ratios = (gap.mean, near.ratio, gap.ratio, found["worst_rhat"])
        cells = [f"{value:.3f}" for value in errors] + [f"{value:.2f}" for value in ratios]
        lines.append((name, *cells, f"{found['median_ess']:.0f}"))
    return table(
        "| network | RMSE at data: exact | variational | mean off, at data | in the gap | sigma ratio, at data | in the gap | worst r-hat | median ESS |",
        lines,
    )


def nuts_reading(result: dict[str, Any]) -> str:
    """Which scheme comes nearest to the exact posterior of the plain network."""
    exact, rows = result["nuts"]["vanilla"], result["small"]
    near, gap = (
        {name: distance(row, exact, region) for name, row in rows.items()} for region in ("data", "gap")
    )
    best = min(near, key=lambda name: near[name].mean)
    widest = max(gap, key=lambda name: gap[name].ratio)
    worst = max(part["convergence"]["worst_rhat"] for part in result["nuts"].values())
    return (
        f"The exact posterior of the plain network follows the points (RMSE {exact['scores']['data']['rmse']:.3f}), so what underfits is mean-field, not the "
        f"model. Of all schemes on this network, “{best}” has the mean nearest to it at the data, {near[best].mean:.2f} off (vanilla "
        f"{near['vanilla'].mean:.2f}). In the gap all are too sure: the widest, “{widest}”, has {gap[widest].ratio:.2f} of the exact sigma, “{best}” {gap[best].ratio:.2f}."
        + (
            " NUTS itself has not mixed everywhere: see its worst r-hat over the grid."
            if worst > 1.05
            else ""
        )
    )


def gap_between(rows: Sequence[dict[str, Any]], name: str, other: str) -> Summary:
    """Of the RMSE at the data, paired by seed."""
    return summary(
        [row[name]["scores"]["data"]["rmse"] - row[other]["scores"]["data"]["rmse"]] for row in rows
    )


def reading(result: dict[str, Any]) -> str:
    rows, checked = result["rows"], result["sixteen_draws"]
    pairs = (
        ("heavy, 0", "vanilla"),
        ("heavy, ±c", "vanilla"),
        ("ordered biases", "vanilla"),
        ("heavy, 0", "random as heavy, 0"),
        ("heavy, ±c", "random as heavy, ±c"),
        ("heavy, 0", "rows as heavy, 0"),
    )
    gaps = {pair: gap_between(rows, *pair) for pair in pairs}
    told = "\n".join(
        f"- “{name}” minus “{other}” {gap.mean:+.3f} ± {gap.error:.3f} ({'clear' if gap.clear else 'not clear'})"
        for (name, other), gap in gaps.items()
    )
    sixteen = "; ".join(
        f"{name} {summary([a[name]['nelbo'][-1]] for a in checked).mean:,.0f} with 16 draws, "
        f"{summary([b[name]['nelbo'][-1]] for b in rows[: len(checked)]).mean:,.0f} with ours"
        for name in REFERENCES
    )
    return f"""RMSE at data, paired by seed:

{told}

Steps use the local reparameterisation on all rows. Final NELBO on {len(checked)} seeds: {sixteen}."""


def headline(result: dict[str, Any]) -> str:
    """For RESULTS.md."""
    gap = gap_between(result["rows"], "heavy, ±c", "vanilla")
    return f"“heavy, ±c” minus vanilla, RMSE at the data: {gap.mean:+.3f} ± {gap.error:.3f}."


def section(result: dict[str, Any]) -> str:
    """This experiment's part of its page."""
    nuts = result["nuts"]["vanilla"]
    return f"""## One dimension

{measured(result, f"{SEEDS} seeds", f"{result['seconds'] / 60:.0f} minutes of one core")}

{POINTS} noisy points (sigma {NOISE}) of a function drawn from a Gaussian process (lengthscale {LENGTHSCALE}) on both sides of a gap. tanh
MLP {list(WIDTHS)}, N(0, 1) priors on weights and biases, {BAYESIAN.steps:,} Adam steps. Each seed has a function and points of its own.
RMSE and LPP compare with the function on a grid, between the outermost points (at data) and in the gap. ± is the
standard error over seeds. {result.get("remark", "")}

{schemes_table(result)}

{reading(result)}

The exact posterior on {list(SMALL)} and the points of seed 0, by NUTS ({nuts["chains"]} chains, {nuts["warmup"]} + {nuts["draws"]} steps each), against
mean-field on the same network: how far its mean is off (root mean square), and its sigma over the exact one.

{nuts_table(result)}

{nuts_reading(result)}

{picture(RESULT, "mean and two standard deviations for each scheme")}
"""


def plot(result: dict[str, Any]) -> None:
    """Mean and two standard deviations of predictions on seed 0, a panel for each scheme; NUTS last."""
    import matplotlib

    matplotlib.rcParams |= {"svg.fonttype": "none", "font.size": 8}
    panels = dict(result["shown"])
    panels |= {f"NUTS: {name}, [1, 20, 20, 1]": exact for name, exact in result["nuts"].items()}
    given = problem(0)
    figure = new_figure(9, 10)
    axes = figure.subplots(5, 3, sharex=True, sharey=True)
    drawn = slice(None, None, 2)  # every other point of the grid is smooth enough
    for ax, (name, row) in zip(axes.flat, panels.items(), strict=True):
        mean, sigma = np.array(row["mean"]), np.hypot(row["sigma"], NOISE)
        colour = "tab:red" if name.startswith("NUTS") else "tab:blue"
        band = ((mean + side * sigma)[drawn] for side in (-2, 2))
        ax.fill_between(GRID[drawn], *band, color=colour, alpha=0.25, linewidth=0, label="two sigma")
        ax.plot(GRID[drawn], mean[drawn], color=colour, linewidth=1, label="mean")
        ax.plot(
            GRID[drawn], given.truth[drawn], color="0.5", linewidth=0.7, linestyle="--", label="the function"
        )
        ax.plot(given.task.x[:, 0], given.task.y[:, 0], "k.", markersize=3, label="data")
        ax.set(title=name, ylim=(-4.0, 4.0))
        ax.tick_params(bottom=ax in axes[-1], left=ax in axes[:, 0])
    figure.supxlabel("x")
    figure.supylabel("y")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    save_figure(figure, RESULT)


# --- the whole experiment -------------------------------------------------------------------------------------


def in_short(row: dict[str, Any]) -> dict[str, Any]:
    """A row with the mean sigma in the gap instead of the whole prediction."""
    width = float(np.array(row["sigma"])[regions()["gap"]].mean())
    return {**{key: row[key] for key in ("fixed", "nelbo", "scores")}, "gap_sigma": round(width, 4)}


def measure(work: Path, nuts: dict[str, int]) -> dict[str, Any]:
    """All parts, and the time they took together."""
    jobs: dict[str, Callable[[], Any]] = {"symmetry": partial(symmetries, WIDTHS, 0)}
    jobs |= {f"seed_{seed}": partial(run, WIDTHS, seed, Local()) for seed in range(SEEDS)}
    jobs |= {"small": partial(run, SMALL, 0, Local())}
    jobs |= {f"nuts {name}": partial(reference, name, **nuts) for name in REFERENCES}
    jobs |= {f"sixteen_{seed}": partial(run, WIDTHS, seed, Draws(16), REFERENCES) for seed in range(CHECKED)}
    parts = {
        name: kept(work / f"{name.replace(', ', '_').replace(' ', '_')}.json", job)
        for name, job in jobs.items()
    }
    value = {name: part["value"] for name, part in parts.items()}
    shown = [value[f"seed_{seed}"] for seed in range(SEEDS)]
    return {
        "symmetry": value["symmetry"],
        "shown": {name: {key: row[key] for key in ("mean", "sigma")} for name, row in shown[0].items()},
        "rows": [{name: in_short(row) for name, row in rows.items()} for rows in shown],
        "sixteen_draws": [
            {name: in_short(row) for name, row in value[f"sixteen_{seed}"].items()} for seed in range(CHECKED)
        ],
        "small": value["small"],
        "nuts": {name: value[f"nuts {name}"] for name in REFERENCES},
        "seconds": sum(part["seconds"] for part in parts.values()),
    }


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--work", type=Path, default=Path("runs/one_dimension"))
    for name, default in (("chains", 2), ("warmup", 400), ("draws", 400)):
        parser.add_argument(f"--{name}", type=int, default=default, help="of NUTS")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    args.work.mkdir(parents=True, exist_ok=True)
    nuts = {name: getattr(args, name) for name in ("chains", "warmup", "draws")}
    result = {
        "command": "python -m experiments.structure.one_dimension",
        **measure(args.work, nuts),
        "versions": versions(),
    }
    write_result(RESULT, result, indent=None)
    plot(result)


if __name__ == "__main__":
    main()
