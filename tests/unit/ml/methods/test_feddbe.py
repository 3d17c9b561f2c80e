"""FedDBE: the mean that members agree on, two rounds of two clients by hand, and what stays at its client."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ml.clients.build import make_initial_aggregate
from ml.clients.client import Client
from ml.data import get_default_input
from ml.errors import PayloadError, SpecError
from ml.methods.base import Trained
from ml.methods.feddbe import move_mean
from ml.models.base import dump_parameters
from ml.payload import Array, Arrays, decode_arrays, make_empty_arrays
from ml.specs import AuthorPayloads, MethodSpec, add_kind, compute_aggregate, get_kind, get_spec
from ml.specs.methods.feddbe import MEMORY, FedDbeSpec
from ml.specs.run_schema import describe_payloads
from support.federation.simulated import BEACON, aggregate_round, get_parent, make_digit_clients

TINY: dict[str, Any] = {"name": "mlp", "hidden": [4]}
METHOD: dict[str, Any] = {"name": "feddbe", "local_iterations": 2, "batch_size": 8, "lr": 0.1, "kappa": 2.0}
TWO: dict[str, Any] = {"num_clients": 2, "model": TINY, "partition": "dirichlet:0.5", "shots": 6}
SHAPE = (1, 2, 2)
IDS = [bytes([i + 1]) * 32 for i in range(4)]


def make_spec(input_: dict[str, Any] | None = None, **settings: Any) -> MethodSpec:
    terms: dict[str, Any] = {"max_weight": 1000, "rounds": 10, "num_members": 4, "input_": input_ or {}}
    return get_spec({"name": "feddbe", **settings}, TINY, 3, SHAPE, **terms)


def fill(spec: MethodSpec, value: float) -> dict[str, Array]:
    empty = make_empty_arrays(spec.task.parameter_schema)
    return {name: np.full(array.shape, value, np.float32) for name, array in empty.items()}


def combine(spec: MethodSpec, height: int, means: list[tuple[int, float]], parent: Arrays) -> dict[str, Array]:
    """The aggregate of means, or models, that are everywhere one number, each of so much weight."""
    given = [
        AuthorPayloads(
            IDS[i],
            weight,
            {"representation": {"mean": np.full(4, x, np.float32)}} if height == 1 else {"model": fill(spec, x)},
        )
        for i, (weight, x) in enumerate(means)
    ]
    for each in given:
        for kind, arrays in each.payloads.items():
            spec.validate_payload(kind, arrays, height)
    encoded = compute_aggregate(spec, height, given, parent)
    assert encoded is not None
    return decode_arrays(encoded, len(encoded))


# ---- what all compute


def test_the_mean_of_all_is_weighted_by_samples_and_stays() -> None:
    """(1 * 3 + 5 * 1) / 4 = 2."""
    spec = make_spec()
    parent = add_kind("model", fill(spec, 7))
    first = combine(spec, 1, [(3, 1.0), (1, 5.0)], parent)
    assert first["representation/mean"].tolist() == [2.0] * 4
    assert all((array == 7).all() for name, array in first.items() if name.startswith("model/"))
    second = combine(spec, 2, [(1, 1.0), (1, 2.0)], first)
    assert second["representation/mean"].tolist() == [2.0] * 4
    assert second["model/" + next(iter(fill(spec, 0)))].ravel()[0] == 1.5
    assert set(second) == set(first) == set(describe_payloads(spec)["aggregate"])


@pytest.mark.parametrize("rule", ["median", "trimmed_mean", "clipped_mean", "multi_krum"])
def test_a_robust_rule_holds_for_the_mean_of_all(rule: str) -> None:
    spec = make_spec(aggregation=rule)
    made = combine(spec, 1, [(1, 1.0), (1, 1.0), (1, 1.0), (1, 1e6)], add_kind("model", fill(spec, 0)))
    assert made["representation/mean"].tolist() == [0.75 if rule == "clipped_mean" else 1.0] * 4


def test_uniform_weights_say_nothing_of_samples() -> None:
    spec = make_spec(weights="uniform")
    made = combine(spec, 1, [(1, 1.0), (1, 5.0)], add_kind("model", fill(spec, 0)))
    assert made["representation/mean"].tolist() == [3.0] * 4


def test_an_outer_optimiser_begins_when_there_is_a_model_to_move() -> None:
    spec = make_spec(outer={"optimizer": "momentum", "lr": 0.5})
    first = combine(spec, 1, [(1, 1.0)] * 2, add_kind("model", fill(spec, 1)))
    assert {name.partition("/")[0] for name in first} == {"model", "representation"}
    second = combine(spec, 2, [(1, 0.0)] * 2, first)
    assert {float(x) for name, of in second.items() if name.startswith("model/") for x in of.ravel()} == {0.5}


def test_members_may_agree_on_statistics_before() -> None:
    spec = make_spec({"normalize": "agreed", "shape": list(SHAPE)})
    assert [sorted(spec.schemas(height)) for height in (1, 2, 3)] == [["statistics"], ["representation"], ["model"]]
    assert spec.sharing_heights == 2


def test_a_mean_that_is_too_large_or_of_another_length_is_refused() -> None:
    spec = make_spec()
    for mean in (np.full(4, 2e6, np.float32), np.zeros(3, np.float32), np.full(4, np.nan, np.float32)):
        with pytest.raises(PayloadError, match="payload 'representation'"):
            spec.validate_payload("representation", {"mean": mean}, 1)


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({"kappa": -1}, "method.kappa"),
        ({"mu": 0}, "method.mu"),
        ({"mu": 1.1}, "method.mu"),
        ({"aggregation": "masked_sum"}, "method.aggregation"),
        ({"dp_noise": 1.0}, "method.dp_noise"),
        ({"dp_update_noise": 1.0}, "method.dp_update_noise"),
    ],
)
def test_what_it_cannot_be_is_refused(settings: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecError) as caught:
        make_spec(**settings)
    assert caught.value.path == path


# ---- clients


class Played:
    """Two clients on digits, their blocks' aggregates by height, and what they sent."""

    def __init__(self, **settings: Any) -> None:
        self.clients = make_digit_clients({**METHOD, **settings}, **TWO)
        input_ = get_default_input({"format": "digits"}, TINY)
        self.parent: Arrays = make_initial_aggregate(TINY, input_["shape"], 10, 1)

    def play(self, height: int) -> list[Trained]:
        trained = [client.train(height, BEACON) for client in self.clients]
        aggregate = aggregate_round(self.clients, height, trained, self.parent)
        assert aggregate is not None
        for client in self.clients:
            client.apply(height, aggregate, beacon=BEACON)
        self.parent = aggregate
        return trained


def get_memory(client: Client) -> Array:
    return dump_parameters(client.state.model)[MEMORY]


class ByHand:
    """A network of two layers with p_i, trained by plain SGD in float64: a reference that shares no code."""

    def __init__(self, model: Arrays, memory: Array) -> None:
        named = [*((name, model[name]) for name in model if name != MEMORY), (MEMORY, memory)]
        self.weights = {name: torch.tensor(np.float64(array), requires_grad=True) for name, array in named}
        layers = list(dict.fromkeys(name.rpartition(".")[0] for name, _ in named[:-1]))
        self.first, self.last = layers

    def embed(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ self.weights[f"{self.first}.weight"].T + self.weights[f"{self.first}.bias"])

    def train(
        self, batches: list[tuple[torch.Tensor, torch.Tensor]], lr: float, kappa: float, mu: float, mean: Array | None
    ) -> None:
        running = None
        for x, y in batches:
            z = self.embed(x)
            p = self.weights[MEMORY] if mean is not None else 0
            logits = (z + p) @ self.weights[f"{self.last}.weight"].T + self.weights[f"{self.last}.bias"]
            loss = F.cross_entropy(logits, y)
            if mean is not None:
                m = z.mean(0) if running is None else (1 - mu) * running + mu * z.mean(0)
                loss = loss + kappa * ((m - torch.tensor(np.float64(mean))) ** 2).mean()
                running = m.detach()
            gradients = torch.autograd.grad(loss, list(self.weights.values()), allow_unused=True)
            with torch.no_grad():
                for weight, gradient in zip(self.weights.values(), gradients, strict=True):
                    weight -= 0 if gradient is None else lr * gradient


def draw(client: Client, height: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    phase, samples = client.begin(height, BEACON), client.state.data.train
    return [(samples.x[rows].flatten(1).double(), samples.y[rows]) for rows in phase.schedule.batches]


@pytest.mark.parametrize("mu", [1.0, 0.25])
def test_two_rounds_of_two_clients_are_those_done_by_hand(mu: float) -> None:
    run = Played(mu=mu)
    clients, initial = run.clients, get_kind(run.parent, "model") or {}
    everything = [client.state.data.train.x.flatten(1).double() for client in clients]
    means = []
    for client, x in zip(clients, everything, strict=True):
        by_hand = ByHand(initial, np.zeros(4))
        by_hand.train(draw(client, 1), 0.1, 2.0, mu, None)
        means.append(by_hand.embed(x).mean(0).detach().numpy())
    told = run.play(1)
    for made, mean in zip(told, means, strict=True):
        assert made.payloads.keys() == {"representation"}
        assert made.payloads["representation"]["mean"] == pytest.approx(mean, abs=1e-5)
    weights = np.array([client.num_train for client in clients])
    agreed = run.parent["representation/mean"]
    assert agreed == pytest.approx((weights[:, None] * np.array(means)).sum(0) / weights.sum(), abs=1e-5)
    for client in clients:  # the phase is forgotten
        assert get_memory(client).tolist() == [0.0] * 4
        assert all(np.array_equal(array, dump_parameters(client.state.model)[name]) for name, array in initial.items())
    for height in (2, 3):
        model, memories = get_kind(run.parent, "model") or {}, [get_memory(client) for client in clients]
        by_hands = [ByHand(model, memory) for memory in memories]
        for by_hand, client in zip(by_hands, clients, strict=True):
            by_hand.train(draw(client, height), 0.1, 2.0, mu, agreed)
        for made, by_hand, client in zip(run.play(height), by_hands, clients, strict=True):
            assert made.payloads.keys() == {"model"}
            for name, array in made.payloads["model"].items():
                assert array == pytest.approx(by_hand.weights[name].detach().numpy(), abs=1e-5), name
            assert get_memory(client) == pytest.approx(by_hand.weights[MEMORY].detach().numpy(), abs=1e-5)
    one, other = map(get_memory, clients)
    assert not np.array_equal(one, other)


def test_a_client_answers_with_its_own_vector_added() -> None:
    run = Played()
    for height in (1, 2):
        run.play(height)
    client = run.clients[0]
    x, model = client.state.data.matched.x, client.state.model.eval()
    with torch.no_grad():
        wanted = model.classify(model.embed(x) + torch.tensor(get_memory(client)))
    assert torch.equal(client.predict(x).logits, wanted)
    assert torch.equal(client.method.score_classes(client.state, x).scores, wanted)
    assert not torch.equal(wanted, model(x))


def test_the_vector_never_leaves_its_client_and_is_in_its_checkpoint() -> None:
    run = Played()
    run.play(1)
    for made in run.play(2):
        assert MEMORY not in made.payloads["model"]
    assert f"model/{MEMORY}" not in run.parent
    client, again = run.clients[0], Played().clients[0]
    again.load_state_arrays(client.state_arrays())
    assert np.array_equal(get_memory(client), get_memory(again))
    assert client.evaluate() == again.evaluate()
    one, other = (each.train(3, BEACON).payloads["model"] for each in (client, again))
    assert all(np.array_equal(one[name], other[name]) for name in one)


def test_who_joins_late_finds_the_mean_in_any_aggregate() -> None:
    run, late = Played(), Played().clients[1]
    for height in (1, 2):
        run.play(height)
    late.apply(2, run.parent, beacon=BEACON)
    assert np.array_equal(late.state.arrays["mean"], run.parent["representation/mean"])


def test_the_common_model_can_be_measured_without_the_vector() -> None:
    run = Played()
    for height in (1, 2):
        run.play(height)
    client = run.clients[0]
    before = client.state_arrays()
    told = client.tell_of(run.parent, 1)
    assert int(told["samples"]) == client.num_test
    assert all(np.array_equal(before[name], array) for name, array in client.state_arrays().items())


def test_a_client_trains_without_a_mean_that_a_liar_has_led_far_away() -> None:
    run = Played()
    trained = [client.train(1, BEACON) for client in run.clients]
    aggregate = dict(aggregate_round(run.clients, 1, trained, run.parent) or {})
    aggregate["representation/mean"] = np.full(4, 1e6, np.float32)
    client = run.clients[0]
    client.apply(1, aggregate, beacon=BEACON)
    assert client.state.arrays == {}
    made = client.train(2, BEACON)
    assert get_memory(client).any()
    assert all(np.abs(array).max() < 10 for array in made.payloads["model"].values())


def test_a_model_whose_embedding_does_not_train_has_a_vector_all_the_same() -> None:
    clients = make_digit_clients(METHOD, **{**TWO, "model": {**TINY, "frozen": ["fc1.*"]}})
    parent: Arrays = {}
    for height in (1, 2):
        trained = [client.train(height, BEACON) for client in clients]
        parent = aggregate_round(clients, height, trained, parent or get_parent(clients)) or {}
        for client in clients:
            client.apply(height, parent, beacon=BEACON)
    assert "mean" in clients[0].state.arrays
    assert get_memory(clients[0]).any()


def test_the_running_mean_begins_as_the_first_batches_own() -> None:
    """mu 1/4: 4, then 3/4 * 4 + 1/4 * 8 = 5."""
    running, share = torch.zeros(1), torch.ones(())
    move_mean(running, share, torch.tensor([4.0]), 0.25)
    assert running.tolist() == [4]
    assert move_mean(running, share, torch.tensor([8.0]), 0.25).tolist() == running.tolist() == [5]


def test_with_kappa_0_and_no_vector_to_learn_it_is_fedavg_a_height_later() -> None:
    spec = make_spec()
    assert isinstance(spec, FedDbeSpec)
    plain = get_spec({"name": "fedavg"}, TINY, 3, SHAPE, max_weight=1000, rounds=10, num_members=4)
    for height in (1, 2):
        assert spec.schemas(height + 1) == plain.schemas(height)
        assert spec.rules(height + 1) == plain.rules(height)
        assert spec.get_round_number(height + 1) == height
