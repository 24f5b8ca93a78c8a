"""ResNet-20 on CIFAR-10: Gaussian weights against signs, one random bit a weight, at prediction.

    python -m experiments.noise.resnet20 --data DIR --weights cifar10_resnet20.safetensors

A posterior without training: trained weights as means, sigma of a diagonal Laplace posterior at temperature 0.02.  The
same weights are then drawn with Gaussian noise and with z = +-1, with several seeds.  What each seed said is
kept in --runs, so that a killed run goes on where it was.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import pocketbayes as pb
from experiments.given import given_images, given_network
from experiments.markdown import measured, one_core, picture, table
from experiments.noise.common import interval
from experiments.record import RESULTS, command_line, new_figure, save_figure, versions, write_result
from pocketbayes import metrics
from pocketbayes.noise import Gaussian, Noise, TwoPoint, predictive_distances
from pocketbayes.posterior.with_noise import under_noise

RESULT = RESULTS / "noise/resnet20.json"
FAMILIES: dict[str, Noise] = {"Gaussian": Gaussian(), "signs": TwoPoint()}
TEMPERATURE, PRIOR, DRAWS = 0.02, 0.2, 30
METRICS = ("accuracy", "nll", "ece")


def arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--data", default=None, help="folder of the data sets (or POCKETBAYES_DATA)")
    parser.add_argument("--weights", required=True, help="safetensors of the trained network")
    parser.add_argument("--images", type=int, default=1000, help="of the test set, the first so many")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder for finished parts")
    return parser.parse_args()


def posterior(folder: str | None, weights: str) -> nn.Module:
    """Trained means, sigma by Laplace; every random number from seed 0."""
    network, train = given_network(weights), given_images(folder)
    fisher = pb.fisher_information(network, train.batches(128, shuffle=True), batches=60, seed=0)
    sigma = pb.laplace_sigma(network, fisher, len(train), prior=PRIOR, temperature=TEMPERATURE)
    return pb.bayesianize(network, prior=pb.ZeroMean(PRIOR), sigma=sigma)


def draws_of(model: nn.Module, x: Tensor, noise: Noise, seed: int, path: Path) -> tuple[Tensor, float]:
    """Class probabilities of every draw, [S, N, 10], from the run's folder or made now; and the seconds it took."""
    if not path.exists():
        started = time.process_time()
        with under_noise(model, noise):
            drawn = pb.predict(model, x, samples=DRAWS, seed=seed, batch_size=100, draws=True).draws
        np.savez(path, draws=drawn.float().numpy(), seconds=time.process_time() - started)
    with np.load(path) as found:
        return torch.from_numpy(found["draws"]).double(), float(found["seconds"])


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    started = time.process_time()
    args.runs.mkdir(parents=True, exist_ok=True)
    model = posterior(args.data, args.weights)
    seconds = time.process_time() - started
    test = given_images(args.data, "test")
    x, y = test.inputs(slice(0, args.images)), test.targets(slice(0, args.images))
    drawn: dict[str, list[Tensor]] = {name: [] for name in FAMILIES}
    for seed in range(args.seeds):
        for number, (name, noise) in enumerate(FAMILIES.items()):
            path = args.runs / f"noise_resnet20-{args.images}-{name}-{seed}.npz"
            made, took = draws_of(model, x, noise, 2 * seed + number, path)
            drawn[name].append(made)
            seconds += took
            print(f"seed {seed} {name}: {took:.0f} s", flush=True)
    with pb.mean_weights(model), torch.no_grad():
        plain = torch.cat([model.eval()(part).softmax(1) for part in x.split(100)])
    result = {
        "command": "python -m experiments.noise.resnet20 --data DIR --weights cifar10_resnet20.safetensors "
        f"--images {args.images} --seeds {args.seeds}",
        "images": args.images,
        "draws": DRAWS,
        "temperature": TEMPERATURE,
        "means": scores(plain, y),
        "families": {n: [scores(d.mean(0), y) for d in sets] for n, sets in drawn.items()},
        "difference": differences(drawn, y),
        "distance": distances(drawn),
        "seed": list(range(args.seeds)),
        "seconds": round(seconds),
        "versions": versions(),
    }
    write_result(RESULT, result)
    plot(result)


def scores(probs: Tensor, y: Tensor) -> dict[str, float]:
    return {name: getattr(metrics, name)(probs, y) for name in METRICS}


def differences(drawn: dict[str, list[Tensor]], y: Tensor) -> dict[str, dict[str, float]]:
    """Signs minus Gaussian: mean, and the half width of its 95 % interval from images and from draws together.

    Images: the spread of paired differences over the images.  Draws: the spread of the scores over the seeds.
    """
    at = torch.arange(len(y))
    loss = {n: torch.stack([-d.mean(0)[at, y].log() for d in sets]) for n, sets in drawn.items()}  # [R, N]
    hit = {n: torch.stack([(d.mean(0).argmax(1) == y).double() for d in sets]) for n, sets in drawn.items()}
    found = {}
    for name, each in (("nll", loss), ("accuracy", hit)):
        paired = each["signs"].mean(0) - each["Gaussian"].mean(0)  # [N]
        images = 1.96 * float(paired.std()) / math.sqrt(len(y))
        draws = interval(each["signs"].mean(1), each["Gaussian"].mean(1)).half
        found[name] = {
            "mean": float(paired.mean()),
            "half": math.hypot(images, draws),
            "images": images,
            "draws": draws,
        }
    ece = {n: torch.tensor([metrics.ece(d.mean(0), y) for d in sets]) for n, sets in drawn.items()}
    gap = interval(ece["signs"], ece["Gaussian"])
    found["ece"] = {"mean": gap.mean, "half": gap.half, "draws": gap.half}
    return found


def distances(drawn: dict[str, list[Tensor]]) -> dict[str, list[float]]:
    """D^2 between the draws' probabilities over their sigma, mean over images: all pairs of seeds."""
    first = drawn["Gaussian"]
    sigma = float(torch.stack([d.var(0).sum(1).sqrt().mean() for d in first]).mean())
    across = [predictive_distances(a, b).mean() / sigma for a in first for b in drawn["signs"]]
    floor = [predictive_distances(a, b).mean() / sigma for i, a in enumerate(first) for b in first[:i]]
    return {"signs": [float(d) for d in across], "floor": [float(d) for d in floor]}


def headline(result: dict[str, Any]) -> str:
    """For RESULTS.md."""
    gaps = ", ".join(f"{key} {difference_of(result, key)}" for key in METRICS)
    return f"one random bit a weight minus Gaussian noise: {gaps} (95 % intervals)."


def difference_of(result: dict[str, Any], key: str) -> str:
    gap = result["difference"][key]
    return f"{gap['mean']:+.4f} ± {gap['half']:.4f}"


def section(result: dict[str, Any]) -> str:
    """This experiment's part of its page."""
    far = {k: float(np.mean(v)) for k, v in result["distance"].items()}
    families = {"none (the means)": [result["means"]], **result["families"]}
    rows = [
        (name, *(f"{np.mean([s[k] for s in each]):.4f}" for k in METRICS)) for name, each in families.items()
    ]
    rows.append(("signs - Gaussian", *(difference_of(result, k) for k in METRICS)))
    return f"""## ResNet-20: Gaussian noise against one random bit a weight

{measured(result, one_core(result["seconds"]))} CIFAR-10, no training: the trained weights are the means, and sigma comes from a diagonal
Laplace posterior at temperature {result["temperature"]}. {result["images"]:,} test images, {result["draws"]} draws, {len(result["seed"])} seeds for each noise. ± is
a 95 % interval from images (paired) and draws together, for the ECE from draws alone.

{table("| noise | accuracy | NLL | ECE |", rows)}

Energy distance between the draws' class probabilities over their sigma: {far["signs"]:+.1e} between signs and Gaussian,
{far["floor"]:+.1e} between Gaussian and Gaussian (means over pairs of seeds; largest {max(result["distance"]["floor"]):.1e}). `make bench` measures
the speed of drawing both.

{picture(RESULT, "NLL and ECE by seed")}
"""


def plot(result: dict[str, Any]) -> None:
    figure = new_figure(9, 3.2)
    for ax, name, label in zip(figure.subplots(1, 2), ("nll", "ece"), ("NLL (nats)", "ECE"), strict=True):
        for i, (family, each) in enumerate(result["families"].items()):
            apart = [i + 0.06 * (seed - (len(each) - 1) / 2) for seed in range(len(each))]
            ax.plot([s[name] for s in each], apart, "o", label=family)
        ax.axvline(result["means"][name], color="0.6", linestyle="--", label="the means alone")
        ax.set(
            xlabel=f"test {label}, one point a seed",
            yticks=[0, 1],
            yticklabels=result["families"],
            ylim=(-0.6, 1.6),
        )
        ax.legend(fontsize=8)
    save_figure(figure, RESULT)


if __name__ == "__main__":
    main()
