"""A member whose strings the test pulls: it has a key and a connection, and does nothing of its own accord.

async with lying(net, "node3") as liar:
    liar.send(liar.make_vote(Phase.PREVOTE, ZERO, view=2**31))
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import numpy as np

from chain import codec
from chain.beacon import make_reveal
from chain.block import Block, Contribution, Digest, Evidence, Id, PayloadRef, Phase, Vote
from chain.evidence import encode_evidence
from chain.signing import SigningKey
from chain.tip import Tip
from ml import payload, specs
from node.config.genesis_file import get_genesis_spec
from node.p2p.status import Status, status_to_bytes
from node.p2p.transport.base import CHUNK_BYTES, BlobNotFound, Message, MessageKind
from node.payloads.checks import Aggregate
from support.data.chains import make_candidate
from support.federation.cluster import DIM, Cluster, make_prototypes
from support.federation.memory_transport import MemoryTransport

Signed = Contribution | Block | Vote | Evidence

_ENCODERS: dict[type, tuple[MessageKind, Callable[..., bytes]]] = {
    Contribution: (MessageKind.CONTRIBUTION, codec.encode_contribution),
    Block: (MessageKind.BLOCK, codec.encode_block),
    Vote: (MessageKind.VOTE, codec.encode_vote),
    Evidence: (MessageKind.EVIDENCE, encode_evidence),
}


def make_message(thing: Signed | Status) -> Message:
    if isinstance(thing, Status):
        return Message(MessageKind.STATUS, status_to_bytes(thing))
    kind, encode = _ENCODERS[type(thing)]
    return Message(kind, encode(thing))


def make_arrays(classes: Sequence[int] = (1, 2), dim: int = DIM, value: float = 1.0, dtype: str = "float32") -> bytes:
    """Makes a payload of prototypes in which every number is the same."""
    rows = np.full((len(classes), dim), value, dtype=dtype)
    return payload.encode_arrays({"classes": np.array(classes, dtype=np.int64), "prototypes": rows})


def flip(data: bytes, bit: int) -> bytes:
    return data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]


class Liar:
    """A member that sees what the honest see and sends what the test tells it to; `tip` is that of the most advanced
    member."""

    def __init__(self, net: Cluster, name: str) -> None:
        self.net = net
        self.name = name
        self.key: SigningKey = net[name].key
        self.transport: MemoryTransport = net.network.transport(self.key.id)
        self.heard: deque[tuple[Id, Message]] = deque(maxlen=4096)
        self.blobs: dict[Digest, bytes] = {}
        self.serve: Callable[[Id, Digest, int], bytes | None] = lambda peer, digest, offset: (
            self.blobs[digest][offset:] if digest in self.blobs else None
        )
        self.blocks: Callable[[int, int], list[tuple[bytes, bytes]]] = lambda first, count: []

    # the transport's handler

    def on_message(self, peer: Id, message: Message) -> None:
        self.heard.append((peer, message))

    def on_peer_up(self, peer: Id) -> None:
        pass

    def on_peer_down(self, peer: Id) -> None:
        pass

    async def on_blocks_request(self, peer: Id, first: int, count: int) -> list[tuple[bytes, bytes]]:
        return self.blocks(first, count)

    async def on_blob_request(self, peer: Id, digest: Digest, offset: int) -> AsyncIterator[bytes]:
        data = self.serve(peer, digest, offset)
        if data is None:
            raise BlobNotFound(digest.hex())
        for start in range(0, len(data), CHUNK_BYTES):
            yield data[start : start + CHUNK_BYTES]

    # what it knows

    @property
    def tip(self) -> Tip:
        running = [node.service for node in self.net.nodes.values() if node.service is not None]
        return max((service.tip for service in running), key=lambda tip: tip.height)

    @property
    def height(self) -> int:
        """The height that the honest work on."""
        return self.tip.height + 1

    def get_contributions(self, height: int | None = None) -> dict[Id, Contribution]:
        """Returns the contributions that it has received for a height, by author."""
        height = self.height if height is None else height
        heard = (message for _, message in self.heard if message.kind is MessageKind.CONTRIBUTION)
        found = (codec.decode_contribution(message.data) for message in heard)
        return {contribution.author: contribution for contribution in found if contribution.height == height}

    # what it makes

    @property
    def spec(self) -> specs.MethodSpec:
        return get_genesis_spec(self.net.genesis)

    def offer(self, payloads: Mapping[str, bytes], *, weight: int = 1) -> Contribution:
        """Makes a contribution of these payloads by kind for the current height, and serves them as blobs."""
        refs = []
        for kind, data in payloads.items():
            digest = hashlib.sha256(data).digest()
            self.blobs[digest] = data
            refs.append(PayloadRef(payload.kind_code(kind), digest, len(data)))
        return codec.sign_contribution(
            self.key,
            self.net.genesis.chain_id,
            height=self.height,
            prev=self.tip.id,
            weight=weight,
            payloads=tuple(sorted(refs, key=lambda ref: ref.kind)),
            reveal=make_reveal(self.key, self.net.genesis.chain_id, self.tip.block, self.tip.state.protocol),
        )

    def make_contribution(
        self,
        data: bytes | None = None,
        *,
        weight: int = 1,
        size: int | None = None,
        height: int | None = None,
        prev: Id | None = None,
        kind: int = 1,
        chain_id: Digest | None = None,
        key: SigningKey | None = None,
    ) -> Contribution:
        """Makes a contribution for the current height, signed by its key (or the given one), and serves its payload as
        a blob."""
        data = make_prototypes(3, self.height) if data is None else data
        digest = hashlib.sha256(data).digest()
        self.blobs[digest] = data
        return codec.sign_contribution(
            key or self.key,
            self.net.genesis.chain_id if chain_id is None else chain_id,
            height=self.height if height is None else height,
            prev=self.tip.id if prev is None else prev,
            weight=weight,
            payloads=(PayloadRef(kind, digest, len(data) if size is None else size),),
            reveal=make_reveal(key or self.key, self.net.genesis.chain_id, self.tip.block, self.tip.state.protocol),
        )

    def make_candidate(
        self,
        contributions: Iterable[Contribution],
        *,
        aggregate: Digest | None = None,
        ahead_ms: int = 0,
        time_ms: int | None = None,
        difficulty: int | None = None,
        miner: SigningKey | None = None,
    ) -> Block:
        """Makes a mined block on the tip; the aggregate is the right one unless given."""
        genesis, tip = self.net.genesis, self.tip
        chosen = sorted(contributions, key=lambda contribution: contribution.author)
        if time_ms is None:
            time_ms = max(self.net[self.name].clock.now_ms() + ahead_ms, tip.header.time_ms + 1)
        return make_candidate(
            genesis,
            tip.block,
            [miner or self.key],
            contributions=chosen,
            aggregate=self.compute_aggregate(chosen).digest if aggregate is None else aggregate,
            difficulty=tip.next_difficulty if difficulty is None else difficulty,
            start_ms=time_ms,
            time_ms=time_ms,
        )

    def compute_aggregate(self, contributions: Sequence[Contribution]) -> Aggregate:
        """Computes the aggregate of these contributions, from the blobs of members that hold them."""
        spec = get_genesis_spec(self.net.genesis)
        authors = [
            specs.AuthorPayloads(
                contribution.author,
                contribution.weight,
                {"prototypes": payload.decode_arrays(self._find_blob(contribution.payloads[0].digest), 1 << 20)},
            )
            for contribution in contributions
        ]
        data = specs.compute_aggregate(spec, self.height, authors, None)
        assert data is not None
        return Aggregate(data, hashlib.sha256(data).digest())

    def _find_blob(self, digest: Digest) -> bytes:
        if digest in self.blobs:
            return self.blobs[digest]
        for node in self.net.nodes.values():
            if node.store is not None and node.store.has_blob(digest):
                return node.store.get_blob(digest)
        raise AssertionError(f"nobody holds {digest.hex()}")

    def make_vote(
        self, phase: Phase, block_id: Id, *, view: int = 0, height: int | None = None, key: SigningKey | None = None
    ) -> Vote:
        return codec.sign_vote(
            key or self.key,
            self.net.genesis.chain_id,
            phase=phase,
            height=self.height if height is None else height,
            view=view,
            block_id=block_id,
        )

    def make_status(self, **changes: object) -> Status:
        """Makes the status of an honest member without a contribution or votes, but for the changes."""
        status = Status(self.net.genesis.chain_id, self.tip.height, self.tip.id, height=self.height, contributes=True)
        return replace(status, **changes)  # type: ignore[arg-type]  # fields of Status

    # what it does

    def send(self, thing: Signed | Status | Message, *names: str) -> None:
        """Sends to all connected members, or to those named."""
        message = thing if isinstance(thing, Message) else make_message(thing)
        for peer in sorted(self.transport.connected()):
            if not names or peer in {self.net.id(name) for name in names}:
                self.transport.post(peer, message)

    def is_refused_by(self, name: str) -> bool:
        transport = self.net.network.find(self.net.id(name))
        return transport is not None and transport.bans.is_banned(self.key.id)


@asynccontextmanager
async def lying(net: Cluster, name: str) -> AsyncIterator[Liar]:
    """Connects a liar in the place of a member that does not run."""
    liar = Liar(net, name)
    task = asyncio.create_task(liar.transport.run(liar), name=f"{name} lies")
    others = len([node for node in net.nodes.values() if node.task is not None])
    try:
        await net.wait_for(lambda: len(liar.transport.connected()) >= others, f"{name} to be connected")
        yield liar
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
