"""Energy distance between device noise and Gaussian noise against width: sums exactly, networks by sampling.

    python -m experiments.noise_width --device rram_read_noise.npz

Sums: (z_1 + ... + z_n) / sqrt n against N(0, 1) by characteristic functions, D^2 = (2 / pi) int |phi - psi|^2 / t^2 dt.
Networks [n, n, 1] with tanh, where every stochastic layer has the fan-in n, and [1, n, 1], where the first has one input.
Both have unit means and sigmas over sqrt(fan-in); distances are in units of the Gaussian output's sigma.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.noise_common import measured_device, moments, shown
from experiments.record import save_figure, versions, write_result
from pocketbayes.noise import (
    Bimodal,
    Gaussian,
    Laplace,
    Law,
    SkewNormal,
    StudentT,
    TwoPoint,
    Uniform,
    marginal_distances,
    sum_energy_distance,
)

HERE = Path(__file__)
RESULT = HERE.with_suffix(".json")
WIDTHS = tuple(2**k for k in range(2, 11))
REPEATS, NUMBERS, MOST = 4, 20_000_000, 200_000  # random numbers and draws for a network
OUTPUTS, FEWEST, INPUTS = 800_000, 4, 64  # outputs for a network, and how many inputs they are spread over
KURTOSIS, SKEWNESS, LATTICE = 0.001837, 0.01175, 0.188  # leading constants of D^2 for sums


def laws(device: Path) -> dict[str, Law]:
    return {
        "bimodal 0.9": Bimodal(0.9),
        "signs": TwoPoint(),
        "uniform": Uniform(),
        "Laplace": Laplace(),
        "Student-t 5": StudentT(5.0),
        "Student-t 3": StudentT(3.0),
        "skew-normal 10": SkewNormal(10.0),
        "measured RRAM": measured_device(device),
    }


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
    parser = argparse.ArgumentParser(description=__doc__)
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
        "command": "python -m experiments.noise_width --device rram_read_noise.npz",
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


def section(result: dict[str, Any]) -> str:
    """This experiment's part of RESULTS.md."""
    widths, v = result["widths"], result["versions"]
    lines = [
        "## The shape of the noise against width",
        "",
        f"`{result['command']}`, seed {result['seed']}, {result['seconds']} s on one core of a shared two-core x86 machine, torch "
        f"{v['torch']}. Energy distance D² to Gaussian noise with the same means and variances, in units of sigma.",
        "",
        "Sums of n equal terms, exact (characteristic functions); the slope is between the two widest, the constant is D² n^-slope "
        "at the widest against the leading term of theory.",
        "",
        "| noise | skewness, excess kurtosis | leads | D² at 4 | at 64 | at 1024 | slope (theory) | constant (theory) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, values in result["sums"].items():
        base = name.split(",")[0]
        leads, slope, constant = result["expected"][base] if base == name else ("kurtosis", -2.0, None)
        own = math.log(values[-1] / values[-2]) / math.log(widths[-1] / widths[-2])
        at = values[-1] * widths[-1] ** -slope
        said = f"{at:.4g} ({constant:.4g})" if constant is not None else ""
        lines.append(
            f"| {name} | {shown(result['shape'][base])} | {leads} | {values[0]:.2e} | {values[4]:.2e} | {values[-1]:.2e} | {own:.2f} ({slope:.1f}) | {said} |"
        )
    far = ", ".join(f"{math.log10(b / a):.3f} for t {df}" for df, (a, b) in result["far"].items())
    lines += [
        "",
        f"Heavy tails are slow to show theirs: from a million to ten million terms the slope is {far} (theory 2 - df).",
        "",
        f"Networks, by sampling, means over {result['repeats']} repeats. [n, n, 1] with tanh, where every layer's fan-in grows: "
        "the slope is fitted over the widths up to the last one above three standard errors of the Gaussian-against-Gaussian floor. "
        "[1, n, 1]: the first layer has one input, so that the distance ends at a plateau, E tanh(z)² being another; the plateau for "
        "n to infinity is exact.",
        "",
        "| noise | [n, n, 1]: D² at 4 | at 16 | at 64 | slope (widths) | [1, n, 1]: D² at 4 | at 64 | at 1024 | plateau |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in result["wide"]:
        wide, narrow = ([float(np.mean(x)) for x in result[key][name]] for key in ("wide", "narrow"))
        fitted = None if name == "floor" else slope_above(result["wide"][name], result["wide"]["floor"])
        said = "" if fitted is None else f"{fitted[0]:.2f} ({fitted[1][0]} to {fitted[1][-1]})"
        limit = f"{result['plateau'][name]:.2e}" if name in result["plateau"] else ""
        cells = [f"{x:.1e}" for x in (wide[0], wide[2], wide[4])] + [said]
        cells += [f"{x:.1e}" for x in (narrow[0], narrow[4], narrow[-1])] + [limit]
        lines.append(f"| {'Gaussian again (floor)' if name == 'floor' else name} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", "![energy distance against width](experiments/noise_width.svg)", ""])


def plot(result: dict[str, Any]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.2), layout="constrained")
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
    save_figure(figure, HERE.with_suffix(".svg"))


if __name__ == "__main__":
    main()
