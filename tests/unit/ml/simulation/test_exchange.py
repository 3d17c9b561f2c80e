"""The exchange between clients of a simulation: what each takes from others, and its cost."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ml.simulation.exchange
from ml.clients.client import Client
from ml.methods.fedper import FedPer
from ml.methods.uapdfl import UaPdfl
from ml.payload import encode_arrays
from ml.simulation.exchange import Exchange, Size
from ml.specs.methods.fedper import FedPerSpec
from ml.specs.methods.uapdfl import UaPdflSpec
from support.federation.peer_rounds import Block, get_id, make_peer_clients
from support.federation.simulated import BEACON, make_digit_clients

TWO: dict[str, Any] = {"num_peers": 2, "local_iterations": 2}


def list_ids(clients: Sequence[Client]) -> list[bytes]:
    return [get_id(i) for i in range(len(clients))]


def make_clients(**settings: Any) -> list[Client]:
    return make_peer_clients(UaPdfl, UaPdflSpec, {**TWO, **settings})


def test_a_voted_payload_is_sent_once_and_received_by_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = make_digit_clients({"name": "fedavg", "local_iterations": 1}, num_clients=4)
    trained = [client.train(1, BEACON) for client in clients]
    encoded = sum(len(encode_arrays(made.payloads["model"])) for made in trained)
    monkeypatch.setattr(ml.simulation.exchange, "iter_encoded", None)  # nothing is encoded, and so nothing hashed
    exchange = Exchange.make(clients[0].spec, 1, list_ids(clients), trained)
    assert (exchange.offers, exchange.blobs) == ((), {})
    sent, received = exchange.measure({me: exchange.take(BEACON, me, None) for me in list_ids(clients)})
    assert sent == Size(4 * 6_570, encoded)
    assert received == Size(3 * sent.params, 3 * sent.bytes)


def test_offers_are_what_a_block_would_have() -> None:
    clients = make_clients()
    trained = [client.train(1, BEACON) for client in clients]
    block = Block.make(clients, dict(enumerate(trained)), 1, BEACON)
    backwards = Exchange.make(clients[0].spec, 1, list_ids(clients)[::-1], trained[::-1])
    assert backwards.offers == block.offers
    assert backwards.blobs.keys() < block.blobs.keys()  # of what is voted on nobody needs the blob
    for digest, arrays in backwards.blobs.items():
        assert hashlib.sha256(encode_arrays(arrays)).digest() == digest


def test_a_client_takes_what_its_spec_wants() -> None:
    clients = make_clients()
    trained = [client.train(1, BEACON) for client in clients]
    block = Block.make(clients, dict(enumerate(trained)), 1, BEACON)
    exchange = Exchange.make(clients[0].spec, 1, list_ids(clients), trained)
    for i, client in enumerate(clients):
        assert list(exchange.take(BEACON, get_id(i), block.aggregate)) == list(block.get_wanted(client, i))


def test_what_several_clients_take_cannot_be_written_to() -> None:
    clients = make_peer_clients(FedPer, FedPerSpec, TWO)
    trained = [client.train(1, BEACON) for client in clients]
    exchange = Exchange.make(clients[0].spec, 1, list_ids(clients), trained)
    arrays = next(iter(exchange.take(BEACON, get_id(0), None).values()))
    for array in arrays.values():
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    assert all(array.flags.writeable for array in trained[0].payloads["g"].values())  # its author's own still can


def test_a_blob_counts_as_often_as_it_is_pulled() -> None:
    clients = make_peer_clients(FedPer, FedPerSpec, TWO)
    trained = [client.train(1, BEACON) for client in clients]
    exchange = Exchange.make(clients[0].spec, 1, list_ids(clients), trained)
    sent, received = exchange.measure({me: exchange.take(BEACON, me, None) for me in list_ids(clients)})
    g = trained[0].payloads["g"]
    assert sent == received == Size(4 * 2 * sum(map(np.size, g.values())), 4 * 2 * len(encode_arrays(g)))


def test_what_a_client_has_made_itself_is_not_pulled_from_another() -> None:
    clients = make_peer_clients(FedPer, FedPerSpec, {**TWO, "num_peers": 3})
    made = clients[0].train(1, BEACON)
    exchange = Exchange.make(clients[0].spec, 1, list_ids(clients), [replace(made) for _ in clients])
    taken = {me: exchange.take(BEACON, me, None) for me in list_ids(clients)}
    assert [len(blobs) for blobs in taken.values()] == [1] * 4
    assert exchange.measure(taken) == (Size(), Size())


def test_the_dropout_branch_requests_exactly_one_model() -> None:
    clients = make_clients(th=1e9)
    trained = [client.train(1, BEACON) for client in clients]
    spec = clients[0].spec
    block = Block.make(clients, dict(enumerate(trained)), 1, BEACON)
    exchange = Exchange.make(spec, 1, list_ids(clients), trained)
    for me in list_ids(clients):
        blobs = exchange.take(BEACON, me, block.aggregate)
        (donor,) = [offer for offer in exchange.offers if {offer.digests["g"], offer.digests["h"]} == blobs.keys()]
        assert donor.author != me
        assert sorted(name for arrays in blobs.values() for name in arrays) == sorted(spec.task.model_schema.arrays)
        sent, _ = exchange.measure({me: blobs})
        assert sent.params - exchange.voted.params == spec.task.num_parameters


def test_what_later_rounds_read_is_kept_and_given_to_whoever_draws_it() -> None:
    quick = {"warmup_epochs": 1, "encryptor_epochs": 1, "unet_width": 2, "local_epochs": 2}
    clients = make_digit_clients({"name": "fededs", **quick}, num_clients=4, shots=3)
    trained = [client.train(1, BEACON) for client in clients]
    ids, spec = list_ids(clients), clients[0].spec
    exchange = Exchange.make(spec, 1, ids, trained)
    assert [offer.author for offer in exchange.offers] == ids
    for offer, made in zip(exchange.offers, trained, strict=True):
        for kind, arrays in made.payloads.items():
            assert offer.digests[kind] == hashlib.sha256(encode_arrays(arrays)).digest()
    for me in ids:
        taken = exchange.take_for_training(2, BEACON, me)
        assert list(taken) == list(spec.wanted_in_training(2, BEACON, me, exchange.offers))
        authors = [offer.author for offer in exchange.offers if offer.digests["encrypted_set"] in taken]
        assert 1 <= len(authors) <= 2
        assert me not in authors
        assert not any(array.flags.writeable for arrays in taken.values() for array in arrays.values())
    sent, received = exchange.measure({me: exchange.take(BEACON, me, None) for me in ids})
    assert sent.bytes == sum(len(encode_arrays(arrays)) for made in trained for arrays in made.payloads.values())
    assert received == sent * 3
    assert exchange.take_for_training(4, BEACON, ids[0]) == {}  # lambda_dis is 0
