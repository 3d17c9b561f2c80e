"""The box around the aggregate before, by hand: which numbers of a mean are clipped, and how many that were."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ml.aggregation.box import clip_arrays, clip_classes
from ml.aggregation.contributed import Box
from ml.errors import AggregationError
from ml.payload import Array, Arrays
from support.data.contributions import prototypes


def f32(*values: float) -> Array:
    return np.array(values, np.float32)


def clip(mean: Arrays, before: Arrays | None, radius: float = 0.5, **more: Any) -> tuple[dict[str, list[float]], int]:
    clipped, number = clip_arrays(mean, before, Box(radius, **more))
    assert all(array.dtype == np.float32 for array in clipped.values())
    return {name: array.tolist() for name, array in clipped.items()}, number


def test_numbers_outside_are_clipped_to_the_side_they_are_on_and_counted() -> None:
    mean, before = {"w": f32(1.5, 1.75, -9, 2, 0.5)}, {"w": f32(1, 1, 1, 2, 1)}
    assert clip(mean, before) == ({"w": [1.5, 1.5, 0.5, 2, 0.5]}, 2)


def test_what_is_inside_keeps_every_bit() -> None:
    mean = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    clipped, number = clip_arrays({"w": mean}, {"w": mean + np.float32(0.3)}, Box(0.5))
    assert clipped["w"].tobytes() == mean.tobytes()
    assert number == 0


def test_what_the_aggregate_before_does_not_have_begins_at_0() -> None:
    for before in (None, {}, {"other": f32(7)}):
        assert clip({"w": f32(0.25, 4, -4)}, before) == ({"w": [0.25, 0.5, -0.5]}, 2)


def test_arrays_of_a_shape_keep_it() -> None:
    clipped, number = clip_arrays({"w": np.ones((2, 3), np.float32)}, {"w": np.zeros((2, 3), np.float32)}, Box(0.5))
    assert clipped["w"].tolist() == [[0.5] * 3] * 2
    assert number == 6


@pytest.mark.parametrize("before", [f32(1, 2), np.zeros((3, 1), np.float32), np.zeros(3)])
def test_an_aggregate_of_another_form_is_no_centre(before: Array) -> None:
    with pytest.raises(AggregationError, match="array 'w': expected float32 \\[3\\] in the parent's model"):
        clip({"w": f32(1, 2, 3)}, {"w": before})


# ---- batch norm


def test_running_statistics_have_a_radius_of_their_own() -> None:
    names = ("n.weight", "n.running_mean", "n.running_var")
    mean, before = {name: f32(9) for name in names}, {name: f32(1) for name in names}
    wanted = {"n.weight": [1.5], "n.running_mean": [5], "n.running_var": [5]}
    assert clip(mean, before, buffer_radius=4.0) == (wanted, 3)


def test_a_variance_is_never_below_0() -> None:
    mean = {"n.running_mean": f32(-9, -2), "n.running_var": f32(-9, -2)}
    before = {"n.running_mean": f32(1, 1), "n.running_var": f32(1, -8)}
    wanted = {"n.running_mean": [-3, -2], "n.running_var": [0, 0]}
    assert clip(mean, before, buffer_radius=4.0) == (wanted, 3)


def test_running_statistics_without_a_radius_are_no_mean() -> None:
    with pytest.raises(AggregationError, match=r"n\.running_var.*expected a radius of running statistics"):
        clip({"n.running_var": f32(1)}, {"n.running_var": f32(1)})


# ---- prototypes


def clip_rows(mean: Arrays, before: Arrays | None) -> tuple[dict[int, list[float]], int]:
    clipped, number = clip_classes(mean, before, Box(0.5))
    assert clipped["classes"].dtype == np.int64
    assert clipped["prototypes"].dtype == np.float32
    assert clipped["classes"].tolist() == sorted(clipped["classes"].tolist())
    return dict(zip(clipped["classes"].tolist(), clipped["prototypes"].tolist(), strict=True)), number


def test_prototypes_are_clipped_around_their_own_class() -> None:
    mean, before = prototypes({0: [3, 1.25], 2: [-1, 0]}), prototypes({0: [1, 1], 2: [-1, -1]})
    assert clip_rows(mean, before) == ({0: [1.5, 1.25], 2: [-1, -0.5]}, 2)


def test_a_class_that_comes_up_begins_at_0() -> None:
    assert clip_rows(prototypes({1: [0.25, 3]}), None) == ({1: [0.25, 0.5]}, 1)
    assert clip_rows(prototypes({1: [0.25, 3]}), prototypes({0: [7, 7]})) == ({0: [7, 7], 1: [0.25, 0.5]}, 1)


def test_a_class_that_nobody_holds_any_more_keeps_its_prototype() -> None:
    """Else a member that takes it out of the counts for a round could put it anywhere in the next."""
    assert clip_rows(prototypes({0: [1, 1]}), prototypes({0: [1, 1], 5: [2, 3]})) == ({0: [1, 1], 5: [2, 3]}, 0)
    nothing: Arrays = {"classes": np.empty(0, np.int64), "prototypes": np.empty((0, 2), np.float32)}
    assert clip_rows(nothing, prototypes({5: [2, 3]})) == ({5: [2, 3]}, 0)
    assert clip_rows(nothing, nothing) == ({}, 0)


def test_prototypes_of_another_length_are_no_centre() -> None:
    with pytest.raises(AggregationError, match="'prototypes': expected float32"):
        clip_classes(prototypes({0: [1, 1]}), prototypes({0: [1, 1, 1]}), Box(0.5))
