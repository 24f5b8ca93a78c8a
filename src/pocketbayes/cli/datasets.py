"""The data that a command is told to use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from pocketbayes.cli.imports import call, function_at, is_path_to_function

if TYPE_CHECKING:
    from torch import Tensor

    from pocketbayes.data import BatchLoader, DataSet, Scaling

DIGITS = 6  # significant digits of a scaling: it is written into files, and is used as it is written


class Request(NamedTuple):
    """`--data` and what belongs to it."""

    spec: str
    folder: Path | None = None
    mean: str | None = None
    std: str | None = None
    image_size: str | None = None
    targets: int = 1


class Data:
    """The splits of a data set, read when they are asked for."""

    def __init__(
        self, request: Request, scaling: Scaling | None = None, targets: Scaling | None = None
    ) -> None:
        self.request, self._scaling, self._targets = request, scaling, targets
        self._given = given_scaling(request)

    @cached_property
    def train(self) -> DataSet:
        return self._split("train")

    @cached_property
    def test(self) -> DataSet:
        return self._split("test")

    @cached_property
    def _own(self) -> tuple[DataSet, DataSet] | None:
        """What the user's function returned."""
        if not is_path_to_function(self.request.spec):
            return None
        function = function_at(self.request.spec, "--data")
        return from_user(self.request.spec, call(function, self.request.spec, "--data"))

    def _split(self, split: str) -> DataSet:
        if self._own is not None:
            data = self._own[split == "test"]
        else:
            from pocketbayes.data import load

            size = image_size(self.request.image_size)
            data = load(
                self.request.spec,
                self.request.folder,
                split,
                image_size=size,
                csv_targets=self.request.targets,
            )
        return self._scaled(data)

    def _scaled(self, data: DataSet) -> DataSet:
        """With the scaling of the command line, else of the pocket file, else of the data."""
        import torch

        scaling = self._scaling or data.scaling
        if self._given is not None:
            full = 255.0 if data.x.dtype == torch.uint8 and data.scaling.full == 1.0 else data.scaling.full
            scaling = scaling._replace(mean=self._given[0], std=self._given[1], full=full)
        targets = self._targets if self._targets is not None else data.target_scaling
        channels = data.shape[0] if data.shape else 1
        if scaling.mean.numel() not in (1, channels):
            raise ValueError(
                f"{data.name}: {scaling.mean.numel()} means for inputs of {channels} channels. "
                "Give --mean and --std one number for each channel."
            )
        return replace(
            data, scaling=rounded(scaling), target_scaling=None if targets is None else rounded(targets)
        )


def requested(spec: str | None, **rest: Any) -> Request:
    """The request, or the complaint that nothing was asked for."""
    if spec is None:
        raise typer.BadParameter("Missing option '--data': a data set's name, a file, a folder or a function")
    return Request(spec, **rest)


def given_scaling(request: Request) -> tuple[Tensor, Tensor] | None:
    """`--mean` and `--std`, which come together."""
    import torch

    if request.mean is None and request.std is None:
        return None
    if request.mean is None or request.std is None:
        raise typer.BadParameter("--mean and --std belong together: give both")
    mean, std = (numbers(text, option) for text, option in ((request.mean, "--mean"), (request.std, "--std")))
    if len(mean) != len(std) or min(std) <= 0:
        raise typer.BadParameter("--mean and --std need as many numbers each, and deviations above zero")
    return torch.tensor(mean), torch.tensor(std)


def numbers(text: str, option: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{option} {text}: write numbers with commas, 0.485,0.456,0.406") from None


def image_size(text: str | None) -> tuple[int, int] | None:
    """`32` or `32x48` as (height, width)."""
    if text is None:
        return None
    parts = text.lower().split("x")
    if not all(part.isdigit() and int(part) > 0 for part in parts) or len(parts) > 2:
        raise typer.BadParameter(f"--image-size {text}: write 32 or 32x48, height and width")
    return int(parts[0]), int(parts[-1])


def rounded(scaling: Scaling) -> Scaling:
    """The scaling to DIGITS digits, so that a file that states it states it exactly."""
    import torch

    mean, std = ([float(f"{v:.{DIGITS}g}") for v in t.tolist()] for t in (scaling.mean, scaling.std))
    return scaling._replace(mean=torch.tensor(mean), std=torch.tensor(std))


# --- validation data and batches -------------------------------------------------------------------------------


def divided(data: Data, fraction: float, seed: int) -> tuple[DataSet, DataSet | None]:
    """(training, validation) out of the training split; the test split is not touched."""
    from pocketbayes.data import hold_out

    return hold_out(data.train, fraction, seed) if fraction else (data.train, None)


def training_batches(data: DataSet, batch_size: int, augment: bool) -> BatchLoader:
    from pocketbayes.data import crop_flip

    if augment and data.x.ndim != 4:
        raise typer.BadParameter(f"--augment is for images; an input of {data.name} has shape {data.shape}")
    return data.batches(min(batch_size, len(data)), shuffle=True, augment=crop_flip if augment else None)


# --- a user's own data -----------------------------------------------------------------------------------------


def from_user(spec: str, found: Any) -> tuple[DataSet, DataSet]:
    """(training, test) from what a function returned: a pair of splits, or a dict with the keys of an npz file.

    A split is a `pocketbayes.data.DataSet`, a pair (x, y) of arrays or tensors, or a torch data set of such pairs.
    Inputs and float targets are used as they are; bytes are scaled like those of any image file.
    """
    name, classes = spec.partition(":")[2], None
    if isinstance(found, Mapping):
        if not {"x_train", "y_train", "x_test", "y_test"} <= set(found):
            raise ValueError(
                f"--data {spec}: a dict needs x_train, y_train, x_test, y_test, got {sorted(found)}."
            )
        classes = found.get("classes")
        found = ((found["x_train"], found["y_train"]), (found["x_test"], found["y_test"]))
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        raise ValueError(
            f"--data {spec}: return (train, test), not {type(found).__name__}. See docs/commands.md."
        )
    from pocketbayes.data import DataSet

    if all(isinstance(split, DataSet) for split in found):
        return found[0], found[1]
    (x, y), (x_test, y_test) = (_pair(spec, split) for split in found)
    if y.is_floating_point() != y_test.is_floating_point() or x.shape[1:] != x_test.shape[1:]:
        raise ValueError(f"--data {spec}: training and test data differ in kind or shape.")
    if not y.is_floating_point() and classes is None:
        classes = range(int(max(y.max(), y_test.max())) + 1)
    names = None if y.is_floating_point() else tuple(str(c) for c in classes or ())
    scaling = _scaling_of(x)
    return tuple(  # type: ignore[return-value]
        DataSet(name=name, x=a, y=b, classes=names, scaling=scaling) for a, b in ((x, y), (x_test, y_test))
    )


def _pair(spec: str, split: Any) -> tuple[Tensor, Tensor]:
    """(x, y) as tensors: float32 or uint8 inputs, int64 labels [N] or float32 targets [N, T]."""
    import torch

    if hasattr(split, "__getitem__") and hasattr(split, "__len__") and not isinstance(split, (tuple, list)):
        items = [split[i] for i in range(len(split))]  # a torch data set
        if items and isinstance(items[0], (tuple, list)) and len(items[0]) == 2:
            split = (
                torch.stack([torch.as_tensor(a) for a, _ in items]),
                torch.as_tensor([b for _, b in items]),
            )
    if not isinstance(split, (tuple, list)) or len(split) != 2:
        raise ValueError(
            f"--data {spec}: a split is (x, y) or a data set of such pairs. See docs/commands.md."
        )
    x, y = (torch.as_tensor(part) for part in split)
    if x.dtype != torch.uint8 or x.ndim != 4:
        x = x.float()
    y = (y.float() if y.ndim > 1 else y.float()[:, None]) if y.is_floating_point() else y.long()
    return x, y


def _scaling_of(x: Tensor) -> Scaling:
    """None for floats; for byte images the mean and deviation of each channel."""
    import torch

    from pocketbayes.data import Scaling

    if x.dtype != torch.uint8:
        return Scaling(torch.zeros(1), torch.ones(1))
    counts = torch.stack([x[:, c].flatten().bincount(minlength=256) for c in range(x.shape[1])]).double()
    share, value = counts / counts.sum(1, keepdim=True), torch.arange(256).double() / 255  # [C, 256], [256]
    mean = share @ value
    std = (share * (value - mean[:, None]).square()).sum(1).sqrt()
    return Scaling(mean.float(), std.clamp_min(1e-6).float(), 255.0)
