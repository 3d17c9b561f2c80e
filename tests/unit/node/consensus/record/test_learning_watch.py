"""The watch over what a model learns."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from chain.calendar import Place
from chain.store.sqlite import SqliteStore
from ml.measures.signs import Losses
from node.consensus.record.learning_watch import PATIENCE, LearningWatch
from support.data.chains import make_genesis, make_keys

ONE = {"one_class": "all 57 test samples are called benign, of which 36 are"}


def make_record(signs: Mapping[str, str] = ONE, run: int = 1) -> dict[str, Any]:
    return {"run": run, "signs": dict(signs)}


def test_a_sign_lasts_once_it_has_shown_in_some_rounds_in_a_row(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    watch = LearningWatch()
    for _ in range(PATIENCE - 1):
        watch.observe(make_record())
    assert watch.lasting == {}
    for _ in range(3):
        watch.observe(make_record())
    assert watch.lasting == ONE
    watch.observe(make_record({}))
    assert watch.lasting == {}
    warned = [record.levelname for record in caplog.records]
    assert warned == ["WARNING", "INFO"]  # once each
    assert ONE["one_class"] in caplog.records[0].getMessage()


def test_what_comes_and_goes_or_belongs_to_another_run_does_not_last() -> None:
    watch = LearningWatch()
    for signs in (ONE, ONE, {}, ONE, ONE):
        watch.observe(make_record(signs))
    assert watch.lasting == {}
    watch.observe(make_record(run=2))
    watch.observe(make_record(run=2))
    assert watch.lasting == {}
    watch.observe(make_record(run=2))
    assert watch.lasting == ONE


def test_a_restarted_node_goes_on_from_its_records(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path, make_genesis(make_keys(4)))
    for height in range(1, 6):
        store.put_round(height, make_record() if height > 2 else {"run": 1})  # of an older release
    assert LearningWatch.load(store, 5).lasting == ONE
    assert LearningWatch.load(store, 4).lasting == {}
    assert LearningWatch.load(store, 0).lasting == {}
    store.close()


def test_a_change_between_rounds_does_not_shorten_what_lasts_over_a_restart(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path, make_genesis(make_keys(4)))
    for height in (1, 2, 4):  # a change took height 3
        store.put_round(height, make_record())
    assert LearningWatch.load(store, 4).lasting == ONE
    assert LearningWatch.load(store, 3).lasting == {}
    store.close()


def test_what_is_no_alarm_does_not_last(caplog: pytest.LogCaptureFixture) -> None:
    watch = LearningWatch()
    for _ in range(PATIENCE):
        watch.observe(make_record({"behind": "accuracy 0.9 is no better than 0.92", "few": "9 are too few"}))
    assert watch.lasting == {}
    assert not caplog.records


def test_a_model_that_learns_and_shows_a_sign_is_not_said_not_to_learn(caplog: pytest.LogCaptureFixture) -> None:
    watch, text = LearningWatch(), "it overfits"
    for _ in range(PATIENCE):
        watch.observe(make_record({**ONE, "overfitting": text}))
    assert watch.not_learned == [ONE["one_class"]]
    assert watch.others == [text]
    assert [record.getMessage() for record in caplog.records if text in record.getMessage()] == [
        "the model of this site shows a sign, for 3 rounds now: it overfits"
    ]


def make_losses(number: int, run: int = 1) -> dict[str, Any]:
    return {"run": run, "round": number, "train": {"loss": 1 / number}, "apply": {"val_loss": 0.5, "loss": 0.6}}


def test_the_losses_of_a_run_are_kept_over_a_restart_and_forgotten_with_it(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path, make_genesis(make_keys(4)))
    for height in range(1, 6):
        store.put_round(height, make_losses(height))
    watch = LearningWatch.load(store, 5)
    store.close()
    own = {"loss": 0.1}, {"val_loss": 0.7}
    assert [one.round for one in watch.list_losses(Place(1, 6), *own)] == [1, 2, 3, 4, 5, 6]
    assert watch.list_losses(Place(1, 6), *own)[-1] == Losses(6, 0.1, 0.7, None)
    assert watch.list_losses(Place(2, 1), *own) == [Losses(1, 0.1, 0.7, None)]
    watch.observe(make_losses(1, run=2))
    assert [one.round for one in watch.list_losses(Place(2, 2), *own)] == [1, 2]
