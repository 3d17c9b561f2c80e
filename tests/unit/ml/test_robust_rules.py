"""The robust rules (PROTOCOL §2): by hand, against plain Python bit for bit, and what a liar can make of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml.aggregation import PLAIN, RULES, Contributed, RuleSettings, compute_max_liars
from ml.aggregation.distances import INFINITE, MOST, Layer, Vectors
from ml.aggregation.sorting import make_sorting_network, sort_rows
from ml.errors import AggregationError
from ml.payload import Array, Arrays, encode_arrays
from support.data.contributions import author, prototypes
from support.data.plain_rules import compute

WHOLE_RULES = ("median", "trimmed_mean", "clipped_mean", "multi_krum")
ONE = RuleSettings(max_liars=1)
POINT, LOWEST, HIGHEST = -(2.0**-20), -32.0, 32 - 2.0**-19  # what is MOST steps from the point, either way
ORIGIN: Arrays = {"x": np.zeros(1, np.float32)}


def f32(values: Any) -> Array:
    return np.array(values, np.float32)


def models(*values: float | Sequence[float]) -> list[Contributed]:
    """One model of an array `x` for each author, in key order."""
    return [Contributed(author(i), 1, {"x": f32(np.atleast_1d(value))}) for i, value in enumerate(values)]


def holders(*values: float | Sequence[float]) -> list[Contributed]:
    """One prototype of class 0 for each author."""
    return [Contributed(author(i), 1, prototypes({0: np.atleast_1d(value).tolist()})) for i, value in enumerate(values)]


def combine(rule: str, given: Sequence[Contributed], s: RuleSettings = ONE, parent: Arrays | None = None) -> Any:
    """The numbers of `x`, or of class 0; one number as it is."""
    out = RULES[rule](given, ORIGIN if parent is None else parent, s)
    row = out["prototypes"][0].tolist() if "prototypes" in out else out["x"].tolist()
    return row[0] if len(row) == 1 else row


# ---- by hand


@pytest.mark.parametrize(
    ("values", "max_liars", "median", "trimmed"),
    [
        ([7], 1, 7, 7),
        ([1, 5], 1, 3, 3),  # of two nobody can say which one lies
        ([1, 5, 1000], 1, 5, 5),
        ([1, 5, 7, 1000], 1, 6, 6),
        ([-1000, 1, 2, 6, 1000], 1, 2, 3),
        ([-1000, 1, 2, 6, 1000], 0, 2, 1.8),  # nobody is trimmed where nobody may lie
        ([-1000, -900, 1, 2, 3, 4, 5, 6, 900, 1000], 3, 3.5, 3.5),
        ([-1000, -900, 1, 2, 3, 4, 5, 6, 900, 1000], 2, 3.5, 3.5),
        ([-1000, -900, 0, 2, 3, 4, 5, 10, 900, 1000], 2, 3.5, 4),
        ([1, 2, 600], 16, 2, 2),  # one value is left
        ([1, 2, 4, 600], 16, 3, 3),  # and of an even number two
    ],
)
def test_median_and_trimmed_mean(values: list[float], max_liars: int, median: float, trimmed: float) -> None:
    for made, prefix in ((models(*values), ""), (holders(*values), "class_")):
        shuffled = made[1::2] + made[::2]
        s = RuleSettings(max_liars)
        assert combine(f"{prefix}median", shuffled, s) == median
        assert combine(f"{prefix}trimmed_mean", shuffled, s) == pytest.approx(trimmed)


@pytest.mark.parametrize("rule", [*WHOLE_RULES, *(f"class_{rule}" for rule in WHOLE_RULES)])
def test_which_zero_was_sent_by_whom_does_not_show(rule: str) -> None:
    make = holders if rule.startswith("class_") else models
    digests = {
        encode_arrays(RULES[rule](make(*values), ORIGIN, ONE))
        for values in ([0.0, -0.0, -0.0], [-0.0, 0.0, 0.0], [-0.0, -0.0, -0.0], [0.0, 0.0, 0.0])
    }
    assert len(digests) == 1


@pytest.mark.parametrize("rule", WHOLE_RULES)
def test_weights_are_ignored(rule: str) -> None:
    given = models(1, 2, 4, 8)
    heavy = [Contributed(c.author, 1000 * (i + 1), c.arrays) for i, c in enumerate(given)]
    assert combine(rule, heavy) == combine(rule, given)


@pytest.mark.parametrize(
    ("values", "clip", "expected"),
    [
        # N = 1, 4, 9, 16; T = 4: the ways of 3 and 4 are cut to 2, by 43690 and 32768 of 65536
        ([1, 2, 3, 4], None, (65536 * 3 + 43690 * 3 + 32768 * 4) / (4 * 65536)),
        ([1, 1, 1, -1], None, 0.5),
        ([1, 2, 3, 4], 1.0, (65536 + 32768 * 2 + 21845 * 3 + 16384 * 4) / (4 * 65536)),  # each to 1
        ([1, 2, 3, 4], 100.0, 2.5),  # nobody
        ([0, 0, 0, 20], None, 0),  # T = 0: nobody who moved
        ([1, 1, 1, 32], None, 0.75),  # too far away: left out, and p in the author's place
        ([1, 1, 1, 31], None, (65536 * 3 + 2114 * 31) / (4 * 65536)),  # not yet
        ([1, 33, 34, 35], None, 33.5),  # more than half are: p was spoiled, the median
    ],
)
def test_clipped_mean_around_the_parent(values: list[float], clip: float | None, expected: float) -> None:
    assert combine("clipped_mean", models(*values), RuleSettings(1, clip=clip)) == np.float32(expected)


def test_an_author_just_within_32_is_measured_and_one_at_32_is_not() -> None:
    layer = Layer([f32([HIGHEST]), f32([LOWEST]), f32([HIGHEST + 2**-19])], f32([POINT]))
    assert Vectors(3, [layer]).compute_norms(64) == [MOST**2, MOST**2, INFINITE]
    assert Vectors(3, [layer]).compute_distances(64) == [
        [0, (2 * MOST) ** 2, INFINITE],
        [(2 * MOST) ** 2, 0, INFINITE],
        [INFINITE] * 3,
    ]


@pytest.mark.parametrize("num", [1, 1023, 1024, 1025, 5000])
def test_sums_of_squares_are_exact_at_their_largest(num: int) -> None:
    vectors = Vectors(2, [Layer([f32([x] * num) for x in (HIGHEST, LOWEST)], f32([POINT] * num))])
    for block_elements in (64, 1 << 16):
        assert vectors.compute_norms(block_elements) == [num * MOST**2] * 2
        assert vectors.compute_distances(block_elements)[0][1] == num * (2 * MOST) ** 2


@pytest.mark.parametrize(
    ("values", "max_liars", "expected"),
    [
        ([0, 1, 3, 20], 1, 4 / 3),  # scores: the nearest other, 1 1 4 289; three are chosen
        ([20, 0, 1, 3], 1, 4 / 3),
        ([5, -5, 1, -1], 1, 5 / 3),  # scores 16, 16, 4, 4: the tie goes to the lower key
        ([0, 1, 3, 20], 0, 6),  # all of them
        ([0, 1, 2, 3, 4, -30, 30], 2, 2),  # of seven the three nearest count, and five are chosen
        ([0, 1], 1, 0.5),  # fewer than three: the median
        ([0, 1, 40], 1, 0.5),  # infinitely far, so not chosen
        ([0, 1, 40, 41], 1, 20.5),  # more than one is: the median
        ([-40, 2, 40], 2, 2),  # one is near, and it alone can be chosen, whatever its key
        ([-40, 40, 41], 3, 40),  # none is
    ],
)
def test_multi_krum(values: list[float], max_liars: int, expected: float) -> None:
    assert combine("multi_krum", models(*values), RuleSettings(max_liars)) == np.float32(expected)


def test_rows_of_a_class_are_measured_from_the_lower_median_of_its_holders() -> None:
    """From 2, the lower of the two middle ones: ways of -1, 0, 1, 98, of which the last is left out."""
    assert combine("class_clipped_mean", holders(1, 2, 3, 100)) == (1 + 2 + 3 + 2) / 4
    assert combine("class_multi_krum", holders(1, 2, 3, 100)) == 2
    assert combine("class_clipped_mean", holders(7)) == 7
    assert combine("class_clipped_mean", holders(3, 7)) == 3
    assert combine("class_multi_krum", holders(3, 7)) == 5


def test_each_class_goes_by_its_own_holders() -> None:
    given = [
        Contributed(author(0), 1, prototypes({0: [1], 1: [1]})),
        Contributed(author(1), 1, prototypes({0: [2], 1: [3]})),
        Contributed(author(2), 1, prototypes({0: [600]})),
        Contributed(author(3), 1, prototypes({0: [3], 2: [9]})),
    ]
    expected = {
        "class_median": [2.5, 2, 9],
        "class_trimmed_mean": [2.5, 2, 9],
        "class_clipped_mean": [(1 + 2 + 3 + 2) / 4, 1, 9],
        "class_multi_krum": [2, 2, 9],
    }
    for rule, rows in expected.items():
        out = RULES[rule](given, None, ONE)
        assert out["classes"].tolist() == [0, 1, 2]
        assert out["prototypes"][:, 0].tolist() == rows


@pytest.mark.parametrize("rule", ["class_median", "class_trimmed_mean", "class_clipped_mean", "class_multi_krum"])
def test_members_that_hold_nothing_come_to_nothing(rule: str) -> None:
    nothing: dict[str, Array] = {"classes": np.empty(0, np.int64), "prototypes": np.empty((0, 2), np.float32)}
    out = RULES[rule]([Contributed(author(0), 1, nothing), Contributed(author(1), 1, nothing)], None, ONE)
    assert (out["classes"].shape, out["prototypes"].shape) == ((0,), (0, 2))


# ---- whole models


def test_running_statistics_are_no_part_of_a_distance_and_take_the_median() -> None:
    given = [
        Contributed(author(i), 1, {"bn.running_var": f32([var]), "x": f32([x])})
        for i, (var, x) in enumerate([(1e30, 1), (2, 1), (3, 1), (4, 20)])
    ]
    parent: Arrays = {"x": np.zeros(1, np.float32), "bn.running_var": np.ones(1, np.float32)}
    clipped, chosen = (RULES[rule](given, parent, ONE) for rule in ("clipped_mean", "multi_krum"))
    assert clipped["bn.running_var"].tolist() == chosen["bn.running_var"].tolist() == [3.5]
    assert clipped["x"].tolist() == [np.float32((3 * 65536 + 3276 * 20) / (4 * 65536))]
    assert chosen["x"].tolist() == [1]


def test_all_arrays_of_a_model_are_one_vector() -> None:
    """Ways of (3, 4), (0, 1) and (0, 1), over two arrays: the first is five times too long in both."""
    given = [
        Contributed(author(i), 1, {"a": f32([a]), "b": f32([b])}) for i, (a, b) in enumerate([(3, 4), (0, 1), (0, 1)])
    ]
    out = RULES["clipped_mean"](given, {name: np.zeros(1, np.float32) for name in "abc"}, ONE)
    share = math.isqrt((1 << 32) // 25)
    assert out["a"].tolist() == [np.float32(3 * share / (3 * 65536))]
    assert out["b"].tolist() == [np.float32((4 * share + 2 * 65536) / (3 * 65536))]
    assert list(out) == ["a", "b"]


@pytest.mark.parametrize("rule", ["clipped_mean", "multi_krum"])
def test_an_array_that_the_parent_has_not_takes_the_median(rule: str) -> None:
    given = [
        Contributed(author(i), 1, {"new": f32([i * 1e30]), "x": f32([1])}) for i in (0, 1, 2)
    ]  # as FedIntR's projections in the first round
    out = RULES[rule](given, ORIGIN, ONE)
    assert (out["new"].tolist(), out["x"].tolist()) == ([np.float32(1e30)], [1])


@pytest.mark.parametrize("rule", ["clipped_mean", "multi_krum"])
@pytest.mark.parametrize(
    ("parent", "message"),
    [
        (None, "expected the parent's model, got none"),
        ({"x": np.zeros(2, np.float32)}, r"'x': expected float32 \[1\] in the parent's model, got float32 \[2\]"),
        ({"x": np.zeros(1)}, r"got float64 \[1\]"),
    ],
)
def test_a_parent_that_does_not_fit_is_refused(rule: str, parent: Arrays | None, message: str) -> None:
    with pytest.raises(AggregationError, match=message):
        RULES[rule](models(1, 2, 3), parent, ONE)


@pytest.mark.parametrize("rule", WHOLE_RULES)
def test_only_float32_of_one_shape_is_combined(rule: str) -> None:
    with pytest.raises(AggregationError, match="only float32 is averaged, got int64"):
        RULES[rule]([Contributed(author(0), 1, {"x": np.ones(1, np.int64)})], {"x": np.zeros(1, np.float32)}, ONE)
    with pytest.raises(AggregationError, match=r"expected float32 \[1\] of every author, got float32 \[2\]"):
        RULES[rule](models(1, [1, 2]), ORIGIN, ONE)


# ---- the pool


def rows(classes: list[int], values: list[float]) -> dict[str, Array]:
    return {"classes": np.array(classes, np.int64), "prototypes": f32([[value] for value in values])}


def pooled(given: Sequence[Contributed], s: RuleSettings = ONE) -> list[tuple[int, int, float]]:
    """(class, author, value) of each row."""
    out = RULES["trimmed_pool"](given, None, s)
    return list(zip(out["classes"].tolist(), out["authors"].tolist(), out["prototypes"][:, 0].tolist(), strict=True))


def test_a_pool_goes_without_the_member_whose_mean_row_is_farthest() -> None:
    """Class 0: means 1, 2, 9, 3, whose median is 2.5. Class 1: three holders, of whom the first is farthest. Class 2:
    two holders, and nobody can say which one lies."""
    given = [
        Contributed(author(0), 1, rows([0, 0, 1, 2], [0, 2, -5, 0])),
        Contributed(author(1), 1, rows([0, 1, 2], [2, 0, 8])),
        Contributed(author(2), 1, rows([0, 0, 1], [9, 9, 1])),
        Contributed(author(3), 1, rows([0], [3])),
    ]
    assert pooled(given) == [
        (0, 0, 0),
        (0, 0, 2),
        (0, 1, 2),
        (0, 3, 3),
        (1, 1, 0),
        (1, 2, 1),
        (2, 0, 0),
        (2, 1, 8),
    ]
    assert len(pooled(given, PLAIN)) == 11


@pytest.mark.parametrize(
    ("values", "max_liars", "kept"),
    [
        ([1, -1, 0], 1, [0, 2]),  # equally far: the higher key goes
        ([0, 1e30, -1e30], 1, [0, 1]),
        ([0, 1, 50, -50, 60], 3, [0, 1]),
        ([0, 1, 50], 3, [0, 1]),  # two are left
        ([0, 50], 3, [0, 1]),
        ([0], 3, [0]),
    ],
)
def test_who_is_left_in_a_pool(values: list[float], max_liars: int, kept: list[int]) -> None:
    given = [Contributed(author(i), 1, rows([0], [value])) for i, value in enumerate(values)]
    assert [i for _, i, _ in pooled(given, RuleSettings(max_liars))] == kept


def test_a_member_that_lost_all_its_rows_keeps_its_place_among_the_authors() -> None:
    given = [Contributed(author(i), 1, rows([0], [value])) for i, value in enumerate([20, 0, 1])]
    assert pooled(given) == [(0, 1, 0), (0, 2, 1)]


def test_a_pool_needs_prototypes_to_measure() -> None:
    with pytest.raises(AggregationError, match="trimmed_pool: expected an array 'prototypes'"):
        RULES["trimmed_pool"]([Contributed(author(0), 1, {"classes": np.arange(2)})], None, ONE)


# ---- plain Python comes to the same bits

near = st.integers(-8, 8).map(lambda n: n / 4) | st.floats(-2, 2, width=32)
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
anything = near | st.sampled_from([-0.0, 31.5, 32.0, -40.0, 1e30]) | finite
any_settings = st.builds(
    RuleSettings, max_liars=st.integers(0, 4), clip=st.none() | st.floats(1e-6, 100, allow_subnormal=False)
)


@st.composite
def vectors(draw: st.DrawFn, numbers: st.SearchStrategy[float] = anything) -> list[list[float]]:
    m, dim = draw(st.integers(1, 8)), draw(st.integers(1, 3))
    each = st.lists(numbers, min_size=dim, max_size=dim)
    return draw(st.lists(each, min_size=m, max_size=m))


@pytest.mark.parametrize("rule", WHOLE_RULES)
@settings(deadline=None)
@given(data=st.data(), s=any_settings)
def test_models_combine_as_in_plain_python(rule: str, data: st.DataObject, s: RuleSettings) -> None:
    *given, origin = data.draw(vectors().filter(lambda v: len(v) > 1))
    contributions = models(*given)
    parent: Arrays = {"x": f32(origin)}
    assert encode_arrays(RULES[rule](contributions, parent, s)) == encode_arrays(
        compute(rule, contributions, parent, s)
    )


@pytest.mark.parametrize("rule", WHOLE_RULES)
@settings(deadline=None)
@given(given=vectors(), s=any_settings)
def test_rows_combine_as_in_plain_python(rule: str, given: list[list[float]], s: RuleSettings) -> None:
    contributions = holders(*given)
    expected = compute(f"class_{rule}", contributions, None, s)
    assert encode_arrays(RULES[f"class_{rule}"](contributions, None, s)) == encode_arrays(expected)


@settings(deadline=None)
@given(data=st.data(), num_authors=st.integers(1, 6), s=any_settings)
def test_pools_are_trimmed_as_in_plain_python(data: st.DataObject, num_authors: int, s: RuleSettings) -> None:
    contributions = []
    for i in range(num_authors):
        classes = sorted(data.draw(st.lists(st.integers(0, 2), max_size=4)))
        values = [data.draw(anything) for _ in classes]
        arrays: dict[str, Array] = {
            "classes": np.array(classes, np.int64),
            "prototypes": np.array(values, np.float32).reshape(-1, 1),
        }
        contributions.append(Contributed(author(i), 1, arrays))
    out = RULES["trimmed_pool"](contributions, None, s)
    expected = compute("trimmed_pool", contributions, None, s)
    assert out["classes"].tolist() == expected["classes"].tolist()
    assert out["authors"].tolist() == expected["authors"].tolist()
    assert out["prototypes"].reshape(-1).tolist() == expected["prototypes"].reshape(-1).tolist()


# ---- what liars can make of them


@settings(deadline=None)
@given(data=st.data(), max_liars=st.integers(0, 3))
def test_median_and_trimmed_mean_stay_among_the_honest_whatever_f_of_2f_plus_1_send(
    data: st.DataObject, max_liars: int
) -> None:
    m = data.draw(st.integers(2 * max_liars + 1, 2 * max_liars + 5))
    num_lies = data.draw(st.integers(0, max_liars))
    sent = [data.draw(st.lists(finite, min_size=2, max_size=2)) for _ in range(m)]
    liars = set(data.draw(st.permutations(range(m)))[:num_lies])
    honest = f32([vector for i, vector in enumerate(sent) if i not in liars])
    low, high = honest.min(0).tolist(), honest.max(0).tolist()
    for make, prefix in ((models, ""), (holders, "class_")):
        for rule in ("median", "trimmed_mean"):
            out = combine(f"{prefix}{rule}", make(*sent), RuleSettings(max_liars))
            assert all(a <= x <= b for a, x, b in zip(low, out, high, strict=True))


@settings(deadline=None)
@given(data=st.data(), max_liars=st.integers(0, 3))
def test_a_clipped_mean_moves_no_further_than_the_honest_go_whatever_f_of_2f_plus_1_send(
    data: st.DataObject, max_liars: int
) -> None:
    m = data.draw(st.integers(2 * max_liars + 1, 2 * max_liars + 5))
    sent = [data.draw(st.lists(near, min_size=3, max_size=3)) for _ in range(m)]
    liars = data.draw(st.permutations(range(m)))[:max_liars]
    for i in liars:
        sent[i] = data.draw(st.lists(anything, min_size=3, max_size=3))
    longest = max(math.hypot(*vector) for i, vector in enumerate(sent) if i not in liars)
    parent: Arrays = {"x": np.zeros(3, np.float32)}
    moved = math.hypot(*combine("clipped_mean", models(*sent), RuleSettings(max_liars), parent))
    assert moved <= longest + 1e-5  # of steps of 2^-20, and of float32
    clipped = math.hypot(*combine("clipped_mean", models(*sent), RuleSettings(max_liars, clip=0.25), parent))
    assert clipped <= 0.25 + 1e-5


@settings(deadline=None)
@given(data=st.data(), max_liars=st.integers(1, 3))
def test_multi_krum_chooses_nobody_who_is_far_from_all_where_it_is_proven(data: st.DataObject, max_liars: int) -> None:
    m = data.draw(st.integers(2 * max_liars + 3, 2 * max_liars + 6))
    sent = [data.draw(near) for _ in range(m)]
    for i in data.draw(st.permutations(range(m)))[:max_liars]:
        sent[i] = data.draw(st.sampled_from([-1, 1])) * data.draw(st.floats(10, 2.0**100, width=32))
    assert abs(combine("multi_krum", models(*sent), RuleSettings(max_liars))) <= 2


@pytest.mark.parametrize("rule", ["clipped_mean", "multi_krum"])
def test_a_parent_that_was_spoiled_is_left_behind(rule: str) -> None:
    parent: Arrays = {"x": f32([1e30])}
    assert combine(rule, models(1, 2, 3, 4), ONE, parent) == 2.5


def test_a_trim_by_the_size_of_the_body_is_poisoned_at_three_of_four() -> None:
    """The canary. One honest member of four is late: the liar is one of three, of which a third may not lie."""
    body = models(1.0, 2.0, 1e30)
    by_the_body = RuleSettings(compute_max_liars(len(body)))
    by_the_members = RuleSettings(compute_max_liars(4))
    assert combine("trimmed_mean", body, by_the_body) > 1e29
    assert combine("trimmed_mean", body, by_the_members) == 2
    assert combine("class_trimmed_mean", holders(1.0, 2.0, 1e30), by_the_body) > 1e29
    assert combine("class_trimmed_mean", holders(1.0, 2.0, 1e30), by_the_members) == 2


# ---- sorting


@pytest.mark.parametrize("num", range(1, 13))
def test_the_network_sorts_all_zeros_and_ones_and_so_any_numbers(num: int) -> None:
    """Knuth, 5.3.4, Theorem Z."""
    bits = f32(list(itertools.product((0, 1), repeat=num))).T
    ordered = [row.copy() for row in bits]
    sort_rows(ordered)
    np.testing.assert_array_equal(np.stack(ordered), np.sort(bits, axis=0))


@pytest.mark.parametrize("num", [50, 127, 992])
def test_the_network_sorts_as_many_as_there_may_be_members(num: int) -> None:
    rng = np.random.default_rng(num)
    values = rng.standard_normal((num, 40)).astype(np.float32)
    ordered = [row.copy() for row in values]
    sort_rows(ordered)
    np.testing.assert_array_equal(np.stack(ordered), np.sort(values, axis=0))
    assert len(make_sorting_network(num)) < num * math.log2(num) ** 2 / 4
