"""Columns as they lie in a table: kinds, empty cells, codes, outliers, identifiers, and names that are nearly alike."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine

from ml.data import open_dataset, open_raw_table
from ml.data.cells import TextColumn, is_date, parse_number, parse_numbers, to_text
from ml.data.checks import check_data
from ml.data.columns import CLEAR, ColumnSummary, check_summaries, find_alike, propose_input, summarise_columns
from ml.data.table_input import Column, TableInput, detect_columns
from ml.errors import DataError
from support.data.tables import detect_table

RNG = np.random.default_rng(3)
AGES = RNG.integers(28, 78, 100).tolist()


def summarise(cells: list[Any], name: str = "a", empty: tuple[str, ...] = ()) -> ColumnSummary:
    """A column, which is the same as numbers and as their text in a file."""
    [own] = summarise_columns({name: cells}, {name: empty})
    texts = ["" if cell is None else str(cell) for cell in cells]
    [of_text] = summarise_columns({name: TextColumn((TextColumn.pack(texts),), len(texts))}, {name: empty})
    assert of_text == own
    return own


def warn(cells: list[Any], name: str = "a") -> list[str]:
    return [finding.text for finding in check_summaries([summarise(cells, name)]) if finding.level == "warning"]


def test_a_column_of_numbers_has_a_range_and_gaps() -> None:
    own = summarise([1, 2.5, None, 4, None])
    assert (own.kind, own.num_rows, own.num_missing, own.num_values, own.range_) == ("number", 5, 2, 3, (1, 4))
    assert summarise([None, None]).kind == "empty"
    assert summarise([True, False, None]).range_ == (0, 1)


def test_a_category_has_its_values_by_frequency() -> None:
    own = summarise(["m", "f", "m", None, "x"])
    assert (own.kind, own.values, own.num_missing) == ("category", (("m", 2), ("f", 1), ("x", 1)), 1)
    assert summarise([f"patient {i}" for i in range(40)]).kind == "text"


@pytest.mark.parametrize(
    "cell",
    ["2024-01-31", "31.01.2024", "1/31/24", "2024-01-31 12:30", "2024-01-31T12:30:00Z", "12-Jan-2024", "08:15"],
)
def test_dates_are_dates_and_never_categories(tmp_path: Path, cell: str) -> None:
    assert is_date(cell)
    assert summarise([cell, cell, None]).kind == "date"
    assert summarise_columns({"a": [datetime.date(2024, 1, 31)]})[0].kind == "date"
    (tmp_path / "a.csv").write_text(f"seen,label\n{cell},x\n{cell},y\n")
    data = {"format": "csv", "path": str(tmp_path / "a.csv")}
    with pytest.raises(DataError, match=r"column 'seen' has dates, such as"):
        detect_table(data)
    with pytest.raises(DataError, match=r"line 2: column 'seen': expected a finite number, .*; a date is no number"):
        open_dataset(data)


@pytest.mark.parametrize("cell", ["1.5", "120/80", "12-34", "1.2.3", "A12.3", "2024"])
def test_what_only_looks_like_a_date_is_none(cell: str) -> None:
    assert not is_date(cell)


def test_a_mark_among_numbers_is_an_empty_cell_that_nobody_has_named() -> None:
    own = summarise(["1.5", "?", "2.5", "?"])
    assert (own.kind, own.num_missing, own.empty) == ("number", 2, ("?",))
    assert propose_input([own]).to_mapping() == {"columns": [{"name": "a"}], "missing": "mean", "empty": ["?"]}
    assert summarise(["1.5", "?", "2.5", "?"], empty=("?",)).empty == ()
    with pytest.raises(DataError, match=r"column 'a': expected a finite number, got '\?'; an empty cell\? input.empty"):
        detect(["1", "?", "3"])
    assert detect(["1", "?", "3"], empty=("?",)) == [{"name": "a"}]


def test_a_mark_among_words_is_an_empty_cell_that_nobody_has_named() -> None:
    own = summarise(["f", "?", "m", "NULL", "f", None])
    assert (own.kind, own.num_missing, own.values, own.empty) == ("category", 3, (("f", 2), ("m", 1)), ("?", "NULL"))
    columns, text = [{"name": "a", "values": ["f", "m"]}], "among the values of 'a': an empty cell? input.empty in"
    assert propose_input([own]).to_mapping() == {"columns": columns, "missing": "mean", "empty": ["?", "NULL"]}
    assert [text in told for told in warn(["f", "?", "m", "f"])] == [True]
    assert summarise(["f", "?", "m"], empty=("?",)).empty == ()
    assert summarise(["+", "-", "+"]).values == (("+", 2), ("-", 1))
    assert summarise(["none", "unknown", "mild"]).empty == ()  # which may be answers


def detect(cells: list[str], empty: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    cleared = TableInput(empty=empty).clear(cells, Column("a"))
    return [column.to_mapping() for column in detect_columns({"a": cleared}, "a.csv")]


def test_numbers_are_never_the_values_of_a_category() -> None:
    with pytest.raises(DataError, match="got '1,125'; a decimal comma"):
        detect(["1,125", "2,250", "3"])
    assert detect(["1", "2", "more"]) == [{"name": "a", "values": ["1", "2", "more"]}]


# ---- what is hardly a measurement


def test_empty_cells_are_told_and_warned_of_from_three_in_ten() -> None:
    for gaps, level in ((2, "note"), (3, "warning")):
        [finding] = check_summaries([summarise([None] * gaps + list(range(10 - gaps)), "chol")])
        assert (finding.level, finding.text) == (level, f"empty cells: 'chol' {gaps} of 10")


@pytest.mark.parametrize("code", [-1, -9, -99, -999, 999, 9999])
def test_a_code_for_what_is_not_known_is_told(code: int) -> None:
    assert warn([*AGES, code, code]) == [f"'a': 2 times {code}, far from the others: not known? {CLEAR}"]


def test_a_spike_at_zero_is_told_and_many_small_numbers_are_not() -> None:
    cholesterol = RNG.normal(240, 50, 75).clip(120, 400).round().tolist()
    assert "25 times 0, far from the others" in warn(cholesterol + [0] * 25)[0]
    assert warn(RNG.exponential(1.0, 100).round(2).tolist() + [0] * 25) == []
    assert warn([0, 1] * 50) == []
    pressure = RNG.normal(130, 18, 99).clip(90, 200).round().tolist()
    assert "0 once, far from the others" in warn([*pressure, 0])[0]


def test_outliers_and_what_cannot_be_are_told() -> None:
    assert warn([*AGES, 65526], "age") == ["'age': 1 value that is impossible, such as 65526: expected 0 to 120"]
    assert "1 far outlier, such as 65526, where the others are 2" in warn([*AGES, 65526], "marker")[0]
    assert warn(RNG.lognormal(1, 1.5, 500).tolist(), "crp") == []


@pytest.mark.parametrize("load", [load_breast_cancer, load_wine, load_iris, load_diabetes])
def test_good_tables_have_nothing_odd(load: Any) -> None:
    found = load()
    names = [f"{name} {i}" for i, name in enumerate(found.feature_names)]
    columns = summarise_columns({name: x.tolist() for name, x in zip(names, found.data.T, strict=True)})
    assert [finding.text for finding in check_summaries(columns)] == []


def test_identifiers_and_constants_are_told_and_not_proposed() -> None:
    columns = [summarise(list(range(1000, 1040)), "id"), summarise(["Basel"] * 40, "dataset"), summarise(AGES, "age")]
    assert [finding.text for finding in check_summaries(columns)] == [
        "'id': another value in each row: is it a feature?",
        "'dataset': one value: is it a feature?",
    ]
    assert propose_input(columns).to_mapping() == {"columns": [{"name": "age"}]}
    assert summarise([i + 0.5 for i in range(40)]).doubt is None


def test_names_that_differ_by_case_or_blanks_are_told(tmp_path: Path) -> None:
    assert find_alike(["Yes", "no", "yes", "n o", "x"]) == [("Yes", "yes"), ("no", "n o")]
    assert warn(["male", "Male", "male"]) == ["'a': 'Male' and 'male' differ by case or blanks only"]
    (tmp_path / "a.csv").write_text("f,label\n" + "".join(f"{i},{'Yes' if i % 2 else 'yes'}\n" for i in range(20)))
    found = check_data(*open_dataset({"format": "csv", "path": str(tmp_path / "a.csv")}))
    assert any("the classes 'Yes' and 'yes' differ by case or blanks only" in finding.text for finding in found)


# ---- where things are


def test_what_is_there_twice_is_at_its_line_of_the_file(tmp_path: Path) -> None:
    rows = [f"{i},{i * i % 7},{'ab'[i % 2]}" for i in range(60)]
    rows[30] = rows[8]
    (tmp_path / "a.csv").write_text("# of 2024\nf,g,label\n" + "\n".join(rows) + "\n")
    data = {"format": "csv", "path": str(tmp_path / "a.csv")}
    texts = [finding.text for finding in check_data(*open_dataset(data))]
    assert any("line 11" in text and "line 33" in text for text in texts), texts


def test_a_table_is_opened_before_its_labels_are_known(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,sex,num\n1,f,0\n2,m,1\n")
    raw = open_raw_table({"format": "csv", "path": str(tmp_path / "a.csv")})
    assert raw is not None
    assert (list(raw.cells), raw.labels, raw.locate(1)) == (["id", "sex", "num"], (), f"{tmp_path}/a.csv: line 3")
    assert open_raw_table({"format": "digits"}) is None


# ---- cells


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        *(("1", 1.0), (" 2.5 ", 2.5), (".5", 0.5), ("1e3", 1000.0), ("TRUE", 1.0), (False, 0.0), ("1_000", None)),
        *(("0x10", None), ("inf", None), ("1e39", None), ("١", None), (10**400, None), ("1,5", None)),
    ],
)
def test_a_number_is_one_in_every_form(cell: Any, number: float | None) -> None:
    assert parse_number(cell) == number
    values, is_wrong = parse_numbers([cell, None])
    assert (values[0] if not is_wrong[0] else None) == number
    if isinstance(cell, str):
        column = TextColumn((TextColumn.pack([cell.strip(), ""]),), 2)
        values, is_wrong = parse_numbers(column)
        assert (values[0] if not is_wrong[0] else None) == number


def test_a_number_may_be_named_as_empty() -> None:
    for cells in ([-9, 1.0, -9.0], ["-9", "1", "-9.0"], TextColumn((TextColumn.pack(["-9", "1", "-9.0"]),), 3)):
        values, is_wrong = parse_numbers(cells, ("-9",))
        assert np.isnan(values).tolist() == [True, False, True]
        assert not is_wrong.any()


@pytest.mark.parametrize(
    ("cell", "text"),
    [(1.0, "1"), ("1.0", "1"), ("01.0", "01.0"), (True, "true"), ("TRUE", "true"), (" e\u0301 ", "\u00e9")],
)
def test_a_text_is_the_same_from_every_file(cell: Any, text: str) -> None:
    assert to_text(cell) == text
