"""Labels one input after the other: what a label moves, the weights that are still free make up for.

A layer's outputs see its weights through its inputs.  With C the correlation matrix of these inputs, the weights of one
output, in units of their sigmas, have a posterior of precision C, of which the mean-field posterior knows the
diagonal.  Fixing a weight where its label says moves the mean of those not yet fixed to

    u_rest += cov(rest, fixed) / var(fixed) (label - u_fixed),

their conditional mean, and the variance with which a weight meets its label is the one that it has given those before.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, unfold

from pocketbayes.likelihood import unpack_inputs
from pocketbayes.moments import Moments
from pocketbayes.posterior.draws import mean_weights
from pocketbayes.posterior.weights import device_of_parameters, stochastic_weights
from pocketbayes.runs import ranks
from pocketbayes.sharing.rate import NATS, ROWS, Rate, RateCode
from pocketbayes.sharing.threads import spread

DAMPING = 0.01  # added to the diagonal of C
BLOCK = 128  # inputs after which the rest is moved
POSITIONS = 1024  # of a batch that count, in a layer
LARGEST = 1 << 13  # inputs of a layer whose matrix is held


class Factor(NamedTuple):
    """The inputs in the order in which they are fixed, and U with U^T U = C^-1: row j is what fixing j moves."""

    order: Tensor  # [C] int64
    root: Tensor  # [C, C] upper triangular

    def conditional(self, sigma: Tensor) -> Tensor:
        """The sigmas of a layer's weights given those fixed before, the later ones being free to move."""
        wider = self.root.diagonal()[self.order.argsort()].to(sigma.device)
        return (sigma.flatten(1) * wider).view(sigma.shape)


def input_moments(
    model: nn.Module, loader: Iterable[Any], *, batches: int | None = None
) -> dict[str, Tensor]:
    """E x x^T over the inputs of every linear layer and ungrouped convolution, [C, C] by path of its weight.

    Taken at the means of the weights, in evaluation mode, from inputs alone.
    """
    total: dict[str, Tensor] = {}
    seen: dict[str, int] = {}

    def note(path: str, layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        x = _columns(layer, inputs[0].detach())
        x = x[torch.linspace(0, len(x) - 1, min(len(x), POSITIONS), device=x.device).long()]
        total[path] = total.get(path, 0) + x.T @ x
        seen[path] = seen.get(path, 0) + len(x)

    modules, handles = dict(model.named_modules()), []
    for site in stochastic_weights(model):
        layer = modules[site.path.rpartition(".")[0]]
        if _has_inputs(layer) and site.name == "weight" and site.weight.fixed is None:
            hook = lambda module, inputs, path=site.path: note(path, module, inputs)  # noqa: E731
            handles.append(layer.register_forward_pre_hook(hook))
    was_training, device = model.training, device_of_parameters(model)
    model.eval()
    try:
        with torch.no_grad(), mean_weights(model):
            for raw in islice(loader, batches):
                batch = unpack_inputs(raw, device)
                model(*batch.args, **batch.kwargs)
    finally:
        model.train(was_training)
        for handle in handles:
            handle.remove()
    counts = {path: x.new_tensor(float(seen[path])) for path, x in total.items()}
    ranks.add_up([*total.values(), *counts.values()])
    return {path: x / counts[path] for path, x in total.items()}


def _has_inputs(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv2d):
        size = layer.in_channels * math.prod(layer.kernel_size)
        plain = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        return layer.groups == 1 and plain and size <= LARGEST
    return isinstance(layer, nn.Linear) and layer.in_features <= LARGEST


def _columns(layer: nn.Module, x: Tensor) -> Tensor:
    """[positions, C] what the layer multiplies its weights with."""
    if not isinstance(layer, nn.Conv2d):
        return x.reshape(-1, x.shape[-1])
    if layer.kernel_size == (1, 1) and layer.padding == (0, 0):
        strided = x[:, :, :: layer.stride[0], :: layer.stride[1]]
        return strided.movedim(1, -1).reshape(-1, x.shape[1])
    assert not isinstance(layer.padding, str)
    patches = unfold(x, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    return patches.movedim(1, -1).reshape(-1, patches.shape[1])


def factor(moments: Tensor, damping: float = DAMPING) -> Factor:
    """Of second moments [C, C]; inputs of large power are fixed first."""
    power = moments.diagonal()
    order = power.argsort(descending=True, stable=True)
    scale = power[order].clamp_min(1e-12 * float(power.max()) + 1e-30).sqrt().double()
    c = moments[order][:, order].double() / scale[:, None] / scale
    c.diagonal().fill_(1.0 + damping)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(c / (1.0 + damping)))
    return Factor(order, torch.linalg.cholesky(inverse, upper=True).to(moments.dtype))


class Compensated(NamedTuple):
    """Labels of one layer, in its shape, and where each weight's mean was when its label was chosen."""

    labels: Tensor
    mu: Tensor
    distortion: float  # nats of free energy


def compensated_labels(
    weights: Sequence[Moments[Tensor]], factors: Sequence[Factor | None], code: RateCode, rate: Rate
) -> list[Compensated]:
    """The labels of layers of weights, each chosen when those before it in its row have theirs.

    Layers without a factor have independent weights.
    """
    prices = [_Prices.of(code, layer, rate) for layer in range(len(weights))]
    return spread(lambda job: _compensated(*job), list(zip(weights, factors, prices, strict=True)))


class _Prices(NamedTuple):
    """What labels cost in one layer, linear in (1, tau_c, tau_c mu, tau, constant), and what they stand for."""

    theta: Tensor  # [5, K + 1]
    mu: Tensor  # [K + 1]; an outlier's is 0
    var: Tensor  # [K + 1]; an outlier's is 1

    @classmethod
    def of(cls, code: RateCode, layer: int, rate: Rate) -> _Prices:
        mu, var = code.codebook.mu, code.codebook.sigma.square()
        rows = (-0.5 * var.log(), 0.5 * mu.square(), -mu, 0.5 * var, torch.ones_like(mu))
        theta = pad(torch.stack(rows), (0, 1))
        theta[0] -= rate.lambda_ * code.frequency[layer].log()
        theta[0, -1] += math.inf if rate.outlier_bits is None else rate.lambda_ * rate.outlier_bits * NATS
        return cls(theta, pad(mu, (0, 1)), pad(var, (0, 1), value=1.0))

    def cheapest(self, mu: Tensor, sigma: Tensor, conditional: Tensor) -> Tensor:
        """[B] the best labels of weights with these means, sigmas, and sigmas given all that are fixed."""
        tau, tau_c = sigma.double().pow(-2), conditional.double().pow(-2)
        u = tau_c * mu
        phi = torch.stack([torch.ones_like(u), tau_c, u, tau, 0.5 * (u * mu - 1.0 - tau.log())], 1)
        best = torch.empty(len(phi), dtype=torch.int64)
        for rows, found in zip(phi.split(ROWS), best.split(ROWS), strict=True):
            torch.mm(rows, self.theta).numpy().argmin(1, out=found.numpy())
        return best

    def of_variances(self, labels: Tensor, sigma: Tensor) -> float:
        """The part of the distortion that is the variances', in nats; an outlier has none."""
        ratio = self.var[labels] / sigma.double().square()
        return float((0.5 * (ratio - 1.0 - ratio.log()))[labels < len(self.mu) - 1].sum())


def _compensated(q: Moments[Tensor], factor: Factor | None, prices: _Prices) -> Compensated:
    mu, sigma = (t.detach().cpu().float().flatten(1) for t in q)
    if factor is None:
        factor = Factor(torch.arange(mu.shape[1]), torch.eye(mu.shape[1]))
    order, root = factor
    sigma = sigma[:, order].T.contiguous()  # [C, R]: an input's weights lie side by side
    u = mu[:, order].T.contiguous().div_(sigma)
    labels, cost = torch.empty(u.shape, dtype=torch.int64), 0.0
    for part in (slice(i, i + BLOCK) for i in range(0, len(u), BLOCK)):
        errors = _fix(u[part], sigma[part], root[part, part], labels[part], prices)
        u[part.stop :].addmm_(root[part, part.stop :].T, errors, alpha=-1.0)
        cost += 0.5 * float(errors.square().sum()) + prices.of_variances(labels[part], sigma[part])
    back = order.argsort()
    labels, mu = (t[back].T.reshape(q.mu.shape) for t in (labels, u.mul_(sigma)))
    return Compensated(labels, mu, cost)


def _fix(u: Tensor, sigma: Tensor, root: Tensor, labels: Tensor, prices: _Prices) -> Tensor:
    """Label a block of inputs, [B, R], and move those of its inputs that come later.

    Returns how far each weight was from its label, in units of its sigma given those before, [B, R].
    """
    errors, outlier, values = torch.empty_like(u), len(prices.mu) - 1, prices.mu.float()
    for j in range(len(u)):
        best = prices.cheapest(u[j] * sigma[j], sigma[j], sigma[j] * root[j, j])
        labels[j] = best
        torch.sub(u[j], values[best] / sigma[j], out=errors[j]).div_(root[j, j])
        errors[j].masked_fill_(best == outlier, 0.0)
        u[j + 1 :].addr_(root[j, j + 1 :], errors[j], alpha=-1.0)
    return errors
