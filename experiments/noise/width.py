"""Energy distance between device noise and Gaussian noise against width: sums exactly, networks by sampling.

    python -m experiments.noise.width --device rram_read_noise.npz

Sums: (z_1 + ... + z_n) / sqrt n against N(0, 1) by characteristic functions, D^2 = (2 / pi) int |phi - psi|^2 / t^2 dt.
Networks [n, n, 1] with tanh, where every stochastic layer has the fan-in n, and [1, n, 1], where the first has one input.
Both have unit means and sigmas over sqrt(fan-in); distances are in units of the Gaussian output's sigma.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.markdown import measured, one_core, picture, table
from experiments.noise.common import in_short, laws, moments
from experiments.record import RESULTS, command_line, new_figure, save_figure, versions, write_result
from pocketbayes.noise import Gaussian, Law, StudentT, TwoPoint, marginal_distances, sum_energy_distance

RESULT = RESULTS / "noise/width.json"
WIDTHS = tuple(2**k for k in range(2, 11))
REPEATS, NUMBERS, MOST = 4, 20_000_000, 200_000  # random numbers and draws for a network
OUTPUTS, FEWEST, INPUTS = 800_000, 4, 64  # outputs for a network, and how many inputs they are spread over
KURTOSIS, SKEWNESS, LATTICE = 0.001837, 0.01175, 0.188  # leading constants of D^2 for sums


# --- sums, exactly -----------------------------------------------------------------------------------------------


def sums(named: dict[str, Law]) -> dict[str, list[float]]:
    """D^2 at every width; signs also with unequal terms, which are no lattice."""
    found = {name: [sum_energy_distance(law, n) for n in WIDTHS] for name, law in named.items()}
    generator = torch.Generator().manual_seed(0)
    unequal = [0.5 + torch.rand(n, generator=generator, dtype=torch.float64) for n in WIDTHS]
    found["signs, unequal terms"] = [sum_energy_distance(TwoPoint(), len(c), c) for c in unequal]
    return found


def expected(name: str, law: Law) -> tuple[str, float, float | None]:
    """(which term leads, slope in log-log, its constant if it is known)."""
    if name == "signs":
        return "lattice", -1.0, LATTICE
    if law.moment_order() < 4:
        return "heavy tail", 2 - law.moment_order(), None
    if abs(law.skewness()) > 1e-6:
        return "skewness", -1.0, SKEWNESS * law.skewness() ** 2
    return "kurtosis", -2.0, KURTOSIS * law.excess_kurtosis() ** 2


# --- networks, by sampling ---------------------------------------------------------------------------------------


def wide_draws(law: Law, width: int, count: int, generator: torch.Generator) -> Tensor:
    """Outputs [S, M] of [n, n, 1] at M fixed inputs: means N(0, 1/n), fixed; sigma 1/sqrt n.

    The floor falls as 1 / (S sqrt M): few inputs where draws are cheap.
    """
    fixed = torch.Generator().manual_seed(width)
    inputs = min(max(OUTPUTS // count, FEWEST), INPUTS)
    scale = width**-0.5
    x, m1, m2 = (
        torch.randn(*shape, generator=fixed) for shape in ((inputs, width), (width, width), (width,))
    )
    parts = []
    for start in range(0, count, max(1, 2_000_000 // width**2)):
        s = min(max(1, 2_000_000 // width**2), count - start)
        w1 = (m1 + law.sample_like(torch.empty(s, width, width), generator)) * scale  # [s, out, in]
        w2 = (m2 + law.sample_like(torch.empty(s, width), generator)) * scale
        hidden = torch.tanh(x @ w1.transpose(1, 2))  # [s, M, n]
        parts.append(torch.einsum("smn,sn->sm", hidden, w2))
    return torch.cat(parts)


def narrow_draws(law: Law, width: int, count: int, generator: torch.Generator) -> Tensor:
    """Outputs [S, 1] of [1, n, 1] at x = 1: zero means, first sigmas 1, second 1/sqrt n."""
    parts = []
    for part in torch.empty(count, 0).split(max(1, 4_000_000 // width)):
        w1, w2 = (law.sample_like(torch.empty(len(part), width), generator) for _ in range(2))
        parts.append((torch.tanh(w1) * w2).sum(1, keepdim=True) * width**-0.5)
    return torch.cat(parts)


def plateau(law: Law) -> float:
    """D^2 / sigma of [1, n, 1] for n to infinity: N(0, v) against N(0, v'), v = E tanh(z)^2."""
    a, b = (g.rule.mean(lambda z: z.tanh() ** 2) ** 0.5 for g in (Gaussian(), law))
    return (2 * math.sqrt(2 / math.pi) * math.hypot(a, b) - 2 / math.sqrt(math.pi) * (a + b)) / a


def sampled(named: dict[str, Law], draws: Any, numbers: Any, what: str) -> dict[str, list[list[float]]]:
    """For each law and width the D^2 / sigma of every repeat; "floor" is Gaussian against Gaussian."""
    everyone = {"floor": Gaussian(), **named}
    found: dict[str, list[list[float]]] = {name: [] for name in everyone}
    for width in WIDTHS:
        started, count = time.process_time(), min(MOST, NUMBERS // numbers(width))
        each: dict[str, list[float]] = {name: [] for name in everyone}
        for repeat in range(REPEATS):
            generator = torch.Generator().manual_seed(1000 * width + repeat)
            reference = draws(Gaussian(), width, count, generator)
            for name, law in everyone.items():
                far = marginal_distances(reference, draws(law, width, count, generator)).mean()
                each[name].append(float(far / reference.double().std(0).mean()))
        for name in everyone:
            found[name].append(each[name])
        print(f"{what} {width}: {count} draws, {time.process_time() - started:.0f} s", flush=True)
    return found


def slope_above(values: list[list[float]], floor: list[list[float]]) -> tuple[float, list[int]] | None:
    """The slope in log-log over the widths whose mean is thrice the floor's scatter or more, if three are."""
    seen, points = [], []
    for width, own, null in zip(WIDTHS, values, floor, strict=True):
        scatter = math.sqrt(
            np.mean(np.square(null)) / len(null)
        )  # of a mean over repeats: the null has mean zero
        if np.mean(own) > 3 * scatter:
            seen.append(width)
            points.append((math.log(width), math.log(np.mean(own))))
        else:
            break
    if len(seen) < 3:
        return None
    return float(np.polyfit(*np.transpose(points), 1)[0]), seen


# --- the run -----------------------------------------------------------------------------------------------------


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--device", type=Path, required=True, help="npz of measured read noise")
    args = parser.parse_args()
    torch.set_num_threads(1)
    started = time.process_time()
    named = laws(args.device)
    exact = sums(named)
    print(f"sums: {time.process_time() - started:.0f} s", flush=True)
    limits = {name: plateau(law) for name, law in named.items()}
    narrow = sampled(named, narrow_draws, lambda n: 2 * n, "[1, n, 1]")
    wide = sampled(named, wide_draws, lambda n: n * n, "[n, n, 1]")
    result = {
        "command": "python -m experiments.noise.width --device rram_read_noise.npz",
        "widths": WIDTHS,
        "repeats": REPEATS,
        "sums": exact,
        "far": {
            df: [sum_energy_distance(StudentT(float(df)), n) for n in (10**6, 10**7)] for df in ("2.5", "3")
        },
        "shape": {name: moments(law) for name, law in named.items()},
        "expected": {name: expected(name, law) for name, law in named.items()},
        "narrow": narrow,
        "plateau": limits,
        "wide": wide,
        "seed": 0,
        "seconds": round(time.process_time() - started),
        "versions": versions(),
    }
    write_result(RESULT, result)
    plot(result)


def headline(result: dict[str, Any]) -> str:
    """For RESULTS.md."""
    first, last = (result["widths"][i] for i in (0, -1))
    fall = "; ".join(
        f"{name} {result['sums'][name][0]:.2e} to {result['sums'][name][-1]:.2e}"
        for name in ("bimodal 0.9", "measured RRAM", "Student-t 3")
    )
    return f"energy distance to Gaussian noise of sums of {first} to {last} terms: {fall}."


def section(result: dict[str, Any]) -> str:
    """This experiment's part of its page."""
    far = ", ".join(f"{math.log10(b / a):.3f} for t {df}" for df, (a, b) in result["far"].items())
    return f"""## The shape of the noise against width

{measured(result, f"seed {result['seed']}", one_core(result["seconds"]))} All numbers are energy distances D² to
Gaussian noise with the same means and variances, in units of sigma.

**Sums of n equal terms**, exact, from characteristic functions. The slope is between the two largest n. The constant is
D² n^-slope at the largest n, beside the leading term of theory.

{sums_table(result)}

Heavy tails show their slope late: from a million to ten million terms it is {far} (theory 2 - df).

**Networks**, by sampling, means over {result["repeats"]} repeats. In [n, n, 1] with tanh, the fan-in of every layer grows. The
slope is fitted up to the last width that is above three standard errors of the Gaussian-against-Gaussian floor. In
[1, n, 1] the first layer has one input, so the distance ends at a plateau, because E tanh(z)² differs. The plateau for n
to infinity is exact.

{networks_table(result)}

{picture(RESULT, "energy distance against width")}
"""


def sums_table(result: dict[str, Any]) -> str:
    widths, rows = result["widths"], []
    for name, values in result["sums"].items():
        base = name.split(",")[0]
        leads, slope, constant = result["expected"][base] if base == name else ("kurtosis", -2.0, None)
        own = math.log(values[-1] / values[-2]) / math.log(widths[-1] / widths[-2])
        at = values[-1] * widths[-1] ** -slope
        said = f"{at:.4g} ({constant:.4g})" if constant is not None else ""
        sizes = [f"{values[i]:.2e}" for i in (0, 4, -1)]
        rows.append((name, in_short(result["shape"][base]), leads, *sizes, f"{own:.2f} ({slope:.1f})", said))
    return table(
        "| noise | skewness, excess kurtosis | leads | D² at 4 | at 64 | at 1024 | slope (theory) | constant (theory) |",
        rows,
    )


def networks_table(result: dict[str, Any]) -> str:
    rows = []
    for name in result["wide"]:
        wide, narrow = ([float(np.mean(x)) for x in result[key][name]] for key in ("wide", "narrow"))
        fitted = None if name == "floor" else slope_above(result["wide"][name], result["wide"]["floor"])
        said = "" if fitted is None else f"{fitted[0]:.2f} ({fitted[1][0]} to {fitted[1][-1]})"
        limit = f"{result['plateau'][name]:.2e}" if name in result["plateau"] else ""
        cells = [f"{wide[i]:.1e}" for i in (0, 2, 4)] + [said]
        cells += [f"{narrow[i]:.1e}" for i in (0, 4, -1)] + [limit]
        rows.append(("Gaussian again (floor)" if name == "floor" else name, *cells))
    return table(
        "| noise | [n, n, 1]: D² at 4 | at 16 | at 64 | slope (widths) | [1, n, 1]: D² at 4 | at 64 | at 1024 | plateau |",
        rows,
    )


def plot(result: dict[str, Any]) -> None:
    figure = new_figure(12, 4.2)
    axes = figure.subplots(1, 3, sharey=True)
    widths = np.array(result["widths"])
    titles = ("sums of n terms, exact", "[n, n, 1], sampled", "[1, n, 1], sampled")
    for color, name in enumerate(result["sums"]):
        axes[0].plot(widths, result["sums"][name], "o-", ms=3, lw=1, color=f"C{color}", label=name)
        for ax, key in zip(axes[1:], ("wide", "narrow"), strict=True):
            if name in result[key]:
                mean = np.mean(result[key][name], axis=1)
                ax.plot(widths, np.where(mean > 0, mean, np.nan), "o-", ms=3, lw=1, color=f"C{color}")
        if name in result["plateau"] and result["plateau"][name] > 1e-8:
            axes[2].axhline(result["plateau"][name], color=f"C{color}", lw=0.7, ls=":")
    for ax, key in zip(axes[1:], ("wide", "narrow"), strict=True):
        null = np.sqrt(np.mean(np.square(result[key]["floor"]), axis=1) / result["repeats"])
        ax.fill_between(widths, 1e-12, 3 * null, color="0.88", label="floor: three standard errors")
        ax.legend(fontsize=8, loc="upper right")
    for ax, title in zip(axes, titles, strict=True):
        ax.set(xscale="log", yscale="log", xlabel="width n", title=title, ylim=(1e-9, 0.3))
        ax.set_xticks(widths[::2], [str(w) for w in widths[::2]])
        ax.minorticks_off()
        ax.grid(alpha=0.3)
    axes[0].set(ylabel="energy distance D² to Gaussian noise / sigma")
    axes[0].legend(fontsize=7, loc="lower left")
    save_figure(figure, RESULT)


if __name__ == "__main__":
    main()
