"""A site's split is kept in its data directory: a start finds it again, or says why it cannot."""

from __future__ import annotations

import json
import shutil
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ml.data import open_dataset
from ml.data.base import ArrayDataset
from ml.data.split import PUBLIC_SEED, Side, Sides
from ml.errors import DataError
from node.training.data_watch import DATA_FILE, DataWatch
from node.training.own_split import SEED_FILE, SPLIT_FILE, OwnSplit, open_own_sides


def write(path: Path, num_rows: int = 40) -> dict[str, Any]:
    rows = [f"{i},{i % 7},{'bm'[i % 2]}" for i in range(num_rows)]
    path.write_text("\n".join(["a,b,label", *rows]) + "\n", encoding="utf-8")
    return {"format": "csv", "path": str(path)}


def start(data_dir: Path, data: dict[str, Any]) -> tuple[ArrayDataset, ArrayDataset]:
    """As a worker does."""
    sides = open_own_sides(data_dir, data, makes_seed=True)
    assert sides is not None
    split = open_dataset(data, sides=sides)
    OwnSplit(data_dir).write(sides)
    return split


def read_a(part: ArrayDataset) -> set[int]:
    return set(part.x[:, 0, 0, 0].astype(int).tolist())


def test_a_first_start_makes_a_secret_and_later_ones_find_the_same_sides(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    train, test = start(data_dir, write(tmp_path / "a.csv"))
    for name in (SEED_FILE, SPLIT_FILE):
        assert stat.S_IMODE((data_dir / name).stat().st_mode) == 0o600
    grown_train, grown_test = start(data_dir, write(tmp_path / "a.csv", 60))
    assert read_a(test) <= read_a(grown_test)
    assert read_a(train) <= read_a(grown_train)
    assert len(grown_train) + len(grown_test) == 60
    written = (data_dir / SPLIT_FILE).stat().st_mtime_ns
    start(data_dir, write(tmp_path / "a.csv", 60))
    assert (data_dir / SPLIT_FILE).stat().st_mtime_ns == written  # nothing new to keep


def test_two_sites_have_secrets_of_their_own(tmp_path: Path) -> None:
    seeds = []
    for name in ("one", "two"):
        start(tmp_path / name, write(tmp_path / "a.csv"))
        seeds.append((tmp_path / name / SEED_FILE).read_text())
    assert seeds[0] != seeds[1]
    assert all(len(bytes.fromhex(seed)) == 32 for seed in seeds)


def test_rows_that_are_gone_keep_their_sides(tmp_path: Path) -> None:
    _, test = start(tmp_path / "data", write(tmp_path / "a.csv"))
    start(tmp_path / "data", write(tmp_path / "a.csv", 10))
    assert read_a(start(tmp_path / "data", write(tmp_path / "a.csv"))[1]) == read_a(test)


def train(data_dir: Path) -> None:
    (data_dir / "checkpoints/run-1").mkdir(parents=True)
    (data_dir / "checkpoints/run-1/applied.safetensors").write_bytes(b"a model")


@pytest.mark.parametrize("name", [SEED_FILE, SPLIT_FILE])
def test_of_a_split_that_is_half_gone_nothing_is_made_anew(tmp_path: Path, name: str) -> None:
    data = write(tmp_path / "a.csv")
    start(tmp_path / "data", data)
    train(tmp_path / "data")
    (tmp_path / "data" / name).unlink()
    with pytest.raises(DataError, match=rf"{name}: no such file, .*from a backup, or .*fednode data resplit"):
        start(tmp_path / "data", data)
    assert not (tmp_path / "data" / name).exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (SEED_FILE, b"00\n"),
        (SEED_FILE, b"no secret"),
        (SEED_FILE, b"\xff"),
        (SPLIT_FILE, b"{"),
        (SPLIT_FILE, b"[]"),
        (SPLIT_FILE, b'{"format": 2}'),
        (SPLIT_FILE, b'{"format": 1, "rule": [], "columns": null, "train": "", "test": "", "val": ""}'),
        (SPLIT_FILE, b'{"format": 1, "rule": ["content"], "train": "AAAA", "test": "", "val": ""}'),
        (SPLIT_FILE, b'{"format": 1, "rule": ["content"], "train": "?", "test": "", "val": ""}'),
        (SPLIT_FILE, b'{"format": 1, "rule": ["content"], "train": ""}'),
    ],
)
def test_what_is_damaged_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    data = write(tmp_path / "a.csv")
    start(tmp_path / "data", data)
    (tmp_path / "data" / name).write_bytes(content)
    with pytest.raises(DataError, match=f"{name}: .* damaged"):
        start(tmp_path / "data", data)


def test_a_directory_that_has_trained_keeps_its_split(tmp_path: Path) -> None:
    data = write(tmp_path / "a.csv")
    train(tmp_path / "data")
    own, test = start(tmp_path / "data", data)
    assert (own.sha256, test.sha256) == tuple(part.sha256 for part in open_dataset(data))
    assert not (tmp_path / "data" / SEED_FILE).exists()


def test_a_look_before_the_first_start_leaves_nothing(tmp_path: Path) -> None:
    sides = OwnSplit(tmp_path / "data").open()
    assert (sides.seed, sides.known) == (PUBLIC_SEED, {})
    assert not (tmp_path / "data").exists()
    assert open_own_sides(tmp_path / "data", {"partition": {"scheme": "iid"}}) is None


def test_another_split_takes_the_place_of_what_was_kept(tmp_path: Path) -> None:
    own = OwnSplit(tmp_path / "data")
    own.replace(Sides(bytes(32), {bytes(16): Side.TEST}, ("group", "patient")))
    own.replace(Sides(b"1" * 32, {bytes(15) + b"1": Side.VAL}, ("id", "visit"), ("a", "b")))
    again = own.open()
    assert (again.seed, again.known) == (b"1" * 32, {bytes(15) + b"1": Side.VAL})
    assert (again.rule, again.columns) == (("id", "visit"), ("a", "b"))


def test_no_key_is_kept_that_names_anybody(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["patient,a,label", *(f"person-{i},{i},{'bm'[i % 2]}" for i in range(40))]) + "\n")
    start(tmp_path / "data", {"format": "csv", "path": str(path), "group": "patient"})
    kept = json.loads((tmp_path / "data" / SPLIT_FILE).read_text())
    assert kept["rule"] == ["group", "patient"]
    assert "person" not in json.dumps(kept)
    assert [len(kept[side]) > 0 for side in ("train", "test", "val")] == [True, True, False]


# ---- what has changed


TERMS: dict[str, Any] = {"input": {"shape": [2, 1, 1]}}


def watch(data_dir: Path, data: dict[str, Any], terms: dict[str, Any] = TERMS) -> DataWatch:
    made = DataWatch(data_dir, data, terms)
    made.on_read(*start(data_dir, data))
    return made


def test_data_that_have_grown_since_a_round_are_told_until_they_are_trained_on(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    first = watch(data_dir, write(tmp_path / "a.csv", 200))
    assert first.describe(0) is None
    first.keep()
    assert watch(data_dir, write(tmp_path / "a.csv", 200)).describe(20) is None
    data = write(tmp_path / "a.csv", 203)
    held_out = len(open_dataset(data, sides=open_own_sides(data_dir, data))[1]) - 40
    more = f", {held_out} more held out" if held_out else ""
    for _ in range(2):
        grown = watch(data_dir, data)
        assert grown.describe(20) == f"your data differ from round 20: 200 -> 203 rows{more}"
    grown.keep()
    assert watch(data_dir, data).describe(21) is None
    assert stat.S_IMODE((data_dir / DATA_FILE).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("header", "row", "told"),
    [
        ("a,b,label", "7,7,b", "39 -> 40 rows"),
        ("a,c,label", "7,7,b", "39 -> 40 rows, columns +c -b"),
        ("b,a,label", "7,7,b", "39 -> 40 rows, columns in another order"),
        ("a,b,label", None, "39 rows as before, with other values or in another order"),
    ],
)
def test_what_has_changed_is_named(tmp_path: Path, header: str, row: str | None, told: str) -> None:
    rows = [f"{i},{i},{'bm'[i % 2]}" for i in range(39)]
    path = tmp_path / "a.csv"

    def save(header: str, rows: list[str]) -> dict[str, Any]:
        path.write_text("\n".join([header, *rows]) + "\n")
        return {"format": "csv", "path": str(path), "id": header.split(",")[0], "classes": None}

    given = save("n,a,b,label", [f"{i},{own}" for i, own in enumerate(rows)])
    first = watch(tmp_path / "data", given)
    first.keep()
    changed = [*rows, row] if row is not None else ["38.5,38.5,b", *rows[1:]]
    later = save(f"n,{header}", [f"{i},{own}" for i, own in enumerate(changed)])
    described = watch(tmp_path / "data", later).describe(3)
    assert described is not None
    assert described.replace(", 1 more held out", "") == f"your data differ from round 3: {told}"


def test_another_run_makes_other_samples_of_the_same_data(tmp_path: Path) -> None:
    first = watch(tmp_path / "data", write(tmp_path / "a.csv"))
    first.keep()
    table = write(tmp_path / "a.csv")
    narrow = DataWatch(tmp_path / "data", table, {"input": {"shape": [1, 1, 1]}})
    train, test = start(tmp_path / "data", table)
    narrow.on_read(replace(train, x=train.x[:, :1], features=("a",)), replace(test, x=test.x[:, :1], features=("a",)))
    assert narrow.describe(3) is None
    grown = watch(tmp_path / "data", write(tmp_path / "a.csv", 41), {"input": {"shape": [9, 1, 1]}}).describe(3)
    assert grown is not None
    assert grown.startswith("your data differ from round 3: 40 -> 41 rows")


def test_files_that_change_after_they_were_read_are_told_once(tmp_path: Path) -> None:
    seen = watch(tmp_path / "data", write(tmp_path / "a.csv"))
    assert seen.look_again() is None
    write(tmp_path / "a.csv", 41)
    assert seen.look_again() == (
        "the files of your data have changed; training goes on with what was read, until the next start"
    )
    assert seen.look_again() is None


def test_a_directory_that_changes_below_is_told(tmp_path: Path) -> None:
    (tmp_path / "scans/cat/p1").mkdir(parents=True)
    (tmp_path / "scans/cat/p1/1.png").write_bytes(b"")
    seen = DataWatch(tmp_path / "data", {"path": str(tmp_path / "scans")}, TERMS)
    assert seen.look_again() is None
    (tmp_path / "scans/cat/p1/2.png").write_bytes(b"")
    assert seen.look_again() is not None
    shutil.rmtree(tmp_path / "scans")
    assert seen.look_again() is not None


def test_a_damaged_note_of_what_was_trained_on_costs_nothing_but_the_news(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for content in (b"{", b"[]", b'{"format": 1}', b'{"format": 9}'):
        (tmp_path / "data" / DATA_FILE).write_bytes(content)
        assert watch(tmp_path / "data", write(tmp_path / "a.csv")).describe(3) is None
