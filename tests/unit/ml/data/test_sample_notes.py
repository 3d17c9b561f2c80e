"""Rows to predict beside what a site has trained on: values outside its range are told."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ml.data.sample_notes import TrainedRange, describe_unusual, name_features
from ml.data.table_input import TableInput

TABLE = TableInput.from_mapping({"columns": [{"name": "age"}, {"name": "sex", "values": ["f", "m"]}, {"name": "ca"}]})
EMPTY = float("nan")


def make_rows(*rows: list[float]) -> NDArray[np.float32]:
    return np.array(rows, np.float32).reshape(len(rows), -1, 1, 1)


def describe(*rows: list[float]) -> list[tuple[str, ...]]:
    trained = TrainedRange.measure(make_rows([28, 0, 1, EMPTY], [77, 0, 1, EMPTY], [EMPTY, 0, 1, EMPTY]))
    assert trained is not None
    assert TABLE is not None
    names = name_features(TABLE, 4)
    return list(describe_unusual(make_rows(*rows), trained, names, TABLE.get_numbers(4).tolist()))


def test_a_value_outside_of_the_range_is_told_with_it() -> None:
    assert describe([28, 0, 1, EMPTY], [77, 0, 1, EMPTY], [EMPTY, 0, 0, EMPTY]) == [(), (), ()]
    assert describe([999, 0, 1, EMPTY], [27.5, 0, 1, EMPTY]) == [
        ("age 999: trained on 28 to 77",),
        ("age 27.5: trained on 28 to 77",),
    ]


def test_a_category_that_was_never_there_is_told_by_its_value() -> None:
    assert describe([30, 1, 0, EMPTY]) == [("sex=f: never in training here",)]


def test_a_flag_of_an_empty_cell_is_no_note() -> None:
    trained = TrainedRange(np.zeros(2, np.float32), np.zeros(2, np.float32))
    assert list(describe_unusual(make_rows([0, 1]), trained, ["age", "age (empty)"], [True, False])) == [()]


def test_a_column_that_was_always_empty_is_told() -> None:
    assert describe([30, 0, 1, 2]) == [("ca 2: always empty in training here",)]


def test_the_farthest_are_named_and_the_others_counted() -> None:
    trained = TrainedRange(np.zeros(6, np.float32), np.ones(6, np.float32))
    [notes] = describe_unusual(make_rows([2, 9, 3, -8, 0, 1.5]), trained, name_features(None, 6), [True] * 6)
    assert notes == (
        "feature 1 9: trained on 0 to 1",
        "feature 3 -8: trained on 0 to 1",
        "feature 2 3: trained on 0 to 1",
        "2 more",
    )


def test_images_have_no_range() -> None:
    assert TrainedRange.measure(np.zeros((2, 1, 8, 8), np.uint8)) is None
