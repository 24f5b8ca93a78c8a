"""Protocol buffers, as far as a graph needs them: messages as dicts, by schemas that name all they may hold.

A schema gives the fields of a message by number: a name and a kind, which is `int`, `float`, `str`, `bytes` or the
schema of a message inside it; in a list if the field may stand many times. What the schema does not name is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, TypeAlias

from pocketbayes.errors import ArtifactError

Message: TypeAlias = dict[str, Any]
Schema: TypeAlias = dict[int, tuple[str, Any]]
MAX_MESSAGES = 1 << 17  # a message of two bytes becomes a dict of hundreds
_VARINT, _BYTES, _FIXED32 = 0, 2, 5  # wire types
_WORD = 64  # bits of an integer


def write(message: Mapping[str, Any], schema: Schema) -> bytes:
    """The message's bytes; its fields in the order of the schema, those that it lacks left out."""
    parts = []
    for number, (name, kind) in schema.items():
        many, kind = isinstance(kind, list), kind[0] if isinstance(kind, list) else kind
        given = message.get(name)
        for value in (given or ()) if many else () if given is None else (given,):
            parts += [_varint(number << 3 | _wire_type(kind)), _value(value, kind)]
    return b"".join(parts)


def _wire_type(kind: Any) -> int:
    return _VARINT if kind is int else _FIXED32 if kind is float else _BYTES


def _value(value: Any, kind: Any) -> bytes:
    if kind is int:
        return _varint(value % (1 << _WORD))
    if kind is float:
        return struct.pack("<f", value)
    data = value.encode() if kind is str else value if kind is bytes else write(value, kind)
    return _varint(len(data)) + data


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def read(data: bytes, schema: Schema, where: str) -> Message:
    """The message in these bytes, checked; memory is bounded by some hundred times their length, and MAX_MESSAGES."""
    return _Fields(data, where).message(len(data), schema)


class _Fields:
    def __init__(self, data: bytes, where: str) -> None:
        self.data, self.where = data, where
        self.at = self.messages = 0

    def message(self, end: int, schema: Schema) -> Message:
        self.messages += 1
        self.need(self.messages <= MAX_MESSAGES, f"more than {MAX_MESSAGES} parts")
        found: Message = {name: [] for name, kind in schema.values() if isinstance(kind, list)}
        while self.at < end:
            key = self.varint(end)
            self.need(key >> 3 in schema, f"field {key >> 3} of a message does not belong in a graph")
            name, kind = schema[key >> 3]
            many, kind = isinstance(kind, list), kind[0] if isinstance(kind, list) else kind
            self.need(key & 7 == _wire_type(kind), f"{name} is of another wire type")
            self.need(many or name not in found, f"{name} stands twice in a message")
            value = self.value(end, kind)
            if many:
                found[name].append(value)
            else:
                found[name] = value
        return found

    def value(self, end: int, kind: Any) -> Any:
        if kind is int:
            value = self.varint(end)
            return value - (value >> (_WORD - 1) << _WORD)
        if kind is float:
            return struct.unpack("<f", self.take(4, end))[0]
        size = self.varint(end)
        if isinstance(kind, dict):
            self.need(size <= end - self.at, "cut off")
            return self.message(self.at + size, kind)
        data = self.take(size, end)
        try:
            return data.decode() if kind is str else data
        except UnicodeDecodeError as error:
            raise ArtifactError(f"{self.where}: a name is not UTF-8 ({error})") from error

    def take(self, size: int, end: int) -> bytes:
        self.need(size <= end - self.at, "cut off")
        self.at += size
        return self.data[self.at - size : self.at]

    def varint(self, end: int) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self.take(1, end)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                return value % (1 << _WORD)
        raise ArtifactError(f"{self.where}: an integer of more than ten bytes")

    def need(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise ArtifactError(f"{self.where}: {otherwise}")
