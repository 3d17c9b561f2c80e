"""Specs of methods: defaults of the papers, settings refused by their place, and what a validator asks of each."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from chain import rules
from ml.aggregation import RuleSettings
from ml.errors import AggregationError, PayloadError, SpecError
from ml.payload import Array, decode_arrays, encode_arrays
from ml.specs import METHODS, AuthorPayloads, MethodSpec, Offer, add_kind, compute_aggregate, get_kind, get_spec
from ml.specs.architectures import parameter_shapes
from ml.specs.methods.dfpl import DfplHyperparameters
from ml.specs.sharing import ModelHyperparameters
from ml.specs.task import MAX_ABS
from support.data.contributions import author, prototypes
from support.data.normed import fit_model

MLP = {"name": "mlp", "hidden": [4, 2]}
SHAPE = (1, 4, 4)  # which FedEDS can halve twice


CLIPPED = {"name": "fedavg", "aggregation": "clipped_mean"}
ROBUST = ("median", "trimmed_mean", "clipped_mean", "multi_krum")


def spec_of(name: str, **settings: Any) -> MethodSpec:
    return get_spec({"name": name, **settings}, fit_model(name, MLP, 3), 3, SHAPE, max_weight=1000, rounds=10)


def model_of(value: float) -> dict[str, Array]:
    shapes = parameter_shapes(MLP, SHAPE, 3)
    return {name: np.full(shape, value, np.float32) for name, shape in shapes.items()}


def decode(data: bytes | None) -> dict[str, Array]:
    assert data is not None
    return decode_arrays(data, len(data))


def test_the_daemons_side_of_ml_loads_neither_torch_nor_sklearn() -> None:
    code = (
        "import sys, ml.specs, ml.seeding, ml.budget; print(sorted({'torch', 'sklearn', 'asyncio'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


# ---- hyper-parameters


def test_defaults_are_the_papers() -> None:
    assert spec_of("dfpl").to_mapping() == {
        "name": "dfpl",
        "lr": 0.1,
        "momentum": 0.0,
        "weight_decay": 0.0,
        "decay": 1.0,
        "decay_unit": "round",
        "batch_size": 32,
        "drop_last": False,
        "local_iterations": 20,
        "aggregation": "mean",
        "lambda": 1.0,
        "aux": "l2",
        "aux_protos": "batch",
        "iteration": "step",
        "proto_agg": "owners",
        "infer": "classifier",
        "min_class_samples": 1,
    }
    assert spec_of("fedavg").to_mapping() == {
        "name": "fedavg",
        "lr": 0.1,
        "momentum": 0.0,
        "weight_decay": 0.0,
        "decay": 1.0,
        "decay_unit": "round",
        "batch_size": 32,
        "drop_last": False,
        "local_iterations": 20,
        "aggregation": "mean",
        "weights": "samples",
        "bn_buffers": "average",
    }
    assert spec_of("mpfedcl").to_mapping() == {
        **spec_of("fedavg").to_mapping(),
        "name": "mpfedcl",
        "num_prototypes": 2,
        "weight": 1.0,
        "tau": 0.07,
        "cluster": "kmeans",
        "eps": 0.5,
        "min_samples": 5,
        "max_clusters": 16,
        "normalize": True,
        "embed": "head_hidden",
        "padding": True,
        "pool_in_inference": "centroids",
        "eval_model": "global",
        "reduction": "mean",
        "min_class_samples": 1,
    }
    assert spec_of("local").to_mapping() == {
        "name": "local",
        "lr": 0.1,
        "momentum": 0.0,
        "weight_decay": 0.0,
        "decay": 1.0,
        "decay_unit": "round",
        "batch_size": 32,
        "drop_last": False,
        "local_iterations": 20,
    }


@pytest.mark.parametrize("name", METHODS)
def test_a_written_out_method_reads_back_as_the_same(name: str) -> None:
    spec = spec_of(name, lr=0.5, local_epochs=3)
    assert "local_iterations" not in spec.to_mapping()
    assert spec_of(**spec.to_mapping()).hyperparameters == spec.hyperparameters


@pytest.mark.parametrize(
    ("method", "path", "message"),
    [
        ({}, "method.name", "expected one of local, fedavg, dfpl, .*, got None"),
        ({"name": "dflp"}, "method.name", "unknown method 'dflp': did you mean 'dfpl'?"),
        ({"name": "dfpl", "lambd": 1}, "method.lambd", "unknown key: did you mean 'lambda'?"),
        ({"name": "dfpl", "lambda_": 1}, "method.lambda_", "did you mean 'lambda'?"),
        ({"name": "local", "aux": "l2"}, "method.aux", "unknown key"),
        ({"name": "dfpl", "aux": "L2"}, "method.aux", "expected one of l2, sq, mse, contrast, got 'L2'"),
        ({"name": "dfpl", "tau": 0.1}, "method.tau", "expected none with aux l2: only contrast has a temperature"),
        ({"name": "dfpl", "aux": "contrast", "tau": 0}, "method.tau", r"expected a number in \(0, inf\), got 0"),
        ({"name": "dfpl", "normalize": 1}, "method.normalize", "expected true or false, got 1"),
        ({"name": "dfpl", "aux": ["l2"]}, "method.aux", "expected one of l2, sq, mse, contrast"),
        ({"name": "dfpl", "lambda": -1}, "method.lambda", r"expected a number in \[0, inf\), got -1"),
        ({"name": "dfpl", "lambda": float("nan")}, "method.lambda", "expected a number"),
        ({"name": "dfpl", "lambda": float("inf")}, "method.lambda", "expected a number"),
        ({"name": "dfpl", "lambda": "1"}, "method.lambda", "got '1'"),
        ({"name": "dfpl", "lr": 0}, "method.lr", r"expected a number in \(0, 1e38\], got 0"),
        ({"name": "dfpl", "lr": True}, "method.lr", "got True"),
        ({"name": "dfpl", "lr": 10**400}, "method.lr", "expected a number"),
        ({"name": "dfpl", "momentum": 1.0}, "method.momentum", r"\[0, 1\)"),
        ({"name": "dfpl", "decay": 1.01}, "method.decay", r"\(0, 1\]"),
        ({"name": "dfpl", "batch_size": 0}, "method.batch_size", "expected a whole number from 1"),
        ({"name": "dfpl", "batch_size": 32.0}, "method.batch_size", "got 32.0"),
        ({"name": "dfpl", "local_iterations": None}, "method.local_iterations", "got None"),
        ({"name": "dfpl", "local_iterations": 1, "local_epochs": 1}, "method.local_epochs", "got both"),
        ({"name": "fedavg", "decay_unit": "batch"}, "method.decay_unit", "expected one of round, step, got 'batch'"),
        ({"name": "mpfedcl", "num_prototypes": 0}, "method.num_prototypes", "expected a whole number from 1"),
        ({"name": "mpfedcl", "tau": 0}, "method.tau", r"expected a number in \(0, inf\)"),
        ({"name": "mpfedcl", "weight": -1}, "method.weight", r"expected a number in \[0, inf\)"),
        ({"name": "mpfedcl", "cluster": "gmm"}, "method.cluster", "expected one of kmeans, mean, dbscan, got 'gmm'"),
        ({"name": "mpfedcl", "padding": 1}, "method.padding", "expected true or false, got 1"),
        (
            {"name": "fedavg", "aggregation": "krum"},
            "method.aggregation",
            "expected one of mean, median, .*, got 'krum'",
        ),
        ({"name": "fedavg", "weight_cap": 0}, "method.weight_cap", "expected a whole number from 1"),
        ({"name": "fedavg", "weight_cap": 1.5}, "method.weight_cap", "expected a whole number from 1"),
        (CLIPPED | {"clip": 0}, "method.clip", r"expected a number in \(0, inf\), got 0"),
        ({"name": "dfpl", "aggregation": "median", "clip": 1}, "method.clip", "only clipped_mean goes by it"),
        ({"name": "fedavg", "clip": 1}, "method.clip", "expected none with aggregation mean"),
        (
            {"name": "dfpl", "proto_agg": "median"},
            "method.proto_agg",
            "expected one of owners, divide_by_K, samples, got 'median': set aggregation to median instead",
        ),
        ({"name": "fedproto", "proto_agg": "trimmed_mean"}, "method.proto_agg", "set aggregation to trimmed_mean"),
        (
            {"name": "dfpl", "aggregation": "median", "proto_agg": "samples"},
            "method.proto_agg",
            "expected owners with aggregation median, which no mean goes by; got 'samples'",
        ),
        ({"name": "fednova", "aggregation": "median"}, "method.aggregation", "expected mean, got 'median'"),
        ({"name": "fednova", "clip": 1}, "method.clip", "expected none with aggregation mean"),
        (
            {"name": "fededs", "base": "fednova", "aggregation": "trimmed_mean"},
            "method.aggregation",
            "expected mean with base fednova, a rule of its own, got 'trimmed_mean'",
        ),
    ],
)
def test_a_wrong_setting_is_refused_by_its_dotted_place(method: dict[str, Any], path: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        get_spec(method, MLP, 3, SHAPE)
    assert caught.value.path == path


def test_training_alone_combines_nothing_but_masked_statistics() -> None:
    with pytest.raises(SpecError, match=r"method\.aggregation: expected one of none, masked_sum, got 'median'"):
        spec_of("local", aggregation="median")


@pytest.mark.parametrize("name", ["uapdfl", "fedper", "fedavg_p2p", "dfedavgm", "criticalfl", "dispfl"])
def test_methods_that_combine_nothing_by_vote_have_no_setting_for_how(name: str) -> None:
    for setting in ({"aggregation": "median"}, {"weight_cap": 4}):
        (key,) = setting
        with pytest.raises(SpecError, match=rf"method\.{key}: unknown key"):
            spec_of(name, **setting)


def test_a_task_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(SpecError, match="classes: expected 2 to"):
        get_spec({"name": "local"}, MLP, 1, SHAPE)
    with pytest.raises(SpecError, match=r"limits\.max_weight: expected 1 to 536870911"):
        get_spec({"name": "local"}, MLP, 3, SHAPE, max_weight=1 << 29)


@pytest.mark.parametrize("max_abs", [0.0, -1.0, float("inf"), float("nan")])
def test_a_limit_on_floats_that_makes_no_sense_is_refused(max_abs: float) -> None:
    with pytest.raises(SpecError, match=r"limits\.max_abs: expected a finite number above 0"):
        get_spec({"name": "local"}, MLP, 3, SHAPE, max_abs=max_abs)


def test_the_limit_on_floats_is_genesis_own_where_nobody_sets_one() -> None:
    assert spec_of("fedavg").task.max_abs == MAX_ABS == rules.MAX_ABS


@pytest.mark.parametrize("name", METHODS)
def test_every_number_of_every_payload_has_a_range(name: str) -> None:
    """Of floats it is the run's where they have none of their own, of bytes every value."""
    spec = spec_of(name)
    for height in (1, 2):
        for kind, schema in spec.schemas(height).items():
            for array_name, array in schema.arrays.items():
                if array.dtype == "int64":
                    assert array.range is not None, (kind, array_name)
                    assert array.range[0] >= 0


def test_floats_beyond_the_limit_are_refused_whatever_the_model() -> None:
    spec = get_spec({"name": "fedavg"}, MLP, 3, SHAPE, max_abs=2.5)
    spec.validate_payload("model", model_of(-2.5), 1)
    with pytest.raises(
        PayloadError, match=r"payload 'model': array '.*': expected numbers from -2\.5 to 2\.5, got 2\.6"
    ):
        spec.validate_payload("model", model_of(1.0) | {"fc1.bias": np.full(4, 2.6, np.float32)}, 1)
    with pytest.raises(PayloadError, match=r"from -1e\+06 to 1e\+06, got 1e\+38"):
        spec_of("fedavg").validate_payload("model", model_of(1e38), 1)


def test_the_learning_rate_decays_once_a_round() -> None:
    hyper = ModelHyperparameters(lr=0.01, decay=0.95)
    assert [hyper.compute_lr(r) for r in range(1, 6)] == pytest.approx(
        [0.01, 0.0095, 0.009025, 0.00857375, 0.0081450625]
    )
    assert hyper.compute_lr(60) == pytest.approx(4.849452524943e-4, rel=1e-12)


def test_the_learning_rate_can_decay_after_every_step_instead() -> None:
    hyper = ModelHyperparameters(lr=0.01, decay=0.95, decay_unit="step")
    assert hyper.decay_by_step == 0.95
    assert [hyper.compute_lr(r, 20) for r in (1, 2, 3)] == pytest.approx([0.01, 0.01 * 0.95**20, 0.01 * 0.95**40])
    by_round = ModelHyperparameters(lr=0.01, decay=0.95)
    assert by_round.decay_by_step == 1
    assert by_round.compute_lr(2, 20) == by_round.compute_lr(2) == 0.01 * 0.95
    with pytest.raises(SpecError, match=r"method\.decay_unit: expected round with budget_s, .*; got 'step'"):
        spec_of("fedavg", decay_unit="step", budget_s=5)
    spec_of("fedavg", budget_s=5)


def test_local_work_is_iterations_or_epochs() -> None:
    assert spec_of("dfpl", local_epochs=2).hyperparameters == DfplHyperparameters(local_iterations=None, local_epochs=2)
    assert spec_of("fedavg", local_iterations=9).to_mapping()["local_iterations"] == 9
    with pytest.raises(SpecError, match="got both"):
        ModelHyperparameters(local_iterations=9, local_epochs=9)
    with pytest.raises(SpecError, match="got neither"):
        DfplHyperparameters(local_iterations=None)


# ---- heights


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("fededs", "feddbe")])
def test_a_height_is_a_round_of_its_own_unless_a_method_says_otherwise(name: str) -> None:
    spec = spec_of(name, local_epochs=3)
    assert spec.sharing_heights == 0
    assert not spec.shares_samples
    for height in (1, 2, 9):
        assert (spec.get_round_number(height), spec.get_local_work(height)) == (height, 6 if name == "fedrep" else 3)
        assert (spec.get_streamed(height), spec.get_shared_height(height)) == ({}, None)
        assert spec.needed_until(height) == height
        assert spec.get_collect_s(height, 7.5) == 7.5
        assert spec.wanted_in_training(height, bytes(32), author(0), [Offer(author(1), 1, {})]) == ()


# ---- payloads


def test_local_sends_nothing_and_has_no_aggregate() -> None:
    spec = spec_of("local")
    assert (spec.schemas(1), spec.rules(1), spec.wanted(1, b"", b"", (), None)) == ({}, {}, ())
    assert compute_aggregate(spec, 1, [AuthorPayloads(author(0), 1, {})], None) is None
    spec.validate_kinds([], 1)
    with pytest.raises(PayloadError, match=r"expected \[\], got \['model'\]"):
        spec.validate_kinds(["model"], 1)
    with pytest.raises(PayloadError, match="nothing is expected here"):
        spec.validate_payload("model", {}, 1)


def test_dfpl_sends_prototypes_and_never_a_weight() -> None:
    schema = spec_of("dfpl").schemas(1)
    assert list(schema) == ["prototypes"]
    assert sorted(schema["prototypes"].arrays) == ["classes", "prototypes"]


@pytest.mark.parametrize("num_classes", [0, 1, 5, 10])
def test_dfpl_sends_one_embedding_per_class_and_bounded_overhead(num_classes: int) -> None:
    spec = get_spec({"name": "dfpl"}, {"name": "cnn_mnist"}, 10, (1, 28, 28))
    payload: dict[str, Array] = {
        "classes": np.arange(num_classes, dtype=np.int64),
        "prototypes": np.ones((num_classes, 50), np.float32),
    }
    spec.validate_payload("prototypes", payload, 1)
    overhead = len(encode_arrays(payload)) - num_classes * 50 * 4
    assert overhead <= 8 * num_classes + 160
    assert spec.model_bytes > 87_360


def test_class_sizes_are_sent_only_when_the_rule_needs_them() -> None:
    with_counts = prototypes({0: [1, 2]}, {0: 5})
    spec_of("dfpl", proto_agg="samples").validate_payload("prototypes", with_counts, 1)
    with pytest.raises(PayloadError, match="payload 'prototypes': array 'counts' is not expected"):
        spec_of("dfpl").validate_payload("prototypes", with_counts, 1)
    with pytest.raises(PayloadError, match="array 'counts' is missing"):
        spec_of("dfpl", proto_agg="samples").validate_payload("prototypes", prototypes({0: [1, 2]}), 1)


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ([0, 3], "'classes': expected numbers from 0 to 2, got 3"),
        ([-1, 0], "'classes': expected numbers from 0 to 2, got -1"),
        ([1, 1], "sorted and once each"),
        ([2, 1], "sorted and once each"),
        ([0, 2, 1], "sorted and once each"),
        ([0, 1, 2, 2], "expected 0 <= n <= 3, got 4"),
    ],
)
def test_dfpl_refuses_classes_out_of_range_or_order(classes: list[int], message: str) -> None:
    payload: dict[str, Array] = {
        "classes": np.array(classes, np.int64),
        "prototypes": np.ones((len(classes), 2), np.float32),
    }
    with pytest.raises(PayloadError, match=message):
        spec_of("dfpl").validate_payload("prototypes", payload, 1)


@pytest.mark.parametrize("count", [0, -1, 1001, 1 << 62])
def test_dfpl_refuses_counts_that_cannot_be_weights(count: int) -> None:
    payload = prototypes({0: [1, 2], 1: [3, 4]}, {0: 5, 1: count})
    with pytest.raises(PayloadError, match=f"'counts': expected numbers from 1 to 1000, got {count}"):
        spec_of("dfpl", proto_agg="samples").validate_payload("prototypes", payload, 1)


def test_fedavg_takes_exactly_the_models_parameters() -> None:
    spec = spec_of("fedavg")
    spec.validate_payload("model", model_of(1.0), 1)
    assert spec.model_bytes == len(encode_arrays(model_of(1.0)))
    with pytest.raises(PayloadError, match=r"'fc3\.bias' is missing"):
        spec.validate_payload("model", {n: a for n, a in model_of(1.0).items() if n != "fc3.bias"}, 1)
    with pytest.raises(PayloadError, match=r"'fc1\.bias': expected finite"):
        spec.validate_payload("model", model_of(1.0) | {"fc1.bias": np.full(4, np.nan, np.float32)}, 1)


def test_weights_that_say_nothing_are_signed_as_one() -> None:
    for spec in (spec_of("local"), spec_of("dfpl"), spec_of("fedavg", weights="uniform")):
        assert spec.max_weight_is_one
        spec.validate_weight(1)
        with pytest.raises(PayloadError, match="weight: expected 1, got 2"):
            spec.validate_weight(2)
    spec = spec_of("fedavg")
    assert not spec.max_weight_is_one
    spec.validate_weight(1000)
    for weight in (0, 1001):
        with pytest.raises(PayloadError, match=f"weight: expected 1 to 1000, got {weight}"):
            spec.validate_weight(weight)


# ---- aggregates


@pytest.mark.parametrize(
    ("proto_agg", "expected"),
    [
        ("owners", {0: [3, 2], 1: [3, 1], 2: [0, 6]}),
        ("divide_by_K", {0: [2, 1.3333333], 1: [2, 0.6666667], 2: [0, 2]}),
        ("samples", {0: [2.6666667, 2.3333333], 1: [3, 1], 2: [0, 6]}),
    ],
)
def test_dfpls_aggregate_follows_proto_agg(proto_agg: str, expected: dict[int, list[float]]) -> None:
    spec = spec_of("dfpl", proto_agg=proto_agg)
    contributions = [
        AuthorPayloads(author(i), 1, {"prototypes": payload})
        for i, payload in enumerate(
            [
                prototypes({0: [2, 3], 1: [5, 0]}, {0: 2, 1: 1}),
                prototypes({0: [4, 1]}, {0: 1}),
                prototypes({1: [1, 2], 2: [0, 6]}, {1: 1, 2: 1}),
            ]
        )
    ]
    out = decode(compute_aggregate(spec, 1, contributions, add_kind("model", model_of(0.0))))
    assert sorted(out) == ["prototypes/classes", "prototypes/prototypes"]
    assert out["prototypes/classes"].tolist() == list(expected)
    np.testing.assert_allclose(out["prototypes/prototypes"], list(expected.values()), rtol=1e-6)


@pytest.mark.parametrize("rule", ROBUST)
def test_a_robust_rule_takes_the_place_of_the_methods_own(rule: str) -> None:
    for name in ("fedavg", "blade_fl", "moon", "swim", "fedintr", "fedprox"):
        spec = spec_of(name, aggregation=rule)
        assert spec.rules(1) == {"model": rule}
        assert spec.reads_parent(1) == (rule in ("clipped_mean", "multi_krum"))
    for name in ("dfpl", "fedproto"):
        spec = spec_of(name, aggregation=rule)
        assert spec.rules(1) == {"prototypes": f"class_{rule}"}
        assert not spec.reads_parent(1)
    assert spec_of("mpfedcl", aggregation=rule).rules(1) == {"model": rule, "prototypes": "trimmed_pool"}
    spec = spec_of("fededs", aggregation=rule)
    assert spec.rules(1) == {"encrypted_set": "carry", "chunk_digests": "carry"}
    assert spec.rules(2) == {"model": rule}


@pytest.mark.parametrize(
    ("num_members", "max_liars"), [(1, 0), (3, 0), (4, 1), (6, 1), (7, 2), (10, 3), (50, 16), (992, 330)]
)
def test_a_robust_rule_goes_by_how_many_of_the_members_may_lie(num_members: int, max_liars: int) -> None:
    method = {"name": "fedavg", "aggregation": "trimmed_mean", "weight_cap": 4, "momentum": 0.5}
    spec = get_spec(method, MLP, 3, SHAPE, num_members=num_members)
    assert spec.rule_settings == RuleSettings(max_liars=max_liars, weight_cap=4, momentum=0.5)


def test_a_robust_rule_computes_nothing_where_nobody_said_how_many_members_there_are() -> None:
    contributions = [AuthorPayloads(author(0), 1, {"model": model_of(1.0)})]
    with pytest.raises(AggregationError, match="median: expected the number of members, got 0"):
        compute_aggregate(spec_of("fedavg", aggregation="median"), 1, contributions, None)


def test_the_trim_counts_members_and_not_contributions() -> None:
    """Three of four have contributed: one of them may lie."""
    spec = get_spec({"name": "fedavg", "aggregation": "trimmed_mean"}, MLP, 3, SHAPE, num_members=4)
    contributions = [
        AuthorPayloads(author(i), 1, {"model": model_of(value)}) for i, value in enumerate((1.0, 2.0, 1e30))
    ]
    out = decode(compute_aggregate(spec, 1, contributions, None))
    assert {float(x) for array in out.values() for x in array.reshape(-1)} == {2.0}


def test_a_capped_weight_reaches_the_rule() -> None:
    contributions = [
        AuthorPayloads(author(i), weight, {"model": model_of(float(i))}) for i, weight in enumerate((1, 1, 1000))
    ]
    out = decode(compute_aggregate(spec_of("fedavg", weight_cap=2), 1, contributions, None))
    assert {float(x) for array in out.values() for x in array.reshape(-1)} == {1.25}


def test_clipping_is_around_the_parents_model() -> None:
    """Ways of 1, 1, 1 and 10 from 1: the longest is cut to a tenth. Its share is 6553 of 65536, rounded down."""
    spec = get_spec(CLIPPED, MLP, 3, SHAPE, num_members=4)
    values = (0.0, 2.0, 2.0, 11.0)
    contributions = [AuthorPayloads(author(i), 1, {"model": model_of(value)}) for i, value in enumerate(values)]
    out = decode(compute_aggregate(spec, 1, contributions, add_kind("model", model_of(1.0))))
    expected = np.float32((65536 * 4 + 6553 * 11 + (65536 - 6553) * 1) / (4 * 65536))
    assert {float(x) for array in out.values() for x in array.reshape(-1)} == {float(expected)}


def test_fedavgs_aggregate_is_named_like_block_0s_and_follows_the_weights() -> None:
    contributions = [
        AuthorPayloads(author(0), 1, {"model": model_of(1.0)}),
        AuthorPayloads(author(1), 3, {"model": model_of(5.0)}),
    ]
    initial = add_kind("model", model_of(0.0))
    weighted = decode(compute_aggregate(spec_of("fedavg"), 1, contributions, initial))
    assert sorted(weighted) == sorted(initial)
    assert {float(x) for array in weighted.values() for x in array.reshape(-1)} == {4.0}
    uniform = decode(compute_aggregate(spec_of("fedavg", weights="uniform"), 1, contributions, initial))
    assert {float(x) for array in uniform.values() for x in array.reshape(-1)} == {3.0}


def test_the_aggregate_does_not_depend_on_arrival_order() -> None:
    contributions = [AuthorPayloads(author(i), i + 1, {"model": model_of(0.1 * i)}) for i in range(6)]
    spec = spec_of("fedavg")
    assert compute_aggregate(spec, 1, contributions, None) == compute_aggregate(spec, 1, contributions[::-1], None)


def test_a_contribution_without_its_payload_is_refused_by_author() -> None:
    with pytest.raises(AggregationError, match="expected a payload 'model' of 07070707"):
        compute_aggregate(spec_of("fedavg"), 1, [AuthorPayloads(author(7), 1, {})], None)


def test_kinds_come_out_of_an_aggregate_as_they_went_in() -> None:
    aggregate = add_kind("model", {"w": np.ones(1)}) | add_kind("prototypes", {"classes": np.arange(2)})
    assert sorted(aggregate) == ["model/w", "prototypes/classes"]
    assert list(get_kind(aggregate, "prototypes") or {}) == ["classes"]
    assert get_kind(aggregate, "unit") is None
    assert get_kind(None, "model") is None
