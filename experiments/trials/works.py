"""Small pieces of work that end with the same bytes, however often they were interrupted."""

from __future__ import annotations

import hashlib
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

import pocketbayes as pb
from pocketbayes.data.download import Remote, fetch
from pocketbayes.runs.checkpoint import load_checkpoint

PLAN = pb.Plan(epochs=2, finetune_epochs=1, temperature=1e-3)
BUDGET = 400  # bytes
CONTENT = np.random.default_rng(0).bytes(400_000)  # what is downloaded
CHUNK = 10_000  # bytes that the server sends at a time


class Work(NamedTuple):
    """`run(folder)` makes the files of `ends`, going on where it was if it was killed before."""

    run: Callable[[Path], None]
    ends: tuple[str, ...] = ("model.pocket",)


def network(seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return pb.nets.mlp([6, 32, 3]).to(dtype)


def examples(dtype: torch.dtype = torch.float32) -> pb.data.BatchLoader:
    """Three classes in six dimensions."""
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    return pb.data.BatchLoader(x, (x[:, :2] > 0).sum(1), 16)


@cache
def to_save() -> tuple[nn.Module, ...]:
    return tuple(pb.bayesianize(network(seed)) for seed in range(6))


def fit(folder: Path) -> None:
    """With a checkpoint at every step."""
    model, checkpoint = pb.bayesianize(network()), folder / "run.safetensors"
    pb.fit(model, examples(), epochs=3, checkpoint=checkpoint, checkpoint_seconds=0.0, progress=False)
    pb.save(model, folder / "model.pocket")


def compress(folder: Path) -> None:
    pb.compress(
        network(),
        examples(),
        path=folder / "model.pocket",
        max_bytes=BUDGET,
        plan=PLAN,
        graph=False,
        checkpoints=folder / "checkpoints",
        progress=False,
    )


def save(folder: Path) -> None:
    """Six times over the same name."""
    for model in to_save():
        pb.save(model, folder / "model.pocket")


@contextmanager
def works() -> Iterator[dict[str, Work]]:
    """All of them, by name; the downloads come from a process that lives as long as the block."""
    with HTTPServer(("127.0.0.1", 0), Slow) as server:
        pid = forked(server.serve_forever)
        remote = Remote(
            [f"http://127.0.0.1:{server.server_address[1]}/data.bin"],
            len(CONTENT),
            hashlib.sha256(CONTENT).hexdigest(),
        )
        try:
            yield {
                "fit": Work(fit),
                "compress": Work(compress),
                "save": Work(save),
                "download": Work(lambda folder: _download(remote, folder), ends=("data.bin",)),
            }
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _download(remote: Remote, folder: Path) -> None:
    fetch(remote, folder / "data.bin")


class Slow(BaseHTTPRequestHandler):
    """Sends CONTENT, or the rest of it, in small pieces."""

    def do_GET(self) -> None:
        start = int(self.headers.get("Range", "bytes=0-")[6:-1])
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        try:
            for at in range(start, len(CONTENT), CHUNK):
                self.wfile.write(CONTENT[at : at + CHUNK])
                time.sleep(0.001)
        except OSError:  # whoever asked was killed
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


# --- processes ---------------------------------------------------------------------------------------------------


def forked(work: Callable[[], object]) -> int:
    """A child that does the work and ends with 0, or with 1 and a line on standard error; its id."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.environ["no_proxy"] = "127.0.0.1"
            os.nice(5)  # the parent kills in time
            work()
            code = 0
        except BaseException:
            traceback.print_exc(limit=-2)
        finally:
            os._exit(code)
    return pid


def files(folder: Path) -> dict[str, bytes]:
    """All that lies in a folder and below, by path."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def require_sound(found: dict[str, bytes], folder: Path, allowed: dict[str, set[bytes]]) -> None:
    """No file that has its final name is torn: results are ones that were asked for, checkpoints have their checksums."""
    for name, data in found.items():
        if name in allowed:
            assert data in allowed[name], f"{name} is torn"
        elif name.endswith(".safetensors"):
            load_checkpoint(folder / name)
