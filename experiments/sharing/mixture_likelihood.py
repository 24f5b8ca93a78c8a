"""EM on a histogram against scikit-learn's point-wise EM, from the same start, on 50 000 real weights.

    python -m experiments.sharing.mixture_likelihood --data DIR --weights cifar10_resnet20.safetensors

The points are (mu, sigma) of a ResNet-20's weights with |mu| <= 0.2, sigma from a diagonal Laplace posterior.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import torch

import pocketbayes as pb
from experiments.given import given_images, given_network
from experiments.markdown import table
from experiments.record import RESULTS, command_line, write_result
from pocketbayes.sharing import fit_mixture, log_joint, make_histogram

RESULT = RESULTS / "sharing/mixture_likelihood.json"
POINTS, COMPONENTS, SEED = 50_000, 32, 0


def real_points(folder: str | None, weights: str) -> torch.Tensor:
    """[N, 2] float64 (mu, sigma)."""
    network, train = given_network(weights), given_images(folder)
    torch.random.default_generator.manual_seed(SEED)
    fisher = pb.fisher_information(network, train.batches(128, shuffle=True), batches=20, seed=SEED)
    sigma = pb.laplace_sigma(network, fisher, len(train), prior=0.2, temperature=0.05)
    mu = torch.cat([network.get_parameter(name).detach().flatten() for name in sigma])
    both = torch.stack([mu, torch.cat([s.flatten() for s in sigma.values()])], 1)[mu.abs() <= 0.2]
    return both[torch.randperm(len(both))[:POINTS]].double()


def main() -> None:
    from sklearn.mixture import GaussianMixture

    parser = command_line(__doc__)
    parser.add_argument("--data", default=None)
    parser.add_argument("--weights", required=True)
    args = parser.parse_args()
    x = real_points(args.data, args.weights)
    chunks = [(x[:, 0].float(), x[:, 1].float())]
    atoms = make_histogram(chunks).atoms()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = fit_mixture(atoms, COMPONENTS, max_iterations=1).mixture
    began = time.perf_counter()
    ours = fit_mixture(atoms, COMPONENTS, start=start, tolerance=1e-5)
    seconds = {"ours": time.perf_counter() - began}
    scale = x.std(0)
    peer = GaussianMixture(
        COMPONENTS,
        tol=1e-5,
        max_iter=300,
        weights_init=start.log_pi.exp().numpy(),
        means_init=(start.mean / scale).numpy(),
        precisions_init=torch.linalg.inv(start.cov / (scale[:, None] * scale)).numpy(),
    )
    began = time.perf_counter()
    peer.fit((x / scale).numpy())
    seconds["sklearn"] = time.perf_counter() - began
    result = {
        "command": "python -m experiments.sharing.mixture_likelihood --data DIR --weights cifar10_resnet20.safetensors",
        "points": len(x),
        "components": COMPONENTS,
        "start": float(log_joint(start, x).logsumexp(1).mean()),
        "ours": float(log_joint(ours.mixture, x).logsumexp(1).mean()),
        "sklearn": float(peer.score((x / scale).numpy()) - scale.log().sum()),
        "iterations": {"ours": ours.iterations, "sklearn": int(peer.n_iter_)},
        "seconds": {k: round(v, 2) for k, v in seconds.items()},
        "seed": SEED,
    }
    print(result)
    write_result(RESULT, result)


def headline(result: dict[str, Any]) -> str:
    """For RESULTS.md."""
    took = result["seconds"]
    return f"{result['ours']:.4f} nats a weight in {took['ours']} s, scikit-learn {result['sklearn']:.4f} in {took['sklearn']} s."


def section(result: dict[str, Any]) -> str:
    """This experiment's part of its page."""
    rows = (
        (name, f"{result[key]:.4f}", result["iterations"][key], result["seconds"][key])
        for name, key in (("pocketbayes", "ours"), ("scikit-learn GaussianMixture", "sklearn"))
    )
    return f"""## EM on a histogram against EM on points

```sh
{result["command"]}
```

Seed {result["seed"]}: {result["points"]:,} weights of ResNet-20, K = {result["components"]}. Both start where the log-likelihood is {result["start"]:.4f} nats a
weight, and end at a relative or absolute change of 1e-5.

{table("| | log-likelihood, nats a weight, on the points | iterations | seconds |", rows)}
"""


if __name__ == "__main__":
    main()
