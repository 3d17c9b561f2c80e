"""Models that travel as half-precision changes of the common one: the arithmetic, and clients that send them."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from ml.attacks import make_attack
from ml.clients.build import Federation, make_client
from ml.errors import AggregationError, PayloadError, SpecError
from ml.payload import Array, ArraySchema, ArraySpec, decode_arrays, encode_arrays
from ml.simulation.run import SimulationConfig, SimulationResult, simulate
from ml.specs import AuthorPayloads, MethodSpec, add_kind, compute_aggregate, get_kind, get_spec, unpack_all
from ml.specs.architectures import parameter_shapes
from ml.specs.model_changes import MOST, SCALE, add_changes, compute_changes, make_change_schema

MLP: dict[str, Any] = {"name": "mlp", "hidden": [4]}
SHAPE = (1, 2, 2)
DIGITS = {"shape": [1, 8, 8]}
PLAIN = ArraySchema({"w": ArraySpec("float32", (4,)), "running_mean": ArraySpec("float32", (4,))})
SCHEMA = make_change_schema(PLAIN, {"w": None})
METHOD = {"name": "fedavg", "local_iterations": 3, "model_dtype": "float16"}


def f32(*values: float) -> Array:
    return np.array(values, np.float32)


def make_spec(name: str = "fedavg", **settings: Any) -> MethodSpec:
    settings = {"model_dtype": "float16", **settings}
    return get_spec({"name": name, **settings}, MLP, 3, SHAPE, max_weight=1000, rounds=10, num_members=4)


def draw_model(seed: int, scale: float = 1.0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    shapes = parameter_shapes(MLP, SHAPE, 3)
    return {name: (scale * rng.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}


# ---- the arithmetic


def test_parameters_are_sent_as_changes_and_statistics_as_they_are() -> None:
    assert {name: array.dtype for name, array in SCHEMA.arrays.items()} == {"w": "float16", "running_mean": "float32"}
    assert SCHEMA.max_bytes == PLAIN.max_bytes - 8
    model = {"w": f32(1, 2, 3, 4), "running_mean": f32(9, 9, 9, 9)}
    sent = compute_changes(model, {"w": f32(1, 1, 1, 1)}, SCHEMA)
    assert sent["w"].tolist() == [0, SCALE, 2 * SCALE, 3 * SCALE]
    back = add_changes(sent, {"w": f32(1, 1, 1, 1)}, SCHEMA, 1e6)
    assert back["w"].tolist() == [1, 2, 3, 4]
    assert back["w"].dtype == np.float32
    assert back["running_mean"] is model["running_mean"]


@pytest.mark.parametrize("size", [1e-7, 1e-4, 1e-2, 1.0, 60.0])
def test_a_change_is_off_by_a_2048th_of_itself_at_most(size: float) -> None:
    rng = np.random.default_rng(1)
    parent, change = rng.standard_normal(1000), size * rng.uniform(0.5, 1.0, 1000)
    model = {"w": (parent + change).astype(np.float32)}
    before = {"w": parent.astype(np.float32)}
    schema = make_change_schema(ArraySchema({"w": ArraySpec("float32", (1000,))}), {"w": None})
    back = add_changes(compute_changes(model, before, schema), before, schema, 1e6)["w"].astype(np.float64)
    whole = model["w"].astype(np.float64) - before["w"]
    allowed = np.abs(whole) / 2048 + np.spacing(np.abs(model["w"]))  # the rounding of the model itself
    assert (np.abs(back - model["w"]) <= allowed).all()


def test_a_change_that_is_too_large_is_cut_and_the_rest_comes_in_the_next_rounds() -> None:
    parent, model = {"w": f32(0, 0, 0, 0)}, {"w": f32(100, -100, 63, 1), "running_mean": f32(0, 0, 0, 0)}
    seen = []
    for _ in range(2):
        parent = add_changes(compute_changes(model, parent, SCHEMA), parent, SCHEMA, 1e6)
        seen.append(parent["w"].tolist())
    assert seen == [[MOST / SCALE, -MOST / SCALE, 63, 1], [100, -100, 63, 1]]


def test_a_model_never_comes_out_beyond_the_runs_limit() -> None:
    """However long a liar pushes: of whole models what is beyond would have been refused."""
    sent = {"w": np.array([MOST, -MOST, 0, 0], np.float16), "running_mean": f32(0, 0, 0, 0)}
    back = add_changes(sent, {"w": f32(90, -90, 0, 0)}, SCHEMA, 100.0)
    assert back["w"].tolist() == [100, -100, 0, 0]


@pytest.mark.parametrize("parent", [{}, {"w": f32(1)}, {"w": np.zeros(4, np.float64)}])
def test_another_models_parent_is_refused(parent: dict[str, Array]) -> None:
    sent = {"w": np.zeros(4, np.float16), "running_mean": f32(0, 0, 0, 0)}
    with pytest.raises(AggregationError, match=r"'w': expected float32 \[4\] in the parent's model"):
        add_changes(sent, parent, SCHEMA, 1e6)


# ---- what validators recompute


@pytest.mark.parametrize("rule", ["mean", "median", "trimmed_mean", "clipped_mean", "multi_krum"])
def test_every_rule_sees_whole_models(rule: str) -> None:
    spec, plain = make_spec(aggregation=rule), make_spec(aggregation=rule, model_dtype="float32")
    assert spec.reads_parent(1)
    before = draw_model(0)
    models = [{name: array + step[name] for name, array in before.items()} for step in make_steps()]
    packed = [author(i, dict(spec.pack("model", model, before, 1))) for i, model in enumerate(models)]
    for made in packed:
        spec.validate_payload("model", made.payloads["model"], 1)
    parent = add_kind("model", before)
    whole = [author(i, dict(made.payloads["model"])) for i, made in enumerate(unpack_all(spec, 1, packed, parent))]
    assert compute_aggregate(spec, 1, packed, parent) == compute_aggregate(plain, 1, whole, parent)
    for made, trained in zip(whole, models, strict=True):
        for name, array in made.payloads["model"].items():
            np.testing.assert_allclose(array, trained[name], atol=1e-4)


def make_steps() -> list[dict[str, Array]]:
    return [draw_model(seed, 0.01) for seed in range(1, 5)]


def author(i: int, model: dict[str, Array]) -> AuthorPayloads:
    return AuthorPayloads(bytes([i]) * 32, 10 + i, {"model": model})


def test_the_aggregate_has_the_bytes_it_always_had() -> None:
    """A canary: another digest splits a federation whose members run different releases."""
    spec, before = make_spec(), draw_model(0)
    sent = [author(i, dict(spec.pack("model", draw_model(i + 1), before, 1))) for i in range(3)]
    data = compute_aggregate(spec, 1, sent, add_kind("model", before))
    assert data is not None
    assert hashlib.sha256(data).hexdigest() == "fe2ca19265cdcd34a8a0ad4d273aa90a762b790993b085c5d7b560a58637dbcf"


def test_what_is_no_number_is_refused_before_it_is_added() -> None:
    spec, before = make_spec(), draw_model(0)
    sent = dict(spec.pack("model", draw_model(1), before, 1))
    name = next(iter(sent))
    sent[name] = np.full(sent[name].shape, np.inf, np.float16)
    with pytest.raises(PayloadError, match=f"{name}.*finite"):
        spec.validate_payload("model", sent, 1)
    with pytest.raises(PayloadError, match="expected dtype float16"):
        spec.validate_payload("model", draw_model(1), 1)


def test_without_a_parent_there_is_no_aggregate() -> None:
    spec = make_spec()
    sent = [author(0, dict(spec.pack("model", draw_model(1), draw_model(0), 1)))]
    with pytest.raises(AggregationError, match="in the parent's model, got none"):
        compute_aggregate(spec, 1, sent, None)


def test_lies_are_about_whole_models_only() -> None:
    with pytest.raises(SpecError, match="model_dtype"):
        make_attack({"name": "sign_flip", "liars": 1}, make_spec(), 4)


@pytest.mark.parametrize("method", [{"name": "fednova"}, {"name": "fededs", "base": "fednova", "local_epochs": 9}])
def test_where_one_false_number_leads_far_in_a_round_models_travel_whole(method: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"method\.model_dtype: fednova expects float32"):
        get_spec({**method, "model_dtype": "float16"}, MLP, 3, (1, 4, 4), rounds=10)


# ---- clients


def make(method: dict[str, Any] = METHOD) -> Any:
    federation = Federation(
        method=method, model={"name": "mlp"}, classes=[str(c) for c in range(10)], input=DIGITS, num_members=4
    )
    spec = federation.get_spec()
    rng = np.random.default_rng(7)
    shapes = parameter_shapes(spec.task.model, spec.task.input_shape, 10)
    initial = add_kind("model", {n: (0.1 * rng.standard_normal(s)).astype(np.float32) for n, s in shapes.items()})
    data = {"format": "digits", "partition": {"scheme": "iid", "index": 0, "of": 4, "seed": 3}}
    return make_client(federation, data=data, seed=5, initial=initial), initial


def test_a_restarted_client_sends_the_same_bytes() -> None:
    client, initial = make()
    client.apply(1, add_kind("model", {n: a + 0.01 for n, a in (get_kind(initial, "model") or {}).items()}))
    stored = decode_arrays(data := encode_arrays(client.state_arrays()), len(data))
    sent = encode_arrays(client.train(2, b"beacon").payloads["model"])
    again, _ = make()
    again.load_state_arrays(stored)
    assert encode_arrays(again.train(2, b"beacon").payloads["model"]) == sent


def test_a_client_that_goes_on_from_its_own_model_sends_what_differs_from_the_common_one() -> None:
    client, initial = make()
    client.train(1, b"")
    own = client.state_arrays()
    common = {n: a + 0.5 for n, a in (get_kind(initial, "model") or {}).items()}
    client.apply(1, add_kind("model", common))
    assert client.go_back()
    sent = client.train(2, b"").payloads["model"]
    trained = get_kind(client.state_arrays(), "model") or {}
    schema = client.spec.schemas(2)["model"]
    back = add_changes(sent, common, schema, 1e6)
    for name, array in trained.items():
        np.testing.assert_allclose(back[name], array, atol=1e-3)
        assert np.abs(array - own[f"model/{name}"]).max() < 0.4  # and not from the common one


def test_an_older_aggregate_that_is_taken_instead_is_not_what_others_add_the_change_to() -> None:
    client, initial = make()
    first = {n: a + 0.01 for n, a in (get_kind(initial, "model") or {}).items()}
    head = {n: a + 0.02 for n, a in first.items()}
    client.apply(2, add_kind("model", head))
    client.apply(1, add_kind("model", first))  # as a member does that the newest is of no use to
    sent = client.train(3, b"").payloads["model"]
    back = add_changes(sent, head, client.spec.schemas(3)["model"], 1e6)
    for name, array in (get_kind(client.state_arrays(), "model") or {}).items():
        np.testing.assert_allclose(back[name], array, atol=1e-3)


def test_a_client_that_has_not_seen_the_last_aggregate_sends_nothing() -> None:
    client, initial = make()
    client.apply(1, initial)
    with pytest.raises(AggregationError, match="height 3: expected the common model of height 2, got that of 1"):
        client.train(3, b"")
    assert client.train(2, b"").payloads["model"]


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "moon", "mpfedcl", "blade_fl", "swim", "fedintr"])
def test_half_the_bytes_learn_as_well(name: str) -> None:
    def run(dtype: str) -> SimulationResult:
        method = {"name": name, "local_iterations": 20, "lr": 0.1, "model_dtype": dtype}
        return simulate(SimulationConfig(method=method, clients=4, rounds=6, seed=1, partition="iid"))

    half, whole = run("float16"), run("float32")
    assert half.final_taa == pytest.approx(whole.final_taa, abs=0.02)
    assert half.final_taa > 0.4
    most = 0.9 if name == "fedintr" else 0.62  # whose projections, most of what it sends, no parent has
    assert sum(r.sent_bytes for r in half.rounds) < most * sum(r.sent_bytes for r in whole.rounds)
