"""Who gets which samples: supports, disjointness, sizes and matched tests (ALGORITHMS §7, §8.1, §13)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml.data.base import Labels
from ml.data.digits import load_digits
from ml.data.partition import (
    ClientSplit,
    make_partition,
    parse_partition,
    partition_from_mapping,
    split_from_mapping,
)
from ml.errors import DataError

SCHEMES = ("classes:3,1", "classes:5,2", "dirichlet:0.3", "dirichlet:5", "iid")


def deal(scheme: str, num_clients: int, seed: int, shots: int | None = None) -> list[ClientSplit]:
    train, test = load_digits()
    return make_partition(scheme, train.y, test.y, num_clients, seed, shots)


def count_classes(splits: list[ClientSplit]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    train, _ = load_digits()
    return np.stack([np.bincount(train.y[split.train], minlength=10) for split in splits])


@pytest.mark.parametrize(
    ("avg", "std", "low", "high", "mean", "deviation"),
    [
        (3, 1, 2, 4, 3.0, 0.816),
        (3, 2, 2, 5, 3.5, 1.118),
        (3, 3, 2, 6, 4.0, 1.414),
        (4, 1, 3, 5, 4.0, 0.816),
        (4, 2, 2, 6, 4.0, 1.414),
        (4, 3, 2, 7, 4.5, 1.708),
        (5, 1, 4, 6, 5.0, 0.816),
        (5, 2, 3, 7, 5.0, 1.414),
        (5, 3, 2, 8, 5.0, 2.000),
    ],
)
def test_number_of_classes_has_the_support_of_the_table(
    avg: int, std: int, low: int, high: int, mean: float, deviation: float
) -> None:
    labels = np.repeat(np.arange(10), 400)
    splits = make_partition(f"classes:{avg},{std}", labels, labels, 400, 1, 1)
    owned = np.array([len(np.unique(labels[split.train])) for split in splits])
    assert set(owned) == set(range(low, high + 1))
    assert owned.mean() == pytest.approx(mean, abs=4 * deviation / math.sqrt(400))
    assert owned.std() == pytest.approx(deviation, abs=0.15)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("shots", [None, 5])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_training_sample_goes_to_two_clients_and_none_goes_without(
    scheme: str, shots: int | None, seed: int
) -> None:
    splits = deal(scheme, 10, seed, shots)
    dealt = np.concatenate([split.train for split in splits])
    assert len(np.unique(dealt)) == len(dealt)
    assert all(len(split.train) and len(split.test) for split in splits)
    for split in splits:
        assert np.all(np.diff(split.train) > 0)
        assert np.all(np.diff(split.test) > 0)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_matched_tests_hold_all_owned_classes_and_no_other(scheme: str, seed: int) -> None:
    train, test = load_digits()
    for split in deal(scheme, 10, seed):
        assert set(test.y[split.test]) == set(train.y[split.train])


@pytest.mark.parametrize("seed", range(5))
def test_matched_tests_of_classes_are_all_of_those_classes(seed: int) -> None:
    train, test = load_digits()
    for split in deal("classes:3,1", 4, seed):
        assert np.array_equal(split.test, np.flatnonzero(np.isin(test.y, train.y[split.train])))


def test_matched_tests_follow_the_shares_of_training() -> None:
    train_y = np.repeat([0, 1], 100)
    test_y = np.repeat([0, 1], 20)
    train, test = load_digits()
    for split in make_partition("iid", train_y, test_y, 2, 7):
        shares = np.bincount(train_y[split.train]) / 100
        assert np.bincount(test_y[split.test]) == pytest.approx(shares * 20, abs=1)
    sizes = [(len(split.train) / len(train), len(split.test) / len(test)) for split in deal("dirichlet:0.3", 4, 1)]
    assert all(own == pytest.approx(matched, abs=0.02) for own, matched in sizes)


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.3, 0.5, 5.0, 10.0])
def test_dirichlet_leaves_nobody_below_ten_and_nothing_over(alpha: float) -> None:
    splits = deal(f"dirichlet:{alpha}", 10, 3)
    assert min(len(split.train) for split in splits) >= 10
    assert sum(len(split.train) for split in splits) == 1438


def test_smaller_alpha_means_more_skew() -> None:
    def measure_skew(alpha: float) -> float:
        shares = count_classes(deal(f"dirichlet:{alpha}", 10, 1))
        return float(np.mean(shares.max(1) / shares.sum(1)))

    assert measure_skew(0.05) > measure_skew(0.5) + 0.1 > measure_skew(50) + 0.2


@pytest.mark.parametrize("seed", range(5))
def test_all_samples_of_an_owned_class_are_split_evenly_among_its_owners(seed: int) -> None:
    train, _ = load_digits()
    counts_NC = count_classes(deal("classes:3,1", 4, seed))
    assert counts_NC.sum() > len(train) / 2
    for c, total in enumerate(np.bincount(train.y)):
        shares = counts_NC[:, c][counts_NC[:, c] > 0]
        assert shares.sum() in (0, total)
        assert not len(shares) or shares.max() - shares.min() <= 1


def test_shots_limit_the_samples_of_each_class() -> None:
    assert set(count_classes(deal("classes:3,1", 10, 1, shots=5)).flat) == {0, 5, 6}
    assert set(count_classes(deal("classes:3,0", 10, 1, shots=5)).flat) == {0, 5}
    assert count_classes(deal("dirichlet:0.5", 10, 1, shots=5)).max() == 5
    assert count_classes(deal("iid", 10, 1, shots=5)).max() == 5
    assert count_classes(deal("classes:3,1", 10, 1, shots=10_000)).max() == 14  # min(110, n_c // N)


def test_iid_parts_differ_by_one_sample_at_most() -> None:
    sizes = [len(split.train) for split in deal("iid", 7, 1)]
    assert sum(sizes) == 1438
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("scheme", SCHEMES)
def test_partition_is_a_function_of_its_seed(scheme: str) -> None:
    def flatten(seed: int) -> list[list[int]]:
        return [split.train.tolist() + split.test.tolist() for split in deal(scheme, 4, seed)]

    assert flatten(1) == flatten(1)
    assert flatten(1) != flatten(2)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_node_finds_its_own_part_by_its_configuration(scheme: str) -> None:
    train, test = load_digits()
    splits = deal(scheme, 4, 77, 20)
    parsed = parse_partition(scheme)
    assert str(parsed) == scheme
    for i, split in enumerate(splits):
        mapping = parsed.to_mapping() | {"index": i, "of": 4, "seed": 77, "shots": 20}
        assert partition_from_mapping(mapping) == parsed
        own = split_from_mapping(mapping, train.y, test.y)
        assert np.array_equal(own.train, split.train)
        assert np.array_equal(own.test, split.test)


@given(
    labels=st.lists(st.integers(0, 4), min_size=40, max_size=120).map(lambda y: np.array([*y, *range(5)])),
    num_clients=st.integers(1, 4),
    scheme=st.sampled_from(["classes:2,1", "dirichlet:0.5", "iid"]),
    seed=st.integers(0, 2**31 - 1),
)
@settings(max_examples=60, deadline=None)
def test_every_partition_that_is_made_is_sound(labels: Labels, num_clients: int, scheme: str, seed: int) -> None:
    try:
        splits = make_partition(scheme, labels, labels, num_clients, seed)
    except DataError:
        return  # a class of two owners and one sample, or too few samples for all: refused, not made badly
    dealt = np.concatenate([split.train for split in splits])
    assert len(np.unique(dealt)) == len(dealt)
    for split in splits:
        assert len(split.train)
        assert set(labels[split.test]) == set(labels[split.train])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class:3,1", "unknown scheme 'class': did you mean 'classes'"),
        ("classes:3", "expected classes:AVG,STD, got 'classes:3'"),
        ("classes:3,x", "expected classes:AVG,STD"),
        ("classes:3.5,1", "expected whole numbers"),
        ("classes:1,0", "expects AVG >= 2"),
        ("classes:3,-1", "STD >= 0"),
        ("dirichlet", "expected dirichlet:ALPHA"),
        ("dirichlet:0", "expects ALPHA > 0"),
        ("dirichlet:nan", "expects ALPHA > 0"),
        ("iid:3", "expected iid"),
    ],
)
def test_wrong_scheme_is_named(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_partition(text)


@pytest.mark.parametrize(
    ("scheme", "num_clients", "shots", "message"),
    [
        ("iid", 0, None, "at least 1 client"),
        ("iid", 3, 0, "at least 1 shot"),
        ("iid", 2000, None, "one sample for each of 2000 clients, got 1438"),
        ("classes:14,1", 2, None, "expects at least 13 classes, got 10"),
        ("dirichlet:0.0001", 60, None, "expected a larger alpha or fewer clients"),
    ],
)
def test_what_cannot_be_dealt_is_refused(scheme: str, num_clients: int, shots: int | None, message: str) -> None:
    with pytest.raises(DataError, match=message):
        deal(scheme, num_clients, 1, shots)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"index": 4}, "data.partition.index: expected 0 to 3, got 4"),
        ({"seed": "x"}, "data.partition.seed: expected a whole number"),
        ({"alpha": None}, "data.partition.alpha: expected a number"),
        ({"scheme": "dirichlett"}, "data.partition.scheme: unknown scheme 'dirichlett': did you mean 'dirichlet'"),
    ],
)
def test_wrong_key_of_a_configuration_is_named(change: dict[str, object], message: str) -> None:
    train, test = load_digits()
    mapping = {"scheme": "dirichlet", "alpha": 0.3, "index": 3, "of": 4, "seed": 7} | change
    with pytest.raises(DataError, match=message):
        split_from_mapping(mapping, train.y, test.y)
