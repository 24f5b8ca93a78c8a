"""A small vision transformer for 32 x 32 images."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Attention and an MLP, each behind a LayerNorm and beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """Patches of 4 x 4 pixels, the mean over their last features: [N, 3, 32, 32] -> [N, num_classes]."""

    def __init__(self, num_classes: int = 10, width: int = 128, depth: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.position = nn.Parameter(0.02 * torch.randn(1, 64, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).movedim(1, 2) + self.position
        logits: Tensor = self.linear(self.norm(self.blocks(x)).mean(1))
        return logits
