"""What the claim that shapes do not matter leaves open: heavy tails, strong skew, devices per weight, and NUTS.

    python -m pip install numpyro        # brings jax
    python -m experiments.noise.open_cases

The scalar regression task, where the first layer has one input and shapes show most.  First a net [1, 50, 1] trained with
Gaussian noise, put on devices of which 1, 2, 4 or 8 are averaged for each weight.  Then a net [1, 10, 1] trained with each
noise, against its exact posterior by NUTS: how far is the mean-field posterior from that, and how far are the noises apart?
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.markdown import measured, one_core, picture, table
from experiments.noise.common import in_short, mean_error, moments
from experiments.noise.small import GRID, SIGMA, distance, outputs, points, train
from experiments.nuts import nuts_mlp
from experiments.record import RESULTS, new_figure, save_figure, versions, write_result
from pocketbayes.metrics import log_predictive_density
from pocketbayes.noise import (
    Bimodal,
    Gaussian,
    GaussianMixture,
    Law,
    SkewNormal,
    StudentT,
    TwoPoint,
    averaged,
    sum_energy_distance,
)

RESULT = RESULTS / "noise/open_cases.json"
DEVICES, SEEDS, STEPS, DRAWS = (1, 2, 4, 8), 4, 3000, 2000
LAWS: dict[str, Law] = {
    "bimodal 0.9": Bimodal(0.9),
    "signs": TwoPoint(),
    "skew-normal 10": SkewNormal(10.0),
    "rare jumps": GaussianMixture((0.95, 0.05), (0.0, 8.0), (1.0, 1.0)),  # the strong skew
    "Student-t 3": StudentT(3.0),
    "Student-t 2.5": StudentT(2.5),
}


def by_devices(started: float) -> dict[str, Any]:
    """Distances and log predictive densities on devices, by law and number of devices a weight."""
    data, held_out = points(40, 0), points(400, 1)
    nets = train([1, 50, 1], data, {"Gaussian": Gaussian()}, SEEDS, STEPS)["Gaussian"]
    print(f"[1, 50, 1] trained: {time.process_time() - started:.0f} s", flush=True)
    x, known = torch.cat([held_out.x, GRID]), len(held_out.x)
    own = [outputs(net, Gaussian(), x, DRAWS, seed) for seed, net in enumerate(nets)]

    def look(law: Law, start: int) -> dict[str, list[float]]:
        drawn = [outputs(net, law, x, DRAWS, start + seed) for seed, net in enumerate(nets)]
        target = held_out.y[:, 0].double()
        return {
            "distance": [distance(a[:, known:], b[:, known:]) for a, b in zip(own, drawn, strict=True)],
            "lpd": [log_predictive_density(b[:, :known], SIGMA, target) for b in drawn],
        }

    rows = {
        name: {str(m): look(averaged(law, m), 1000 * i + 10 * m) for m in DEVICES}
        for i, (name, law) in enumerate(LAWS.items())
    }
    single = {name: [sum_energy_distance(law, m) for m in DEVICES] for name, law in LAWS.items()}
    return {"rows": rows, "single": single, "Gaussian": look(Gaussian(), 9000)}


def against_nuts(started: float) -> dict[str, Any]:
    """Distances of mean-field posteriors, trained with each noise, to NUTS and to each other, over NUTS's sigma."""
    data, widths = points(20, 2), [1, 10, 1]
    reference = nuts_mlp(
        widths,
        data.x.double().numpy(),
        data.y.double().numpy(),
        SIGMA,
        at=GRID.double().numpy(),
        warmup=500,
        draws=500,
        chains=4,
    )
    print(f"NUTS: {time.process_time() - started:.0f} s, {reference.convergence}", flush=True)
    exact = torch.tensor(reference.outputs).reshape(-1, len(GRID))  # [S, M]
    halves = [torch.tensor(reference.outputs[c]).reshape(-1, len(GRID)) for c in (slice(0, 2), slice(2, 4))]
    noises: dict[str, Law] = {"Gaussian": Gaussian(), **LAWS}
    nets = train(widths, data, noises, SEEDS, STEPS)
    base = [outputs(net, Gaussian(), GRID, DRAWS, seed) for seed, net in enumerate(nets["Gaussian"])]
    rows = {}
    for i, (name, law) in enumerate(noises.items()):
        trained = [outputs(net, law, GRID, DRAWS, 100 * i + s + 50) for s, net in enumerate(nets[name])]
        swapped = [outputs(net, law, GRID, DRAWS, 100 * i + s + 70) for s, net in enumerate(nets["Gaussian"])]
        rows[name] = {
            "to_nuts": [distance(exact, d) for d in trained],
            "swapped_to_nuts": [distance(exact, d) for d in swapped],
            "to_gaussian": [_over(exact, a, d) for a, d in zip(base, trained, strict=True)],
            "swapped_to_gaussian": [_over(exact, a, d) for a, d in zip(base, swapped, strict=True)],
        }
    return {
        "rows": rows,
        "chains_apart": distance(halves[0], halves[1]),
        "convergence": reference.convergence._asdict(),
        "sigma": {"NUTS": float(exact.std(0).mean()), "mean field": float(base[0].std(0).mean())},
    }


def _over(scale: Tensor, a: Tensor, b: Tensor) -> float:
    """The distance of a and b in units of another's sigma."""
    return distance(a, b) * float(a.double().std(0).mean() / scale.std(0).mean())


def main() -> None:
    torch.set_num_threads(1)
    started = time.process_time()
    result = {
        "command": "python -m experiments.noise.open_cases",
        "shape": {name: moments(law) for name, law in LAWS.items()},
        "devices": by_devices(started),
        "nuts": against_nuts(started),
        "draws": DRAWS,
        "steps": STEPS,
        "seed": list(range(SEEDS)),
        "seconds": round(time.process_time() - started),
        "versions": versions(),
    }
    write_result(RESULT, result)
    plot(result)


def headline(result: dict[str, Any]) -> str:
    """For RESULTS.md."""
    rows = result["devices"]["rows"]
    far = "; ".join(
        f"{name} {mean_error(rows[name]['1']['distance'])[0]:.4f} and {mean_error(rows[name]['8']['distance'])[0]:.4f}"
        for name in ("rare jumps", "Student-t 2.5")
    )
    return f"distance to Gaussian noise with 1 and with 8 devices a weight: {far}."


def section(result: dict[str, Any]) -> str:
    """This experiment's part of its page."""
    devices, nuts = result["devices"], result["nuts"]
    floor, base = mean_error(devices["Gaussian"]["distance"]), mean_error(devices["Gaussian"]["lpd"])
    found, keys = nuts["convergence"], ("to_nuts", "to_gaussian", "swapped_to_nuts", "swapped_to_gaussian")
    against_nuts = (
        [name, *("{:.4f} ± {:.4f}".format(*mean_error(row[key])) for key in keys)]
        for name, row in nuts["rows"].items()
    )
    return f"""## Open cases: heavy tails, strong skew, devices, NUTS

{measured(result, one_core(result["seconds"]))} Scalar regression, {len(result["seed"])} seeds, {result["draws"]} draws. Distances are energy
distances over sigma, means over a grid. ± is a standard error over seeds.

A net [1, 50, 1] trained with Gaussian noise, each weight put on the mean of m devices. Gaussian drawn again: distance
{floor[0]:+.4f} ± {floor[1]:.4f}, log predictive density {base[0]:.3f} ± {base[1]:.3f}. In brackets is the exact distance of one weight's own noise to a
Gaussian.

{devices_table(result)}

A net [1, 10, 1] on 20 points against its exact posterior by NUTS (4 chains of 500 draws, worst r-hat of a prediction
{found["worst_rhat"]:.3f}, least effective sample {found["least_ess"]:.0f}, {found["divergences"]} divergences). Two halves of the chains are {nuts["chains_apart"]:+.4f} apart. Mean
sigma over the grid: {nuts["sigma"]["NUTS"]:.3f} by NUTS, {nuts["sigma"]["mean field"]:.3f} by mean field.

{table("| noise | trained with it: distance to NUTS | to Gaussian mean field | trained with Gaussian, put on it: to NUTS | to Gaussian mean field |", against_nuts)}

{picture(RESULT, "open cases")}
"""


def devices_table(result: dict[str, Any]) -> str:
    rows = []
    for name, row in result["devices"]["rows"].items():
        single = result["devices"]["single"][name]
        cells = [
            f"{mean_error(each['distance'])[0]:.4f} ({exact:.4f})"
            for each, exact in zip(row.values(), single, strict=True)
        ]
        cells += [f"{mean_error(row[m]['lpd'])[0]:.3f}" for m in ("1", "8")]
        rows.append((name, in_short(result["shape"][name]), *cells))
    return table("| noise | skewness, excess kurtosis | m = 1 | 2 | 4 | 8 | LPD at m = 1 | at 8 |", rows)


def plot(result: dict[str, Any]) -> None:
    figure = new_figure(10, 3.8)
    left, right = figure.subplots(1, 2)
    rows = result["devices"]["rows"]
    for name, row in rows.items():
        mean = np.array([mean_error(each["distance"])[0] for each in row.values()])
        left.plot(DEVICES, np.where(mean > 0, mean, np.nan), "o-", ms=4, lw=1, label=name)
    null = np.abs(result["devices"]["Gaussian"]["distance"]).max()
    left.axhspan(1e-6, null, color="0.88", label="Gaussian again")
    left.set(xscale="log", yscale="log", xlabel="devices per weight m", ylim=(1e-5, 0.03))
    left.set(ylabel="distance to Gaussian noise / sigma")
    left.set_xticks(DEVICES, [str(m) for m in DEVICES])
    left.minorticks_off()
    left.legend(fontsize=7, ncol=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    named = result["nuts"]["rows"]
    place = np.arange(len(named))
    for shift, key, label in ((-0.2, "to_nuts", "to NUTS"), (0.2, "to_gaussian", "to Gaussian mean field")):
        pairs = [mean_error(row[key]) for row in named.values()]
        right.barh(place + shift, [m for m, _ in pairs], 0.4, xerr=[e for _, e in pairs], label=label)
    right.set_yticks(place, list(named))
    right.invert_yaxis()
    right.set(xlabel="distance / sigma of NUTS, trained with the noise")
    right.legend(fontsize=8, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncol=2)
    save_figure(figure, RESULT)


if __name__ == "__main__":
    main()
