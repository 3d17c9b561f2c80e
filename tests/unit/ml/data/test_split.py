"""A site's own split: a sample stays on its side while data grow, and what belongs together is on one side."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ml.data import open_dataset, open_labels, split_anew
from ml.data.base import ArrayDataset, InputFormat
from ml.data.column_checks import check_columns
from ml.data.labels import choose_held_out
from ml.data.split import Side, Sides
from ml.errors import DataError
from ml.seeding import derive_key

SEED = bytes(range(32))
ROWS = 200


def write(path: Path, rows: Sequence[str], header: str = "a,b,label") -> dict[str, Any]:
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return {"format": "csv", "path": str(path)}


def make_rows(num: int = ROWS, seed: int = 3) -> list[str]:
    r = random.Random(seed)
    return [f"{r.gauss(i % 2, 1):.4f},{r.gauss(0, 1):.4f},{'bm'[i % 2]}" for i in range(num)]


def list_rows(part: ArrayDataset) -> set[tuple[float, ...]]:
    return {tuple(row) for row in part.x.reshape(len(part), -1).tolist()}


def reopen(sides: Sides) -> Sides:
    """As a later start finds them."""
    return Sides(sides.seed, dict(sides.known), sides.rule, sides.columns)


def open_both(data: dict[str, Any], sides: Sides, **options: Any) -> tuple[ArrayDataset, ArrayDataset]:
    return open_dataset(data, sides=sides, **options)


def test_no_row_changes_sides_while_data_grow(tmp_path: Path) -> None:
    sides = Sides(SEED)
    train, test = open_both(write(tmp_path / "a.csv", make_rows()), sides)
    assert (len(train), len(test)) == (160, 40)
    assert test.count_classes().tolist() == [20, 20]
    more = [*make_rows(), "0.5,0.25,b", "1.5,1.25,m"]
    grown_train, grown_test = open_both(write(tmp_path / "b.csv", more), reopen(sides))
    assert not list_rows(grown_test) & list_rows(train)
    assert list_rows(test) <= list_rows(grown_test)
    assert list_rows(train) <= list_rows(grown_train)
    assert len(grown_train) + len(grown_test) == 202


def test_rows_keep_their_sides_in_any_order_and_in_any_file(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sides, rows = Sides(SEED), make_rows()
    _, test = open_both(write(tmp_path / "a.csv", rows), sides)
    turned = [f"{b},{a},{label}" for a, b, label in (row.split(",") for row in reversed(rows))]
    _, again = open_both(write(tmp_path / "b.csv", turned, "b,a,label"), reopen(sides))
    assert {row[::-1] for row in list_rows(again)} == list_rows(test)
    cells = [row.split(",") for row in rows]
    columns = {
        "a": [float(a) for a, _, _ in cells],
        "b": [float(b) for _, b, _ in cells],
        "label": [c for *_, c in cells],
    }
    pq.write_table(pa.table(columns), tmp_path / "c.parquet")
    _, other = open_both({"format": "parquet", "path": str(tmp_path / "c.parquet")}, reopen(sides))
    assert list_rows(other) == list_rows(test)


def test_later_rows_are_placed_by_their_hash_alone(tmp_path: Path) -> None:
    first = Sides(SEED)
    open_both(write(tmp_path / "a.csv", make_rows(20)), first)
    late = make_rows(1000, seed=8)
    sides = reopen(first)
    _, test = open_both(write(tmp_path / "b.csv", late), sides)
    assert 150 < len(test) < 250  # a fifth of 1,000, give or take
    half = reopen(first)
    _, fewer = open_both(write(tmp_path / "c.csv", late[::2]), half)
    assert list_rows(fewer) <= list_rows(test)  # whatever else is there


def test_another_seed_holds_out_others(tmp_path: Path) -> None:
    data = write(tmp_path / "a.csv", make_rows())
    _, one = open_both(data, Sides(SEED))
    _, other = open_both(data, Sides(bytes(32)))
    assert len(one) == len(other)
    assert list_rows(one) != list_rows(other)


def test_exact_duplicates_are_on_one_side(tmp_path: Path) -> None:
    rows = make_rows(50)
    train, test = open_both(write(tmp_path / "a.csv", rows * 2), Sides(SEED))
    assert not list_rows(train) & list_rows(test)
    assert len(train) + len(test) == 100


def group_rows(num_groups: int = 30, each: int = 10) -> list[str]:
    r = random.Random(5)
    return [
        f"p{g:02d},{g + r.random() / 10:.4f},{r.random():.4f},{'bm'[g % 2]}"
        for g in range(num_groups)
        for _ in range(each)
    ]


GROUPED = "patient,a,b,label"


def test_all_samples_of_a_group_are_on_one_side(tmp_path: Path) -> None:
    data = write(tmp_path / "a.csv", group_rows(), GROUPED) | {"group": "patient"}
    train, test = open_both(data, Sides(SEED))
    assert train.features == ("a", "b")  # of which the group is none
    assert (len(train), len(test)) == (240, 60)
    assert not {int(row[0]) for row in list_rows(train)} & {int(row[0]) for row in list_rows(test)}
    assert len({int(row[0]) for row in list_rows(test)}) == 6


def test_a_group_stays_on_its_side_while_it_grows(tmp_path: Path) -> None:
    sides = Sides(SEED)
    rows = group_rows()
    _, test = open_both(write(tmp_path / "a.csv", rows[::2], GROUPED) | {"group": "patient"}, sides)
    _, grown = open_both(write(tmp_path / "b.csv", rows, GROUPED) | {"group": "patient"}, reopen(sides))
    assert {int(row[0]) for row in list_rows(grown)} == {int(row[0]) for row in list_rows(test)}
    assert len(grown) == 2 * len(test)


def test_groups_may_be_of_several_columns(tmp_path: Path) -> None:
    rows = [f"{site},{p},{site * 100 + p},{'bm'[p % 2]}" for site in range(2) for p in range(10) for _ in range(3)]
    data = write(tmp_path / "a.csv", rows, "site,p,a,label") | {"group": ["site", "p"]}
    train, test = open_both(data, Sides(SEED))
    assert train.features == ("a",)
    assert len(test) == 12
    assert not list_rows(train) & list_rows(test)


def test_groups_that_share_a_sample_are_on_one_side(tmp_path: Path) -> None:
    rows = [f"p{g},{g // 2},{'bm'[g // 2 % 2]}" for g in range(40)]  # two groups each have the same row
    train, test = open_both(write(tmp_path / "a.csv", rows, "patient,a,label") | {"group": "patient"}, Sides(SEED))
    assert len(test) == 8
    assert not list_rows(train) & list_rows(test)


def test_a_row_with_an_id_stays_when_it_is_corrected(tmp_path: Path) -> None:
    sides, header = Sides(SEED), "visit,a,label"
    rows = [f"v{i},{i},{'bm'[i % 2]}" for i in range(40)]
    train, test = open_both(write(tmp_path / "a.csv", rows, header) | {"id": "visit"}, sides)
    assert train.features == ("a",)
    corrected = [f"v{i},{i + 1000},{'bm'[i % 2]}" for i in range(40)]
    _, again = open_both(write(tmp_path / "a.csv", corrected, header) | {"id": "visit"}, reopen(sides))
    assert {row[0] - 1000 for row in list_rows(again)} == {row[0] for row in list_rows(test)}


def test_what_is_no_feature_of_the_run_says_nothing_of_a_row(tmp_path: Path) -> None:
    wanted = InputFormat.from_mapping({"shape": [1, 1, 1], "columns": [{"name": "a"}]})
    rows = [f"{i // 2},{i},{'bm'[i // 2 % 2]}" for i in range(80)]  # each twice, but for a number of the row
    data = write(tmp_path / "a.csv", rows, "a,row,label")
    train, test = open_both(data, Sides(SEED), shape=wanted.shape, table=wanted.table)
    assert len(test) == 16
    assert not list_rows(train) & list_rows(test)


@pytest.mark.parametrize(("first", "later"), [("ab", "a"), ("a", "abc"), ("ab", "bc")])
def test_rows_keep_their_sides_in_a_run_of_other_columns(tmp_path: Path, first: str, later: str) -> None:
    r, sides = random.Random(3), Sides(SEED)
    rows = [f"{i},{r.random()},{r.random()},{'bm'[i % 2]}" for i in range(100)]
    data = write(tmp_path / "a.csv", rows, "a,b,c,label")

    def open_columns(names: str, own: Sides) -> tuple[ArrayDataset, ArrayDataset]:
        wanted = InputFormat.from_mapping({"shape": [len(names), 1, 1], "columns": [{"name": name} for name in names]})
        return open_both(data, own, shape=wanted.shape, table=wanted.table)

    open_columns(first, sides)
    _, expected = open_columns("abc", fixed := reopen(sides))
    again = reopen(sides)
    train, test = open_columns(later, again)
    assert train.notes == ()
    assert again.columns == tuple(later)
    assert len(test) == len(expected) == 20
    _, back = open_columns("abc", reopen(again))
    assert list_rows(back) == list_rows(expected)
    assert fixed.columns == ("a", "b", "c")


def test_rows_that_nothing_knows_again_are_told(tmp_path: Path) -> None:
    sides = Sides(SEED)
    open_both(write(tmp_path / "a.csv", make_rows(40)), sides)
    train, _ = open_both(write(tmp_path / "a.csv", make_rows(40), "a,other,label"), reopen(sides))
    assert train.notes[0].text == (
        "none of 40 rows is known from before, without the column 'b': some that were trained on may be held out; "
        "data.id names rows"
    )


def test_a_missing_cell_that_is_filled_changes_no_side(tmp_path: Path) -> None:
    wanted = InputFormat.from_mapping(
        {"shape": [2, 1, 1], "columns": [{"name": "a"}, {"name": "b"}], "missing": "mean"}
    )
    options = {"shape": wanted.shape, "table": wanted.table}
    sides, rows = Sides(SEED), [f"{i},{'' if i % 2 else i},{'bm'[i // 2 % 2]}" for i in range(40)]
    _, test = open_both(write(tmp_path / "a.csv", rows), sides, **options)
    _, grown = open_both(write(tmp_path / "a.csv", [*rows, "99,999,b"]), reopen(sides), **options)  # another mean
    assert {row[0] for row in list_rows(test)} == {row[0] for row in list_rows(grown)} - {99.0}


def save_images(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (4, 4), np.uint8)).save(folder / name)
    return {"format": "imagefolder", "path": str(folder)}


def read_sides(data: dict[str, Any], sides: Sides) -> tuple[set[bytes], set[bytes]]:
    train, test = open_both(data, sides)
    return {row.tobytes() for row in train.x}, {row.tobytes() for row in test.x}


def get_patients(folder: Path, pixels: set[bytes]) -> set[str]:
    return {
        re.search(r"p\d+", str(file)).group()  # type: ignore[union-attr]
        for file in folder.rglob("*.png")
        if np.asarray(Image.open(file)).tobytes() in pixels
    }


@pytest.mark.parametrize(
    ("pattern", "group"), [("{c}/p{p:02d}_s{s}.png", r"(p\d+)_s"), ("{c}/p{p:02d}/{s}.png", "parent")]
)
def test_images_of_a_group_are_on_one_side(tmp_path: Path, pattern: str, group: str) -> None:
    names = [pattern.format(c="cat" if p % 2 else "dog", p=p, s=s) for p in range(10) for s in range(4)]
    data = save_images(tmp_path / "scans", names) | {"group": group}
    train, test = (get_patients(tmp_path / "scans", side) for side in read_sides(data, Sides(SEED)))
    assert len(test) == 2
    assert len(train) == 8
    assert not train & test


def test_an_image_stays_on_its_side_whatever_shape_the_run_takes(tmp_path: Path) -> None:
    data = save_images(tmp_path / "scans", [f"{'ab'[i % 2]}/{i}.png" for i in range(40)])
    sides = Sides(SEED)
    grey = open_both(data, sides, shape=(1, 4, 4))[1]
    known = dict(sides.known)
    again = reopen(sides)
    colour = open_both(data, again, shape=(3, 4, 4))[1]
    assert len(grey) == len(colour) == 8
    assert again.known == known


def test_an_archive_has_an_array_of_groups(tmp_path: Path) -> None:
    x, y = np.arange(240, dtype=np.uint8).reshape(60, 1, 2, 2), np.arange(60) // 3 % 2
    np.savez(tmp_path / "a.npz", x=x, y=y, patient=np.arange(60) // 3)
    data = {"format": "npz", "path": str(tmp_path / "a.npz"), "group": "patient"}
    train, test = open_both(data, Sides(SEED))
    groups = [{int(sample.flat[0]) // 12 for sample in part.x} for part in (train, test)]
    assert len(groups[1]) == 4
    assert not groups[0] & groups[1]
    labels = open_labels(data)
    assert len(labels.test_y) == 12


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"group": "know"}, "data.group: .*a.csv has no column 'know': did you mean 'known'"),
        ({"group": "known", "id": "known"}, "data.id: expected none with data.group"),
        ({"held_out": 1.0}, "data.held_out: expected a share between 0 and 1, got 1.0"),
        ({"split": "known"}, "a.csv: line 3: column 'known': expected train, test or val, got '7'"),
        ({"split": "known", "test": "b.csv"}, "data.test: expected none with data.split"),
        ({"group": "seldom"}, "a.csv: line 2: column 'seldom': expected a value, as data.group names it, got none"),
        ({"id": "seldom"}, "a.csv: line 2: column 'seldom': expected a value, as data.id names it, got none"),
    ],
)
def test_what_says_nothing_of_a_split_is_refused(tmp_path: Path, data: dict[str, Any], message: str) -> None:
    name = "seldom" if "seldom" in data.values() else "known"
    cells = ("", "1") if name == "seldom" else ("train", "7") if "split" in data else ("1", "2")
    source = write(tmp_path / "a.csv", [f"{cells[0]},1,b", f"{cells[1]},2,m"], f"{name},a,label")
    with pytest.raises(DataError, match=message):
        open_dataset(source | data)


def test_images_have_groups_by_path_alone(tmp_path: Path) -> None:
    data = save_images(tmp_path / "scans", [f"{'ab'[i % 2]}/{i}.png" for i in range(8)])
    for group, message in (
        ("parent", "expected a folder for each group in .*a, got images"),
        ("(p[0-9]+)", r"0.png: data.group: expected a path in which '\(p\[0-9\]\+\)' is found"),
        ("p[0-9]+", "expected a group in parentheses"),
        ("(", "expected parent or a regular expression"),
    ):
        with pytest.raises(DataError, match=message):
            open_dataset(data | {"group": group})
    with pytest.raises(DataError, match=r"data.id: .* has no columns"):
        open_dataset(data | {"id": "visit"})


def test_domains_keep_their_sides(tmp_path: Path) -> None:
    for d, name in enumerate(("one", "two")):
        x = np.arange(160, dtype=np.uint8).reshape(40, 1, 2, 2) + d
        (tmp_path / "sets" / name).mkdir(parents=True)
        np.savez(tmp_path / "sets" / name / "a.npz", x=x, y=np.arange(40) % 2)
    data, sides = {"format": "domains", "path": str(tmp_path / "sets")}, Sides(SEED)
    _, test = open_both(data, sides)
    assert len(test) == 16
    assert len(sides.known) == 80
    assert open_both(data, reopen(sides))[1].sha256 == test.sha256 != open_dataset(data)[1].sha256


def test_each_domain_of_a_rehearsal_holds_out_what_a_site_of_its_seed_would(tmp_path: Path) -> None:
    (tmp_path / "sites").mkdir()
    for site in range(2):
        write(tmp_path / "sites" / f"{site}.csv", make_rows(seed=site))
    data: dict[str, Any] = {"format": "domains", "path": str(tmp_path / "sites")}
    for seed in (7, 8):
        _, test = open_dataset(data | {"split_seed": seed})
        for site, own in enumerate(test.list_domains()):
            alone = {"format": "csv", "path": str(tmp_path / "sites" / f"{site}.csv")}
            assert list_rows(own) == list_rows(open_both(alone, Sides(derive_key(seed, "split", site)))[1])
    assert len({open_dataset(data | {"split_seed": seed})[1].sha256 for seed in (7, 7, 8)}) == 2
    with pytest.raises(DataError, match=r"data.split_seed: data.format csv has no domains, got 7"):
        open_dataset(alone | {"split_seed": 7})
    with pytest.raises(DataError, match=r"data.split_seed: expected a whole number, got True"):
        open_dataset(data | {"split_seed": True})


@pytest.mark.parametrize("sides", [None, Sides(SEED)], ids=["dealt out", "a site's own"])
def test_domains_that_are_tables_have_groups(tmp_path: Path, sides: Sides | None) -> None:
    for site in range(2):
        rows = [f"p{i // 4},{100 * site + i // 4},{i},{'bm'[i // 4 % 2]}" for i in range(120)]
        write(tmp_path / f"{site}.csv", rows, GROUPED)
    data: dict[str, Any] = {"format": "domains", "path": str(tmp_path), "group": "patient"}
    train, test = open_dataset(data, sides=sides)
    patients = [{int(row[0]) for row in list_rows(part)} for part in (train, test)]
    assert train.features == ("a", "b")
    assert not patients[0] & patients[1]
    assert len(test) == 48
    with pytest.raises(DataError, match=r"data.test: expected none with data.format domains"):
        open_dataset(data | {"test": str(tmp_path)})


def test_domains_that_are_tables_have_a_given_split(tmp_path: Path) -> None:
    for site in range(2):
        rows = [f"{('train', 'test')[i % 2]},{100 * site + i},{'bm'[i // 2 % 2]}" for i in range(40)]
        write(tmp_path / f"{site}.csv", rows, "fold,a,label")
    train, test = open_dataset({"format": "domains", "path": str(tmp_path), "split": "fold"})
    assert train.features == ("a",)
    assert {row[0] % 2 for row in list_rows(train)} == {0}
    assert {row[0] % 2 for row in list_rows(test)} == {1}


def test_a_column_gives_the_split(tmp_path: Path) -> None:
    rows = [f"{i},{('train', 'Test', 'val ')[i % 3]},{'bm'[i % 2]}" for i in range(30)]
    train, test = open_both(write(tmp_path / "a.csv", rows, "a,fold,label") | {"split": "fold"}, Sides(SEED))
    assert train.features == ("a",)
    assert train.is_val is not None
    assert (train.x.reshape(-1)[~train.is_val] % 3 == 0).all()
    assert (train.x.reshape(-1)[train.is_val] % 3 == 2).all()
    assert {row[0] % 3 for row in list_rows(test)} == {1}


def test_groups_on_both_sides_of_a_given_split_are_told(tmp_path: Path) -> None:
    rows = [f"p{i // 2},{i},{('train', 'test')[i % 2]},{'bm'[i // 2 % 2]}" for i in range(20)]
    data = write(tmp_path / "a.csv", rows, "patient,a,fold,label") | {"split": "fold", "group": "patient"}
    [note] = open_both(data, Sides(SEED))[0].notes
    assert note.level == "warning"
    assert note.text == "10 groups are on both sides of the split that the data give"


def test_a_path_gives_the_test_samples(tmp_path: Path) -> None:
    data = write(tmp_path / "a.csv", make_rows(20)) | {"test": write(tmp_path / "b.csv", ["7,8,m", "8,9,b"])["path"]}
    train, test = open_both(data, Sides(SEED))
    assert len(train) == 20
    assert list_rows(test) == {(7.0, 8.0), (8.0, 9.0)}
    assert train.classes == test.classes == ("b", "m")
    assert test.split == "test"


def test_classes_of_images_elsewhere_are_matched_by_name(tmp_path: Path) -> None:
    data = save_images(tmp_path / "a", ["cat/1.png", "eel/2.png", "eel/3.png"])
    data["test"] = save_images(tmp_path / "b", ["dog/1.png", "eel/2.png"])["path"]
    train, test = open_dataset(data)
    assert train.classes == test.classes == ("cat", "dog", "eel")
    assert (train.y.tolist(), test.y.tolist()) == ([0, 2, 2], [1, 2])


def test_a_class_of_which_little_is_held_out_is_told(tmp_path: Path) -> None:
    rows = [f"{i},{i},{'m' if i < 10 else 'b'}" for i in range(100)]
    [note] = open_both(write(tmp_path / "a.csv", rows), Sides(SEED))[0].notes
    assert note.text == "too few are held out to measure a class by: m 2 of 10"


def test_the_last_group_of_a_class_trains(tmp_path: Path) -> None:
    rows = [f"p{i % 5},{i},{'m' if i % 5 == 0 else 'b'}" for i in range(50)]
    train, test = open_both(write(tmp_path / "a.csv", rows, "p,a,label") | {"group": "p"}, Sides(SEED))
    assert train.count_classes().tolist() == [30, 10]
    assert test.count_classes().tolist() == [10, 0]


def test_a_site_that_trained_before_keeps_its_split(tmp_path: Path) -> None:
    data = write(tmp_path / "a.csv", make_rows())
    before = open_dataset(data)
    train, test = open_both(data, Sides(None))
    assert (train.sha256, test.sha256) == tuple(part.sha256 for part in before)
    with pytest.raises(DataError, match=r"data.held_out: this site has trained by .* fednode data resplit"):
        open_both(data | {"held_out": 0.3}, Sides(None))


def test_other_keys_than_those_of_the_split_are_refused(tmp_path: Path) -> None:
    sides = Sides(SEED)
    data = write(tmp_path / "a.csv", group_rows(), GROUPED) | {"group": "patient"}
    open_both(data, sides)
    assert sides.rule == ("group", "patient")
    with pytest.raises(
        DataError, match="has split its samples by group patient, and is to go by group patient, a: fednode"
    ):
        open_both(data | {"group": ["patient", "a"]}, reopen(sides))


def test_a_new_split_says_what_was_trained_on(tmp_path: Path) -> None:
    data = write(tmp_path / "a.csv", make_rows())
    made = split_anew(data, Sides(None), Sides(SEED))
    assert (made.num_train, made.num_test) == (160, 40)
    old = list_rows(open_both(data, Sides(None))[0])
    new = list_rows(open_both(data, Sides(SEED))[1])
    assert made.trained_on is not None
    assert len(made.trained_on) == len(old & new) > 0
    assert made.trained_on[0].startswith(f"{tmp_path / 'a.csv'}: line ")
    assert split_anew(data, None, Sides(SEED)).trained_on is None


def test_a_new_split_by_groups_knows_rows_by_what_they_were(tmp_path: Path) -> None:
    table = write(tmp_path / "a.csv", group_rows(), GROUPED)
    before = Sides(SEED)
    trained, _ = open_both(table | {"id": "patient"}, before)
    made = split_anew(table | {"group": ["patient", "b"]}, before, Sides(bytes(32)))
    assert made.trained_on is not None
    assert 0 < len(made.trained_on) < made.num_test
    assert len(trained) == 240


def test_rows_with_a_new_category_are_left_out_and_named(tmp_path: Path) -> None:
    columns = [{"name": "a"}, {"name": "sex", "values": ["f", "m"]}]
    wanted = InputFormat.from_mapping({"shape": [3, 1, 1], "columns": columns})
    options: dict[str, Any] = {"shape": wanted.shape, "table": wanted.table}
    rows = [f"{i},{'fm'[i % 2]},{'bm'[i // 2 % 2]}" for i in range(40)]
    data = write(tmp_path / "a.csv", [*rows, "40,x,b"], "a,sex,label")
    train, test = open_both(data, Sides(SEED), **options)
    assert len(train) + len(test) == 40
    assert train.notes[0].level == "warning"
    assert train.notes[0].text == (
        "1 of 41 rows are left out, as a run with input.unknown: other would not: "
        f"{tmp_path / 'a.csv'}: line 42: column 'sex': 'x' is none of f, m"
    )
    with pytest.raises(DataError, match="line 42: column 'sex'"):
        open_dataset(data, **options)  # of what is dealt out nothing is left out
    everywhere = write(tmp_path / "b.csv", [row.replace("f", "x").replace("m", "x") for row in rows], "a,sex,label")
    with pytest.raises(DataError, match="expected one of f, m"):
        open_both(everywhere, Sides(SEED), **options)


def test_a_category_that_differs_by_case_from_one_of_the_run_is_told(tmp_path: Path) -> None:
    columns = [{"name": "a"}, {"name": "sex", "values": ["f", "m"]}]
    rows = [f"{i},{'fm'[i % 2]},{'bm'[i // 2 % 2]}" for i in range(40)]
    data = write(tmp_path / "a.csv", [*rows, "4,M,b"], "a,sex,label")
    for unknown, text in (("refuse", "'M' is none of f, m"), ("other", "column 'sex': 'M' counts as another value")):
        input_ = {"shape": [3 + (unknown == "other"), 1, 1], "columns": columns, "unknown": unknown}
        wanted = InputFormat.from_mapping(input_)
        train, _ = open_both(data, Sides(SEED), shape=wanted.shape, table=wanted.table)
        found = [one.text for one in (*train.notes, *check_columns(train, wanted))]
        assert [one for one in found if one.endswith(f"{text}; 'm' differs by case or blanks only")]


def test_what_is_dealt_out_is_cut_as_it_was(tmp_path: Path) -> None:
    data = write(tmp_path / "a.csv", make_rows())
    _, test = open_dataset(data)
    y = np.array([i % 2 for i in range(ROWS)])
    expected = [tuple(float(np.float32(cell)) for cell in row.split(",")[:2]) for row in make_rows()]
    assert list_rows(test) == {expected[i] for i in np.flatnonzero(choose_held_out(y))}


def test_sides_are_words() -> None:
    assert [side.value for side in Side] == ["train", "test", "val"]
