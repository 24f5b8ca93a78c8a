"""How a file describes its noise family: as JSON, with the arrays of a measured law among the file's extras."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pocketbayes.artifact.pocket import JSON, Pocket
from pocketbayes.errors import ArtifactError

MAX_FAMILIES = 256  # in a noise description: one for each state of a device, and one around another
MAX_DEPTH = 16
MAX_DEVICES = 1 << 16  # whose draws are averaged for a weight


def noise_description(pocket: Pocket) -> JSON:
    """The file's description with its arrays in their places; {} is Gaussian."""
    _require_modest(pocket.noise)

    def restored(value: Any) -> Any:
        if isinstance(value, Mapping):
            is_array = set(value) == {"array"}
            return array(value["array"]) if is_array else {k: restored(v) for k, v in value.items()}
        return [restored(v) for v in value] if isinstance(value, list) else value

    def array(name: Any) -> Any:
        if not isinstance(name, str) or name not in pocket.extras:
            raise ArtifactError(f"noise: cannot be made: its array {name!r} is not in the file")
        return pocket.extras[name]

    described: JSON = restored(pocket.noise)
    return described


def _require_modest(description: Any) -> None:
    """Refuse descriptions that would take long to build or to draw from."""
    families, devices, level = 0, 1, [description]
    for _ in range(2 * MAX_DEPTH):  # a list of families is a level of its own
        found = [value for value in level if isinstance(value, Mapping)]
        families += len(found)
        devices *= math.prod(n for value in found if type(n := value.get("devices", 1)) is int)
        lists = [value for value in level if isinstance(value, list)]
        level = [inner for values in (*lists, *(value.values() for value in found)) for inner in values]
    if level or families > MAX_FAMILIES or devices > MAX_DEVICES:
        raise ArtifactError(
            f"noise: more than {MAX_FAMILIES} families, {MAX_DEPTH} within each other or {MAX_DEVICES} devices a weight"
        )
