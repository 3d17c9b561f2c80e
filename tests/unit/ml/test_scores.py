"""Distances of contributions from their median: numbers done by hand, and what a liar does to them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from ml.payload import Arrays
from ml.scores import compute_distances, get_compared_kinds
from ml.specs import METHODS, AuthorPayloads, get_spec
from support.data.normed import fit_model

LARGEST = float(np.finfo(np.float32).max)


def contribute(kind: str, *payloads: Arrays) -> list[AuthorPayloads]:
    return [AuthorPayloads(bytes([i]) * 32, 1, {kind: arrays}) for i, arrays in enumerate(payloads)]


def make_model(*numbers: float, **others: Sequence[float]) -> Arrays:
    return {name: np.array(values, np.float32) for name, values in {"w": numbers, **others}.items()}


def make_rows(rows: Sequence[tuple[int, Sequence[float]]]) -> Arrays:
    classes = np.array([class_id for class_id, _ in rows], np.int64)
    return {"classes": classes, "prototypes": np.array([row for _, row in rows], np.float32).reshape(len(rows), -1)}


def measure_models(*models: Arrays) -> list[float | None]:
    return compute_distances(contribute("model", *models), ["model"])


def measure_rows(*payloads: Sequence[tuple[int, Sequence[float]]]) -> list[float | None]:
    return compute_distances(contribute("prototypes", *map(make_rows, payloads)), ["prototypes"])


# ---- whole models


def test_the_centre_is_the_median_and_the_unit_the_lower_median_of_the_lengths() -> None:
    """Medians 1 and 2, so lengths (by sqrt 2) are 1, 0, 2, 5 in the first number and 0 in the second."""
    told = measure_models(make_model(0, 2), make_model(1, 2), make_model(3, 2), make_model(1, 7))
    assert told == pytest.approx([1.0, 0.0, 2.0, 5.0])


def test_an_even_number_has_its_median_between_the_middle_ones() -> None:
    """The median of 0, 1, 3, 100 is 2: lengths 2, 1, 1, 98, and of these the lower median is 1."""
    assert measure_models(*(make_model(x) for x in (0, 1, 3, 100))) == [2.0, 1.0, 1.0, 98.0]


def test_one_that_lies_stands_out_and_leaves_the_others_where_they_were() -> None:
    rng = np.random.default_rng(1)
    honest = [{"w": rng.standard_normal(1000).astype(np.float32)} for _ in range(3)]
    told = measure_models(*honest, {"w": np.float32(-10) * honest[0]["w"]})
    assert all(distance is not None and 0.5 < distance < 2 for distance in told[:3])
    assert told[3] is not None
    assert told[3] > 8


def test_the_size_of_a_model_does_not_matter_nor_does_more_than_a_block_of_it() -> None:
    many = [{"w": np.full(200_000, x, np.float32)} for x in (0, 1, 3, 100)]
    assert measure_models(*many) == pytest.approx([2.0, 1.0, 1.0, 98.0])


def test_equal_ones_are_at_the_centre_and_what_differs_from_them_is_no_number_of_times_farther() -> None:
    assert measure_models(*(make_model(5, 6) for _ in range(4))) == [0.0] * 4
    assert measure_models(make_model(5), make_model(5), make_model(5), make_model(6)) == [0.0, 0.0, 0.0, None]


@pytest.mark.parametrize("count", [0, 1, 2])
def test_of_fewer_than_three_nobody_can_say_which_is_far(count: int) -> None:
    assert measure_models(*(make_model(i) for i in range(count))) == [None] * count


@pytest.mark.parametrize("huge", [1e6, 1e38, LARGEST, math.inf, math.nan])
def test_no_lie_makes_a_number_that_is_none(huge: float) -> None:
    with np.errstate(all="ignore"):
        told = measure_models(make_model(0), make_model(1), make_model(3), make_model(huge))
    assert all(distance is None or math.isfinite(distance) for distance in told)
    if huge <= LARGEST:
        assert told[:3] == [2.0, 1.0, 1.0]
        assert told[3] == pytest.approx(np.float32(huge) - 2.0)


def test_running_statistics_are_measured_by_themselves_and_the_worse_of_both_counts() -> None:
    """By one scale for all, variances of hundreds would hide what the weights say."""
    name = "bn.running_var"
    models = [
        make_model(0, **{name: [100]}),
        make_model(1, **{name: [300]}),
        make_model(2, **{name: [500]}),
        make_model(51, **{name: [300]}),
        make_model(1, **{name: [9300]}),
    ]
    assert measure_models(*models) == [1.0, 0.0, 1.0, 50.0, 45.0]


def test_what_is_no_float32_is_left_out() -> None:
    models = [{"w": np.array([x], np.float32), "norm": np.array([y])} for x, y in ((0, 9), (1, 1e300), (3, 2), (5, 1))]
    assert measure_models(*models) == [2.0, 1.0, 1.0, 3.0]


# ---- prototypes


def test_rows_are_compared_class_by_class_over_those_who_have_the_class() -> None:
    """Class 0: median 1, lengths 1, 0, 3. Class 1: median 4, lengths 0, 2, 5. By the number of classes each has:
    sqrt(1), sqrt((0 + 0) / 2), sqrt((9 + 4) / 2), sqrt(25), of which the lower median is 1."""
    told = measure_rows([(0, [0])], [(0, [1]), (1, [4])], [(0, [4]), (1, [2])], [(1, [9])])
    assert told == pytest.approx([1.0, 0.0, math.sqrt(6.5), 5.0])


def test_one_with_few_classes_is_as_far_as_one_with_many_that_errs_as_much() -> None:
    wide = [(class_id, [0.0, 0.0]) for class_id in range(8)]
    shifted = [(class_id, [1.0, 1.0]) for class_id in range(8)]
    other = [(class_id, [-1.0, -1.0]) for class_id in range(8)]
    assert measure_rows(wide, shifted, other, wide, shifted[:1]) == [0.0, 1.0, 1.0, 0.0, 1.0]


def test_a_class_of_two_holders_says_nothing_of_either() -> None:
    """One that lies must not make the other one who has its class look as far."""
    common = [(0, [x]) for x in (0.0, 1.0, 3.0)]
    told = measure_rows([common[0], (7, [1.0])], [common[1]], [common[2]], [(7, [1e6])])
    assert told == [1.0, 0.0, 2.0, None]


def test_several_rows_of_a_class_count_by_their_mean() -> None:
    told = measure_rows([(0, [0]), (0, [4])], [(0, [1])], [(0, [3])], [(0, [100])])
    assert told == measure_rows([(0, [2])], [(0, [1])], [(0, [3])], [(0, [100])])


def test_one_without_a_class_has_no_distance() -> None:
    empty: Arrays = {"classes": np.empty(0, np.int64), "prototypes": np.empty((0, 1), np.float32)}
    rows = [make_rows([(0, [x])]) for x in (0, 1, 3)]
    assert compute_distances(contribute("prototypes", *rows, empty), ["prototypes"]) == [1.0, 0.0, 2.0, None]


def test_of_several_kinds_the_largest_counts() -> None:
    models = [make_model(x) for x in (0, 1, 3, 2)]
    rows = [make_rows([(0, [x])]) for x in (0, 1, 3, 100)]
    both = [AuthorPayloads(bytes([i]) * 32, 1, {"model": models[i], "prototypes": rows[i]}) for i in range(4)]
    by_model, by_rows = (compute_distances(both, [kind]) for kind in ("model", "prototypes"))
    told = compute_distances(both, ["model", "prototypes"])
    assert told == [max(pair) for pair in zip(by_model, by_rows, strict=True)]  # type: ignore[type-var]
    assert told[3] == by_rows[3] == 98.0


# ---- which kinds


@pytest.mark.parametrize("name", METHODS)
def test_what_has_a_centre_is_what_members_combine(name: str) -> None:
    spec = get_spec({"name": name}, fit_model(name, {"name": "mlp"}), 10, (1, 8, 8), rounds=20, num_members=4)
    by_peers = ("local", "uapdfl", "fedper", "fedavg_p2p", "dfedavgm", "dispfl", "criticalfl")
    expected = ["prototypes"] if name in ("dfpl", "fedproto", "mpfedcl") else []
    expected = ["model"] * (name not in (*by_peers, "dfpl", "fedproto")) + expected
    expected = ["control"] * (name == "scaffold") + expected
    assert get_compared_kinds(spec, spec.sharing_heights + 1) == expected
    if spec.sharing_heights:
        assert get_compared_kinds(spec, 1) == []
