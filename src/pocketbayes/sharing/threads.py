"""Many small operators on several threads.

Torch's own threads meet at a barrier after every operator: for small operators that costs more than it gives, and on a
busy machine many times more.  Here operators run alone and the work is spread over threads in larger portions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch

Job = TypeVar("Job")
Result = TypeVar("Result")

_allowed: ContextVar[int] = ContextVar("allowed", default=0)  # threads torch might use; zero outside


@contextmanager
def operators_alone() -> Iterator[None]:
    """Run torch's operators on the calling thread only; afterwards its number of threads is what it was."""
    if _allowed.get():
        yield
        return
    token = _allowed.set(torch.get_num_threads())
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(_allowed.get())
        _allowed.reset(token)


def spread(function: Callable[[Job], Result], jobs: Sequence[Job]) -> list[Result]:
    """[function(job) for job in jobs], on as many threads as torch may use."""
    inference = torch.is_inference_mode_enabled()  # a thread does not inherit it

    def run(job: Job) -> Result:
        with torch.inference_mode(inference):
            return function(job)

    with operators_alone():
        threads = min(_allowed.get(), len(jobs))
        if threads <= 1:
            return [function(job) for job in jobs]
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(run, jobs))
