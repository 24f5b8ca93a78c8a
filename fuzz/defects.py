"""Files that once came through: a few hundred bytes that kept their reader busy, or filled its memory."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from fuzz.pockets import seal, squeeze
from pocketbayes.artifact import numbers

MEGA = 1 << 28
ONE_PAIR = numbers.pack(np.ones(1), "h16") + numbers.pack(np.ones(1), "p16")


def tables(layers: bytes, count: int, symbols: int, *certain: int) -> bytes:
    """FREQ with tables that each name one symbol for certain."""
    codes = np.zeros((count, symbols), np.uint8)
    codes[range(len(certain)), certain] = 1
    return squeeze(layers + codes.T.tobytes())


def bomb(tensors: list[Any], **more: Any) -> bytes:
    sections = {tag: more.pop(tag) for tag in ("FREQ", "CODE") if tag in more}
    head = {"precision": [16, 16, 16], "tensors": tensors, **more}
    return seal({"HEAD": squeeze(json.dumps(head).encode()), **sections})


def shared(shape: list[int], layers: bytes, *certain: int, **more: Any) -> bytes:
    """One shared tensor whose labels take no bits."""
    row = ["w", "s", shape, "float32", *([more] if more else [])]
    freq = tables(layers, len(certain), 3, *certain)
    return bomb([row], codebook=1, tables=len(certain), FREQ=freq, CODE=ONE_PAIR)


def ruled(rule: str, **more: int) -> bytes:
    fixed = {"count": MEGA // 2, "rule": {"rule": rule, "layer": 0, **more}, "value": 0.0}
    return bomb([["w", "n", [1 << 14, 1 << 14], "float32", {"fixed": fixed}]])


WIDE = 65534
WIDE_CODE = numbers.pack(np.ones(WIDE), "h16") + numbers.pack(np.ones(WIDE), "p16")
EMPTY = [[f"{i:x}", "s", [0], "float32"] for i in range(5000)]
CERTAIN = tables(bytes(3), 1, 3, 0)
TIES = [[f"{i:x}", "t", "w"] for i in range(16_000)]
BOMBS = {
    "one symbol": (shared([MEGA], bytes(3), 0), "elements, more than"),
    "blends of one": (shared([MEGA], bytes(5) + b"\1", 2, 0, blend=1), "elements, more than"),
    "kernels": (shared([1 << 20, 16, 16], b"\1" + bytes(6), 0), "elements, more than"),
    "a rule": (ruled("random", count=MEGA // 2, seed=1), "elements, more than"),
    "many names of one tensor": (
        bomb(
            [["w", "s", [1 << 20], "float32"], *TIES],
            codebook=1,
            tables=1,
            FREQ=tables(bytes(3), 1, 3, 0),
            CODE=ONE_PAIR,
        ),
        "",
    ),
    "many tensors": (bomb([[f"{i:x}", "p", [0], "float32", "f4"] for i in range(10**5)]), "at most 16384"),
    "wide tables": (
        bomb([], codebook=WIDE, tables=256, FREQ=tables(b"", 256, WIDE + 2), CODE=WIDE_CODE),
        "tables hold more",
    ),
    "empty tensors and a wide codebook": (
        bomb(EMPTY, codebook=WIDE, tables=1, FREQ=tables(bytes(15000), 1, WIDE + 2, 0), CODE=WIDE_CODE),
        "",
    ),
}
