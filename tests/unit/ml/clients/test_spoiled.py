"""Spoiled aggregates: one that leaves a client without a finite loss, and one that it cannot train from."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from ml.clients import client as client_module
from ml.clients.client import Client
from ml.clients.probe import explain_untrainable
from ml.errors import Spoiled
from ml.methods.base import Round
from ml.payload import Array, Arrays, decode_arrays, encode_arrays
from ml.simulation import rounds as rounds_module
from ml.simulation.run import SimulationConfig, SimulationResult, simulate
from ml.specs import METHODS, compute_aggregate, get_kind
from ml.training.loop import Diverged
from ml.training.metrics import Prediction, judge
from support.data.normed import describe_normed
from support.federation.simulated import BEACON, aggregate_round, make_digit_clients, run_round

LARGEST = float(np.finfo(np.float32).max)
QUICK: dict[str, dict[str, Any]] = {
    "fededs": {"local_epochs": 1, "warmup_epochs": 1, "encryptor_epochs": 1, "unet_width": 2}
}
BATCH_NORM = {"name": "resnet18", "width": 2}


def are_equal(first: Arrays, second: Arrays) -> bool:
    return encode_arrays(first) == encode_arrays(second)


def spoil(aggregate: Mapping[str, Array], value: float) -> dict[str, Array]:
    """The same with every float `value`."""
    return {name: np.full_like(x, value) if x.dtype.kind == "f" else x for name, x in aggregate.items()}


def take_part(clients: list[Client], height: int) -> dict[str, Array]:
    """A round of all up to its aggregate, which nobody has taken over yet."""
    aggregate = aggregate_round(clients, height, [client.train(height, BEACON) for client in clients])
    assert aggregate is not None
    return aggregate


# ---- not taken over


@pytest.mark.parametrize(
    ("method", "value", "why"),
    [
        ({"name": "fedavg"}, 1e38, "not finite|is nan|is inf"),
        ({"name": "fedprox"}, 1e38, "not finite|is nan|is inf"),
        ({"name": "moon"}, LARGEST, "not finite|is nan|is inf"),
        ({"name": "dfpl"}, 1e38, "the training loss of 32 samples is not finite"),
        ({"name": "dfpl", "aux": "sq"}, 1e25, "the training loss of 32 samples is not finite"),
        ({"name": "fedproto"}, 1e25, "the training loss of 32 samples is not finite"),
        ({"name": "mpfedcl", "normalize": False}, 1e38, "not finite|is nan|is inf"),
        ({"name": "uapdfl"}, 1e25, "not finite"),
    ],
)
def test_an_aggregate_without_a_finite_loss_is_not_taken_over(method: dict[str, Any], value: float, why: str) -> None:
    clients = make_digit_clients(method)
    run_round(clients, 1)
    aggregate = take_part(clients, 2)
    if method["name"] == "uapdfl":  # whose aggregate goes into the mean of nobody else here: its own target is enough
        for client in clients:
            client.state.arrays = client.state.arrays | {"auxiliary": np.full(32, value, np.float32)}
    for client in clients:
        before = client.state_arrays()
        with pytest.raises(Spoiled, match=why):
            client.apply(2, spoil(aggregate, value), beacon=BEACON)
        assert are_equal(client.state_arrays(), before)
    if method["name"] == "uapdfl":
        return
    for client in clients:  # what it has to say next is sound, and the round after is as any other
        made = client.train(3, BEACON)
        assert made.went_back is None
        assert np.isfinite(made.metrics["loss"])


def test_gradients_are_looked_at_and_not_the_loss_alone() -> None:
    """Squares of distances from prototypes of 1e19 are finite, what they pull with is not."""
    clients = make_digit_clients({"name": "dfpl", "aux": "sq", "lambda": 1.0})
    run_round(clients, 1)
    client, aggregate = clients[0], take_part(clients, 2)
    huge = spoil(aggregate, 1e19)
    state = client.state
    state.arrays = {name: huge[f"prototypes/{name}"] for name in ("classes", "prototypes")}
    for weight in state.model.parameters():
        weight.data.mul_(1e3)
    round_ = Round(2, 2, BEACON, client.seed)
    with client.seeded(2):
        assert explain_untrainable(client.method, state, round_, client.engine) is not None


def test_a_model_that_gives_numbers_for_training_and_none_for_its_test_samples_is_spoiled() -> None:
    clients = make_digit_clients({"name": "fedavg"})
    aggregate = take_part(clients, 1)
    before = clients[0].state_arrays()
    clients[0].state.data.matched.x[0] = torch.nan
    with pytest.raises(Spoiled, match=f"the loss of {clients[0].num_test} test samples is nan"):
        clients[0].apply(1, aggregate)
    assert are_equal(clients[0].state_arrays(), before)


def test_without_test_samples_there_is_no_accuracy_and_all_else_goes_on() -> None:
    clients = make_digit_clients({"name": "fedavg"})
    data = clients[0].state.data
    clients[0].state.data = type(data)(data.train, data.matched.take(np.array([], np.int64)), data.everyone, 10)
    aggregate = take_part(clients, 1)
    measured = clients[0].apply(1, aggregate)
    assert np.isnan([measured["accuracy"], measured["loss"]]).all()
    assert are_equal(get_kind(clients[0].state_arrays(), "model") or {}, get_kind(aggregate, "model") or {})
    with pytest.raises(Spoiled):
        clients[0].apply(2, spoil(aggregate, 1e38))


def test_no_samples_give_no_numbers() -> None:
    def predict(x: torch.Tensor) -> Prediction:
        raise AssertionError

    assert np.isnan(list(judge(predict, torch.zeros(0, 1), torch.zeros(0, dtype=torch.int64)).metrics.values())).all()


# ---- the probe leaves no trace


def run(name: str) -> SimulationResult:
    method = {"name": name, **QUICK.get(name, {})}
    own: dict[str, Any] = {"model": describe_normed()} if name == "fedbn" else {}
    return simulate(SimulationConfig(method=method, clients=3, rounds=3, shots=10, **own))


@pytest.mark.parametrize("name", METHODS)
def test_a_run_is_the_same_whether_or_not_it_is_looked_at(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = run(name)
    monkeypatch.setattr(client_module, "explain_untrainable", lambda *_: None)
    blind = run(name)
    assert looked.aggregate_digests == blind.aggregate_digests
    assert looked.rounds == blind.rounds
    assert looked.clients == blind.clients


@pytest.mark.parametrize("model", [{"name": "resnet18"}, {"name": "vgg11"}], ids=lambda model: model["name"])
def test_statistics_of_batch_norm_and_draws_of_dropout_are_as_they_were(model: dict[str, Any]) -> None:
    clients = make_digit_clients({"name": "fedavg", "batch_size": 4}, model=model, num_clients=1, shots=2)
    state, round_ = clients[0].state, Round(1, 1, BEACON, clients[0].seed)
    before = {name: tensor.clone() for name, tensor in state.model.state_dict().items()}
    draws = torch.get_rng_state()
    with clients[0].seeded(1):
        assert explain_untrainable(clients[0].method, state, round_, clients[0].engine) is None
    assert torch.equal(torch.get_rng_state(), draws)
    after = state.model.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert not state.model.training


# ---- a phase that diverges right after an aggregate


def poison(client: Client, aggregate: Mapping[str, Array]) -> dict[str, Array]:
    """An aggregate that still gives a loss and gradients, and steps too long to be made twice."""
    return {name: x * np.float32(3e3) if x.dtype.kind == "f" else x for name, x in aggregate.items()}


def test_a_phase_that_diverges_begins_again_from_the_clients_own_model() -> None:
    clients = make_digit_clients({"name": "fedavg"})
    run_round(clients, 1)
    aggregate = take_part(clients, 2)
    client = clients[0]
    own = client.state_arrays()
    expected = make_digit_clients({"name": "fedavg"})[0]
    expected.load_state_arrays(own)
    client.apply(2, poison(client, aggregate))
    told: list[bool] = []
    made = client.train(3, BEACON, on_back=lambda: told.append(are_equal(client.state_arrays(), own)))
    assert told == [True]
    assert made.went_back is not None
    assert made.went_back.startswith(("loss not finite at step", "the last of 20 steps"))
    wanted = expected.train(3, BEACON)
    assert wanted.went_back is None
    assert are_equal(made.payloads["model"], wanted.payloads["model"])
    assert are_equal(client.state_arrays(), expected.state_arrays())


def test_it_goes_back_once_and_then_has_failed() -> None:
    """With a learning rate that diverges everywhere."""
    clients = make_digit_clients({"name": "dfpl", "lr": 1e30})
    first = clients[0].state_arrays()
    with pytest.raises(Diverged, match=r"loss not finite at step \d+ of 20, lr 1e\+30"):
        clients[0].train(1, BEACON)  # from nothing: there is nothing to go back to
    assert are_equal(clients[0].state_arrays(), first)
    aggregate = take_part(make_digit_clients({"name": "dfpl"}), 1)
    clients[0].apply(1, aggregate)
    assert not are_equal(clients[0].state_arrays(), first)
    told: list[str] = []
    for _ in range(2):
        with pytest.raises(Diverged):
            clients[0].train(2, BEACON, on_back=lambda: told.append("back"))
        assert are_equal(clients[0].state_arrays(), first)  # the last that gave a finite loss
    assert told == ["back"]


def test_once_a_phase_went_well_there_is_no_way_back() -> None:
    clients = make_digit_clients({"name": "fedavg"})
    run_round(clients, 1)
    clients[0].train(2, BEACON)
    own = clients[0].state_arrays()
    assert not clients[0].go_back()
    assert are_equal(clients[0].state_arrays(), own)


def test_the_way_back_is_restored_with_the_state() -> None:
    clients = make_digit_clients({"name": "fedavg"})
    aggregate = take_part(clients, 1)
    own = clients[0].state_arrays()
    clients[0].apply(1, aggregate)
    other = make_digit_clients({"name": "fedavg"})[0]
    other.load_state_arrays(clients[0].state_arrays(), own)
    assert are_equal(other.state_arrays(), clients[0].state_arrays())
    assert other.go_back()
    assert are_equal(other.state_arrays(), own)
    with pytest.raises(ValueError, match="do not fit"):
        other.load_state_arrays(own, {})
    assert are_equal(other.state_arrays(), own)
    assert not other.go_back()


def test_what_others_would_refuse_is_not_sent() -> None:
    """Weights of a million are finite, and so is the loss; nobody would take them."""
    (client,) = make_digit_clients({"name": "fedavg", "lr": 1e-6}, num_clients=1)
    with torch.no_grad():
        next(client.state.model.parameters())[0, 0] = 2e6  # of a pixel that is always 0
    before = client.state_arrays()
    with pytest.raises(Diverged, match=r"has left what others would refuse: .*expected numbers from -1e\+06 to 1e\+06"):
        client.train(1, BEACON)
    assert are_equal(client.state_arrays(), before)


# ---- the simulation does the same


@pytest.mark.parametrize("batched", ["off", "on"])
def test_a_simulated_client_goes_on_from_its_own_model_too(
    batched: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The aggregate of height 2 is spoiled for all, that of height 3 cannot be trained from."""

    def compute(spec: Any, height: int, contributions: Any, parent: Any) -> bytes | None:
        encoded = compute_aggregate(spec, height, contributions, parent)
        assert encoded is not None
        arrays = decode_arrays(encoded, len(encoded))
        if height == 2:
            return encode_arrays(spoil(arrays, 1e38))
        return encode_arrays({name: x * np.float32(3e3) for name, x in arrays.items()}) if height == 3 else encoded

    monkeypatch.setattr(rounds_module, "compute_aggregate", compute)
    caplog.set_level(logging.WARNING)
    config = SimulationConfig(method={"name": "fedavg"}, clients=3, rounds=6, batched=batched)
    result = simulate(config)
    assert caplog.text.count("went on from its own model after height 2") == 3
    assert result.rounds[1].taa == result.rounds[1].taa_local
    assert result.rounds[5].taa > result.rounds[0].taa
    assert all(np.isfinite([told.tal, told.taa]).all() for told in result.rounds)
