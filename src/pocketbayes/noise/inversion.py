"""Inverse distribution functions where there is no formula."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from pocketbayes.noise.family import Law


def invert(law: Law, u: Tensor, low: float, high: float) -> Tensor:
    """F^-1(u) for a continuous law, by Newton steps kept inside a shrinking bracket; dtype of u."""
    target = u.detach().double()
    lo, hi = torch.full_like(target, low), torch.full_like(target, high)
    z = torch.special.ndtri(target).clamp(low, high)
    for _ in range(200):
        excess = law.cdf(z) - target
        lo, hi = torch.where(excess < 0, z, lo), torch.where(excess < 0, hi, z)
        newton = z - excess / law.log_prob(z).exp()
        following = torch.where((newton > lo) & (newton < hi), newton, 0.5 * (lo + hi))
        moved = (following - z).abs() > 1e-15 * (1 + z.abs())
        z = torch.where(excess == 0, z, following)
        if not bool((moved & (excess != 0)).any()):
            break
    z = torch.where(target <= 0, low, torch.where(target >= 1, high, z))
    return torch.where((target < 0) | (target > 1), torch.nan, z).to(u)
