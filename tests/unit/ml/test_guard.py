"""The guard of a client that takes models of single peers, some of which would do it harm."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ml.clients.client import Client
from ml.errors import DataError, Spoiled
from ml.guard import Guard, LeftOut, Outcome
from ml.methods.base import Metrics
from ml.payload import Array, Arrays
from ml.simulation.run import SimulationConfig, simulate
from support.federation.peer_rounds import Block, are_equal, get_id, get_model
from support.federation.simulated import BEACON, make_digit_clients

PEERS = (b"a", b"b", b"c")


class Round:
    """Losses by who of the peers is taken: `harms` is what each adds to a loss of 1; `at_rest` what is there anyway."""

    def __init__(self, at_rest: float = 0.0, **harms: float) -> None:
        self.harms = {name.encode(): harm for name, harm in harms.items()}
        self.at_rest = at_rest
        self.tried: list[frozenset[bytes]] = []

    def take(self, out: Collection[bytes]) -> Outcome:
        taken = self.harms.keys() - set(out)
        self.tried.append(frozenset(taken))
        loss = 1.0 + self.at_rest + sum(self.harms[peer] for peer in taken)
        return Outcome({"loss": loss}) if math.isfinite(loss) else Outcome({}, "no number")


def test_without_harm_nobody_is_tried_alone() -> None:
    round_ = Round(a=0.5, b=-0.5, c=2.5)
    outcome, refused = Guard(1.0, 4.0).take(round_.take, PEERS)
    assert (outcome.loss, refused) == (3.5, {})
    assert round_.tried == [frozenset(PEERS)]


def test_who_does_harm_alone_is_refused_and_nobody_else() -> None:
    round_ = Round(a=0.5, b=9.0, c=math.inf)
    outcome, refused = Guard(1.0, 4.0).take(round_.take, PEERS)
    assert outcome.loss == 1.5
    assert refused == {b"b": "the loss on own samples would go from 1 to 10", b"c": "no number"}
    assert round_.tried[-1] == {b"a"}  # what is asked last is what stands


def test_of_those_who_do_harm_together_the_worst_goes_first() -> None:
    outcome, refused = Guard(1.0, 4.0).take(Round(a=2.0, b=2.5, c=0.5).take, PEERS)
    assert outcome.loss == 3.5
    assert refused == {b"b": "with others, the loss on own samples would go from 1 to 6"}


def test_nobody_is_refused_for_what_is_there_without_them() -> None:
    round_ = Round(9.0, a=0.0, b=1.0, c=math.inf)
    outcome, refused = Guard(1.0, 4.0).take(round_.take, PEERS)
    assert (outcome.fault, refused) == ("no number", {})
    assert round_.tried[-1] == set(PEERS)


def test_without_a_ratio_any_finite_loss_will_do() -> None:
    outcome, refused = Guard(math.nan).take(Round(a=1e30, b=math.inf, c=0.0).take, PEERS)
    assert (outcome.loss, refused) == (1e30, {b"b": "no number"})


def test_where_there_are_no_samples_to_tell_by_only_a_fault_is_harm() -> None:
    guard = Guard(math.nan, 4.0)
    assert guard.explain(Outcome({"loss": math.nan})) is None
    assert guard.explain(Outcome({}, "no number")) == "no number"


def test_who_was_refused_is_left_out_of_the_rounds_after() -> None:
    left_out = LeftOut()
    left_out.add(b"a", 5, "too bad")
    assert [sorted(left_out.get(height, 2)) for height in range(4, 9)] == [[], [], [b"a"], [b"a"], []]
    assert left_out.get(6, 2) == {b"a": "left out of the draw, as what it offered in round 5 does harm here: too bad"}
    left_out.add(b"a", 8, "again")
    assert sorted(left_out.get(10, 2)) == [b"a"]


# ---- real clients

EVERYONE = {"num_peers": 3}
METHODS = [
    {"name": "uapdfl", "th": 1e9, **EVERYONE},  # takes the whole model of one
    {"name": "uapdfl", "th": -1.0, **EVERYONE},
    {"name": "fedavg_p2p", **EVERYONE},
    {"name": "fedper", **EVERYONE},
    {"name": "dispfl", **EVERYONE},
    {"name": "dfedavgm"},
]
LIAR = 3


def spoil(arrays: Arrays, value: float) -> dict[str, Array]:
    return {name: np.full_like(array, value) if array.dtype == np.float32 else array for name, array in arrays.items()}


def make_block(clients: list[Client], value: float) -> Block:
    """A round of all, of whom the last offers models of one number, and else what it has learned."""
    trained = {i: client.train(1, BEACON) for i, client in enumerate(clients)}
    payloads = {
        kind: arrays if kind in ("unit", "auxiliary") else spoil(arrays, value)
        for kind, arrays in trained[LIAR].payloads.items()
    }
    trained[LIAR] = replace(trained[LIAR], payloads=payloads)
    return Block.make(clients, trained, 1, BEACON)


def make_guarded(method: dict[str, Any], ratio: float | None) -> list[Client]:
    clients = make_digit_clients(method, num_clients=4, partition="dirichlet:5")
    for client in clients:
        client.max_loss_ratio = math.inf if ratio is None else ratio
    return clients


def wants_of_liar(block: Block, client: Client, i: int) -> bool:
    return not set(block.get_wanted(client, i)).isdisjoint(block.offers[LIAR].digests.values())


def take(block: Block, client: Client, i: int) -> tuple[Metrics, dict[bytes, str]]:
    refused: dict[bytes, str] = {}
    return block.apply(client, i, on_refused=refused.__setitem__), refused


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method['name']}{method.get('th', '')}")
def test_a_harmful_model_is_not_taken_and_those_of_others_are(method: dict[str, Any]) -> None:
    clients = make_guarded(method, 4.0)
    block = make_block(clients, 50.0)
    harmed = 0
    for i, client in enumerate(clients[:LIAR]):
        before = client.evaluate()["loss"]
        wants_it = wants_of_liar(block, client, i)
        measured, refused = take(block, client, i)
        assert set(refused) == ({get_id(LIAR)} if wants_it else set())
        assert measured["loss"] <= 4 * before
        assert measured == pytest.approx(measured | client.evaluate())
        harmed += wants_it
        if wants_it and "th" not in method:
            assert measured["peers"] >= 1  # the others' are taken all the same
    assert harmed or method.get("th") == 1e9


@pytest.mark.parametrize("method", METHODS[1:], ids=lambda method: method["name"])
def test_what_is_left_is_what_the_round_without_them_would_have_been(method: dict[str, Any]) -> None:
    clients = make_guarded(method, 4.0)
    block = make_block(clients, 50.0)
    i = next(i for i in range(LIAR) if wants_of_liar(block, clients[i], i))
    state = clients[i].state_arrays()
    measured, refused = take(block, clients[i], i)
    model = get_model(clients[i])
    clients[i].load_state_arrays(state)
    assert take(block, clients[i], i) == (measured, refused)  # as often as it is asked
    clients[i].load_state_arrays(state)
    assert block.apply(clients[i], i, refused) == measured
    assert are_equal(get_model(clients[i]), model)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method['name']}{method.get('th', '')}")
def test_honest_clients_of_like_data_take_all_of_each_other(method: dict[str, Any]) -> None:
    guarded, plain = make_guarded(method, 4.0), make_guarded(method, None)
    block = Block.make(guarded, {i: client.train(1, BEACON) for i, client in enumerate(guarded)}, 1, BEACON)
    for i, (client, other) in enumerate(zip(guarded, plain, strict=True)):
        other.train(1, BEACON)
        measured, refused = take(block, client, i)
        assert not refused
        assert block.apply(other, i) == measured


def test_without_a_ratio_only_what_is_not_finite_is_refused() -> None:
    clients = make_guarded({"name": "fedavg_p2p", **EVERYONE}, None)
    block = make_block(clients, 50.0)
    assert take(block, clients[0], 0)[1] == {}
    clients = make_guarded({"name": "fedavg_p2p", **EVERYONE}, None)
    block = replace(block, blobs={**block.blobs, block.offers[LIAR].digests["g"]: spoil_part(block, "g", 1e38)})
    clients[1].train(1, BEACON)
    measured, refused = take(block, clients[1], 1)
    assert set(refused) == {get_id(LIAR)}
    assert "not finite" in refused[get_id(LIAR)]
    assert measured["peers"] == 2


def spoil_part(block: Block, kind: str, value: float) -> dict[str, Array]:
    return spoil(block.blobs[block.offers[LIAR].digests[kind]], value)


def test_a_client_that_is_spoiled_without_its_peers_says_so_and_blames_none_of_them() -> None:
    clients = make_guarded({"name": "fedavg_p2p", **EVERYONE}, 4.0)
    block = make_block(clients, 0.1)
    for weight in clients[0].state.model.parameters():
        weight.data.fill_(math.nan)
    with pytest.raises(Spoiled):
        take(block, clients[0], 0)


# ---- simulations


def simulate_p2p(ratio: float | None, partition: str = "dirichlet:0.1") -> list[float | None]:
    """How many peers clients took something of, by round, where data differ a lot."""
    method = {"name": "fedavg_p2p", "num_peers": 3, "local_iterations": 20}
    config = SimulationConfig(
        method=method, clients=4, rounds=4, partition=partition, model={"name": "mlp"}, max_loss_ratio=ratio
    )
    return [row.peers for row in simulate(config).rounds]


def test_a_simulation_takes_all_unless_it_is_asked_to_refuse_and_then_leaves_out_for_two_rounds() -> None:
    assert simulate_p2p(None) == [3.0] * 4
    guarded = simulate_p2p(1.5)
    assert guarded[0] is not None
    assert guarded[0] < 3
    assert guarded[1] is not None
    assert guarded[1] <= guarded[0]


@pytest.mark.parametrize("ratio", [0.5, math.inf, math.nan])
def test_a_ratio_is_a_number_of_at_least_one(ratio: float) -> None:
    with pytest.raises(DataError, match="max_loss_ratio: expected a number of at least 1"):
        SimulationConfig(method={"name": "fedavg_p2p"}, max_loss_ratio=ratio)
