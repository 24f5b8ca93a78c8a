"""How a file describes its noise family: as JSON, with the arrays of a measured law among the file's extras."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from pocketbayes.artifact.pocket import JSON, Pocket
from pocketbayes.drawing import Shape, shape_of
from pocketbayes.drawing.shapes import FAMILIES
from pocketbayes.errors import ArtifactError

MAX_DESCRIPTIONS = 256  # in a noise description: one for each state of a device, and one around another
MAX_DEPTH = 16
MAX_DEVICES = 1 << 10  # whose draws are averaged for a weight
MAX_STEPS = 32  # of 20 ms, to compute tables of quantiles
MAX_NUMBERS = 1 << 20  # in measured arrays, each counted as often as it is named
_STEPS = {"SkewNormal": 8, "StudentT": 5, "Gaussian": 3, "Laplace": 3, "Logistic": 3, "Bimodal": 4}
_STEPS |= {"GaussianMixture": 2}  # and one for each component


def levels(value: Any) -> Iterator[list[Any]]:
    """JSON level by level: the value itself, what is in it, what is in that, and so on."""
    level = [value]
    while level:
        yield level
        inside = (
            v.values() if isinstance(v, Mapping) else v
            for v in level
            if isinstance(v, Mapping | list | tuple)
        )
        level = [inner for values in inside for inner in values]


def require_modest(noise: JSON) -> None:
    """Refuse a description that would take long to build or to draw from, before anything of it is built."""
    found: list[Mapping[str, Any]] = []
    for depth, level in enumerate(levels(noise)):
        found += [value for value in level if isinstance(value, Mapping)]
        if depth > 2 * MAX_DEPTH or len(found) > MAX_DESCRIPTIONS:  # a list of laws is a level of its own
            raise ArtifactError(
                f"noise: more than {MAX_DESCRIPTIONS} families, or {MAX_DEPTH} within each other"
            )
    devices = math.prod(n for value in found if type(n := value.get("devices", 1)) is int and n > 0)
    if devices > MAX_DEVICES:
        raise ArtifactError(f"noise: more than {MAX_DEVICES} devices a weight")
    if sum(map(_steps, found)) > MAX_STEPS:
        raise ArtifactError(
            f"noise: its tables of quantiles take more than {MAX_STEPS} steps to compute (docs/format.md, limits). "
            "Use fewer laws, or measured ones, which take none"
        )


def _steps(law: Mapping[str, Any]) -> int:
    weights, family = law.get("weights"), law.get("family")
    components = len(weights) if isinstance(weights, list) else 0
    return components + (_STEPS.get(family, 0) if isinstance(family, str) else 0)


def check_noise(pocket: Pocket) -> None:
    """Refuse a description whose parameters make no sense; a family of the user's own is its business."""
    described = noise_description(pocket)
    families = [
        v.get("family", "Gaussian") for level in levels(described) for v in level if isinstance(v, Mapping)
    ]
    if all(isinstance(family, str) and family in FAMILIES for family in families):
        noise_shape(described)


def noise_shape(described: JSON) -> Shape:
    """How draws are made by a description whose arrays are in their places."""
    try:
        return shape_of(described)
    except ValueError as error:
        raise ArtifactError(f"noise: cannot be made from its description: {error}") from error


def noise_description(pocket: Pocket) -> JSON:
    """The file's description with its arrays in their places; {} is Gaussian."""
    require_modest(pocket.noise)
    left = MAX_NUMBERS

    def restored(value: Any) -> Any:
        if isinstance(value, Mapping):
            is_array = set(value) == {"array"}
            return array(value["array"]) if is_array else {k: restored(v) for k, v in value.items()}
        return [restored(v) for v in value] if isinstance(value, list) else value

    def array(name: Any) -> Any:
        nonlocal left
        if not isinstance(name, str) or name not in pocket.extras:
            raise ArtifactError(f"noise: cannot be made: its array {name!r} is not in the file")
        left -= pocket.extras[name].size
        if left < 0:
            raise ArtifactError(f"noise: its arrays have more than {MAX_NUMBERS} numbers")
        return pocket.extras[name]

    described: JSON = restored(pocket.noise)
    return described
