"""ResNet-50 with ImageNet weights from outside, and the images to calibrate, to choose and to test on."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

EASY, HELD_OUT = "images_224.zip", "validation_2000.zip"  # to calibrate and choose on, to test on
MEANS = 103.939, 116.779, 123.68  # of blue, green and red


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions beside a shortcut; the first has the stride."""

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        out_channels = 4 * width
        self.conv1 = nn.Conv2d(in_channels, width, 1, stride, bias=False)
        self.bn1 = _norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = _norm(width)
        self.conv3 = nn.Conv2d(width, out_channels, 1, bias=False)
        self.bn3 = _norm(out_channels)
        self.downsample: nn.Module = nn.Identity()
        if in_channels != out_channels:
            shortcut = nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, _norm(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.downsample(x) + self.bn3(self.conv3(y)))


class ResNet50(nn.Module):
    """He et al. (2016) as it was first published: [N, 3, 224, 224] -> [N, 1000], 25.6 M parameters."""

    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, padding=3, bias=False)
        self.bn1 = _norm(64)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        self.layer1 = _stage(64, 64, 3, stride=1)
        self.layer2 = _stage(256, 128, 4, stride=2)
        self.layer3 = _stage(512, 256, 6, stride=2)
        self.layer4 = _stage(1024, 512, 3, stride=2)
        self.fc = nn.Linear(2048, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3)


def _stage(in_channels: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    first = Bottleneck(in_channels, width, stride)
    return nn.Sequential(first, *(Bottleneck(4 * width, width, 1) for _ in range(blocks - 1)))


def resnet50(weights: str | Path) -> nn.Module:
    """From a safetensors file; its images are scaled as `images` does."""
    network = ResNet50().to(memory_format=torch.channels_last)
    network.load_state_dict(load_file(weights))
    return network.eval()


def images(archive: Path, places: slice = slice(None)) -> tuple[Tensor, Tensor]:
    """The images of a zip file, [N, 3, 224, 224] uint8 in the order blue, green, red, and their classes [N]."""
    from PIL import Image

    with zipfile.ZipFile(archive) as files:
        names = sorted(files.namelist())[places]
        pixels = [np.asarray(Image.open(io.BytesIO(files.read(n))).convert("RGB")) for n in names]
    labels = torch.tensor([int(Path(name).stem.partition("_")[2]) for name in names])
    return torch.from_numpy(np.stack(pixels)[..., ::-1].copy()).movedim(-1, 1), labels


def inputs(pixels: Tensor) -> Tensor:
    """As the network takes them."""
    return (pixels.float() - torch.tensor(MEANS).view(3, 1, 1)).contiguous(memory_format=torch.channels_last)
