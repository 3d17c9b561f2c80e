"""Partition schemes: supports, disjointness, sizes and matched tests (ALGORITHMS §7, §8.1, §13)."""

from __future__ import annotations

import hashlib
import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml.data.base import Labels
from ml.data.partition import (
    ClientSplit,
    Indices,
    compute_distances,
    count_classes,
    hash_splits,
    make_partition,
    parse_partition,
    partition_from_mapping,
    split_from_mapping,
    splits_from_mapping,
)
from ml.data.partition.classes import Classes
from ml.data.partition.domain_shift import DOMAINS
from ml.data.partition.grammar import SCHEMES as NAMES
from ml.data.readers.digits import load_digits
from ml.errors import DataError

SCHEMES = (
    "classes:3,1",
    "classes:5,2",
    "classes:4,2,count=normal",
    "classes:4,1,cover=true",
    "dirichlet:0.3",
    "dirichlet:5",
    "dirichlet:0.3,balance=false",
    "dirichlet:0.1,per=client",
    "domains",
    "shards:2",
    "shards:3",
    "iid",
)

TABLE = [  # of §7.1: Avg, Std, the support, its mean and its deviation
    (3, 1, 2, 4, 3.0, 0.816),
    (3, 2, 2, 5, 3.5, 1.118),
    (3, 3, 2, 6, 4.0, 1.414),
    (4, 1, 3, 5, 4.0, 0.816),
    (4, 2, 2, 6, 4.0, 1.414),
    (4, 3, 2, 7, 4.5, 1.708),
    (5, 1, 4, 6, 5.0, 0.816),
    (5, 2, 3, 7, 5.0, 1.414),
    (5, 3, 2, 8, 5.0, 2.000),
]

# What each scheme dealt when it was first written: (scheme, clients, seed, shots), then the SHA-256 of all indices.
# Published figures rest on these; a change to one is a change to them.
DEALT = {
    ("classes:3,1", 4, 1, None): "3d7e1946f1e121e0",
    ("classes:3,1", 4, 77, None): "67c21a3118c2afe7",
    ("classes:3,1", 10, 1, None): "2c25d3f4f9d559ad",
    ("classes:3,1", 10, 1, 5): "3cdb28adfa8002f4",
    ("classes:3,1", 10, 77, None): "7a114c90a127e3d1",
    ("classes:3,1", 10, 77, 5): "ab8c228f41f55d1f",
    ("classes:5,2", 4, 1, None): "90aa06742a726c57",
    ("classes:5,2", 4, 77, None): "fc04e099a2900d5e",
    ("classes:5,2", 10, 1, None): "17b3b929e21b856d",
    ("classes:5,2", 10, 1, 5): "65f4abb078fb16f4",
    ("classes:5,2", 10, 77, None): "a8cd34672c248eee",
    ("classes:5,2", 10, 77, 5): "e3f1295c7835efd5",
    ("dirichlet:0.3", 4, 1, None): "763f52f198c0d73d",
    ("dirichlet:0.3", 4, 77, None): "0d80e07cedcbb72a",
    ("dirichlet:0.3", 10, 1, None): "932f0bf1fff0263c",
    ("dirichlet:0.3", 10, 1, 5): "86c9209813445b7e",
    ("dirichlet:0.3", 10, 77, None): "60a08fdf0494fb3c",
    ("dirichlet:0.3", 10, 77, 5): "7cbd2499dec0d6e4",
    ("dirichlet:0.05", 4, 1, None): "6ac52bff32bb035d",
    ("dirichlet:0.05", 4, 77, None): "cef2acef6ca50ff5",
    ("dirichlet:0.05", 10, 1, None): "fcb4efd3f26ec1fb",
    ("dirichlet:0.05", 10, 1, 5): "9d3f2252446bd265",
    ("dirichlet:0.05", 10, 77, None): "486cf35efb3d122b",
    ("dirichlet:0.05", 10, 77, 5): "94079322f6613114",
    ("iid", 4, 1, None): "a8913787c17e0baa",
    ("iid", 4, 77, None): "e4fddea453775470",
    ("iid", 10, 1, None): "e735a2550c7289bb",
    ("iid", 10, 1, 5): "3222770604ff1a41",
    ("iid", 10, 77, None): "0571de52b834cfdc",
    ("iid", 10, 77, 5): "f78285f4f322d824",
    ("classes:3,1,count=normal", 10, 1, None): "5ef8a007cac2e522",
    ("classes:3,1,count=normal", 10, 77, None): "9b8496fef389b60d",
    ("classes:3,1,samples=shots", 10, 1, None): "dfe3937a6f48712b",
    ("classes:3,1,samples=shots", 10, 77, None): "13be744e8fdf7f02",
    ("classes:2,1,cover=true", 10, 1, None): "00a436b39f92f1b4",
    ("classes:2,1,cover=true", 10, 77, None): "452db05b473e1867",
    ("dirichlet:0.3,balance=false", 10, 1, None): "24f9fceab9c519a0",
    ("dirichlet:0.3,balance=false", 10, 77, None): "2fb2dbd50895dd68",
    ("dirichlet:0.3,per=client", 10, 1, None): "ab5c0f4194216229",
    ("dirichlet:0.3,per=client", 10, 77, None): "2adbcdfa61eb2402",
    ("dirichlet:0.05,per=client", 10, 1, None): "207a6cebdda75b88",
    ("dirichlet:0.05,per=client", 10, 77, None): "f740d067108c65b9",
    ("domains", 10, 1, None): "ee9e57c18d3aa6b2",
    ("domains", 10, 77, None): "49aceb430638c386",
    ("shards:2", 10, 1, None): "b36afd9f882a9ebb",
    ("shards:2", 10, 77, None): "ff07bbd8c067f0b2",
}


def deal(scheme: str, num_clients: int, seed: int, shots: int | None = None) -> list[ClientSplit]:
    train, test = load_digits()
    return make_partition(scheme, train.y, test.y, num_clients, seed, shots)


def count_digits(splits: list[ClientSplit]) -> Indices:
    return count_classes([split.train for split in splits], load_digits()[0].y, 10)


@pytest.mark.parametrize(("scheme", "num_clients", "seed", "shots"), DEALT)
def test_samples_are_dealt_as_they_always_were(scheme: str, num_clients: int, seed: int, shots: int | None) -> None:
    digest = hash_splits(deal(scheme, num_clients, seed, shots))
    assert digest.startswith(DEALT[scheme, num_clients, seed, shots])


def test_the_digest_is_over_lengths_indices_and_domains() -> None:
    split = ClientSplit(np.array([1, 258]), np.array([3]), "blur")
    data = b"".join(
        n.to_bytes(8, "little")
        for n in (2, 1, 258, 1, 3, 4)  # two indices, one index, four letters
    )
    assert hash_splits([split]) == hashlib.sha256(data + b"blur").hexdigest()
    assert hash_splits([ClientSplit(split.train, split.test)]) != hash_splits([split])


@pytest.mark.parametrize(
    ("avg", "std", "low", "high", "mean", "deviation"),
    TABLE,
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


@pytest.mark.parametrize(
    ("avg", "std", "low", "high", "mean", "deviation"),
    TABLE,
)
def test_mean_and_deviation_over_the_support_are_those_of_the_table(
    avg: int, std: int, low: int, high: int, mean: float, deviation: float
) -> None:
    assert Classes(avg, std).get_support(10) == (low, high)
    numbers = np.arange(low, high + 1)
    assert numbers.mean() == mean
    assert round(numbers.std(), 3) == deviation


def test_normal_counts_are_rounded_and_clipped_to_what_there_is() -> None:
    labels = np.repeat(np.arange(10), 400)

    def count(scheme: str) -> Indices:
        splits = make_partition(scheme, labels, labels, 400, 1, 1)
        return np.array([len(np.unique(labels[split.train])) for split in splits])

    assert set(count("classes:5,0,count=normal")) == {5}
    middle = count("classes:5,1,count=normal")
    assert middle.mean() == pytest.approx(5, abs=0.2)
    assert middle.std() == pytest.approx(math.sqrt(1 + 1 / 12), abs=0.15)  # rounding adds a twelfth
    wide = count("classes:5,4,count=normal")
    assert set(wide) == set(range(2, 11))
    assert np.mean(wide == 2) == pytest.approx(0.27, abs=0.08)  # all that was below 2.5
    assert set(count("classes:20,1,count=normal")) == {10}


@pytest.mark.parametrize("seed", range(5))
def test_cover_gives_every_class_an_owner(seed: int) -> None:
    assert np.all(count_digits(deal("classes:3,1,cover=true", 4, seed)).sum(0))
    assert set((count_digits(deal("classes:2,0,cover=true", 5, seed)) > 0).sum(0)) == {1}


def test_cover_draws_again_only_if_it_must() -> None:
    digests = [
        [hash_splits(deal(f"classes:3,1{flag}", 10, seed)) for seed in range(30)] for flag in ("", ",cover=true")
    ]
    covered = [bool(np.all(count_digits(deal("classes:3,1", 10, seed)).sum(0))) for seed in range(30)]
    assert [one == two for one, two in zip(*digests, strict=True)] == covered
    assert 0 < sum(covered) < 30


def test_samples_by_shots_are_a_hundred_unless_the_run_says_otherwise() -> None:
    labels = np.repeat(np.arange(4), 1000)

    def count(scheme: str, shots: int | None) -> set[int]:
        splits = make_partition(scheme, labels, labels, 4, 1, shots)
        return {int(n) for n in count_classes([split.train for split in splits], labels, 4).flat if n}

    assert count("classes:2,0,samples=shots", None) == {100}
    assert count("classes:2,0,samples=shots", 7) == count("classes:2,0", 7) == {7}
    assert min(count("classes:2,0,samples=all", None)) >= 250


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
        if scheme == "domains":  # whose matched tests share no sample, so that a rare class may be in too few of them
            assert set(test.y[split.test]) <= set(train.y[split.train])
        else:
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


@pytest.mark.parametrize("flags", ["", ",balance=false", ",per=client"])
def test_smaller_alpha_means_more_skew(flags: str) -> None:
    def measure_skew(alpha: float) -> float:
        shares = count_digits(deal(f"dirichlet:{alpha}{flags}", 10, 1))
        return float(np.mean(shares.max(1) / shares.sum(1)))

    assert measure_skew(0.05) > measure_skew(0.5) + 0.1 > measure_skew(50) + 0.2


def test_balance_keeps_sizes_together() -> None:
    def measure_spread(flags: str) -> float:
        sizes = [[len(split.train) for split in deal(f"dirichlet:0.3{flags}", 10, seed)] for seed in range(20)]
        return float(np.std(sizes))

    assert measure_spread("") < 0.8 * measure_spread(",balance=false")


@pytest.mark.parametrize("alpha", [1e-6, 0.05, 0.5, 10.0, 1e6])
@pytest.mark.parametrize("num_clients", [1, 7, 10])
def test_clients_of_the_client_form_are_of_equal_size_and_nothing_is_left(alpha: float, num_clients: int) -> None:
    counts_NC = count_digits(deal(f"dirichlet:{alpha},per=client", num_clients, 3))
    assert set(counts_NC.sum(1)) <= {1438 // num_clients, -(-1438 // num_clients)}
    assert np.array_equal(counts_NC.sum(0), load_digits()[0].count_classes())


def test_a_large_alpha_of_the_client_form_is_nearly_iid() -> None:
    labels = np.repeat(np.arange(10), 1000)
    splits = make_partition("dirichlet:1000000,per=client", labels, labels, 4, 1)
    counts_NC = count_classes([split.train for split in splits], labels, 10)
    assert np.all(abs(counts_NC - 250) < 80)  # 5 deviations of a count of 10,000 draws with a chance of 1 in 40


def test_a_small_alpha_of_the_client_form_gives_clients_one_class_while_it_lasts() -> None:
    labels = np.repeat(np.arange(1000), 10)  # more classes than can run dry
    splits = make_partition("dirichlet:0.000001,per=client", labels, labels, 2, 1)
    first = count_classes([split.train for split in splits], labels, 1000)
    assert set(first.sum(1)) == {5000}
    assert np.all(np.sort(first.max(1)) >= 5)


@pytest.mark.parametrize("per_client", [1, 2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_shards_are_equal_and_hold_two_classes_at_most(per_client: int, seed: int) -> None:
    splits = deal(f"shards:{per_client}", 20, seed)  # of 72 samples at most, and the smallest class has 139
    sizes = [len(split.train) for split in splits]
    assert sum(sizes) == 1438
    assert max(sizes) - min(sizes) <= per_client
    assert (count_digits(splits) > 0).sum(1).max() <= 2 * per_client


def test_shards_that_divide_the_classes_evenly_hold_one_class_each() -> None:
    labels = np.tile(np.arange(9), 60)  # 9 classes of 60 are 18 shards of 30
    splits = make_partition("shards:2", labels, labels, 9, 1)
    counts_NC = count_classes([split.train for split in splits], labels, 9)
    assert set(counts_NC.flat) <= {0, 30, 60}
    assert set(counts_NC.sum(1)) == {60}


def test_domains_are_dealt_as_iid_and_take_turns() -> None:
    domains, iid = deal("domains", 7, 1), deal("iid", 7, 1)
    assert [split.domain for split in domains] == [*DOMAINS, "identity", "inversion"]
    assert all(split.domain is None for split in iid)
    for one, other in zip(domains, iid, strict=True):
        assert np.array_equal(one.train, other.train)


@pytest.mark.parametrize("num_clients", [1, 4, 10])
def test_every_test_sample_matches_just_one_client_of_the_domains(num_clients: int) -> None:
    everyone = np.concatenate([split.test for split in deal("domains", num_clients, 3)])
    assert np.array_equal(np.sort(everyone), np.arange(359))


def test_distance_is_half_the_difference_of_shares() -> None:
    counts_NC = np.array([[10, 10, 0], [0, 0, 7], [1, 1, 2]])
    assert compute_distances(counts_NC, np.array([100, 100, 200])) == pytest.approx([0.5, 0.5, 0])
    assert compute_distances(np.array([[1, 0]]), np.array([0, 5])) == pytest.approx([1])


@pytest.mark.parametrize("seed", range(5))
def test_all_samples_of_an_owned_class_are_split_evenly_among_its_owners(seed: int) -> None:
    train, _ = load_digits()
    counts_NC = count_digits(deal("classes:3,1", 4, seed))
    assert counts_NC.sum() > len(train) / 2
    for c, total in enumerate(np.bincount(train.y)):
        shares = counts_NC[:, c][counts_NC[:, c] > 0]
        assert shares.sum() in (0, total)
        assert not len(shares) or shares.max() - shares.min() <= 1


def test_shots_limit_the_samples_of_each_class() -> None:
    assert set(count_digits(deal("classes:3,1", 10, 1, shots=5)).flat) == {0, 5, 6}
    assert set(count_digits(deal("classes:3,0", 10, 1, shots=5)).flat) == {0, 5}
    assert count_digits(deal("dirichlet:0.5", 10, 1, shots=5)).max() == 5
    assert count_digits(deal("iid", 10, 1, shots=5)).max() == 5
    assert count_digits(deal("classes:3,1", 10, 1, shots=10_000)).max() == 14  # min(110, n_c // N)


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
    scheme=st.sampled_from(
        [
            *("classes:2,1", "classes:3,1,count=normal", "classes:2,1,cover=true", "dirichlet:0.5"),
            *("dirichlet:0.5,balance=false", "dirichlet:0.5,per=client", "domains", "shards:2", "iid"),
        ]
    ),
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
        assert len(split.test)
        assert set(labels[split.test]) <= set(labels[split.train])
        assert scheme == "domains" or set(labels[split.test]) == set(labels[split.train])


@given(
    avg=st.integers(2, 20),
    std=st.integers(0, 5),
    number=st.floats(min_value=1e-300, max_value=1e300),
    s=st.integers(1, 9),
    count=st.sampled_from(["uniform", "normal"]),
    samples=st.sampled_from([None, "all", "shots"]),
    flags=st.tuples(st.booleans(), st.booleans()),
)
def test_schemes_survive_text_and_mapping(
    avg: int, std: int, number: float, s: int, count: str, samples: str | None, flags: tuple[bool, bool]
) -> None:
    form = {"per": "client"} if flags[0] else {"balance": flags[1]}
    for mapping in (
        {"scheme": "classes", "avg": avg, "std": std, "count": count, "samples": samples, "cover": flags[0]},
        {"scheme": "dirichlet", "alpha": number, **form},
        {"scheme": "domains"},
        {"scheme": "shards", "per_client": s},
        {"scheme": "iid"},
    ):
        scheme = partition_from_mapping(mapping)
        assert parse_partition(str(scheme)) == scheme
        assert partition_from_mapping(scheme.to_mapping()) == scheme
        assert scheme.to_mapping().items() <= mapping.items()


def test_schemes_are_written_as_short_as_they_can_be() -> None:
    for text in ("classes:3,1,count=uniform,samples=shots,cover=true", "dirichlet:0.50,balance=true", "shards", "iid:"):
        parse_partition(text)
    assert str(parse_partition("classes:3,1,cover=true,samples=shots,count=uniform")) == (
        "classes:3,1,samples=shots,cover=true"
    )
    assert str(parse_partition("dirichlet:0.50,balance=true")) == "dirichlet:0.5"
    assert str(parse_partition("shards")) == "shards:2"
    assert parse_partition("dirichlet:0.3,per=client").to_mapping() == {
        "scheme": "dirichlet",
        "alpha": 0.3,
        "per": "client",
    }
    assert NAMES == ("classes", "owned", "dirichlet", "domains", "shards", "iid")


def test_clients_own_the_classes_that_are_written_out() -> None:
    train, test = load_digits()
    splits = deal("owned:0+1,0+1,2+3,3+2", 4, 7)
    assert [sorted(set(train.y[split.train].tolist())) for split in splits] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    dealt = np.concatenate([split.train for split in splits])
    assert sorted(dealt.tolist()) == np.flatnonzero(train.y <= 3).tolist()  # all of each class, and each sample once
    sizes = [len(split.train) for split in splits]
    assert max(sizes) - min(sizes) <= 4
    for split, own in zip(splits, ([0, 1], [0, 1], [2, 3], [2, 3]), strict=True):
        assert split.test.tolist() == np.flatnonzero(np.isin(test.y, own)).tolist()
    few = deal("owned:0+1,0+1", 2, 7, 5)
    assert [np.bincount(train.y[split.train]).tolist() for split in few] == [[5, 5], [5, 5]]
    scheme = parse_partition("owned:0+1,2")
    assert scheme.to_mapping() == {"scheme": "owned", "classes": "0+1,2"}
    assert partition_from_mapping({**scheme.to_mapping(), "index": 0}) == scheme == parse_partition(str(scheme))
    with pytest.raises(DataError, match=r"data\.partition\.classes: expected text, got 3"):
        partition_from_mapping({"scheme": "owned", "classes": 3})


def test_a_node_refuses_parts_that_are_not_those_that_were_dealt() -> None:
    train, test = load_digits()
    splits = deal("iid", 4, 7)
    mapping = {"scheme": "iid", "index": 3, "of": 4, "seed": 7, "sha256": hash_splits(splits)}
    again, index = splits_from_mapping(mapping, train.y, test.y)
    assert index == 3
    assert hash_splits(again) == hash_splits(splits)
    with pytest.raises(DataError, match=r"data\.partition\.sha256: expected [0-9a-f]{64}, got [0-9a-f]{64}: other"):
        splits_from_mapping(mapping, train.y[::-1].copy(), test.y)


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
        ("domains:2", "expected domains, got 'domains:2'"),
        ("shards:0", "shards:S expects S >= 1, got shards:0"),
        ("shards:2,2", "expected shards:S"),
        ("classes:3,1,2", "expected classes:AVG,STD"),
        ("classes:3,cover=true", "expected classes:AVG,STD"),
        ("classes:3,cover=true,1", "expected classes:AVG,STD, got "),
        ("classes:1e99,1", "expected whole numbers"),
        ("classes:3,1,cuont=normal", "unknown flag 'cuont' of classes: did you mean 'count'?"),
        ("classes:3,1,count=gauss", "expected count=uniform|normal"),
        ("classes:3,1,cover=yes", "expected cover=true|false"),
        ("classes:3,1,cover=true,cover=true", "expected cover=true|false once"),
        ("owned", "expected owned:C+C,C+C,…, the classes of each client by number, got owned:"),
        ("owned:0+1,", "expected owned:C+C,C+C,…"),
        ("owned:0+1,2+a", "expected owned:C+C,C+C,…"),
        ("owned:0+1,2+2", "expected each class once for a client, got 0+1,2+2 (client 1)"),
        ("iid,x=1", "unknown scheme 'iid,x=1'"),
        ("iid:x=1", "unknown flag 'x' of iid: nothing is expected here"),
        ("dirichlet:0.3,per=client,balance=false", "expected no balance=false"),
    ],
)
def test_wrong_scheme_is_named(text: str, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        parse_partition(text)


@pytest.mark.parametrize(
    ("scheme", "num_clients", "shots", "message"),
    [
        ("iid", 0, None, "at least 1 client"),
        ("iid", 3, 0, "at least 1 shot"),
        ("iid", 2000, None, "one sample for each of 2000 clients, got 1438"),
        ("classes:14,1", 2, None, "expects at least 13 classes, got 10"),
        ("dirichlet:0.0001", 60, None, "expected a larger alpha or fewer clients"),
        ("classes:3,1,samples=all", 4, 5, "expected no shots, got 5"),
        ("classes:3,1,cover=true", 2, None, "gives 2 clients at most 8 classes, expected enough to cover 10"),
        ("owned:0+1,2", 3, None, "owned:0\\+1,2 is for 2 clients, got 3"),
        ("owned:0+1,10", 2, None, "expects a class 10, got classes 0 to 9"),
        ("shards:300", 10, None, "expects a sample for each of 3000 shards, got 1438 samples"),
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
        ({"alpha": True}, "data.partition.alpha: expected a number, got True"),
        ({"scheme": "dirichlett"}, "data.partition.scheme: unknown scheme 'dirichlett': did you mean 'dirichlet'"),
        ({"scheme": ["iid"]}, "data.partition.scheme: unknown scheme ['iid']"),
        ({"per": "clients"}, "dirichlet expects per=class|client, got 'clients'"),
        ({"balance": 1}, "dirichlet expects balance=true|false, got 1"),
        ({"scheme": "shards", "per_client": 1.5}, "data.partition.per_client: expected a whole number, got 1.5"),
    ],
)
def test_wrong_key_of_a_configuration_is_named(change: dict[str, object], message: str) -> None:
    train, test = load_digits()
    mapping = {"scheme": "dirichlet", "alpha": 0.3, "index": 3, "of": 4, "seed": 7} | change
    with pytest.raises(DataError, match=re.escape(message)):
        split_from_mapping(mapping, train.y, test.y)
