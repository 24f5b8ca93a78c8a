"""Stochastic weights: parametrizations that turn a parameter into a draw from its posterior.

Every kind obeys the same laws (tests/test_contract.py): within one draw all accesses see one tensor; the mean and
the standard deviation of the draws are those of `moments`; at sigma -> 0 the weight is its mean.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from pocketbayes.moments import Moments
from pocketbayes.noise import Noise, shape_total
from pocketbayes.posterior.draws import Draw, Draws, MeanDraw
from pocketbayes.posterior.fixed import FixedEntries
from pocketbayes.posterior.gaussian import rho_from_sigma, sigma_from_rho, total_gaussian_kl
from pocketbayes.posterior.modes import modes_of
from pocketbayes.posterior.modes import unwrap as unwrap


class StochasticWeight(nn.Module, ABC):
    """A parametrization whose value is a draw w = mu + sigma z of one tensor of weights, with its prior.

    Where some weights of the tensor are `fixed`, all that is said of weights (moments, priors, draws, labels) is
    of the free ones, flat; only `whole` sees the others.
    """

    status: ClassVar[str]  # what `describe` calls it
    prior_mu: Tensor | None  # None is zero

    def __init__(
        self,
        *,
        prior_mu: Tensor | None,
        prior_sigma: float,
        index: int,
        draws: Draws,
        noise: Noise,
        fixed: FixedEntries | None = None,
    ) -> None:
        super().__init__()
        self.register_buffer("prior_mu", prior_mu)
        self.prior_sigma = prior_sigma
        self.index = index
        self.draws = draws
        self.noise = noise
        self.fixed = fixed

    @abstractmethod
    def moments(self, original: Tensor) -> Moments[Tensor]:
        """The mean and standard deviation of every free weight, in the tensor's own shape if all are."""

    def whole(self, free: Tensor) -> Tensor:
        """The tensor itself, from values of its free weights."""
        return free if self.fixed is None else self.fixed.expand(free)

    def kl(self, original: Tensor) -> Tensor:
        """KL(q || p) in nats, summed over the weights of this tensor."""
        q, m = self.moments(original), 0.0 if self.prior_mu is None else self.prior_mu
        return total_gaussian_kl(self.programmed(*q), m, self.prior_sigma) + shape_total(self.noise, *q)

    def programmed(self, mu: Tensor, sigma: Tensor) -> Moments[Tensor]:
        """The mean and standard deviation that weights have when their device is told to have these."""
        return Moments(*self.noise.program(mu, sigma))

    # Not a buffer: `.to(bfloat16)` would round it and DistributedDataParallel would send it at every step.
    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.prior_sigma, dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        self.prior_sigma = float(state)

    def sample(self, original: Tensor, draw: Draw) -> Tensor:
        """The tensor in that draw, a function of the draw and of which tensor this is alone."""
        q = self.moments(original)
        return self.whole(self.noise.place(q.mu, q.sigma, draw.z(self.noise, q.mu, q.sigma, self.index)))

    def forward(self, original: Tensor) -> Tensor:
        draw = self.draws.current()
        if draw is None:
            return self.sample(original, Draw(None))
        if isinstance(draw, MeanDraw):
            return self.whole(self.programmed(*self.moments(original)).mu)
        return draw.value(self.index, lambda: self.sample(original, draw))


class MeanFieldWeight(StochasticWeight):
    """Mean-field: every weight has a mean (the original parameter) and a rho of its own.

    `is_open` says that nobody gave its sigmas: the first training may choose where they start.
    """

    status = "stochastic"
    rho: Tensor

    def __init__(self, *, sigma: Tensor, is_open: bool = False, **common: Any) -> None:
        super().__init__(**common)
        self.rho, self.is_open = nn.Parameter(rho_from_sigma(sigma)), is_open

    def moments(self, original: Tensor) -> Moments[Tensor]:
        return Moments(original, sigma_from_rho(self.rho))


class Site(NamedTuple):
    """One place in a model where a stochastic weight is read."""

    path: str  # the parameter's name before conversion, e.g. "layer1.0.conv1.weight"
    owner: nn.Module
    name: str
    weight: StochasticWeight

    @property
    def original(self) -> Tensor:
        parametrizations = self.owner.parametrizations
        assert isinstance(parametrizations, nn.ModuleDict)
        original = parametrizations[self.name].original
        assert isinstance(original, Tensor)
        return original

    @property
    def moments(self) -> Moments[Tensor]:
        return self.weight.moments(self.original)

    @property
    def shape(self) -> torch.Size:
        """Of the whole tensor, fixed weights included."""
        fixed = self.weight.fixed
        return self.moments.mu.shape if fixed is None else fixed.mask.shape


def common(weight: StochasticWeight) -> dict[str, Any]:
    """What a weight hands on to the one that takes its place."""
    handed_on = ("prior_mu", "prior_sigma", "index", "draws", "noise", "fixed")
    return {name: getattr(weight, name) for name in handed_on}


def sites(model: nn.Module, *, every_name: bool = False) -> Iterator[Site]:
    """Every place where a stochastic weight is read, ties included, in the order of the modules.

    With `every_name`, also once more for each further name of a module that is registered under several.
    """
    for prefix, module in model.named_modules(remove_duplicate=not every_name):
        if not parametrize.is_parametrized(module):
            continue
        assert isinstance(module.parametrizations, nn.ModuleDict)
        for name, stack in module.parametrizations.items():
            for weight in stack.children():
                if isinstance(weight, StochasticWeight):
                    yield Site(f"{prefix}.{name}" if prefix else name, module, name, weight)


def stochastic_weights(model: nn.Module) -> list[Site]:
    """Every stochastic weight once: the first site of each."""
    first: dict[int, Site] = {}
    for site in sites(model):
        first.setdefault(id(site.weight), site)
    return list(first.values())


def names_of(model: nn.Module, draws: Draws) -> dict[int, str]:
    """The names in the plain architecture, by index, of the stochastic weights that share these draws."""
    found = (site for network in modes_of(model) for site in stochastic_weights(network))
    return {s.weight.index: s.path for s in found if s.weight.draws is draws}


def kl_divergence(model: nn.Module) -> Tensor:
    """KL(q || p) of a Bayesian model: the cost in nats of what its weights know beyond their priors.

    Eq. (4) of docs/method.md; of several modes the mean of their KLs, which bounds it, Eq. (29).

    Args:
        model: a network that `bayesianize` converted, or `Modes` of such.

    Returns:
        The sum over all stochastic weights of a mode in nats, a scalar that gradients flow through.

    Examples:
        >>> import torch, pocketbayes as pb
        >>> model = pb.bayesianize(torch.nn.Linear(2, 1, bias=False), prior=pb.ZeroMean(0.5), sigma=pb.Absolute(0.5))
        >>> _ = model.load_state_dict({"weight": torch.tensor([[0.5, 0.0]])}, strict=False)
        >>> f"{pb.kl_divergence(model).item():.3f}"  # equal sigmas: the squared shift over twice the variance
        '0.500'
    """
    terms = [site.weight.kl(site.original) for site in require_bayesian(model)]
    return torch.stack([term.to(terms[0].device) for term in terms]).sum() / len(modes_of(model))


def require_bayesian(model: nn.Module) -> list[Site]:
    """The stochastic weights, or an error that says how to get some."""
    found = stochastic_weights(model)
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no stochastic weights. Convert it first: pb.bayesianize(model)."
        )
    return found


def device_of_parameters(model: nn.Module) -> torch.device:
    """Where a model that shall learn is, or an error if there is nothing to learn."""
    first = next(model.parameters(), None)
    if first is None:
        raise ValueError(f"{type(model).__name__} has no parameters, so there is nothing to learn.")
    return first.device
