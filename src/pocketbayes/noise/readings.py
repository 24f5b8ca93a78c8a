"""Readings of a device from a file."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]


def read_readings(path: str | Path, key: str | None = None) -> Array:
    """Readings as [reads], or [cells, reads] where there are several cells; float64.

    npy: such an array.  npz: one such array, or the one named `key`.  csv (comma, semicolon, tab or space): one read a
    line, one cell a column, a line of headings or none.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: no such file. Give a .csv, .npy or .npz of readings.")
    if path.suffix == ".npz":
        return _from_npz(path, key)
    if path.suffix == ".npy":
        return _numeric(path, np.load(path, allow_pickle=False))
    if path.suffix in (".csv", ".tsv", ".txt", ".dat"):
        return _from_csv(path)
    raise ValueError(f"{path}: unknown kind of file {path.suffix!r}. Use .csv, .npy or .npz.")


def _from_npz(path: Path, key: str | None) -> Array:
    with np.load(path, allow_pickle=False) as arrays:
        if key is None and len(arrays.files) == 1:
            key = arrays.files[0]
        if key not in arrays.files:
            raise ValueError(f"{path}: which array? key={key!r} is not one of {', '.join(arrays.files)}.")
        return _numeric(path, arrays[key])


def _from_csv(path: Path) -> Array:
    text = path.read_text(encoding="utf-8-sig")
    lines = {i: line.strip() for i, line in enumerate(text.splitlines(), start=1)}
    lines = {i: line for i, line in lines.items() if line and not line.startswith("#")}
    if not lines:
        raise ValueError(f"{path}: the file is empty. One reading a line is expected.")
    delimiter = next((d for d in (";", "\t", ",") if any(d in line for line in lines.values())), " ")
    rows = dict(
        zip(lines, csv.reader(lines.values(), delimiter=delimiter, skipinitialspace=True), strict=True)
    )
    heading = min(rows)
    if not _is_number(rows[heading]):
        del rows[heading]
    widths = {len(row) for row in rows.values()}
    if len(widths) != 1:
        raise ValueError(
            f"{path}: lines of {sorted(widths)} columns. Every line needs as many as there are cells."
        )
    for number, row in rows.items():
        if not _is_number(row):
            raise ValueError(
                f"{path}: line {number} is not numbers: {delimiter.join(row)!r}. Remove or mend it."
            )
    columns = np.array(list(rows.values()), dtype=np.float64).T
    return columns[0] if len(columns) == 1 else columns


def _is_number(row: list[str]) -> bool:
    try:
        [float(field) for field in row]
    except ValueError:
        return False
    return True


def _numeric(path: Path, array: Any) -> Array:
    if array.dtype.kind not in "fiu" or array.ndim not in (1, 2):
        raise ValueError(
            f"{path}: needs numbers of shape [reads] or [cells, reads], got {array.dtype} {array.shape}."
        )
    return np.asarray(array, dtype=np.float64)
