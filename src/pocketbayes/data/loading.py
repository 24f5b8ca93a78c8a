"""Data sets in tensors."""

from __future__ import annotations

from pathlib import Path

from pocketbayes.data.batches import DataSet
from pocketbayes.data.scaling import Scaling
from pocketbayes.data.sets import read_set


def load(
    source: str | Path,
    folder: str | Path | None = None,
    split: str = "train",
    *,
    download: bool = True,
    image_size: tuple[int, int] | None = None,
    csv_targets: int = 1,
    scaling: Scaling | None = None,
) -> DataSet:
    """One split, "train" or "test", of a data set named in NAMES, or in a .npz, a .csv or a folder of images.

    The arguments are those of `sets.read_set`, which needs no torch.
    """
    found = read_set(
        source,
        folder,
        split,
        download=download,
        image_size=image_size,
        csv_targets=csv_targets,
        scaling=scaling,
    )
    return DataSet.of(found)
