"""Five corruptions of images at three strengths: raw images [N, C, H, W] from 0 to 255 in, and out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from pocketbayes.data import DataSet


def noise(x: Tensor, sigma: float) -> Tensor:
    """Gaussian, of that standard deviation, the same every time."""
    return x + sigma * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))


def blur(x: Tensor, sigma: float) -> Tensor:
    """By a Gaussian of so many pixels; the border is repeated."""
    reach = math.ceil(3 * sigma)
    line = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / sigma) ** 2)
    line = (line / line.sum()).expand(x.shape[1], 1, 1, -1)
    wide = F.pad(x, (reach, reach, reach, reach), mode="replicate")
    return F.conv2d(F.conv2d(wide, line, groups=x.shape[1]), line.mT, groups=x.shape[1])


def contrast(x: Tensor, left: float) -> Tensor:
    """Only that fraction of it is left, around the mean of each image."""
    middle = x.mean((1, 2, 3), keepdim=True)
    return middle + left * (x - middle)


def brightness(x: Tensor, more: float) -> Tensor:
    return x + more


def pixelation(x: Tensor, pixels: float) -> Tensor:
    """So many pixels along each side."""
    small = F.interpolate(x, size=(int(pixels), int(pixels)), mode="area")
    return F.interpolate(small, size=x.shape[2:], mode="nearest-exact")


CORRUPTIONS: dict[Callable[[Tensor, float], Tensor], tuple[float, float, float]] = {  # weak to strong
    noise: (8.0, 16.0, 32.0),
    blur: (0.6, 0.9, 1.3),
    contrast: (0.6, 0.4, 0.25),
    brightness: (32.0, 64.0, 96.0),
    pixelation: (24.0, 20.0, 16.0),
}


def corrupted(images: DataSet) -> Iterator[tuple[str, DataSet]]:
    """Each corruption at each strength, by name, as bytes like the images themselves."""
    for corruption, strengths in CORRUPTIONS.items():
        for number, strength in enumerate(strengths, 1):
            x = corruption(images.x.float(), strength).clamp(0, 255).round().to(torch.uint8)
            yield f"{corruption.__name__} {number}", replace(images, x=x)
