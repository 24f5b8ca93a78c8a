"""Parts of a data set are set aside without torch, as torch's own shuffle would."""

import pytest
import torch

from pocketbayes.data.examples import permutation


@pytest.mark.parametrize("n", [1, 2, 10, 1797])
@pytest.mark.parametrize("seed", [0, 1, 2**32 + 5])
def test_the_permutation_is_that_of_torch(n: int, seed: int) -> None:
    expected = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    assert permutation(n, seed).tolist() == expected.tolist()
