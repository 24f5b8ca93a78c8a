"""Drawing z from random bits: tables of equally likely values, and packed signs.

Everything is plain tensor operations on random integers.  With a generator, big tensors are made in chunks that stay
in the cache; without one the same operations run on the whole tensor, so that they can be traced.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

from pocketbayes.drawing.philox import SIGNS

CHUNK = 1 << 16  # draws: their intermediate results stay in the second-level cache

Function = TypeVar("Function", bound=Callable[..., object])


def graph_constant(function: Function) -> Function:
    """Marks what is computed outside of a compiled graph and is a constant inside.

    The mark of `torch.compiler.assume_constant_result`, which would import the whole compiler to set it.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def random_words(count: int, device: torch.device, generator: torch.Generator | None) -> Tensor:
    """Uniform int64 over their whole range, to be viewed as smaller pieces: [count]."""
    return torch.randint(-(2**63), 2**63 - 1, (count,), device=device, generator=generator)


def sample_table(table: Tensor, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Entries of a table [65536], by 16 random bits each: the law that the file format draws from too."""
    table = table.to(like.device)
    if generator is None or like.numel() <= CHUNK:
        return _look_up(table, like, generator).to(like.dtype)
    out = torch.empty(like.shape, dtype=like.dtype, device=like.device)
    for part in out.view(-1).split(CHUNK):
        part.copy_(_look_up(table, part, generator))
    return out


def _look_up(table: Tensor, like: Tensor, generator: torch.Generator | None) -> Tensor:
    words = random_words((like.numel() + 3) // 4, like.device, generator)
    index = words.view(torch.int16)[: like.numel()].to(torch.int32).bitwise_and_(0xFFFF)
    return table.index_select(0, index).view(like.shape)


def sample_signs(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """+1 or -1 with equal probability: one random bit a draw, eight draws per table row."""
    if torch.compiler.is_compiling():
        return torch.randint_like(like, 2) * 2 - 1  # a graph keeps no table
    bits = random_words((like.numel() + 63) // 64, like.device, generator)
    rows = bits.view(torch.uint8).to(torch.int32)  # [8 * words]
    signs = _sign_table(like.dtype, like.device).index_select(0, rows)
    return signs.view(-1)[: like.numel()].view(like.shape)


@graph_constant
@cache
def _sign_table(dtype: torch.dtype, device: torch.device) -> Tensor:
    """The eight signs of every byte, [256, 8]."""
    return torch.from_numpy(SIGNS.copy()).to(device, dtype)
