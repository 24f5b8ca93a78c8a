"""What others do with the same network: dropout, SWAG, Laplace, variational layers, ensembles; and what ours do.

Every one starts from the network in experiments/models, and is fine-tuned for as many epochs as the others where it needs
training.  What comes out answers images [N, 3, 32, 32] with the probabilities of its passes, [S, N, C].
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from tests.zoo import mend_torchvision
from torch import Tensor, nn

import pocketbayes as pb
from experiments.sharing.bench import Bench
from experiments.sharing.train_network import load_start, start_path
from pocketbayes.prediction.average import Samples
from pocketbayes.prediction.scales import Scales, give_scales

EPOCHS, PASSES = 2, 8
RATE = 0.01  # of SGD, constant for SWAG
DROPPED = 0.05
SWAG_COPIES = 8  # of the weights, as many passes
MOPED = 0.05  # sigma over |mean|
FRESH = 16  # training batches for a norm's statistics
Answers = Callable[[Tensor], Tensor]


class Method(NamedTuple):
    """What was made of the network, and what it takes to keep it."""

    bytes: int
    answers: Answers


def size_of(net: nn.Module) -> int:
    """Bytes of its numbers in fp32."""
    return 4 * sum(t.numel() for t in (*net.parameters(), *net.buffers()))


def batches(x: Tensor) -> tuple[Tensor, ...]:
    return x.split(250)


@torch.no_grad()
def passes_of(nets: Iterator[nn.Module]) -> Answers:
    """One pass of each network, made when it is its turn."""
    made = list(nets)

    @torch.no_grad()
    def answers(x: Tensor) -> Tensor:
        return torch.stack([torch.cat([net(b).double().softmax(1) for b in batches(x)]) for net in made])

    return answers


# --- without training ---------------------------------------------------------------------------------------------


def ensemble(bench: Bench, count: int) -> Method:
    """Networks of other seeds; the deterministic one alone is an ensemble of one."""
    paths = [start_path(bench.network.parent, "cifar10", seed) for seed in range(count)]
    nets = [load_start(path, 3).eval() for path in paths]
    return Method(sum(map(size_of, nets)), passes_of(iter(nets)))


def ours(bench: Bench, file: str, samples: Samples) -> Method:
    """A pocket file beside the experiments, loaded from disk."""
    path = bench.network.parent / file
    model = pb.load(path, bench.fresh())
    give_scales(model, Scales())

    def answers(x: Tensor) -> Tensor:
        said = pb.predict(model, x, samples=samples, draws=True).draws
        assert said is not None
        return said

    return Method(path.stat().st_size, answers)


def laplace(bench: Bench) -> Method:
    """laplace-torch: the last layer with its full covariance, the prior by marginal likelihood, one pass with probit."""
    mend_torchvision()  # which its scores import
    from laplace import Laplace

    net = bench.plain().to(memory_format=torch.contiguous_format).eval()
    found: Any = Laplace(net, "classification", subset_of_weights="last_layer", hessian_structure="full")
    found.fit(bench.training())
    found.optimize_prior_precision(method="marglik")

    @torch.no_grad()
    def answers(x: Tensor) -> Tensor:
        return torch.cat([found(b, link_approx="probit").double() for b in batches(x)])[None]

    return Method(size_of(net) + 4 * found.posterior_precision.numel(), answers)


# --- with fine-tuning ---------------------------------------------------------------------------------------------


def trained(
    net: nn.Module,
    bench: Bench,
    *,
    falling: bool = True,
    penalty: Callable[[], Tensor] | None = None,
    on_step: Callable[[float], None] | None = None,
) -> None:
    """SGD with momentum from the network as it is, the rate falling to zero or constant."""
    torch.manual_seed(0)
    loader, net = bench.training(), net.train()
    steps, done = EPOCHS * len(loader), 0
    sgd = torch.optim.SGD(net.parameters(), RATE, momentum=0.9, nesterov=True, weight_decay=5e-4)
    for _ in range(EPOCHS):
        for x, y in loader:
            sgd.param_groups[0]["lr"] = RATE * (1 - done / steps) if falling else RATE
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(net(x).float(), y)
            loss = loss if penalty is None else loss + penalty()
            sgd.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            sgd.step()
            done += 1
            if on_step is not None:
                on_step(done / steps)
    net.eval()


def dropout(bench: Bench) -> Method:
    """Monte Carlo dropout after every residual block."""
    net = bench.plain()
    for stage in (net.layer1, net.layer2, net.layer3):
        for number, block in enumerate(stage):  # type: ignore[arg-type]
            stage[number] = nn.Sequential(block, nn.Dropout(DROPPED))  # type: ignore[operator, index]
    trained(net, bench)
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.train()
    torch.manual_seed(0)
    return Method(size_of(net), passes_of(net for _ in range(PASSES)))


def swag(bench: Bench) -> Method:
    """A Gaussian of diagonal plus low rank along SGD at a constant rate; its draws with norms of their own."""
    net, kept = bench.plain(), list[Tensor]()

    def vector() -> Tensor:
        return torch.cat([p.detach().flatten() for p in net.parameters()])

    def on_step(done: float) -> None:
        if done >= (len(kept) + 1) / SWAG_COPIES:
            kept.append(vector().clone())

    trained(net, bench, falling=False, on_step=on_step)
    weights = torch.stack(kept)
    mean, apart = weights.mean(0), weights - weights.mean(0)
    g = torch.Generator().manual_seed(0)

    def drawn() -> nn.Module:
        diagonal = apart.square().mean(0).sqrt() * torch.randn(len(mean), generator=g)
        low_rank = (torch.randn(len(apart), generator=g) @ apart) / (len(apart) - 1) ** 0.5
        twin = copy.deepcopy(net)
        nn.utils.vector_to_parameters(mean + (diagonal + low_rank) / 2**0.5, twin.parameters())
        return with_fresh_norms(twin, bench)

    size = size_of(net) + 4 * len(mean) * (1 + len(apart))
    return Method(size, passes_of(drawn() for _ in range(PASSES)))


@torch.no_grad()
def with_fresh_norms(net: nn.Module, bench: Bench) -> nn.Module:
    """The network with the statistics that some training batches have in it."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None
    net.train()
    for number, (x, _) in enumerate(bench.training()):
        if number == FRESH:
            break
        net(x)
    return net.eval()


def variational(bench: Bench) -> Method:
    """bayesian-torch: all layers by reparametrisation, started from the network's weights (MOPED)."""
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss

    net = bench.plain()
    dnn_to_bnn(
        net,
        {
            "prior_mu": 0.0,
            "prior_sigma": 1.0,
            "posterior_mu_init": 0.0,
            "posterior_rho_init": -3.0,
            "type": "Reparameterization",
            "moped_enable": True,
            "moped_delta": MOPED,
        },
    )
    trained(net, bench, penalty=lambda: get_kl_loss(net) / bench.images)
    torch.manual_seed(0)
    sigmas = sum(p.numel() for name, p in net.named_parameters() if ".rho_" in name)
    return Method(size_of(bench.plain()) + 4 * sigmas, passes_of(net for _ in range(PASSES)))
