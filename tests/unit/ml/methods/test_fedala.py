"""FedALA: two rounds of two clients by hand, what of the common model a client takes over, and what it sends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import ml.methods.fedala
from ml.clients.client import Client
from ml.errors import SpecError, Spoiled
from ml.methods.base import Round
from ml.methods.fedala import MAX_PASSES, SETTLED, WINDOW, FedAla
from ml.models.base import dump_parameters
from ml.payload import Array, Arrays
from ml.specs import get_kind, get_spec
from ml.specs.methods.fedala import FedAlaSpec
from ml.training.loop import compute_cross_entropy
from support.federation.simulated import BEACON, aggregate_round, get_parent, make_digit_clients, run_round

TINY: dict[str, Any] = {"name": "mlp", "hidden": [4]}
METHOD: dict[str, Any] = {"name": "fedala", "local_iterations": 2, "batch_size": 8, "lr": 0.5}
TWO: dict[str, Any] = {"num_clients": 2, "model": TINY, "partition": "dirichlet:0.5", "shots": 6}


def make_spec(model: dict[str, Any] = TINY, **settings: Any) -> FedAlaSpec:
    spec = get_spec({"name": "fedala", **settings}, model, 3, (1, 8, 8), rounds=5, num_members=4)
    assert isinstance(spec, FedAlaSpec)
    return spec


def get_weights(client: Client) -> dict[str, Array] | None:
    return get_kind(client.state.arrays, "learned")


# ---- a reference that shares no code: a network of two layers in float64


def answer(model: Arrays, x: torch.Tensor) -> torch.Tensor:
    (first, bias), (last, last_bias) = (
        [torch.tensor(np.float64(model[f"{layer}.{part}"])) for part in ("weight", "bias")]
        for layer in list_layers(model)
    )
    return torch.relu(x @ first.T + bias) @ last.T + last_bias


def list_layers(model: Arrays) -> list[str]:
    return list(dict.fromkeys(name.rpartition(".")[0] for name in model))


def mix(own: Arrays, common: Arrays, w: Arrays) -> dict[str, Array]:
    ways = {name: common[name].astype(np.float64) - own[name] for name in own}
    return {name: own[name] + way * w.get(name, 1.0) for name, way in ways.items()}


def aggregate_by_hand(
    own: Arrays, common: Arrays, weights: Arrays | None, batches: list[tuple[torch.Tensor, torch.Tensor]], eta: float
) -> tuple[dict[str, Array], dict[str, Array]]:
    """v_i and W_i. The gradient of a softmax on top of a ReLU layer is written out."""
    layer = list_layers(own)[-1]
    names = (f"{layer}.weight", f"{layer}.bias")
    w: dict[str, Array] = {
        name: np.ones(own[name].shape) if weights is None else weights[name].astype(np.float64) for name in names
    }
    losses: list[float] = []
    while True:
        of_pass = []
        for x, y in batches:
            mixed = mix(own, common, w)
            first = list_layers(own)[0]
            hidden = np.maximum(x.numpy() @ mixed[f"{first}.weight"].T + mixed[f"{first}.bias"], 0)
            logits = hidden @ mixed[names[0]].T + mixed[names[1]]
            shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
            of_pass.append(-np.log(shares[np.arange(len(y)), y.numpy()]).mean())
            error = (shares - np.eye(shares.shape[1])[y.numpy()]) / len(y)
            gradients = {names[0]: error.T @ hidden, names[1]: error.sum(0)}
            for name in names:
                way = common[name].astype(np.float64) - own[name]
                w[name] = np.clip(w[name] - eta * gradients[name] * way, 0, 1)
        losses.append(float(np.mean(of_pass)))
        settled = len(losses) > WINDOW and np.std(losses[-WINDOW:]) < SETTLED
        if weights is not None or settled or len(losses) == MAX_PASSES:
            break
    return mix(own, common, w), w


def test_two_rounds_of_two_clients_are_those_done_by_hand() -> None:
    clients = make_digit_clients(METHOD, **TWO)
    known: list[Arrays | None] = [None, None]
    for height in (1, 2):
        trained = [client.train(height, BEACON) for client in clients]
        aggregate = aggregate_round(clients, height, trained, get_parent(clients))
        common = get_kind(aggregate, "model") or {}
        total = sum(made.weight for made in trained)
        for name, array in common.items():  # FedAvg's mean
            by_hand = sum(made.payloads["model"][name] * (made.weight / total) for made in trained)
            assert array == pytest.approx(by_hand, abs=1e-6)
        for i, client in enumerate(clients):
            own, samples = dump_parameters(client.state.model), client.state.data.train
            assert isinstance(client.method, FedAla)
            rows = client.method.draw(client.state, Round(height, height, BEACON, client.seed))
            assert sum(map(len, rows)) == round(0.8 * client.num_train)
            batches = [(samples.x[row].flatten(1).double(), samples.y[row]) for row in rows]
            expected, weights = aggregate_by_hand(own, common, known[i], batches, 1.0)
            client.apply(height, aggregate, beacon=BEACON)
            got, learned = dump_parameters(client.state.model), get_weights(client)
            assert learned is not None
            assert learned.keys() == weights.keys()
            for name, weight in weights.items():
                assert learned[name] == pytest.approx(weight, abs=1e-4)
                assert 0 <= learned[name].min() <= learned[name].max() <= 1
            for name, array in expected.items():
                assert got[name] == pytest.approx(array, abs=1e-4)
            x, y = samples.x.flatten(1).double(), samples.y
            assert float(F.cross_entropy(answer(got, x), y)) < float(F.cross_entropy(answer(common, x), y))
            known[i] = learned


# ---- what is taken over, and what is sent


def test_below_the_top_layers_the_common_model_is_everyones() -> None:
    clients = make_digit_clients(METHOD, **TWO)
    run_round(clients, 1)
    one, other = (dump_parameters(client.state.model) for client in clients)
    below, top = list_layers(one)
    for name in one:
        assert np.array_equal(one[name], other[name]) == name.startswith(f"{below}."), name
    for client in clients:
        assert {name.rpartition(".")[0] for name in get_weights(client) or {}} == {top}


def test_p_counts_layers_from_the_top() -> None:
    deep = {"name": "mlp", "hidden": [8, 4]}
    layers = [list(make_spec(deep, num_layers=p).top) for p in (1, 2, 3, 9)]
    assert [len(names) for names in layers] == [2, 4, 6, 6]
    every = list(make_spec(deep).task.parameter_schema.arrays)
    assert [names == every[-len(names) :] for names in layers] == [True] * 4


def test_what_is_sent_is_the_model_as_fedavg_sends_it() -> None:
    clients = make_digit_clients(METHOD, **TWO)
    spec, plain = clients[0].spec, make_digit_clients({**METHOD, "name": "fedavg"}, **TWO)
    for height in (1, 2):
        for made in run_round(clients, height):
            assert made.payloads.keys() == {"model"}
            assert made.payloads["model"].keys() == spec.schemas(height)["model"].arrays.keys()
    assert spec.schemas(1) == plain[0].spec.schemas(1)
    assert spec.rules(1) == plain[0].spec.rules(1)


def test_who_has_not_trained_takes_the_common_model() -> None:
    clients, (late, *_) = (make_digit_clients(METHOD, **TWO) for _ in range(2))
    trained = [client.train(1, BEACON) for client in clients]
    aggregate = aggregate_round(clients, 1, trained, get_parent(clients))
    late.apply(1, aggregate, beacon=BEACON)
    taken, common = dump_parameters(late.state.model), get_kind(aggregate, "model") or {}
    assert all(np.array_equal(taken[name], array) for name, array in common.items())
    assert late.state.arrays == {}


@pytest.mark.parametrize("num_layers", [1, 2])
def test_to_take_over_a_block_again_changes_nothing(num_layers: int) -> None:
    clients = make_digit_clients({**METHOD, "num_layers": num_layers}, **TWO)
    run_round(clients, 1)
    trained = [client.train(2, BEACON) for client in clients]
    aggregate = aggregate_round(clients, 2, trained, get_parent(clients))
    once = clients[0].apply(2, aggregate, beacon=BEACON), clients[0].state_arrays()
    again = clients[0].apply(2, aggregate, beacon=BEACON), clients[0].state_arrays()
    assert once[0] == again[0]
    assert all(np.array_equal(array, again[1][name]) for name, array in once[1].items())


def test_what_is_below_the_classifier_is_gone_through_once_to_the_same_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (make_digit_clients(METHOD, **TWO) for _ in range(2))
    run_round(one, 1)
    monkeypatch.setattr(ml.methods.fedala, "embed_batches", lambda model, batches: batches)
    monkeypatch.setattr(ml.methods.fedala, "compute_loss_above", compute_cross_entropy)
    run_round(other, 1)
    for name, array in (get_weights(one[0]) or {}).items():
        assert (get_weights(other[0]) or {})[name] == pytest.approx(array, abs=1e-5)


def test_alone_there_is_nothing_to_learn() -> None:
    (client,) = make_digit_clients(METHOD, **{**TWO, "num_clients": 1})
    (plain,) = make_digit_clients({**METHOD, "name": "fedavg"}, **{**TWO, "num_clients": 1})
    for height in (1, 2):
        assert (
            run_round([client], height)[0].payloads["model"].keys()
            == run_round([plain], height)[0].payloads["model"].keys()
        )
    assert get_weights(client) is None
    for name, array in dump_parameters(plain.state.model).items():
        assert np.array_equal(dump_parameters(client.state.model)[name], array)


def test_a_client_restored_goes_on_as_if_it_had_not_been_away() -> None:
    clients = make_digit_clients(METHOD, **TWO)
    run_round(clients, 1)
    again = make_digit_clients(METHOD, **TWO)
    for client, restored in zip(clients, again, strict=True):
        restored.load_state_arrays(client.state_arrays())
    ours, theirs = run_round(clients, 2), run_round(again, 2)
    for one, other in zip(ours, theirs, strict=True):
        assert all(
            np.array_equal(one.payloads["model"][name], other.payloads["model"][name]) for name in one.payloads["model"]
        )
    for client, restored in zip(clients, again, strict=True):
        assert client.evaluate() == restored.evaluate()


def test_a_common_model_that_gives_no_numbers_spoils_the_round_and_leaves_the_weights() -> None:
    clients = make_digit_clients(METHOD, **TWO)
    run_round(clients, 1)
    clients[0].train(2, BEACON)
    before = clients[0].state_arrays()
    spoiled = {name: np.full_like(array, np.finfo(np.float32).max) for name, array in get_parent(clients).items()}
    with pytest.raises(Spoiled):
        clients[0].apply(2, spoiled, beacon=BEACON)
    after = clients[0].state_arrays()
    assert before.keys() == after.keys()
    assert all(np.isfinite(array).all() for array in after.values())
    assert all(np.array_equal(before[name], after[name]) for name in before if name.startswith("state/"))


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({"num_layers": 0}, "method.num_layers"),
        ({"sample_share": 0}, "method.sample_share"),
        ({"sample_share": 1.5}, "method.sample_share"),
        ({"eta": 0}, "method.eta"),
        ({"dp_noise": 1.0}, "method.dp_noise"),
    ],
)
def test_what_it_cannot_be_is_refused(settings: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecError) as caught:
        make_spec(**settings)
    assert caught.value.path == path
