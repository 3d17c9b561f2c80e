"""Means in fixed point: by hand, as near to the numbers' own mean as they say, in any order, and within 62 bits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml.aggregation import MAX_WEIGHT, RULES, Contributed, RuleSettings
from ml.aggregation.fixed_point import (
    SUM_BITS,
    compute_fixed_mean,
    compute_fraction_bits,
    from_fixed,
    is_in_range,
    to_fixed,
)
from ml.errors import AggregationError
from ml.payload import Array
from support.data.contributions import author, prototypes

HALVES = RuleSettings(fraction_bits=1)
INT64 = np.iinfo(np.int64)


def floats(*values: float) -> Array:
    return np.array(values, np.float32)


def integers(*values: int) -> Array:
    return np.array(values, np.int64)


def model(index: int, weight: int, *values: float) -> Contributed:
    return Contributed(author(index), weight, {"w": floats(*values)})


# ---- by hand


def test_numbers_become_integers_and_their_sum_a_mean_by_hand() -> None:
    one, other = to_fixed(floats(0.5, -1.5, 2), 1, 1), to_fixed(floats(1.5, 0.5, -0.25), 3, 1)
    assert one.tolist() == [1, -3, 4]  # x * 1 * 2
    assert other.tolist() == [9, 3, -2]  # x * 3 * 2, of which the last is -1.5
    assert from_fixed(one + other, 4, 1).tolist() == [10 / 8, 0, 2 / 8]


def test_halves_are_rounded_to_the_even_integer() -> None:
    assert to_fixed(floats(0.5, 1.5, 2.5, -0.5, -1.5, -2.5), 1, 0).tolist() == [0, 2, 2, 0, -2, -2]
    assert to_fixed(floats(0.25, 0.75), 1, 1).tolist() == [0, 2]


def test_there_may_be_fewer_bits_than_none() -> None:
    assert to_fixed(floats(5, 6, 7, 8), 1, -2).tolist() == [1, 2, 2, 2]
    assert from_fixed(integers(1, 2), 1, -2).tolist() == [4, 8]


def test_a_fixed_mean_by_hand() -> None:
    mean = RULES["fixed_mean"]([model(1, 3, 1.5, 0.5), model(0, 1, 0.5, -1.5)], None, HALVES)
    assert mean["w"].dtype == np.float32
    assert mean["w"].tolist() == [1.25, 0]


def test_a_classs_fixed_mean_is_over_its_holders_and_by_their_counts() -> None:
    """As in ALGORITHMS §12.1."""
    plain = [prototypes({0: [2, 3], 1: [5, 0]}), prototypes({0: [4, 1]}), prototypes({1: [1, 2], 2: [0, 6]})]
    mean = RULES["class_fixed_mean"]([Contributed(author(i), 1, p) for i, p in enumerate(plain)], None, HALVES)
    assert mean["classes"].tolist() == [0, 1, 2]
    assert mean["prototypes"].tolist() == [[3, 2], [3, 1], [0, 6]]
    counted = [prototypes({0: [2, 3]}, {0: 3}), prototypes({0: [4, 1]}, {0: 1})]
    mean = RULES["class_fixed_mean"]([Contributed(author(i), 1, p) for i, p in enumerate(counted)], None, HALVES)
    assert mean["prototypes"].tolist() == [[2.5, 2.5]]


# ---- how exact it is

numbers = st.floats(-1000, 1000, width=32)
weighted = st.lists(st.tuples(numbers, st.integers(1, 5000)), min_size=1, max_size=8)


@given(weighted, st.integers(0, 34))
def test_a_mean_is_off_by_half_a_unit_over_the_mean_weight_at_most(given: list[tuple[float, int]], bits: int) -> None:
    """2^-(b+1) over the mean weight, beside what it takes to be a float32."""
    arrays, weights = [floats(x) for x, _ in given], [w for _, w in given]
    (mean,) = compute_fixed_mean(arrays, weights, "w", RuleSettings(fraction_bits=bits)).tolist()
    products = [Fraction(a.item()) * w for a, w in zip(arrays, weights, strict=True)]
    exact = sum(products, Fraction(0)) / sum(weights)
    bound = Fraction(1, 2 ** (bits + 1)) * len(weights) / sum(weights)
    nearest = Fraction(float(np.spacing(np.float32(max(abs(mean), abs(float(exact)))))))
    assert abs(Fraction(mean) - exact) <= bound + nearest * Fraction(51, 100)


def test_that_bound_is_reached() -> None:
    """Two members of weight 1 that are off by 1/4 each, where there is one bit."""
    assert compute_fixed_mean([floats(0.25)] * 2, [1, 1], "w", HALVES).tolist() == [0.0]
    assert compute_fixed_mean([floats(0.25)] * 2, [2, 2], "w", HALVES).tolist() == [0.25]


@given(st.lists(st.tuples(st.integers(-1000, 1000), st.integers(1, 5000)), min_size=1, max_size=8))
def test_of_numbers_that_need_no_rounding_it_is_the_mean_of_floats_to_the_bit(given: list[tuple[int, int]]) -> None:
    models = [model(i, w, x / 4) for i, (x, w) in enumerate(given)]
    fixed = RULES["fixed_mean"](models, None, RuleSettings(fraction_bits=20))["w"]
    assert fixed.tobytes() == RULES["weighted_mean"](models, None)["w"].tobytes()


@given(weighted, st.randoms(use_true_random=False))
def test_the_order_of_members_does_not_matter(given: list[tuple[float, int]], random: Random) -> None:
    def mean(ordered: Sequence[tuple[float, int]]) -> bytes:
        settings = RuleSettings(fraction_bits=7)
        return compute_fixed_mean([floats(x) for x, _ in ordered], [w for _, w in ordered], "w", settings).tobytes()

    shuffled = list(given)
    random.shuffle(shuffled)
    assert mean(shuffled) == mean(given)


# ---- how large a sum may be


@given(st.integers(1, 992), st.integers(1, MAX_WEIGHT), st.floats(1e-6, 1e12))
def test_members_at_their_limits_sum_to_less_than_62_bits_and_one_bit_more_would_be_too_many(
    num_members: int, max_weight: int, max_abs: float
) -> None:
    bits = compute_fraction_bits(num_members, max_weight, max_abs)
    most = num_members * max_weight * math.ceil(max_abs)
    assert most * Fraction(2) ** bits < 2**SUM_BITS <= most * Fraction(2) ** (bits + 1)


@given(st.integers(1, 8), st.integers(1, 1000), st.integers(1, 10_000))
def test_no_sum_of_real_numbers_at_their_limits_overflows(num_members: int, weight: int, max_abs: int) -> None:
    bits = compute_fraction_bits(num_members, weight, max_abs)
    extremes = to_fixed(floats(max_abs, -max_abs), weight, bits)
    total = sum(extremes.tolist()[0] for _ in range(num_members))
    assert total == num_members * weight * max_abs * 2**bits < 2**62
    summed = extremes * num_members
    assert is_in_range(summed, num_members * weight, bits, max_abs, num_members)
    assert from_fixed(summed, num_members * weight, bits).tolist() == [max_abs, -max_abs]


@pytest.mark.parametrize(
    ("members", "weight", "max_abs", "bits"),
    [(1, 1, 1.0, 61), (1, 1, 0.1, 61), (1, 1, 1.5, 60), (4, 1000, 1e6, 30), (4, MAX_WEIGHT, 1e6, 11), (4, 1, 2e20, -8)],
)
def test_how_many_bits_there_are(members: int, weight: int, max_abs: float, bits: int) -> None:
    assert compute_fraction_bits(members, weight, max_abs) == bits


@pytest.mark.parametrize("end", [98, -98])
def test_a_sum_just_out_of_range_is_told_from_one_at_its_end(end: int) -> None:
    """Two members of weight 3 together, up to 2 away from 0, at 4 bits: 2 * 3 * 16, and one for each to round by."""
    beyond = end + (1 if end > 0 else -1)
    assert is_in_range(integers(0, end), 3, 4, 2.0, 2)
    assert not is_in_range(integers(0, beyond), 3, 4, 2.0, 2)
    assert not is_in_range(integers(beyond, 0), 3, 4, 2.0, 2)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_limit_that_no_binary_number_of_few_digits_is_counts_to_the_last_unit(sign: int) -> None:
    """0.1 is 3602879701896397 / 2^55, so that at weight 3 and 58 bits 24 times as much is the end, and a float of 53
    bits 8 units beyond it."""
    end = 24 * 3602879701896397 + 2  # two members round by a half at most
    assert int(0.1 * 3 * 2**58) == end + 6
    assert is_in_range(integers(sign * end), 3, 58, 0.1, 2)
    assert not is_in_range(integers(sign * (end + 1)), 3, 58, 0.1, 2)


@pytest.mark.parametrize("far", [INT64.min, INT64.min + 1, INT64.max])
def test_the_farthest_integers_are_out_of_any_range(far: int) -> None:
    bits = compute_fraction_bits(4, 1000, 1e6)
    assert not is_in_range(integers(far), 4000, bits, 1e6, 4)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(1, 1000)), min_size=1, max_size=8),
    st.integers(1, 64_000).map(lambda n: n / 64),
    st.sampled_from([-1, 1]),
)
def test_whatever_members_have_within_the_limit_their_sum_is_in_range(
    given: list[tuple[float, int]], max_abs: float, sign: int
) -> None:
    bits = compute_fraction_bits(len(given), 1000, max_abs)
    fixed = [to_fixed(floats(min(share * max_abs, max_abs) * sign), weight, bits) for share, weight in given]
    total = sum(fixed[1:], fixed[0])
    assert is_in_range(total, sum(weight for _, weight in given), bits, max_abs, len(given))


# ---- what is refused


@pytest.mark.parametrize("rule", ["fixed_mean", "class_fixed_mean"])
def test_without_the_number_of_members_there_is_no_mean(rule: str) -> None:
    given = [Contributed(author(0), 1, prototypes({0: [1.0]}) if rule.startswith("class") else {"w": floats(1)})]
    with pytest.raises(AggregationError, match="expected the number of members"):
        RULES[rule](given, None)


@pytest.mark.parametrize("weight", [0, -1, MAX_WEIGHT + 1])
def test_a_weight_that_is_none_is_refused(weight: int) -> None:
    with pytest.raises(AggregationError, match="expected weights from 1"):
        RULES["fixed_mean"]([model(0, weight, 1)], None, HALVES)


@pytest.mark.parametrize("other", [np.ones(2, np.float64), np.ones(2, np.int64), np.ones(3, np.float32)])
def test_what_is_no_float32_of_one_shape_is_refused(other: Array) -> None:
    with pytest.raises(AggregationError, match="array 'w'"):
        RULES["fixed_mean"]([model(0, 1, 1, 1), Contributed(author(1), 1, {"w": other})], None, HALVES)
    with pytest.raises(AggregationError, match="float32"):
        RULES["fixed_mean"]([Contributed(author(1), 1, {"w": np.ones(2)})], None, HALVES)
