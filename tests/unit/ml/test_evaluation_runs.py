"""Runs of an evaluation: what a site tells of a model, what is refused of that, and what the aggregate has of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest

from ml.aggregation import MAX_WEIGHT
from ml.clients.build import Federation, make_clients
from ml.clients.client import Client
from ml.data import get_classes
from ml.errors import AggregationError, PayloadError, SpecError
from ml.measures.classification import Measures, measure
from ml.measures.evaluation import evaluate
from ml.methods import evaluation
from ml.payload import Array, Arrays, decode_arrays, encode_arrays
from ml.specs import AuthorPayloads, MethodSpec, compute_aggregate, get_kind, get_spec
from ml.specs.closing import ClosingEvaluationSpec
from ml.specs.methods.evaluation import EVALUATION
from ml.specs.run_schema import describe_payloads
from ml.specs.told import ABSENT, FIGURES, MOST, OF_CLASS, UNITS, read_figures, tell, tell_nothing, validate_told
from ml.tasks import CLASSIFICATION, MULTILABEL, REGRESSION, TASKS

DIGITS = {"format": "digits"}
INPUT: dict[str, Any] = {"shape": [1, 8, 8], "resize": None, "mean": [0.0], "std": [1.0]}
MODEL = {"name": "mlp", "hidden": [16]}
METHOD = {"name": "evaluation", "min_samples": 20, "min_count": 5}


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "NUM_RESAMPLES", 10)
    monkeypatch.setattr(evaluation, "MIN_RESAMPLES", 10)


def make_spec(num_classes: int = 3, kind: str = CLASSIFICATION, **settings: Any) -> MethodSpec:
    return get_spec(METHOD | settings, MODEL, num_classes, (4, 1, 1), rounds=1, num_members=4, kind=kind)


def make_clients_of(**settings: Any) -> list[Client]:
    federation = Federation(
        method=METHOD | settings, model=MODEL, classes=get_classes(DIGITS), input=INPUT, rounds=1, num_members=3
    )
    return make_clients(federation, data=DIGITS, partition="dirichlet:1", run_seed=5)


@cache
def measure_some(num: int = 60, seed: int = 0) -> tuple[Measures, Mapping[str, Any]]:
    drawn = np.random.default_rng(seed)
    y, said = drawn.integers(0, 3, num), drawn.dirichlet((1, 1, 1), num)
    found, intervals = evaluate(y, said.argmax(1), said, ("0", "1", "2"), 50)
    assert isinstance(found, Measures)
    return found, intervals


def tell_some(**options: int) -> dict[str, Array]:
    return tell(CLASSIFICATION, 3, *measure_some(**options), 5)


# ---- what a site tells


def test_figures_are_told_to_four_digits_with_their_intervals() -> None:
    found, intervals = measure_some()
    told = read_figures(FIGURES[CLASSIFICATION], tell_some()["figures"])
    assert set(told.values) == set(found.summarise())
    for name, value in found.summarise().items():
        assert told.values[name] == pytest.approx(value, abs=0.5e-4)
    assert told.intervals["accuracy"] == pytest.approx(found.accuracy_interval, abs=0.5e-4)
    assert told.intervals["auc"] == pytest.approx(intervals["auc"], abs=0.5e-4)


def test_each_class_has_its_own_intervals() -> None:
    found, intervals = measure_some()
    told = read_figures(OF_CLASS[CLASSIFICATION], tell_some()["by_class"][1])
    one = found.by_class[1]
    assert told.values["sensitivity"] == pytest.approx(one.sensitivity, abs=0.5e-4)
    assert told.intervals["sensitivity"] == pytest.approx(one.sensitivity_interval, abs=0.5e-4)
    assert told.intervals["auc"] == pytest.approx(intervals["auc/1"], abs=0.5e-4)


def test_counts_are_rounded_down_and_small_classes_have_no_figures() -> None:
    y = np.array([0] * 17 + [1] * 11 + [2] * 3)
    labels = np.array([0] * 14 + [1] * 3 + [1] * 11 + [2] * 3)
    told = tell(CLASSIFICATION, 3, measure(y, labels, np.eye(3)[labels], 0.5), {}, 5)
    assert told["samples"] == 31
    assert told["counts"].tolist() == [15, 10, 0]
    assert told["confusion"].tolist() == [[10, 0, 0], [0, 10, 0], [0, 0, 0]]
    assert (told["by_class"][2] == ABSENT).all()
    assert told["by_class"][0, 0].tolist()[0] == round(14 / 17, 4) * UNITS


def test_a_site_whose_other_class_is_small_tells_nothing_of_the_large_one_either() -> None:
    y = np.array([0] * 30 + [1] * 2)
    told = tell(CLASSIFICATION, 2, measure(y, y, np.eye(2)[y], 0.5), {}, 5)
    assert (told["by_class"] == ABSENT).all()
    alone = tell(CLASSIFICATION, 2, measure(y[:30], y[:30], np.eye(2)[y[:30]], 0.5), {}, 5)
    assert alone["by_class"][0, 0, 0] == UNITS


def test_a_number_that_is_too_large_is_told_as_the_largest() -> None:
    found = Measures(num_samples=60, num_correct=1, loss=1e300, brier=0.5, calibration_error=0.5)
    assert tell(CLASSIFICATION, 100, found, {}, 5)["figures"][-1, 0] == MOST


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("num_classes", [2, 65])
def test_nothing_is_a_word_too(kind: str, num_classes: int) -> None:
    spec = make_spec(num_classes, kind)
    spec.validate_payload("evaluation", tell_nothing(kind, num_classes), 1)


def test_a_client_tells_what_its_test_samples_show_and_trains_nothing() -> None:
    clients = make_clients_of()
    for client in clients:
        before = client.state_arrays()
        trained = client.train(1, b"")
        assert trained.metrics["steps"] == 0
        after = client.state_arrays()
        assert before.keys() == after.keys()
        assert all((before[name] == after[name]).all() for name in before)
        client.spec.validate_payload("evaluation", trained.payloads["evaluation"], 1)
        found = client.measure()
        assert found is not None
        told = read_figures(FIGURES[CLASSIFICATION], trained.payloads["evaluation"]["figures"])
        assert told.values == pytest.approx(found.summarise(), abs=0.6e-4)
        assert trained.payloads["evaluation"]["samples"] == client.num_test


def test_a_client_with_few_test_samples_tells_nothing() -> None:
    (client, *_) = make_clients_of(min_samples=10_000)
    assert client.train(1, b"").payloads["evaluation"]["samples"] == 0


def test_a_regression_is_told_in_its_own_unit() -> None:
    y = np.random.default_rng(1).normal(200, 50, (40, 1))
    found, intervals = evaluate(y, y + 3, y + 3, ("charges",), 20, kind=REGRESSION)
    told = tell(REGRESSION, 1, found, {name.replace("charges", "0"): one for name, one in intervals.items()}, 5)
    validate_told(told, REGRESSION, min_samples=20, min_count=5)
    assert read_figures(OF_CLASS[REGRESSION], told["by_class"][0]).values["rmse"] == pytest.approx(3, abs=1e-6)


# ---- what is refused


def change(name: str, value: Any, *at: int) -> Callable[[dict[str, Array]], None]:
    def apply(told: dict[str, Array]) -> None:
        told[name] = told[name].copy()
        told[name][at or ...] = value

    return apply


def take_all(told: dict[str, Array]) -> None:
    told["samples"] = np.array(0)


AUC = FIGURES[CLASSIFICATION].index("auc")


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        (change("samples", 19), "expected 0 or at least 20, got 19"),
        (change("samples", -1), "samples"),
        (take_all, "expected nothing of 0 samples"),
        (change("figures", UNITS + 1, AUC, 0), "expected auc from 0 to 1000000"),
        (change("figures", -5, AUC, 0), "expected auc from 0"),
        (change("figures", ABSENT, AUC, 0), "expected auc from 0"),
        (change("figures", ABSENT - 1, AUC, 0), "figures"),
        (change("figures", (1 << 63) - 1, AUC, 0), "figures"),
        (change("figures", UNITS, AUC, 1), "expected an interval of auc"),
        (change("figures", ABSENT, AUC, 2), "expected an interval of auc"),
        (change("by_class", 2 * UNITS, 0, 0, 0), "expected sensitivity from 0 to 1000000"),
        (change("counts", 7, 0), "expected multiples of 5"),
        (change("counts", 100, 0), "of 60 samples"),
        (change("counts", 0, 0), "expected nothing of class 0"),
        (change("confusion", 3, 0, 0), "expected multiples of 5"),
        (change("confusion", 60, 0, 0), "expected multiples of 5, of"),
    ],
)
def test_what_no_test_set_can_show_is_refused(lie: Callable[[dict[str, Array]], None], message: str) -> None:
    told = tell_some()
    make_spec().validate_payload("evaluation", told, 1)
    lie(told)
    with pytest.raises(PayloadError, match=message):
        make_spec().validate_payload("evaluation", told, 1)


@pytest.mark.parametrize(
    "other",
    [
        {"figures": np.zeros((8, 3), np.int64)},
        {"figures": np.zeros((9, 3), np.float64)},
        {"counts": np.zeros(2, np.int64)},
        {"confusion": np.zeros((3, 3, 3), np.int64)},
        {"more": np.zeros(1, np.int64)},
    ],
)
def test_arrays_of_another_shape_are_refused(other: Arrays) -> None:
    with pytest.raises(PayloadError):
        make_spec().validate_payload("evaluation", tell_some() | dict(other), 1)


@pytest.mark.parametrize("kind", [MULTILABEL, REGRESSION])
def test_a_task_has_figures_of_its_own(kind: str) -> None:
    with pytest.raises(PayloadError):
        make_spec(kind=kind).validate_payload("evaluation", tell_some(), 1)


# ---- what the run has


def combine(spec: MethodSpec, told: list[dict[str, Array]], parent: Arrays) -> dict[str, Array]:
    given = [AuthorPayloads(bytes([9 - i]) * 32, 1, {"evaluation": one}) for i, one in enumerate(told)]
    encoded = compute_aggregate(spec, 1, given, parent)
    assert encoded is not None
    return decode_arrays(encoded, len(encoded))


def make_parent(spec: MethodSpec) -> dict[str, Array]:
    layout = spec.task.model_schema.arrays.items()
    return {f"model/{name}": np.ones([int(n) for n in one.shape], one.dtype) for name, one in layout}


def test_the_aggregate_has_a_row_for_each_author_and_the_model_as_it_was() -> None:
    spec = make_spec()
    told, parent = [tell_some(seed=1), tell_some(seed=2)], make_parent(spec)
    made = combine(spec, told, parent | {"prototypes/classes": np.zeros(1, np.int64)})
    assert made.keys() == parent.keys() | {f"evaluation/{name}" for name in told[0]}
    assert all((made[name] == parent[name]).all() for name in parent)
    assert (made["evaluation/figures"] == np.stack([told[1]["figures"], told[0]["figures"]])).all()
    assert set(describe_payloads(spec)["aggregate"]) == set(made)
    assert encode_arrays(made) == encode_arrays(combine(spec, told, made))  # also from an evaluation's own
    assert get_kind(made, "model") is not None


def test_without_a_whole_model_there_is_no_aggregate() -> None:
    spec = make_spec()
    parent = make_parent(spec)
    parent.popitem()
    with pytest.raises(AggregationError, match="expected 'model/"):
        combine(spec, [tell_some()], parent)


def test_settings_of_training_are_none_of_an_evaluation() -> None:
    assert make_spec().to_mapping() == METHOD
    assert make_spec(of_run=1, of_round=7).to_mapping() == METHOD | {"of_run": 1, "of_round": 7}
    refusals: list[tuple[dict[str, Any], str]] = [
        ({"lr": 0.1}, "method.lr"),
        ({"of_run": 1}, "method.of_round"),
        ({"min_count": 21}, "method.min_count"),
        ({"min_samples": 0}, "method.min_samples"),
    ]
    for settings, path in refusals:
        with pytest.raises(SpecError) as refused:
            make_spec(**settings)
        assert refused.value.path == path


def test_it_has_one_round() -> None:
    with pytest.raises(SpecError, match="expected 1 of evaluation, got 2"):
        get_spec(METHOD, MODEL, 3, (4, 1, 1), rounds=2)
    make_spec().validate_weight(1)
    with pytest.raises(PayloadError):
        make_spec().validate_weight(min(2, MAX_WEIGHT))


# ---- the end of a run that trains


def make_trained(name: str = "fedavg") -> Client:
    federation = Federation(
        method={"name": name, "local_iterations": 2},
        model=MODEL,
        classes=get_classes(DIGITS),
        input=INPUT,
        rounds=3,
        num_members=3,
    )
    return make_clients(federation, data=DIGITS, partition="iid", run_seed=5)[0]


def test_a_client_that_trains_tells_of_an_aggregate_what_an_evaluation_tells_and_stays_as_it_is() -> None:
    client, other = make_trained("mpfedcl"), make_clients_of(min_samples=50)[0]
    aggregate = {name: array + 0.01 for name, array in client.state_arrays().items() if name.startswith("model/")}
    client.train(1, bytes(32))
    before = client.state_arrays()
    told = client.tell_of(aggregate, 50)
    after = client.state_arrays()
    assert all((after[name] == before[name]).all() for name in before)
    assert client.arrays_before is None
    other.state.data = client.state.data
    other.load_state_arrays(aggregate)
    same = other.train(1, bytes(32)).payloads[EVALUATION]
    assert told.keys() == same.keys()
    assert all((told[name] == same[name]).all() for name in told)
    assert int(told["samples"]) == client.num_test
    spec = ClosingEvaluationSpec.of(client.spec)
    spec.validate_payload(EVALUATION, told, 5)
    made = compute_aggregate(spec, 5, [AuthorPayloads(b"a", 1, {EVALUATION: told})], aggregate)
    assert made == encode_arrays(aggregate)


def test_nothing_is_told_of_too_few_samples_or_of_a_model_that_gives_no_numbers() -> None:
    client = make_trained()
    aggregate = client.state_arrays()
    assert int(client.tell_of(aggregate, client.num_test)["samples"]) == client.num_test
    spoiled = {name: array * np.nan for name, array in aggregate.items()}
    nothing = tell_nothing(CLASSIFICATION, 10)
    for told in (client.tell_of(aggregate, client.num_test + 1), client.tell_of(spoiled, 50)):
        assert all((told[name] == nothing[name]).all() for name in nothing)


def test_another_model_is_refused_and_the_client_stays_as_it_is() -> None:
    client = make_trained()
    before = client.state_arrays()
    for aggregate in ({}, {"model/fc1.weight": np.zeros((2, 2), np.float32)}):
        with pytest.raises(AggregationError, match="the model of the round: parameters do not fit"):
            client.tell_of(aggregate, 50)
    assert all((client.state_arrays()[name] == before[name]).all() for name in before)
