"""What every noise family is: a law f for z with zero mean and unit variance, so that w = mu + sigma z."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from pocketbayes.arrays import to_numpy
from pocketbayes.drawing import Shape, WordStream, shape_of
from pocketbayes.drawing.shapes import FAMILIES, TableShape
from pocketbayes.drawing.tables import LEVELS, standardised
from pocketbayes.moments import Moments
from pocketbayes.noise.quadrature import QuadratureRule, core_edges, panel_rule
from pocketbayes.noise.sampling import graph_constant, sample_table

GAUSSIAN_ENTROPY = 0.5 * math.log(2 * math.pi * math.e)  # nats


class Noise(ABC):
    """The shape of z in w = mu + sigma z.  Every family is standardised: E z = 0, Var z = 1."""

    families: ClassVar[dict[str, type[Noise]]] = {}  # by class name: what `from_dict` may build

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Noise.families[cls.__name__] = cls

    @abstractmethod
    def sample_like(self, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Independent draws of z with the shape, dtype and device of `like`.

        With `generator=None` the draw uses plain torch ops on the global generator, so that
        `torch.export`, `torch.compile` and `vmap` can trace it.
        """

    @abstractmethod
    def negentropy(self) -> float:
        """J(f) = H(N(0, 1)) - H(f) >= 0 in nats; infinite for laws with atoms."""

    @property
    def has_atoms(self) -> bool:
        """Whether single values have positive probability, so that there is no density and J is infinite."""
        return False

    def negentropy_at(self, mu: Tensor, sigma: Tensor) -> Tensor:
        """J of the shape that a weight programmed to (mu, sigma) has, in the shape of mu."""
        return torch.full_like(mu, self.negentropy())

    def program(self, mu: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
        """The mean and standard deviation that the device has when told to have (mu, sigma)."""
        return mu, sigma

    def sample_at(self, mu: Tensor, sigma: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draws of z for weights programmed to (mu, sigma), without gradients."""
        return self.sample_like(mu, generator)

    def place(self, mu: Tensor, sigma: Tensor, z: Tensor) -> Tensor:
        """The weights w = mu + sigma z for given draws, differentiable in mu and sigma."""
        mu, sigma = self.program(mu, sigma)
        return mu + sigma * z

    def draw(self, mu: Tensor, sigma: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """w = mu + sigma z, differentiable in mu and sigma."""
        return self.place(mu, sigma, self.sample_at(mu, sigma, generator))

    @cached_property
    def shape(self) -> Shape:
        """How the file format draws z: see docs/format.md."""
        return shape_of(self.to_dict())

    def z(self, stream: WordStream, mu: Tensor, sigma: Tensor) -> Tensor:
        """The file format's z for all elements of a tensor programmed to (mu, sigma), in the shape and type of mu."""
        q = Moments(mu.detach().reshape(-1), sigma.detach().reshape(-1))
        drawn: Tensor = self.shape.z(stream, q)
        return drawn.view(mu.shape).to(mu.dtype)

    def to_dict(self) -> dict[str, Any]:
        """The family's name and parameters: numbers, lists, dicts of this kind, and float64 arrays."""
        return {"family": type(self).__name__} | {
            f.name: _plain(getattr(self, f.name)) for f in _fields(self)
        }

    @staticmethod
    def from_dict(description: Mapping[str, Any]) -> Noise:
        """The family that `to_dict` described.  Only known families and their own parameters are accepted."""
        parameters = dict(description)
        name = parameters.pop("family", None)
        known = {n: f for n, f in Noise.families.items() if not getattr(f, "__abstractmethods__", None)}
        family = known.get(name) if isinstance(name, str) else None
        if family is None:
            raise ValueError(
                f"noise description: unknown family {name!r}. Known families: {', '.join(sorted(known))}."
            )
        expected = {f.name for f in _fields(family)}
        if set(parameters) != expected:
            raise ValueError(
                f"noise description: {name} has the parameters {sorted(expected)}, got {sorted(parameters)}."
            )
        try:
            return family(**{key: _built(value) for key, value in parameters.items()})
        except TypeError as error:
            raise ValueError(
                f"noise description: parameters of {name} have the wrong type: {error}."
            ) from error


class Law(Noise):
    """A noise family whose standardised law is known: distribution function, density, moments."""

    order: ClassVar[int] = 16  # Gauss-Legendre nodes that resolve the density within one panel

    @abstractmethod
    def cdf(self, z: Tensor) -> Tensor:
        """F(z) = P(Z <= z)."""

    @abstractmethod
    def icdf(self, u: Tensor) -> Tensor:
        """F^-1(u) = min {z : F(z) >= u} for 0 < u < 1."""

    @abstractmethod
    def log_prob(self, z: Tensor) -> Tensor:
        """ln f(z), differentiable; -inf outside the support."""

    def invert(self, u: Tensor, low: float, high: float) -> Tensor:
        """F^-1(u) where there is no formula, by Newton steps kept inside a shrinking bracket; dtype of u."""
        target = u.detach().double()
        lo, hi = torch.full_like(target, low), torch.full_like(target, high)
        z = torch.special.ndtri(target).clamp(low, high)
        for _ in range(200):
            excess = self.cdf(z) - target
            lo, hi = torch.where(excess < 0, z, lo), torch.where(excess < 0, hi, z)
            newton = z - excess / self.log_prob(z).exp()
            following = torch.where((newton > lo) & (newton < hi), newton, 0.5 * (lo + hi))
            moved = (following - z).abs() > 1e-15 * (1 + z.abs())
            z = torch.where(excess == 0, z, following)
            if not bool((moved & (excess != 0)).any()):
                break
        z = torch.where(target <= 0, low, torch.where(target >= 1, high, z))
        return torch.where((target < 0) | (target > 1), torch.nan, z).to(u)

    def skewness(self) -> float:
        """E z^3, here by quadrature; NaN where it does not exist."""
        return self.rule.mean(lambda z: z**3)

    def excess_kurtosis(self) -> float:
        """E z^4 - 3, here by quadrature; possibly infinite."""
        return self.rule.mean(lambda z: z**4) - 3

    @abstractmethod
    def characteristic(self, t: Tensor) -> Tensor:
        """E exp(i t z), complex128, for real t."""

    @abstractmethod
    def edges(self) -> Tensor:
        """Where quadrature panels meet, increasing, float64: between two edges f is smooth and tame.

        They include every kink, and they reach so far that what lies outside adds nothing to a second moment.
        """

    def support(self) -> tuple[float, float]:
        """The smallest interval that holds all of the probability."""
        return -math.inf, math.inf

    def kinks(self) -> tuple[float, ...]:
        """Where f or its derivative jumps."""
        return ()

    def moment_order(self) -> float:
        """E |z|^k is finite for every k below this."""
        return math.inf

    def entropy(self) -> float:
        """H(f) = -E ln f(z) in nats, here by quadrature."""
        return self._entropy

    def negentropy(self) -> float:
        return GAUSSIAN_ENTROPY - self.entropy()

    @cached_property
    def shape(self) -> Shape:
        if type(self).__name__ in FAMILIES:
            return shape_of(self.to_dict())
        # A law of the user's own.
        return TableShape(lambda: standardised(self.icdf(torch.from_numpy(LEVELS)).numpy()))

    @cached_property
    def rule(self) -> QuadratureRule:
        """Nodes and weights for E g(z), composite Gauss-Legendre on the panels between `edges`."""
        return panel_rule(self)

    @cached_property
    def core(self) -> Tensor:
        """The edges of the panels that matter for expectations of functions up to quadratic growth."""
        return core_edges(self)

    @cached_property
    def _entropy(self) -> float:
        nodes, weights = self.rule
        seen = weights > 0
        return -float((weights[seen] * self.log_prob(nodes[seen])).sum())

    @cached_property
    def quantiles(self) -> Tensor:
        """[65536] float32: the equally likely values of draws."""
        assert isinstance(self.shape, TableShape)
        return torch.from_numpy(self.shape.values)

    @graph_constant
    def _drawn(self) -> Tensor:
        return self.quantiles

    def sample_like(self, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return sample_table(self._drawn(), like, generator)


class ArrayFields:
    """Equality and hash by value for dataclasses (eq=False) that hold arrays."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and _key(self) == _key(other)

    def __hash__(self) -> int:
        return hash(_key(self))


def frozen_array(where: str, values: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A read-only, finite, one-dimensional float64 copy."""
    array = np.array(to_numpy(values), dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(
            f"{where}: values must be one-dimensional, got shape {array.shape}. Flatten them first."
        )
    if not np.isfinite(array).all():
        bad = int((~np.isfinite(array)).sum())
        raise ValueError(f"{where}: {bad} of {array.size} values are NaN or infinite. Remove them first.")
    array.flags.writeable = False
    return array


def by_numpy(function: Callable[[Any], Any], x: Tensor) -> Tensor:
    """A float64 numpy function applied to a tensor, without gradients; dtype and device of x."""
    return torch.as_tensor(function(x.detach().cpu().double().numpy())).to(x)


def _fields(family: Any) -> tuple[Any, ...]:
    return fields(family) if hasattr(family, "__dataclass_fields__") else ()


def _plain(value: Any) -> Any:
    if isinstance(value, Noise):
        return value.to_dict()
    return [_plain(v) for v in value] if isinstance(value, tuple) else value


def _built(value: Any) -> Any:
    if isinstance(value, Mapping):
        return Noise.from_dict(value)
    return tuple(_built(v) for v in value) if isinstance(value, list | tuple) else value


def _key(value: Any) -> Any:
    if isinstance(value, ArrayFields):
        return (type(value).__name__, *(_key(getattr(value, f.name)) for f in _fields(value)))
    return (value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value
