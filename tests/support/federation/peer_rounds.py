"""Peer-to-peer rounds run by hand: clients that show what they have, draw, pull and mix."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from ml.clients.client import Client
from ml.guard import OnRefused
from ml.methods.base import Method, Metrics, Trained
from ml.payload import Array, Arrays, decode_arrays, encode_arrays
from ml.specs import AuthorPayloads, MethodSpec, Offer, compute_aggregate, get_kind
from support.federation.simulated import BEACON, MLP, make_digit_clients


def get_id(i: int) -> bytes:
    """Returns the id of client i."""
    return bytes([i]) * 32


def make_peer_clients(
    method: Callable[[Any], Method], spec: type[MethodSpec], settings: Mapping[str, Any] | None = None, **options: Any
) -> list[Client]:
    """Makes clients as `make_digit_clients`, with a method and a spec by their classes."""
    local = make_digit_clients({"name": "local"}, **{"num_clients": 4, "model": MLP, **options})
    return [
        Client(
            method(spec.from_mapping(settings or {}, client.spec.task)),
            client.state.model,
            client.state.data,
            seed=client.seed,
        )
        for client in local
    ]


@dataclass(frozen=True)
class Block:
    """The outcome of a round: the offers of its authors, their blobs by digest, and the aggregate."""

    height: int
    beacon: bytes
    offers: tuple[Offer, ...]
    blobs: Mapping[bytes, Arrays]
    aggregate: dict[str, Array] | None

    @classmethod
    def make(cls, clients: Sequence[Client], trained: Mapping[int, Trained], height: int, beacon: bytes) -> Block:
        """Makes the block of those clients that `trained` has by their index, as validators accept it."""
        spec = clients[0].spec
        offers, blobs = [], {}
        for i, made in sorted(trained.items()):
            digests = {}
            spec.validate_weight(made.weight)
            spec.validate_kinds(made.payloads, height)
            for kind, arrays in made.payloads.items():
                spec.validate_payload(kind, arrays, height)
                encoded = encode_arrays(arrays)
                digests[kind] = sha256(encoded).digest()
                blobs[digests[kind]] = decode_arrays(encoded, spec.schemas(height)[kind].max_bytes)
            offers.append(Offer(get_id(i), made.weight, digests))
        contributions = [AuthorPayloads(get_id(i), made.weight, made.payloads) for i, made in trained.items()]
        encoded_aggregate = compute_aggregate(spec, height, contributions, None)
        aggregate = None if encoded_aggregate is None else decode_arrays(encoded_aggregate, len(encoded_aggregate))
        return cls(height, beacon, tuple(offers), blobs, aggregate)

    def get_wanted(self, client: Client, i: int, gone: Collection[bytes] = frozenset()) -> Sequence[bytes]:
        """Returns the digests that client i has to pull."""
        return client.spec.wanted(self.height, self.beacon, get_id(i), self.offers, self.aggregate, frozenset(gone))

    def apply(
        self,
        client: Client,
        i: int,
        gone: Collection[bytes] = frozenset(),
        on_refused: OnRefused = lambda peer, why: None,
    ) -> Metrics:
        """Has client i apply the block, with only the blobs that it has to pull."""
        return client.apply(
            self.height,
            self.aggregate,
            beacon=self.beacon,
            me=get_id(i),
            offers=self.offers,
            blobs={digest: self.blobs[digest] for digest in self.get_wanted(client, i, gone)},
            gone=gone,
            on_refused=on_refused,
        )


def train_all(clients: Sequence[Client], height: int, beacon: bytes = BEACON) -> Block:
    """Trains all clients for one local phase. Returns the block with all contributions."""
    return Block.make(clients, {i: client.train(height, beacon) for i, client in enumerate(clients)}, height, beacon)


def run_peer_round(clients: Sequence[Client], height: int, beacon: bytes = BEACON) -> list[Metrics]:
    """Runs one round of all clients."""
    block = train_all(clients, height, beacon)
    return [block.apply(client, i) for i, client in enumerate(clients)]


def get_model(client: Client) -> dict[str, Array]:
    return get_kind(client.state_arrays(), "model") or {}


def are_equal(first: Arrays, second: Arrays) -> bool:
    return encode_arrays(first) == encode_arrays(second)
