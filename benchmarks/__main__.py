"""`make bench`: ratios measured side by side, in one run; `python -m benchmarks predict` runs one part."""

from __future__ import annotations

import importlib
import platform
import sys

import torch

PARTS = ("training", "predict", "runtime", "sharing", "rate", "scale", "memory", "artifact", "noise")


def main() -> None:
    asked = sys.argv[1:] or list(PARTS)
    unknown = [name for name in asked if name not in PARTS]
    if unknown:
        sys.exit(f"no benchmark {unknown[0]!r}; there are {', '.join(PARTS)}")
    threads = torch.get_num_threads()
    print(
        f"torch {torch.__version__}, {threads} threads, Python {platform.python_version()}, {platform.machine()}"
    )
    for name in asked:
        importlib.import_module(f"benchmarks.{name}").run()


if __name__ == "__main__":
    main()
