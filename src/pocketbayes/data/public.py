"""Public image sets, as public.toml lists them."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any

from pocketbayes.data.download import Remote

PUBLIC: dict[str, dict[str, Any]] = tomllib.loads(
    files("pocketbayes.data").joinpath("public.toml").read_text(encoding="utf-8")
)
REMOTES = {  # by their place in the data folder
    found["folder"] + file: Remote([mirror + file for mirror in found["mirrors"]], size, sha256)
    for found in PUBLIC.values()
    for file, (size, sha256) in found["files"].items()
}
