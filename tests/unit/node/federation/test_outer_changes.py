"""Runs with and without an outer optimiser that go on from each other."""

from __future__ import annotations

from typing import Any

import pytest

from chain.genesis import Genesis
from chain.state import State
from chain.tip import Tip
from node.errors import ChangeRefused
from node.federation.builders import Built, ChangeContext, ChangeRequest, build_change
from support.data.chains import make_genesis_mapping, make_keys
from support.data.run_schemas import with_schema

KEYS = make_keys(4)
NESTEROV = ["method.outer.optimizer=nesterov", "method.outer.lr=0.5"]


def make_genesis(method: dict[str, Any]) -> Genesis:
    given = {"method": method, "model": {"name": "mlp", "hidden": [3]}}
    return Genesis.from_mapping(with_schema(make_genesis_mapping(KEYS, **given)))


def build(state: State, genesis: Genesis, *settings: str) -> Built:
    terms = {"set": list(settings), "initial": "continue"}
    return build_change(ChangeRequest("start_run", terms), ChangeContext(Tip.at(state, (genesis.block0,)), KEYS[0].id))


def test_a_run_goes_on_with_an_outer_optimiser_from_one_without_and_the_other_way_round() -> None:
    plain = make_genesis({"name": "fedavg"})
    after = build(plain.state, plain, *NESTEROV).after
    assert after.run.method["outer"] == {"optimizer": "nesterov", "lr": 0.5, "beta1": 0.9}
    added = after.run.schema["aggregate"].keys() - plain.run.schema["aggregate"].keys()
    assert added == {name.replace("model/", "outer/v1/") for name in plain.run.schema["aggregate"]}
    genesis = make_genesis({"name": "fedavg", "outer": {"optimizer": "adam"}})
    assert build(genesis.state, genesis, "method.outer={}").after.run.schema == plain.run.schema
    again = build(genesis.state, genesis, "lr=0.05").after.run
    assert again.schema == genesis.run.schema


def test_a_masked_run_takes_an_outer_optimiser() -> None:
    masked = make_genesis({"name": "fedavg", "aggregation": "masked_sum"})
    added = build(masked.state, masked, *NESTEROV).after.run.schema["aggregate"].keys()
    assert {name.partition("/")[0] for name in added} == {"model", "masked", "outer"}


def test_a_method_without_a_common_model_takes_none() -> None:
    plain = make_genesis({"name": "dfpl"})
    with pytest.raises(ChangeRefused, match=r"method\.outer\.optimizer"):
        build(plain.state, plain, *NESTEROV)
