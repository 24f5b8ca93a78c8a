"""Data sets by name, downloaded when absent, or from an npz file, a CSV file or a folder of images."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pocketbayes.data.download import fetch, require_published
from pocketbayes.data.examples import Examples, divide, stratified_order
from pocketbayes.data.formats import (
    Array,
    Arrays,
    floats,
    image_files,
    npz_arrays,
    read_cifar,
    read_csv,
    read_idx,
    read_images,
    read_svhn,
    tidy,
)
from pocketbayes.data.public import PUBLIC, REMOTES
from pocketbayes.data.scaling import Scaling, measured_scaling

_TEST_FRACTION = 0.2  # of data sets that come in one piece; always the same examples
_MOST_CLASSES = 1 << 20


class Origin(NamedTuple):
    """Where a data set comes from: `read("train")` and `read("test")` give its raw arrays."""

    name: str
    read: Callable[[str], Arrays]
    classes: Sequence[str] | None  # None: regression
    scaling: Scaling | None = None  # None: measured on the training split


def read_set(
    source: str | Path,
    folder: str | Path | None = None,
    split: str = "train",
    *,
    download: bool = True,
    image_size: tuple[int, int] | None = None,
    csv_targets: int = 1,
    scaling: Scaling | None = None,
) -> Examples:
    """One split, "train" or "test", of a data set named in NAMES, or in a .npz, a .csv or a folder of images.

    Named sets are looked for in `data_folder(folder)`, and downloaded to it if need be.
    npz: x_train, y_train, x_test, y_test, or x and y, or x alone (unlabelled, for out-of-distribution tests).
    Images are uint8 [N, H, W] or [N, H, W, C]; integer y are labels, float y regression targets.
    CSV: regression, the last `csv_targets` columns are the targets.
    Image folder: train/<class>/* and test/<class>/*, or <class>/*, resized to `image_size` (height, width).
    What comes in one piece is split 80/20, always the same way.  `scaling` replaces the measured one.
    """
    if split not in ("train", "test"):
        raise ValueError(
            f'load: split must be "train" or "test", got {split!r}. For validation use hold_out.'
        )
    origin = _open(source, data_folder(folder), download, image_size, csv_targets)
    arrays = origin.read(split)
    measured = scaling or origin.scaling
    regression = origin.classes is None
    if measured is None or regression:  # standardisation knows the training split only
        train = arrays if split == "train" else origin.read("train")
        measured = measured or measured_scaling(train.x)
    return Examples(
        name=origin.name,
        x=np.require(arrays.x, requirements=["C", "W"]),
        y=np.require(arrays.y, requirements=["C", "W"]),
        classes=None if origin.classes is None else tuple(origin.classes),
        scaling=measured,
        target_scaling=measured_scaling(train.y) if regression else None,
    )


def data_folder(folder: str | Path | None = None) -> Path:
    """The folder given, else the environment variable POCKETBAYES_DATA, else ~/.cache/pocketbayes."""
    return Path(folder or os.environ.get("POCKETBAYES_DATA") or "~/.cache/pocketbayes").expanduser()


def _open(
    source: str | Path, folder: Path, download: bool, image_size: tuple[int, int] | None, csv_targets: int
) -> Origin:
    name = str(source).lower().replace("_", "-")
    if isinstance(source, str) and name in _NAMED:
        return _NAMED[name](Shelf(folder, download))
    path = Path(source).expanduser()
    path = path if path.exists() else folder / path
    if path.is_dir():
        return _image_folder(path, image_size)
    if path.is_file() and path.suffix == ".npz":
        return _npz(path)
    if path.is_file() and path.suffix in (".csv", ".tsv"):
        whole = floats(path, read_csv(path, csv_targets))
        return Origin(path.stem, partial(_one_piece, whole, path.stem, False), None)
    guess = get_close_matches(name, NAMES, n=1)
    raise FileNotFoundError(
        f"{source}: neither a data set nor an npz file, a CSV file or a folder of images. "
        + (f"Did you mean {guess[0]}?" if guess else f"Data sets by name: {', '.join(NAMES)}.")
    )


def _one_piece(whole: Arrays, name: str, stratified: bool, split: str) -> Arrays:
    """The fixed training or test rows of a data set without an official split."""
    labels = whole.y if stratified else np.zeros(len(whole.y))
    rest, sample = divide(stratified_order(labels, seed=0), _TEST_FRACTION, name)
    rows = rest if split == "train" else sample
    return Arrays(whole.x[rows], whole.y[rows])


def _scaling(mean: Sequence[float], std: Sequence[float], full: float = 255.0) -> Scaling:
    return Scaling(np.array(mean), np.array(std), full)


# ------------------------------------------------------------------------------------------------ by name


class Shelf(NamedTuple):
    """The folder where named data sets are kept, and whether absent files may be downloaded to it."""

    folder: Path
    download: bool

    def find(self, key: str, *aliases: str) -> Path:
        """The path of a file of REMOTES: at its own place, at one of its other usual places, or fetched."""
        for place in (key, *aliases):
            if (path := self.folder / place).exists():
                if path.name == Path(key).name:  # what came out of it has no checksum
                    require_published(path, REMOTES[key])
                return path
        if self.download:
            return fetch(REMOTES[key], self.folder / key)
        raise FileNotFoundError(
            f"{self.folder / key} is missing. Download it from {REMOTES[key].urls[0]} and put it there, "
            "or give the folder that has it, or allow the download."
        )


def _public(name: str, read: Callable[[Shelf, str], Arrays], shelf: Shelf) -> Origin:
    """A public image set, from `name`.npz if that is on the shelf and from the official files if not."""
    found, reader = PUBLIC[name], partial(read, shelf)
    for file in (f"{name}.npz", f"{name.replace('-', '_')}.npz"):
        if (path := shelf.folder / file).exists():
            reader = partial(_bytes, path, _npz(path).read)
            break
    return Origin(name, reader, found["classes"], _scaling(found["mean"], found["std"]))


def _bytes(path: Path, read: Callable[[str], Arrays], split: str) -> Arrays:
    arrays = read(split)
    if arrays.x.dtype != np.uint8 or arrays.y.dtype != np.int64:
        raise ValueError(
            f"{path}: expected uint8 images and integer labels. Give the path to read it as it is."
        )
    return arrays


def _read_mnist(name: str, torchvision_name: str, shelf: Shelf, split: str) -> Arrays:
    prefix = {"train": "train", "test": "t10k"}[split]

    def read(kind: str) -> Array:
        file = f"{prefix}-{kind}-ubyte"
        raw = f"{torchvision_name}/raw/{file}"
        return read_idx(shelf.find(f"{name}/{file}.gz", f"{name}/{file}", f"{raw}.gz", raw))

    return Arrays(read("images-idx3")[:, None], read("labels-idx1").astype(np.int64))


def _read_cifar10(shelf: Shelf, split: str) -> Arrays:
    members = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}
    return read_cifar(shelf.find("cifar-10-binary.tar.gz", "cifar-10-batches-bin"), members[split], 1)


def _read_cifar100(shelf: Shelf, split: str) -> Arrays:
    return read_cifar(shelf.find("cifar-100-binary.tar.gz", "cifar-100-binary"), [f"{split}.bin"], 2)


def _read_svhn(shelf: Shelf, split: str) -> Arrays:
    return read_svhn(shelf.find(f"svhn/{split}_32x32.mat", f"{split}_32x32.mat"))


def _digits(_: Shelf) -> Origin:
    """scikit-learn's 1797 digits of 8 x 8 pixels with values 0..16."""
    found = _sklearn("load_digits")
    whole = Arrays(found.images.astype(np.uint8)[:, None], found.target.astype(np.int64))
    return Origin(
        "digits",
        partial(_one_piece, whole, "digits", True),
        tuple("0123456789"),
        _scaling([0.3053], [0.3760], 16.0),
    )


def _diabetes(_: Shelf) -> Origin:
    """scikit-learn's diabetes data: 442 patients, 10 features, one target."""
    found = _sklearn("load_diabetes")
    whole = floats(Path("diabetes"), Arrays(found.data, found.target))
    return Origin("diabetes", partial(_one_piece, whole, "diabetes", False), None)


_READERS: dict[str, Callable[[Shelf, str], Arrays]] = {
    "mnist": partial(_read_mnist, "mnist", "MNIST"),
    "fashion-mnist": partial(_read_mnist, "fashion-mnist", "FashionMNIST"),
    "cifar10": _read_cifar10,
    "cifar100": _read_cifar100,
    "svhn": _read_svhn,
}
_NAMED: dict[str, Callable[[Shelf], Origin]] = {"digits": _digits, "diabetes": _diabetes}
_NAMED |= {name: partial(_public, name, read) for name, read in _READERS.items()}
NAMES = tuple(_NAMED)


def _sklearn(loader: str):  # type: ignore[no-untyped-def]
    try:
        from sklearn import datasets
    except ImportError as error:
        raise ImportError(
            f"{loader.removeprefix('load_')}: needs scikit-learn. Run `pip install 'pocketbayes[demo]'`."
        ) from error
    return getattr(datasets, loader)()


# ---------------------------------------------------------------------------------------------- from files


def _npz(path: Path) -> Origin:
    keys = set(npz_arrays(path))
    if {"x_train", "y_train", "x_test", "y_test"} <= keys:
        labels = npz_arrays(path, "y_train")["y_train"]

        def read(split: str) -> Arrays:
            return tidy(path, *npz_arrays(path, f"x_{split}", f"y_{split}").values())

    elif {"x", "y"} <= keys:
        found = npz_arrays(path, "x", "y")
        labels = found["y"]
        whole = tidy(path, found["x"], labels)
        read = partial(_one_piece, whole, path.stem, whole.y.dtype == np.int64)
    elif "x" in keys:
        x = npz_arrays(path, "x")["x"]
        unlabelled = tidy(path, x, np.full(len(x), -1))
        return Origin(path.stem, lambda split: unlabelled, ())
    else:
        raise ValueError(f"{path}: no x_train, y_train, x_test, y_test, nor x and y, but {sorted(keys)}.")
    if not np.issubdtype(labels.dtype, np.integer):
        return Origin(path.stem, read, None)
    named = (
        npz_arrays(path, "classes")["classes"].reshape(-1)
        if "classes" in keys
        else range(_classes(path, labels))
    )
    return Origin(path.stem, read, tuple(str(name) for name in named))


def _classes(path: Path, labels: Array) -> int:
    """One more than the largest label."""
    count = int(labels.max()) + 1 if labels.size else 0
    if count > _MOST_CLASSES:
        raise ValueError(
            f"{path}: a label is {count - 1:,}, beyond {_MOST_CLASSES:,} classes. Save regression targets as floats."
        )
    return count


def _image_folder(path: Path, size: tuple[int, int] | None) -> Origin:
    """train/<class>/* and test/<class>/*, or <class>/* in one piece."""
    divided = all((path / split).is_dir() for split in ("train", "test"))
    root = path / "train" if divided else path
    classes = [entry.name for entry in sorted(root.iterdir()) if entry.is_dir() and image_files(entry)]
    if not classes:
        raise ValueError(
            f"{root}: no folders of images. Put the images of each class in a folder of its name."
        )
    if divided:
        return Origin(path.name, lambda split: read_images(path / split, classes, size), classes)
    whole = read_images(path, classes, size)
    return Origin(path.name, partial(_one_piece, whole, path.name, True), classes)
