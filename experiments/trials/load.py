"""Many predictions: in threads, in a row, in other processes, in other types of numbers."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import pickle
import resource
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import pocketbayes as pb
from experiments.trials.works import PLAN, examples, network

THREADS = 8


def answer(model: nn.Module, x: Tensor) -> bytes:
    """The bits of a prediction."""
    return bytes(pb.predict(model, x, samples=3, seed=1).probs.numpy().tobytes())


def inputs() -> Tensor:
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(1))


def threads(count: int) -> dict[str, Any]:
    """Eight at once, with one model and with one each, beside a thread whose own module must not notice."""
    x, told = inputs(), {}
    with bystander() as seen:
        for name, models in (
            ("one model", [pb.bayesianize(network())] * THREADS),
            ("a model each", [pb.bayesianize(network(seed)) for seed in range(THREADS)]),
        ):
            expected = [answer(model, x) for model in models]
            with ThreadPoolExecutor(THREADS) as pool:
                found = list(pool.map(answer, models * (count // THREADS), [x] * count))
            wrong = sum(a != b for a, b in zip(found, expected * (count // THREADS), strict=True))
            assert not wrong, f"{wrong} of {count} predictions differ, with {name}"
            told[name] = len(found)
    assert not seen["wrong"], f"{seen['wrong']} of {seen['calls']} calls in another thread failed"
    return {**told, "calls of an unrelated module meanwhile": seen["calls"]}


@contextmanager
def bystander() -> Iterator[dict[str, int]]:
    """A thread that calls a plain module while the block runs; {calls, wrong}."""
    module, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.ones(2, 4)
    expected, done, seen = module(x), threading.Event(), {"calls": 0, "wrong": 0}

    def work() -> None:
        while not done.is_set():
            try:
                seen["wrong"] += not torch.equal(module(x), expected)
            except Exception:
                seen["wrong"] += 1
            seen["calls"] += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


def memory(count: int) -> dict[str, Any]:
    """Megabytes that the process has after a tenth of the predictions, and after all."""
    model, x, sizes = pb.bayesianize(network()), inputs(), []
    for number in range(count):
        pb.predict(model, x, samples=3, seed=number)
        if number + 1 in (count // 10, count):
            gc.collect()
            sizes.append(resident())
    grown = sizes[1] - sizes[0]
    assert grown < 8, f"{grown:.1f} MB more after {count} predictions than after {count // 10}"
    return {"predictions": count, "megabytes": [round(size) for size in sizes], "grown": round(grown, 1)}


def resident() -> float:
    """Megabytes of this process that are in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / (1 << 20)


def processes() -> dict[str, Any]:
    """Models sent to forked and spawned processes, and through pickle; data read by workers."""
    models = {"plain": pb.bayesianize(network()), "shared": pb.bayesianize(network())}
    pb.share(models["shared"], pb.Rate(lambda_=0.1))
    x, told = inputs(), []
    for name, model in models.items():
        expected = answer(model, x)
        assert answer(pickle.loads(pickle.dumps(model)), x) == expected, f"{name}: pickle"
        assert answer(copy.deepcopy(model), x) == expected, f"{name}: a copy"
        for method in ("fork", "spawn"):
            with multiprocessing.get_context(method).Pool(2, torch.set_num_threads, (1,)) as pool:
                found = pool.starmap(answer, [(model, x)] * 4)
            assert found == [expected] * 4, f"{name}: {method}"
            told.append(f"{method}, {name}")
        data = TensorDataset(torch.randn(64, 6), torch.arange(64) % 3)
        scores = [pb.evaluate(model, DataLoader(data, 16, num_workers=workers)) for workers in (0, 2)]
        assert scores[0] == scores[1], f"{name}: workers"
        told.append(f"workers of a DataLoader, {name}")
    return {"same bits": told}


def dtypes() -> dict[str, Any]:
    """Compressed where that type can be trained, saved, loaded and asked in every type: NLL on the training data."""
    told = {}
    with TemporaryDirectory() as made:
        path = Path(made) / "model.pocket"
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
            start = torch.float32 if dtype == torch.float16 else dtype
            loader, model = examples(start), network(dtype=start)
            pb.fit_map(model, loader, epochs=40, lr=1e-2, progress=False)
            pb.compress(model, loader, path=path, max_bytes=800, plan=PLAN, graph=False, progress=False)
            pb.save(pb.load(path, network(dtype=start)).to(dtype), path)
            loaded = pb.load(path, network(dtype=dtype))
            told[str(dtype).removeprefix("torch.")] = round(
                float(pb.evaluate(loaded, examples(dtype)).nll), 3
            )
    spread = max(told.values()) - min(told.values())
    assert spread < 0.05, f"the types differ: {told}"
    model, x = pb.bayesianize(network()), inputs()
    expected = answer(model, x)
    pb.predict(model.double(), x.double(), samples=3)
    assert answer(model.float(), x) == expected, "float64 and back: other bits"
    return told
