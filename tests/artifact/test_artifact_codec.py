from __future__ import annotations

import constriction
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketbayes.artifact import codec, context
from pocketbayes.errors import ArtifactError

quick = settings(deadline=None, derandomize=True, max_examples=60)


def entropy(counts: np.ndarray) -> float:
    """Shannon bits of labels with these counts, zero for none."""
    kept = counts[counts > 0]
    return float(-(kept * np.log2(kept / kept.sum())).sum())


def smooth_kernels(rows: int, k: int, seed: int, smooth: float = 0.8) -> np.ndarray:
    """Labels [rows, 3, 3] of kernels whose neighbouring cells resemble each other as much as `smooth` says."""
    rng = np.random.default_rng(seed)
    common = rng.standard_normal((rows, 1, 1))
    values = smooth * common + np.sqrt(1 - smooth**2) * rng.standard_normal((rows, 3, 3))
    return np.clip(np.rint(values * k / 6 + k / 2 - 0.5), 0, k - 1).astype(np.uint8)


def roundtrip(layers: list[tuple[np.ndarray, codec.LabelLayout]], levels: np.ndarray) -> codec.Coded:
    coded = codec.encode(layers, levels)
    decoder = codec.Decoder(coded, levels)
    for (labels, layer), grouping in zip(layers, coded.groupings, strict=True):
        assert (decoder.layer(layer, grouping) == labels).all()
    decoder.finish()
    return coded


@quick
@given(st.lists(st.integers(0, 255), min_size=1, max_size=40).filter(any))
def test_constriction_uses_exactly_the_integers_of_the_table(codes: list[int]) -> None:
    table = codec.FrequencyTable(codec.count_of(np.array(codes, np.uint8)), np.uint16)
    assert table.frequencies.sum() == 2**24
    assert table.frequencies.min() >= 1
    if table.model is None:
        return
    for symbol, left in enumerate(np.cumsum(table.frequencies) - table.frequencies):
        coder = constriction.stream.stack.AnsCoder(np.array([0, 1 << 20], np.uint32))
        coder.encode_reverse(np.array([symbol], np.int32), table.model)
        words = [int(word) for word in coder.get_compressed()]
        state, frequency = 1 << 52, int(table.frequencies[symbol])
        tail = []
        if state >= frequency << 40:
            tail, state = [state & 0xFFFFFFFF], state >> 32
        state = (state // frequency << 24) + int(left) + state % frequency
        assert words == [*tail, state & 0xFFFFFFFF, state >> 32][: len(words)]


def test_count_codes_are_exact_up_to_fifteen_and_never_far_off() -> None:
    counts = np.concatenate([np.arange(5000), 2 ** np.arange(13, 34), 2 ** np.arange(13, 34) - 1])
    back = codec.count_of(codec.code_of(counts))
    assert (back[:16] == np.arange(16)).all()
    assert (np.abs(back - counts) <= counts / 16).all()
    assert ((back > 0) == (counts > 0)).all()
    assert (codec.code_of(codec.count_of(np.arange(256))) == np.arange(256)).all()


@quick
@given(
    st.integers(0, 2**32 - 1),
    st.lists(
        st.sampled_from([(0, 3), (7,), (5, 6), (9, 4, 5), (30, 20, 3, 3), (8, 8, 7, 7), (5, 4, 4, 3, 4)]),
        max_size=4,
    ),
    st.sampled_from([1, 2, 17, 254, 255, 3000]),
)
def test_decoding_inverts_encoding(seed: int, shapes: list[tuple[int, ...]], k: int) -> None:
    rng = np.random.default_rng(seed)
    levels = context.levels_of(rng.standard_normal(k).astype(np.float32))
    layers = []
    for shape in shapes:
        size = int(np.prod(shape))
        labels = np.clip(np.cumsum(rng.integers(-1, 2, size)) + k // 2, 0, k + 1).astype(
            np.min_scalar_type(k + 1)
        )
        layers.append((labels, codec.layer_of(shape, size)))
    roundtrip(layers, levels)


@pytest.mark.parametrize("smooth", [0.0, 0.8])
@pytest.mark.parametrize("rows", [256, 4096])
def test_a_layer_comes_within_one_percent_of_the_shannon_bound(smooth: float, rows: int) -> None:
    labels = smooth_kernels(rows, 24, seed=1, smooth=smooth).reshape(-1)
    levels = context.levels_of(np.arange(24) - 11.5)
    layer = codec.LabelLayout(labels.size, (3, 3))
    coded = roundtrip([(labels, layer)], levels)
    decoder = codec.Decoder(coded, levels)
    counts = codec.group_counts(labels, layer, coded.groupings[0].step, levels)
    assert counts.sum() == labels.size
    tables = np.array(coded.groupings[0].tables)
    model = sum(float(decoder.tables[t].bits(len(levels)) @ c) for t, c in zip(tables, counts, strict=True))
    shannon = sum(
        entropy(counts[tables == t].sum(0)) for t in set(tables)
    )  # groups that share a table are one
    assert model < 1.01 * shannon + 1
    assert 32 * len(coded.words) < model + 64


def test_contexts_are_used_where_kernels_are_smooth_and_only_there() -> None:
    levels = context.levels_of(np.arange(24) - 11.5)
    sizes = {}
    for smooth in (0.0, 0.8):
        labels = smooth_kernels(4096, 24, seed=2, smooth=smooth).reshape(-1)
        coded = roundtrip([(labels, codec.LabelLayout(labels.size, (3, 3)))], levels)
        plain = roundtrip([(labels, codec.LabelLayout(labels.size, (1, 1)))], levels)
        sizes[smooth] = (coded.groupings[0].step, len(coded.words) / len(plain.words))
    assert sizes[0.0] == (0, 1.0)
    assert sizes[0.8][0] > 0
    assert sizes[0.8][1] < 0.95


def test_alike_layers_share_a_table_and_different_ones_do_not() -> None:
    rng = np.random.default_rng(0)
    levels = context.levels_of(np.arange(32.0))
    narrow = [rng.binomial(8, 0.5, 300).astype(np.uint8) for _ in range(6)]
    wide = [(31 - rng.binomial(8, 0.5, 300)).astype(np.uint8) for _ in range(6)]
    coded = roundtrip([(labels, codec.LabelLayout(300, (1, 1))) for labels in narrow + wide], levels)
    tables = [grouping.tables[0] for grouping in coded.groupings]
    assert set(tables[:6]).isdisjoint(tables[6:])
    assert len(set(tables)) == 2


def test_a_layer_with_one_label_costs_nothing() -> None:
    levels = context.levels_of(np.arange(3.0))
    coded = roundtrip([(np.full(10**6, 2, np.uint8), codec.LabelLayout(10**6, (1, 1)))], levels)
    assert len(coded.words) == 0


def test_more_groups_than_tables_still_fit() -> None:
    rng = np.random.default_rng(0)
    levels = context.levels_of(np.arange(600.0))
    layers = [
        (np.uint16(2 * i + rng.integers(0, 2, 400)), codec.LabelLayout(400, (1, 1))) for i in range(290)
    ]
    assert len(roundtrip(layers, levels).tables) == codec.MAX_TABLES


def test_words_left_over_are_noticed() -> None:
    levels = context.levels_of(np.arange(4.0))
    labels = np.arange(400, dtype=np.uint8) % 4
    coded = codec.encode([(labels, codec.LabelLayout(400, (1, 1)))], levels)
    decoder = codec.Decoder(
        coded._replace(words=np.concatenate([[1], coded.words]).astype(np.uint32)), levels
    )
    decoder.layer(codec.LabelLayout(400, (1, 1)), coded.groupings[0])
    with pytest.raises(ArtifactError, match="goes on after"):
        decoder.finish()
    with pytest.raises(ArtifactError, match="not one that an encoder"):
        codec.Decoder(coded._replace(words=np.append(coded.words, np.uint32(0))), levels)
