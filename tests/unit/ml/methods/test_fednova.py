"""FedNova: its numbers (ALGORITHMS §12.5), what it comes to with equal steps (§13.3), and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ml.aggregation import RULES, Contributed, RuleSettings
from ml.aggregation.nova import LARGEST, MAX_STEPS, compute_norm
from ml.clients.client import Client
from ml.errors import AggregationError, PayloadError, SpecError
from ml.payload import Array, Arrays, encode_arrays
from ml.simulation.run import SimulationConfig, simulate
from ml.specs import AuthorPayloads, add_kind, compute_aggregate, get_kind, get_spec
from ml.specs.architectures import parameter_shapes
from ml.specs.methods.fednova import FedNovaSpec
from support.data.contributions import author, drop_numbers
from support.federation.simulated import BEACON, MLP, make_digit_clients, run_round

SMALL = {"name": "mlp", "hidden": [4, 2]}
nova = RULES["nova"]


def spec_of(model: dict[str, Any] = SMALL, **settings: Any) -> FedNovaSpec:
    spec = get_spec({"name": "fednova", **settings}, model, 3, (1, 2, 2))
    assert isinstance(spec, FedNovaSpec)
    return spec


def payload_of(spec: FedNovaSpec, steps: int, value: float = 1.0) -> dict[str, Array]:
    shapes = parameter_shapes(SMALL, (1, 2, 2), 3)
    model = {name: np.full(shape, value, np.float32) for name, shape in shapes.items()}
    return {**model, **spec.make_numbers(steps)}


def sent(index: int, weight: int, steps: int, momentum: float = 0.0, **arrays: Sequence[float]) -> Contributed:
    given: dict[str, Array] = {name.replace("__", "."): np.array(x, np.float32) for name, x in arrays.items()}
    numbers = {"local_steps": np.array([steps], np.int64), "norm": np.array([compute_norm(steps, momentum)])}
    return Contributed(author(index), weight, {**given, **numbers})


# ---- by hand


@pytest.mark.parametrize(
    ("steps", "plain", "half", "heavy"),
    [
        (1, 1, 1, 1),
        (2, 2, 2.5, 2.9),
        (3, 3, 4.25, 5.61),
        (5, 5, 8.0625, 13.1441),
        (10, 10, 18.001953125, 41.381059609),
        (50, 50, 98.0, 410.463839769),
    ],
)
def test_norms(steps: int, plain: float, half: float, heavy: float) -> None:
    assert compute_norm(steps, 0.0) == plain
    assert compute_norm(steps, 0.5) == pytest.approx(half, rel=1e-9)
    assert compute_norm(steps, 0.9) == pytest.approx(heavy, rel=1e-9)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9, 0.999])
def test_norms_are_the_papers_closed_form(momentum: float) -> None:
    for tau in (1, 2, 7, 1000):
        closed = (tau - momentum * (1 - momentum**tau) / (1 - momentum)) / (1 - momentum)
        assert compute_norm(tau, momentum) == pytest.approx(closed, rel=1e-9)


def test_two_clients_of_unlike_steps() -> None:
    parent: Arrays = {"w": np.ones(1, np.float32)}
    given = [sent(0, 1, 2, 0.9, w=[0.7]), sent(1, 1, 5, 0.9, w=[0.2])]
    assert nova(given, parent)["w"][0] == pytest.approx(0.340940117, rel=1e-6)
    assert RULES["weighted_mean"](given_models(given), None)["w"][0] == pytest.approx(0.45)


def given_models(given: Sequence[Contributed]) -> list[Contributed]:
    """What FedAvg would have been sent."""
    return [drop_numbers(c) for c in given]


def test_ways_count_by_the_sample_and_not_by_the_step() -> None:
    """p = 1/4 and 3/4, tau = 4 and 2: tau_eff = 2.5, and 8 - 2.5 * (1/4 * 8/4 + 3/4 * 4/2) = 3."""
    given = [sent(0, 1, 4, w=[0.0]), sent(1, 3, 2, w=[4.0])]
    assert nova(given, {"w": np.array([8], np.float32)})["w"].tolist() == [3.0]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_equal_steps_give_the_weighted_mean(momentum: float) -> None:
    rng = np.random.default_rng(1)
    given = [sent(i, 1 + 100 * i, 13, momentum, w=rng.standard_normal(500).tolist()) for i in range(5)]
    ours = nova(given, {"w": rng.standard_normal(500).astype(np.float32)})["w"]
    assert ours == pytest.approx(RULES["weighted_mean"](given_models(given), None)["w"], abs=1e-6)


def test_statistics_of_batch_norm_are_a_mean_and_cannot_become_negative() -> None:
    given = [
        sent(0, 1, 1, w=[0.0], bn__running_mean=[2.0], bn__running_var=[0.0]),
        sent(1, 1, 100, w=[0.0], bn__running_mean=[4.0], bn__running_var=[1.0]),
    ]
    parent = {name: np.ones(1, np.float32) for name in ("w", "bn.running_mean", "bn.running_var")}
    out = nova(given, parent)
    assert (out["bn.running_mean"].tolist(), out["bn.running_var"].tolist()) == ([3.0], [0.5])
    assert out["w"][0] < -20  # what a variance would have become


def test_steps_too_large_for_float32_end_at_its_largest_number() -> None:
    given = [sent(0, 1, 1, w=[3e38, -3e38]), sent(1, 1, MAX_STEPS, w=[1, 1]), sent(2, 1, MAX_STEPS, w=[1, 1])]
    assert nova(given, {"w": np.ones(2, np.float32)})["w"].tolist() == [LARGEST, -LARGEST]


def test_a_claim_of_many_steps_moves_the_model_no_further_than_its_cap() -> None:
    """Three go 0.01 each in ten steps; one says that it made 2^20, and stays where it was."""
    parent: Arrays = {"w": np.zeros(1, np.float32)}
    given = [sent(i, 1, 10, w=[0.01]) for i in range(3)] + [sent(3, 1, MAX_STEPS, w=[0.0])]
    assert nova(given, parent)["w"][0] == pytest.approx(3 / 4 * 0.001 * (30 + MAX_STEPS) / 4)  # 197
    capped = nova(given, parent, RuleSettings(weight_cap=4))
    assert capped["w"][0] == pytest.approx(3 / 4 * 0.001 * (30 + 40) / 4)  # 0.013


def test_capped_steps_have_the_norm_of_that_many_and_weights_are_capped_alike() -> None:
    parent: Arrays = {"w": np.zeros(1, np.float32)}
    given = [sent(0, 1, 2, 0.9, w=[0.1]), sent(1, 1, 2, 0.9, w=[0.1]), sent(2, 1000, 50, 0.9, w=[0.4])]
    fewer = [*given[:2], sent(2, 2, 4, 0.9, w=[0.4])]
    assert nova(given, parent, RuleSettings(weight_cap=2, momentum=0.9))["w"] == nova(fewer, parent)["w"]


def test_ways_from_a_spoiled_parent_lead_nowhere_and_models_are_averaged() -> None:
    """It is spoiled where the lower median of the distances is infinite: not where two of four are near it."""
    parent: Arrays = {"w": np.array([1e30, 0], np.float32)}
    sound = [sent(i, 1 + i, 1 + i, w=[1.0, 2.0 * i], bn__running_var=[i]) for i in range(4)]
    out = nova(sound, {**parent, "bn.running_var": np.ones(1, np.float32)})
    assert (out["w"].tolist(), out["bn.running_var"].tolist()) == ([1.0, 4.0], [2.0])
    halves = [sent(i, 1, 1, w=[w, 0.0]) for i, w in enumerate((1.0, 1.0, 1e30, 1e30))]
    far, near = np.float64(np.float32(1e30)), 1.0
    assert nova(halves, parent)["w"][0] == np.float32(far - (far - near) * 2 / 4)


def test_running_statistics_may_be_anywhere_without_spoiling_a_parent() -> None:
    parent: Arrays = {"w": np.zeros(1, np.float32), "bn.running_var": np.full(1, 1e30, np.float32)}
    given = [sent(0, 1, 4, w=[-8.0], bn__running_var=[1.0]), sent(1, 3, 2, w=[-4.0], bn__running_var=[1.0])]
    assert nova(given, parent)["w"].tolist() == [-5.0]


def test_only_the_models_arrays_come_out() -> None:
    parent: Arrays = {"w": np.ones(1, np.float32), "encoder.conv.weight": np.ones(4, np.float32)}
    assert list(nova([sent(0, 1, 2, w=[1.0])], parent)) == ["w"]


@pytest.mark.parametrize(
    ("parent", "message"),
    [
        (None, "expected the parent's model, got none"),
        ({"v": np.ones(1, np.float32)}, "expected array 'w' in the parent's model, got none"),
        ({"w": np.ones(2, np.float32)}, r"'w': expected float32 \[1\] in the parent's model, got float32 \[2\]"),
        ({"w": np.ones(1)}, r"got float64 \[1\]"),
    ],
)
def test_a_parent_that_does_not_fit_is_refused(parent: Arrays | None, message: str) -> None:
    with pytest.raises(AggregationError, match=message):
        nova([sent(0, 1, 2, w=[1.0])], parent)


@pytest.mark.parametrize("norm", [None, np.ones(1, np.float32), np.ones(2), *map(np.atleast_1d, (0.5, np.nan, 1e300))])
def test_the_rule_refuses_norms_that_none_can_be(norm: Array | None) -> None:
    arrays: dict[str, Array] = {"w": np.ones(1, np.float32)} | ({} if norm is None else {"norm": norm})
    with pytest.raises(AggregationError, match="expected a"):
        nova([Contributed(author(0), 1, arrays)], {"w": np.ones(1, np.float32)})


@pytest.mark.parametrize("steps", [None, np.ones(1), np.ones(2, np.int64), np.array([0]), np.array([MAX_STEPS + 1])])
def test_the_capped_rule_refuses_steps_that_none_can_make(steps: Array | None) -> None:
    arrays: dict[str, Array] = {"w": np.ones(1, np.float32), "norm": np.ones(1)}
    arrays |= {} if steps is None else {"local_steps": steps}
    with pytest.raises(AggregationError, match="nova: expected"):
        nova([Contributed(author(0), 1, arrays)], {"w": np.ones(1, np.float32)}, RuleSettings(weight_cap=4))


# ---- payloads


def test_the_steps_and_their_norm_are_sent_with_the_model() -> None:
    spec = spec_of(momentum=0.9, local_epochs=1)
    spec.validate_payload("model", payload_of(spec, 5), 1)
    assert payload_of(spec, 5)["norm"].tolist() == [pytest.approx(13.1441)]
    assert spec.rules(1) == {"model": "nova"}
    assert spec.reads_parent(1)
    for other in ("fedavg", "dfpl", "local"):
        assert not get_spec({"name": other}, SMALL, 3, (1, 2, 2)).reads_parent(1)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"norm": np.array([np.nextafter(13.1441, 14)])}, r"expected norm 13.1441\d* of 5 steps, got 13.144"),
        ({"norm": np.array([5.0])}, "expected norm 13.1441"),  # that of another momentum
        ({"norm": np.array([-13.1441])}, r"'norm': expected numbers from 1 to 1.09951e\+12, got -13.1441"),
        ({"norm": np.array([np.nan])}, "'norm': expected finite numbers"),
        ({"norm": np.array([np.inf])}, "'norm': expected finite numbers"),
        ({"norm": np.ones(1, np.float32)}, "'norm': expected dtype float64"),
        ({"norm": np.ones(2)}, r"'norm': expected shape \[1\]"),
        ({"local_steps": np.array([6])}, "expected norm .* of 6 steps"),
        ({"local_steps": np.array([0])}, f"'local_steps': expected numbers from 1 to {MAX_STEPS}, got 0"),
        ({"local_steps": np.array([-5])}, "got -5"),
        ({"local_steps": np.array([MAX_STEPS + 1])}, f"got {MAX_STEPS + 1}"),
        ({"local_steps": np.array([1 << 62])}, f"got {1 << 62}"),
        ({"local_steps": np.array([5.0])}, "'local_steps': expected dtype int64"),
    ],
)
def test_steps_and_norms_that_do_not_belong_together_are_refused(numbers: dict[str, Array], message: str) -> None:
    spec = spec_of(momentum=0.9, local_epochs=1)
    with pytest.raises(PayloadError, match=message):
        spec.validate_payload("model", payload_of(spec, 5) | numbers, 1)


@pytest.mark.parametrize("name", ["local_steps", "norm"])
def test_a_model_without_them_is_refused(name: str) -> None:
    spec = spec_of(local_epochs=1)
    payload = payload_of(spec, 5)
    del payload[name]
    with pytest.raises(PayloadError, match=f"'{name}' is missing"):
        spec.validate_payload("model", payload, 1)


@pytest.mark.parametrize(
    ("settings", "fixed"),
    [
        ({"local_iterations": 7}, 7),
        ({"local_epochs": 3, "unit": "epochs"}, 3),
        ({"local_epochs": 3}, None),  # whoever has more samples makes more steps
        ({"local_iterations": 7, "budget_s": 1.0}, None),
        ({"local_epochs": 3, "unit": "epochs", "budget_s": 1.0}, None),
    ],
)
def test_where_genesis_says_how_many_steps_there_are_none_are_believed(
    settings: dict[str, Any], fixed: int | None
) -> None:
    spec = spec_of(**settings)
    assert spec.hyperparameters.fixed_steps == fixed
    spec.validate_payload("model", payload_of(spec, fixed or 20), 1)
    if fixed is not None:
        with pytest.raises(PayloadError, match=f"expected local_steps {fixed}, got 20"):
            spec.validate_payload("model", payload_of(spec, 20), 1)


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(SpecError, match=r"method\.unit: expected steps with local_iterations"):
        spec_of(unit="epochs")
    with pytest.raises(SpecError, match=r"method\.decay_unit: expected round"):
        spec_of(decay_unit="step")
    with pytest.raises(SpecError, match=rf"method\.local_iterations: fednova expects at most {MAX_STEPS}"):
        spec_of(local_iterations=MAX_STEPS + 1)
    own = {
        "name": "mine:make",
        "plugin": {"name": "mine", "version": "1", "sha256": "0" * 64},
        "parameters": {"norm": [4], "fc.weight": [3, 4]},
        "buffers": {},
        "embedding": 4,
        "layers": [4],
        "classifier": ["fc.weight"],
    }
    with pytest.raises(SpecError, match="fednova expects a model without a 'norm' of its own"):
        spec_of(own)


# ---- rounds


def test_the_aggregate_is_named_like_block_0s() -> None:
    spec = spec_of(local_epochs=1)
    given = [AuthorPayloads(author(i), 1, {"model": payload_of(spec, 2 + i, 0.5)}) for i in (1, 0)]
    model = {name: array for name, array in payload_of(spec, 1).items() if name in spec.task.model_schema.arrays}
    initial = add_kind("model", model)
    encoded = compute_aggregate(spec, 1, given, initial)
    assert encoded is not None
    assert encoded == compute_aggregate(spec, 1, given[::-1], initial)
    with pytest.raises(AggregationError, match="expected the parent's model"):
        compute_aggregate(spec, 1, given, None)


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9, "lr": 0.02}, {"weights": "uniform", "momentum": 0.5}])
def test_members_that_make_equal_steps_come_to_fedavg(settings: dict[str, Any]) -> None:
    ours = make_digit_clients({"name": "fednova", **settings})
    theirs = make_digit_clients({"name": "fedavg", **settings})
    for height in range(1, 5):
        for first, second in zip(ours, theirs, strict=True):
            arrays = second.state_arrays()
            first.load_state_arrays(arrays)  # one round at a time: training multiplies any difference
        run_round(ours, height)
        run_round(theirs, height)
        assert differ_by(ours[0], theirs[0]) < 1e-6


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_simulation_of_equal_steps_is_fedavgs(momentum: float) -> None:
    shared = {"clients": 4, "rounds": 5, "partition": "dirichlet:0.3"}
    ours, theirs = (
        simulate(SimulationConfig(method={"name": name, "momentum": momentum}, **shared))  # type: ignore[arg-type]
        for name in ("fednova", "fedavg")
    )
    for one, other in zip(ours.rounds, theirs.rounds, strict=True):
        assert one.tal == pytest.approx(other.tal, abs=1e-3)
        assert one.global_ == pytest.approx(other.global_, abs=0.01)
    assert ours.rounds[0].tal == pytest.approx(theirs.rounds[0].tal, abs=1e-5)


def differ_by(one: Client, other: Client) -> float:
    models = [get_kind(client.state_arrays(), "model") or {} for client in (one, other)]
    assert models[0].keys() == models[1].keys()
    return max(float(np.abs(models[0][name] - models[1][name]).max()) for name in models[0])


@pytest.mark.parametrize("unit", ["steps", "epochs"])
def test_members_say_how_many_steps_they_made(unit: str) -> None:
    clients = make_digit_clients({"name": "fednova", "local_epochs": 2, "unit": unit}, partition="dirichlet:0.3")
    made = run_round(clients, 1)
    steps = [int(trained.payloads["model"]["local_steps"][0]) for trained in made]
    assert steps == ([2, 2, 2] if unit == "epochs" else [2 * -(-client.num_train // 32) for client in clients])
    assert unit == "epochs" or len(set(steps)) > 1
    assert all(not client.state.arrays for client in clients)


def test_under_a_budget_members_say_what_they_had_time_for() -> None:
    clients = make_digit_clients({"name": "fednova", "budget_s": 5.0})
    for client, iterations in zip(clients, (3, 7, 20), strict=True):
        trained = client.train(1, BEACON, num_iterations=iterations)
        assert trained.payloads["model"]["local_steps"].tolist() == [iterations]
        client.spec.validate_payload("model", trained.payloads["model"], 1)


def test_whoever_makes_more_steps_does_not_pull_harder() -> None:
    """Of two clients one makes ten times the steps: FedAvg follows it ten times as far, FedNova follows both alike."""
    parent: Arrays = {"w": np.zeros(2, np.float32)}
    given = [sent(0, 1, 2, w=[0.2, 0.0]), sent(1, 1, 20, w=[0.0, 2.0])]  # each goes 0.1 a step on an axis of its own
    mean = RULES["weighted_mean"](given_models(given), None)["w"]
    ours = nova(given, parent)["w"]
    assert mean[1] / mean[0] == pytest.approx(10)
    assert ours[1] / ours[0] == pytest.approx(1)


def test_running_statistics_that_stay_at_home_are_not_needed() -> None:
    model = {"name": "resnet18_cifar"}
    method = {"name": "fednova", "local_iterations": 1, "bn_buffers": "local"}
    (client,) = make_digit_clients(method, num_clients=1, model=model, shots=1)
    (made,) = run_round([client], 1)
    assert not any("running" in name for name in made.payloads["model"])


def test_a_client_restored_sends_the_same_bytes() -> None:
    first, second = (make_digit_clients({"name": "fednova", "momentum": 0.9}, model=MLP)[0] for _ in range(2))
    run_round([first], 1)
    second.load_state_arrays(first.state_arrays())
    ours, theirs = (client.train(2, BEACON).payloads["model"] for client in (first, second))
    assert encode_arrays(ours) == encode_arrays(theirs)


# Bands measured over eight seeds (4 clients, 8 rounds, dirichlet:0.3) and widened by about their own width.
def test_it_learns_from_unlike_numbers_of_steps() -> None:
    method = {"name": "fednova", "local_epochs": 4, "momentum": 0.5}
    for seed in (1, 2):
        config = SimulationConfig(method=method, partition="dirichlet:0.3", clients=4, rounds=8, seed=seed)
        result = simulate(config)
        assert 0.71 <= result.final_taa <= 1.0  # 0.83 to 0.95; fedavg 0.76 to 0.95
        assert 0.71 <= result.final_global <= 1.0  # 0.83 to 0.95; fedavg 0.82 to 0.95
