"""The terms of the next run on top of those in force: classes and the labels that mean them go together."""

from __future__ import annotations

from pathlib import Path

import pytest

from chain.changes.base import Place
from chain.signing import encode_id
from chain.state import State
from node.config.genesis_draft import GenesisSpec, complete_genesis, draft_genesis, make_genesis
from node.federation.run_terms import draft_run
from support.data.chains import make_keys


@pytest.fixture(scope="module")
def state() -> State:
    spec = GenesisSpec(method="fedavg", classes=("no", "yes"), input_shape=(3, 1, 1), settings=("model.hidden=[4]",))
    members = [{"key": encode_id(key.id), "name": f"node{i}"} for i, key in enumerate(make_keys(3))]
    genesis, _, _ = complete_genesis(draft_genesis(spec)[0], members, spec)
    return genesis.state


def test_labels_of_classes_stay_with_them_and_go_with_them(state: State) -> None:
    asked = draft_run(state, {}, ("classes={no: [0], yes: [1, 2]}",), 3)
    assert (asked.terms["classes"], asked.terms["labels"]) == (["no", "yes"], {"no": ["0"], "yes": ["1", "2"]})
    after = asked.apply(state, Place(5, b"\1" * 32))
    assert after.run.labels == asked.terms["labels"]
    assert draft_run(after, {}, (), 3).terms["labels"] == asked.terms["labels"]
    other = draft_run(after, {}, ("classes=[well, ill]",), 3)
    assert (other.terms["classes"], "labels" in other.terms) == (["well", "ill"], False)


def test_a_later_run_may_fill_empty_cells_by_an_agreed_mean(state: State) -> None:
    asked = draft_run(state, {}, ("input.missing=mean", "input.normalize=agreed"), 3)
    assert asked.terms["input"]["missing"] == "mean"
    assert "present" in asked.terms["schema"]["rounds"]["1"]["statistics"]["arrays"]


def test_a_method_and_a_model_that_are_called_auto_are_those_of_a_genesis(state: State, tmp_path: Path) -> None:
    spec = GenesisSpec(method="auto", model="auto", classes=("no", "yes"), input_shape=(3, 1, 1))
    members = [{"key": encode_id(key.id), "name": f"node{i}"} for i, key in enumerate(make_keys(3))]
    genesis, _ = make_genesis(tmp_path / "genesis.yaml", members, spec)
    asked = draft_run(state, {}, ("method.name=auto", "model.name=auto"), 3).terms
    assert (asked["method"], asked["model"]) == (genesis.run.method, genesis.run.model)
    assert (asked["method"]["name"], asked["method"]["optimizer"]) == ("fedavg", "adamw")  # not the run's in force
    asked = draft_run(state, {"method": {"name": "auto"}}, ("lr=0.002",), 3).terms
    assert (asked["method"]["lr"], asked["model"]) == (0.002, state.run.model)
