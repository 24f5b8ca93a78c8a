"""The data that a command is told to use."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import typer

from pocketbayes.cli.imports import call, function_at, is_path_to_function
from pocketbayes.cli.options import DataSource, TrainingData
from pocketbayes.data.scaling import Scaling
from pocketbayes.runs import ranks

if TYPE_CHECKING:
    from pocketbayes.artifact.card import Card
    from pocketbayes.data import BatchLoader, DataSet, Examples


class Data:
    """The splits of a data set, read when they are asked for; scaled as a card says, else as `given` says."""

    def __init__(self, spec: str, given: DataSource = DataSource(), card: Card | None = None) -> None:
        self.spec, self._given, self._card = spec, given, card

    @cached_property
    def train(self) -> DataSet:
        return in_tensors(self.split("train"))

    @cached_property
    def test(self) -> DataSet:
        return in_tensors(self.split("test"))

    @cached_property
    def _own(self) -> tuple[Examples, Examples] | None:
        """What the user's function returned."""
        if not is_path_to_function(self.spec):
            return None
        from pocketbayes.data.splits import splits_from

        found = call(function_at(self.spec, "--data"), self.spec, "--data")
        return splits_from(self.spec.partition(":")[2], found)

    def split(self, split: str) -> Examples:
        """The training or the test split, as arrays."""
        from pocketbayes.data.sets import read_set

        if self._own is not None:
            return self._scaled(self._own[split == "test"])
        source = self._given
        read = partial(read_set, image_size=source.image_size, csv_targets=source.targets)
        return self._scaled(ranks.once(lambda: read(self.spec, source.folder, split)))

    def _scaled(self, data: Examples) -> Examples:
        """With the scaling of the file, else of the command line, else of the data."""
        scaling, targets = data.scaling, data.target_scaling
        if self._card is not None:
            scaling, targets = self._card.scaling, self._card.target_scaling or targets
        if isinstance(given := self._given, TrainingData) and given.mean is not None:
            in_bytes = str(data.x.dtype).endswith("uint8") and data.scaling.full == 1.0
            full = 255.0 if in_bytes else data.scaling.full
            scaling = Scaling(np.array(given.mean), np.array(given.std), full)
        channels = data.shape[0] if data.shape else 1
        if scaling.mean.size not in (1, channels):
            raise ValueError(
                f"{data.name}: {scaling.mean.size} means for inputs of {channels} channels. "
                "Give --mean and --std one number for each channel."
            )
        known = None if targets is None else targets.rounded()
        return replace(data, scaling=scaling.rounded(), target_scaling=known)


def in_tensors(data: Examples) -> DataSet:
    """For work in torch."""
    from pocketbayes.data import DataSet

    return data if isinstance(data, DataSet) else DataSet.of(data)


def test_data(spec: str, source: DataSource, card: Card, file: Path) -> Examples:
    """The test split for a file, which must have been made for data of this kind."""
    test = Data(spec, source, card).split("test")
    card.require_fit(file, test)
    return test


def ood_data(spec: str, folder: Path | None, card: Card) -> Examples:
    """Another data set, scaled as the network expects its inputs."""
    if card.classes is None:
        raise typer.BadParameter("--ood ranks inputs by the entropy of their classes; this is a regression")
    data = Data(spec, DataSource(folder=folder), card).split("test")
    if data.shape != card.shape:
        raise ValueError(f"--ood {spec}: inputs of shape {data.shape}, the network takes {card.shape}.")
    return data


def require_calibratable(alpha: float | None, validation: DataSet | None) -> None:
    """Prediction sets need validation data, and the more of them the rarer a miss may be."""
    if alpha is None:
        return
    from pocketbayes.prediction.conformal import rank_of_quantile

    if validation is None:
        raise typer.BadParameter("--alpha needs validation data: --validation must be above 0")
    try:
        rank_of_quantile(len(validation), alpha)
    except ValueError as error:
        raise typer.BadParameter(f"--alpha: {error}") from error


def divided(data: Data, given: TrainingData, seed: int) -> tuple[DataSet, DataSet | None]:
    """(training, validation) out of the training split; the test split is not touched."""
    from pocketbayes.data import hold_out

    return hold_out(data.train, given.validation, seed) if given.validation else (data.train, None)


def training_batches(data: DataSet, given: TrainingData) -> BatchLoader:
    from pocketbayes.data import crop_flip

    if given.augment and data.x.ndim != 4:
        raise typer.BadParameter(f"--augment is for images; an input of {data.name} has shape {data.shape}")
    augment = crop_flip if given.augment else None
    return data.batches(min(given.batch_size, len(data)), shuffle=True, augment=augment)
