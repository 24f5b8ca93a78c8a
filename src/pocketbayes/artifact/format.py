"""A Pocket as the bytes of a file.  docs/format.md is the specification, reader.py the way back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from pocketbayes.artifact import codec, context, header, numbers
from pocketbayes.artifact.container import MAX_HEADER, TAGS, assemble, deflate, sizes_of
from pocketbayes.artifact.header import HeaderRow
from pocketbayes.artifact.numbers import Array
from pocketbayes.artifact.pocket import (
    ALPHA_STEPS,
    SMALLEST_SIGMA,
    Entry,
    MeanField,
    Plain,
    Pocket,
    Precision,
    Prior,
    Shared,
    Signs,
    Stochastic,
    Tied,
    check,
)
from pocketbayes.errors import ArtifactError
from pocketbayes.moments import Codebook, Moments


class Encoded(NamedTuple):
    """A file's bytes, and how many each section takes."""

    data: bytes
    sizes: dict[str, int]
    in_contexts: bool  # whether labels are coded by the means around them: other means, another size


def encode(pocket: Pocket) -> Encoded:
    """The bytes of a pocket file; `encode(decode(encode(p).data)).data` are the same bytes."""
    check(pocket)
    sections = {tag: bytearray() for tag in TAGS}
    book = _put_codebook(pocket, sections)
    coded = codec.encode(_layers_of(pocket, book.components), context.levels_of(book.mu)) if book else None
    plain = _plain_rows(pocket.modes, pocket.precision)
    rows = [
        [_put(name, entry, mode, plain, pocket, sections) for name, entry in tensors.items()]
        for mode, tensors in enumerate(pocket.modes)
    ]
    extras = {name: Plain(values=array, bits=64) for name, array in pocket.extras.items()}
    extra_rows = _plain_rows([dict(extras)], pocket.precision)
    sections["XTRA"] += b"".join(_packed(extras[name], row) for name, row in extra_rows.items())
    text = header.write(pocket, rows, [*extra_rows.values()], 0 if coded is None else len(coded.tables))
    if len(text) > MAX_HEADER:
        raise ArtifactError(f"header: {len(text)} bytes of JSON, at most {MAX_HEADER}. Shorten the metadata")
    parts = {tag: bytes(part) for tag, part in sections.items()}
    parts |= {"HEAD": deflate(text), "MASK": deflate(parts["MASK"]), "GRAF": pocket.graph}
    if coded is not None:
        parts |= {"FREQ": deflate(_put_tables(coded)), "LABL": coded.words.astype("<u4").tobytes()}
    data = assemble(parts)
    in_contexts = coded is not None and any(grouping.step for grouping in coded.groupings)
    return Encoded(data, sizes_of(len(data), parts), in_contexts)


def _put_codebook(pocket: Pocket, sections: dict[str, bytearray]) -> Codebook[Array] | None:
    """Writes the codebook; returns it with the means a decoder will see."""
    if pocket.codebook is None:
        return None
    book, at = pocket.codebook, pocket.precision
    sections["CODE"] += _moments(*book, at)
    return Codebook(mu=numbers.unpack(numbers.pack(book.mu, at.mu_code), at.mu_code), sigma=book.sigma)


def _moments(mu: Array, sigma: Array, at: Precision) -> bytes:
    return numbers.pack(mu, at.mu_code) + _sigmas(sigma, at)


def _sigmas(sigma: Array, at: Precision) -> bytes:
    """Standard deviations; one below the smallest normal float32 is stored as that."""
    return numbers.pack(np.maximum(sigma, SMALLEST_SIGMA), at.sigma_code)


def _layers_of(pocket: Pocket, k: int) -> list[tuple[Array, codec.LabelLayout]]:
    """The label streams: one for each shared tensor of each mode, then the components of all blends."""
    shared = [entry for tensors in pocket.modes for entry in tensors.values() if isinstance(entry, Shared)]
    narrow = np.min_scalar_type(k + 1)
    layers = [
        (entry.labels.astype(narrow), codec.layer_of(entry.shape, len(entry.labels))) for entry in shared
    ]
    blends = [entry.components.reshape(-1).astype(narrow) for entry in shared if entry.components.size]
    if blends:
        together = np.concatenate(blends)
        layers.append((together, codec.LabelLayout(together.size, (1, 1))))
    return layers


def _put_tables(coded: codec.Coded) -> bytes:
    """For each layer its step and table numbers; then the tables, symbol by symbol (similar codes meet)."""
    groups = b"".join(g.step.to_bytes(2, "little") + bytes(g.tables) for g in coded.groupings)
    return groups + coded.tables.T.tobytes()


def _plain_rows(modes: list[dict[str, Entry]], at: Precision) -> dict[str, HeaderRow]:
    """The rows of deterministic tensors: one code or constant for all modes, and whether all have the same numbers."""
    rows = {}
    for name, first in modes[0].items():
        if isinstance(first, Plain):
            values = [entry.values for tensors in modes if isinstance(entry := tensors[name], Plain)]
            together = np.concatenate([v.reshape(-1) for v in values])
            code = numbers.plain_code(together, first.dtype, first.bits or at.plain)
            constant = numbers.stored_constant(together, first.dtype, code)
            same = constant is not None or len({numbers.pack(v, code) for v in values}) == 1
            kind = "c" if len(modes) > 1 and same else "p"
            row = HeaderRow(name=name, kind=kind, shape=first.shape, dtype=first.dtype)
            rows[name] = replace(row, code=code) if constant is None else replace(row, constant=constant)
    return rows


def _packed(entry: Plain, row: HeaderRow) -> bytes:
    """What a section holds of a deterministic tensor."""
    return numbers.pack(entry.values, row.code) if row.constant is None else b""


def _put(
    name: str,
    entry: Entry,
    mode: int,
    plain: dict[str, HeaderRow],
    pocket: Pocket,
    sections: dict[str, bytearray],
) -> HeaderRow:
    if isinstance(entry, Tied):
        return HeaderRow(name=name, kind="t", target=entry.target)
    if isinstance(entry, Plain):
        if mode == 0 or plain[name].kind == "p":
            sections["PLAN"] += _packed(entry, plain[name])
        return plain[name]
    more: dict[str, Any] = {}
    if isinstance(entry, MeanField):
        tag, moments = "NORM", Moments(entry.mu, entry.sigma)
    else:
        tag, moments = "OUTL", Moments(entry.outlier_mu, entry.outlier_sigma)
        if entry.components.size:
            sections["BLND"] += numbers.pack(_alpha_steps(entry.alphas)[:, :-1], "u2")
            more["blend"] = entry.components.shape[1]
    _require_finite(name, entry.dtype, moments, pocket.precision)
    sections[tag] += _moments(*moments, pocket.precision)
    if entry.fixed is not None:
        more["fixed"] = _put_fixed(entry, pocket, sections)
    if entry.prior is not None:
        more["prior"] = _put_prior(entry.prior, pocket, sections["PRIO"])
    kind = "n" if isinstance(entry, MeanField) else "s"
    return HeaderRow(name=name, kind=kind, shape=entry.shape, dtype=entry.dtype, more=more)


def _require_finite(name: str, dtype: str, moments: Moments[Array], at: Precision) -> None:
    """Of the types of a model, float16 alone has a largest number that rounding may exceed."""
    codes = (at.mu_code, at.sigma_code)
    if dtype == "float16" and not all(
        numbers.fits(*part) for part in zip(moments, [dtype] * 2, codes, strict=True)
    ):
        raise ArtifactError(
            f"{name}: a mean or sigma becomes infinite in float16 when it is rounded. "
            "More bits may do (Precision), or save the model in float32"
        )


def _alpha_steps(alphas: Array) -> Array:
    """Weights of blends as integers that sum to 65535, largest remainders rounded up: [blends, k]."""
    exact = alphas.astype(np.float64)
    exact *= ALPHA_STEPS / exact.sum(1, keepdims=True)
    steps = np.floor(exact).astype(np.int64)
    rank = np.argsort(np.argsort(steps - exact, axis=1, kind="stable"), axis=1, kind="stable")
    return np.asarray(steps + (rank < ALPHA_STEPS - steps.sum(1, keepdims=True)))


def _put_fixed(entry: Stochastic, pocket: Pocket, sections: dict[str, bytearray]) -> dict[str, Any]:
    fixed = entry.fixed
    assert fixed is not None
    found: dict[str, Any] = {"count": fixed.count}
    if isinstance(fixed.mask, dict):
        found["rule"] = fixed.mask
    else:
        sections["MASK"] += numbers.pack(fixed.mask, "t1")
    if isinstance(fixed.values, Signs):
        found["signs"] = float(fixed.values.scale)
        sections["FIXD"] += numbers.pack(fixed.values.positive, "t1")
    elif isinstance(fixed.values, np.ndarray):
        values = fixed.values if fixed.values.dtype == np.float64 else fixed.values.astype(np.float32)
        found["code"] = numbers.plain_code(values, values.dtype.name, pocket.precision.plain)
        sections["FIXD"] += numbers.pack(values, found["code"])
    else:
        found["value"] = float(fixed.values)
    return found


def _put_prior(prior: Prior, pocket: Pocket, section: bytearray) -> dict[str, Any]:
    """Numbers stay in the header; for an array its code stands there."""
    found: dict[str, Any] = {"mu": prior.mu, "sigma": prior.sigma}
    if isinstance(prior.mu, np.ndarray):
        found["mu"] = pocket.precision.mu_code
        section += numbers.pack(prior.mu, found["mu"])
    if isinstance(prior.sigma, np.ndarray):
        found["sigma"] = pocket.precision.sigma_code
        section += _sigmas(prior.sigma, pocket.precision)
    return {key: value if isinstance(value, str) else float(value) for key, value in found.items()}
