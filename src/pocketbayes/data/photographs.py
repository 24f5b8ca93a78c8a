"""Patches of photographs: inputs that no classifier of digits should be sure about."""

from __future__ import annotations

import torch
from torch import Tensor


def photograph_patches(count: int, seed: int) -> Tensor:
    """Random 8 x 8 patches of scikit-learn's photographs in grey, each stretched to 0..16: [count, 1, 8, 8]."""
    from sklearn.datasets import load_sample_images

    generator = torch.Generator().manual_seed(seed)
    grey = torch.stack(
        [torch.tensor(image).float().mean(2) for image in load_sample_images().images]
    )  # [2, H, W]
    windows = grey.unfold(1, 8, 1).unfold(2, 8, 1)  # a view [2, H - 7, W - 7, 8, 8]
    places = [torch.randint(size, (count,), generator=generator) for size in windows.shape[:3]]
    patches = windows[places[0], places[1], places[2]]  # [count, 8, 8]
    low, high = patches.amin((1, 2), keepdim=True), patches.amax((1, 2), keepdim=True)
    return (16 * (patches - low) / (high - low).clamp_min(1)).round()[:, None]
