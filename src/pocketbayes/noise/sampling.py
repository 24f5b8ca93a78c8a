"""Drawing z from random bits: tabulated inverse distribution functions and packed signs.

Everything is plain tensor operations on random integers.  With a generator, big tensors are made in chunks that stay
in the cache; without one the same operations run on the whole tensor, so that they can be traced.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch
from torch import Tensor

from pocketbayes.drawing.philox import SIGNS
from pocketbayes.noise.quadrature import panel_nodes

if TYPE_CHECKING:
    from pocketbayes.noise.family import Law

CHUNK = 1 << 16  # draws: their intermediate results stay in the second-level cache
_MANTISSA = 9  # bits: 512 cells per octave of u
_REST = 23 - _MANTISSA
_SIDE = 31 * (1 << _MANTISSA) + 1  # cells of one side: u = 2^-32 ... 1/2


Function = TypeVar("Function", bound=Callable[..., object])


def graph_constant(function: Function) -> Function:
    """Marks what is computed outside of a compiled graph and is a constant inside.

    The mark of `torch.compiler.assume_constant_result`, which would import the whole compiler to set it.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


class InverseTable(NamedTuple):
    """F^-1, linear within cells of u that shrink with the tail: 512 cells per factor of two, down to 2^-32."""

    value: Tensor  # [2 * _SIDE] float32, lower half of the law first
    slope: Tensor  # [2 * _SIDE], per unit of the remaining mantissa bits


def random_words(count: int, device: torch.device, generator: torch.Generator | None) -> Tensor:
    """Uniform int64 over their whole range, to be viewed as smaller pieces: [count]."""
    return torch.randint(-(2**63), 2**63 - 1, (count,), device=device, generator=generator)


def in_chunks(
    make: Callable[[Tensor, torch.Generator | None], Tensor], like: Tensor, generator: torch.Generator | None
) -> Tensor:
    """`make(like, generator)`, chunk by chunk where a generator says that nothing is traced."""
    if generator is None or like.numel() <= CHUNK:
        return make(like, generator).to(like.dtype)
    out = torch.empty(like.shape, dtype=like.dtype, device=like.device)
    for part in out.view(-1).split(CHUNK):
        part.copy_(make(part, generator))
    return out


def sample_inverse(table: InverseTable, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draws by inverse transform, z = F^-1(u), u of 32 random bits."""
    return in_chunks(partial(_look_up, table), like, generator)


def _look_up(table: InverseTable, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """The sign bit chooses the side; the other 31, as a float, name a cell (exponent and leading mantissa bits)."""
    words = random_words((like.numel() + 1) // 2, like.device, generator)
    bits = words.view(torch.int32)[: like.numel()].view(like.shape)
    odd = (bits | 1).bitwise_and_(0x7FFFFFFF)  # the middle of its cell of width 2: u = odd / 2^32
    real = odd.to(torch.float32).view(torch.int32)
    side = (bits >> 31).bitwise_and_(_SIDE).sub_(127 << _MANTISSA)
    cell = (real >> _REST).add_(side)
    rest = (real & ((1 << _REST) - 1)).to(torch.float32)
    value, slope = (part.to(like.device) for part in table)
    return torch.addcmul(_take(value, cell), _take(slope, cell), rest)


def _take(values: Tensor, index: Tensor) -> Tensor:
    return values.index_select(0, index.reshape(-1)).view(index.shape)


def inverse_table(law: Law) -> InverseTable:
    """The table of a law, scaled to exactly zero mean and unit variance.

    The outermost cell of each side, u < 2^-31, holds one value with the tail's second moment, so that heavy tails
    keep their variance although no uniform number reaches further.
    """
    octave = torch.arange(32, dtype=torch.float64).unsqueeze(1)
    step = torch.arange(1 << _MANTISSA, dtype=torch.float64) / (1 << _MANTISSA)
    u = (torch.exp2(octave - 32) * (1 + step)).flatten()[: _SIDE + 1]  # 2^-32 ... just above 1/2
    u[_SIDE:] = 0.5
    low, high = law.icdf(u), law.icdf(1 - u)
    low[0], high[0] = _tail_rms(law, 2.0**-31)
    mass = u.diff()
    mass[0], mass[1 : 1 << _MANTISSA] = 2.0**-31, 0.0  # only one integer falls below 2^-31
    ends = torch.stack([low, high])  # [2, _SIDE + 1]
    mean = 0.5 * (mass * (ends[:, 1:] + ends[:, :-1])).sum()
    squares = ends[:, 1:].square() + ends[:, 1:] * ends[:, :-1] + ends[:, :-1].square()
    squares[:, 0] = 3 * ends[:, 0].square()
    sd = ((mass * squares).sum() / 3 - mean.square()).sqrt()
    ends = (ends - mean) / sd
    slope = ends.diff(dim=1) / (1 << _REST)
    return InverseTable(ends[:, :-1].flatten().float(), slope.flatten().float())


def _tail_rms(law: Law, u: float) -> tuple[float, float]:
    """Root mean squares of z over the lower and the upper tail of probability u, signed as the tails are."""
    cut_low, cut_high = law.icdf(torch.tensor([u, 1 - u], dtype=torch.float64)).tolist()
    edges = law.edges()
    below = torch.cat([edges[edges < cut_low], torch.tensor([cut_low], dtype=torch.float64)])
    above = torch.cat([torch.tensor([cut_high], dtype=torch.float64), edges[edges > cut_high]])
    return (
        math.copysign(_rms(law, below, abs(cut_low)), cut_low),
        math.copysign(_rms(law, above, abs(cut_high)), cut_high),
    )


def _rms(law: Law, edges: Tensor, fallback: float) -> float:
    if edges.numel() < 2:
        return fallback
    nodes, lengths = panel_nodes(edges, law.order)
    weights = (law.log_prob(nodes) + lengths.log()).exp()
    seen = weights > 0
    if not seen.any():
        return fallback
    return float(((weights[seen] * nodes[seen].square()).sum() / weights[seen].sum()).sqrt())


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


def sample_uniform(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Uniform on [0, 1) in the dtype of `like`."""
    if generator is None:
        return torch.rand_like(like)
    return torch.rand(like.shape, dtype=like.dtype, device=like.device, generator=generator)


def sample_normal(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal in the dtype of `like`."""
    if generator is None:
        return torch.randn_like(like)
    return torch.empty_like(like).normal_(generator=generator)
