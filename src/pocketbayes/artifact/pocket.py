"""What a pocket file holds, as numpy arrays: a model's tensors, its codebook, its noise, its user's notes.

Arrays of a stochastic entry are flat and hold its *free* weights only, in C order; a weight that is fixed to
a constant has neither label nor (mu, sigma).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from pocketbayes.artifact.numbers import DTYPES, POSITIVE, SHORT, Array, is_float
from pocketbayes.errors import ArtifactError
from pocketbayes.moments import Codebook

MAX_CODEBOOK = 65534  # labels and the marks of outliers and blends fit 16 bits
MAX_BLEND = 255
MOST_MODES = 255
ALPHA_STEPS = 65535  # weights of a blend are multiples of 1 / 65535
SMALLEST_SIGMA = 2.0**-126
LARGEST = np.float64(2.0**127)  # what rounding cannot push out of float32; wider than any array it meets
JSON: TypeAlias = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Bits a number takes in the file.

    plain   deterministic floats, and the values of fixed weights: 8 to 16, 32, or 64 to keep their own type
    mu      means: 8 to 16 (relative error 2^(5-bits)), 32 or 64
    sigma   standard deviations: 12 to 16 (relative error 2^(7-bits)), 32 or 64
    """

    plain: int = 16
    mu: int = 16
    sigma: int = 16

    def __post_init__(self) -> None:
        for name, short in (("plain", SHORT), ("mu", SHORT), ("sigma", POSITIVE)):
            bits = getattr(self, name)
            if type(bits) is not int or not (bits in short or bits in (32, 64)):
                raise ArtifactError(
                    f"precision.{name}: {short[0]} to {short[-1]}, 32 or 64 bits, got {bits!r}"
                )

    @property
    def mu_code(self) -> str:
        return f"h{self.mu}" if self.mu <= 16 else f"f{self.mu // 8}"

    @property
    def sigma_code(self) -> str:
        return f"p{self.sigma}" if self.sigma <= 16 else f"f{self.sigma // 8}"


FLOAT32 = Precision(plain=32, mu=32, sigma=32)


@dataclass(frozen=True, kw_only=True, eq=False)
class Signs:
    """Fixed weights +c and -c."""

    scale: float
    positive: Array  # [fixed] bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Fixed:
    """Weights that are constants.  `mask` is True where a weight is fixed: the mask itself, or a rule for it.

    A rule is a small JSON object; `count` weights are fixed by it.  Whoever wants dense weights passes a
    function that expands it.  `values` are one constant, +-c, or one number for each fixed weight.
    """

    mask: Array | JSON  # [*shape] bool, or a rule
    values: float | Signs | Array  # [fixed]
    count: int = -1  # needed for a rule only

    def __post_init__(self) -> None:
        if not isinstance(self.mask, dict):
            object.__setattr__(self, "count", int(np.count_nonzero(self.mask)))


@dataclass(frozen=True, kw_only=True, eq=False)
class Prior:
    """N(mu, sigma^2) for each free weight."""

    mu: float | Array = 0.0  # [free]
    sigma: float | Array = 1.0  # [free]


@dataclass(frozen=True, kw_only=True, eq=False)
class Plain:
    """Deterministic values; `bits` overrides `Precision.plain`.  Values of type bfloat16 are held in float32."""

    values: Array
    dtype: str = ""
    bits: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", self.dtype or self.values.dtype.name)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape


@dataclass(frozen=True, kw_only=True, eq=False)
class MeanField:
    """Moments of its own for every free weight."""

    shape: tuple[int, ...]
    mu: Array  # [free]
    sigma: Array  # [free]
    dtype: str = "float32"
    fixed: Fixed | None = None
    prior: Prior | None = None


def _none() -> Array:
    return np.zeros(0, np.float32)


@dataclass(frozen=True, kw_only=True, eq=False)
class Shared:
    """Labels into the codebook of K components; K marks an outlier, K + 1 a blended weight.

    The o-th outlier has outlier_mu[o], outlier_sigma[o]; the b-th blended weight mixes `components[b]` with
    weights `alphas[b]`, which sum to one (stored in steps of 1/65535).
    """

    shape: tuple[int, ...]
    labels: Array  # [free] integers
    outlier_mu: Array = field(default_factory=_none)  # [outliers]
    outlier_sigma: Array = field(default_factory=_none)
    components: Array = field(default_factory=lambda: np.zeros((0, 0), np.uint16))  # [blends, k]
    alphas: Array = field(default_factory=lambda: np.zeros((0, 0), np.float32))  # [blends, k]
    dtype: str = "float32"
    fixed: Fixed | None = None
    prior: Prior | None = None


@dataclass(frozen=True, kw_only=True)
class Tied:
    """Another name for an entry."""

    target: str


Entry: TypeAlias = Plain | MeanField | Shared | Tied
Stochastic: TypeAlias = MeanField | Shared


@dataclass(frozen=True, kw_only=True, eq=False)
class Pocket:
    """One model.  `noise`, `architecture`, `options`, `metadata` are JSON; `extras` keep every bit.

    A posterior with several modes has the entries of the first in `tensors`, and those of the others in `others`: the
    same names, kinds, shapes and types.
    """

    tensors: dict[str, Entry]
    codebook: Codebook[Array] | None = None
    noise: JSON = field(default_factory=dict)
    architecture: JSON | str = ""
    options: JSON = field(default_factory=dict)
    metadata: JSON = field(default_factory=dict)
    extras: dict[str, Array] = field(default_factory=dict)
    precision: Precision = field(default_factory=Precision)
    library: str = ""
    graph: bytes = b""  # as artifact/graph.py packs it; empty without
    others: tuple[dict[str, Entry], ...] = ()

    @property
    def modes(self) -> list[dict[str, Entry]]:
        """The entries of every mode."""
        return [self.tensors, *self.others]

    def mode(self, number: int) -> Pocket:
        """The posterior of mode `number` alone."""
        return replace(self, tensors=self.modes[number], others=())


def size_of(entry: Stochastic | Plain) -> int:
    """Number of elements, fixed ones included."""
    return math.prod(entry.shape)


def free_of(entry: Stochastic) -> int:
    """Number of free weights."""
    return size_of(entry) - (entry.fixed.count if entry.fixed is not None else 0)


def free_shape(entry: Stochastic) -> tuple[int, ...]:
    """Of the moments of free weights: flat if some of the tensor are fixed, else the tensor's own."""
    return entry.shape if entry.fixed is None else (free_of(entry),)


def resolve(pocket: Pocket, name: str) -> Plain | MeanField | Shared:
    """The entry a name stands for, through a tie."""
    entry = pocket.tensors[name]
    if isinstance(entry, Tied):
        owner = pocket.tensors.get(entry.target)
        if owner is None or isinstance(owner, Tied):
            raise ArtifactError(f"{name}: tied to {entry.target!r}, which is not an entry of its own")
        return owner
    return entry


def check(pocket: Pocket) -> None:
    """Raise ArtifactError, with the tensor's name, if the parts do not fit each other."""
    if pocket.codebook is not None:
        book = pocket.codebook
        if not 1 <= book.components <= MAX_CODEBOOK:
            raise ArtifactError(f"codebook: 1 to {MAX_CODEBOOK} components, got {book.components}")
        check_moments(*book, book.components, "codebook")
    _check_modes(pocket)
    for number in range(len(pocket.modes)):
        _check_tensors(pocket.mode(number))
    for name, array in pocket.extras.items():
        if array.dtype.name not in DTYPES:
            raise ArtifactError(f"extras[{name!r}]: cannot store the type {array.dtype.name!r}")


def _check_modes(pocket: Pocket) -> None:
    """All modes have the entries of the first, but for their numbers."""
    if len(pocket.modes) > MOST_MODES:
        raise ArtifactError(f"{len(pocket.modes)} modes, at most {MOST_MODES}")
    first = _kinds(pocket.tensors)
    for number, tensors in enumerate(pocket.others, 1):
        kinds = _kinds(tensors)
        for name in (*first, *kinds):
            if kinds.get(name) != first.get(name):
                raise ArtifactError(
                    f"{name}: is {kinds.get(name, 'missing')} in mode {number}, {first.get(name, 'missing')} in mode 0"
                )


def _kinds(tensors: dict[str, Entry]) -> dict[str, tuple[Any, ...]]:
    """What modes must agree in, by name."""
    return {
        name: ("tied", entry.target)
        if isinstance(entry, Tied)
        else (type(entry).__name__, entry.shape, entry.dtype)
        for name, entry in tensors.items()
    }


def _check_tensors(pocket: Pocket) -> None:
    for name in pocket.tensors:
        entry = resolve(pocket, name)
        if entry is not pocket.tensors[name]:
            continue  # tied, and checked under its own name
        if entry.dtype not in DTYPES:
            raise ArtifactError(
                f"{name}: cannot store the type {entry.dtype!r}. Convert it to one of {', '.join(DTYPES)}"
            )
        if isinstance(entry, MeanField | Shared):
            _check_stochastic(entry, pocket.codebook, name)


def _check_stochastic(entry: Stochastic, codebook: Codebook[Array] | None, name: str) -> None:
    if not is_float(entry.dtype):
        raise ArtifactError(f"{name}: a random weight is a float, got {entry.dtype!r}")
    if entry.fixed is not None:
        _check_fixed(entry.fixed, entry.shape, name)
        _check_fits(entry.dtype, name, _numbers_of(entry.fixed))
    free = free_of(entry)
    if isinstance(entry, MeanField):
        check_moments(entry.mu, entry.sigma, free, name)
        _check_fits(entry.dtype, name, entry.mu, entry.sigma)
    else:
        _check_shared(entry, codebook, free, name)
        _check_fits(entry.dtype, name, entry.outlier_mu, entry.outlier_sigma, *(codebook or ()))
    if entry.prior is not None:
        _check_prior(entry.prior, free, f"{name}, prior")


def _numbers_of(fixed: Fixed) -> float | Array:
    return fixed.values.scale if isinstance(fixed.values, Signs) else fixed.values


def _check_fits(dtype: str, name: str, *numbers: float | Array) -> None:
    """The tensor's own type must hold its numbers."""
    most = np.finfo(np.float32 if dtype == "bfloat16" else dtype).max
    for values in numbers:
        if np.abs(values).max(initial=0.0) > np.float64(most):
            raise ArtifactError(
                f"{name}: {np.abs(values).max():g} is infinite in {dtype}. Save it in float32"
            )


def _check_prior(prior: Prior, free: int, where: str) -> None:
    for part in (prior.mu, prior.sigma):
        if isinstance(part, np.ndarray) and part.shape != (free,):
            raise ArtifactError(f"{where}: one number, or {free} of them, got {part.shape}")
    _require_sound(np.atleast_1d(prior.mu), np.atleast_1d(prior.sigma), where)


def check_moments(mu: Array, sigma: Array, size: int, where: str) -> None:
    """Finite means and positive, finite standard deviations, `size` of each."""
    if mu.shape != (size,) or sigma.shape != (size,):
        raise ArtifactError(
            f"{where}: mu and sigma must be flat with {size} numbers, got {mu.shape} and {sigma.shape}"
        )
    _require_sound(mu, sigma, where)


def _require_sound(mu: Array, sigma: Array, where: str) -> None:
    with np.errstate(invalid="ignore"):  # a NaN of the signalling kind warns where it is compared
        bad, bad_sigma = ~(np.abs(mu) <= LARGEST), ~((sigma > 0) & (sigma <= LARGEST))
    if bad.any():
        raise ArtifactError(f"{where}: mu must be finite and within 2^127, got {mu[bad][0]} at {_first(bad)}")
    if bad_sigma.any():
        raise ArtifactError(
            f"{where}: sigma must be positive and within 2^127, got {sigma[bad_sigma][0]} at {_first(bad_sigma)}"
        )


def _first(bad: Array) -> int:
    return int(np.flatnonzero(bad)[0])


def _check_fixed(fixed: Fixed, shape: tuple[int, ...], name: str) -> None:
    size = math.prod(shape)
    if not isinstance(fixed.mask, dict) and (fixed.mask.shape != shape or fixed.mask.dtype != bool):
        raise ArtifactError(
            f"{name}: a fixed mask must be bool {shape}, got {fixed.mask.dtype} {fixed.mask.shape}"
        )
    if not 0 <= fixed.count <= size:
        raise ArtifactError(
            f"{name}: {fixed.count} of {size} weights cannot be fixed. Give count= with a rule"
        )
    values = fixed.values
    array = values.positive if isinstance(values, Signs) else values
    if isinstance(array, np.ndarray) and array.shape != (fixed.count,):
        raise ArtifactError(f"{name}: {fixed.count} fixed weights, but values for {array.shape}")
    if not np.isfinite(_numbers_of(fixed)).all():
        raise ArtifactError(f"{name}: the value of a fixed weight is not finite")


def _check_shared(entry: Shared, codebook: Codebook[Array] | None, free: int, name: str) -> None:
    if codebook is None:
        raise ArtifactError(f"{name}: shared weights need a codebook, and the pocket has none")
    k, labels = codebook.components, entry.labels
    if labels.shape != (free,) or labels.dtype.kind not in "iu":
        raise ArtifactError(f"{name}: labels must be {free} integers, got {labels.dtype} {labels.shape}")
    if free and not 0 <= int(labels.min()) <= int(labels.max()) <= k + 1:
        raise ArtifactError(f"{name}: labels must lie in 0..{k + 1}, got {labels.min()}..{labels.max()}")
    outliers, blends = int(np.count_nonzero(labels == k)), int(np.count_nonzero(labels == k + 1))
    check_moments(entry.outlier_mu, entry.outlier_sigma, outliers, f"{name}, outliers")
    ids, alphas = entry.components, entry.alphas
    if ids.ndim != 2 or ids.shape != alphas.shape or len(ids) != blends:
        raise ArtifactError(
            f"{name}: {blends} blended weights, got components {ids.shape} and alphas {alphas.shape}"
        )
    if not blends:
        return
    if not 1 <= ids.shape[1] <= MAX_BLEND:
        raise ArtifactError(f"{name}: a blend has 1 to {MAX_BLEND} components, got {ids.shape[1]}")
    if not 0 <= int(ids.min()) <= int(ids.max()) < k:
        raise ArtifactError(f"{name}: blended components must lie in 0..{k - 1}")
    if not (np.isfinite(alphas).all() and (alphas >= 0).all() and np.allclose(alphas.sum(1), 1.0, atol=1e-3)):
        raise ArtifactError(f"{name}: alphas of a blend must be at least 0 and sum to 1")
