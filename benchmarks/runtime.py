"""A file in ONNX Runtime beside torch: latency, time to the first answer, memory and installed size, in one thread.

The limit is 1.1 of 30 plain passes of ONNX Runtime once the networks are drawn. Times are of the processor, since
everything here uses one core and the machine may have other work.
"""

from __future__ import annotations

import importlib.metadata as metadata
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from packaging.requirements import Requirement
from rich.console import Console
from rich.table import Table

import pocketbayes as pb
from benchmarks.timing import compare, milliseconds, ratio
from pocketbayes.artifact import decode, mean_weights, sample_weights
from pocketbayes.artifact.portable import portable
from pocketbayes.prediction.ensemble import Ensemble
from pocketbayes.runtime.networks import plain_session

ROOT = Path(__file__).parents[1]
FILE = ROOT / "experiments" / "models" / "resnet20-cifar10.pocket"
SAMPLES = 30
ROUNDS = {1: 41, 128: 5}  # by the batch size
PLAIN = "30 plain passes of ONNX Runtime, one network"
ALONE = """
import pathlib, re, sys, time
import numpy as np
x = np.zeros((1, 32, 32, 3), np.uint8)
start = time.process_time()
import pocketbayes as pb
pb.open
if sys.argv[2] == "torch":
    import torch
    torch.set_num_threads(1)
imported = time.process_time()
model = pb.open(sys.argv[1], runtime=sys.argv[2])
opened = time.process_time()
model.predict(x)
answered = time.process_time()
assert sys.argv[2] == "torch" or "torch" not in sys.modules
memory = re.search(r"VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1]  # of this process alone
print(imported - start, opened - imported, answered - opened, answered, int(memory) / 1024)
"""


def run() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    console = Console()
    console.print(latency())
    console.print(alone())
    torch.set_num_threads(before)


def latency() -> Table:
    """30 draws of a prediction, drawn before."""
    title = f"{FILE.name}: 30 draws of a prediction, one thread"
    table = Table("batch", "way", "ms", "to plain passes", title=title)
    for batch, rounds in ROUNDS.items():
        times = compare(ways(batch), rounds, clock=time.process_time)
        for name in times:
            table.add_row(
                str(batch), name, f"{milliseconds(times, name):.1f}", f"{ratio(times, name, PLAIN):.2f}"
            )
    return table


def ways(batch: int) -> dict[str, Callable[[], object]]:
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 256, (batch, 3, 32, 32), np.uint8)
    pocket, here, there = decode(FILE), pb.runtime.open(FILE), pb.open(FILE, runtime="torch")
    x = here.card.scaling.apply(raw)
    one = plain_session(portable(pocket, mean_weights(pocket)))
    each = [plain_session(portable(pocket, sample_weights(pocket, 0, s))) for s in range(SAMPLES)]
    drawn = here.networks_of(SAMPLES, 0)
    ensemble, tensor = Ensemble(there.model, samples=SAMPLES), torch.from_numpy(x)
    return {
        PLAIN: lambda: [one.run(None, {"x": x}) for _ in range(SAMPLES)],
        "30 plain passes of ONNX Runtime, 30 networks": lambda: [s.run(None, {"x": x}) for s in each],
        "the runtime's passes": lambda: list(here.networks.outputs(x, drawn, here.batch_size)),
        "the runtime's `predict`": lambda: here.predict(raw),
        "torch's passes": torch.no_grad()(lambda: list(ensemble.outputs(tensor))),
        "torch's `predict`, which draws each time": lambda: there.predict(raw),
    }


def alone() -> Table:
    """Each in a process of its own, from the import to the answer for one image."""
    headings = (
        "import (s)",
        "open (s)",
        "first answer (s)",
        "in all (s)",
        "peak memory (MB)",
        "installed (MB)",
    )
    table = Table("", *headings, title="A process of its own")
    for name, runtime, extra in (("torch", "torch", "torch"), ("ONNX Runtime", "onnx", "runtime")):
        asked = [sys.executable, "-c", ALONE, str(FILE), runtime]
        threads = {**os.environ, "OMP_NUM_THREADS": "1"}
        for _ in range(2):  # the first leaves files in the page cache
            done = subprocess.run(asked, capture_output=True, text=True, check=True, env=threads)
        *seconds, memory = map(float, done.stdout.split())
        size = sum(map(size_of, needed(extra))) / 1e6
        table.add_row(name, *(f"{s:.2f}" for s in seconds), f"{memory:.0f}", f"{size:.0f}")
    return table


def needed(extra: str) -> set[str]:
    """The distributions that `pip install pocketbayes[extra]` brings, by their names."""
    found: set[str] = set()
    waiting = [("pocketbayes", extra)]
    while waiting:
        name, wanted = waiting.pop()
        found.add(name)
        waiting += [one for one in _requirements(name, wanted) if one[0] not in found]
    return found


def _requirements(name: str, extra: str) -> Iterator[tuple[str, str]]:
    for text in metadata.requires(name) or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            for more in requirement.extras or {""}:
                yield requirement.name, more


def size_of(name: str) -> int:
    """Bytes of a distribution's files; the library's own from its source, wherever it is installed."""
    if name == "pocketbayes":
        return sum(file.stat().st_size for file in Path(pb.__file__).parent.rglob("*.py"))
    files = metadata.files(name) or ()
    return sum(path.stat().st_size for file in files if (path := Path(str(file.locate()))).exists())
