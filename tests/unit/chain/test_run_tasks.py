"""The task of a run in genesis and in changes: written where it is set, and refused where it makes no sense."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from chain.changes.base import Place
from chain.changes.runs import StartRun
from chain.errors import GenesisError, InvalidChange
from chain.genesis import Genesis
from chain.run import Run
from chain.schema import Section
from support.data.chains import make_genesis, make_genesis_mapping, make_keys

KEYS = make_keys(4)
TARGETS = {"classes": ["glucose", "iron"], "task": "regression", "target": {"mean": [5, 0.1], "std": [2, 0.05]}}


def read(**terms: Any) -> Genesis:
    return Genesis.from_mapping(make_genesis_mapping(KEYS, **terms))


def test_a_classification_is_not_written_so_that_older_chains_keep_their_ids() -> None:
    plain = make_genesis(KEYS)
    assert plain.run.task == "classification"
    assert not {"task", "target"} & set(json.loads(plain.canonical))
    assert read(task="classification").chain_id == plain.chain_id
    assert read(task="classification", target=None).chain_id == plain.chain_id


def test_another_task_is_hashed_and_comes_back() -> None:
    genesis = read(**TARGETS)
    assert (genesis.run.task, genesis.run.target) == ("regression", {"mean": [5.0, 0.1], "std": [2.0, 0.05]})
    assert genesis.chain_id != read(**TARGETS | {"target": None}).chain_id
    assert Genesis.from_mapping(genesis.to_mapping()) == genesis
    assert Run.from_mapping(genesis.run.to_mapping()) == genesis.run


@pytest.mark.parametrize(
    ("terms", "path", "problem"),
    [
        ({"task": "ranking"}, "task", "expected one of classification, multilabel, regression, got 'ranking'"),
        ({"task": 3}, "task", "expected text"),
        ({"target": {"mean": [0], "std": [1]}}, "target", "expected none for task 'classification'"),
        (TARGETS | {"target": {"mean": [0], "std": [1, 1]}}, "target.mean", "expected 2, one for each target, got 1"),
        (TARGETS | {"target": {"mean": [0, 0], "std": [1, 0]}}, r"target.std\[1\]", "expected more than 0, got 0"),
        (TARGETS | {"target": {"mean": [0, 0], "std": [1, -1]}}, r"target.std\[1\]", "expected more than 0, got -1"),
        (TARGETS | {"target": {"mean": [0, "x"], "std": [1, 1]}}, r"target.mean\[1\]", "expected a finite number"),
        (TARGETS | {"target": {"mean": [0, float("nan")], "std": [1, 1]}}, r"target.mean\[1\]", "finite number"),
        (TARGETS | {"target": {"mean": [0, 0]}}, "target.std", "is missing"),
        (TARGETS | {"target": {"mean": [0, 0], "std": [1, 1], "max": 3}}, "target.max", "unknown key"),
        (TARGETS | {"target": [1, 2]}, "target", "expected a mapping"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(terms: dict[str, Any], path: str, problem: str) -> None:
    with pytest.raises(GenesisError, match=f"{path}.*{problem}"):
        read(**terms)


SITES = {"shape": [4, 1, 1], "resize": None, "mean": [0.0], "std": [1.0]}
SEXES = [{"name": "age"}, {"name": "sex", "values": ["f", "m"]}, {"name": "dose"}]


def test_columns_of_tables_are_hashed_where_they_are_set() -> None:
    plain = read(input=SITES)
    assert read(input={**SITES, "missing": "refuse", "unknown": "refuse", "columns": None}).chain_id == plain.chain_id
    genesis = read(input={**SITES, "columns": SEXES, "missing": "mean"})
    assert genesis.run.input == {**SITES, "columns": SEXES, "missing": "mean"}
    assert genesis.chain_id != plain.chain_id
    assert Genesis.from_mapping(genesis.to_mapping()) == genesis


@pytest.mark.parametrize(
    ("input_", "problem"),
    [
        ({"columns": SEXES[:2]}, "input.columns.*expected 4 features, as in shape, got 3"),
        ({"columns": SEXES, "unknown": "other"}, "input.columns.*expected 4 features, as in shape, got 5"),
        ({"columns": [SEXES[0]] * 4}, "expected each name once"),
        ({"columns": [{"name": "a", "values": ["x", "x"]}]}, "expected each name once"),
        ({"columns": [{"name": "a", "values": []}]}, "expected at least one"),
        ({"columns": []}, "expected at least one"),
        ({"columns": [{"name": "a", "kind": "text"}]}, "unknown key"),
        ({"columns": [{"name": 3}]}, "expected text"),
        ({"columns": "auto"}, "expected a list"),
        ({"missing": "guess"}, "input.missing.*expected one of mean, mean.flag, zero"),
        ({"unknown": 1}, "input.unknown.*expected text"),
        ({"missing": "zero", "shape": [1, 8, 8]}, "input.missing.*expected none for images"),
    ],
)
def test_columns_that_cannot_be_are_refused(input_: dict[str, Any], problem: str) -> None:
    with pytest.raises(GenesisError, match=problem):
        read(input={**SITES, **input_})


AGREED = {"shape": [4, 1, 1], "resize": None, "normalize": "agreed", "min_count": 5}
FLAGGED = {**AGREED, "shape": [7, 1, 1], "columns": SEXES, "missing": "mean+flag"}
LATER: list[dict[str, Any]] = [
    {"input": {**AGREED, "columns": SEXES, "missing": "mean"}},
    {"input": FLAGGED},
    {"input": {**SITES, "columns": SEXES, "empty": ["?", "-9"]}},
    {"labels": {"c0": ["0"], "c1": ["1", "2"]}, "classes": ["c0", "c1"]},
]


def test_correlations_need_the_protocol_that_knows_them() -> None:
    with pytest.raises(GenesisError, match="protocol: expected 5 for such a run, got 4"):
        read(protocol=4, input={**AGREED, "correlations": True})
    assert read(protocol=5, input={**AGREED, "correlations": True}).run.first_protocol == 5


def test_a_column_with_empty_cells_of_its_own_needs_the_protocol_that_knows_them() -> None:
    def make(empty: list[str]) -> dict[str, Any]:
        return {**SITES, "columns": [*SEXES[:2], {"name": "dose", "empty": empty}], "missing": "zero"}

    input_ = make(["0", "?"])
    with pytest.raises(GenesisError, match="protocol: expected 5 for such a run, got 4"):
        read(protocol=4, input=input_)
    genesis = read(protocol=5, input=input_)
    assert genesis.run.input == input_
    assert Genesis.from_mapping(genesis.to_mapping()) == genesis
    with pytest.raises(GenesisError, match=r"input.columns\[2\].empty.*expected each"):
        read(protocol=5, input=make(["?", "?"]))


@pytest.mark.parametrize("terms", LATER)
def test_what_only_a_later_protocol_knows_is_refused_under_an_earlier_one(terms: dict[str, Any]) -> None:
    for protocol in (2, 3):
        with pytest.raises(GenesisError, match=f"protocol: expected 4 for such a run, got {protocol}"):
            read(protocol=protocol, **terms)
    genesis = read(protocol=4, **terms)
    assert Genesis.from_mapping(genesis.to_mapping()) == genesis
    assert Run.from_mapping(json.loads(json.dumps(genesis.run.to_mapping(), sort_keys=True))) == genesis.run
    state = make_genesis(KEYS).state
    with pytest.raises(InvalidChange, match="run: needs protocol 4, to which an upgrade leads; in force is 3"):
        start(**terms).apply(replace(state, protocol=3), Place(5, bytes(32)))
    after = start(**terms).apply(replace(state, protocol=4), Place(5, bytes(32)))
    assert after.run.input == genesis.run.input
    assert after.run.labels == genesis.run.labels


@pytest.mark.parametrize(
    ("input_", "problem"),
    [
        ({**FLAGGED, "shape": [4, 1, 1]}, "input.columns.*expected 4 features, as in shape, got 7"),
        ({**AGREED, "empty": []}, "input.empty.*expected 1 to 32, got 0"),
        ({**AGREED, "empty": ["?", "?"]}, "input.empty.*expected each"),
        ({**AGREED, "empty": [""]}, r"input.empty\[0\].*expected 1 to 64 printable"),
        ({**AGREED, "empty": [0]}, r"input.empty\[0\].*expected text"),
        ({**AGREED, "empty": [f"{i}" for i in range(33)]}, "input.empty.*expected 1 to 32, got 33"),
    ],
)
def test_empty_cells_that_cannot_be_are_refused(input_: dict[str, Any], problem: str) -> None:
    with pytest.raises(GenesisError, match=problem):
        read(protocol=4, input=input_)


def test_classes_may_be_given_with_the_labels_that_mean_them_and_keep_their_order() -> None:
    genesis = read(protocol=4, classes={"yes": [1, 2], "no": [0, "none"]})
    assert genesis.run.classes == ("yes", "no")
    assert genesis.run.labels == {"yes": ["1", "2"], "no": ["0", "none"]}
    beside = read(protocol=4, classes=["yes", "no"], labels={"no": [0, "none"], "yes": [1, 2]})
    assert beside.chain_id == genesis.chain_id
    assert json.loads(genesis.canonical)["classes"] == ["yes", "no"]


@pytest.mark.parametrize(
    ("terms", "problem"),
    [
        ({"classes": {"no": [0], "yes": [0, 1]}}, "classes.*expected each"),
        ({"classes": {"no": [0], "yes": []}}, "classes.yes.*expected a list of labels"),
        ({"classes": {"no": [0], "yes": [1.5]}}, r"classes.yes\[0\].*expected text or a whole number"),
        ({"classes": {"no": [0], "yes": [True]}}, r"classes.yes\[0\].*expected text or a whole number"),
        ({"classes": {"no": [0]}, "labels": {"no": [0]}}, "labels.*expected none beside classes"),
        ({"classes": ["no", "yes"], "labels": {"no": [0]}}, "labels.*expected the labels of no, yes, got those of no"),
        ({"classes": {"no": [0], "yes": [1]}, "task": "multilabel"}, "classes.*expected none for task 'multilabel'"),
    ],
)
def test_labels_that_mean_no_class_or_two_are_refused(terms: dict[str, Any], problem: str) -> None:
    with pytest.raises(GenesisError, match=problem):
        read(protocol=4, **terms)


def start(**terms: Any) -> StartRun:
    run = make_genesis(KEYS).state.run.to_terms()
    run = {name: value for name, value in run.items() if name != "initial_model"} | {"number": 2} | terms
    return StartRun.read(Section("", {"run": run, "initial": "ab" * 32}, ("run", "initial")))


def test_a_change_starts_a_run_of_another_task_and_the_next_one_returns() -> None:
    state = make_genesis(KEYS).state
    begun = start(**TARGETS)
    assert StartRun.read(Section("", begun.to_terms(), ("run", "initial"))) == begun
    after = begun.apply(state, Place(5, bytes(32)))
    assert (after.run.task, after.run.target) == ("regression", {"mean": [5.0, 0.1], "std": [2.0, 0.05]})
    assert "task" not in start(task="classification").terms
    assert replace(start(), number=3).apply(after, Place(9, bytes(32))).run.task == "classification"
