"""Predictions made in several threads at once."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

import pocketbayes as pb
from pocketbayes import nets

THREADS, ROUNDS = 8, 6


@pytest.fixture(autouse=True)
def threads_that_take_turns_often() -> Iterator[None]:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(usual)


class Residual(nn.Module):
    """Norms to fold, a fixed part to split off, a weight that is read by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.body, self.head = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x)).relu()
        x = x + self.body(x)
        return nn.functional.linear(x.mean((2, 3)), self.head.weight.view(3, 4), self.head.bias)


MAKE = {
    "residual": (lambda: pb.bayesianize(Residual(), where="body.*"), (5, 3, 6, 6)),
    "everything random": (lambda: pb.bayesianize(Residual()), (5, 3, 6, 6)),
    "mlp": (lambda: pb.bayesianize(nets.mlp([4, 8, 3])), (5, 4)),
    "vectorised": (lambda: pb.bayesianize(nets.mlp([4, 8, 3])), (1, 4)),
}


def predict(model: nn.Module, x: Tensor) -> Tensor:
    return pb.predict(model, x, samples=3, seed=1).probs


@pytest.mark.parametrize("shared", [True, False], ids=["one model", "a model each"])
@pytest.mark.parametrize(("make", "shape"), MAKE.values(), ids=MAKE)
def test_eight_threads_predict_to_the_bit_as_one_does(make, shape: tuple[int, ...], shared: bool) -> None:
    models = [make()] * THREADS if shared else [make() for _ in range(THREADS)]
    x = torch.randn(*shape)
    expected = [predict(model, x) for model in models]
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(predict, models * ROUNDS, [x] * THREADS * ROUNDS))
    assert all(torch.equal(*pair) for pair in zip(found, expected * ROUNDS, strict=True))


def test_a_module_in_another_thread_never_notices_a_prediction() -> None:
    model, x = pb.bayesianize(Residual()), torch.randn(5, 3, 6, 6)
    other, y = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(2, 4)
    expected, done, runs = other(y), threading.Event(), [0]
    failures: list[object] = []

    def work() -> None:
        while not done.is_set():
            try:
                result: object = other(y)
                if not (isinstance(result, Tensor) and torch.equal(result, expected)):
                    failures.append(result)
            except Exception as error:
                failures.append(error)
            runs[0] += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(40):
            predict(model, x)
    finally:
        done.set()
        thread.join()
    assert runs[0] > 100
    assert not failures, failures[:3]


def test_tracing_leaves_the_classes_of_the_modules_alone() -> None:
    from pocketbayes.prediction import graph

    net = Residual().eval()
    before = [type(module) for module in net.modules()]
    assert graph.trace(net) is not None
    assert [type(module) for module in net.modules()] == before
    assert all(type(module).__call__ is nn.Module.__call__ for module in net.modules())
