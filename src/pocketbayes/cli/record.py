"""What a run leaves behind as JSON: settings, versions, stages and training curves."""

from __future__ import annotations

import platform
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pocketbayes import __version__
from pocketbayes.cli.options import Call

if TYPE_CHECKING:
    from pocketbayes.compression.stages import CompressionReport
    from pocketbayes.training.history import History

_NOT_SETTINGS = {"as_json", "debug", "config", "restart"}


def call_of(context: typer.Context) -> Call:
    """The command line with all options, whether they came from one or from a file."""
    told = {
        key: str(value) if isinstance(value, Path) else value
        for key, value in context.params.items()
        if key not in _NOT_SETTINGS
    }
    return Call(_command_line(context), told)


def _command_line(context: typer.Context) -> str:
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


def facts(call: Call) -> dict[str, Any]:
    """What was run, with what, when: the beginning of every record."""
    return {
        "command": call.line,
        "settings": dict(call.options),
        "seed": call.options.get("seed"),
        "versions": versions(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


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
    sharing, saved = report.sharing, report.saved
    assert sharing is not None and saved is not None
    return {
        "plain_bytes": report.plain_bytes,
        "no_graph": saved.no_graph,
        "stages": [stage._asdict() for stage in report.stages],
        "histories": {name: epochs(h) for name, h in report.histories.items()},
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
