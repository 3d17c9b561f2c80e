"""Subgroups of rows by the values of a column."""

from __future__ import annotations

from typing import Any

import pytest

from ml.data.subgroups import EMPTY, MAX_GROUPS, split_rows
from ml.errors import DataError


def split(cells: list[Any], cuts: tuple[float, ...] = ()) -> dict[str, list[int]]:
    return {name: rows.tolist() for name, rows in split_rows(cells, cuts)}


def test_few_values_are_a_group_each_and_empty_cells_one_of_their_own() -> None:
    assert split(["m", "f", "", "m ", "NA"]) == {"f": [1], "m": [0, 3], EMPTY: [2, 4]}
    assert split(["10", "9", "10.0", None]) == {"9": [1], "10": [0, 2], EMPTY: [3]}
    assert split([True, False, "true"]) == {"false": [1], "true": [0, 2]}
    assert split([None, ""]) == {EMPTY: [0, 1]}


def test_many_numbers_are_cut_at_their_quartiles() -> None:
    assert split([str(age) for age in range(40, 49)]) == {
        "below 42": [0, 1],
        "42 to below 44": [2, 3],
        "44 to below 46": [4, 5],
        "46 or more": [6, 7, 8],
    }
    assert split([0] * 20 + [1, 2, 3, 4, 5, 6]) == {"below 1": [*range(20)], "1 or more": [*range(20, 26)]}


def test_numbers_are_cut_where_one_says() -> None:
    assert split(["39.5", "40", "", "61", "12"], (60, 40)) == {
        "below 40": [0, 4],
        "40 to below 60": [1],
        "60 or more": [3],
        EMPTY: [2],
    }
    assert split(["1", "2"], (50,)) == {"below 50": [0, 1]}


def test_texts_that_are_no_groups_are_refused() -> None:
    with pytest.raises(DataError, match=f"at most {MAX_GROUPS} different values, to group rows by; got 25"):
        split([f"patient {i}" for i in range(25)])
    with pytest.raises(DataError, match="expected a column of numbers, as it is to be cut"):
        split(["m", "f"], (1,))
