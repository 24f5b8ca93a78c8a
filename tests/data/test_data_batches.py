from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from pocketbayes import data

property_test = settings(deadline=None, derandomize=True, max_examples=30)


def a_set(n: int = 100, classes: int = 3) -> data.DataSet:
    generator = torch.Generator().manual_seed(n)
    return data.DataSet(
        name="made up",
        x=torch.arange(n)[:, None].float(),
        y=torch.randint(classes, (n,), generator=generator),
        classes=tuple("abcdefghij"[:classes]),
        scaling=data.Scaling(torch.zeros(1), torch.ones(1)),
    )


@property_test
@given(st.integers(10, 300), st.floats(0.06, 0.94), st.integers(0, 100))
def test_held_out_examples_are_a_fair_share_of_every_class(n: int, fraction: float, seed: int) -> None:
    whole = a_set(n)
    train, validation = data.hold_out(whole, fraction, seed)
    assert len(validation) == round(fraction * n)
    assert sorted(torch.cat([train.x, validation.x]).flatten().tolist()) == list(range(n))
    assert torch.equal(whole.y[validation.x.flatten().long()], validation.y)
    expected = whole.y.bincount(minlength=3) * (len(validation) / n)
    assert (validation.y.bincount(minlength=3) - expected).abs().max() <= 1.0 + 1e-6


def test_holding_out_depends_on_the_seed_alone() -> None:
    torch.manual_seed(0)
    first = data.hold_out(a_set(), seed=1)[1].x
    torch.manual_seed(1)
    assert torch.equal(data.hold_out(a_set(), seed=1)[1].x, first)
    assert not torch.equal(data.hold_out(a_set(), seed=2)[1].x, first)


def test_impossible_fractions_labels_and_lengths_are_refused() -> None:
    for fraction in (0.0, 1.0, 1.5, 0.001):
        with pytest.raises(ValueError, match="leaves nothing on one side"):
            data.hold_out(a_set(), fraction)
    parts = {"name": "bad", "x": torch.zeros(2, 1), "scaling": data.Scaling(torch.zeros(1), torch.ones(1))}
    with pytest.raises(ValueError, match="bad: labels from 0 to 5 for 2 classes"):
        data.DataSet(y=torch.tensor([0, 5]), classes=("a", "b"), **parts)
    with pytest.raises(ValueError, match="bad: 2 inputs and 1 targets"):
        data.DataSet(y=torch.tensor([0]), classes=("a", "b"), **parts)


def test_crops_and_flips_are_shifts_of_the_padded_image_and_all_occur() -> None:
    x = torch.randint(1, 256, (1, 2, 6, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    padded = torch.zeros(2, 10, 9, dtype=torch.uint8)
    padded[:, 2:8, 2:7] = x[0]
    possible = set()
    for up in range(5):
        for left in range(5):
            crop = padded[:, up : up + 6, left : left + 5]
            possible |= {tuple(crop.flatten().tolist()), tuple(crop.flip(2).flatten().tolist())}
    batch = x.expand(2000, -1, -1, -1)
    seen = data.crop_flip(batch, padding=2, generator=torch.Generator().manual_seed(1))
    assert seen.dtype == torch.uint8
    assert {
        tuple(image.flatten().tolist()) for image in seen
    } == possible  # 50 of them, each missed with 3e-18
    unflipped = data.crop_flip(batch, padding=2, flip=False)
    assert len({tuple(image.flatten().tolist()) for image in unflipped}) == 25


def test_small_windows_are_parts_of_the_image_and_all_occur() -> None:
    x = torch.arange(30, dtype=torch.uint8).view(1, 1, 6, 5)
    seen = data.crop_flip(x.expand(500, -1, -1, -1), padding=0, flip=False, size=4)
    possible = {
        tuple(x[0, 0, up : up + 4, left : left + 4].flatten().tolist())
        for up in range(3)
        for left in range(2)
    }
    assert {tuple(image.flatten().tolist()) for image in seen} == possible
    with pytest.raises(
        ValueError, match="windows of 9 pixels do not fit into images of 6 x 5 with padding 1"
    ):
        data.crop_flip(x, padding=1, size=9)


def test_augmentation_is_driven_by_the_given_generator_or_the_global_one() -> None:
    x = torch.rand(16, 3, 8, 8)
    torch.manual_seed(3)
    first = data.crop_flip(x)
    assert not torch.equal(data.crop_flip(x), first)
    torch.manual_seed(3)
    assert torch.equal(data.crop_flip(x), first)
    state = torch.get_rng_state()
    own = [data.crop_flip(x, generator=torch.Generator().manual_seed(5)) for _ in range(2)]
    assert torch.equal(*own)
    assert torch.equal(torch.get_rng_state(), state)


@property_test
@given(st.integers(1, 50), st.integers(1, 60), st.booleans(), st.booleans())
def test_batches_are_those_of_a_dataloader_up_to_order(
    n: int, size: int, shuffle: bool, drop_last: bool
) -> None:
    x, y = torch.arange(n)[:, None].float(), torch.arange(n)
    if drop_last and n < size:
        with pytest.raises(ValueError, match="drop_last leaves no batch"):
            data.BatchLoader(x, y, size, drop_last=True)
        return
    loader = data.BatchLoader(x, y, size, shuffle=shuffle, drop_last=drop_last)
    reference = DataLoader(TensorDataset(x, y), size, shuffle=shuffle, drop_last=drop_last)
    ours, theirs = list(loader), list(reference)
    assert len(loader) == len(ours) == len(reference)
    assert len(loader.dataset) == n
    assert [len(bx) for bx, _ in ours] == [len(bx) for bx, _ in theirs]
    assert all(torch.equal(bx[:, 0].long(), by) for bx, by in ours)
    seen = torch.cat([by for _, by in ours])
    assert len(seen.unique()) == len(seen)
    if not shuffle:
        assert all(torch.equal(a, b) for a, b in zip(seen, torch.cat([by for _, by in theirs]), strict=True))


def test_the_order_is_drawn_from_the_global_generator_when_iteration_starts() -> None:
    loader = a_set().batches(7, shuffle=True)

    def order() -> torch.Tensor:
        return torch.cat([x for x, _ in loader])

    torch.manual_seed(4)
    first, second = order(), order()
    assert not torch.equal(first, second)
    torch.manual_seed(4)
    assert torch.equal(order(), first)
    torch.manual_seed(4)
    started = iter(loader)
    torch.manual_seed(99)  # too late to matter
    assert torch.equal(torch.cat([x for x, _ in started]), first)


def test_augmentation_sees_raw_batches_and_the_network_scaled_ones() -> None:
    digits = data.load("digits", split="test")
    seen = []

    def blacken(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.dtype)
        return torch.zeros_like(x)

    x, y = next(iter(digits.batches(32, augment=blacken)))
    assert seen == [torch.uint8]
    torch.testing.assert_close(x, torch.full((32, 1, 8, 8), -0.3053 / 0.3760))
    assert torch.equal(y, digits.y[:32])


def test_a_dataset_feeds_a_plain_dataloader_with_the_same_numbers() -> None:
    for name in ("digits", "diabetes"):
        whole = data.load(name)
        for (a, b), (c, d) in zip(DataLoader(whole, 500), whole.batches(500), strict=True):
            torch.testing.assert_close(a, c)
            torch.testing.assert_close(b, d)


def test_a_batch_size_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        a_set().batches(0)
    with pytest.raises(ValueError, match="2 inputs and 3 targets"):
        data.BatchLoader(torch.zeros(2, 1), torch.zeros(3), 1)
