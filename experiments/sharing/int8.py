"""The rival in Table 4: a posterior quantised number by number, mu in 8 bits and sigma in 1, 2 or 4, in a real file.

mu_i = s_c k_i with whole k_i between -127 and 127 and a scale s_c for each output channel.  sigma_i is one of 2^b levels
of its tensor, which are fitted to ln sigma by Lloyd's iteration.  Everything deterministic stays in fp32.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pocketbayes.posterior.gaussian import rho_from_sigma
from pocketbayes.posterior.weights import MeanFieldWeight, require_bayesian
from pocketbayes.runs.files import write_atomically

BITS = (1, 2, 4)


class Means(NamedTuple):
    whole: Tensor  # int8, in the shape of mu
    scale: Tensor  # [out]

    def values(self) -> Tensor:
        return self.whole * self.scale.view(-1, *[1] * (self.whole.dim() - 1))


class Sigmas(NamedTuple):
    labels: Tensor  # uint8, in the shape of sigma
    levels: Tensor  # [2^b], rising

    def values(self) -> Tensor:
        return self.levels[self.labels.long()]


def quantise_means(mu: Tensor) -> Means:
    """To the nearest of 255 values of each output channel."""
    scale = mu.flatten(1).abs().amax(1).clamp_min(torch.finfo(mu.dtype).tiny) / 127
    return Means((mu / scale.view(-1, *[1] * (mu.dim() - 1))).round().to(torch.int8), scale)


def quantise_sigma(sigma: Tensor, bits: int, rounds: int = 50) -> Sigmas:
    """To the nearest level in ln sigma; levels start at quantiles and move to the means of their members."""
    logs, count = sigma.log().flatten(), 2**bits
    places = (torch.arange(count) + 0.5) / count
    levels = torch.quantile(logs[:: max(1, len(logs) // 100_000)], places.to(logs))
    for _ in range(rounds):
        labels = torch.bucketize(logs, (levels[1:] + levels[:-1]) / 2)
        members = torch.bincount(labels, minlength=count)
        sums = torch.zeros_like(levels).index_add_(0, labels, logs)
        levels = torch.where(members > 0, sums / members.clamp_min(1), levels)
    labels = torch.bucketize(logs, (levels[1:] + levels[:-1]) / 2)
    return Sigmas(labels.to(torch.uint8).view_as(sigma), levels.exp())


def pack(labels: Tensor, bits: int) -> Tensor:
    """Labels of `bits` bits each, as bytes."""
    each = (labels.flatten().numpy()[:, None] >> np.arange(bits)) & 1  # [N, bits]
    return torch.from_numpy(np.packbits(each.astype(np.uint8).ravel()))


def unpack(packed: Tensor, bits: int, shape: tuple[int, ...]) -> Tensor:
    count = int(np.prod(shape))
    each = np.unpackbits(packed.numpy(), count=count * bits).reshape(count, bits)
    return torch.from_numpy((each << np.arange(bits)).sum(1).astype(np.uint8)).view(shape)


def save_quantised(model: nn.Module, path: str | os.PathLike[str], bits: int) -> int:
    """The posterior of a model with mean-field weights, quantised, as a safetensors file; returns its bytes."""
    from safetensors.torch import save

    tensors, found = {}, require_bayesian(model)
    for site in found:
        mu, sigma = (t.detach().contiguous() for t in site.moments)
        means, sigmas = quantise_means(mu), quantise_sigma(sigma, bits)
        parts = {
            "mu": means.whole,
            "scale": means.scale,
            "sigma": pack(sigmas.labels, bits),
            "levels": sigmas.levels,
        }
        tensors |= {f"{site.path}.{key}": value for key, value in parts.items()}
    random = {f"{site.path}" for site in found}
    for name, value in model.state_dict().items():
        if not any(name.startswith(path.rpartition(".")[0] + ".parametrizations.") for path in random):
            tensors[name] = value.contiguous()
    whole = save(tensors, metadata={"bits": str(bits)})
    write_atomically(path, whole)
    return len(whole)


def load_quantised(path: str | os.PathLike[str], model: nn.Module) -> nn.Module:
    """Into a Bayesian model of the same architecture, in place; its posterior is that of the file."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        bits = int(file.metadata()["bits"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    with torch.no_grad():
        for site in require_bayesian(model):
            part = {key: tensors.pop(f"{site.path}.{key}") for key in ("mu", "scale", "sigma", "levels")}
            assert isinstance(site.weight, MeanFieldWeight)
            site.original.copy_(Means(part["mu"], part["scale"]).values())
            labels = unpack(part["sigma"], bits, tuple(part["mu"].shape))
            site.weight.rho.copy_(rho_from_sigma(Sigmas(labels, part["levels"]).values()))
    model.load_state_dict(tensors, strict=False)
    return model
