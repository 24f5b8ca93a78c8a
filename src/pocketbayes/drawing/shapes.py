"""From the description of a noise family, as a file holds it, to draws of z and to weights w = mu + sigma z.

`z` runs on numpy arrays and on torch tensors alike: it takes its words, and the functions it needs, from a stream.
"""

from __future__ import annotations

import math
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np

from pocketbayes.drawing import tables
from pocketbayes.drawing.exact import Array
from pocketbayes.drawing.philox import WordStream
from pocketbayes.moments import Moments

MAX_PARTS = 1 << 16
Flat: TypeAlias = Moments[Any]  # what weights are programmed to: arrays or tensors, [n]


class Shape(ABC):
    """How z is drawn.  `parts` is how many parts of a stream it takes."""

    parts: int

    @abstractmethod
    def z(self, stream: WordStream, q: Flat, start: int = 0, part: int = 0) -> Any:
        """float32 [n] for the elements from `start` on, which are programmed to q."""

    def program(self, stream: WordStream, q: Flat) -> Flat:
        """The moments that the device has when told to have q."""
        return q

    def place(self, stream: WordStream, q: Flat, z: Any) -> Any:
        """w = mu + sigma z in the type of mu."""
        mu, sigma = self.program(stream, q)
        return mu + sigma * z


@dataclass(frozen=True, eq=False)
class TableShape(Shape):
    """One word of 16 bits an element, through a table [65536] of float32, which is made when it is first needed."""

    make: Callable[[], Array]
    parts = 1

    @cached_property
    def values(self) -> Array:
        return self.make()

    def z(self, stream: WordStream, q: Flat, start: int = 0, part: int = 0) -> Any:
        return stream.look_up(self.values, part, start, len(q.mu))


@dataclass(frozen=True)
class SignShape(Shape):
    """One bit an element: +1 or -1."""

    parts = 1

    def z(self, stream: WordStream, q: Flat, start: int = 0, part: int = 0) -> Any:
        return stream.signs(part, start, len(q.mu))


@dataclass(frozen=True)
class MeanShape(Shape):
    """Several devices a weight: (z_1 + ... + z_m) / sqrt m, added in this order in float32, a part for each device."""

    single: Shape
    devices: int

    @property
    def parts(self) -> int:  # type: ignore[override]
        return self.devices * self.single.parts

    def z(self, stream: WordStream, q: Flat, start: int = 0, part: int = 0) -> Any:
        total = self.single.z(stream, q, start, part)
        for device in range(1, self.devices):
            total += self.single.z(stream, q, start, part + device * self.single.parts)
        total *= float(np.float32(1 / math.sqrt(self.devices)))
        return total


@dataclass(frozen=True)
class StatesShape(Shape):
    """A law for each of several states, mixed by where (mu, sigma) lies among them.

    The word of the first part chooses the law: the first one whose cumulative weight exceeds (word + 1/2) / 65536.
    """

    mus: tuple[float, ...]
    sigmas: tuple[float, ...]
    laws: tuple[Shape, ...]

    @property
    def parts(self) -> int:  # type: ignore[override]
        return 1 + sum(law.parts for law in self.laws)

    def z(self, stream: WordStream, q: Flat, start: int = 0, part: int = 0) -> Any:
        xp = stream.xp
        mu, sigma = (xp.asarray(t, dtype=xp.float64) for t in q)
        weights = shepard(mu, sigma, self.mus, self.sigmas)
        level = (stream.words(part, start, len(mu)) + 0.5) / 65536
        part, upper = part + 1, weights[0]
        z = self.laws[0].z(stream, q, start, part)
        for k, law in enumerate(self.laws[1:], start=1):
            part += self.laws[k - 1].parts
            z = xp.where(level < upper, z, law.z(stream, q, start, part))
            upper = upper + weights[k]
        return z


def shepard(mu: Any, sigma: Any, mus: Sequence[float], sigmas: Sequence[float]) -> list[Any]:
    """The weight of every state at (mu, sigma), proportional to 1 / distance^2 in units of the box of states."""
    near = []
    for state in zip(mus, sigmas, strict=True):
        distance: Any = 1e-12  # keeps 1/d^2 finite at a state
        for value, at, every in zip((mu, sigma), state, (mus, sigmas), strict=True):
            low, high = min(every), max(every)
            if high > low:
                step = (value.clip(low, high) - at) / (high - low)
                distance = distance + step * step
        near.append(1 / (distance + 0 * mu))
    total = sum(near[1:], near[0])
    return [part / total for part in near]


@dataclass(frozen=True)
class DeviceShape(Shape):
    """A shape that is told something else than q, or has something done to its weights."""

    inner: Shape

    @property
    def parts(self) -> int:  # type: ignore[override]
        return self.inner.parts

    def told(self, stream: WordStream, q: Flat) -> Flat:
        return q

    def z(self, stream: WordStream, q: Flat, start: int = 0, part: int = 0) -> Any:
        return self.inner.z(stream, self.told(stream, q), start, part)

    def program(self, stream: WordStream, q: Flat) -> Flat:
        return self.inner.program(stream, self.told(stream, q))

    def place(self, stream: WordStream, q: Flat, z: Any) -> Any:
        return self.inner.place(stream, self.told(stream, q), z)


@dataclass(frozen=True)
class ProgrammedShape(DeviceShape):
    """mu and sigma go to the nearest levels; half way, to the lower one."""

    mu_levels: tuple[float, ...]
    sigma_levels: tuple[float, ...]

    def told(self, stream: WordStream, q: Flat) -> Flat:
        return Moments(nearest(stream, q.mu, self.mu_levels), nearest(stream, q.sigma, self.sigma_levels))


def nearest(stream: WordStream, values: Any, levels: Sequence[float]) -> Any:
    """Every value at its nearest level; left as it is if there are none."""
    if not levels:
        return values
    table = stream.like(levels, values)
    return table[stream.xp.searchsorted(0.5 * (table[1:] + table[:-1]), values)]


@dataclass(frozen=True)
class DriftedShape(DeviceShape):
    """w -> scale w + shift of what the device was programmed to."""

    scale: float
    shift: float

    def program(self, stream: WordStream, q: Flat) -> Flat:
        mu, sigma = self.inner.program(stream, q)
        return Moments(self.scale * mu + self.shift, self.scale * sigma)

    def place(self, stream: WordStream, q: Flat, z: Any) -> Any:
        return self.scale * self.inner.place(stream, q, z) + self.shift


def drift(age: float, exponent: float, shift: float) -> tuple[float, float]:
    """The scale and the shift of a weight, at a time in units of the one at which it was programmed."""
    return age**-exponent, shift * math.log(age)


# --- from a description ------------------------------------------------------------------------------------------


def shape_of(description: Mapping[str, Any]) -> Shape:
    """The shape that a family's description asks for; none, {}, is Gaussian.  ValueError where it makes no sense."""
    if not isinstance(description, Mapping):
        raise ValueError(f"noise: a family is described by an object, got {reprlib.repr(description)}.")
    family = description.get("family", "Gaussian")
    build = FAMILIES.get(family) if isinstance(family, str) else None
    if build is None:
        raise ValueError(
            f"noise: unknown family {reprlib.repr(family)}. Known families: {', '.join(sorted(FAMILIES))}."
        )
    try:
        shape = build(description)
    except (KeyError, TypeError, IndexError, ArithmeticError) as error:
        raise ValueError(f"noise: the parameters of {family} do not make sense: {error!r}.") from error
    if shape.parts > MAX_PARTS:
        raise ValueError(f"noise: {shape.parts} random numbers a weight are too many.")
    return shape


def _number(d: Mapping[str, Any], name: str, low: float = -math.inf, high: float = math.inf) -> float:
    value = d[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low < value < high:
        raise ValueError(f"noise: {name} must be a number strictly between {low} and {high}, got {value!r}.")
    return float(value)


def _numbers(d: Mapping[str, Any], name: str, low: float = -math.inf) -> tuple[float, ...]:
    return tuple(_number({name: value}, name, low) for value in d[name])


def _array(d: Mapping[str, Any]) -> Array:
    values = np.asarray(d["values"], np.float64)
    if values.ndim != 1 or len(values) < 2 or not (np.abs(values) <= 2.0**127).all():  # no NaN either
        raise ValueError("noise: measured values must be a list of two or more numbers, at most 2^127.")
    return np.sort(values)


def _mixture(d: Mapping[str, Any]) -> Shape:
    parts = _numbers(d, "weights", 0), _numbers(d, "means"), _numbers(d, "sigmas", 0)
    if not len(parts[0]) == len(parts[1]) == len(parts[2]) > 0:
        raise ValueError("noise: a mixture has equal numbers of weights, means and sigmas.")
    return TableShape(partial(tables.mixture, *parts))


def _bimodal(d: Mapping[str, Any]) -> Shape:
    m = _number(d, "m", -1, 1)
    sigma = math.sqrt(1 - m * m)
    return TableShape(partial(tables.mixture, (0.5, 0.5), (-m, m), (sigma, sigma)))


def _mean(d: Mapping[str, Any]) -> Shape:
    devices = d["devices"]
    if type(devices) is not int or not 1 <= devices <= MAX_PARTS:
        raise ValueError(f"noise: devices must be a whole number from 1 to {MAX_PARTS}, got {devices!r}.")
    return MeanShape(shape_of(d["noise"]), devices)


def _states(d: Mapping[str, Any]) -> Shape:
    laws = tuple(shape_of(law) for law in d["laws"])
    mus, sigmas = _numbers(d, "mus"), _numbers(d, "sigmas", 0)
    if not len(mus) == len(sigmas) == len(laws) > 0:
        raise ValueError("noise: every state has one mu, one sigma and one law.")
    return StatesShape(mus, sigmas, laws)


def _drifted(d: Mapping[str, Any]) -> Shape:
    age = _number(d, "time", 0) / _number(d, "reference", 0)
    scale, shift = drift(age, _number(d, "exponent"), _number(d, "shift"))
    if not math.isfinite(scale + shift):
        raise ValueError(f"noise: a drift by the factor {scale} and by {shift} is not finite.")
    return DriftedShape(shape_of(d["noise"]), scale, shift)


FAMILIES: dict[str, Callable[[Mapping[str, Any]], Shape]] = {
    "Gaussian": lambda d: TableShape(tables.gaussian),
    "Uniform": lambda d: TableShape(tables.uniform),
    "Laplace": lambda d: TableShape(tables.laplace),
    "Logistic": lambda d: TableShape(tables.logistic),
    "StudentT": lambda d: TableShape(partial(tables.student, _number(d, "df", 2))),
    "SkewNormal": lambda d: TableShape(partial(tables.skew_normal, _number(d, "alpha", -1e4, 1e4))),
    "Bimodal": _bimodal,
    "GaussianMixture": _mixture,
    "TwoPoint": lambda d: SignShape(),
    "Empirical": lambda d: TableShape(partial(tables.samples, _array(d))),
    "QuantileTable": lambda d: TableShape(partial(tables.steps, _array(d))),
    "Averaged": _mean,
    "AveragedAtoms": _mean,
    "StateDependent": _states,
    "Programmed": lambda d: ProgrammedShape(
        shape_of(d["noise"]), _numbers(d, "mu_levels"), _numbers(d, "sigma_levels", 0)
    ),
    "Drifted": _drifted,
}
