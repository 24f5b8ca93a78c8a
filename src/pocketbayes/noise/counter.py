"""The random words of drawing/philox.py as torch tensors: numpy's on the CPU, the same integers on any other device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pocketbayes.drawing import WhichDraw, WordStream
from pocketbayes.drawing.exact import Array
from pocketbayes.drawing.philox import SIGNS

_LOW = (1 << 32) - 1
_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_BUMPS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_ROUNDS = 10


def stream_on(device: torch.device, which: WhichDraw, *, tensor: int) -> WordStream:
    """The stream whose words are tensors on that device."""
    kind = HostStream if device.type == "cpu" else DeviceStream
    return kind(which, tensor=tensor, device=device)


class HostStream(WordStream):
    """numpy's Philox, which is faster than torch's own normal distribution."""

    xp = torch

    def __init__(self, which: WhichDraw, *, tensor: int, device: torch.device | None = None) -> None:
        super().__init__(which, tensor=tensor)
        self.device = device

    def like(self, values: Any, array: Tensor) -> Tensor:
        return torch.tensor(values, dtype=array.dtype, device=array.device)

    def words(self, part: int, start: int, count: int) -> Tensor:
        return torch.from_numpy(super().words(part, start, count)).to(torch.int32)

    def look_up(self, table: Array, part: int, start: int, count: int) -> Tensor:
        return torch.from_numpy(super().look_up(table, part, start, count))

    def signs(self, part: int, start: int, count: int) -> Tensor:
        return torch.from_numpy(super().signs(part, start, count))


class DeviceStream(HostStream):
    """Philox in 64-bit integers of torch."""

    def words(self, part: int, start: int, count: int) -> Tensor:
        first = start % 16
        raw = self._blocks(part, start // 16, -(-(first + count) // 16))
        return raw.view(torch.int16)[first : first + count].to(torch.int32) & 0xFFFF

    def look_up(self, table: Array, part: int, start: int, count: int) -> Tensor:
        values = torch.from_numpy(table).to(self.device)
        return values.index_select(0, self.words(part, start, count))

    def signs(self, part: int, start: int, count: int) -> Tensor:
        first = start % 256
        raw = self._blocks(part, start // 256, -(-(first + count) // 256))
        rows = torch.from_numpy(SIGNS).to(self.device).index_select(0, raw.view(torch.uint8).int())
        return rows.view(-1)[first : first + count]

    def _blocks(self, part: int, block: int, count: int) -> Tensor:
        """[4 count] words of 64 bits."""
        counter = torch.arange(block, block + count, device=self.device)
        words = [counter, *(torch.full_like(counter, _signed(n)) for n in (part, *self.where))]
        raw = torch.stack(philox(words, self.key), 1).view(-1)
        return ~raw if self.mirrored else raw


def philox(words: list[Tensor], key: tuple[int, int]) -> list[Tensor]:
    """Philox4x64-10 of four int64 tensors, the bits of which count as unsigned."""
    a, b, c, d = words
    for turn in range(_ROUNDS):
        left, right = (_signed(k + turn * bump) for k, bump in zip(key, _BUMPS, strict=True))
        high_a, low_a = _product(a, _MULTIPLIERS[0])
        high_c, low_c = _product(c, _MULTIPLIERS[1])
        a, b, c, d = high_c ^ b ^ left, low_c, high_a ^ d ^ right, low_a
    return [a, b, c, d]


def _product(x: Tensor, multiplier: int) -> tuple[Tensor, Tensor]:
    """The upper and the lower 64 bits of a product; sums of halves never pass 2^64."""
    m1, m0 = multiplier >> 32, multiplier & _LOW
    x1, x0 = _upper(x), x & _LOW
    middle = x1 * m0 + _upper(x0 * m0)
    other = x0 * m1 + (middle & _LOW)
    return x1 * m1 + _upper(middle) + _upper(other), x * _signed(multiplier)


def _upper(x: Tensor) -> Tensor:
    return (x >> 32) & _LOW


def _signed(n: int) -> int:
    """The int64 with the bits of n mod 2^64."""
    n &= (1 << 64) - 1
    return n - (1 << 64) if n >> 63 else n
