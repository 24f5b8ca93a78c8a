"""The header: a JSON object with a row for each tensor, checked field by field before anything is allocated."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from pocketbayes.artifact.codec import MAX_COUNTS, MAX_TABLES
from pocketbayes.artifact.context import MARKS
from pocketbayes.artifact.noise import levels, require_modest
from pocketbayes.artifact.numbers import DTYPES, is_code, is_constant, is_float
from pocketbayes.artifact.pocket import JSON, MAX_BLEND, MAX_CODEBOOK, MOST_MODES, Pocket, Precision
from pocketbayes.errors import ArtifactError

MAX_DIMENSIONS = 32
MAX_NESTING = 64  # lists and objects within each other
MAX_ROWS = 1 << 14  # of all modes; of extras
_NOTES: dict[str, Any] = {"library": "", "noise": {}, "architecture": "", "options": {}, "metadata": {}}


@dataclass(frozen=True, kw_only=True)
class HeaderRow:
    """One tensor of one mode: [name, kind, shape, dtype, code, constant or more], or [name, "t", target]."""

    name: str
    kind: str  # p plain, c plain and common to all modes, n normal, s shared, t tied
    shape: tuple[int, ...] = ()
    dtype: str = ""
    code: str = ""
    constant: float | int | None = None  # what all values of a plain tensor are, if no section holds them
    target: str = ""
    more: JSON = field(default_factory=dict)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def free(self) -> int:
        return self.size - int(self.more.get("fixed", {}).get("count", 0))

    @property
    def blend(self) -> int:
        return int(self.more.get("blend", 0))

    @property
    def masked(self) -> bool:
        """Whether its mask lies in the file."""
        return "fixed" in self.more and "rule" not in self.more["fixed"]

    def as_json(self) -> list[Any]:
        if self.kind == "t":
            return [self.name, "t", self.target]
        start = [self.name, self.kind, list(self.shape), self.dtype]
        if self.kind in "pc":
            return [*start, self.code if self.constant is None else self.constant]
        return [*start, self.more] if self.more else start


@dataclass(frozen=True, kw_only=True)
class Header:
    """What the JSON says, checked."""

    modes: list[list[HeaderRow]]  # the same tensors in each
    extras: list[HeaderRow]
    precision: Precision
    codebook: int  # K, 0 without one
    tables: int
    notes: JSON  # library, noise, architecture, options, metadata

    @property
    def rows(self) -> list[HeaderRow]:
        """All tensors of all modes, in the order in which they lie in every section."""
        return [row for mode in self.modes for row in mode]


def write(pocket: Pocket, modes: list[list[HeaderRow]], extras: list[HeaderRow], tables: int) -> bytes:
    """The header's JSON; what is empty is left out."""
    at = pocket.precision
    _require_few(len(modes[0]), len(modes))
    _require_few(len(extras))
    found: JSON = {name: getattr(pocket, name) for name in _NOTES}
    _require_flat(found)
    found |= {
        "precision": [at.plain, at.mu, at.sigma],
        "codebook": pocket.codebook.components if pocket.codebook else 0,
        "tables": tables,
        "modes": len(modes) if len(modes) > 1 else 0,
    }
    tensors = [_together(rows) for rows in zip(*modes, strict=True)]
    found |= {"extras": [row.as_json() for row in extras], "tensors": tensors}
    try:
        kept = {key: value for key, value in found.items() if value or key == "tensors"}
        return json.dumps(kept, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ArtifactError(
            f"header: names, noise, architecture, options and metadata must be JSON: {error}"
        ) from error


def _together(rows: tuple[HeaderRow, ...]) -> list[Any]:
    """One tensor of all modes: what differs, `more`, stands as a list."""
    mores = [row.more for row in rows]
    if all(more == mores[0] for more in mores):
        return rows[0].as_json()
    return [*replace(rows[0], more={}).as_json(), mores]


def parse(text: bytes, max_weights: int) -> Header:
    """The header of a file with at most `max_weights` elements."""
    found = _json(text)
    notes = {name: found.pop(name, empty) for name, empty in _NOTES.items()}
    for name in ("noise", "options", "metadata"):
        _need(type(notes[name]) is dict, f"{name} must be an object")
    _need(type(notes["library"]) is str, "library must be a string")
    _need(type(notes["options"].get("tied_draws", False)) is bool, "tied_draws must be true or false")
    require_modest(notes["noise"])
    _require_flat(notes)
    _need(type(notes["architecture"]) in (str, dict), "architecture must be a string or an object")
    bits = found.pop("precision", None)
    _need(type(bits) is list and len(bits) == 3, "precision must be three numbers")
    precision = Precision(plain=bits[0], mu=bits[1], sigma=bits[2])
    codebook, tables = found.pop("codebook", 0), found.pop("tables", 0)
    _need(_whole(codebook, MAX_CODEBOOK), f"codebook must be 0..{MAX_CODEBOOK}")
    _need(_whole(tables, MAX_TABLES), f"tables must be 0..{MAX_TABLES}")
    _need(tables * (codebook + MARKS) <= MAX_COUNTS, f"tables hold more than {MAX_COUNTS} numbers")
    count = found.pop("modes", 1)
    _need(_whole(count, MOST_MODES) and count > 0, f"modes must be 1..{MOST_MODES}")
    modes, (extras,) = _rows(found.pop("tensors", None), count), _rows(found.pop("extras", []), 1)
    _need(all(row.kind == "p" for row in extras), "extras must be plain")
    _need(not found, f"unknown field {next(iter(found), '')!r}")
    sizes = (math.prod(max(d, 1) for d in row.shape) for row in modes[0] * count + extras if row.kind != "t")
    total = sum(sizes)
    if total > max_weights:
        raise ArtifactError(
            f"header: {total} elements, more than max_weights = {max_weights}. Raise it if you trust the file."
        )
    return Header(
        modes=modes, extras=extras, precision=precision, codebook=codebook, tables=tables, notes=notes
    )


def _require_few(rows: int, modes: int = 1) -> None:
    _need(
        rows * modes <= MAX_ROWS,
        f"at most {MAX_ROWS} tensors of all modes, and as many extras, got {rows * modes}",
    )


def _require_flat(notes: JSON) -> None:
    depth = sum(1 for _ in islice(levels(notes), MAX_NESTING + 1))
    _need(depth <= MAX_NESTING, f"more than {MAX_NESTING} lists or objects within each other")


def _json(text: bytes) -> JSON:
    """A JSON object that can be written again: its numbers finite, its keys unique, its text valid Unicode."""
    try:
        found = json.loads(
            text.decode(), parse_constant=_finite, parse_float=_finite, object_pairs_hook=_unique
        )
        if b"\\u" in text:  # half a character may be written so
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"header: not JSON ({error})") from error
    _need(type(found) is dict, "must be a JSON object")
    return dict(found)


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:40]} is no finite number")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> JSON:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice in an object")
    return found


def _need(holds: bool, what: str) -> None:
    if not holds:
        raise ArtifactError(f"header: {what}")


def _whole(value: object, top: int) -> bool:
    return type(value) is int and 0 <= value <= top


def _rows(found: object, modes: int) -> list[list[HeaderRow]]:
    """The rows of each mode."""
    _need(type(found) is list, "tensors and extras must be lists")
    assert isinstance(found, list)
    _require_few(len(found), modes)
    of_mode = [_row_of_modes(item, modes) for item in found]
    rows = [list(mode) for mode in zip(*of_mode, strict=True)] or [[] for _ in range(modes)]
    _need(len({row.name for row in rows[0]}) == len(rows[0]), "a name occurs twice")
    return rows


def _row_of_modes(item: object, modes: int) -> list[HeaderRow]:
    """A row for every mode, from one whose options may be a list of theirs."""
    if modes > 1 and type(item) is list and len(item) == 5 and type(item[4]) is list:
        _need(len(item[4]) == modes, f"{str(item[0])[:200]}: {modes} modes, and options for {len(item[4])}")
        return [_row([*item[:4], more]) for more in item[4]]
    return [_row(item)] * modes


def _row(item: object) -> HeaderRow:
    _need(
        type(item) is list and 3 <= len(item) <= 5 and type(item[0]) is str, "a row must be [name, kind, ...]"
    )
    assert isinstance(item, list)
    name, kind = item[0], item[1]
    if kind == "t":
        _need(len(item) == 3 and type(item[2]) is str, f"{name}: a tie must name its owner")
        return HeaderRow(name=name, kind="t", target=item[2])
    _need(kind in ("p", "c", "n", "s") and len(item) >= 4, f"{name}: unknown kind {kind!r}")
    shape, dtype = item[2], item[3]
    _need(
        type(shape) is list and len(shape) <= MAX_DIMENSIONS,
        f"{name}: a shape has at most {MAX_DIMENSIONS} sizes",
    )
    _need(all(_whole(d, 1 << 62) for d in shape), f"{name}: sizes must be whole numbers, got {shape}"[:200])
    _need(type(dtype) is str and dtype in DTYPES, f"{name}: unknown type {dtype!r}"[:200])
    row = HeaderRow(name=name, kind=kind, shape=tuple(shape), dtype=dtype)
    return _plain(row, item[4:]) if kind in ("p", "c") else _stochastic(row, item[4:])


def _plain(row: HeaderRow, rest: list[Any]) -> HeaderRow:
    code = rest[0] if len(rest) == 1 else None
    if is_constant(code, row.dtype):
        return replace(row, constant=code)
    _need(isinstance(code, str) and is_code(code) and code[0] != "p", f"{row.name}: needs a code or a number")
    assert isinstance(code, str)
    groups = {"bool": "t", "complex64": "c", "complex128": "c"}
    expected = groups.get(row.dtype, "fbh" if is_float(row.dtype) else "iu")
    _need(code[0] in expected, f"{row.name}: {row.dtype} cannot be stored as {code}")
    return replace(row, code=code)


def _stochastic(row: HeaderRow, rest: list[Any]) -> HeaderRow:
    more = rest[0] if rest else {}
    _need(type(more) is dict and set(more) <= {"blend", "fixed", "prior"}, f"{row.name}: unknown options")
    if "blend" in more:
        _need(
            row.kind == "s" and _whole(more["blend"], MAX_BLEND) and more["blend"] > 0,
            f"{row.name}: bad blend",
        )
    if "fixed" in more:
        _check_fixed(more["fixed"], row)
    if "prior" in more:
        prior = more["prior"]
        fine = type(prior) is dict and set(prior) == {"mu", "sigma"}
        _need(fine, f"{row.name}: a prior has mu and sigma")
        _need(_number(prior["mu"], "fh") and _number(prior["sigma"], "fp"), f"{row.name}: bad prior")
    return HeaderRow(name=row.name, kind=row.kind, shape=row.shape, dtype=row.dtype, more=more)


def _number(value: object, codes: str) -> bool:
    """A float, or the code of an array."""
    return type(value) is float or (isinstance(value, str) and is_code(value) and value[0] in codes)


def _check_fixed(fixed: object, row: HeaderRow) -> None:
    _need(type(fixed) is dict, f"{row.name}: fixed must be an object")
    assert isinstance(fixed, dict)
    values = set(fixed) - {"count", "rule"}
    _need(
        len(values) == 1 and values < {"signs", "code", "value"},
        f"{row.name}: fixed needs signs, code or value",
    )
    _need(_whole(fixed.get("count"), row.size), f"{row.name}: more weights fixed than there are")
    _need(type(fixed.get("rule", {})) is dict, f"{row.name}: a rule must be an object")
    for key in values & {"signs", "value"}:
        _need(type(fixed[key]) is float, f"{row.name}: {key} must be a number with a decimal point")
    if "code" in fixed:
        _need(_number(fixed["code"], "fbh") and type(fixed["code"]) is str, f"{row.name}: bad code")
