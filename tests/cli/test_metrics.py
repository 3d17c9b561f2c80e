"""`fednode metrics`: the rounds a node lived through as numbers, for people, for a spreadsheet and for programs."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from chain.store.rows import DATABASE
from chain.store.sqlite import SqliteStore
from node.cli import main
from support.federation.ledgers import make_ledgers

Captured = pytest.CaptureFixture[str]
ROUNDS = 4  # of which the node only caught up with the third


def make_record(number: int) -> dict[str, Any]:
    record: dict[str, Any] = {"accuracy": number / 10, "local_accuracy": number / 20, "train": {"loss": 1 / number}}
    if number == 2:
        record["train"]["extra"] = 7.5
    return record | {"seconds": {"wall": float(number)}, "bytes_sent": {"block": 10, "vote": number}}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("metrics")
    genesis = make_ledgers(path, ROUNDS)
    with SqliteStore.open(path / "node0", genesis) as store:
        for number in (1, 2, 4):
            store.put_round(number, make_record(number))
    with closing(sqlite3.connect(path / "node0" / DATABASE)) as database:
        database.execute("DELETE FROM rounds WHERE height = 3")
        database.commit()
    return path / "node0"


def ask(capsys: Captured, data_dir: Path, *options: str) -> tuple[int, str, str]:
    code = main(["metrics", "--data-dir", str(data_dir), *options])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_rounds_that_were_measured_come_oldest_first(capsys: Captured, data_dir: Path) -> None:
    code, out, _ = ask(capsys, data_dir, "--series", "accuracy,loss", "--json")
    shown = json.loads(out)
    assert (code, shown["series"]) == (0, ["accuracy", "loss"])
    assert [(row["round"], row["accuracy"], row["loss"]) for row in shown["rounds"]] == [
        (1, 0.1, 1.0),
        (2, 0.2, 0.5),
        (4, 0.4, 0.25),
    ]
    assert all(list(row) == ["run", "round", "time", "accuracy", "loss"] for row in shown["rounds"])


def test_csv_has_a_header_and_an_empty_cell_for_what_was_not_measured(capsys: Captured, data_dir: Path) -> None:
    code, out, _ = ask(capsys, data_dir, "--csv", "--series", "bytes_sent,accuracy,train.extra", "--to", "3")
    assert code == 0
    assert [[*row[:2], *row[3:]] for row in csv.reader(io.StringIO(out))] == [
        ["run", "round", "bytes_sent", "accuracy", "train.extra"],
        ["1", "1", "11", "0.1", ""],
        ["1", "2", "12", "0.2", "7.5"],
    ]
    nothing = ask(capsys, data_dir, "--csv", "--series", "accuracy", "--from", "3", "--to", "3")
    assert nothing == (0, "run,round,time,accuracy\n", "")


def test_people_get_a_table(capsys: Captured, data_dir: Path) -> None:
    code, out, _ = ask(capsys, data_dir)
    assert code == 0
    assert out.splitlines()[0].split() == ["ROUND", "ACCURACY", "LOCAL_ACCURACY", "LOSS", "SECONDS.WALL", "BYTES_SENT"]
    assert out.splitlines()[-1].split() == ["4", "0.4000", "0.2000", "0.2500", "4.0000", "14"]


def test_a_series_that_no_round_has_is_a_usage_error_that_lists_them(capsys: Captured, data_dir: Path) -> None:
    code, out, err = ask(capsys, data_dir, "--series", "accurracy")
    assert (code, out) == (2, "")
    assert "no round has 'accurracy'; there are accuracy, local_accuracy, loss" in err
    assert ask(capsys, data_dir, "--csv", "--json")[0] == 2
