"""Federations over memory whose members take from single peers: real specs, made-up numbers, no torch.

    async with taking(tmp_path, 6, UAPDFL) as net:
        await net.wait_for(lambda: net.has_applied(3), "round 3")

Even members see one half of the classes and odd ones the other, so that some a node draws are like it and some not.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from chain.beacon import compute_beacon
from chain.block import Contribution, Digest, Id, PayloadRef
from chain.tip import Tip
from ml.guard import OnRefused
from ml.payload import Array, ArraySpec, decode_arrays, encode_arrays
from ml.specs import MethodSpec, Offer, get_spec
from node.consensus.context import NodeContext
from node.consensus.service import RoundService
from node.consensus.wiring import make_round_parts
from node.payloads.on_demand import get_kinds
from node.training.exchange import Exchange, get_offers
from node.training.progress import OnProgress
from node.training.trainer import NOTHING_TAKEN, Trained, WorkerDied
from support.federation.cluster import DIM, NUM_CLASSES, Cluster, ScriptedTrainer, cluster
from support.federation.fixed_specs import find_round
from support.federation.memory_transport import MemoryTransport

MODEL = {"name": "mlp", "hidden": [DIM]}
UAPDFL = {"name": "uapdfl", "num_peers": 2, "weights": "samples"}
FEDPER = {"name": "fedper", "num_peers": 2}


def make_spec(method: Mapping[str, Any], model: Mapping[str, Any] = MODEL) -> MethodSpec:
    return get_spec(method, model, NUM_CLASSES, (1, 8, 8))


def get_shape(spec: ArraySpec) -> tuple[int, ...]:
    """Returns the shape of an array that has no open dimension."""
    return tuple(int(size) for size in spec.shape)


def count_numbers(spec: MethodSpec, kind: str) -> int:
    """Counts the numbers in a payload of a kind."""
    return sum(math.prod(get_shape(array)) for array in spec.schemas(1)[kind].arrays.values())


class TakingTrainer(ScriptedTrainer):
    """Makes up the payloads of `spec`, and keeps every exchange it receives, by height. `spoil` may change a payload;
    `deaths` is how often it dies while it applies. Peers in `refuses` are found harmful and refused."""

    def __init__(self, seed: int, spec: MethodSpec, *, train_s: float = 0.02, deaths: int = 0) -> None:
        super().__init__(seed, train_s)
        self.spec = spec
        self.deaths = deaths
        self.spoil: Callable[[str, dict[str, Array]], dict[str, Array]] = lambda kind, arrays: arrays
        self.taken: dict[int, list[Exchange]] = {}
        self.refuses: set[Id] = set()

    async def train(
        self,
        height: int,
        beacon: bytes,
        *,
        num_iterations: int | None = None,
        shared: Exchange = NOTHING_TAKEN,
        on_progress: OnProgress | None = None,
    ) -> Trained:
        await asyncio.sleep(self.train_s)
        self.trained.append(height)
        made = {kind: self.spoil(kind, self.make(kind, height)) for kind in self.spec.schemas(height)}
        weight = 1 if self.spec.max_weight_is_one else 100 + self.seed
        payloads = {kind: encode_arrays(arrays) for kind, arrays in made.items()}
        return Trained(weight, payloads, {"loss": 0.0, "accuracy": 0.5})

    def make(self, kind: str, height: int) -> dict[str, Array]:
        """Makes one payload, as its schema describes it."""
        rng = np.random.default_rng([self.seed, height, sum(kind.encode())])
        if kind == "unit":
            own = np.arange(NUM_CLASSES) % 2 == self.seed % 2
            unit_C = np.where(own, 1.0, 1e-3) + 1e-3 * rng.random(NUM_CLASSES)
            return {"unit": (unit_C / unit_C.sum()).astype(np.float32)}
        arrays = self.spec.schemas(height)[kind].arrays
        return {name: rng.standard_normal(get_shape(spec)).astype(spec.dtype) for name, spec in arrays.items()}

    async def apply(
        self,
        height: int,
        aggregate: bytes | None,
        exchange: Exchange = NOTHING_TAKEN,
        on_refused: OnRefused | None = None,
    ) -> Mapping[str, float]:
        self.taken.setdefault(height, []).append(exchange)
        if self.deaths:
            self.deaths -= 1
            raise WorkerDied("the worker died: exit status -9")
        self.applied[height] = aggregate
        peers = [offer for offer in exchange.offers if not exchange.blobs.keys().isdisjoint(offer.digests.values())]
        for peer in peers:
            if peer.author in self.refuses and on_refused is not None:
                on_refused(peer.author, "too much of a loss")
        measured = {"accuracy": 0.5, "peers": float(len(peers))}
        return measured | ({"dropout": float(len(peers) == 1)} if peers and "unit" in self.spec.rules(height) else {})


class TakingCluster:
    """A cluster, and what its trainers received."""

    def __init__(self, net: Cluster, trainers: Mapping[str, TakingTrainer]) -> None:
        self.net = net
        self.trainers = trainers

    def has_applied(self, height: int, *names: str) -> bool:
        """Says whether these nodes (all that run) have applied the height, and the authors of its block have written
        their records."""
        chosen = names or [name for name, node in self.net.nodes.items() if node.store is not None]
        return all(height in self.trainers[name].applied and self._has_record(name, height) for name in chosen)

    def _has_record(self, name: str, height: int) -> bool:
        store = self.net[name].store
        return store is not None and (store.get_round(height) is not None or self.get_offer(name, height) is None)

    async def wait_for_round(self, height: int, *names: str) -> None:
        await self.net.wait_for(lambda: self.has_applied(height, *names), f"round {height} to be applied")

    def get_exchange(self, name: str, height: int) -> Exchange:
        """Returns the exchange that the node received last."""
        return self.trainers[name].taken[height][-1]

    def get_wanted(self, name: str, height: int, gone: frozenset[Id] = frozenset()) -> set[Digest]:
        """Returns the blobs that the node wants of a round, by the spec."""
        node = self.net["node0"]
        assert node.store is not None
        block = node.get_block(height)
        aggregate = None
        if any(block.header.aggregate):
            data = node.store.get_blob(block.header.aggregate)
            aggregate = decode_arrays(data, len(data))
        spec, offers = self.trainers[name].spec, get_offers(block)
        beacon = compute_beacon(node.get_block(height - 1))
        return set(spec.wanted(height, beacon, self.net.id(name), offers, aggregate, gone))

    def get_sizes(self, height: int) -> dict[Digest, int]:
        """Returns the size of every blob that a block names, as its author has signed it."""
        block = self.net["node0"].get_block(height)
        return {ref.digest: ref.size for contribution in block.contributions for ref in contribution.payloads}

    def get_offer(self, name: str, height: int) -> Offer | None:
        """Returns the node's offer in a block, None if it is no author of it."""
        offers = get_offers(self.net["node0"].get_block(height))
        return next((offer for offer in offers if offer.author == self.net.id(name)), None)

    def get_transport(self, name: str) -> MemoryTransport:
        transport = self.net.network.find(self.net.id(name))
        assert transport is not None, f"{name} does not run"
        return transport

    def get_record(self, name: str, height: int) -> dict[str, Any]:
        store = self.net[name].store
        assert store is not None
        record = store.get_round(height)
        assert record is not None, f"{name} has no record of round {height}"
        return record


@asynccontextmanager
async def taking(
    path: Path,
    n: int,
    method: Mapping[str, Any],
    *,
    model: Mapping[str, Any] = MODEL,
    train_s: float = 0.02,
    **settings: Any,
) -> AsyncIterator[TakingCluster]:
    """Runs n members on `method`; `settings` are `cluster`'s."""
    spec = make_spec(method, model)
    trainers = [TakingTrainer(i, spec, train_s=train_s) for i in range(n)]
    names = {f"node{i}": trainer for i, trainer in enumerate(trainers)}
    async with cluster(path, n, trainers=trainers, method=spec.to_mapping(), model=dict(model), **settings) as net:
        yield TakingCluster(net, names)


class Stingy(RoundService):
    """A member that lies about the blobs it has on demand: `serve` answers requests for them."""

    def __init__(self, context: NodeContext) -> None:
        super().__init__(make_round_parts(context))
        self.context = context
        self.offered: set[Digest] = set()
        self.asked: list[Digest] = []
        self._be_honest = self.handler.on_blob_request
        self.handler.on_blob_request = self._on_blob_request  # type: ignore[method-assign]  # it lies
        self._sign = self.signer.sign_contribution
        self.signer.sign_contribution = self._sign_contribution  # type: ignore[method-assign]  # and remembers

    async def serve(self, data: bytes) -> AsyncGenerator[bytes, None]:
        yield data

    async def _sign_contribution(
        self, tip: Tip, trained: Trained, adopted: tuple[PayloadRef, ...] = (), **options: Any
    ) -> Contribution | None:
        kinds = get_kinds(find_round(self.context.runs, tip.height + 1))
        self.offered |= {sha256(data).digest() for kind, data in trained.payloads.items() if kind in kinds}
        return await self._sign(tip, trained, adopted, **options)

    async def _on_blob_request(self, peer: Id, digest: Digest, offset: int) -> AsyncGenerator[bytes, None]:
        chunks = self._be_honest(peer, digest, offset)
        if digest in self.offered:
            self.asked.append(digest)
            chunks = self.serve(self.context.store.get_blob(digest))
        async for chunk in chunks:
            yield chunk
