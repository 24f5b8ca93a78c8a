"""What a run leaves behind as JSON: settings, versions, stages and training curves."""

from __future__ import annotations

import platform
import shlex
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pocketbayes import __version__

if TYPE_CHECKING:
    from pocketbayes.compression.stages import CompressionReport
    from pocketbayes.training.history import History

_NOT_SETTINGS = {"as_json", "debug", "config", "restart"}


def settings_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a command as JSON."""
    return {
        key: str(value) if isinstance(value, Path) else value
        for key, value in parameters.items()
        if key not in _NOT_SETTINGS
    }


def facts(context: typer.Context) -> dict[str, Any]:
    """What was run, with what, when: the beginning of every record."""
    return {
        "command": command_line(context),
        "settings": settings_of(context.params),
        "seed": context.params.get("seed"),
        "versions": versions(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def command_line(context: typer.Context) -> str:
    """The shortest command line with these options, whether they came from one or from a file."""
    words = ["pocketbayes", str(context.info_name)]
    for parameter in context.command.params:
        value = context.params.get(str(parameter.name))
        if parameter.name in _NOT_SETTINGS or value is None or value == parameter.default:
            continue
        if parameter.param_type_name == "argument":
            words += [str(v) for v in (value if isinstance(value, (list, tuple)) else [value])]
        elif isinstance(value, bool):
            words.append(parameter.opts[0] if value else parameter.secondary_opts[0])
        else:
            words += [parameter.opts[0], str(value)]
    return shlex.join(words)


def versions() -> dict[str, str]:
    import numpy
    import torch

    return {
        "pocketbayes": __version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "platform": sys.platform,
        "threads": str(torch.get_num_threads()),
    }


def of_compression(report: CompressionReport) -> dict[str, Any]:
    """Stages, training curves and sharing of a compression."""
    sharing = report.sharing
    assert sharing is not None
    return {
        "plain_bytes": report.plain_bytes,
        "stages": [stage._asdict() for stage in report.stages],
        "histories": {name: epochs(h) for name, h in getattr(report, "histories", {}).items()},
        "sharing": {
            "weights": sharing.weights,
            "components": sharing.components,
            "outliers": sharing.outliers,
            "bits_a_label": sharing.bits_per_weight,
            "trainable": sharing.trainable,
            "distortion": sharing.distortion,
        },
    }


def epochs(history: History) -> list[dict[str, Any]]:
    return [epoch._asdict() for epoch in history.epochs]
