"""ResNet-20 with trained weights from outside: what experiments start from that are not about files of our own."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from pocketbayes import data, nets

IMAGENET = data.Scaling(torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225]), 255.0)


def given_network(weights: str | Path) -> nn.Module:
    """From a safetensors file; its images are scaled as `given_images` does."""
    network = nets.resnet20().to(memory_format=torch.channels_last)
    network.load_state_dict(load_file(weights))
    return network


def given_images(folder: str | None, split: str = "train") -> data.DataSet:
    return data.load("cifar10", folder, split, scaling=IMAGENET)
