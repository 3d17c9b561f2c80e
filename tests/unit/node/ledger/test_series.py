"""Series out of stored rounds: what is picked is what reading the whole would have given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chain.store.sqlite import SqliteStore
from node.errors import InvalidRequest
from node.ledger.metrics_query import MetricsQuery
from node.ledger.reader import Ledger, show_record
from node.ledger.series import Picker, flatten, get_names
from node.pb import admin_pb2 as pb
from support.data.measured_rounds import EACH, make_record, put_measured_rounds
from support.data.synthetic import make_prototype_genesis

ROUNDS = 40


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    genesis, keys = make_prototype_genesis(1, seed=1, difficulty=4)
    with SqliteStore.open(tmp_path_factory.mktemp("series") / "store", genesis) as store:
        put_measured_rounds(store, genesis, keys, ROUNDS)
        yield Ledger(genesis, store)


def ask(ledger: Ledger, **request: Any) -> pb.Metrics:
    query = MetricsQuery(pb.QueryMetricsRequest(**request), ROUNDS)
    for first, last in query.get_pages():
        query.add(ledger.read_series(first, last, query.picker))
    return query.answer(ledger.read_places(query.choose()))


def test_every_series_is_picked_as_reading_the_whole_round_would_give_it(ledger: Ledger) -> None:
    whole = {record.height: flatten(record) for record in ledger.read_rounds(1, ROUNDS)}
    known = ask(ledger).known
    assert set(known) == {name for row in whole.values() for name in row} - {"height", "run", "round", "time"}
    assert {"measures.macro_f1", "measures.sensitivity.3", "train.steps", "seconds.wall"} <= set(known)
    differ = {
        "contributors",
        "votes",
        "payload_bytes",
    }  # the record says otherwise than the block, which nobody trained
    for i in range(0, len(known), 8):
        for point in ask(ledger, series=known[i : i + 8]).rounds:
            expected = whole[point.height]
            assert (point.run, point.round, point.time) == tuple(expected[name] for name in ("run", "round", "time"))
            assert {name: point.values[name] for name in point.values if name not in differ} == {
                name: expected[name] for name in known[i : i + 8] if name not in differ
            }


def test_rounds_of_other_parts_make_their_series_known_too() -> None:
    picker = Picker(["loss", "train.drawn"])
    for height, more in ((1, {}), (2, {"drawn": 3.0}), (3, {"drawn": 5.0})):
        record = make_record(height, 10)
        record["train"] |= more
        assert picker.is_new(record) is (height < 3)
        picker.learn(f"train.{name}" for name in record["train"])
        assert picker.pick(record).get("train.drawn") == more.get("drawn")
    assert "train.drawn" in picker.known


def forget_auc(record: dict[str, Any]) -> None:
    record["measures"] |= {"auc": None}


def forget_auc_of_one(record: dict[str, Any]) -> None:
    record["measures"] |= {"auc": [None, *[0.5] * 9]}


def never_give_two(record: dict[str, Any]) -> None:
    """The first model says of everything that it is a 0."""
    record["measures"]["confusion"] = [[EACH, *[0] * 9] for _ in range(10)]


def call_classes_otherwise(record: dict[str, Any]) -> None:
    record["measures"]["classes"] = [f"old {name}" for name in record["measures"]["classes"]]


def train_otherwise(record: dict[str, Any]) -> None:
    record["train"] = {f"old_{name}": value for name, value in record["train"].items()}


def forget_loss(record: dict[str, Any]) -> None:
    record["train"]["loss"] = None


def measure_alone(record: dict[str, Any]) -> None:
    record["alone"] = {"rounds": 1, "owed_steps": 0, "seconds": 1.0, "measures": record["measures"], "failure": None}


def fail_alone(record: dict[str, Any]) -> None:
    measure_alone(record)
    record["alone"] |= {"measures": None, "failure": "out of memory"}


@pytest.mark.parametrize(
    "change",
    [
        forget_auc,
        forget_auc_of_one,
        never_give_two,
        call_classes_otherwise,
        train_otherwise,
        forget_loss,
        fail_alone,
    ],
)
def test_all_series_are_known_where_the_first_record_has_others(change: Callable[[dict[str, Any]], None]) -> None:
    first, second = make_record(1, 10), make_record(2, 10)
    for record in (first, second):
        measure_alone(record)
    change(first)
    picker = Picker(["loss"])
    rows = [flatten(show_record(record)) for record in (first, second)]
    for record, row in zip((first, second), rows, strict=True):
        if picker.is_new(record):
            picker.learn(row)
    assert set(picker.known) == {*get_names(rows[0]), *get_names(rows[1])}
    assert not any(picker.is_new(record) for record in (first, second))


def test_of_an_old_or_poor_record_the_rest_is_picked() -> None:
    picker = Picker(["accuracy", "loss", "bytes_sent", "seconds.wall", "measures.accuracy", "alone.accuracy"])
    assert picker.pick({"accuracy": 0.5, "train": None, "measures": None}) == {"accuracy": 0.5, "bytes_sent": 0}


def test_a_series_of_no_round_is_refused_by_name(ledger: Ledger) -> None:
    with pytest.raises(InvalidRequest, match=r"no round has .alone\.accuracy."):
        ask(ledger, series=["accuracy", "alone.accuracy"])
