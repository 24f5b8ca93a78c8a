"""Peak memory of fine-tuning: an unshared posterior against the same one shared, each in a process of its own."""

from __future__ import annotations

import resource
import subprocess
import sys

from rich.console import Console
from rich.table import Table

WIDTH = 2048  # three square layers: 12.6 M weights


def peak() -> float:
    """The most memory this process has held, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(kind: str) -> None:
    """Three steps of fine-tuning; prints the peak."""
    import torch

    import pocketbayes as pb
    from pocketbayes import nets

    model = pb.bayesianize(nets.mlp([WIDTH] * 4))
    if kind == "shared":
        # Labels by the sign and size of the mean: what matters here is the memory of training, not of sharing.
        from pocketbayes.moments import Codebook
        from pocketbayes.posterior.weights import stochastic_weights
        from pocketbayes.sharing.share import install

        found = stochastic_weights(model)
        labels = [(site.original * 200).round().clamp(-31, 31).long() + 31 for site in found]
        book = Codebook(torch.linspace(-0.155, 0.155, 63), torch.full((63,), 0.01))
        install(model, found, book, labels, [None] * 3)
        del found, labels
    x, y = torch.randn(64, WIDTH), torch.randint(10, (64,))
    pb.fit(model, [(x, y)] * 3, epochs=1, progress=False)
    print(peak())


def run() -> None:
    table = Table(
        "posterior", "peak of the process (MB)", title=f"Fine-tuning {3 * WIDTH**2 / 1e6:.1f} M weights"
    )
    for kind in ("imports alone", "unshared", "shared"):
        code = f"from benchmarks.memory import measure; measure({kind!r})"
        if kind == "imports alone":
            code = "import pocketbayes as pb; pb.fit, pb.share; from benchmarks.memory import peak; print(peak())"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        table.add_row(kind, f"{float(done.stdout):.0f}")
    Console().print(table)
