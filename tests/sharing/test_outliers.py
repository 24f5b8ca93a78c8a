from __future__ import annotations

import numpy as np
import pytest
import torch

from pocketbayes.sharing.outliers import (
    AbsoluteMean,
    MeanQuantile,
    Outliers,
    before_sharing,
    by_cluster_size,
    by_fisher,
    by_mean,
    cluster_sizes,
)


def test_means_beyond_the_threshold_are_outliers_on_both_sides() -> None:
    (mask,) = by_mean([torch.tensor([[0.1, -0.3], [0.2, 0.21]])], AbsoluteMean(0.2))
    assert mask.tolist() == [[False, True], [False, True]]


def test_a_quantile_is_taken_over_all_tensors() -> None:
    g = torch.Generator().manual_seed(0)
    mu = [torch.randn(1000, generator=g), 10 * torch.randn(500, generator=g)]
    masks = by_mean(mu, MeanQuantile(0.9))
    assert sum(int(m.sum()) for m in masks) == 150
    bound = np.sort(np.abs(torch.cat(mu).numpy()))[1350 - 1]
    assert bool((torch.cat(mu).abs()[torch.cat(masks)] > bound).all())


def test_the_top_share_of_sensitivities_are_outliers() -> None:
    g = torch.Generator().manual_seed(1)
    fisher = [torch.rand(30, 10, generator=g), torch.rand(700, generator=g)]
    masks = by_fisher(fisher, 0.01)
    flat, chosen = torch.cat([s.view(-1) for s in fisher]), torch.cat([m.view(-1) for m in masks])
    assert set(flat.topk(10).indices.tolist()) == set(chosen.nonzero().view(-1).tolist())


def test_equal_sensitivities_are_all_inliers() -> None:
    (mask,) = by_fisher([torch.ones(100)], 0.01)
    assert not mask.any()


def test_members_of_small_clusters_are_outliers() -> None:
    labels = [torch.tensor([0, 0, 1], dtype=torch.uint8), torch.tensor([0, 3, 3], dtype=torch.uint8)]
    assert cluster_sizes(labels, components=6).tolist() == [3, 1, 0, 2, 0, 0]
    masks = by_cluster_size(labels, smallest=2)
    assert [m.tolist() for m in masks] == [[False, False, True], [False, False, False]]


def test_each_rule_can_be_switched_off() -> None:
    mu, g = [torch.tensor([0.0, 1.0, 0.0, 0.0])], [torch.tensor([0.0, 0.0, 5.0, 0.0])]
    both = Outliers(fisher_fraction=0.25)
    assert before_sharing(both, mu, g)[0].tolist() == [False, True, True, False]
    no_mean = Outliers(mean=None, fisher_fraction=0.25)
    assert before_sharing(no_mean, mu, g)[0].tolist() == [False, False, True, False]
    no_gradient = Outliers(fisher_fraction=None)
    assert before_sharing(no_gradient, mu)[0].tolist() == [False, True, False, False]


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="tau"):
        AbsoluteMean(-1.0)
    with pytest.raises(ValueError, match="quantile"):
        MeanQuantile(1.5)
    with pytest.raises(ValueError, match="fisher_fraction"):
        Outliers(fisher_fraction=1.0)
    with pytest.raises(ValueError, match="smallest_cluster"):
        Outliers(smallest_cluster=-1)
    with pytest.raises(ValueError, match="fisher: needed"):
        before_sharing(Outliers(), [torch.zeros(3)])
    with pytest.raises(ValueError, match="shapes"):
        before_sharing(Outliers(), [torch.zeros(3)], [torch.zeros(4)])
    with pytest.raises(ValueError, match="NaN"):
        by_mean([torch.tensor([float("nan")])], MeanQuantile(0.5))
