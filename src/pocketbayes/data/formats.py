"""Readers of public file formats, to numpy: images are uint8 [N, C, H, W], features float [N, D]."""

from __future__ import annotations

import gzip
import itertools
import math
import tarfile
import warnings
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.Image import Image

Array = NDArray[Any]
IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}
_IDX_UBYTE = 8
_INFLATED, _RATIO = 1 << 27, 20  # bytes that a compressed file may unfold to, or so many times its own size
_UNREADABLE = (FileNotFoundError, PermissionError, IsADirectoryError)  # said by the system well enough
_PIXELS, _SIDE = 24_000_000, 1 << 16  # of a picture: 96 MB in colour, as Pillow holds it


class _TooLarge(ValueError):
    """A picture whose pixels nobody should unfold."""


class Arrays(NamedTuple):
    """Inputs and targets of the same length."""

    x: Array
    y: Array


def read_idx(path: Path) -> Array:
    """The uint8 array in an idx file (MNIST), gzipped or not: 0, 0, type, ndim, big-endian sizes, bytes."""
    try:
        with path.open("rb") as file:
            data = _bounded(gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file, path)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: not a whole gzip file ({error}). Remove it and run again.") from error
    if len(data) < 4 or data[:3] != bytes([0, 0, _IDX_UBYTE]):
        raise ValueError(f"{path}: not an idx file of unsigned bytes, it starts with {data[:4].hex()}.")
    start = 4 + 4 * data[3]
    shape = tuple(int.from_bytes(data[i : i + 4], "big") for i in range(4, start, 4))
    if len(data) != start + math.prod(shape):
        raise ValueError(f"{path}: {len(data)} bytes for shape {shape}. The file is cut short or damaged.")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def _bounded(file: Any, path: Path, size: int | None = None) -> bytes:
    """The rest of a stream, or `size` bytes of it, if that is no more than a file as long as this one may unfold to."""
    limit = max(_INFLATED, _RATIO * path.stat().st_size)
    data: bytes = file.read(limit + 1 if size is None else min(size, limit + 1))
    if len(data) > limit:
        raise ValueError(f"{path}: unfolds to more than {limit:,} bytes. It is not what its name says.")
    return data


def read_cifar(path: Path, members: Sequence[str], label_bytes: int) -> Arrays:
    """Images and labels from the binary version of CIFAR: its tar.gz, or the folder that comes out of it.

    A record is `label_bytes` labels, the last of which is the one wanted (CIFAR-100 has coarse, then fine),
    and 3 x 32 x 32 pixels.
    """
    record = label_bytes + 3 * 32 * 32
    blobs = _tar_members(path, members) if path.is_file() else [(path / m).read_bytes() for m in members]
    for member, blob in zip(members, blobs, strict=True):
        if not blob or len(blob) % record:
            raise ValueError(
                f"{path}: {member} has {len(blob)} bytes, not a multiple of the record of {record}."
            )
    rows = np.concatenate([np.frombuffer(blob, np.uint8) for blob in blobs]).reshape(-1, record)
    return Arrays(rows[:, label_bytes:].reshape(-1, 3, 32, 32), rows[:, label_bytes - 1].astype(np.int64))


def _tar_members(path: Path, members: Sequence[str]) -> list[bytes]:
    """The contents of the named files of an archive, in whatever folder; nothing is unpacked to disk."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path) as archive:
            for entry in archive:
                file = archive.extractfile(entry) if Path(entry.name).name in members else None
                if file is not None:
                    found[Path(entry.name).name] = _bounded(file, path, entry.size)
    except _UNREADABLE:
        raise
    except Exception as error:  # tarfile lets anything through that a damaged archive provokes
        raise ValueError(f"{path}: not a whole tar archive ({error}). Remove it and run again.") from error
    if missing := [member for member in members if member not in found]:
        raise ValueError(f"{path}: no {', '.join(missing)} inside. Is it the binary version of CIFAR?")
    return [found[member] for member in members]


def read_svhn(path: Path) -> Arrays:
    """SVHN's cropped digits (.mat): X [32, 32, 3, N], y 1..10 with 10 for the digit 0."""
    from scipy.io import loadmat

    try:
        content = loadmat(path, variable_names=["X", "y"])
        return Arrays(content["X"].transpose(3, 2, 0, 1), content["y"].reshape(-1).astype(np.int64) % 10)
    except Exception as error:  # scipy's reader lets anything through that a damaged file provokes
        raise ValueError(f"{path}: not a .mat file with X [32, 32, 3, N] and y ({error}).") from error


def read_csv(path: Path, targets: int = 1) -> Arrays:
    """Numbers split by comma, semicolon or tab, header or none; the last `targets` columns are y."""
    table = read_numbers(path)
    if not 0 < targets < table.shape[1]:
        raise ValueError(f"{path}: {table.shape[1]} columns cannot hold {targets} targets and an input.")
    if not np.isfinite(table).all():
        row, column = np.argwhere(~np.isfinite(table))[0]
        raise ValueError(f"{path}: data row {row + 1}, column {column + 1} is {table[row, column]}.")
    return Arrays(table[:, :-targets], table[:, -targets:])


def read_numbers(path: Path) -> Array:
    """Rows of numbers split by comma, semicolon or tab, with a line of headings or none: float64 [N, D]."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            first = file.readline()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a table of text ({error}). Save it as CSV in UTF-8.") from error
    delimiter = max(",;\t", key=first.count)
    header = not all(_is_number(cell) for cell in first.split(delimiter))
    try:
        with path.open(encoding="utf-8-sig") as file:
            rows = [line for line in itertools.islice(file, int(header), None) if line.strip()]
        if not rows:
            raise ValueError("no row of numbers")
        return np.loadtxt(rows, delimiter=delimiter, ndmin=2)
    except ValueError as error:
        raise ValueError(
            f"{path}: {str(error)[:200]}. Every cell below the header must be a number."
        ) from error


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def npz_arrays(path: Path, *keys: str) -> dict[str, Array]:
    """Arrays of an npz file by key; without keys, all keys and nothing read.  Pickled objects are refused."""
    try:
        with ZipFile(path) as archive:
            members = {m.filename.removesuffix(".npy"): m for m in archive.infolist()}
            if not keys:
                return dict.fromkeys(members, np.empty(0))
            for m in (members[key] for key in keys):
                if m.file_size > max(_INFLATED, _RATIO * m.compress_size):
                    raise ValueError(f"{m.filename} unfolds to {m.file_size:,} bytes")
            return {key: _whole_array(archive.open(members[key]), members[key].file_size) for key in keys}
    except _UNREADABLE:
        raise
    except Exception as error:  # zipfile and numpy let anything through that a damaged file provokes
        raise ValueError(f"{path}: not an npz file of plain arrays ({error}).") from error


def npy_array(path: Path) -> Array:
    """The array in an npy file.  Pickled objects are refused."""
    try:
        return _whole_array(path.open("rb"), path.stat().st_size)
    except _UNREADABLE:
        raise
    except Exception as error:  # numpy evaluates a header as a Python literal, which may fail in many ways
        raise ValueError(f"{path}: not an array of numbers ({error}).") from error


def _whole_array(file: IO[bytes], size: int) -> Array:
    """The array of a stream of `size` bytes, once its header is found to promise no more than these."""
    with file:
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in read:
            raise ValueError(f"npy version {version}")
        shape, _, dtype = read[version](file)
        if dtype.hasobject or min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > size:
            raise ValueError(f"its header promises {dtype} of shape {shape}, it has {size:,} bytes")
        file.seek(0)
        array = np.lib.format.read_array(file, allow_pickle=False)
    if dtype.kind == "U":  # any 32 bits may pass for a character
        "".join(array.reshape(-1).tolist()).encode()
    return array


def tidy(path: Path, x: Array, y: Array) -> Arrays:
    """Channels first for images, float32 for features; int64 [N] for labels, float32 [N, T] for targets."""
    for what, values in (("inputs", x), ("targets", y)):
        if values.dtype.kind not in "fiub" or not values.ndim:
            raise ValueError(
                f"{path}: {what} must be arrays of numbers, got {values.dtype} of shape {values.shape}."
            )
    if len(x) != len(y) or len(x) == 0:
        raise ValueError(f"{path}: {len(x)} inputs and {len(y)} targets.")
    if x.ndim == 4:
        if x.shape[3] not in (1, 3, 4):
            raise ValueError(
                f"{path}: images must be [N, H, W] or [N, H, W, C] with C of 1, 3 or 4, got {x.shape}."
                + (" Channels come last: save x.transpose(0, 2, 3, 1)." if x.shape[1] in (1, 3, 4) else "")
            )
        one = x.shape[3] == 1  # a transposed array of one channel would pass for channels-last in torch
        x = x.reshape(len(x), 1, *x.shape[1:3]) if one else x.transpose(0, 3, 1, 2)
    elif x.ndim == 3 and x.dtype == np.uint8:
        x = x[:, None]
    if np.issubdtype(y.dtype, np.integer):
        labels = y.reshape(len(y), -1)
        if labels.shape[1] != 1:
            raise ValueError(f"{path}: labels must be [N], got {y.shape}. Save regression targets as floats.")
        return floats(path, Arrays(x, labels[:, 0].astype(np.int64)))
    return floats(path, Arrays(x, y))


def floats(path: Path, arrays: Arrays) -> Arrays:
    """Everything but byte images and labels as float32, with at least one feature dimension, and finite."""

    def convert(what: str, values: Array) -> Array:
        values = (
            values.astype(np.float32).reshape(len(values), -1)
            if values.ndim < 2
            else values.astype(np.float32)
        )
        if not np.isfinite(values).all():
            row = np.argwhere(~np.isfinite(values))[0][0]
            raise ValueError(f"{path}: {what} has a value that is not finite in row {row}.")
        return values

    x = arrays.x if arrays.x.dtype == np.uint8 and arrays.x.ndim == 4 else convert("x", arrays.x)
    return Arrays(x, arrays.y if arrays.y.dtype == np.int64 else convert("y", arrays.y))


def read_images(folder: Path, classes: Sequence[str], size: tuple[int, int] | None = None) -> Arrays:
    """Images in folder/<class>/*, labelled by the place of their folder in `classes`; needs Pillow.

    `size` is (height, width) to resize to.  Grey images stay grey unless others have colour.
    """
    paths = [(path, label) for label, name in enumerate(classes) for path in image_files(folder / name)]
    images = [_read_image(path, size) for path, _ in paths]
    for (path, _), image in zip(paths, images, strict=True):
        if image.shape[1:] != images[0].shape[1:]:
            raise ValueError(
                f"{path} is {image.shape[1]} x {image.shape[2]}, {paths[0][0]} is {images[0].shape[1]} x "
                f"{images[0].shape[2]}. Give image_size to resize all to one size."
            )
    channels = max(len(image) for image in images)
    x = np.stack([np.broadcast_to(image, (channels, *image.shape[1:])) for image in images])
    return Arrays(x, np.array([label for _, label in paths], np.int64))


def image_files(folder: Path) -> list[Path]:
    """The images directly in a folder, in alphabetical order."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES)


def _read_image(path: Path, size: tuple[int, int] | None) -> Array:
    pixels = np.asarray(open_image(path, None, size))  # [H, W] or [H, W, 3]
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def open_image(path: Path, mode: str | None = None, size: tuple[int, int] | None = None) -> Image:
    """The picture as Pillow's "L" or "RGB", its own kind if None, resized to `size` (height, width); never a bomb."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(f"{path}: reading images needs Pillow. Run `pip install pillow`.") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our bound is tighter
            with Image.open(path) as file:
                if file.width * file.height > _PIXELS or max(file.size) > _SIDE:
                    raise _TooLarge(
                        f"{path}: too large a picture, {file.width} x {file.height} pixels; at most {_PIXELS:,} in all "
                        f"and {_SIDE:,} a side. Make it smaller."
                    )
                mode = mode or ("L" if file.mode in ("1", "L", "I;16") else "RGB")
                file.load()
                image = file if file.mode == mode else file.convert(mode)
    except (*_UNREADABLE, _TooLarge):
        raise
    except Exception as error:  # Pillow lets anything through that a damaged file provokes
        raise ValueError(f"{path}: not an image that Pillow can read ({error}).") from error
    return image if size is None else image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
