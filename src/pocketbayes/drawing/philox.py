"""Random words as a function of where they are wanted: Philox4x64-10, keyed by the draw, counted by the place.

    key = (seed, pair)      counter = (block, part, tensor, mode)      each number a word of 64 bits

Distinct numbers give distinct (key, counter), with nothing hashed and nothing to collide, and Philox turns each into
256 bits of its own (Salmon et al. 2011).  So any slice of any tensor of any draw is made alone, in any order.
Draws of a mode come in mirrored pairs: the second has all bits of the first complemented.
`WordStream` is numpy's own Philox; counter.py in the noise package does the same arithmetic in torch on other devices.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import numpy as np

from pocketbayes.drawing.exact import Array

_WORD = (1 << 64) - 1
_CHUNK = 1 << 15  # elements: their words and their part of the result stay in the second-level cache
SIGNS = (((np.arange(256)[:, None] >> np.arange(8)) & 1) * 2 - 1).astype(np.float32)  # [256, 8] of every byte


def tensor_number(name: str) -> int:
    """The number of a tensor: the first 8 bytes of the SHA-256 of its name in UTF-8, little-endian."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")


class WhichDraw(NamedTuple):
    """Which mode a draw is of, and which of that mode's draws: they come in pairs that mirror each other."""

    seed: int
    pair: int
    mirrored: bool
    mode: int

    @staticmethod
    def of(seed: int, number: int, modes: int = 1) -> WhichDraw:
        """Draw `number` of a seed: that of the modes in turn, so that two turns are a pair of each."""
        turn, mode = divmod(number, modes)
        return WhichDraw(seed, turn // 2, turn % 2 == 1, mode)


class WordStream:
    """The random words of one tensor in one draw.

    A law takes words of 16 bits, or bits, for the elements `start` to `start + count`; laws that need several for
    each element take them from several parts.
    """

    xp: Any = np  # the array namespace that the words come in

    def __init__(self, which: WhichDraw, *, tensor: int) -> None:
        self.key = (which.seed & _WORD, which.pair & _WORD)
        self.where = (tensor & _WORD, which.mode & _WORD)
        self.mirrored = which.mirrored

    def like(self, values: Any, array: Any) -> Any:
        """Constants in the type, and on the device, of an array."""
        return np.asarray(values, array.dtype)

    def words(self, part: int, start: int, count: int) -> Any:
        """[count] uniform integers from 0 to 65535."""
        first, generator = start % 16, self._at(part, start // 16)
        return self._raw(generator, first + count, 16).view("<u2")[first : first + count]

    def look_up(self, table: Array, part: int, start: int, count: int) -> Any:
        """[count] entries of a table [65536]."""
        out = np.empty(count, np.float32)
        first, generator = start % 16, self._at(part, start // 16)
        low = 0
        while low < count:
            high = min(count, low + _CHUNK - first)
            words = self._raw(generator, first + high - low, 16).view("<u2")[first : first + high - low]
            np.take(table, words, out=out[low:high], mode="clip")
            low, first = high, 0
        return out

    def signs(self, part: int, start: int, count: int) -> Any:
        """[count] of -1 for a zero bit and +1 for a one."""
        first, generator = start % 256, self._at(part, start // 256)
        out = np.empty((-(-(first + count) // 64) * 8, 8), np.float32)
        for low in range(0, len(out), _CHUNK // 8):
            rows = out[low : low + _CHUNK // 8]
            np.take(SIGNS, self._raw(generator, rows.size, 1).view(np.uint8), axis=0, out=rows, mode="clip")
        return out.reshape(-1)[first : first + count]

    def _at(self, part: int, block: int) -> np.random.Philox:
        """numpy counts up before it makes a block: begin one earlier."""
        counter = block + (part << 64) + (self.where[0] << 128) + (self.where[1] << 192)
        return np.random.Philox(key=self.key[0] + (self.key[1] << 64), counter=(counter - 1) % (1 << 256))

    def _raw(self, generator: np.random.Philox, count: int, bits: int) -> Array:
        """The next words of 64 bits, at least enough for `count` pieces of so many bits, in little-endian order."""
        words: Array = np.asarray(generator.random_raw(-(-count * bits // 64)))
        return (~words if self.mirrored else words).astype("<u8", copy=False)
