"""The networks of a file in ONNX Runtime: one session for each draw, so that its kernels are chosen and packed once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from pocketbayes.arrays import Array
from pocketbayes.artifact.dense import mean_weights, sample_weights
from pocketbayes.artifact.graph import StoredGraph
from pocketbayes.artifact.pocket import MeanField, Pocket, Shared
from pocketbayes.errors import ArtifactError, not_installed

OLDEST = (1, 22)  # whose sessions take weights from outside, and share memory
ACTIVATIONS = (
    1 << 31
)  # bytes that all passes of the process may take; a graph that asks for more ends in an error
OVERHEAD = 1 << 18  # bytes of a session beside its weights, which it has twice: as drawn and as packed


def onnxruntime() -> Any:
    """ONNX Runtime; an ImportError that says what to install where it is missing or too old."""
    try:
        import onnxruntime as found
    except ModuleNotFoundError as error:
        raise not_installed(error, "Running the graph of a file") from error
    if tuple(int(part) for part in found.__version__.split(".")[:2]) < OLDEST:
        raise ImportError(
            f"ONNX Runtime {found.__version__} is too old, {'.'.join(map(str, OLDEST))} is needed. "
            "Run: pip install --upgrade onnxruntime"
        )
    _share_memory(found)
    return found


@cache
def _share_memory(found: Any) -> None:
    """One arena for all sessions of the process: they run by turns, and need no memory each."""
    memory = found.OrtMemoryInfo(
        "Cpu", found.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, found.OrtMemType.DEFAULT
    )
    found.create_and_register_allocator(memory, found.OrtArenaCfg({"max_mem": ACTIVATIONS}))


def _in_one_thread(runtime: Any) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what goes wrong is raised
    return options


def plain_session(model: bytes) -> Any:
    """A session for an ONNX model with its weights inside, as anyone would make it, in one thread."""
    runtime = onnxruntime()
    return runtime.InferenceSession(model, _in_one_thread(runtime), providers=["CPUExecutionProvider"])


class WhichNetwork(NamedTuple):
    """One of a file's networks."""

    seed: int | None  # None for the means
    number: int  # of the draw; of the mode for the means


class Networks:
    """The drawn networks of a file, and the one at the means; those that fit in `max_bytes` are kept.

    `threads` is how many draws run at a time, each in one thread.
    """

    def __init__(self, pocket: Pocket, graph: StoredGraph, *, threads: int, max_bytes: int) -> None:
        if threads < 1:
            raise ValueError(f"threads must be at least 1, got {threads}.")
        self.pocket, self.graph = pocket, graph
        self.threads, self.max_bytes = threads, max_bytes
        self.modes = len(pocket.modes)
        self.is_random = any(isinstance(entry, MeanField | Shared) for entry in pocket.tensors.values())
        self._runtime = onnxruntime()
        self._model = graph.with_weights(pocket)
        self._kept: dict[WhichNetwork, Any] = {}

    def outputs(self, x: Array, draws: Sequence[WhichNetwork], batch_size: int) -> Iterator[Array]:
        """The network's output for inputs [N, ...] in each of these draws."""

        def run(draw: WhichNetwork) -> Array:
            return self.output(x, draw, batch_size)

        if self.threads == 1:
            yield from map(run, draws)
            return
        with ThreadPoolExecutor(self.threads) as pool:
            yield from pool.map(run, draws)

    def output(self, x: Array, draw: WhichNetwork, batch_size: int) -> Array:
        """The output [N, ...] of one network."""
        session = self._session(draw)
        name = self.graph.inputs[0].name
        parts = [x[start : start + batch_size] for start in range(0, len(x), batch_size)]
        try:
            found = [session.run(None, {name: part})[0] for part in parts]
        except Exception as error:  # a type of its own for each reason
            raise ArtifactError(f"the graph cannot be run: {_first_line(error)}") from error
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _session(self, draw: WhichNetwork) -> Any:
        """The network of a draw, kept from before or made anew; draws of one seed are kept."""
        if (known := self._kept.get(draw)) is not None:
            return known
        if draw.seed is None:
            weights = mean_weights(self.pocket, mode=draw.number)
        else:
            weights = sample_weights(self.pocket, draw.seed, draw.number)
        values = {name: np.ascontiguousarray(weights[path]) for name, path in self.graph.tensors.items()}
        session = self._made(values)
        if draw.seed is not None:
            for other in [known for known in self._kept if known.seed not in (None, draw.seed)]:
                self._kept.pop(other, None)
        size = 2 * sum(value.nbytes for value in values.values()) + OVERHEAD
        if (len(self._kept) + 1) * size <= self.max_bytes:
            self._kept[draw] = session
        return session

    def _made(self, values: dict[str, Array]) -> Any:
        runtime, options = self._runtime, _in_one_thread(self._runtime)
        options.add_session_config_entry("session.use_env_allocators", "1")
        try:
            given = [runtime.OrtValue.ortvalue_from_numpy(value) for value in values.values()]
            options.add_external_initializers(list(values), given)
            return runtime.InferenceSession(self._model, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # a type of its own for each reason
            raise ArtifactError(f"the graph does not fit the tensors: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:300]
