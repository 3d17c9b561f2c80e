"""Runs whose common model goes on by an outer optimiser: settings, aggregates, and who can compute them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ml.aggregation.outer import OPTIMIZERS
from ml.errors import AggregationError, SpecError
from ml.payload import Array, Arrays, decode_arrays, encode_arrays
from ml.specs import AuthorPayloads, MethodSpec, add_kind, compute_aggregate, get_kind, get_spec
from ml.specs.architectures import parameter_shapes
from ml.specs.by_schema import SchemaSpec
from ml.specs.own import check_judgeable, describe_judged
from ml.specs.run_schema import describe_payloads

MLP: dict[str, Any] = {"name": "mlp", "hidden": [4]}
SHAPE = (1, 2, 2)
MODEL_METHODS = ("fedavg", "blade_fl", "moon", "swim", "fedintr", "fedprox", "fednova", "mpfedcl", "fedrep", "ditto")


def make_spec(name: str = "fedavg", *, terms: dict[str, Any] | None = None, **settings: Any) -> MethodSpec:
    settings.setdefault("outer", {"optimizer": "momentum", "lr": 0.5})
    limits: dict[str, Any] = {"max_weight": 1000, "rounds": 10, "num_members": 4, **(terms or {})}
    return get_spec({"name": name, **settings}, MLP, 3, SHAPE, **limits)


def fill(value: float) -> dict[str, Array]:
    return {name: np.full(shape, value, np.float32) for name, shape in parameter_shapes(MLP, SHAPE, 3).items()}


def combine(spec: MethodSpec, height: int, values: list[float], parent: Arrays) -> dict[str, Array]:
    """The aggregate of models that are everywhere one number."""
    given = [AuthorPayloads(bytes([i]) * 32, 1, {"model": fill(value)}) for i, value in enumerate(values)]
    encoded = compute_aggregate(spec, height, given, parent)
    assert encoded is not None
    return decode_arrays(encoded, len(encoded))


def look(aggregate: Arrays, kind: str) -> list[float]:
    """The numbers that are in the arrays of a kind."""
    arrays = get_kind(aggregate, kind)
    assert arrays is not None
    return sorted({float(x) for array in arrays.values() for x in array.ravel()})


# ---- settings


@pytest.mark.parametrize("name", MODEL_METHODS)
def test_methods_with_a_common_model_take_an_outer_optimiser_and_write_it_out(name: str) -> None:
    spec = make_spec(name, outer={"optimizer": "adam"})
    written = spec.to_mapping()
    assert written["outer"] == {"optimizer": "adam", "lr": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 0.001}
    assert get_spec(written, MLP, 3, SHAPE, rounds=10, num_members=4).to_mapping() == written
    assert spec.reads_parent(1)
    assert "outer" not in make_spec(name, outer={}).to_mapping()
    assert not make_spec(name, outer={}).carried


def test_each_optimiser_has_a_rate_of_its_own() -> None:
    rates = {one: make_spec(outer={"optimizer": one}).to_mapping()["outer"]["lr"] for one in OPTIMIZERS}
    assert rates == {"momentum": 1.0, "nesterov": 0.7, "adam": 0.1, "yogi": 0.1}
    assert set(make_spec(outer={"optimizer": "nesterov"}).to_mapping()["outer"]) == {"optimizer", "lr", "beta1"}


@pytest.mark.parametrize(
    ("name", "outer", "path"),
    [
        ("fedavg", {"optimizer": "sgd"}, "method.outer.optimizer"),
        ("fedavg", {"optimizer": "adam", "lr": 0}, "method.outer.lr"),
        ("fedavg", {"optimizer": "adam", "beta1": 1.0}, "method.outer.beta1"),
        ("fedavg", {"optimizer": "yogi", "eps": 0.0}, "method.outer.eps"),
        ("fedavg", {"optimizer": "momentum", "beta2": 0.9}, "method.outer.beta2"),
        ("fedavg", {"lr": 0.5}, "method.outer.lr"),
        ("fedavg", {"optimizer": "adam", "rho": 1.0}, "method.outer.rho"),
        ("fedavg", 3, "method.outer"),
        ("dfpl", {"optimizer": "adam"}, "method.outer.optimizer"),
        ("fedavg_p2p", {"optimizer": "adam"}, "method.outer.optimizer"),
    ],
)
def test_what_cannot_be_is_refused_by_its_dotted_place(name: str, outer: Any, path: str) -> None:
    with pytest.raises(SpecError) as caught:
        make_spec(name, outer=outer)
    assert caught.value.path == path


# ---- aggregates


def test_an_aggregate_goes_on_from_the_one_before_and_has_the_moments_beside_the_model() -> None:
    """lr 0.5, beta1 0.9: x 1, means 3 and 4. d 2, v 2, x 2; then d 2, v 3.8, x 3.9."""
    spec = make_spec()
    first = combine(spec, 1, [2, 4], add_kind("model", fill(1)))
    assert (look(first, "model"), look(first, "outer")) == ([2], [2])
    assert set(first) == {f"{kind}{name}" for kind in ("model/", "outer/v1/") for name in fill(0)}
    second = combine(spec, 2, [4, 4], first)
    assert look(second, "outer") == [float(np.float32(3.8))]
    assert look(second, "model") == [float(np.float32(3.9))]
    assert spec.carried.keys() <= describe_payloads(spec)["aggregate"].keys() == set(first)


def test_a_run_begins_anew_whatever_the_one_before_has_left() -> None:
    spec = make_spec()
    left = combine(spec, 1, [2, 4], add_kind("model", fill(1)))
    assert look(combine(spec, 1, [4], left), "outer") == [2]  # from x 2 to 4, and nothing of v 2
    agreed = make_spec(terms={"input_": {"normalize": "agreed", "shape": list(SHAPE)}})
    assert look(combine(agreed, 2, [4], left), "outer") == [2]  # the round after that of statistics


def test_statistics_of_batches_are_what_the_rule_gives() -> None:
    resnet: dict[str, Any] = {"name": "resnet18"}
    spec = get_spec(
        {"name": "fedavg", "outer": {"optimizer": "momentum", "lr": 0.5}}, resnet, 3, (3, 32, 32), num_members=4
    )
    names = [next(name for name in spec.task.model_schema.arrays if name.endswith(end)) for end in ("_var", ".bias")]
    made = {f"model/{name}": np.full(3, 2.0, np.float32) for name in names}
    carried = spec.carry(1, [bytes(32)], made, {name: np.zeros_like(array) for name, array in made.items()})
    assert set(carried) == {f"model/{names[1]}", f"outer/v1/{names[1]}"}
    assert carried[f"model/{names[1]}"].tolist() == [1, 1, 1]


def test_an_outer_optimiser_takes_the_way_of_a_robust_rule() -> None:
    spec = make_spec(aggregation="median", outer={"optimizer": "nesterov", "lr": 1.0, "beta1": 0.5})
    made = combine(spec, 1, [2, 2, 2, 1e6], add_kind("model", fill(1)))
    assert look(made, "model") == [2.5]  # d 1, v 1: 1 + 1 + 0.5


def test_changes_in_half_precision_are_of_the_model_that_the_optimiser_has_made() -> None:
    spec = make_spec(model_dtype="float16")
    parent = add_kind("model", fill(2))
    sent = spec.pack("model", fill(4), fill(2), 1)
    encoded = compute_aggregate(spec, 1, [AuthorPayloads(bytes(32), 1, {"model": sent})], parent)
    assert encoded is not None
    made = decode_arrays(encoded, len(encoded))
    assert (look(made, "model"), look(made, "outer")) == ([3], [2])
    assert {array.dtype for array in made.values()} == {np.dtype(np.float32)}


def test_a_round_that_makes_no_model_keeps_the_moments() -> None:
    spec = make_spec("mpfedcl", reembed=True, terms={"rounds": 4})
    parent = add_kind("model", fill(2)) | {f"outer/v1/{name}": array for name, array in fill(7).items()}
    rows: dict[str, Array] = {
        "classes": np.zeros(1, np.int64),
        "prototypes": np.zeros((1, spec.task.embedding_dim), np.float32),
    }
    encoded = compute_aggregate(spec, 4, [AuthorPayloads(bytes(32), 1, {"prototypes": rows})], parent)
    assert encoded is not None
    made = decode_arrays(encoded, len(encoded))
    assert (look(made, "model"), look(made, "outer")) == ([2], [7])


def test_an_aggregate_without_the_model_before_is_none() -> None:
    with pytest.raises(AggregationError, match="outer: expected array"):
        combine(make_spec(), 1, [2], {"model/other": np.zeros(1, np.float32)})


def test_the_order_of_arrival_changes_no_byte() -> None:
    spec = make_spec(outer={"optimizer": "yogi"})
    parent = combine(spec, 1, [2, 4, 9], add_kind("model", fill(1)))
    given = [AuthorPayloads(bytes([i]) * 32, i + 1, {"model": fill(i / 3)}) for i in range(3)]
    assert compute_aggregate(spec, 2, given, parent) == compute_aggregate(spec, 2, given[::-1], parent)
    assert encode_arrays(combine(spec, 2, [1, 2], parent)) == encode_arrays(combine(spec, 2, [1, 2], dict(parent)))


# ---- who has no code, and who sees no model


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_who_judges_by_the_schema_alone_comes_to_the_same_aggregate(optimizer: str) -> None:
    spec = make_spec(outer={"optimizer": optimizer})
    check_judgeable(spec)
    schema = describe_judged(spec)
    plugin = {"name": "some", "version": "1.0", "sha256": "0" * 64}
    method = {**spec.to_mapping(), "plugin": plugin}
    judge = SchemaSpec.read(method, schema, spec.task)
    assert (judge.describe_judging(), dict(judge.carried)) == (spec.describe_judging(), dict(spec.carried))
    assert judge.reads_parent(1)
    parent: dict[str, Array] = add_kind("model", fill(1))
    for height in (1, 2):
        assert encode_arrays(combine(judge, height, [2, 5], parent)) == encode_arrays(
            combine(spec, height, [2, 5], parent)
        )
        parent = combine(spec, height, [2, 5], parent)
    wrong: list[Any] = [
        3,
        {},
        {"optimizer": "sgd"},
        {**schema["judging"]["outer"], "lr": -1.0},
        {"optimizer": optimizer},
    ]
    for outer in wrong:
        with pytest.raises(SpecError, match=r"^schema\.judging\.outer"):
            SchemaSpec.read(method, {**schema, "judging": {**schema["judging"], "outer": outer}}, spec.task)


def test_a_schema_without_a_common_model_has_no_outer_optimiser() -> None:
    spec = get_spec({"name": "dfpl"}, MLP, 3, SHAPE, num_members=4)
    schema = describe_judged(spec)
    judging = {**schema["judging"], "outer": make_spec().to_mapping()["outer"]}
    plugin = {"name": "some", "version": "1.0", "sha256": "0" * 64}
    with pytest.raises(SpecError, match=r"^schema\.judging\.outer: expected none without a model"):
        SchemaSpec.read({**spec.to_mapping(), "plugin": plugin}, {**schema, "judging": judging}, spec.task)
