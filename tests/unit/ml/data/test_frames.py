"""Frames as files: cells, labels, and columns that are matched by their names."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml.data import open_dataset
from ml.data.frames import read_columns, write_columns
from ml.data.objects import Written, write_object
from ml.errors import DataError

pandas = pytest.importorskip("pandas")


def make_data(written: Written) -> dict[str, Any]:
    labels = {"columns": {"label": written.labels[0]}} if written.labels else {}
    return {"format": written.format, "path": str(written.path), **labels}


def test_numbers_and_labels_of_a_frame_are_what_they_were(tmp_path: Path) -> None:
    values = np.array([[0.1, -3e-20], [1 / 3, 7.0], [2.0, 1e30], [0.0, 5.5]])
    frame = pandas.DataFrame(values, columns=["a", "b"], index=[9, 3, 5, 1])
    outcome = pandas.Series(["no", "yes", "no", "yes"], index=frame.index, name="outcome")
    for i, given in enumerate(((frame, outcome), (frame.assign(outcome=outcome), "outcome"), (frame, [*outcome]))):
        (tmp_path / str(i)).mkdir()
        written = write_object(given, tmp_path / str(i))
        train, test = open_dataset(make_data(written))
        assert written.labels == (("label",) if i == 2 else ("outcome",))
        assert (train.features, train.classes) == (("a", "b"), ("no", "yes"))
        rows = np.concatenate([train.x, test.x]).reshape(4, 2).tolist()
        assert sorted(rows) == sorted(values.astype(np.float32).tolist())


def test_cells_are_written_as_a_csv_file_has_them(tmp_path: Path) -> None:
    frame = pandas.DataFrame(
        {
            "whole": [1, None, 3],  # which pandas keeps as 1.0 and 3.0
            "parts": [1.0, 2.5, 3.0],
            "flag": [True, False, None],
            "day": [datetime.date(2026, 1, 2), None, datetime.date(2026, 1, 3)],
            "kind": pandas.Categorical(["a", None, "b,c"]),
            "note": ["two\nlines", "", pandas.NA],
            "since": pandas.to_datetime(["2026-01-02 03:04", None, "2026-01-03"], format="mixed"),
            5: [1, 2, 3],
        }
    )
    write_columns(read_columns(frame, "data"), tmp_path / "frame.csv")
    assert (tmp_path / "frame.csv").read_text().splitlines() == [
        "whole,parts,flag,day,kind,note,since,x5",
        "1,1.0,1,2026-01-02,a,two lines,2026-01-02 03:04:00,1",
        ",2.5,0,,,,,2",
        '3,3.0,,2026-01-03,"b,c",,2026-01-03 00:00:00,3',
    ]


@pytest.mark.parametrize("library", ["polars", "pyarrow"])
def test_a_frame_of_any_library_gives_the_same_columns(library: str) -> None:
    module = pytest.importorskip(library)
    columns = {"a": [1, None], "b": ["x", None], "c": [0.5, 1.0]}
    frame = module.table(columns) if library == "pyarrow" else module.DataFrame(columns)
    assert read_columns(frame, "data") == columns


def test_sites_are_domains_whose_columns_are_matched_by_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = pandas.DataFrame({"a": range(10), "b": range(10, 20), "label": ["x", "y"] * 5})
    other = one[["label", "b", "a"]].assign(c=0)
    written = write_object([one, other], tmp_path)
    assert (written.format, written.columns) == ("domains", ("a", "b", "label"))
    assert caplog.messages == ["data[1]: passed over, as data[0] has no such columns: c"]
    train, test = open_dataset(make_data(written))
    assert train.domains == ("site0", "site1")
    assert set(np.concatenate([train.x, test.x])[:, 0].ravel()) == set(range(10))


def test_a_frame_and_labels_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    frame = pandas.DataFrame({"a": [1, 2, 3]})
    shuffled = pandas.Series([1, 0, 1], index=[2, 0, 1])
    twice = pandas.DataFrame([[1, 2]], columns=["a", "a"])
    for given, message in (
        ((frame, shuffled), "data: expected labels with the frame's own index, got others"),
        ((frame, [0, 1]), "data: expected a label for each of 3 rows, got 2"),
        ((frame, "b"), "data: expected a column 'b' of labels, got a"),
        ((frame, pandas.Series([1, 0, 1], name="a")), "got a column 'a' in both"),
        (twice, "data: expected different columns, got 'a' twice"),
        (frame[:0], "data: expected rows, got none"),
        ([(frame, "a"), frame.assign(b=1)], "expected one name of the column of labels at all sites, got a and none"),
        ([frame, frame.rename(columns={"a": "b"})], "data[1]: expected the columns of data[0], got none called a"),
    ):
        with pytest.raises(DataError) as refused:
            write_object(given, tmp_path)
        assert message in str(refused.value)
        for file in tmp_path.rglob("*.csv"):
            file.unlink()
        for folder in tmp_path.iterdir():
            folder.rmdir()


@pytest.mark.slow
def test_sites_of_hugging_face_have_their_columns_by_name_too(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    classes = datasets.ClassLabel(names=["no", "yes"])
    sites = [
        datasets.Dataset.from_dict(
            {name: [0, 1] * 5 if name == "outcome" else range(10) for name in names},
            features=datasets.Features({n: classes if n == "outcome" else datasets.Value("int64") for n in names}),
        )
        for names in (("a", "b", "outcome"), ("outcome", "b", "a"))
    ]
    written = write_object(sites, tmp_path)
    assert (written.labels, written.columns) == (("outcome",), ("a", "b", "outcome"))
    train, _ = open_dataset(make_data(written))
    assert (train.features, train.classes, train.domains) == (("a", "b"), ("no", "yes"), ("site0", "site1"))
