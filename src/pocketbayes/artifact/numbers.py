"""Arrays as bytes: short floats with a stated precision, the narrowest integers, packed bits.

A *code* says how an array lies in the file: a letter and a width.

    f2 f4 f8 b2 c8 c16   IEEE little-endian floats, bfloat16, complex; as they are
    i1 .. i8  u1 .. u8   little-endian integers
    t1                   truth values, one bit each
    h8 .. h16            floats of b bits, shifted to the array's largest: error <= 2^(5-b) |x|, or 2^(-22-b) max|x|
    p12 .. p16           positive floats of b bits: error <= 2^(7-b) x

Encoding what was decoded gives the same bytes: every rounding here is a projection.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbayes.errors import ArtifactError

Array = NDArray[Any]

RAW = {
    "float64": "f8",
    "float32": "f4",
    "float16": "f2",
    "bfloat16": "b2",
    "complex64": "c8",
    "complex128": "c16",
}
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
DTYPES = (*RAW, *INTEGERS, "bool")
SHORT = range(8, 17)  # widths of h
POSITIVE = range(12, 17)  # widths of p
_STORED = {"b2": "<u2", **{code: f"<{code}" for code in ("f2", "f4", "f8", "c8", "c16")}}
_STORED |= {f"{sign}{width}": f"<{sign}{width}" for sign in "iu" for width in (1, 2, 4, 8)}
_CODES = {*_STORED, "t1", *(f"h{b}" for b in SHORT), *(f"p{b}" for b in POSITIVE)}


def as_numpy(dtype: str) -> np.dtype[Any]:
    """The numpy type that holds values of the named type; bfloat16 is held in float32."""
    return np.dtype("float32" if dtype == "bfloat16" else dtype)


def is_float(dtype: str) -> bool:
    return dtype in ("float64", "float32", "float16", "bfloat16")


def is_code(code: object) -> bool:
    """Whether this is one of the codes above."""
    return isinstance(code, str) and code in _CODES


def constant_of(values: Array, dtype: str) -> float | int | None:
    """The one number that all values are to the bit, where it is shorter to write than they are many; else None."""
    flat = np.ascontiguousarray(values).reshape(-1)
    if flat.size < 2 or dtype in ("complex64", "complex128"):
        return None
    patterns = flat.view(f"u{flat.itemsize}")
    if (patterns != patterns[0]).any():
        return None
    found: float | int = flat[0].item()
    return found if is_constant(found, dtype) and len(json.dumps(found)) < flat.size else None


def stored_constant(values: Array, dtype: str, code: str) -> float | int | None:
    """The one number that all values are, or that all become when they are stored by that code; else None."""
    found = constant_of(values, dtype)
    if found is None and is_float(dtype) and code not in RAW.values():
        return constant_of(unpack(pack(values, code), code).astype(as_numpy(dtype)), dtype)
    return found


def is_constant(value: object, dtype: str) -> bool:
    """Whether a number in JSON is one of that type, exactly."""
    if dtype == "bool":
        return type(value) is bool
    if dtype in INTEGERS:
        return type(value) is int and np.iinfo(dtype).min <= value <= np.iinfo(dtype).max
    if not is_float(dtype) or type(value) is not float or not math.isfinite(value):
        return False
    with np.errstate(over="ignore"):
        return float(as_numpy(dtype).type(value)) == value


def nbytes(code: str, size: int) -> int:
    """How many bytes `size` numbers take."""
    if code in _STORED:
        return np.dtype(_STORED[code]).itemsize * size
    bits = (int(code[1:]) * size + 7) // 8
    return bits + (1 if code[0] == "h" and size else 0)


def plain_code(values: Array, dtype: str, bits: int) -> str:
    """How a deterministic array is stored when `bits` are allowed for a float."""
    if dtype == "bool":
        return "t1"
    if dtype in INTEGERS:
        return _narrowest(values)
    if not is_float(dtype) or bits == 64 or (dtype == "float32" and bits == 32):
        return RAW[dtype]
    if bits == 32:
        return "f4" if dtype == "float64" and _survives(values) else RAW[dtype]
    if dtype in ("float16", "bfloat16") and bits == 16:
        return RAW[dtype]
    return f"h{bits}" if fits(values, dtype, f"h{bits}") else RAW[dtype]


def bits_of(code: str) -> int:
    """The `bits` with which `plain_code` chooses this code again."""
    return int(code[1:]) if code[0] == "h" else 32 if code == "f4" else 64


def fits(values: Array, dtype: str, code: str) -> bool:
    """Whether every number is finite, and stays so in its own type when it is rounded."""
    if not np.isfinite(values).all():
        return False
    with np.errstate(over="ignore"):
        return bool(np.isfinite(unpack(pack(values, code), code).astype(as_numpy(dtype))).all())


def _survives(values: Array) -> bool:
    """Whether a float64 array keeps its infinities, and no others, in float32."""
    with np.errstate(over="ignore"):
        return bool((np.isfinite(values.astype(np.float32)) == np.isfinite(values)).all())


def _narrowest(values: Array) -> str:
    low, high = (int(values.min()), int(values.max())) if values.size else (0, 0)
    kind = "i" if low < 0 else "u"
    need = max(high.bit_length(), (-low - 1).bit_length() if low < 0 else 0) + (low < 0)
    return f"{kind}{next(width for width in (1, 2, 4, 8) if need <= 8 * width)}"


def pack(values: Array, code: str) -> bytes:
    """The bytes of a flattened array (C order)."""
    flat = np.ascontiguousarray(values).reshape(-1)
    if code == "b2":
        return (_bits(flat, 16) & 0xFFFF).astype("<u2").tobytes()
    if code in _STORED:
        return flat.astype(_STORED[code]).tobytes()
    if code == "t1":
        return np.packbits(flat.astype(bool)).tobytes()
    width = int(code[1:])
    return _pack_positive(flat, width) if code[0] == "p" else _pack_short(flat, width)


def unpack(data: bytes | memoryview, code: str) -> Array:
    """The numbers in `data`, flat; short floats come back as float32 (t1 with its padding)."""
    if code == "b2":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    if code in _STORED:
        stored = np.frombuffer(data, _STORED[code])
        return stored.astype(stored.dtype.newbyteorder("="))
    if code == "t1":
        return np.unpackbits(np.frombuffer(data, np.uint8)).astype(bool)
    width = int(code[1:])
    if code[0] == "p":
        return (_unpack_bits(data, width).astype(np.uint32) << (31 - width)).view(np.float32)
    if not data:
        return np.zeros(0, np.float32)
    shift = int(np.frombuffer(data, np.int8, 1)[0])
    halves = (_unpack_bits(data[1:], width) << (16 - width)).astype(np.uint16).view(np.float16)
    with np.errstate(all="ignore"):  # a damaged file may hold anything; the caller looks at the numbers
        return np.ldexp(halves.astype(np.float64), shift).astype(np.float32)


def read(data: bytes | memoryview, code: str, shape: tuple[int, ...], dtype: str, where: str) -> Array:
    """An array of this shape and type from exactly the bytes it takes."""
    size = math.prod(shape)
    if len(data) != nbytes(code, size):
        raise ArtifactError(
            f"{where}: {size} numbers as {code} take {nbytes(code, size)} bytes, got {len(data)}"
        )
    _require_zero_padding(data, code, size, where)
    values = unpack(data, code)[:size]
    target = as_numpy(dtype)
    if dtype in INTEGERS and size:
        low, high = np.iinfo(target).min, np.iinfo(target).max
        if int(values.min()) < low or int(values.max()) > high:
            raise ArtifactError(f"{where}: a number does not fit {dtype}")
    with np.errstate(all="ignore"):
        return values.astype(target).reshape(shape)


def _require_zero_padding(data: bytes | memoryview, code: str, size: int, where: str) -> None:
    """The bits after the last number, up to a full byte, are zero: one array has one sequence of bytes."""
    spare = 0 if code in _STORED else -int(code[1:]) * size % 8
    if spare and data[-1] & ((1 << spare) - 1):
        raise ArtifactError(f"{where}: the {spare} bits after its last number must be zero")


def _bits(values: Array, drop: int) -> NDArray[np.uint32]:
    """float32 bit patterns without the last `drop` bits, rounded to nearest, ties away from zero."""
    pattern = values.astype(np.float32).view(np.uint32)
    special = (pattern & 0x7F800000) == 0x7F800000  # infinities and NaNs are cut, not rounded
    rounded = pattern + np.uint32(1 << (drop - 1))
    return np.where(special, pattern, rounded) >> np.uint32(drop)


def _pack_positive(values: Array, width: int) -> bytes:
    """Sign bit gone, 8 exponent bits and width - 8 of the fraction."""
    return _pack_bits(_bits(values, 31 - width), width)


def _pack_short(values: Array, width: int) -> bytes:
    """An exponent shift (int8), then halves cut to `width` bits with max|x| in [2^14, 2^15)."""
    if not values.size:
        return b""
    wide = values.astype(np.float64)
    shift = math.frexp(float(np.abs(wide).max()))[1] - 15
    codes = _cut_halves(wide, max(-128, min(127, shift)), width)
    if (codes & (1 << (width - 1)) - 1).max() >= _exponent_30(width):  # rounded up into the next binade
        shift += 1
        codes = _cut_halves(wide, max(-128, min(127, shift)), width)
    return np.int8(max(-128, min(127, shift))).tobytes() + _pack_bits(codes, width)


def _exponent_30(width: int) -> int:
    """The code of 2^15."""
    return int(np.float16(2.0**15).view(np.uint16)) >> (16 - width)


def _cut_halves(wide: NDArray[np.float64], shift: int, width: int) -> NDArray[np.uint32]:
    fraction, exponent = np.frexp(wide)
    rounded = np.ldexp(np.rint(np.ldexp(fraction, width - 5)), exponent - (width - 5) - shift)  # one rounding
    with np.errstate(over="ignore", under="ignore"):
        pattern = rounded.astype(np.float16).view(np.uint16).astype(np.uint32)
    sign, size = pattern >> 15, pattern & 0x7FFF
    drop = 16 - width
    cut = (size + ((1 << drop) >> 1)) >> drop
    return np.where(cut > 0, (sign << (width - 1)) | cut, 0).astype(np.uint32)  # one zero, without a sign


def _pack_bits(codes: Array, width: int) -> bytes:
    """Codes of `width` bits, most significant bit first, zero bits up to a full byte."""
    if width == 16:
        return codes.astype(">u2").tobytes()
    wide = np.unpackbits(codes.astype(">u2").view(np.uint8).reshape(-1, 2), axis=1)
    return np.packbits(wide[:, 16 - width :]).tobytes()


def _unpack_bits(data: bytes | memoryview, width: int) -> NDArray[np.uint16]:
    if width == 16:
        return np.frombuffer(data[: len(data) // 2 * 2], ">u2").astype(np.uint16)
    size = 8 * len(data) // width
    bits = np.unpackbits(np.frombuffer(data, np.uint8))[: size * width].reshape(size, width)
    wide = np.zeros((size, 16), np.uint8)
    wide[:, 16 - width :] = bits
    return np.packbits(wide).view(">u2").astype(np.uint16)
