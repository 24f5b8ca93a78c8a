"""Tables, figure and reading of `structure.uci`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.markdown import listed, marked, measured, picture, table
from experiments.record import RESULTS, Summary, new_figure, save_figure, summary
from experiments.structure.schemes import DETERMINISTIC

RESULT = RESULTS / "structure/uci.json"
PAPER = {"vanilla": 0.115, "best": 0.076}  # RMSE on energy
Rows = list[dict[str, Any]]
Parts = dict[str, dict[str, Any]]  # by data set
CONTROLS = (  # (scheme, control): as many weights fixed, to the same kind of value
    ("light, 0", "random as light, 0"),
    ("heavy, 0", "random as heavy, 0"),
    ("heavy, ±c", "random as heavy, ±c"),
    ("heavy, MAP", "random as heavy, MAP"),
    ("heavy, 0", "rows as heavy, 0"),
    ("random as heavy, 0", "rows as heavy, 0"),
)


def by_split(rows: Rows, values: Sequence[float]) -> list[list[float]]:
    """The runs' values, in groups that share a test set."""
    splits = sorted({row["split"] for row in rows})
    return [[v for row, v in zip(rows, values, strict=True) if row["split"] == s] for s in splits]


def mean_of(rows: Rows, kind: str, name: str, key: str) -> Summary:
    return summary(by_split(rows, [row[kind][name][key] for row in rows]))


def difference(rows: Rows, name: str, other: str, key: str, kind: str = "bayesian") -> Summary:
    """One scheme minus another, paired by split and seed."""
    return summary(by_split(rows, [row[kind][name][key] - row[kind][other][key] for row in rows]))


def last_nelbo(rows: Rows, name: str) -> float:
    return float(np.mean([row["bayesian"][name]["nelbo"][-1] for row in rows]))


# --- tables ---------------------------------------------------------------------------------------------------


def schemes_table(part: dict[str, Any]) -> str:
    """All schemes on one data set."""
    lines, rows = [], part["rows"]
    for name, first in rows[0]["bayesian"].items():
        gaps, plain = ["", ""], ""
        if name != "vanilla":
            gaps = [marked(difference(rows, name, "vanilla", key)) for key in ("rmse", "lpp")]
        if name in DETERMINISTIC:
            found = [mean_of(rows, "deterministic", name, key).mean for key in ("rmse", "lpp")]
            plain = f"{found[0]:.3f}, {found[1]:.3f}"
        scores = [mean_of(rows, "bayesian", name, key) for key in ("rmse", "lpp")]
        left = f"{part['symmetry'][name]['permutations']:.1f}"
        lines.append(
            (name, f"{first['fixed']:,}", left, *scores, *gaps, f"{last_nelbo(rows, name):,.0f}", plain)
        )
    return table(
        "| scheme | fixed | log10 permutations | RMSE | LPP | RMSE - vanilla | LPP - vanilla | NELBO | one set of weights: RMSE, LPP |",
        lines,
    )


def controls(rows: Rows) -> list[tuple[str, str]]:
    """Those of `CONTROLS` that were trained."""
    return [pair for pair in CONTROLS if set(pair) <= set(rows[0]["bayesian"])]


def control_table(parts: Parts) -> str:
    """Structure against as many weights fixed elsewhere, LPP and RMSE, on every data set."""
    rows = (
        [f"{scheme} − {control}"]
        + [
            marked(difference(part["rows"], scheme, control, key))
            for part in parts.values()
            for key in ("rmse", "lpp")
        ]
        for scheme, control in controls(parts["energy"]["rows"])
    )
    return table("| difference | " + " | ".join(f"{name}: RMSE | {name}: LPP" for name in parts) + " |", rows)


# --- reading --------------------------------------------------------------------------------------------------


def clearly(rows: Rows, key: str, better: bool) -> list[str]:
    """Schemes that differ clearly from vanilla, in that direction."""
    names = [name for name in rows[0]["bayesian"] if name != "vanilla"]
    gaps = {name: difference(rows, name, "vanilla", key) for name in names}
    down = better == (key == "rmse")
    return [name for name, gap in gaps.items() if gap.clear and (gap.mean < 0) == down]


def best_scheme(rows: Rows) -> str:
    """By RMSE."""
    return min(rows[0]["bayesian"], key=lambda name: mean_of(rows, "bayesian", name, "rmse").mean)


def paper_paragraph(rows: Rows) -> str:
    best = best_scheme(rows)
    vanilla, least = (mean_of(rows, "bayesian", name, "rmse") for name in ("vanilla", best))
    point = mean_of(rows, "deterministic", "vanilla", "rmse")
    better, worse = (listed(clearly(rows, "lpp", way)) for way in (True, False))
    text = (
        f"Against the paper, energy: vanilla has RMSE {vanilla}, in the paper {PAPER['vanilla']}. The best here, “{best}”, has "
        f"{least}, the paper's best {PAPER['best']}. Clearly better than vanilla by LPP: {better}; clearly worse: {worse}."
    )
    if point.mean < least.mean:
        won = clearly(rows, "rmse", True) or clearly(rows, "lpp", True)
        text += (
            f" No posterior reaches the deterministic network, {point} by MAP training, with or without a mask: "
            f"{'the schemes win back a part' if won else 'no scheme clearly wins back any'} of what mean-field inference loses here, "
            "and capacity is not what limits them."
        )
    return text


def sorted_out(rows: Rows, key: str) -> str:
    """Which schemes are clearly better or worse than their controls."""
    found: dict[str, list[str]] = {"clearly better": [], "clearly worse": [], "no clear difference": []}
    for scheme, control in controls(rows):
        gap = difference(rows, scheme, control, key)
        word = "clearly better" if (gap.mean < 0) == (key == "rmse") else "clearly worse"
        found[word if gap.clear else "no clear difference"].append(f"“{scheme}” against “{control}”")
    return "; ".join(f"{word}: {', '.join(pairs)}" for word, pairs in found.items() if pairs)


def structure_paragraph(part: dict[str, Any]) -> str:
    rows = part["rows"]
    left = {name: f"10^{row['permutations']:.0f}" for name, row in part["symmetry"].items()}
    alone = [marked(difference(rows, name, "vanilla", "lpp")) for name in ("light, MAP", "ordered biases")]
    nelbo = last_nelbo(rows, "ordered biases") - last_nelbo(rows, "vanilla")
    return (
        f"Is it the symmetry? Two schemes leave no permutation while all weights, or all but {rows[0]['bayesian']['light, MAP']['fixed']}, stay random. Their LPP minus "
        f"vanilla's is {alone[0]} for “light, MAP” and {alone[1]} for ordered biases. The NELBO of ordered biases bounds the same evidence as vanilla's and is "
        f"{nelbo:+.0f} nats from it, although the order alone is worth 2 ln 50! = 297.\n\n"
        f"Is it structure, or merely fewer stochastic weights? Random places, the paper's control, break symmetry too: as many as heavy "
        f"fixes leave {left['random as heavy, 0']} permutation, and as many as light fixes leave {left['random as light, 0']} where light itself "
        f"leaves {left['light, 0']}. Whole rows of zeros keep {left['rows as heavy, 0']}. "
        f"Energy, LPP: {sorted_out(rows, 'lpp')}. RMSE: {sorted_out(rows, 'rmse')}. "
        f"What weights are fixed to matters: ±c instead of zeros has {marked(difference(rows, 'heavy, ±c', 'heavy, 0', 'lpp'))} of LPP in heavy places. "
        "Of twenty comparisons without any difference, one looks clear by chance."
    )


def others_paragraph(parts: Parts) -> str:
    """Where energy's findings hold, and where not."""
    texts = []
    for name, part in parts.items():
        if name != "energy":
            words = [
                f"{word} by {key.upper()} {listed(clearly(part['rows'], key, way))}"
                for word, way in (("better", True), ("worse", False))
                for key in ("rmse", "lpp")
            ]
            texts.append(f"{name}, clearly {'; '.join(words)}")
    return "The other data sets, against vanilla: " + ". ".join(texts) + "."


def convergence_paragraph(rows: Rows, steps: int) -> str:
    curves = np.array(
        [[run["nelbo"] for run in row["bayesian"].values()] for row in rows]
    )  # [runs, schemes, points]
    fall = (curves[..., -3] - curves[..., -1]).mean()
    ends = [row["bayesian"]["vanilla"]["nelbo"][-1] for row in rows]
    return (
        f"{steps:,} steps are the paper's number, not convergence: over the last tenth of them the NELBO still falls, by {fall:.0f} nats on "
        f"average. Runs end in optima far apart (NELBO of vanilla on energy from {min(ends):.0f} to {max(ends):.0f}), so single runs tell little."
    )


# --- the estimator of the gradient ----------------------------------------------------------------------------


def estimator_table(draws: Rows, local: Rows) -> str:
    """Both estimators on energy, for the schemes that both have."""
    rows = (
        [name]
        + [mean_of(rows, "bayesian", name, key) for key in ("rmse", "lpp") for rows in (draws, local)]
        + [f"{last_nelbo(rows, name):,.0f}" for rows in (draws, local)]
        for name in draws[0]["bayesian"]
    )
    return table(
        "| scheme | RMSE: 16 draws | local | LPP: 16 draws | local | NELBO: 16 draws | local |", rows
    )


def estimator_paragraph(draws: Rows, local: Rows) -> str:
    """What the comparison of schemes owes to the optimiser."""
    told = {
        word: [listed(clearly(rows, "lpp", way)) for rows in (draws, local)]
        for word, way in (("better", True), ("worse", False))
    }
    vanilla = [mean_of(rows, "bayesian", "vanilla", "rmse").mean for rows in (draws, local)]
    return (
        f"The estimator of the gradient decides much. Vanilla has an RMSE of {vanilla[0]:.3f} with 16 draws of the weights on all rows, and "
        f"{vanilla[1]:.3f} with the local reparameterisation on 256 rows, at the same objective, steps and learning rates. Clearly better than vanilla by LPP "
        f"with 16 draws: {told['better'][0]}; with the local one: {told['better'][1]}. Clearly worse: {told['worse'][0]} and {told['worse'][1]}. "
        "To compare variational families by what an optimiser makes of them is to compare optimisers too."
    )


# --- the section ----------------------------------------------------------------------------------------------


def headline(result: dict[str, Any]) -> str:
    """For RESULTS.md."""
    rows = result["draws"]["energy"]["rows"]
    best = best_scheme(rows)
    vanilla, least = (mean_of(rows, "bayesian", name, "rmse") for name in ("vanilla", best))
    point = mean_of(rows, "deterministic", "vanilla", "rmse")
    return f"energy, RMSE: vanilla {vanilla}, the best scheme, “{best}”, {least}, the deterministic network {point}."


def section(result: dict[str, Any]) -> str:
    """This experiment's part of its page."""
    draws, local = (
        {name: part for name, part in result[kind].items() if part["rows"]} for kind in ("draws", "local")
    )
    counts = ", ".join(f"{name} {len(part['rows'])}" for name, part in draws.items())
    tables = "\n\n".join(
        f"### {name}, {list(part['widths'])}\n\n{schemes_table(part)}" for name, part in draws.items()
    )
    hours = {kind: seconds / 3600 for kind, seconds in result["seconds"].items()}
    energy = draws["energy"]["rows"], local["energy"]["rows"]
    runs = [sum(len(part["rows"]) for part in parts.values()) for parts in (draws, local)]
    cheaper = (hours["local"] / runs[1]) / (hours["draws"] / runs[0])
    took = f"{hours['draws']:.1f} hours of one core for 16 draws and {hours['local']:.1f} for the local estimator"
    settings = result["settings"]
    return f"""## UCI data

{measured(result, took, "a shared two-core machine")}

- tanh MLPs with N(0, 1) priors on weights and biases, observation noise {settings["noise"]} on standardised targets (the paper's; far
  too small for boston and concrete, whose LPP it ruins).
- Mean-field posteriors by {settings["steps"]:,} Adam steps of 16 draws of the weights on all rows, {settings["draws"]:,} draws for predictions.
- Runs: {counts}, on five splits that test every row once.
- RMSE and LPP (ln predictive density) are per standardised target value. ± is the standard error over splits, each the
  mean of its seeds. Differences are paired, and bold where beyond the 95 % quantile of Student's t.
- "light" and "heavy" fix structured entries, "random" as many at random places, "rows" as many in whole rows. They are
  fixed to zero, to ±c with c trained from 4 (light) or 1 (heavy), or to the values of a deterministic network (MAP).
- The last column is MAP training under the same mask: the capacity that the mask leaves.

{result.get("remark", "")}

{tables}

{paper_paragraph(energy[0])}

{structure_paragraph(draws["energy"])}

{others_paragraph(draws)}

{convergence_paragraph(energy[0], settings["steps"])}

{picture(RESULT, "RMSE and LPP of every scheme")}

Means and standard errors; grey line: vanilla; red dots: the deterministic network, where it is near.

### The estimator of the gradient, energy

With the local reparameterisation a run, with more controls, costs {cheaper:.0%} of the time, so there are more: {len(energy[1])} on energy,
{len(energy[1]) // 5} seeds on each of five splits, {len(local["boston"]["rows"])} on boston and {len(local["concrete"]["rows"])} on concrete.

{estimator_table(*energy)}

{estimator_paragraph(*energy)}

More controls, with the local estimator:

{control_table(local)}
"""


# --- figure ---------------------------------------------------------------------------------------------------


def colour(name: str) -> str:
    if name == "vanilla":
        return "black"
    if name.startswith(("light", "heavy")):
        return "tab:blue"
    return "tab:green" if name.startswith("ordered") else "tab:orange"


def plot(result: dict[str, Any]) -> None:
    """RMSE above and LPP below, a column for each data set, a row for each scheme."""
    import matplotlib

    matplotlib.rcParams |= {"svg.fonttype": "none", "font.size": 8}
    parts = {name: part for name, part in result["draws"].items() if part["rows"]}
    figure = new_figure(3.6 * len(parts), 5)
    axes = figure.subplots(2, len(parts), sharey=True, squeeze=False)
    for (row, key), (column, name) in ((a, b) for a in enumerate(("rmse", "lpp")) for b in enumerate(parts)):
        draw(axes[row][column], parts[name]["rows"], key, name)
    axes[0][0].invert_yaxis()
    save_figure(figure, RESULT)


def draw(ax: Any, rows: Rows, key: str, name: str) -> None:
    schemes = list(rows[0]["bayesian"])
    for place, scheme in enumerate(schemes):
        found = mean_of(rows, "bayesian", scheme, key)
        ax.errorbar(found.mean, place, xerr=found.error, fmt="o", color=colour(scheme), markersize=4)
    reference = mean_of(rows, "bayesian", "vanilla", key).mean
    ax.axvline(reference, color="0.7", linewidth=0.8, zorder=0)
    exact = mean_of(rows, "deterministic", "vanilla", key).mean
    if abs(exact - reference) < 1.5:
        ax.axvline(exact, color="tab:red", linestyle=":", linewidth=1, zorder=0)
    ax.set_yticks(range(len(schemes)), schemes)
    better = "smaller" if key == "rmse" else "larger"
    ax.set_xlabel(f"{key.upper()} ({better} is better)")
    ax.set_title(name)
    ax.locator_params(axis="x", nbins=6)
    ax.grid(axis="x", alpha=0.3)
