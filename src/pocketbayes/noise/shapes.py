"""The classic shapes, each scaled to unit variance: uniform, Laplace, logistic, Student-t, skew-normal."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pocketbayes.noise.family import Law, by_numpy
from pocketbayes.noise.gaussian import LOG_SQRT_2PI


def _linear_edges(reach: float, width: float) -> Tensor:
    steps = math.ceil(reach / width)
    return width * torch.arange(-steps, steps + 1, dtype=torch.float64)


def _real(values: Tensor) -> Tensor:
    return torch.complex(values, torch.zeros_like(values))


@dataclass(frozen=True)
class Uniform(Law):
    """z uniform on [-sqrt 3, sqrt 3]."""

    def cdf(self, z: Tensor) -> Tensor:
        return (0.5 + z / math.sqrt(12.0)).clamp(0.0, 1.0)

    def icdf(self, u: Tensor) -> Tensor:
        return (u - 0.5) * math.sqrt(12.0)

    def log_prob(self, z: Tensor) -> Tensor:
        inside = z.abs() <= math.sqrt(3.0)
        return torch.where(inside, z * 0.0 - 0.5 * math.log(12.0), -math.inf)

    def characteristic(self, t: Tensor) -> Tensor:
        return _real(torch.sinc(t * (math.sqrt(3.0) / math.pi)))

    def edges(self) -> Tensor:
        return math.sqrt(3.0) * torch.linspace(-1, 1, 5, dtype=torch.float64)

    def support(self) -> tuple[float, float]:
        return -math.sqrt(3.0), math.sqrt(3.0)

    def kinks(self) -> tuple[float, ...]:
        return self.support()

    def entropy(self) -> float:
        return 0.5 * math.log(12.0)


@dataclass(frozen=True)
class Laplace(Law):
    """f(z) = exp(-sqrt 2 |z|) / sqrt 2."""

    def cdf(self, z: Tensor) -> Tensor:
        tail = 0.5 * (-math.sqrt(2.0) * z.abs()).exp()
        return torch.where(z < 0, tail, 1 - tail)

    def icdf(self, u: Tensor) -> Tensor:
        return torch.where(u < 0.5, (2 * u).log(), -(2 * (1 - u)).log()) / math.sqrt(2.0)

    def log_prob(self, z: Tensor) -> Tensor:
        return -math.sqrt(2.0) * z.abs() - 0.5 * math.log(2.0)

    def characteristic(self, t: Tensor) -> Tensor:
        return _real(1 / (1 + 0.5 * t.square()))

    def edges(self) -> Tensor:
        return _linear_edges(96.0, 4.0)

    def kinks(self) -> tuple[float, ...]:
        return (0.0,)

    def entropy(self) -> float:
        return 1 + 0.5 * math.log(2.0)


@dataclass(frozen=True)
class Logistic(Law):
    """F(z) = 1 / (1 + exp(-z / s)), s = sqrt 3 / pi."""

    def cdf(self, z: Tensor) -> Tensor:
        return torch.sigmoid(z * (math.pi / math.sqrt(3.0)))

    def icdf(self, u: Tensor) -> Tensor:
        return torch.logit(u) * (math.sqrt(3.0) / math.pi)

    def log_prob(self, z: Tensor) -> Tensor:
        x = z.abs() * (math.pi / math.sqrt(3.0))
        return -x - 2 * torch.log1p((-x).exp()) + math.log(math.pi / math.sqrt(3.0))

    def characteristic(self, t: Tensor) -> Tensor:
        x = math.sqrt(3.0) * t.abs()  # x / sinh x
        return _real(torch.where(x < 1e-8, 1.0, 2 * x * (-x).exp() / -torch.expm1(-2 * x.clamp_min(1e-300))))

    def edges(self) -> Tensor:
        return _linear_edges(72.0, 2.0)

    def entropy(self) -> float:
        return 2 + 0.5 * math.log(3.0) - math.log(math.pi)


@dataclass(frozen=True)
class StudentT(Law):
    """Student's t with df > 2 degrees of freedom, divided by its standard deviation sqrt(df / (df - 2))."""

    df: float

    def __post_init__(self) -> None:
        if not 2 < self.df < math.inf:
            raise ValueError(
                f"StudentT: df must exceed 2, got {self.df}: at 2 or fewer the variance is infinite, at infinity the "
                "law is Gaussian()."
            )

    @property
    def _scale(self) -> float:
        return math.sqrt((self.df - 2) / self.df)

    def cdf(self, z: Tensor) -> Tensor:
        from scipy.special import stdtr

        return by_numpy(lambda x: stdtr(self.df, x / self._scale), z)

    def icdf(self, u: Tensor) -> Tensor:
        from scipy.special import stdtrit

        return by_numpy(lambda p: stdtrit(self.df, p) * self._scale, u)

    def log_prob(self, z: Tensor) -> Tensor:
        df = self.df
        gammas = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log((df - 2) * math.pi)
        return gammas - (df + 1) / 2 * torch.log1p(z.square() / (df - 2))

    def skewness(self) -> float:
        return 0.0 if self.df > 3 else math.nan

    def excess_kurtosis(self) -> float:
        return 6 / (self.df - 4) if self.df > 4 else math.inf

    def characteristic(self, t: Tensor) -> Tensor:
        from scipy.special import gammaln, kve, xlogy

        half = self.df / 2
        x = (t.abs().double() * math.sqrt(self.df - 2)).clamp_min(1e-12).numpy()
        log = xlogy(half, x / 2) + math.log(2) - gammaln(half) - x  # (x/2)^half K_half(x) 2 / Gamma(half)
        return _real(torch.from_numpy(kve(half, x)).log().add(torch.from_numpy(log)).exp().clamp_max(1.0))

    def edges(self) -> Tensor:
        """Panels of width 2 in the middle; beyond, and around the poles at +-i sqrt(df - 2), doubling widths."""
        core = math.sqrt(self.df - 2) * torch.exp2(torch.arange(-2, 6, dtype=torch.float64))
        far = torch.exp2(torch.arange(4, 460, dtype=torch.float64))
        positive = torch.cat([torch.arange(2, 16, 2, dtype=torch.float64), core[core < 1e6], far]).unique()
        return torch.cat([-positive.flip(0), torch.zeros(1, dtype=torch.float64), positive])

    def moment_order(self) -> float:
        return self.df

    def entropy(self) -> float:
        from scipy.special import betaln, digamma

        half = (self.df + 1) / 2
        plain = (
            half * (digamma(half) - digamma(self.df / 2)) + 0.5 * math.log(self.df) + betaln(self.df / 2, 0.5)
        )
        return float(plain + math.log(self._scale))


@dataclass(frozen=True)
class SkewNormal(Law):
    """z = (x - E x) / sd x with density 2 phi(x) Phi(alpha x) for x: skewed to the sign of alpha."""

    alpha: float

    def __post_init__(self) -> None:
        if not -1e4 < self.alpha < 1e4:
            raise ValueError(
                f"SkewNormal: alpha must lie strictly between -1e4 and 1e4, got {self.alpha}. "
                "Its skewness saturates at +-0.995."
            )

    @property
    def _delta(self) -> float:
        return self.alpha / math.hypot(1.0, self.alpha)

    @property
    def _mean(self) -> float:
        return self._delta * math.sqrt(2 / math.pi)

    @property
    def _sd(self) -> float:
        return math.sqrt(1 - self._mean**2)

    def cdf(self, z: Tensor) -> Tensor:
        from scipy.special import ndtr, owens_t

        def of_x(values: object) -> object:
            x = values * self._sd + self._mean  # type: ignore[operator]
            return ndtr(x) - 2 * owens_t(x, self.alpha)

        return by_numpy(of_x, z).clamp(0.0, 1.0)

    def icdf(self, u: Tensor) -> Tensor:
        return self.invert(u, -40.0, 40.0)

    def log_prob(self, z: Tensor) -> Tensor:
        x = z * self._sd + self._mean
        switched: Tensor = torch.special.log_ndtr(self.alpha * x)
        return switched - 0.5 * x.square() + (math.log(2 * self._sd) - LOG_SQRT_2PI)

    def characteristic(self, t: Tensor) -> Tensor:
        from scipy.special import dawsn

        s = t.double() / self._sd
        even = (-0.5 * s.square()).exp()
        # e^(-s^2/2) erfi(delta s / sqrt 2), written with Dawson's integral so that nothing overflows
        damped = (-0.5 * (1 - self._delta**2) * s.square()).exp() * (2 / math.sqrt(math.pi))
        odd = damped * by_numpy(dawsn, s * (self._delta / math.sqrt(2)))
        return torch.complex(even, odd) * torch.exp(-1j * self._mean * s)

    def edges(self) -> Tensor:
        """Panels of unit width in x, refined where Phi(alpha x) switches on."""
        switch = torch.cat([torch.arange(0.5, 4, 0.5), torch.exp2(torch.arange(2, 20))]).double()
        switch = switch / max(abs(self.alpha), 0.25)
        switch = switch[switch < 16]
        x = torch.cat([_linear_edges(16.0, 1.0), switch, -switch]).unique()
        z: Tensor = (x - self._mean) / self._sd
        return z
