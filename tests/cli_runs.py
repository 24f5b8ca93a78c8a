"""Running commands as the installed script does, and a user's module for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from pocketbayes import cli

MODULE = '''
import torch
from torch import nn

value = 3

def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))

class Viewed(nn.Module):
    """Its `view` needs channels that come first in memory."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(1, 4, 3), nn.Linear(4 * 36, 2)

    def forward(self, x):
        return self.fc(self.conv(x).relu().view(x.shape[0], -1))

def pictures():
    """A bar, upright or lying, and noise."""
    g = torch.Generator().manual_seed(0)
    y = torch.randint(2, (300,), generator=g)
    x = 0.3 * torch.randn(300, 1, 8, 8, generator=g)
    x[y == 0, :, 3] += 1
    x[y == 1, :, :, 3] += 1
    return (x[:200], y[:200]), (x[200:], y[200:])

def sized(num_classes, in_features):
    return nn.Sequential(nn.Flatten(), nn.Linear(in_features, 8), nn.ReLU(), nn.Linear(8, num_classes))

def broken():
    raise KeyError("no such layer")

def no_network():
    return 7

def line():
    """y = 3 x_0 + 50 with noise of 0.5: nothing is standardised."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(260, 4, generator=g)
    y = 3 * x[:, :1] + 50 + 0.5 * torch.randn(260, 1, generator=g)
    return (x[:200], y[:200]), (x[200:], y[200:])

def nonsense():
    return [1, 2, 3]
'''


def main_code(*arguments: str) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def run(command: str) -> int:
    return main_code(*command.split())


def result(command: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What a command that succeeds prints with --json: one line of JSON and nothing else."""
    capsys.readouterr()
    assert run(f"{command} --json") == 0, capsys.readouterr().err
    shown = capsys.readouterr().out
    assert shown.count("\n") == 1
    return dict(json.loads(shown, parse_constant=_refuse))


def complaint(command: str, code: int, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a command that fails prints."""
    capsys.readouterr()
    assert run(command) == code, capsys.readouterr()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    assert captured.err.startswith("pocketbayes: ") and "Traceback" not in captured.err
    return captured.err


def _refuse(constant: str) -> Callable[[], None]:
    raise AssertionError(f"{constant} is not JSON")
