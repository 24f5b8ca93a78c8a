"""What the noise experiments have in common: the measured device and other shapes of noise, intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from pocketbayes.noise import (
    Bimodal,
    Laplace,
    Law,
    QuantileTable,
    SkewNormal,
    StudentT,
    TwoPoint,
    Uniform,
    fit_noise,
)

# Of seven runs the one whose pooled shape is farthest from Gaussian.  The columns before are address and voltages.
RUN, READS = "target100_120_readfix", slice(3, None)


class Between(NamedTuple):
    """A difference of means with the half width of its 95 % interval."""

    mean: float
    half: float


def interval(a: Any, b: Any) -> Between:
    """mean(a) - mean(b) of independent repeats, each [R]: Welch's interval."""
    from scipy.special import stdtrit

    x, y = torch.as_tensor(a).double(), torch.as_tensor(b).double()
    parts = [float(v.var()) / len(v) for v in (x, y)]
    freedom = sum(parts) ** 2 / max(
        sum(p**2 / (len(v) - 1) for p, v in zip(parts, (x, y), strict=True)), 1e-300
    )
    return Between(
        float(x.mean() - y.mean()), float(stdtrit(max(freedom, 1.0), 0.975)) * math.sqrt(sum(parts))
    )


def mean_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error."""
    return float(np.mean(values)), float(np.std(values, ddof=1) / math.sqrt(len(values)))


def measured_device(path: str | Path) -> QuantileTable:
    """The read noise of resistive memory, every cell standardised, the shapes pooled: quantiles of 202 101 reads."""
    with np.load(path) as runs:
        return QuantileTable.of(fit_noise(runs[RUN][:, READS]).cells.z.ravel(), size=2048)


def laws(device: Path) -> dict[str, Law]:
    """The shapes that are compared with a Gaussian."""
    return {
        "bimodal 0.9": Bimodal(0.9),
        "signs": TwoPoint(),
        "uniform": Uniform(),
        "Laplace": Laplace(),
        "Student-t 5": StudentT(5.0),
        "Student-t 3": StudentT(3.0),
        "skew-normal 10": SkewNormal(10.0),
        "measured RRAM": measured_device(device),
    }


def moments(law: Law) -> list[float | None]:
    """Skewness and excess kurtosis, None where there is none."""
    return [x if math.isfinite(x) else None for x in (law.skewness(), law.excess_kurtosis())]


def in_short(values: Sequence[float | None]) -> str:
    return ", ".join("none" if x is None else f"{x:.2f}" for x in values)
