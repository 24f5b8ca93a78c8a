"""Reference networks for the commands and the experiments: an MLP, a net for digits, LeNet-5, CIFAR ResNets.

All can be traced by torch.fx, change nothing in place and end in a linear layer.

Examples:
    >>> net = pb.nets.resnet20(num_classes=10)
    >>> sum(parameter.numel() for parameter in net.parameters())
    269722
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.nn import functional as F

Net = TypeVar("Net", bound=nn.Module)
NAMES = ("digits_net", "lenet", "resnet20", "resnet32", "resnet44", "resnet56")  # and mlp:64,64
FACTS = ("num_classes", "out_features", "in_channels", "in_features", "image_size")
_WIDEST, _LONGEST = 1 << 20, 200  # units in a hidden layer; characters of mlp:64,64
_RECTIFIERS = (nn.ReLU, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.ELU, nn.Softplus)


def mlp(widths: Sequence[int], activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers of widths [D_0, ..., D_L] with an activation between them: [N, D_0] -> [N, D_L].

    Weights start as N(0, gain^2 / fan_in), gain sqrt(2) behind rectifiers (He) and 1 elsewhere (LeCun).
    """
    if len(widths) < 2 or min(widths) < 1:
        raise ValueError(f"mlp: widths must be two or more positive numbers, got {list(widths)}.")
    layers: list[nn.Module] = []
    gain = 1.0
    for fan_in, fan_out in pairwise(widths):
        linear = nn.Linear(fan_in, fan_out)
        nn.init.normal_(linear.weight, std=gain * fan_in**-0.5)
        nn.init.zeros_(linear.bias)
        layers += [linear, activation()]
        gain = 2.0**0.5 if isinstance(layers[-1], _RECTIFIERS) else 1.0
    return nn.Sequential(*layers[:-1])


def digits_net(num_classes: int = 10) -> nn.Sequential:
    """A convolutional net for 8 x 8 digits without norms, [N, 1, 8, 8] -> [N, 10]: 22 954 parameters."""
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 2 * 2, 64),
        nn.ReLU(),
        nn.Linear(64, num_classes),
    )
    return _he_initialised(net)


def lenet(num_classes: int = 10, in_channels: int = 1, image_size: int = 28) -> nn.Sequential:
    """LeNet-5 with ReLU and max pooling, for 28 x 28 (padded to 32) or 32 x 32 images: 61 706 parameters."""
    if image_size not in (28, 32):
        raise ValueError(f"lenet: image_size must be 28 or 32, got {image_size}. Resize the images.")
    net = nn.Sequential(
        nn.Conv2d(in_channels, 6, 5, padding=(32 - image_size) // 2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 5 * 5, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, num_classes),
    )
    return _he_initialised(net)


class OptionA(nn.Module):
    """The shortcut without parameters: every `stride`-th pixel, and zeros for the channels that are new."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.before = (out_channels - in_channels) // 2
        self.after = out_channels - in_channels - self.before

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, :, :: self.stride, :: self.stride]
        return F.pad(x, (0, 0, 0, 0, self.before, self.after))


class ResidualBlock(nn.Module):
    """relu(shortcut(x) + bn2(conv2(relu(bn1(conv1(x))))))."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        same = stride == 1 and in_channels == out_channels
        self.shortcut = nn.Identity() if same else OptionA(in_channels, out_channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.shortcut(x) + self.bn2(self.conv2(y)))


class CifarResNet(nn.Module):
    """ResNet of He et al. (2016, section 4.2), depth 6 `blocks` + 2: [N, C, 32, 32] -> [N, num_classes]."""

    def __init__(self, blocks: int, num_classes: int = 10, in_channels: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(16, 16, blocks, stride=1)
        self.layer2 = _stage(16, 32, blocks, stride=2)
        self.layer3 = _stage(32, 64, blocks, stride=2)
        self.linear = nn.Linear(64, num_classes)
        _he_initialised(self)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        logits: Tensor = self.linear(x.mean((2, 3)))
        return logits


def resnet20(num_classes: int = 10, in_channels: int = 3) -> CifarResNet:
    """Depth 20, 0.27 M parameters."""
    return CifarResNet(3, num_classes, in_channels)


def resnet32(num_classes: int = 10, in_channels: int = 3) -> CifarResNet:
    """Depth 32, 0.46 M parameters."""
    return CifarResNet(5, num_classes, in_channels)


def resnet44(num_classes: int = 10, in_channels: int = 3) -> CifarResNet:
    """Depth 44, 0.66 M parameters."""
    return CifarResNet(7, num_classes, in_channels)


def resnet56(num_classes: int = 10, in_channels: int = 3) -> CifarResNet:
    """Depth 56, 0.85 M parameters."""
    return CifarResNet(9, num_classes, in_channels)


def _stage(in_channels: int, out_channels: int, blocks: int, stride: int) -> nn.Sequential:
    first = ResidualBlock(in_channels, out_channels, stride)
    return nn.Sequential(first, *(ResidualBlock(out_channels, out_channels, 1) for _ in range(blocks - 1)))


def _he_initialised(net: Net) -> Net:
    """Convolution and linear weights from N(0, 2 / fan_in), biases at zero, norms as they are."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return net


# --- by name ---------------------------------------------------------------------------------------------------


def is_name(text: str) -> bool:
    """Whether it names one of these networks: one of NAMES, or `mlp:64,64` with the widths of hidden layers.

    Only these are built because a file says so.
    """
    return text in NAMES or text.partition(":")[0] == "mlp"


def by_name(name: str) -> Callable[..., nn.Module]:
    """The function that builds the network of that name; nothing is imported that the text names."""
    if name in NAMES:
        return globals()[name]  # type: ignore[no-any-return]
    if not is_name(name):
        near = get_close_matches(name, (*NAMES, "mlp"), n=1, cutoff=0.0)[0]
        raise ValueError(f"{name[:80]}: no network of that name; the nearest is {near!r}.")
    return partial(_flat_mlp, hidden=_hidden_widths(name))


def facts_of(shape: Sequence[int], outputs: int | None = None) -> dict[str, int]:
    """What an architecture may want to know of its data: those of FACTS that inputs of that shape have."""
    facts = {} if outputs is None else {"num_classes": outputs, "out_features": outputs}
    facts |= {"in_channels": shape[0], "in_features": math.prod(shape)}
    if len(shape) == 3 and shape[1] == shape[2]:
        facts["image_size"] = shape[1]
    return facts


def taken(function: Callable[..., Any], facts: Mapping[str, int]) -> dict[str, int]:
    """The facts that are named parameters of the function."""
    names = inspect.signature(function).parameters
    return {name: value for name, value in facts.items() if name in names}


def _flat_mlp(hidden: tuple[int, ...], in_features: int, out_features: int = 1) -> nn.Module:
    return nn.Sequential(nn.Flatten(), *mlp([in_features, *hidden, out_features]))


def _hidden_widths(name: str) -> tuple[int, ...]:
    text = name.partition(":")[2] or "64,64"
    parts = text.split(",") if len(text) <= _LONGEST else [""]
    widths = tuple(int(width) if width.strip().isdecimal() else 0 for width in parts)
    if not 0 < min(widths) <= max(widths) <= _WIDEST:
        raise ValueError(f"{name[:40]}: write hidden widths as mlp:64,64")
    return widths
