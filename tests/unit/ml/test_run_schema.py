"""The schema of a run: what it says of every method, that it is compact, and that it is true of real payloads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from chain.changes.change import Change
from chain.changes.runs import StartRun
from chain.run import MAX_SCHEMA_BYTES, encode_canonical
from ml.errors import SpecError
from ml.payload import decode_arrays
from ml.specs import METHODS, AuthorPayloads, MethodSpec, compute_aggregate, get_spec
from ml.specs.architectures import ARCHITECTURES, complete_model
from ml.specs.run_schema import describe_payloads

MLP: Mapping[str, Any] = {"name": "mlp", "hidden": [3]}


def make_spec(
    method: str, model: Mapping[str, Any] = MLP, shape: tuple[int, ...] = (1, 4, 4), **settings: Any
) -> MethodSpec:
    return get_spec({"name": method, **settings}, model, 2, shape, rounds=10, num_members=4)


def test_a_model_that_is_averaged_is_written_once() -> None:
    assert describe_payloads(make_spec("fedavg")) == {
        "aggregate": {
            "model/fc1.weight": "float32[3,16]",
            "model/fc1.bias": "float32[3]",
            "model/fc2.weight": "float32[2,3]",
            "model/fc2.bias": "float32[2]",
        },
        "rounds": {"1..": {"model": {"arrays": "aggregate", "rule": "weighted_mean", "max_bytes": 508}}},
    }


def test_rounds_that_share_sets_are_told_from_those_that_train() -> None:
    rounds = describe_payloads(make_spec("fededs"))["rounds"]
    assert {span: sorted(payloads) for span, payloads in rounds.items()} == {
        "1": ["chunk_digests", "encrypted_set"],
        "2..": ["model"],
    }
    assert rounds["1"]["encrypted_set"]["arrays"]["x"] == "float32[n,1,4,4]"
    assert rounds["1"]["encrypted_set"]["ranges"]["y"] == "0.0..1.0"
    assert rounds["1"]["encrypted_set"]["bounds"] == {"n": "1..10000"}


def test_what_is_taken_on_demand_has_no_rule_and_is_in_no_aggregate() -> None:
    schema = describe_payloads(make_spec("uapdfl"))
    payloads = schema["rounds"]["1.."]
    assert (payloads["g"]["rule"], payloads["unit"]["rule"]) == (None, "stack")
    assert schema["aggregate"] == {"unit/unit": "float32[authors,2]", "auxiliary/auxiliary": "float32[authors,3]"}


def test_a_method_that_sends_nothing_says_so() -> None:
    assert describe_payloads(make_spec("local")) == {"aggregate": {}, "rounds": {"1..": {}}}


def test_runs_that_differ_in_settings_alone_hold_the_same_aggregate() -> None:
    one, other = (describe_payloads(make_spec("fedavg", lr=lr)) for lr in (0.1, 0.05))
    assert one == other
    assert one["aggregate"] == describe_payloads(make_spec("fedprox"))["aggregate"]
    assert one["aggregate"] != describe_payloads(make_spec("fedavg", {"name": "mlp", "hidden": [4]}))["aggregate"]
    assert one["aggregate"] == describe_payloads(make_spec("fednova"))["aggregate"]  # whose numbers stay behind


@pytest.mark.parametrize("method", METHODS)
def test_every_method_on_every_model_fits_and_is_plain_json(method: str) -> None:
    fitting = 0
    for name in ARCHITECTURES:
        for shape in ((3, 32, 32), (1, 28, 28), (512, 1, 1)):
            try:
                spec = make_spec(method, complete_model({"name": name}), shape)
            except SpecError:
                continue
            schema = describe_payloads(spec)
            assert json.loads(json.dumps(schema)) == schema
            assert len(encode_canonical(schema)) <= MAX_SCHEMA_BYTES
            assert start_run(spec, schema).data  # which has room for no more levels than it needs
            fitting += 1
    assert fitting >= (4 if method == "fedbn" else 5)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fedavg", {}),
        ("fednova", {}),
        ("dfpl", {}),
        ("dfpl", {"proto_agg": "samples"}),
        ("mpfedcl", {}),
        ("mpfedcl", {"aggregation": "median"}),
        ("uapdfl", {}),
        ("criticalfl", {}),
    ],
)
def test_what_it_says_of_the_aggregate_is_what_the_rules_make(method: str, settings: dict[str, Any]) -> None:
    spec = make_spec(method, **settings)
    authors = [AuthorPayloads(bytes([i]) * 32, 1, make_payloads(spec)) for i in range(4)]
    parent = {f"model/{name}": array for name, array in make_payloads(spec).get("model", {}).items()}
    data = compute_aggregate(spec, 1, authors, parent)
    assert data is not None
    made = {name: (str(array.dtype), array.shape) for name, array in decode_arrays(data, len(data)).items()}
    said = describe_payloads(spec)["aggregate"]
    assert sorted(made) == sorted(said)
    for name, (dtype, shape) in made.items():
        said_dtype, _, dimensions = said[name].removesuffix("]").partition("[")
        assert said_dtype == dtype
        for expected, got in zip(dimensions.split(","), shape, strict=True):
            assert expected in ("n", "authors", str(got))


def start_run(spec: MethodSpec, schema: dict[str, Any]) -> Change:
    """The change by which members agree on such a run."""
    terms = {
        "method": spec.to_mapping(),
        "model": dict(spec.task.model),
        "classes": ["a", "b"],
        "input": {"shape": list(spec.task.input_shape), "resize": None, "mean": [0.0], "std": [1.0]},
        "rounds": 10,
        "schema": schema,
    }
    return Change(StartRun(2, terms, bytes([1]) * 32), 0, 0, 1, 100)


def make_payloads(spec: MethodSpec) -> dict[str, dict[str, Any]]:
    """Payloads of two rows and numbers that any of these rules can combine."""
    return {
        kind: {
            name: np.arange(2, dtype=array.dtype)
            if name == "classes"
            else np.ones([2 if isinstance(n, str) else n for n in array.shape], array.dtype)
            for name, array in schema.arrays.items()
        }
        for kind, schema in spec.schemas(1).items()
    }
