"""Priors over the weights, and where the posterior's standard deviations start."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pocketbayes.posterior.scales import FanIn as FanIn
from pocketbayes.posterior.scales import Scale as Scale
from pocketbayes.posterior.scales import require_positive


def scale_of(scale: Scale, weight: Tensor) -> float:
    """The scale as a number for that tensor, whose layout is [out, in, *kernel]."""
    if isinstance(scale, FanIn):
        return scale.gain / math.sqrt(max(1, weight[0].numel() if weight.ndim > 1 else 1))
    return float(scale)


@dataclass(frozen=True)
class GaussianPrior(ABC):
    """Independent Gaussians N(m, s^2) over the weights of a tensor; s may depend on the layer."""

    sigma: Scale = FanIn(1.0)

    def __post_init__(self) -> None:
        if not isinstance(self.sigma, FanIn):
            require_positive(f"{type(self).__name__}: sigma", self.sigma)

    @abstractmethod
    def mean(self, weight: Tensor) -> Tensor | None:
        """The prior means for a tensor that holds `weight` at conversion; None for zero."""


@dataclass(frozen=True)
class ZeroMean(GaussianPrior):
    """The prior N(0, s^2), for training from scratch.

    Args:
        sigma: s, a number or a `FanIn` scale by layer.  0.1 is the sharing paper's choice.

    Examples:
        >>> model = pb.bayesianize(pb.nets.mlp([4, 3]), prior={"0.*": pb.ZeroMean(0.1)})
        >>> print(pb.describe(model)[0].note)
        median sigma 0..., prior N(0, 0.1^2)
    """

    def mean(self, weight: Tensor) -> Tensor | None:
        return None


@dataclass(frozen=True)
class Pretrained(GaussianPrior):
    """The prior N(w0, s^2) with w0 the weights at conversion: stay near a trained network (MOPED).

    Args:
        sigma: s, a number or a `FanIn` scale by layer.

    Examples:
        >>> model = pb.bayesianize(pb.nets.mlp([4, 3]), prior=pb.Pretrained(0.1))
        >>> print(pb.describe(model)[0].note)
        median sigma 0..., prior N(w0, 0.1^2)
    """

    def mean(self, weight: Tensor) -> Tensor | None:
        return weight.detach().clone()


@dataclass(frozen=True)
class Absolute:
    """Every weight starts with the same sigma.

    Args:
        sigma: in the weights' units.

    Examples:
        >>> model = pb.bayesianize(pb.nets.mlp([4, 3]), sigma=pb.Absolute(0.02))
        >>> print(pb.describe(model)[0].note)
        median sigma 0.02, prior N(0, 0.5^2)
    """

    sigma: float = 0.01

    def __post_init__(self) -> None:
        require_positive("Absolute: sigma", self.sigma)


@dataclass(frozen=True)
class Relative:
    """A weight w starts with sigma = delta max(|w|, floor rms), rms the root mean square of its tensor.

    Args:
        delta: sigma as a fraction of the weight.
        floor: below which fraction of rms a weight counts as that large.

    Examples:
        >>> plain = nn.Linear(2, 1)
        >>> plain.weight.data = torch.tensor([[3.0, 4.0]])
        >>> model = pb.bayesianize(plain, sigma=pb.Relative(0.1))
        >>> print(pb.describe(model)[0].note)  # of .3 and .4, the lower one
        median sigma 0.3, prior N(0, 0.71^2)
    """

    delta: float = 0.1
    floor: float = 0.1

    def __post_init__(self) -> None:
        require_positive("Relative: delta", self.delta)
        require_positive("Relative: floor", self.floor)


InitialSigma = Absolute | Relative | FanIn | Mapping[str, Tensor]


def initial_sigma(start: InitialSigma, path: str, weight: Tensor) -> Tensor:
    """The standard deviations that the weights at `path` start with, in the weight's shape."""
    weight = weight.detach()
    if isinstance(start, Absolute):
        return torch.full_like(weight, start.sigma)
    if isinstance(start, FanIn):
        return torch.full_like(weight, scale_of(start, weight))
    if isinstance(start, Relative):
        rms = weight.float().square().mean().sqrt().item() or scale_of(FanIn(), weight)
        return start.delta * weight.abs().clamp_min(start.floor * rms)
    if not isinstance(start, Mapping):
        raise TypeError(
            f"sigma: must be Absolute(...), Relative(...), FanIn(...) or tensors by parameter name, got {start!r}. "
            "For one number everywhere pass pb.Absolute(number)."
        )
    return _given_sigma(start, path, weight)


def _given_sigma(given: Mapping[str, Tensor], path: str, weight: Tensor) -> Tensor:
    if path not in given:
        raise ValueError(
            f"{path}: no initial sigma given. Add it to the mapping, or leave it out with where=."
        )
    sigma = torch.as_tensor(given[path], dtype=weight.dtype, device=weight.device)
    if sigma.shape != weight.shape:
        raise ValueError(f"{path}: sigma has shape {tuple(sigma.shape)}, the weight {tuple(weight.shape)}.")
    if not bool((torch.isfinite(sigma) & (sigma > 0)).all()):
        worst = sigma[~(torch.isfinite(sigma) & (sigma > 0))].flatten()[0].item()
        raise ValueError(
            f"{path}: sigma must be positive and finite, got {worst}. Use a small value such as 1e-6."
        )
    return sigma.clone()
