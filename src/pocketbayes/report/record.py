"""The parts of a story that come from the record of a compression: a JSON object, any key of which may be absent."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pocketbayes.report.story import StageScores, TrainingCurve

FACTS = ("command", "seed", "versions", "time")


def read_record(path: Path | None, file: Path) -> dict[str, Any]:
    """The record given, or the one beside the file, or nothing."""
    if path is None and not file.with_suffix(".json").is_file():
        return {}
    path = path or file.with_suffix(".json")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not the JSON that `pocketbayes compress` writes ({error}).") from error
    if not isinstance(found, dict) or not isinstance(found.get("settings", {}), dict):
        raise ValueError(f"{path}: not the JSON that `pocketbayes compress` writes.")
    return found


def from_record(record: Mapping[str, Any] | None) -> dict[str, Any]:
    """Training curves, stages, settings and facts."""
    record = _mapping("record", {} if record is None else record)
    histories = _mapping("histories", _get(record, "histories", {}))
    return {
        "runs": tuple(run for name, epochs in histories.items() if (run := _run(name, epochs)) is not None),
        "stages": tuple(_stage(stage) for stage in _list("stages", _get(record, "stages", []))),
        "settings": dict(_mapping("settings", _get(record, "settings", {}))),
        "facts": {key: record[key] for key in FACTS if record.get(key) is not None},
    }


def _get(record: Mapping[str, Any], key: str, absent: Any) -> Any:
    return absent if record.get(key) is None else record[key]


def _run(name: str, epochs: Any) -> TrainingCurve | None:
    where = f"histories.{name}"
    rows = [_mapping(where, row) for row in _list(where, epochs)]
    if not rows:
        return None
    scores = [_mapping(f"{where}.validation", _get(row, "validation", {})) for row in rows]
    nll, kl = (np.array([_number(row.get(key)) for row in rows]) for key in ("nll", "kl"))
    validation = np.array([_number(score.get("nll")) for score in scores])
    return TrainingCurve(str(name), nll, kl, validation)


def _stage(stage: Any) -> StageScores:
    stage = _mapping("stages", stage)
    scores = _mapping("stages.metrics", _get(stage, "metrics", {}))
    metrics = {str(k): _number(v) for k, v in scores.items() if math.isfinite(_number(v))}
    seconds = _number(stage.get("seconds"))
    known = seconds if math.isfinite(seconds) else None
    return StageScores(str(_get(stage, "name", "")), known, metrics, str(_get(stage, "note", "")))


def _number(value: Any) -> float:
    """The number, or NaN for what is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return math.nan
    return float(value) if math.isfinite(value) else math.nan


def _mapping(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"record: {where} must be an object, got {type(value).__name__}. {_HINT}")
    return value


def _list(where: str, value: Any) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"record: {where} must be a list, got {type(value).__name__}. {_HINT}")
    return list(value)


_HINT = "Give the JSON that `pocketbayes compress` wrote."
