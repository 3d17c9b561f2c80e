"""Sums by class in agreed statistics: the correlations that follow from them, whatever the split, what is not told of
few samples, and what a validator refuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain.agreed_input import read_agreed
from chain.errors import GenesisError
from chain.schema import Section
from ml.aggregation import PLAIN, RULES, Contributed, RuleSettings
from ml.aggregation.sums import SUM_DIGITS, read_by_class, to_digits
from ml.data.statistics import compute_statistics
from ml.errors import PayloadError, SpecError
from ml.payload import Array, Arrays
from ml.specs import StatisticsSpec, get_spec
from ml.specs.correlations import compute_correlations, describe_classes
from ml.specs.run_schema import describe_payloads
from support.data.contributions import author

NUMBERS: Mapping[str, Any] = {"normalize": "agreed", "min_count": 5, "correlations": True, "missing": "mean"}
SEX: Mapping[str, Any] = {**NUMBERS, "columns": [{"name": "sex", "values": ["f", "m"]}, {"name": "age"}]}
EMPTY = float("nan")


def make_spec(input_: Mapping[str, Any] = NUMBERS, num_features: int = 1, num_classes: int = 2) -> StatisticsSpec:
    spec = get_spec({"name": "local"}, {"name": "linear"}, num_classes, (num_features, 1, 1), rounds=1, input_=input_)
    assert isinstance(spec, StatisticsSpec)
    return spec


def tell(spec: StatisticsSpec, rows: Sequence[Sequence[float]], labels: Sequence[int]) -> dict[str, Array]:
    """The payload of rows of features, which validators take."""
    x_NCHW = np.array(rows, np.float32).reshape(len(rows), -1, 1, 1)
    told = compute_statistics(x_NCHW, np.array(labels, np.int64), spec.task.num_classes, spec.agreement)
    spec.validate_payload("statistics", told, 1)
    return told


def pool(payloads: Sequence[Arrays], rule: str = "sum", rules: RuleSettings = PLAIN) -> Arrays:
    return RULES[rule]([Contributed(author(i), 1, told) for i, told in enumerate(payloads)], None, rules)


@settings(deadline=None, max_examples=15)
@given(st.lists(st.integers(0, 90), max_size=3), st.integers(0, 10**6))
def test_correlations_are_those_of_the_pooled_samples_however_they_are_split(cuts: list[int], seed: int) -> None:
    drawn, spec = np.random.default_rng(seed), make_spec(num_features=2, num_classes=3)
    y = np.sort(drawn.integers(0, 3, 90))[drawn.permutation(90)]
    x = np.stack([50 + 9 * drawn.standard_normal(90) + 4 * (y == 1), drawn.random(90)], axis=1).astype(np.float32)
    x[drawn.random(90) < 0.1, 0] = EMPTY
    bounds = [0, *sorted(cuts), 90]
    told = [tell(spec, x[a:b].tolist(), y[a:b].tolist()) for a, b in pairwise(bounds) if a < b]
    agreed = pool(told)
    counts = describe_classes(agreed, 1)
    for channel, own in enumerate(compute_correlations(agreed, 1)):
        is_there = ~np.isnan(x[:, channel])
        if sum(of_class[channel][0] for of_class in counts) < is_there.sum():
            continue  # some site has few of a class, and tells less
        known, labels = x[is_there, channel].astype(np.float64), y[is_there]
        expected = [np.corrcoef(known, labels == k)[0, 1] for k in range(3)]
        np.testing.assert_allclose([np.nan if r is None else r for r in own], expected, rtol=1e-9, atol=1e-12)
        means = [known[labels == k].mean() for k in range(3)]
        np.testing.assert_allclose([of_class[channel][1] for of_class in counts], means, rtol=1e-9)


def test_a_feature_that_is_the_class_has_correlation_1_and_one_without_spread_has_none() -> None:
    told = tell(make_spec(num_features=3), [[i // 5, -3.0 * (i // 5), 7] for i in range(10)], [0] * 5 + [1] * 5)
    assert compute_correlations(told, 1) == [[-1.0, 1.0], [1.0, -1.0], [None, None]]


def test_nobody_is_asked_unless_the_run_says_so() -> None:
    plain = make_spec({"normalize": "agreed", "missing": "mean"})
    assert compute_correlations(tell(plain, [[1.0]] * 5, [0] * 5), 1) == []
    arrays = describe_payloads(make_spec(num_classes=3))["aggregate"]
    assert arrays["statistics/class_sums"] == "int64[3,1,5]"
    assert not any("class_" in name for name in describe_payloads(plain)["aggregate"])
    section = Section(
        "input", {"normalize": "agreed", "correlations": True}, ("normalize", "correlations", "min_count")
    )
    assert read_agreed(section, 1)["correlations"] is True
    with pytest.raises(GenesisError, match="expected none without normalize: agreed"):
        read_agreed(Section("input", {"correlations": True}, ("correlations",)), 1)
    with pytest.raises(SpecError, match=r"input.correlations: expected none for task regression"):
        get_spec({"name": "local"}, {"name": "linear"}, 1, (1, 1, 1), rounds=1, input_=NUMBERS, kind="regression")


# ---- few samples


@pytest.mark.parametrize(
    ("ages", "labels", "counts"),
    [
        ([40] * 10 + [60] * 6, [0] * 10 + [1] * 6, [10, 6]),
        ([40] * 10 + [60] * 4, [0] * 10 + [1] * 4, [0, 0]),  # 14 less 10 would give the 4 away
        ([40] * 10 + [EMPTY] * 9, [0] * 10 + [1] * 9, [10, 0]),
        ([40] * 10 + [60] * 5 + [EMPTY] * 2, [0] * 10 + [1] * 7, [10, 5]),
        ([40] * 10 + [60] * 4 + [EMPTY] * 2, [0] * 10 + [1] * 6, [0, 0]),
    ],
)
def test_of_a_class_with_few_values_nothing_is_told(ages: list[float], labels: list[int], counts: list[int]) -> None:
    told = tell(make_spec(), [[age] for age in ages], labels)
    assert told["class_present"][:, 0].tolist() == counts
    sums = read_by_class(told)
    assert sums is not None
    assert [bool(total) for total in sums[1, :, 0]] == [bool(count) for count in counts]


def test_values_of_a_category_are_told_by_class_rounded_down() -> None:
    rows = [[1, 0, 50]] * 9 + [[0, 1, 50]] * 3 + [[1, 0, 50]] * 4 + [[0, 1, 50]] * 12
    sums = read_by_class(tell(make_spec(SEX, 3), rows, [0] * 12 + [1] * 16))
    assert sums is not None
    counts = [[total >> 44 for total in own] for own in sums[1, :, :2].tolist()]
    assert counts[0][1] == counts[1][0] == 0
    assert counts[0][0] == 5
    assert counts[1][1] == 10


# ---- what cannot be


def change(name: str, k: int, value: int) -> Callable[[dict[str, Array]], None]:
    def do(told: dict[str, Array]) -> None:
        told[name][k, 0] = value if name == "class_present" else to_digits([value], told[name].shape[-1])[0]

    return do


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (change("class_present", 0, 4), r"channel 0: expected of each class, and of what is in none, 0 or at least 5"),
        (change("class_present", 0, 12), r"channel 0: expected of each class, and of what is in none, 0 or at least 5"),
        (change("class_present", 0, 8), r"channel 0: expected of each class, and of what is in none, 0 or at least 5"),
        (
            change("class_sums", 1, 1 << 60),
            r"channel 0 of class 1: expected a sum of squares that values with this sum",
        ),
        (change("class_sums", 1, 1 << 150), r"channel 0 of class 1: expected sums of 6 samples below"),
        (
            lambda told: told["class_sums"][0, 0].put([0, 1], [1, -1]),
            r"expected the digits of numbers, all of one sign",
        ),
    ],
)
def test_sums_by_class_that_no_samples_have_are_refused(spoil: Callable[[dict[str, Array]], None], said: str) -> None:
    spec = make_spec()
    told = tell(spec, [[0.5 + i] for i in range(16)], [0] * 10 + [1] * 6)
    spoil(told)
    with pytest.raises(PayloadError, match=said):
        spec.validate_payload("statistics", told, 1)


@pytest.mark.parametrize("count", [3, 8, -5])
def test_other_counts_of_a_category_by_class_are_refused(count: int) -> None:
    spec = make_spec(SEX, 3)
    told = tell(spec, [[1, 0, 50]] * 10 + [[0, 1, 50]] * 10, [0] * 10 + [1] * 10)
    told["class_sums"][0, 0] = to_digits([count << 44], SUM_DIGITS)[0]
    told["class_squares"][0, 0] = to_digits([abs(count) << 88], 7)[0]
    with pytest.raises(PayloadError, match=r"channel 0: expected sums by class of values that are 0 or 1"):
        spec.validate_payload("statistics", told, 1)


# ---- rules


def test_a_cap_shrinks_sums_by_class_as_all_others() -> None:
    spec = make_spec()
    small = [tell(spec, [[1.0]] * 5 + [[3.0]] * 5, [0] * 5 + [1] * 5) for _ in range(3)]
    large = tell(spec, [[1.0]] * 500 + [[3.0]] * 500, [0] * 500 + [1] * 500)
    capped = pool([*small, large], rules=RuleSettings(weight_cap=4))
    assert capped["class_present"][:, 0].tolist() == [35, 35]
    assert compute_correlations(capped, 1) == [[-1.0, 1.0]]


def test_a_robust_rule_adds_up_the_classes_of_those_sites_that_it_keeps() -> None:
    spec = make_spec()
    honest = [tell(spec, [[float(i)]] * 5 + [[i + 2.0]] * 5, [0] * 5 + [1] * 5) for i in (1, 2, 3)]
    liar = tell(spec, [[1e9]] * 5 + [[-1e9]] * 5, [0] * 5 + [1] * 5)
    agreed = pool([*honest, liar], "trimmed_sum", RuleSettings(max_liars=1))
    assert agreed["class_present"][:, 0].tolist() == [10, 10]
    (r,) = compute_correlations(agreed, 1)
    assert r[1] is not None
    assert r[1] > 0.5
