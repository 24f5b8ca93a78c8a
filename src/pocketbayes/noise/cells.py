"""Readings of one or many cells, standardised cell by cell so that their shapes can be pooled."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pocketbayes.arrays import Array, to_numpy

_FEWEST_READS = 50


class Cells(NamedTuple):
    """Standardised reads, and what was divided out."""

    z: Array  # [cells, reads], every row of zero mean and unit variance
    mu: Array  # [cells]
    sigma: Array  # [cells]
    constant: int  # cells left out because their reads never differ

    @property
    def skewness(self) -> Array:
        """Of every cell, [cells]."""
        return np.asarray((self.z**3).mean(1))

    @property
    def excess_kurtosis(self) -> Array:
        """Of every cell, [cells]."""
        return np.asarray((self.z**4).mean(1) - 3)

    @property
    def autocorrelation(self) -> Array:
        """Between consecutive reads of every cell, [cells]; near zero for independent reads."""
        return np.asarray((self.z[:, 1:] * self.z[:, :-1]).mean(1))


def standardise(samples: Any) -> Cells:
    """Readings [reads] or [cells, reads] as `Cells`; errors say what is wrong with them."""
    reads = np.atleast_2d(to_numpy(samples).astype(np.float64))
    if reads.ndim != 2:
        raise ValueError(f"readings: needs [reads] or [cells, reads], got shape {reads.shape}.")
    if not np.isfinite(reads).all():
        cell, read = np.argwhere(~np.isfinite(reads))[0]
        count = int((~np.isfinite(reads)).sum())
        raise ValueError(
            f"readings: {count} are NaN or infinite, the first is read {read} of cell {cell}. Remove them."
        )
    if reads.shape[1] < _FEWEST_READS:
        raise ValueError(
            f"readings: {reads.shape[1]} reads per cell do not show a shape. Give at least {_FEWEST_READS}; "
            "rows are cells and columns are reads, so perhaps transpose."
        )
    mu, sigma = reads.mean(1), reads.std(1)
    varied = sigma > 1e-12 * np.maximum(np.abs(mu), 1e-300)
    if not varied.any():
        raise ValueError(f"readings: all {reads.size} are constant, cell by cell. There is no noise to fit.")
    z = (reads[varied] - mu[varied, None]) / sigma[varied, None]
    return Cells(z, mu[varied], sigma[varied], int((~varied).sum()))
