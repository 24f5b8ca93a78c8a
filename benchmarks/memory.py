"""Peak memory: fine-tuning an unshared posterior against the same one shared, and loading a pocket file.

Each is measured in a process of its own, by what the system counts as the process's memory.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

WIDTH = 2048
DEPTH = {"fine-tuning": 3, "loading": 6}  # square layers: 12.6 and 25.2 M weights


def peak() -> float:
    """The most memory this process has held, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def held() -> float:
    """The memory that this process holds now, in megabytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def plain(what: str) -> nn.Module:
    from pocketbayes import nets

    return nets.mlp([WIDTH] * (DEPTH[what] + 1))


def shared(what: str) -> nn.Module:
    """Labels by the sign and size of the mean: what matters here is the memory of later steps, not of sharing."""
    import torch

    import pocketbayes as pb
    from pocketbayes.moments import Codebook
    from pocketbayes.posterior.weights import stochastic_weights
    from pocketbayes.sharing.install import install

    def label(mu: Tensor) -> Tensor:
        return (mu * 200).round().clamp(-31, 31).to(torch.uint8) + 31

    model = pb.bayesianize(plain(what))
    found = stochastic_weights(model)
    book = Codebook(torch.linspace(-0.155, 0.155, 63), torch.full((63,), 0.01))
    install(model, found, book, [label(site.original) for site in found], [None] * len(found))
    return model


def fine_tune(kind: str) -> None:
    """Three steps; prints the peak."""
    import torch

    import pocketbayes as pb

    model = shared("fine-tuning") if kind == "shared" else pb.bayesianize(plain("fine-tuning"))
    x, y = torch.randn(64, WIDTH), torch.randint(10, (64,))
    pb.fit(model, [(x, y)] * 3, epochs=1, progress=False)
    print(peak())


def save(path: str) -> None:
    import pocketbayes as pb

    pb.save(shared("loading"), path)


def load(path: str) -> None:
    """Prints the memory beyond the imports: of the plain model, at the peak of `load`, and of what is loaded."""
    import pocketbayes as pb

    imports = pb.load and held()
    model = plain("loading")
    before = held()
    model = pb.load(path, model)
    print(before - imports, peak() - imports, held() - imports)


def alone(call: str) -> list[float]:
    """The numbers that a call of this module prints, in a process of its own."""
    code = f"from benchmarks.memory import *; {call}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [float(number) for number in done.stdout.split()]


def run() -> None:
    weights = {what: f"{depth * WIDTH**2 / 1e6:.1f} M weights" for what, depth in DEPTH.items()}
    table = Table("posterior", "peak of the process (MB)", title=f"Fine-tuning {weights['fine-tuning']}")
    imports = "import pocketbayes as pb; pb.fit, pb.share; print(peak())"
    for kind, call in {
        "imports alone": imports,
        "unshared": "fine_tune('unshared')",
        "shared": "fine_tune('shared')",
    }.items():
        table.add_row(kind, f"{alone(call)[0]:.0f}")
    Console().print(table)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "shared.pocket")
        alone(f"save({path!r})")
        size = Path(path).stat().st_size / 2**20
        before, most, after = alone(f"load({path!r})")
    table = Table(
        "memory beyond the imports", "MB", title=f"Loading {weights['loading']}, {size:.1f} MB of file"
    )
    table.add_row("the plain model that `load` is given", f"{before:.0f}")
    table.add_row("peak", f"{most:.0f}")
    table.add_row("the finished model", f"{after:.0f}")
    table.add_row("peak beyond the finished model", f"{most - after:.0f}")
    table.add_row("peak beyond the plain model", f"{most - before:.0f}")
    Console().print(table)
