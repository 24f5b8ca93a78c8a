from __future__ import annotations

import pytest
import torch

from pocketbayes.sharing.histogram import make_histogram
from pocketbayes.sharing.mixture import assign, fit_mixture
from pocketbayes.sharing.threads import operators_alone, spread


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> int:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_results_come_in_order_and_the_number_of_threads_is_kept(threads: int) -> None:
    assert spread(lambda job: (job, torch.get_num_threads()), range(20)) == [(job, 1) for job in range(20)]
    with operators_alone():
        assert spread(lambda job: -job, range(5)) == [0, -1, -2, -3, -4]
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == threads


def test_the_number_of_threads_is_kept_after_an_error(threads: int) -> None:
    with pytest.raises(ZeroDivisionError):
        spread(lambda job: 1 / job, range(3))
    assert torch.get_num_threads() == threads


def test_a_mixture_is_the_same_for_any_number_of_threads_and_in_inference_mode() -> None:
    g = torch.Generator().manual_seed(0)
    chunks = [(torch.randn(300_000, generator=g), torch.rand(300_000, generator=g)) for _ in range(2)]
    results, before = [], torch.get_num_threads()
    for number, mode in ((1, False), (2, False), (2, True)):
        torch.set_num_threads(number)
        with torch.inference_mode(mode):
            histogram = make_histogram(chunks, bins=64)
            mixture = fit_mixture(histogram.atoms(), 40, tolerance=1e-3).mixture
            results.append((mixture.mean, assign(mixture, histogram, chunks)[1]))
    torch.set_num_threads(before)
    for mean, label in results[1:]:
        torch.testing.assert_close(mean, results[0][0], rtol=0, atol=0)
        assert torch.equal(label, results[0][1])
