"""The options that commands share, in groups: names, types, defaults and help in one place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import typer

from pocketbayes.cli.config import read_config
from pocketbayes.cli.settings import argument, option, required
from pocketbayes.compression.size import bytes_of

if TYPE_CHECKING:
    from pocketbayes.posterior.priors import GaussianPrior, InitialSigma, Scale
    from pocketbayes.prediction.answering import Samples

NETWORK, DATA, OUTPUT, BUDGET, PLAN = "Network", "Data", "Output", "Budget: exactly one", "How it works"


class Call(NamedTuple):
    """How a command was called, for the record."""

    line: str = ""  # the shortest command line that says the same
    options: Mapping[str, Any] = {}  # all of them, as JSON


@dataclass(frozen=True, kw_only=True)
class Options:
    """Those of every command."""

    config: Path | None = option(
        None, "Options from a file; the command line wins.", "FILE.toml", is_eager=True, callback=read_config
    )
    as_json: bool = option(
        False, "Print the result as JSON and nothing else.", panel=OUTPUT, names=["--json"]
    )
    debug: bool = option(False, "On an error, show the traceback.")
    call: Call = field(default=Call())


@dataclass(frozen=True, kw_only=True)
class Seeded(Options):
    """Those of every command with random numbers."""

    seed: int = option(0, "All random numbers follow from it.", min=0)


NET_HELP = (
    "package.module:function that builds the network, or a name: digits_net, lenet, resnet20, resnet32, resnet44, "
    "resnet56, mlp:64,64 (hidden widths)."
)


@dataclass(frozen=True, kw_only=True)
class WithNet:
    """A network of the user's own, or of the library."""

    net: str | None = option(
        None, f"{NET_HELP} A file's own network is built only if it is one of these.", "NET", panel=NETWORK
    )


@dataclass(frozen=True, kw_only=True)
class WithFile(WithNet):
    """A file, and the network that it belongs in."""

    file: Path = argument("A pocket file, or the safetensors of `pocketbayes train`.", "FILE")


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """How inputs are answered: one pass, a number of draws, or as many as needed."""

    samples: Samples = option(
        "30",
        "Draws of the network that are averaged; mean: one pass through the means of the weights; auto: as many draws "
        "as each input needs.",
        "N|mean|auto",
        parse=lambda text: samples_from(text),
    )


_DATA_HELP = (
    "digits, diabetes, mnist, fashion-mnist, cifar10, cifar100, svhn; an .npz or .csv file; a folder of images; or "
    "package.module:function."
)


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """Where data are, beside their name."""

    folder: Path | None = option(
        None,
        "Where named data sets are, or go; POCKETBAYES_DATA or ~/.cache/pocketbayes by default.",
        "DIR",
        panel=DATA,
    )
    image_size: tuple[int, int] | None = option(
        None, "Resize the images of a folder to this.", "HxW", panel=DATA, parse=lambda text: image_size(text)
    )
    targets: int = option(1, "Last columns of a CSV to predict.", min=1, panel=DATA)


@dataclass(frozen=True, kw_only=True)
class WithData(DataSource):
    """Data that must be named."""

    data: str = required(_DATA_HELP, "DATA", panel=DATA)


@dataclass(frozen=True, kw_only=True)
class WithNoData(DataSource):
    """Data that may be named."""

    data: str | None = option(None, _DATA_HELP, "DATA", panel=DATA)


@dataclass(frozen=True, kw_only=True)
class WithOod:
    """Out-of-distribution inputs."""

    ood: str | None = option(
        None, "Out-of-distribution inputs, named like --data; labels are not used.", "DATA", panel=DATA
    )


@dataclass(frozen=True, kw_only=True)
class TrainingData(WithData):
    """Data to train on, held-out validation data, and how all of them are scaled."""

    batch_size: int = option(128, "Examples in a batch.", min=1, panel=DATA)
    validation: float = option(
        0.1,
        "Fraction of the training data held out to choose by; 0 for none.",
        "FRACTION",
        min=0.0,
        max=0.9,
        panel=DATA,
    )
    augment: bool = option(False, "Shift and mirror images at random.", panel=DATA)
    mean: list[float] | None = option(
        None,
        "Input mean by channel, pixels from 0 to 1, that the weights were trained with.",
        "M1,M2,...",
        panel=DATA,
        parse=lambda text: numbers(text),
    )
    std: list[float] | None = option(
        None, "Input standard deviation, likewise.", "S1,S2,...", panel=DATA, parse=lambda text: numbers(text)
    )

    def __post_init__(self) -> None:
        if (self.mean is None) != (self.std is None):
            raise ValueError("--mean and --std belong together: give both")
        if self.mean and self.std and (len(self.mean) != len(self.std) or min(self.std) <= 0):
            raise ValueError("--mean and --std need as many numbers each, and --std above zero")


@dataclass(frozen=True, kw_only=True)
class Made(TrainingData, WithNet, Options):
    """A file that is made from data, and judged on its test split."""

    out: Path = required("The file to write.", "FILE", panel=OUTPUT, names=["--out", "-o"])
    restart: bool = option(False, "Begin anew where an unfinished run would be resumed.")
    max_risk: float | None = option(
        None,
        "Fraction of wrong answers allowed among the sure ones, on validation data; half the error rate by default. "
        'Less sure ones are "not sure".',
        "FRACTION",
        min=0.0,
        max=1.0,
    )
    alpha: float | None = option(
        None,
        "Give answers prediction sets, or intervals, that miss the truth with this probability; measured on validation "
        "data.",
        "FRACTION",
        min=0.0,
        max=1.0,
    )
    test_samples: int = option(30, "Draws of the network for the test metrics.", min=1)


# --- what is typed, as what it means -----------------------------------------------------------------------------


def byte_count(text: str | int) -> int:
    """A size as a number of bytes."""
    try:
        return bytes_of(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def samples_from(text: str) -> Samples:
    """`mean`, `auto` or a number of draws."""
    if text == "mean" or text == "auto":
        return text  # type: ignore[return-value]  # narrowed by the comparison
    if not text.isdecimal() or int(text) < 1:
        raise ValueError("write a number of draws, mean or auto")
    return int(text)


def numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError("write numbers with commas, 0.485,0.456,0.406") from None


def whole_numbers(text: str) -> list[int]:
    if not all(part.strip().isdecimal() and int(part) > 0 for part in text.split(",")):
        raise ValueError("write positive whole numbers with commas")
    return [int(part) for part in text.split(",")]


def image_size(text: str) -> tuple[int, int]:
    """`32` or `32x48` as (height, width)."""
    parts = text.lower().split("x")
    if not all(part.isdecimal() and int(part) > 0 for part in parts) or len(parts) > 2:
        raise ValueError("write 32 or 32x48, height and width")
    return int(parts[0]), int(parts[-1])


def scale_from(text: str) -> Scale:
    """`0.2`, `fan-in` or `fan-in:0.5`: a standard deviation, or gain / sqrt(inputs)."""
    from pocketbayes.posterior.scales import FanIn

    name, _, gain = text.partition(":")
    try:
        value = float(gain or 1) if name == "fan-in" else float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError("write a standard deviation such as 0.2, or fan-in, or fan-in:0.5")
    return FanIn(value) if name == "fan-in" else value


def prior_from(text: str) -> GaussianPrior:
    """A scale, for a prior around zero; `pretrained:SCALE`, for one around the given weights."""
    from pocketbayes.posterior.priors import Pretrained, ZeroMean

    name, _, rest = text.partition(":")
    return Pretrained(scale_from(rest or "fan-in")) if name == "pretrained" else ZeroMean(scale_from(text))


def temperature_from(text: str) -> float | Literal["auto"]:
    """A number, at least 0, or `auto`."""
    if text == "auto":
        return "auto"
    value = float(text)
    if not 0 <= value < math.inf:
        raise ValueError("write a number, at least 0, or auto")
    return value


def sigma_from(text: str) -> InitialSigma:
    """`relative:0.1`, `fan-in:0.1` or a number: where the sigmas start."""
    from pocketbayes.posterior.priors import Absolute, FanIn, Relative

    name, _, rest = text.partition(":")
    scale = scale_from(rest or "0.1" if name == "relative" else text)
    if isinstance(scale, FanIn):
        return scale
    return Relative(scale) if name == "relative" else Absolute(scale)
