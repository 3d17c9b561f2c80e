"""A genesis whose run evaluates its best round at its end: which methods can, and how large what is told may be."""

from __future__ import annotations

from typing import Any

import pytest

from chain.calendar import Calendar
from chain.genesis import Genesis
from ml.errors import SpecError
from ml.specs.closing import ClosingEvaluationSpec
from ml.specs.methods.evaluation import EVALUATION
from node.config.genesis_file import check_schema, get_genesis_spec
from node.runs.specs import RunRound, RunSpecs
from support.data.chains import make_genesis_mapping, make_keys
from support.data.run_schemas import with_schema

MODEL = {"name": "mlp", "hidden": [16]}
LIMITS = {"max_weight": 1000, "payload_mib": 1}


def make_mapping(method: dict[str, Any], *, evaluate: bool = True, **terms: Any) -> dict[str, Any]:
    own = {"model": MODEL, "input": {"shape": [1, 8, 8]}, "limits": LIMITS, "protocol": 5, "rounds": 3}
    return make_genesis_mapping(make_keys(4), method=method, select={"evaluate": evaluate}, **own | terms)


def find(mapping: dict[str, Any], height: int) -> RunRound:
    genesis = Genesis.from_mapping(mapping)
    found = RunSpecs(Calendar([(0, genesis.state)])).find(height)
    assert found is not None
    return found


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "mpfedcl", "scaffold", "ditto", "fedala"])
def test_a_method_with_a_whole_model_in_common_evaluates_it(name: str) -> None:
    mapping = with_schema(make_mapping({"name": name}))
    check_schema(Genesis.from_mapping(mapping).run, get_genesis_spec(Genesis.from_mapping(mapping)))
    assert [isinstance(find(mapping, height).spec, ClosingEvaluationSpec) for height in (3, 4, 5)] == [0, 0, 1]
    evaluating = find(mapping, 5)
    assert evaluating.spec.schemas(5).keys() == {EVALUATION}
    assert evaluating.collect_s >= 60
    assert "confusion" in evaluating.spec.schemas(5)[EVALUATION].arrays


@pytest.mark.parametrize("name", ["dfpl", "fedper", "fedrep", "uapdfl", "local", "fedavg_p2p"])
def test_a_method_without_one_is_refused_where_a_run_is_made(name: str) -> None:
    """Where there is such a run all the same, its end has an empty height, at which no node halts."""
    plain = with_schema(make_mapping({"name": name}, evaluate=False))
    with pytest.raises(SpecError, match=rf"^select\.evaluate: expected false: {name} has no whole model in common"):
        get_genesis_spec(Genesis.from_mapping(make_mapping({"name": name})))
    spec = find({**plain, "select": {"evaluate": True}}, 5).spec
    assert (spec.schemas(5), spec.rules(5)) == ({}, {})


def test_what_a_site_tells_fits_into_the_limits() -> None:
    classes = [str(number) for number in range(64)]
    small: dict[str, Any] = {
        "limits": {"max_weight": 1000, "payload_bytes": 30_000},
        "classes": classes,
        "model": {"name": "linear"},
    }
    get_genesis_spec(Genesis.from_mapping(make_mapping({"name": "fedavg"}, evaluate=False, **small)))
    with pytest.raises(SpecError, match=r"^limits\.payload_mib: .* a evaluation of evaluation"):
        get_genesis_spec(Genesis.from_mapping(make_mapping({"name": "fedavg"}, **small)))
