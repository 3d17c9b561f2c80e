"""A client of a run of masked sums: it trains for heights of inputs, and takes over a mean where there is one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from ml.clients.build import Federation, make_client, make_clients, make_initial_aggregate
from ml.clients.client import Client
from ml.clients.masked import MaskedClient
from ml.data import get_classes
from ml.errors import MlError
from ml.methods.base import Trained
from ml.payload import Arrays, decode_arrays, encode_arrays
from ml.specs import AuthorPayloads, add_kind, compute_aggregate, get_kind
from support.federation.simulated import BEACON

MODEL = {"name": "mlp", "hidden": [16, 8]}
DIGITS = {"format": "digits"}
INPUT: dict[str, Any] = {"shape": [1, 8, 8], "resize": None, "mean": [0.5], "std": [0.5]}
INITIAL = make_initial_aggregate(MODEL, (1, 8, 8), 10, 5)
METHODS = ("fedavg", "dfpl", "moon", "fedproto", "mpfedcl")
CARRIED: Mapping[str, Any] = {"masked/spoiled": np.array(0, np.int64), "masked/keys": np.zeros((4, 32), np.uint8)}


def make_federation(method: str, aggregation: str, rounds: int = 3) -> Federation:
    return Federation(
        method={"name": method, "local_iterations": 3, "schedule": "cosine", "lr": 0.2, "aggregation": aggregation},
        model=MODEL,
        classes=get_classes(DIGITS),
        input=INPUT,
        rounds=rounds,
        num_members=4,
        max_weight=1000,
    )


def make_masked(method: str = "fedavg") -> MaskedClient:
    client = make_client(make_federation(method, "masked_sum"), data=DIGITS, seed=7, initial=INITIAL)
    assert isinstance(client, MaskedClient)
    return client


def make_plain(method: str = "fedavg") -> Client:
    """The same client in a run without masks."""
    return make_client(make_federation(method, "mean"), data=DIGITS, seed=7, initial=INITIAL)


def combine(client: MaskedClient, trained: Trained) -> Arrays:
    """The mean of one member's round, as the method has it."""
    given = [AuthorPayloads(bytes(32), min(trained.weight, 1000), trained.payloads)]
    encoded = compute_aggregate(client.spec.inner, 1, given, None)
    assert encoded is not None
    return decode_arrays(encoded, len(encoded))


def get_state(client: Client) -> bytes:
    return encode_arrays(client.state_arrays())


@pytest.mark.parametrize("method", METHODS)
def test_its_rounds_of_two_heights_are_those_of_the_method(method: str) -> None:
    masked, plain = make_masked(method), make_plain(method)
    for round_number in (1, 2):
        made, expected = masked.train(2 * round_number, BEACON), plain.train(round_number, BEACON)
        assert made.weight == expected.weight
        assert {kind: encode_arrays(arrays) for kind, arrays in made.payloads.items()} == {
            kind: encode_arrays(arrays) for kind, arrays in expected.payloads.items()
        }
        mean = combine(masked, made)
        assert masked.apply(2 * round_number + 1, {**mean, **CARRIED}) == plain.apply(round_number, mean)
        assert get_state(masked) == get_state(plain)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("height", [1, 2, 4])
def test_heights_of_first_keys_and_of_inputs_leave_it_as_it_is(method: str, height: int) -> None:
    """Whatever their aggregates carry of the mean before."""
    client = make_masked(method)
    made = client.train(2, BEACON)
    before = get_state(client)
    assert client.apply(height, {**INITIAL, **combine(client, made), **CARRIED}) == client.evaluate()
    assert get_state(client) == before


@pytest.mark.parametrize("method", ["dfpl", "fedproto", "mpfedcl"])
@pytest.mark.parametrize("aggregate", [CARRIED, {**INITIAL, **CARRIED}, None])
def test_where_no_round_has_come_to_a_mean_yet_it_measures_itself_and_trains_on(
    method: str, aggregate: Arrays | None
) -> None:
    """Of prototypes: the first round was lost, and there are none before it."""
    client = make_masked(method)
    client.train(2, BEACON)
    before = get_state(client)
    assert client.apply(3, aggregate) == client.evaluate()
    assert get_state(client) == before
    made = client.train(4, BEACON)
    client.apply(5, {**combine(client, made), **CARRIED})
    assert get_state(client) != before


@pytest.mark.parametrize("gone", ["model/fc1.weight", "model/fc3.bias"])
def test_a_part_of_a_model_is_no_mean(gone: str) -> None:
    """As a run may go on from, until one of its own rounds has come to something."""
    client = make_masked()
    part = {name: array for name, array in INITIAL.items() if name != gone}
    assert (client.spec.coding.is_held(INITIAL), client.spec.coding.is_held(part)) == (True, False)
    before = get_state(client)
    assert client.apply(3, {**part, **CARRIED}) == client.evaluate()
    assert get_state(client) == before


def test_where_a_round_is_lost_it_goes_back_to_the_mean_before() -> None:
    client = make_masked()
    made = client.train(2, BEACON)
    mean = {**combine(client, made), **CARRIED}
    client.apply(3, mean)
    before = get_state(client)
    client.train(4, BEACON)
    assert get_state(client) != before
    client.apply(5, mean)
    assert get_state(client) == before


def test_where_the_first_round_is_lost_all_go_back_to_the_model_that_the_run_began_with() -> None:
    """Beside which there is a pool of nobody's prototypes."""
    client, none = make_masked("mpfedcl"), np.empty(0, np.int64)
    pool: Arrays = {"classes": none, "prototypes": np.empty((0, 8), np.float32), "authors": none}
    client.train(2, BEACON)
    client.apply(3, {**INITIAL, **add_kind("prototypes", pool), **CARRIED})
    assert encode_arrays(add_kind("model", get_kind(client.state_arrays(), "model") or {})) == encode_arrays(INITIAL)
    made = client.train(4, BEACON)
    client.apply(5, {**combine(client, made), **CARRIED})
    assert client.method.list_prototypes(client.state) is not None


def test_what_it_has_no_part_in_it_refuses() -> None:
    client = make_masked()
    for height in (1, 3, 5):
        with pytest.raises(MlError, match="nothing is trained for a height at which seeds are opened"):
            client.train(height, BEACON)
    with pytest.raises(MlError, match="nobody sees what single members sent"):
        client.score(3, [INITIAL])
    assert [client.to_method_height(height) for height in range(1, 6)] == [None, 1, None, 2, None]


def test_a_simulation_hides_nothing_from_itself() -> None:
    clients = make_clients(make_federation("fedavg", "masked_sum"), data=DIGITS, partition="iid", run_seed=5)
    assert len(clients) == 4
    assert not any(isinstance(client, MaskedClient) for client in clients)
