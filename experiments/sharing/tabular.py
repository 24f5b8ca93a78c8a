"""Does weight sharing work on networks that are not about images?  MLPs on two UCI tables, power and kin8nm.

    python -m experiments.sharing.tabular --data DIR      # a folder with power.npz and kin8nm.npz: x and y

ReLU MLPs [d, 256, 256, 1] with Gaussian noise that is learned, on targets standardised by the training rows.  A seed
shuffles the rows into 80 % training, 10 % validation and 10 % test; the temperature is chosen on validation rows.  From that
posterior: mixtures over the plane (mu, sigma) judged on the half of the weights that they were not fitted to, the
sharing paper's algorithm with several fractions of outliers, and `compress`.  Validation rows decide, test rows score the
files loaded back.
Learning rates after sharing were chosen on validation rows of power, seed 0, among 1e-4 to 1e-2 for mu and 1e-3 to 3e-2
for rho, with 1 % outliers.
With --cifar DIR the mixtures are also fitted to as many weights of our ResNet-20 for CIFAR-10.
Parts are kept under --work, so a broken run goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from experiments.markdown import marked, measured, picture, table
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
from experiments.sharing import tabular_mixtures as mixtures
from experiments.sharing import tabular_study as study
from experiments.sharing.tabular_mixtures import Plane
from experiments.sharing.tabular_study import Study
from pocketbayes.sharing.blend import ELLIPSE

RESULT = RESULTS / "sharing/tabular.json"
SEEDS = 3
NEAR = 0.05  # nats a weight that count as none
THINNED = 6000  # weights in the figure


# --- report ---------------------------------------------------------------------------------------------------

Rows = Sequence[dict[str, Any]]  # one for each seed
Keys = tuple[str, ...]  # the way to a number in a row
PLAIN, POSTERIOR, NLL = ("posterior", "deterministic"), ("posterior", "posterior"), ("test", "nll")


def at(row: Any, keys: Keys) -> Any:
    for key in keys:
        row = row[key]
    return row


def over(rows: Rows, keys: Keys) -> Summary:
    """Mean and standard error over seeds."""
    return summary([at(row, keys)] for row in rows)


def gap(rows: Rows, one: Keys, other: Keys) -> Summary:
    """One minus the other, paired by seed."""
    return summary([at(row, one) - at(row, other)] for row in rows)


def of_setting(k: int, fraction: float, word: str = "blends") -> Keys:
    return (f"sharing {k}", f"{fraction:g}", word)


def best_outliers(rows: Rows, k: int) -> float:
    """The fraction of outliers with the lowest mean NLL on validation rows, blends on."""
    return min(
        study.OUTLIERS, key=lambda fraction: over(rows, (*of_setting(k, fraction), "validation", "nll")).mean
    )


def files_table(tables: dict[str, Rows]) -> str:
    lines = []
    for name, rows in tables.items():
        fp32 = at(rows[0], ("posterior", "fp32"))
        cases: dict[str, Keys] = {"deterministic, fp32": PLAIN, "posterior": POSTERIOR}
        cases |= {f"`compress` to {part:.0%}": (f"budget {part:g}",) for part in study.BUDGETS}
        for k in study.SHARED:
            outliers = best_outliers(rows, k)
            cases[f"paper's, K = {k}, {outliers:.1%} outliers"] = of_setting(k, outliers)
        cases[f"paper's, K = {study.PUBLISHED.components}, all rules"] = ("published",)
        for words, keys in cases.items():
            size = fp32 if keys == PLAIN else over(rows, (*keys, "bytes")).mean
            rmse, nll = over(rows, (*keys, "test", "rmse")), over(rows, (*keys, *NLL))
            more = "" if keys == POSTERIOR else marked(gap(rows, (*keys, *NLL), (*POSTERIOR, *NLL)))
            lines.append((name, words, f"{size:,.0f}", f"{size / fp32:.1%}", rmse, nll, more))
    return table(
        "| data | network | file (bytes) | of fp32 | test RMSE | test NLL | NLL - posterior's |", lines
    )


def columns(tables: dict[str, Rows], resnet: Rows) -> dict[str, tuple[Rows, Keys]]:
    """What mixtures were fitted to, by name."""
    found: dict[str, tuple[Rows, Keys]] = {
        f"{name}, {words}": (rows, ("mixture", widths))
        for name, rows in tables.items()
        for widths, words in (("trained", "trained"), ("laplace", "Laplace"))
    }
    return found | ({"ResNet-20, Laplace": (resnet, ("mixture", "laplace"))} if resnet else {})


def gain(rows: Rows, plane: Keys, k: int) -> Summary:
    """Held-out nats a weight above those of a single Gaussian: the same in any unit of mu and of sigma."""
    return gap(rows, (*plane, "k", str(k), "one"), (*plane, "k", "1", "one"))


def best_k(rows: Rows, plane: Keys, within: float = 0.0) -> int:
    """The smallest K within so many nats a weight of the largest gain."""
    gains = {k: gain(rows, plane, k).mean for k in mixtures.COMPONENTS}
    return next(k for k, found in gains.items() if found >= max(gains.values()) - within)


def mixture_table(planes: dict[str, tuple[Rows, Keys]]) -> str:
    cells = {
        str(k): [str(gain(*plane, k)) for plane in planes.values()] for k in mixtures.COMPONENTS if k > 1
    }
    cells["best K"] = [str(best_k(*plane)) for plane in planes.values()]
    cells[f"smallest K within {NEAR:g} nats"] = [str(best_k(*plane, NEAR)) for plane in planes.values()]
    at_best = [(rows, (*keys, "k", str(best_k(rows, keys)))) for rows, keys in planes.values()]
    for way, words in (("proportions", "own proportions"), ("own", "own components")):
        more = [gap(rows, (*keys, way), (*keys, "one")) for rows, keys in at_best]
        cells[f"best K, {words}"] = [marked(found) for found in more]
    return table("| K | " + " | ".join(planes) + " |", ((words, *row) for words, row in cells.items()))


def layers_table(tables: dict[str, Rows]) -> str:
    lines = []
    for name, rows in tables.items():
        for layer in at(rows[0], ("mixture", "trained", "layers")):
            keys = ("mixture", "trained", "layers", layer)
            parts = [f"{over(rows, (*keys, key)).mean:.1%}" for key in ("share", "worst")]
            nats = [over(rows, (*keys, way)) for way in ("one", "proportions", "own")]
            lines.append((name, layer, *parts, *nats))
    return table(
        "| data | layer | of the weights | of the worst | one mixture | own proportions | own components |",
        lines,
    )


def sharing_table(tables: dict[str, Rows]) -> str:
    lines = []
    for name, rows in tables.items():
        for k, outliers in [(k, outliers) for k in study.SHARED for outliers in study.OUTLIERS]:
            on, off = of_setting(k, outliers), of_setting(k, outliers, "none")
            counted = [(*on, "components"), (*on, "blends"), (*on, "bytes"), (*off, "bytes")]
            scored = [over(rows, (*on, *key)) for key in (("untuned", "nll"), ("test", "rmse"), NLL)]
            scored.append(over(rows, (*off, *NLL)))
            cells = [f"{over(rows, keys).mean:,.0f}" for keys in counted]
            blends = marked(gap(rows, (*on, *NLL), (*off, *NLL)))
            lines.append((name, k, f"{outliers:.1%}", *cells, *scored, blends))
    return table(
        "| data | K | outliers | K after merging | blended | file (bytes) | bytes without blends | validation NLL before tuning | test RMSE | test NLL | NLL without blends | NLL: blends - without |",
        lines,
    )


def reading(tables: dict[str, Rows]) -> str:
    """What the table of outliers and blends says, each sentence computed from the numbers."""
    words = [sharing_reading(name, rows, k) for name, rows in tables.items() for k in study.SHARED]
    return "\n".join(f"- {sentence}" for sentence in words)


def sharing_reading(name: str, rows: Rows, k: int) -> str:
    """Outliers and blends at one K, and `compress` to the largest budget beside it."""
    best = best_outliers(rows, k)
    chosen = of_setting(k, best)
    others = [s for s in (0.0, study.PUBLISHED.outliers.fisher_fraction) if s != best]
    less = [
        f"{marked(gap(rows, (*chosen, *NLL), (*of_setting(k, s), *NLL)))} against {s:.1%}" for s in others
    ]
    pairs = [((*of_setting(k, s), *NLL), (*of_setting(k, s, "none"), *NLL)) for s in study.OUTLIERS]
    blends = summary([at(row, on) - at(row, off) for on, off in pairs] for row in rows)
    budget = (f"budget {max(study.BUDGETS):g}",)
    size = over(rows, (*budget, "bytes")).mean / over(rows, (*chosen, "bytes")).mean
    edge = ", the most that was tried" if best == max(study.OUTLIERS) else ""
    return (
        f"{name}, K = {k}: validation rows choose {best:.1%} outliers{edge}. This changes test NLL by {' and '.join(less)}. "
        f"Blends change it by {marked(blends)}, the mean over all fractions of outliers. `compress` to {max(study.BUDGETS):.0%} instead changes it by "
        f"{marked(gap(rows, (*budget, *NLL), (*chosen, *NLL)))}, in a file {size:.2f} times as large."
    )


def headline(result: dict[str, Any]) -> str:
    """For RESULTS.md."""
    small = sorted(study.BUDGETS)[len(study.BUDGETS) // 2]
    told = (
        f"{name} {marked(gap(rows, (f'budget {small:g}', *NLL), (*POSTERIOR, *NLL)))}"
        for name, rows in result["tables"].items()
    )
    return f"test NLL of files of {small:.0%} of fp32 minus the posterior's: {', '.join(told)}."


def section(result: dict[str, Any]) -> str:
    """This experiment's part of its page."""
    tables, planes = result["tables"], columns(result["tables"], result["resnet20"])
    first = {name: rows[0]["posterior"] for name, rows in tables.items()}
    sizes = "; ".join(
        f"{name}: {' / '.join(f'{n:,}' for n in row['rows'])} rows, {row['weights']:,} weights, one unit of the target is {row['unit']:.3g}"
        for name, row in first.items()
    )
    chosen = "; ".join(
        f"{name} {', '.join(format(row['posterior']['temperature'], 'g') for row in rows)}"
        for name, rows in tables.items()
    )
    outliers = ", ".join(
        f"{over(rows, ('published', 'outliers')).mean / first[name]['weights']:.0%} on {name}"
        for name, rows in tables.items()
    )
    beside = (
        " Beside them stand as many weights of a trained ResNet-20 (prior sigma 0.2), chosen anew for each seed: its ± is over that choice alone."
        if result["resnet20"]
        else ""
    )
    rules = study.PUBLISHED.outliers
    return f"""## Sharing on networks that are not about images

{measured(result, f"{len(result['seeds'])} seeds", f"{result['seconds'] / 60:.0f} minutes of one core")}

ReLU MLPs [d, {", ".join(map(str, study.HIDDEN))}, 1] with Gaussian noise on standardised targets (training / validation / test: {sizes}).

- One set of weights by {study.EPOCHS} epochs: the best one on validation rows, whose residuals are its noise.
- Then {study.POSTERIOR_EPOCHS} epochs of `fit` from sigma by Laplace at each temperature of {", ".join(f"{each:g}" for each in study.TEMPERATURES)}. Validation rows chose, seed by
  seed, {chosen}. All below starts from that posterior.
- Sharing by the paper's algorithm is followed by {study.TUNING_EPOCHS} epochs (lr {study.TUNING_LR:g}, the best of a few on validation rows of power, seed
  0; for K = {study.PUBLISHED.components} the better of it and {study.LR:g}), `compress` takes {study.PLAN.epochs} + {study.PLAN.finetune_epochs}.
- Files hold the noise, are loaded back and scored with {study.SAMPLES} draws. ± is over seeds, each with its own split. Differences are
  paired by seed, and bold where beyond the 95 % quantile of Student's t.

{files_table(tables)}

The paper's K and thresholds (|mu| above {rules.mean.tau}, {rules.fisher_fraction:.0%} by Fisher information, clusters under {rules.smallest_cluster}) make outliers of {outliers}.
The paper's other rows have the fraction that validation rows chose.

### How well a mixture describes the weights

Mixtures over (mu, sigma) fitted to a random half of the weights. The numbers are nats a weight on the other half, above
those of one Gaussian, for sigma trained at the chosen temperature and for sigma by Laplace at temperature 1.{beside} Last rows: what is
gained if each layer has its own proportions of the same components, or its own components, about as many in total.

{mixture_table(planes)}

Layer by layer at each seed's best K, trained sigma, in nats a weight. The worst are the {mixtures.WORST:.0%} of the weights that lose most if
a mixture of {mixtures.DRAWN} for all layers takes the place of their layer's own.

{layers_table(tables)}

{picture(RESULT, "the plane of the weights")}

### Outliers and blends

The paper's algorithm with outliers by Fisher information alone, with blends and without.

{sharing_table(tables)}

{reading(tables)}
"""


def plot(planes: dict[str, Plane], result: dict[str, Any]) -> None:
    """The plane of each table's first seed with a mixture's ellipses, and gains against K."""
    figure = new_figure(4.2 * (len(planes) + 1), 3.8)
    axes = figure.subplots(1, len(planes) + 1)
    for ax, (name, plane) in zip(axes, planes.items(), strict=False):
        draw_plane(ax, plane, result["tables"][name][0]["mixture"]["trained"]["best"])
        ax.set_title(f"{name}, seed 0: {mixtures.DRAWN} components")
    for words, (rows, keys) in columns(result["tables"], result["resnet20"]).items():
        found = [gain(rows, keys, k) for k in mixtures.COMPONENTS]
        axes[-1].errorbar(
            mixtures.COMPONENTS, [g.mean for g in found], [g.error for g in found], marker="o", label=words
        )
    axes[-1].set(
        xscale="log", xlabel="components K", ylabel="nats a weight above K = 1", title="held-out weights"
    )
    axes[-1].legend(fontsize=8, loc="upper left")
    save_figure(figure, RESULT)


def draw_plane(ax: Any, plane: Plane, best: int) -> None:
    """Weights by layer, ellipses that hold 95 % of each component, and the weights called badly fitted."""
    fit, held = mixtures.halves(len(plane.points), 0)
    mixture, few = mixtures.fitted(plane.points[fit], mixtures.DRAWN), held[:THINNED]
    ax.set_rasterization_zorder(0)  # points become one picture
    for number, layer in enumerate(plane.names):
        mu, sigma = plane.points[few[plane.layer[few] == number]].T
        ax.plot(mu, sigma, ".", markersize=2, alpha=0.5, label=layer, zorder=-2)
    each = mixtures.by_layer(plane, fit, held, best, mixture)
    worst = plane.points[held[mixtures.worst_of(own=each["own"], one=each["one"])]]
    ax.plot(*worst.T, "x", color="tab:red", markersize=3, label=f"worst {mixtures.WORST:.0%}", zorder=-1)
    turn = torch.linspace(0, 2 * torch.pi, 60, dtype=torch.float64)
    circle = torch.stack([turn.cos(), turn.sin()], 1) * ELLIPSE**0.5  # [60, 2]
    for mean, root in zip(mixture.mean, torch.linalg.cholesky(mixture.cov), strict=True):
        ax.plot(*(mean + circle @ root.T).T, color="black", linewidth=0.7)
    low, high = (float(sigma) for sigma in plane.points[held, 1].aminmax())
    ax.set(yscale="log", ylim=(0.7 * low, 2 * high), xlabel="mu", ylabel="sigma")  # ellipses reach below zero
    ax.legend(fontsize=8, markerscale=3, loc="lower right")


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="a folder with power.npz and kin8nm.npz")
    parser.add_argument("--cifar", default=None, help="a folder with CIFAR-10, to compare with a ResNet-20")
    parser.add_argument("--work", type=Path, default=Path("runs/tabular"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    result = measure(args.data, args.work, args.cifar)
    write_result(RESULT, result)
    plot({name: Study(args.data, args.work, name, 0).plane() for name in study.TABLES}, result)


def measure(folder: Path, work: Path, cifar: str | None) -> dict[str, Any]:
    tables = {name: [Study(folder, work, name, seed).row() for seed in range(SEEDS)] for name in study.TABLES}
    resnet: dict[str, Any] = {"value": [], "seconds": 0}
    if cifar is not None:
        count = max(rows[0]["posterior"]["weights"] for rows in tables.values())
        resnet = kept(work / "resnet20.json", partial(mixtures.resnet_rows, cifar, count, SEEDS))
    seconds = sum(row["seconds"] for rows in tables.values() for row in rows) + resnet["seconds"]
    return {
        "command": "python -m experiments.sharing.tabular --data DIR"
        + " --cifar DIR" * bool(resnet["value"]),
        "tables": tables,
        "resnet20": resnet["value"],
        "seeds": list(range(SEEDS)),
        "seconds": seconds,
        "versions": versions(),
    }


if __name__ == "__main__":
    main()
