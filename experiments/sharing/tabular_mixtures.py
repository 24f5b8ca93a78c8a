"""Mixtures over the plane (mu, sigma) for `tabular`, judged on weights that they were not fitted to."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

import pocketbayes as pb
from pocketbayes.sharing import Mixture, fit_mixture, log_joint, make_histogram

COMPONENTS = (1, 4, 16, 64, 256, 1024)
DRAWN = 16  # components in the figure, one of those above
WORST = 0.01  # fraction of the weights called badly fitted


class Plane(NamedTuple):
    """The weights of a network as points (mu, sigma), and which layer each belongs to."""

    points: Tensor  # [N, 2] float64
    layer: Tensor  # [N] numbers into names
    names: list[str]

    @classmethod
    def of(cls, layers: dict[str, Any]) -> Plane:
        """From (mu, sigma) by name."""
        both = [torch.stack([t.detach().double().flatten() for t in pair], 1) for pair in layers.values()]
        number = torch.cat([torch.full((len(p),), i) for i, p in enumerate(both)])
        return cls(torch.cat(both), number, list(layers))


def halves(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Numbers of the weights to fit to, and of the others."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return order[: count // 2], order[count // 2 :]


def fitted(points: Tensor, components: int) -> Mixture:
    chunks = [(points[:, 0].float(), points[:, 1].float())]
    return fit_mixture(make_histogram(chunks).atoms(), components, max_iterations=1000).mixture


def log_density(mixture: Mixture, points: Tensor) -> Tensor:
    """ln p(mu, sigma) of points [N, 2] in nats: [N]."""
    return torch.cat([log_joint(mixture, part).logsumexp(1) for part in points.split(4096)])


def own_proportions(mixture: Mixture, points: Tensor, steps: int = 5) -> Mixture:
    """The same components with pi by EM on these points; the pi that they had count as one more point."""
    joint = torch.cat([(log_joint(mixture, part) - mixture.log_pi).float() for part in points.split(4096)])
    log_pi = mixture.log_pi
    for _ in range(steps):
        counts = (joint + log_pi.float()).softmax(1).sum(0).double()  # [K]
        log_pi = ((counts + mixture.log_pi.exp()) / (len(points) + 1)).log()
    return mixture._replace(log_pi=log_pi)


def by_layer(plane: Plane, fit: Tensor, held: Tensor, components: int, whole: Mixture) -> dict[str, Tensor]:
    """ln p of the held-out weights [M] in a mixture of all weights; with each layer's own proportions of its
    components; with components of each layer's own, about as many in total and at least one, shared out by size.
    """
    one = log_density(whole, plane.points[held])
    proportions, own = torch.empty_like(one), torch.empty_like(one)
    for number in range(len(plane.names)):
        here, there = plane.points[fit[plane.layer[fit] == number]], plane.layer[held] == number
        alone = fitted(here, max(1, round(components * len(here) / len(fit))))
        proportions[there] = log_density(own_proportions(whole, here), plane.points[held[there]])
        own[there] = log_density(alone, plane.points[held[there]])
    return {"one": one, "proportions": proportions, "own": own}


def worst_of(*, own: Tensor, one: Tensor) -> Tensor:
    """Numbers of the weights whose ln p [M] falls most from their layer's own mixture to the one of all weights."""
    lost = own - one
    return lost.topk(max(1, round(WORST * len(lost)))).indices


def mixture_row(plane: Plane, seed: int) -> dict[str, Any]:
    """Nats a weight for each K: on the fitted half and, in three ways, on the other; where few components fail."""
    fit, held = halves(len(plane.points), seed)
    found, each = dict[str, Any](), dict[int, dict[str, Tensor]]()
    for k in COMPONENTS:
        whole = fitted(plane.points[fit], k)
        each[k] = by_layer(plane, fit, held, k, whole)
        found[str(k)] = {"fit": round(float(log_density(whole, plane.points[fit]).mean()), 4)}
        found[str(k)] |= {way: round(float(value.mean()), 4) for way, value in each[k].items()}
    best = max(COMPONENTS, key=lambda k: found[str(k)]["one"])
    worst = worst_of(own=each[best]["own"], one=each[DRAWN]["one"])
    layers = {}
    for number, name in enumerate(plane.names):
        there = plane.layer[held] == number
        layers[name] = {way: round(float(value[there].mean()), 4) for way, value in each[best].items()}
        layers[name] |= {
            "share": round(float(there.double().mean()), 4),
            "worst": round(float(there[worst].double().mean()), 4),
        }
    return {"k": found, "best": best, "layers": layers}


def resnet_rows(cifar: str, count: int, seeds: int) -> list[dict[str, Any]]:
    """Mixtures over `count` weights of our ResNet-20 for CIFAR-10, others for each seed, with sigma by Laplace."""
    from experiments.sharing.train_network import MODELS, load_start, splits

    network, train = load_start(MODELS / "resnet20-cifar10-start.pocket", 3), splits("cifar10", cifar)[0]
    loader = train.batches(128, shuffle=True)
    fisher = pb.fisher_information(network, loader, batches=20, seed=0, progress=False)
    sigma = pb.laplace_sigma(network, fisher, len(train), prior=0.2)
    whole = Plane.of({name: (network.get_parameter(name), s) for name, s in sigma.items()})
    rows = []
    for seed in range(seeds):
        chosen = halves(len(whole.points), seed)[0][:count]
        plane = Plane(whole.points[chosen], whole.layer[chosen], whole.names)
        rows.append({"mixture": {"laplace": mixture_row(plane, seed)}})
    return rows
