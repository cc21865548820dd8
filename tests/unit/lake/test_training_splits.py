"""Splits by hashes: the same ever after, moved as little as can be, exact by class; and the order of an epoch."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tiltyard.lake.training.epoch_order import EpochOrder, OrderSpec
from tiltyard.lake.training.splits import (
    NO_SPLIT,
    assign_by_class,
    assign_splits,
    hash_units,
    is_sampled,
    mixed_units,
)

COUNT = 20_000
UNITS = hash_units([pa.array(np.arange(COUNT))], 7)


def test_hashes_of_units_are_those_that_earlier_releases_had() -> None:
    """A set is made again years later: a change here is another format of manifests."""
    assert hash_units([pa.array(["a", "b", "a"])], 7).tolist() == [
        9712727859826539874,
        15746834663014945548,
        9712727859826539874,
    ]
    assert hash_units([pa.array([1]), pa.array(["x"])], 7).tolist() == [12891376290920148071]
    assert assign_splits(UNITS[:12], {"train": 0.5, "val": 0.3}).tolist() == [0, -1, -1, 1, 1, 1, -1, 0, -1, 1, 0, 0]
    order = EpochOrder(OrderSpec(20, 4, 8, 5), 1)
    assert np.concatenate(order.rows_of(range(order.spec.batches))).tolist() == [
        18,
        16,
        7,
        10,
        8,
        6,
        0,
        5,
        13,
        19,
        2,
        12,
        1,
        14,
        4,
        17,
        3,
        9,
        11,
        15,
    ]


def test_a_value_has_one_hash_in_all_types_that_can_hold_it() -> None:
    texts = pa.array(["1", "20", "300"])
    same: dict[str, pa.Array] = {
        "int16": pa.array([1, 20, 300], pa.int16()),
        "uint64": pa.array([1, 20, 300], pa.uint64()),
        "large text": texts.cast(pa.large_string()),
        "bytes": texts.cast(pa.binary()),
        "a dictionary": texts.dictionary_encode(),
        "a slice": pa.array(["0", "1", "20", "300"])[1:],
    }
    expected = hash_units([texts], 3).tolist()
    assert {kind: hash_units([values], 3).tolist() for kind, values in same.items()} == dict.fromkeys(same, expected)
    assert not set(expected) & set(hash_units([texts], 4).tolist())
    assert (
        hash_units([pa.array(["a", "b"]), pa.array(["b", "a"])], 1).tolist()[0]
        != (hash_units([pa.array(["b", "a"]), pa.array(["a", "b"])], 1).tolist()[0])
    )


def test_splits_have_their_fractions_and_move_no_more_than_they_must() -> None:
    def moved(before: dict[str, float], after: dict[str, float]) -> Counter[tuple[str, str]]:
        names = [[*fractions, "none"] for fractions in (before, after)]
        first, second = (assign_splits(UNITS, fractions) for fractions in (before, after))
        pairs = zip(first.tolist(), second.tolist(), strict=True)
        return Counter((names[0][old], names[1][new]) for old, new in pairs)

    cases: list[tuple[dict[str, float], dict[str, float], set[tuple[str, str]], float]] = [
        # two splits: only what one loses moves, to the other
        ({"train": 0.9, "val": 0.1}, {"train": 0.8, "val": 0.2}, {("train", "val")}, 0.11),
        # a split that grows loses nothing, and what shrinks (the rest) gains nothing
        (
            {"train": 0.5, "val": 0.1},
            {"train": 0.5, "val": 0.2},
            {("train", "val"), ("none", "val"), ("none", "train")},
            0.18,
        ),
        # a new split takes its share, and the names' order is nothing
        (
            {"train": 0.9, "val": 0.1},
            {"test": 0.1, "val": 0.1, "train": 0.8},
            {("train", "test"), ("val", "test"), ("train", "val")},
            0.12,
        ),
    ]
    for before, after, allowed, most in cases:
        found = moved(before, after)
        for name, fraction in after.items():
            share = sum(count for (_, new), count in found.items() if new == name) / COUNT
            assert abs(share - fraction) < 0.012, (after, name, share)
        moves = {pair: count for pair, count in found.items() if pair[0] != pair[1]}
        assert moves.keys() <= allowed, moves
        assert sum(moves.values()) / COUNT < most, (before, after, moves)
    assert (assign_splits(UNITS, {"a": 0.5}) == NO_SPLIT).mean() == pytest.approx(0.5, abs=0.012)


def test_classes_are_split_exactly_and_few_units_move_for_it() -> None:
    classes = np.where(np.arange(COUNT) % 100 == 0, 2, np.arange(COUNT) % 2)
    fractions = {"train": 0.7, "val": 0.2}
    exact, free = assign_by_class(UNITS, classes, fractions), assign_splits(UNITS, fractions)
    for code in range(3):
        total = int((classes == code).sum())
        counts = Counter(exact[classes == code].tolist())
        assert all(abs(counts[split] - total * share) <= 1 for split, share in ((0, 0.7), (1, 0.2), (NO_SPLIT, 0.1)))
    assert (exact != free).mean() < 0.02
    later = assign_by_class(UNITS[:-500], classes[:-500], fractions)
    assert (later != exact[:-500]).mean() < 0.01  # rows that came moved hardly any
    assert mixed_units(UNITS, classes) == -1
    assert mixed_units(np.repeat(UNITS[:2], 2), np.array([0, 0, 0, 1])) == 3


def test_a_sample_keeps_what_a_smaller_one_has() -> None:
    kept = {weight: is_sampled(UNITS, np.full(COUNT, weight)) for weight in (0.0, 0.1, 0.5, 1.0)}
    assert [int(kept[0.0].sum()), int(kept[1.0].sum())] == [0, COUNT]
    assert abs(kept[0.1].mean() - 0.1) < 0.01
    assert not (kept[0.1] & ~kept[0.5]).any()


ORDERS = [
    OrderSpec(rows, batch, buffer, seed)
    for rows in (1, 64, 1000, 2003)
    for batch, buffer in ((1, 1), (7, 200), (32, 4096), (64, 512), (6000, 6000))
    for seed in (None, 3)
    if rows // batch < 400
]


def batches_of(spec: OrderSpec, consumers: int, epoch: int = 0) -> list[list[np.ndarray[Any, Any]]]:
    """Return the batches that each of some consumers reads, group by group."""
    order = EpochOrder(spec, epoch)
    return [
        list(chain.from_iterable(map(order.rows_of, order.groups(number, consumers, spec.batches))))
        for number in range(consumers)
    ]


def test_an_epoch_has_each_row_once_and_consumers_share_one_order() -> None:
    for spec in ORDERS:
        (alone,) = batches_of(spec, 1)
        assert sorted(np.concatenate(alone).tolist()) == list(range(spec.rows)), spec
        assert [len(batch) for batch in alone[:-1]] == [spec.batch_size] * (spec.batches - 1), spec
        for consumers in (2, 3):
            shared = batches_of(spec, consumers)
            for number, own in enumerate(shared):
                expected = [batch.tolist() for batch in alone[number::consumers]]
                assert [batch.tolist() for batch in own] == expected, (spec, consumers)
        if spec.seed is None:
            assert np.concatenate(alone).tolist() == list(range(spec.rows))


def test_consumers_that_divide_the_shards_read_no_block_of_another() -> None:
    spec = OrderSpec(8 * 4096, 64, 4096, 3)
    assert (spec.shards, spec.rounds, spec.block_rows) == (8, 8, 8)
    for consumers in (2, 4, 8):
        blocks = [{int(row) // 8 for row in np.concatenate(own)} for own in batches_of(spec, consumers)]
        overlap = Counter(chain.from_iterable(blocks))
        assert sum(count > 1 for count in overlap.values()) <= 2 * len(overlap) * 0.55  # blocks are shifted: 2 halves
        assert sum(map(len, blocks)) < 2.1 * spec.rows / 8


def test_an_order_mixes_the_whole_split_and_differs_by_epoch() -> None:
    spec = OrderSpec(32_768, 256, 8192, 3)
    first, second = (np.concatenate(batches_of(spec, 1, epoch)[0]) for epoch in (0, 1))
    assert (first != second).mean() > 0.99
    batches = first.reshape(-1, 256)
    assert batches.mean(axis=1).std() < 0.2 * 32_768  # no batch is of one place
    spread = [len(set((batch // 2048).tolist())) for batch in batches]
    assert min(spread) >= 8  # of 16 parts of the split
    assert abs(np.corrcoef(first, np.arange(32_768))[0, 1]) < 0.05
