"""Raw inputs to predict from: image files and arrays, in the shape that a network takes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pocketbayes.data.formats import Array, image_files, npy_array, npz_arrays, open_image, read_numbers

_TABLES = {".csv", ".tsv", ".txt"}


class RawInputs(NamedTuple):
    """What is asked about."""

    names: list[str]
    x: Array  # [N, *shape], in the units of the training data


def read_inputs(paths: Iterable[Path], shape: tuple[int, ...], full: float = 1.0) -> RawInputs:
    """All inputs of the files, in order; a folder stands for its images, those of an array are named `file[i]`.

    `full` is the value of a white pixel in the training data.
    """
    names: list[str] = []
    parts: list[Array] = []
    for path in _files(paths):
        if path.suffix.lower() in (".npy", ".npz", *_TABLES):
            raw = arranged(str(path), _read_array(path), shape)
            names += [f"{path.name}[{i}]" for i in range(len(raw))]
        else:
            raw = _read_picture(path, shape, full)[None]
            names.append(path.name)
        if not np.isfinite(raw).all():
            raise ValueError(f"{path}: has a value that is not finite.")
        parts.append(raw.astype(np.float32))
    return RawInputs(names, np.concatenate(parts))


def _files(paths: Iterable[Path]) -> list[Path]:
    """The files, with every folder's images in its place."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir() and not image_files(path):
            raise ValueError(f"{path}: no images in this folder.")
        if not path.is_dir() and not path.is_file():
            raise FileNotFoundError(f"{path}: no such file. Give images, or an array as .npy, .npz or .csv.")
        found += image_files(path) if path.is_dir() else [path]
    return found


def arranged(where: str, array: Array, shape: tuple[int, ...]) -> Array:
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
    raise ValueError(f"{where}: an array of shape {array.shape}; the network takes inputs of shape {shape}.")


def _read_array(path: Path) -> Array:
    suffix = path.suffix.lower()
    if suffix in _TABLES:
        return read_numbers(path)
    if suffix == ".npy":
        return _numeric(path, npy_array(path))
    keys = npz_arrays(path)
    key = next((k for k in ("x", "x_test") if k in keys), next(iter(keys)) if len(keys) == 1 else None)
    if key is None:
        raise ValueError(f"{path}: which array? Name the inputs x; there are {', '.join(keys)}.")
    return _numeric(path, npz_arrays(path, key)[key])


def _numeric(path: Path, array: Array) -> Array:
    if array.dtype.kind not in "fiub" or array.ndim == 0:
        raise ValueError(f"{path}: needs an array of numbers, got {array.dtype} of shape {array.shape}.")
    return array


def _read_picture(path: Path, shape: tuple[int, ...], full: float) -> Array:
    """The picture in the network's size and channels, in the units of the training data: [C, H, W]."""
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise ValueError(f"{path}: the network takes inputs of shape {shape}, not images. Give an array.")
    channels, height, width = shape
    image = open_image(path, "L" if channels == 1 else "RGB", (height, width))
    pixels = np.asarray(image, dtype=np.float32) * (full / 255)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)
