"""The other end of `make bench-net`, as a process: a member that answers every message, and gRPC without us.

Run as `python -m bench.net_peer SEED PORT PEER_PORT BLOB_BYTES`: it listens at PORT, dials PEER_PORT, says in a
line of JSON at which port the bare server listens, and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc

from chain import codec, validation
from chain.block import ZERO, Digest, Id, Phase, Vote
from chain.genesis import Genesis
from chain.signing import SigningKey
from node.p2p.transport.base import CHUNK_BYTES, Message, MessageKind
from node.p2p.transport.rate_limits import RateLimits
from node.p2p.transport.rpc import RpcTransport
from node.testnet.ports import LOOPBACK
from support.data.synthetic import make_prototype_genesis
from support.federation.null_handler import NullHandler

BARE = "fednode.bench.Bare"
NUM_MEMBERS = 2
BOUNDLESS = 1e12  # a second: how fast the transport is, not how fast a peer may be
LIMITS = RateLimits(
    messages_per_s=BOUNDLESS,
    messages_burst=BOUNDLESS,
    bytes_per_s=BOUNDLESS,
    blocks_per_s=BOUNDLESS,
    blocks_burst=BOUNDLESS,
    blobs_per_s=BOUNDLESS,
    blobs_burst=BOUNDLESS,
)


class End:
    """One of the two members: its transport, and the vote that it says over and over."""

    def __init__(self, number: int, seed: int, ports: Sequence[int]) -> None:
        """`ports` are both members', in the order of their numbers."""
        self.genesis, keys = make_prototype_genesis(NUM_MEMBERS, seed=seed, difficulty=1)
        self.key, self.peer = keys[number], keys[1 - number].id
        self.address, self.peer_address = (f"{LOOPBACK}:{ports[i]}" for i in (number, 1 - number))
        self.vote = Message(MessageKind.VOTE, codec.encode_vote(_sign_vote(self.key, self.genesis)))
        self.transport = RpcTransport(
            self.key, self.address, {self.peer: self.peer_address}, limits=LIMITS, chain_id=self.genesis.chain_id
        )

    def check(self, message: Message) -> None:
        """As a node does of what comes. Raises ChainError."""
        validation.validate_vote(self.genesis.state, codec.decode_vote(message.data))


def _sign_vote(key: SigningKey, genesis: Genesis) -> Vote:
    return codec.sign_vote(key, genesis.chain_id, phase=Phase.PREVOTE, height=1, view=0, block_id=ZERO)


class _Answering(NullHandler):
    """Answers each message with one of its own, and serves one blob whatever is asked for."""

    def __init__(self, end: End, chunks: Sequence[bytes]) -> None:
        self._end = end
        self._chunks = chunks

    def on_message(self, peer: Id, message: Message) -> None:
        if message.kind is MessageKind.VOTE:
            self._end.check(message)
            self._end.transport.post(peer, self._end.vote)

    async def on_blob_request(self, peer: Id, digest: Digest, offset: int) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk


def make_bare_server(chunks: Sequence[bytes]) -> grpc.aio.Server:
    """The least that gRPC needs to do the same: bytes there and back, chunks one after the other."""

    async def hello(request: bytes, context: Any) -> bytes:
        return request

    async def echo(request_iterator: object, context: Any) -> None:
        while isinstance(data := await context.read(), bytes):
            await context.write(data)

    async def blob(request: bytes, context: Any) -> None:
        for chunk in chunks:
            await context.write(chunk)

    server = grpc.aio.server()
    handlers = {
        "Hello": grpc.unary_unary_rpc_method_handler(hello),
        "Echo": grpc.stream_stream_rpc_method_handler(echo),
        "Blob": grpc.unary_stream_rpc_method_handler(blob),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(BARE, handlers),))
    return server


async def _run(seed: int, ports: Sequence[int], blob_bytes: int) -> None:
    blob = os.urandom(blob_bytes)
    chunks = [blob[start : start + CHUNK_BYTES] for start in range(0, blob_bytes, CHUNK_BYTES)]
    end = End(1, seed, ports)
    assert end.transport.tls is not None
    bare = make_bare_server(chunks)
    bare_port = bare.add_secure_port(f"{LOOPBACK}:0", end.transport.tls.make_server_credentials())
    await bare.start()
    running = asyncio.create_task(end.transport.run(_Answering(end, chunks)))
    reading = asyncio.create_task(_read_input())
    try:
        ready = asyncio.create_task(end.transport.ready())
        await asyncio.wait({ready, running}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        sys.stdout.write(json.dumps({"bare_port": bare_port}) + "\n")
        sys.stdout.flush()
        await asyncio.wait({reading, running}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
    finally:
        for task in (running, reading):
            task.cancel()
        await asyncio.gather(running, reading, return_exceptions=True)
        await bare.stop(None)


async def _read_input() -> None:
    """Until its end."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


def main(arguments: Sequence[str]) -> None:
    seed, port, peer_port, blob_bytes = map(int, arguments)
    asyncio.run(_run(seed, (peer_port, port), blob_bytes))


if __name__ == "__main__":
    main(sys.argv[1:])
