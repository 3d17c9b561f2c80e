"""Numbers that are not finite: null in what is written down and answered, nothing where a gauge would be."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from chain.store.sqlite import SqliteStore
from node.cli.output import print_json
from node.consensus.record.record import RoundRecord
from node.finite import to_finite
from node.ledger.reader import Ledger
from support.data.chains import make_chain, make_genesis, make_keys

KEYS = make_keys(4)
GENESIS = make_genesis(KEYS)


def test_every_float_that_is_not_finite_becomes_none_and_all_else_stays() -> None:
    value = {"a": math.nan, "b": [1, -math.inf, ("x", math.inf)], "c": {"d": 0.5, "e": None}, "f": True, "g": 2**70}
    assert to_finite(value) == {
        "a": None,
        "b": [1, None, ["x", None]],
        "c": {"d": 0.5, "e": None},
        "f": True,
        "g": 2**70,
    }
    assert to_finite(math.nan) is None
    assert to_finite(-0.0) == 0


def make_record(**changes: Any) -> dict[str, Any]:
    record = RoundRecord(1, 0.0, {})
    for name, value in changes.items():
        setattr(record, name, value)
    return record.to_mapping()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_record_is_json_whatever_was_measured(value: float) -> None:
    measured = {"accuracy": value, "loss": value, "steps": 20}
    record = make_record(train=measured, applied=measured)
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    for group in ("train", "apply"):
        assert record[group] == {"accuracy": None, "loss": None, "steps": 20}
    assert (record["accuracy"], record["local_accuracy"]) == (None, None)


def test_a_record_with_nulls_is_kept_and_shown_without_them(tmp_path: Any) -> None:
    (pair,) = make_chain(GENESIS, KEYS, 1)
    record = make_record(train={"loss": math.nan, "steps": 20}, applied={"accuracy": math.nan, "loss": 0.5})
    with SqliteStore.open(tmp_path, GENESIS) as store:
        store.append(*pair)
        store.put_round(1, record | {"spoiled": "why"})
        assert store.get_round(1) == record | {"spoiled": "why"}
        shown = Ledger(GENESIS, store).get_round(1)
    assert dict(shown.train) == {"steps": 20}
    assert dict(shown.apply) == {"loss": 0.5}
    assert not shown.HasField("accuracy")
    assert shown.spoiled == "why"
    assert not shown.HasField("went_back")


def test_what_a_command_prints_as_json_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"tal": math.nan, "rounds": [{"tal": math.inf}]})
    assert capsys.readouterr().out == '{"tal": null, "rounds": [{"tal": null}]}\n'
