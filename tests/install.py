"""What would be published, installed into empty environments and tried as a stranger would.

    python tests/install.py DIST

DIST is a folder with one wheel and one source distribution.  The wheel, with torch, runs the example of the README
that it carries, which writes a file; the source distribution, without torch, looks into that file.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

_TELL = """
import importlib.metadata, pathlib, pocketbayes
pathlib.Path("README.md").write_text(importlib.metadata.metadata("pocketbayes").get_payload())
folder = pathlib.Path(pocketbayes.__file__).parent
assert (folder / "py.typed").exists() and pocketbayes.__version__ == importlib.metadata.version("pocketbayes")
print(pocketbayes.__version__, folder)
"""
_TORCHLESS = """
import sys, pocketbayes as pb
assert pb.artifact.decode("net.pocket").tensors and "torch" not in sys.modules
"""


def main(arguments: list[str] | None = None) -> None:
    """Both distributions of a folder, one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dist", type=Path)
    dist = parser.parse_args(arguments).dist.resolve()
    (wheel,), (source,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        try_wheel(Environment(here / "wheel", f"{wheel}[demo]"), here)
        try_source(Environment(here / "source", str(source)), here)
    print(f"{wheel.name} and {source.name}: installed into empty environments and tried")


class Environment:
    """An empty virtual environment into which one thing is installed."""

    def __init__(self, folder: Path, what: str) -> None:
        venv.create(folder, with_pip=True)
        self.bin = folder / ("Scripts" if os.name == "nt" else "bin")
        self.run(self.bin.parent, "python", "-m", "pip", "install", "--quiet", what)

    def run(self, where: Path, program: str, *arguments: str) -> str:
        """What it prints; nothing outside the environment is seen."""
        own = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
        done = subprocess.run(
            [self.bin / program, *arguments], cwd=where, env=own, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"{program} {' '.join(arguments)[:200]}\n{done.stdout}{done.stderr}")
        return done.stdout


def try_wheel(environment: Environment, here: Path) -> None:
    """The example of the README."""
    print("wheel:", environment.run(here, "python", "-c", _TELL).strip())
    readme = (here / "README.md").read_text()
    relative = [target for target in re.findall(r"\]\(([^)]+)\)", readme) if not target.startswith("http")]
    assert not relative, f"links that lead nowhere from elsewhere: {relative}"
    example = re.findall(r"^```python\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)[0]
    environment.run(here, "python", "-W", "error", "-c", example)


def try_source(environment: Environment, here: Path) -> None:
    """The commands that need no torch."""
    print("source:", environment.run(here, "python", "-c", _TELL).strip())
    environment.run(here, "python", "-c", _TORCHLESS)
    assert "bits" in environment.run(here, "pocketbayes", "inspect", "net.pocket")
    assert "compress" in environment.run(here, "pocketbayes", "--help")


if __name__ == "__main__":
    main()
