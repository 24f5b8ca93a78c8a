"""Inputs to predict from: image files and arrays, as the network of a file takes them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    from pocketbayes.cli.card import Card

Array = NDArray[Any]
_TABLES = {".csv", ".tsv", ".txt"}


class Inputs(NamedTuple):
    """What is asked about."""

    names: list[str]
    x: Tensor  # scaled, [N, *shape]


def read_inputs(paths: list[Path], card: Card) -> Inputs:
    """All inputs of the files, in order; those of an array are named `file[i]`."""
    import torch

    names: list[str] = []
    parts: list[Tensor] = []
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file. Give images, or an array as .npy, .npz or .csv.")
        if path.suffix.lower() in (".npy", ".npz", *_TABLES):
            raw = arranged(path, _read_array(path), card.shape)
            names += [f"{path.name}[{i}]" for i in range(len(raw))]
        else:
            raw = _read_image(path, card)[None]
            names.append(path.name)
        if not np.isfinite(raw).all():
            raise ValueError(f"{path}: has a value that is not finite.")
        parts.append(card.scaling.apply(torch.from_numpy(np.ascontiguousarray(raw, dtype=np.float32))))
    return Inputs(names, torch.cat(parts))


def arranged(path: Path, array: Array, shape: tuple[int, ...]) -> Array:
    """The array as [N, *shape]: one input or many; images may have their channels last, or none if grey."""
    for candidate in (array, array[None]):
        if candidate.shape[1:] == shape:
            return candidate
        if candidate.ndim == 4 and np.moveaxis(candidate, 3, 1).shape[1:] == shape:
            return np.moveaxis(candidate, 3, 1)
        if len(shape) == 3 and shape[0] == 1 and candidate.shape[1:] == shape[1:]:
            return candidate[:, None]
        if candidate.ndim == 2 and candidate.shape[1] == np.prod(shape):
            return candidate.reshape(-1, *shape)
    raise ValueError(f"{path}: an array of shape {array.shape}; the network takes inputs of shape {shape}.")


def _read_array(path: Path) -> Array:
    from pocketbayes.data.formats import npz_arrays

    suffix = path.suffix.lower()
    if suffix == ".npz":
        keys = npz_arrays(path)
        key = next((k for k in ("x", "x_test") if k in keys), next(iter(keys)) if len(keys) == 1 else None)
        if key is None:
            raise ValueError(f"{path}: which array? Name the inputs x; there are {', '.join(keys)}.")
        return _numeric(path, npz_arrays(path, key)[key])
    if suffix in _TABLES:
        return _read_table(path)
    try:
        return _numeric(path, np.load(path, allow_pickle=False))
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path}: not an array of numbers ({error}).") from error


def _read_table(path: Path) -> Array:
    """Rows of numbers, with a line of headings or none."""
    text = path.read_text(encoding="utf-8-sig")
    first = text.partition("\n")[0]
    delimiter = max(",;\t", key=first.count)
    try:
        [float(cell) for cell in first.split(delimiter)]
        skipped = 0
    except ValueError:
        skipped = 1
    try:
        return np.loadtxt(text.splitlines(), delimiter=delimiter, skiprows=skipped, ndmin=2)
    except ValueError as error:
        raise ValueError(f"{path}: {error}. Every cell below the headings must be a number.") from error


def _numeric(path: Path, array: Array) -> Array:
    if array.dtype.kind not in "fiub" or array.ndim == 0:
        raise ValueError(f"{path}: needs an array of numbers, got {array.dtype} of shape {array.shape}.")
    return array


def _read_image(path: Path, card: Card) -> Array:
    """The picture in the network's size and channels, in the raw units of its data: [C, H, W]."""
    if len(card.shape) != 3 or card.shape[0] not in (1, 3):
        raise ValueError(
            f"{path}: the network takes inputs of shape {card.shape}, not images. Give an array."
        )
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise ImportError(f"{path}: reading images needs Pillow. Run `pip install pillow`.") from error
    channels, height, width = card.shape
    try:
        with Image.open(path) as file:
            image = file.convert("L" if channels == 1 else "RGB")
    except (UnidentifiedImageError, OSError) as error:
        raise ValueError(f"{path}: not an image that Pillow can read ({error}).") from error
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(image, dtype=np.float32) * (card.scaling.full / 255)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)
