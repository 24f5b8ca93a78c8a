"""Age from face images with Gaussian, bimodal and measured device noise, trained with each and swapped.

    python -m experiments.noise.faces --data DIR --device rram_read_noise.npz

DIR holds faces/utkface_32.npz: 10 000 images of 32 x 32 pixels with ages.  A convolutional net is trained with each noise
on 8 000 images, its best epoch chosen on 1 000, and looked at once on the other 1 000.  The one trained with Gaussian
noise is then put on each device: same means, same variances.  Finished parts stay in --runs.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import pocketbayes as pb
from experiments.markdown import measured, one_core, picture, table
from experiments.noise.common import interval, measured_device
from experiments.record import RESULTS, command_line, new_figure, save_figure, versions, write_result
from pocketbayes.data import DataSet, Scaling, crop_flip
from pocketbayes.likelihood import Homoscedastic
from pocketbayes.metrics import log_predictive_density, rmse
from pocketbayes.noise import Bimodal, Gaussian, Noise, predictive_distances
from pocketbayes.posterior.with_noise import under_noise

RESULT = RESULTS / "noise/faces.json"
EPOCHS, LR, TEMPERATURE, DRAWS, TEST = 10, 2e-3, 0.1, 60, 1000
Parts = dict[tuple[int, str], dict[str, Any]]  # by (seed, noise in training)


def arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument(
        "--data", type=Path, required=True, help="folder of faces/utkface_32.npz, or that file"
    )
    parser.add_argument("--device", type=Path, required=True, help="npz of measured read noise")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder for finished parts")
    return parser.parse_args()


def faces(path: Path) -> tuple[DataSet, DataSet, DataSet]:
    """Training, validation and test images with ages in years; scalings measured on the first."""
    with np.load(path if path.is_file() else path / "faces" / "utkface_32.npz") as found:
        x = torch.from_numpy(found["x"]).permute(0, 3, 1, 2).contiguous()
        y = torch.from_numpy(found["age"]).float().unsqueeze(1)  # [N, 1]
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, ages = x[order[: -2 * TEST]].double() / 255, y[order[: -2 * TEST]]
    whole = DataSet(
        name="faces",
        x=x,
        y=y,
        classes=None,
        scaling=Scaling(train.mean((0, 2, 3)).float(), train.std((0, 2, 3)).float(), 255.0),
        target_scaling=Scaling(ages.mean(0), ages.std(0)),
    )
    return (
        whole.subset(order[: -2 * TEST]),
        whole.subset(order[-2 * TEST : -TEST]),
        whole.subset(order[-TEST:]),
    )


def network() -> nn.Sequential:
    """[N, 3, 32, 32] -> [N, 1], 90 000 weights."""
    widths, layers = (3, 16, 32, 64), list[nn.Module]()
    for fan_in, fan_out in itertools.pairwise(widths):
        layers += [nn.Conv2d(fan_in, fan_out, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 64), nn.ReLU(), nn.Linear(64, 1))
    return net.to(memory_format=torch.channels_last)


def train_and_look(
    noises: dict[str, Noise], name: str, seed: int, sets: tuple[DataSet, DataSet, DataSet], run: Path
) -> dict[str, Any]:
    """Train with one noise; the test draws in years, [S, N], under it and under those it is swapped for."""
    train, validation, test = sets
    torch.random.default_generator.manual_seed(seed)
    model = pb.bayesianize(network(), noise=noises[name])
    likelihood = Homoscedastic(0.5, learned=True)
    started = time.process_time()
    pb.fit(
        model,
        train.batches(64, shuffle=True, augment=lambda x: crop_flip(x, padding=2)),
        epochs=EPOCHS,
        lr=LR,
        likelihood=likelihood,
        temperature=TEMPERATURE,
        validation=validation.batches(250),
        checkpoint=run.with_suffix(".safetensors"),
        seed=seed,
        progress=False,
    )
    print(f"seed {seed}, {name}: trained in {time.process_time() - started:.0f} s", flush=True)
    assert test.target_scaling is not None
    mean, std = test.target_scaling.mean.item(), test.target_scaling.std.item()
    swaps = {**noises, "Gaussian again": Gaussian()} if name == "Gaussian" else {name: noises[name]}
    found: dict[str, Any] = {"sigma": float(likelihood.sigma.detach()) * std}
    for number, (other, noise) in enumerate(swaps.items()):
        with under_noise(model, noise):
            answer = pb.predict(
                model,
                test.inputs(),
                samples=DRAWS,
                seed=10 * seed + number,
                likelihood=likelihood,
                draws=True,
            )
        found[other] = (answer.draws[..., 0] * std + mean).float().numpy()
    found["seconds"] = time.process_time() - started
    return found


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    args.runs.mkdir(parents=True, exist_ok=True)
    sets = faces(args.data)
    noises: dict[str, Noise] = {
        "Gaussian": Gaussian(),
        "bimodal": Bimodal(0.9),
        "RRAM": measured_device(args.device),
    }
    parts: Parts = {}
    for seed in range(args.seeds):
        for name in noises:
            run = args.runs / f"noise_faces-{name}-{seed}.npz"
            if not run.exists():
                np.savez(run, **train_and_look(noises, name, seed, sets, run))
            with np.load(run) as found:
                parts[seed, name] = {key: torch.from_numpy(found[key]) for key in found.files}
            print(f"seed {seed}, {name}: done", flush=True)
    result = {
        "command": f"python -m experiments.noise.faces --data DIR --device rram_read_noise.npz --seeds {args.seeds}",
        "test": TEST,
        "epochs": EPOCHS,
        "temperature": TEMPERATURE,
        "draws": DRAWS,
        **analysis(parts, sets[2].y[:, 0], args.seeds),
        "seed": list(range(args.seeds)),
        "seconds": round(sum(float(part["seconds"]) for part in parts.values())),
        "versions": versions(),
    }
    write_result(RESULT, result)
    plot(parts, sets[2].y[:, 0])


def scores(part: dict[str, Any], noise: str, ages: torch.Tensor) -> dict[str, float]:
    """RMSE in years and NLL in nats, of ages in years."""
    draws = part[noise].double()
    return {
        "rmse": rmse(draws.mean(0), ages),
        "nll": -log_predictive_density(draws, float(part["sigma"]), ages.double()),
        "epistemic": float(draws.std(0).mean()),
    }


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """D^2 between the draws over their sigma, mean over the images."""
    return float(predictive_distances(a, b).mean() / a.double().std(0).mean())


def analysis(parts: Parts, ages: torch.Tensor, seeds: int) -> dict[str, Any]:
    """Scores seed by seed, and distances: swapped against Gaussian, trained against trained, with both floors."""
    trained = {
        n: [scores(parts[s, n], n, ages) for s in range(seeds)] for n in ("Gaussian", "bimodal", "RRAM")
    }
    own = [parts[s, "Gaussian"] for s in range(seeds)]
    swapped = {n: [scores(p, n, ages) for p in own] for n in ("Gaussian again", "bimodal", "RRAM")}
    gaps = {n: [distance(p["Gaussian"], p[n]) for p in own] for n in swapped}
    apart = {
        n: [distance(parts[s, "Gaussian"]["Gaussian"], parts[s, n][n]) for s in range(seeds)]
        for n in ("bimodal", "RRAM")
    }
    apart["Gaussian, other seed"] = [
        distance(own[s]["Gaussian"], own[t]["Gaussian"]) for s in range(seeds) for t in range(s)
    ]
    return {"trained": trained, "swapped": swapped, "swap_distance": gaps, "train_distance": apart}


def _row(
    name: str, each: list[dict[str, float]], base: list[dict[str, float]], far: list[float]
) -> list[str]:
    cells = [name]
    for key, digits in (("rmse", 2), ("nll", 4)):
        gap = interval(
            [a[key] - b[key] for a, b in zip(each, base, strict=True)], [0.0] * len(each)
        )  # paired by seed
        mean = float(np.mean([s[key] for s in each]))
        cells.append(f"{mean:.{digits}f} ({gap.mean:+.{digits}f} ± {gap.half:.{digits}f})")
    low, high = min(far, default=math.nan), max(far, default=math.nan)
    cells.append("" if not far else f"{np.mean(far):+.4f} ({low:+.4f} to {high:+.4f})")
    return cells


def headline(result: dict[str, Any]) -> str:
    """For RESULTS.md."""
    nll = {n: np.mean([s["nll"] for s in each]) for n, each in result["swapped"].items()}
    base = np.mean([s["nll"] for s in result["trained"]["Gaussian"]])
    return (
        f"trained with Gaussian noise, NLL {base:.4f}; the same weights on bimodal devices {nll['bimodal']:.4f}, "
        f"on measured RRAM {nll['RRAM']:.4f}."
    )


def section(result: dict[str, Any]) -> str:
    """This experiment's part of its page."""
    trained, swapped = result["trained"], result["swapped"]
    base, near, far = trained["Gaussian"], result["swap_distance"], result["train_distance"]
    apart = far["Gaussian, other seed"]
    rows = (
        _row("trained with Gaussian", base, base, []),
        _row("... drawn again (the floor)", swapped["Gaussian again"], base, near["Gaussian again"]),
        _row("... put on bimodal devices", swapped["bimodal"], base, near["bimodal"]),
        _row("... put on the measured RRAM", swapped["RRAM"], base, near["RRAM"]),
        _row("trained with bimodal noise", trained["bimodal"], base, far["bimodal"]),
        _row("trained with RRAM noise", trained["RRAM"], base, far["RRAM"]),
    )
    return f"""## Age from face images with device noise, trained and swapped

{measured(result, one_core(result["seconds"]))} A convolutional net of 90 000 weights, {result["epochs"]} epochs, temperature {result["temperature"]}, best
epoch by validation NLL. {result["test"]:,} test images used once, {result["draws"]} draws, {len(result["seed"])} seeds. RMSE is in years, NLL
is that of the age in years. In brackets is the difference to training and predicting with Gaussian noise, with its 95 %
interval over seeds, paired by seed. Distance is the energy distance to the Gaussian draws over their sigma, mean over
images (smallest to largest seed).

{table("| noise | RMSE | NLL | distance |", rows)}

Two networks trained with Gaussian noise from different seeds are {np.mean(apart):.3f} apart ({min(apart):.3f} to
{max(apart):.3f}). Read what the shape of the noise does against that.

{picture(RESULT, "predictive distributions of four test images")}
"""


def plot(parts: Parts, ages: torch.Tensor) -> None:
    """Predictive draws of four test images under each noise, swapped and trained; their ages as lines."""
    figure = new_figure(9, 4.6)
    axes = figure.subplots(2, 4, sharey=True)
    own = parts[0, "Gaussian"]
    rows = (
        (
            "trained with Gaussian noise,\nthen put on the device",
            {n: own[n] for n in ("Gaussian", "bimodal", "RRAM")},
        ),
        (
            "trained and drawn\nwith the noise",
            {n: parts[0, n][n] for n in ("Gaussian", "bimodal", "RRAM")},
        ),
    )
    for line, (title, drawn) in zip(axes, rows, strict=True):
        for image, ax in enumerate(line):
            for name, draws in drawn.items():
                level = (np.arange(len(draws)) + 0.5) / len(draws)
                ax.plot(np.sort(draws[:, image].numpy()), level, label=name, lw=1.2)
            ax.axvline(float(ages[image]), color="0.6", linestyle="--", label="age")
            ax.set(xlabel="predicted age (years)")
        line[0].set(ylabel=f"{title}\n\nfraction of draws below")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncol=4)
    save_figure(figure, RESULT)


if __name__ == "__main__":
    main()
