"""Small accidents and large lies: mutators of bytes, of JSON, and of what a pocket file holds."""

from __future__ import annotations

import contextlib
import lzma
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from random import Random
from typing import Any

import numpy as np

from fuzz.pockets import DEFLATED, head_of, seal, sections_of, squeeze, unchecked, with_head
from pocketbayes.artifact import Codebook, Fixed, Pocket, Prior, Signs, decode, protobuf
from pocketbayes.artifact.graph import _LZMA as FILTERS
from pocketbayes.artifact.graph import MODEL
from pocketbayes.errors import ArtifactError

WHOLE = [0, 1, -1, 2, 3, 64, 127, 255, 256, 4096, 65534, 65535, 1 << 20, 1 << 31, 1 << 53, 1 << 62, 1 << 64]
FLOATS = [0.0, -0.0, 0.5, -1.0, 1e-45, 1e-38, 6e4, 1e5, 1e38, -1e38, 3e38, 1e300, -1e308]
WORDS = [
    "",
    "h16",
    "p16",
    "h8",
    "f8",
    "t1",
    "u1",
    "s",
    "n",
    "p",
    "t",
    "float64",
    "float16",
    "bool",
    "\0",
    "\ud800",
]
WORDS += ["light", "heavy", "random", "array", "Gaussian", "StudentT", "Averaged", "SkewNormal", "é" * 40]
TREES: list[Any] = [None, True, [], {}, [0], [[[]]], {"rule": "random"}, {"array": "values"}]
TREES += [{"count": 1, "value": 0.0}, {"mu": 0.0, "sigma": 1.0}, {"family": "Laplace"}]


def bytes_(data: bytes, rng: Random) -> bytes:
    """One to four bits, bytes or short runs changed, lost, added or copied."""
    broken = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at, kind = rng.randrange(len(broken) + 1), rng.randrange(6)
        if kind == 0 and at < len(broken):
            broken[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(broken):
            broken[at] = rng.choice([0, 1, 127, 128, 254, 255, rng.randrange(256)])
        elif kind == 2:
            del broken[at : at + rng.randint(1, 8)]
        elif kind == 3:
            broken[at:at] = rng.randbytes(rng.randint(1, 8))
        elif kind == 4:
            width = rng.choice([1, 2, 4, 8])
            broken[at : at + width] = (rng.choice(WHOLE) % (1 << 8 * width)).to_bytes(
                width, rng.choice(["little", "big"])
            )
        else:
            start = rng.randrange(len(broken) + 1)
            broken[at : at + 8] = broken[start : start + 8]
    return bytes(broken)


def json_(value: Any, rng: Random, other: Any = None) -> Any:
    """The same tree with one branch changed, lost, doubled, or taken from the same place of another tree."""
    if isinstance(value, dict) and value and rng.random() < 0.93:
        key = rng.choice(list(value))
        if rng.random() < 0.08:
            return {k: v for k, v in value.items() if k != key}
        theirs = other.get(key) if isinstance(other, dict) else None
        return {
            **value,
            key: theirs if theirs is not None and rng.random() < 0.15 else json_(value[key], rng, theirs),
        }
    if isinstance(value, list) and value and rng.random() < 0.93:
        at, kind = rng.randrange(len(value)), rng.random()
        theirs = rng.choice(other) if isinstance(other, list) and other else None
        part = [] if kind < 0.05 else [value[at]] * 2 if kind < 0.1 else [json_(value[at], rng, theirs)]
        part = [theirs] if theirs is not None and kind > 0.9 else part
        return value[:at] + part + value[at + 1 :]
    return leaf(value, rng)


def leaf(value: Any, rng: Random) -> Any:
    """Another value, mostly of the same kind."""
    kind = rng.random()
    if type(value) is int and kind < 0.8:
        return rng.choice([value + 1, value - 1, value * 2, value // 2, -value, *WHOLE])
    if type(value) is float and kind < 0.8:
        return rng.choice([value * 2, -value, value + 1e-7, *FLOATS])
    if isinstance(value, str) and kind < 0.8:
        return rng.choice([value + "x", value[:-1], value * 50, *WORDS])
    return rng.choice([*WHOLE, *FLOATS, *WORDS, *TREES])


# --- pocket files ----------------------------------------------------------------------------------------------


def pocket(data: bytes, rng: Random, corpus: Sequence[bytes]) -> bytes:
    """A file with right checksums: its header, its sections or its arrays lie."""
    other = rng.choice(corpus)
    mutate = rng.choices([of_head, of_section, of_arrays, spliced], [5, 3, 4, 1])[0]
    return mutate(data, rng, other)


def of_head(data: bytes, rng: Random, other: bytes) -> bytes:
    """Another header; often the sections are then cut or filled until they have the lengths that it asks for."""
    sections = sections_of(data)
    head, theirs = head_of(sections), head_of(sections_of(other))
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        head = json_(head, rng, theirs)
    try:
        sections = with_head(sections, head)
    except UnicodeEncodeError:
        return data
    return seal(fitted(sections, rng) if rng.random() < 0.4 else sections)


def fitted(sections: dict[str, bytes], rng: Random) -> dict[str, bytes]:
    """Sections of the lengths that the header asks for, as far as four complaints tell."""
    for _ in range(4):
        try:
            decode(seal(sections), max_weights=1 << 16)
        except ArtifactError as error:
            complaint = re.search(r"section (\w+) (ends|has (\d+) bytes too many)", str(error))
            if complaint is None or complaint[1] in DEFLATED:
                return sections
            tag, old = complaint[1], sections.get(complaint[1], b"")
            new = (
                old[: len(old) - int(complaint[3])]
                if complaint[3]
                else old + rng.randbytes(rng.randint(1, 64))
            )
            sections = {name: new if name == tag else part for name, part in sections.items()}
            if tag not in sections:
                return sections
        except Exception:  # it will be found again, and told, by whoever judges the file
            return sections
        else:
            return sections
    return sections


def of_section(data: bytes, rng: Random, other: bytes) -> bytes:
    """Other bytes in a section, deflated anew where it is deflated."""
    sections = sections_of(data)
    tag = rng.choice(list(sections))
    if "GRAF" in sections and rng.random() < 0.6:
        tag, sections["GRAF"] = "", graph(sections["GRAF"], rng)
    if not tag:
        return seal(sections)
    if tag in DEFLATED and rng.random() < 0.9:
        sections[tag] = squeeze(bytes_(zlib.decompress(sections[tag][4:]), rng))
    else:
        sections[tag] = bytes_(sections[tag], rng)
    return seal(sections, version=rng.choice([1, 2, 2, 2, 2]))


def graph(section: bytes, rng: Random) -> bytes:
    """The graph's messages, or its bytes, changed and compressed again."""
    plain = lzma.decompress(section, lzma.FORMAT_RAW, filters=FILTERS)
    if rng.random() < 0.3:
        plain = bytes_(plain, rng)
    else:
        message = message_(protobuf.read(plain, MODEL, "graph"), rng)
        with contextlib.suppress(Exception):  # what cannot be written is left as it was
            plain = protobuf.write(message, MODEL)
    return lzma.compress(plain, lzma.FORMAT_RAW, filters=FILTERS)


def message_(value: Any, rng: Random) -> Any:
    """JSON, but for the bytes in it, and a step of one leaf at a time."""
    if isinstance(value, dict) and value and rng.random() < 0.97:
        key = rng.choice(list(value))
        return {**value, key: message_(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        return [*value[:at], message_(value[at], rng), *value[at + 1 :]]
    return bytes_(value, rng) if isinstance(value, bytes) else json_(value, rng)


def spliced(data: bytes, rng: Random, other: bytes) -> bytes:
    """Sections of two files, or one section less."""
    ours, theirs = sections_of(data), sections_of(other)
    tag = rng.choice(list(theirs))
    mixed = {**ours, tag: theirs[tag]} if rng.random() < 0.7 else {k: v for k, v in ours.items() if k != tag}
    order = list(dict.fromkeys([*ours, *theirs]))
    return seal({tag: mixed[tag] for tag in order if tag in mixed})


def of_arrays(data: bytes, rng: Random, other: bytes) -> bytes:
    """Well-formed bytes of arrays that hold what they should not."""
    try:
        with np.errstate(all="ignore"):
            return unchecked(broken_pocket(whole(data), rng))
    except Exception:  # not even a writer without conscience can
        return of_section(data, rng, other)


@lru_cache(maxsize=256)
def whole(data: bytes) -> Pocket:
    """A good file, decoded once."""
    return decode(data)


def broken_pocket(found: Pocket, rng: Random) -> Pocket:
    """One entry, extra or codebook with other numbers."""
    choice = rng.random()
    if choice < 0.15 and found.codebook is not None:
        return replace(found, codebook=Codebook(*(array(part, rng) for part in found.codebook)))
    if choice < 0.25 and found.extras:
        name = rng.choice(list(found.extras))
        return replace(found, extras={**found.extras, name: array(found.extras[name], rng)})
    number = rng.randrange(len(found.modes))
    tensors = found.modes[number]
    name = rng.choice(list(tensors))
    changed = {**tensors, name: broken_parts(tensors[name], rng)}
    modes = [*found.modes[:number], changed, *found.modes[number + 1 :]]
    return replace(found, tensors=modes[0], others=tuple(modes[1:]))


def broken_parts(entry: Any, rng: Random) -> Any:
    """The entry with one of its fields changed."""
    field = rng.choice(fields(entry)).name
    value = getattr(entry, field)
    change: Callable[[Any, Random], Any] | None = None
    if isinstance(value, np.ndarray):
        change = array
    elif isinstance(value, Fixed | Prior | Signs):
        change = broken_parts
    elif isinstance(value, int | float | str | dict | tuple) and not isinstance(value, bool):
        change = lambda v, r: tuple(json_(list(v), r)) if isinstance(v, tuple) else json_(v, r)  # noqa: E731
    return entry if change is None else replace(entry, **{field: change(value, rng)})


def array(values: np.ndarray, rng: Random) -> np.ndarray:
    """A few extreme numbers, or another length."""
    if rng.random() < 0.15 and values.ndim:
        return np.resize(
            values, (rng.choice([0, 1, 2, max(0, len(values) - 1), len(values) + 1]), *values.shape[1:])
        )
    changed = values.copy()
    flat = changed.reshape(-1)
    extremes = [0, 1, -1, 255] if values.dtype.kind in "iub" else [*FLOATS, np.nan, np.inf, -np.inf]
    with np.errstate(all="ignore"):
        for _ in range(rng.choice([1, 1, 3, flat.size]) if flat.size else 0):
            flat[rng.randrange(flat.size)] = np.array(rng.choice(extremes)).astype(values.dtype)
    return changed
