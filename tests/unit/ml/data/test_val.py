"""Val samples: held out of training by the same hash that holds out the test samples, for good, and by groups."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml.data import open_dataset, split_anew
from ml.data.base import ArrayDataset
from ml.data.split import Side, Sides, complete_val, divide
from ml.errors import DataError

SEED = bytes(range(32))
Rows = set[tuple[float, ...]]


def write(path: Path, rows: Sequence[str], header: str = "a,b,label") -> dict[str, Any]:
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return {"format": "csv", "path": str(path)}


def make_rows(num: int = 300, seed: int = 3) -> list[str]:
    r = random.Random(seed)
    return [f"{r.gauss(i % 2, 1):.4f},{r.gauss(0, 1):.4f},{'bm'[i % 2]}" for i in range(num)]


def list_rows(part: ArrayDataset, is_chosen: Any = None) -> Rows:
    x = part.x if is_chosen is None else part.x[is_chosen]
    return {tuple(row.reshape(-1).tolist()) for row in x}


def open_sides(data: dict[str, Any], sides: Sides | None) -> tuple[Rows, Rows, Rows]:
    """The rows that train, those that are val, and those that test."""
    train, test = open_dataset(data, sides=sides)
    is_val = np.zeros(len(train), np.bool_) if train.is_val is None else train.is_val
    return list_rows(train, ~is_val), list_rows(train, is_val), list_rows(test)


def tell(data: dict[str, Any], sides: Sides | None) -> list[str]:
    return [note.text for note in open_dataset(data, sides=sides)[0].notes if "val" in note.text]


def reopen(sides: Sides) -> Sides:
    """As a later start finds them."""
    return Sides(sides.seed, dict(sides.known), sides.rule, sides.columns)


def test_without_data_val_there_is_none(tmp_path: Path) -> None:
    data, sides = write(tmp_path / "a.csv", make_rows()), Sides(SEED)
    assert [len(rows) for rows in open_sides(data, sides)] == [240, 0, 60]
    assert Side.VAL not in sides.known.values()
    assert tell(data, reopen(sides)) == []


def test_a_tenth_of_each_class_that_would_train_is_val_and_the_test_samples_are_as_without(tmp_path: Path) -> None:
    data = write(tmp_path / "a.csv", make_rows())
    train, test = open_dataset(data | {"val": 0.1}, sides=Sides(SEED))
    assert (train.num_val, len(train), len(test)) == (24, 240, 60)
    assert np.bincount(train.y[train.is_val]).tolist() == [12, 12]
    assert list_rows(test) == open_sides(data, Sides(SEED))[2]


def test_no_row_changes_sides_while_data_grow(tmp_path: Path) -> None:
    sides = Sides(SEED)
    before = open_sides(write(tmp_path / "a.csv", make_rows()) | {"val": 0.1}, sides)
    grown = write(tmp_path / "b.csv", [*make_rows(), *make_rows(3000, seed=8)]) | {"val": 0.1}
    after = open_sides(grown, reopen(sides))
    assert all(old <= new for old, new in zip(before, after, strict=True))
    assert 200 < len(after[1]) - len(before[1]) < 280  # a tenth of four fifths of 3,000
    known = reopen(sides)
    open_sides(write(tmp_path / "c.csv", make_rows()), known)  # a run that compares no rounds comes between
    assert open_sides(grown, known) == after


def test_all_samples_of_a_group_are_val_or_none(tmp_path: Path) -> None:
    r = random.Random(5)
    rows = [f"p{g:02d},{g},{r.random():.4f},{'bm'[g % 2]}" for g in range(60) for _ in range(10)]
    data = write(tmp_path / "a.csv", rows, "patient,a,b,label") | {"group": "patient", "val": 0.1}
    train, val, test = ({row[0] for row in side} for side in open_sides(data, Sides(SEED)))
    assert (len(train), len(val), len(test)) == (44, 4, 12)
    assert len(train | val | test) == 60


@pytest.mark.parametrize("kind", ["few", "one class"])
def test_with_too_few_to_tell_all_train_for_good_and_it_is_said(tmp_path: Path, kind: str) -> None:
    rows = make_rows(100) if kind == "few" else [*(f"{i},1,b" for i in range(300)), "7.5,2,m", "8.5,2,m"]
    data, sides = write(tmp_path / "a.csv", rows) | {"val": 0.1}, Sides(SEED)
    train, val, _ = open_sides(data, sides)
    assert not val
    [told] = tell(data, Sides(SEED))
    assert told.startswith(f"no val: 0.1 of {len(train)} training samples are fewer than 10, or of one class: ")
    grown = write(tmp_path / "b.csv", [*rows, *make_rows(2000, seed=8)]) | {"val": 0.1}
    later_train, later_val, _ = open_sides(grown, reopen(sides))
    assert train <= later_train
    assert not later_val  # what was trained on once is never val


def test_a_site_that_was_split_without_has_none_until_it_asks(tmp_path: Path) -> None:
    data, sides = write(tmp_path / "a.csv", make_rows()), Sides(SEED)
    before = open_sides(data, sides)
    asked = data | {"val": 0.1}
    assert open_sides(asked, reopen(sides)) == before
    [told] = tell(asked, reopen(sides))
    assert told.startswith("no val: this site has split its samples without")
    assert "fednode data resplit" in told
    made = split_anew(asked, reopen(sides), after := Sides(bytes(32)))
    assert (made.num_train, made.num_val, made.num_test) == (216, 24, 60)
    assert [len(rows) for rows in open_sides(asked, reopen(after))] == [216, 24, 60]


def test_a_site_that_has_trained_by_the_split_of_an_earlier_release_has_none(tmp_path: Path) -> None:
    data = write(tmp_path / "a.csv", make_rows()) | {"val": 0.1}
    assert not open_sides(data, Sides(None))[1]
    assert tell(data, Sides(None))[0].startswith("no val: this site has split its samples without")


def test_val_samples_train_from_then_on_where_the_site_wants_none(tmp_path: Path) -> None:
    data, sides = write(tmp_path / "a.csv", make_rows()), Sides(SEED)
    train, val, test = open_sides(data | {"val": 0.1}, sides)
    assert open_sides(data | {"val": 0}, sides) == (train | val, set(), test)
    assert open_sides(data | {"val": 0.1}, reopen(sides)) == (train | val, set(), test)


def test_a_column_says_which_rows_are_val(tmp_path: Path) -> None:
    rows = [f"{i},{('train', 'Test', 'val ')[i % 3]},{'bm'[i % 2]}" for i in range(30)]
    data = write(tmp_path / "a.csv", rows, "a,fold,label") | {"split": "fold"}
    for asked in (data, data | {"val": 0.5}):
        assert [{row[0] % 3 for row in side} for side in open_sides(asked, Sides(SEED))] == [{0}, {2}, {1}]
        assert tell(asked, Sides(SEED)) == []
    for asked in (data | {"val": 0}, write(tmp_path / "b.csv", rows[:27], "a,fold,label") | {"split": "fold"}):
        train, val, _ = open_sides(asked, Sides(SEED))  # the second has but nine of val
        assert {row[0] % 3 for row in train} == {0}
        assert not val
        assert tell(asked, Sides(SEED))[0].endswith("samples are val: neither trained on nor tested")


@pytest.mark.parametrize("given", ["column", "file"])
def test_where_the_data_say_what_tests_val_is_of_the_others_and_remembered(tmp_path: Path, given: str) -> None:
    rows = make_rows()
    if given == "file":
        write(tmp_path / "t.csv", rows[200:])
        data = write(tmp_path / "a.csv", rows[:200]) | {"test": str(tmp_path / "t.csv"), "val": 0.1}
    else:
        split = [f"{row},{'train' if i < 200 else 'test'}" for i, row in enumerate(rows)]
        data = write(tmp_path / "a.csv", split, "a,b,label,fold") | {"split": "fold", "val": 0.1}
    before = open_sides(data, sides := Sides(SEED))
    assert [len(side) for side in before] == [180, 20, 100]
    assert open_sides(data, reopen(sides)) == before
    assert set(sides.known.values()) == {Side.TRAIN, Side.VAL}
    assert [len(side) for side in open_sides(data, None)] == [180, 20, 100]
    made = split_anew(data, reopen(sides), after := Sides(bytes(32)))
    assert (made.num_train, made.num_val, made.num_test, made.trained_on) == (180, 20, 100, ())
    assert open_sides(data, reopen(after))[1] != before[1]
    with pytest.raises(DataError, match="there is nothing to split anew"):
        split_anew({name: value for name, value in data.items() if name != "val"}, sides, Sides(bytes(32)))


def test_each_site_of_a_directory_holds_out_its_own(tmp_path: Path) -> None:
    for site, num in (("a", 300), ("b", 200), ("c", 60)):
        write(tmp_path / f"{site}.csv", make_rows(num, seed=num))
    train, _ = open_dataset({"format": "domains", "path": str(tmp_path), "val": 0.1})
    assert train.is_val is not None
    assert train.domain_of is not None
    assert np.bincount(train.domain_of[train.is_val], minlength=3).tolist() == [24, 16, 0]  # of the last too few
    alone, _ = open_dataset({"format": "csv", "path": str(tmp_path / "b.csv"), "val": 0.1})
    assert alone.is_val is not None
    own = train.domain_of == 1
    np.testing.assert_array_equal(train.is_val[own], alone.is_val)


def test_a_client_with_too_few_of_a_data_sets_val_samples_trains_on_them() -> None:
    is_val, y = np.arange(100) % 4 == 0, np.arange(100) // 4 % 2
    trained, val = divide(np.arange(60), is_val, y)
    assert (len(trained), len(val)) == (45, 15)
    trained, val = divide(np.arange(20), is_val, y)
    assert (len(trained), len(val)) == (20, 0)
    assert not len(divide(np.arange(100), is_val, np.zeros(100, np.int64))[1])


def test_a_run_that_selects_a_round_has_a_tenth_where_nobody_says_how_much() -> None:
    assert complete_val({"format": "csv"}, selects=False) == {"format": "csv"}
    assert complete_val({"format": "csv", "val": None}, selects=True) == {"format": "csv", "val": 0.1}
    assert complete_val({"val": 0}, selects=True) == {"val": 0}


@pytest.mark.parametrize("share", [1, -0.1, "0.1", True])
def test_what_is_no_share_is_refused(share: Any) -> None:
    with pytest.raises(DataError, match=r"data\.val: expected a share between 0 and 1, got"):
        open_dataset({"format": "digits", "val": share})
