"""A member that floods the others, as fast as one process can: what `make bench-flood` and the tests attack with.

    python -m bench.flooder CONFIG {valid,invalid}     until standard input ends; then what it did, as a line of
    JSON

It has the member's own key, listens where the member would, and speaks the real protocol over TLS. Valid traffic is
authentic: votes of far views signed anew, what others signed said again, a contribution repeated, statuses, requests
for blocks, blobs and greetings, all more at once than anybody may. Invalid traffic is bad signatures, garbage and
oversize, in new calls and on new connections for as long as they are refused.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import itertools
import json
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from chain import codec
from chain.beacon import FIRST_REVEALING, NO_REVEAL, Reveal
from chain.block import ZERO, Id, PayloadRef, Phase, Vote
from chain.genesis import Genesis
from chain.signing import SIGNATURE_BYTES, SigningKey
from node.addresses import parse_address
from node.config.genesis_file import load_genesis
from node.config.identity import open_identity
from node.config.node_config import load_config
from node.p2p.admission import Admission
from node.p2p.status import Status, status_from_bytes, status_to_bytes
from node.p2p.tls import MutualTls
from node.p2p.transport.base import CHUNK_BYTES, MAX_MESSAGE_BYTES, Message, MessageKind
from node.p2p.transport.calls import SERVICE
from node.p2p.transport.channel import Caller
from node.p2p.transport.rate_limits import MAX_BATCH_MESSAGES, to_pb
from node.p2p.transport.rpc import RpcTransport
from node.pb import peer_pb2 as pb
from support.federation.null_handler import NullHandler

KINDS = ("valid", "invalid")
CONNECTIONS = 3  # to each victim
STREAMS = 8  # of each kind and connection
FRESH_VOTES = 32  # signed at a time
VOTES_EVERY_S = 0.01
FIRST_FAR_VIEW = 9  # beyond those that are kept for the next height
HEARD = 64  # what others signed and may be said again
CALL_S = 10.0
STATUSES = 8  # of a batch
OVERSIZE_BYTES = 3 << 20

_ENDS = (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError, TimeoutError)  # of a call

Act = Callable[[grpc.aio.Channel], Awaitable[None]]


@dataclass(slots=True)
class Tally:
    """The count of what was sent, and of how calls ended: by their name and status. `num_bytes` are of messages,
    without framing."""

    messages: int = 0
    num_bytes: int = 0
    ends: Counter[str] = field(default_factory=Counter)

    def add(self, data: bytes, messages: int = 1) -> None:
        self.messages += messages
        self.num_bytes += len(data)


class _Recorder(NullHandler):
    """Records the others' height, and the messages they have signed."""

    def __init__(self, genesis: Genesis) -> None:
        self._genesis = genesis
        self.height = 1
        self.prev: Id = genesis.chain_id
        self.heard: deque[Message] = deque(maxlen=HEARD)
        self.blobs: deque[bytes] = deque([genesis.run.initial_model], maxlen=HEARD)

    def on_message(self, peer: Id, message: Message) -> None:
        match message.kind:
            case MessageKind.STATUS:
                status = status_from_bytes(message.data, self._genesis.state.n)
                if status.head_height >= self.height - 1:
                    self.height, self.prev = status.head_height + 1, status.head_id
                    self.heard.clear()
            case MessageKind.CONTRIBUTION:
                self.heard.append(message)
                self.blobs += [payload.digest for payload in codec.decode_contribution(message.data).payloads]
            case _:
                self.heard.append(message)


class Flood:
    """One member's flood of `victims`, where each is dialled."""

    def __init__(self, key: SigningKey, genesis: Genesis, listen: str, victims: Mapping[Id, str]) -> None:
        self.tally = Tally()
        self.recorder = _Recorder(genesis)
        admission = Admission(victims)  # and it dials nobody, so that all calls are ours
        self._transport = RpcTransport(key, listen, {}, admission=admission)
        self._key = key
        self._genesis = genesis
        self._victims = victims
        self._caller = Caller(key.id, MutualTls(key, victims))
        self._views = itertools.count(FIRST_FAR_VIEW)

    async def run(self, kind: str) -> None:
        """Until cancelled. It listens as the member itself would, so that the others push to it."""
        on_open, on_new = {"valid": self._list_valid, "invalid": self._list_invalid}[kind]()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._transport.run(self.recorder))
            if kind == "valid":
                group.create_task(self._answer())
            for victim, address in self._victims.items():
                for _ in range(CONNECTIONS):
                    channel = self._caller.open_channel(victim, address)
                    for act in on_open:
                        group.create_task(self._repeat(act, channel))
                for act in on_new:
                    group.create_task(self._reconnect(act, victim, address))
                if kind == "invalid":
                    group.create_task(self._knock(address))

    def describe(self) -> dict[str, Any]:
        tally, answers = self.tally, self._transport.counters().values()
        return {
            "messages": tally.messages + sum(answer.messages_sent for answer in answers),
            "bytes": tally.num_bytes + sum(answer.bytes_sent for answer in answers),
            "ends": dict(sorted(tally.ends.copy().items())),
        }

    async def _repeat(self, act: Act, channel: grpc.aio.Channel) -> None:
        while True:
            with suppress(*_ENDS):
                async with asyncio.timeout(CALL_S):
                    await act(channel)
            await asyncio.sleep(0)

    async def _reconnect(self, act: Act, victim: Id, address: str) -> None:
        """Each time over a connection of its own, handshake and all."""
        while True:
            channel = self._caller.open_channel(victim, address)
            with suppress(*_ENDS):
                async with asyncio.timeout(CALL_S):
                    await act(channel)
            await channel.close(None)

    async def _knock(self, address: str) -> None:
        """bytes that are no TLS."""
        host, port = parse_address(address)
        while True:
            with suppress(OSError):
                reader, writer = await asyncio.open_connection(host, port)
                data = os.urandom(1 << 14)
                writer.write(data)
                self.tally.add(data)
                await reader.read()
                writer.close()
                self.tally.ends["knock"] += 1
            await asyncio.sleep(0)

    # ---- calls

    async def _push(self, channel: grpc.aio.Channel, batches: Iterator[tuple[bytes, int]]) -> None:
        """A Push stream with these batches, each with how many messages it holds, to its end or CALL_S."""
        call = channel.stream_stream(f"/{SERVICE}/Push", None, None)(None)
        try:
            for batch, count in batches:
                await call.write(batch)
                self.tally.add(batch, count)
            while await call.read():
                pass
        finally:
            await self._end("push", call)

    async def _ask(self, name: str, request: bytes, channel: grpc.aio.Channel) -> None:
        call = channel.unary_unary(f"/{SERVICE}/{name}", None, None)(request, timeout=CALL_S)
        self.tally.add(request)
        try:
            await call
        finally:
            await self._end(name.lower(), call)

    async def _pull(self, channel: grpc.aio.Channel, requests: Iterator[bytes]) -> None:
        """A Blob stream with these requests, each answered to its end."""
        call = channel.stream_stream(f"/{SERVICE}/Blob", None, pb.BlobChunk.FromString)(None)
        try:
            for request in requests:
                await call.write(request)
                self.tally.add(request)
                while isinstance(chunk := await call.read(), pb.BlobChunk) and not (chunk.last or chunk.not_found):
                    pass
                self.tally.ends["blob answered"] += isinstance(chunk, pb.BlobChunk)
        finally:
            await self._end("blob", call)

    async def _end(self, name: str, call: Any) -> None:
        """Counts how a call has ended, if it has, and ends it if not."""
        is_open = call.cancel()
        code = "open" if is_open else (await call.code()).name.lower()
        if code == "internal":  # gRPC's word for its end while we wrote; how it ended is then lost
            code = "broken off"
        self.tally.ends[f"{name} {code}"] += 1

    # ---- valid

    async def _answer(self) -> None:
        """Fresh votes go out as answers on the streams that the victims push on: nothing queues there before them, so
        that they come while their height is."""
        while True:
            for _ in range(FRESH_VOTES):
                vote = self._make_vote()
                for victim in self._transport.connected():
                    self._transport.post(victim, vote)
            await asyncio.sleep(VOTES_EVERY_S)

    def _list_valid(self) -> tuple[Sequence[Act], Sequence[Act]]:
        """What is done over and over on each connection, and on new ones."""
        blocks = pb.BlocksRequest(first=1, count=4096).SerializeToString()
        acts: list[Act] = [lambda channel: self._push(channel, self._make_valid_batches())]
        for _ in range(STREAMS):
            acts.append(lambda channel: self._pull(channel, self._make_blob_requests()))
            acts.append(lambda channel: self._ask("Blocks", blocks, channel))
            acts.append(lambda channel: self._ask("Hello", b"", channel))
        return acts, [lambda channel: self._ask("Hello", b"", channel)]

    def _make_valid_batches(self) -> Iterator[tuple[bytes, int]]:
        while True:
            envelopes = [to_pb(self._make_status())] * STATUSES
            said = [to_pb(message) for message in [self._make_contribution(), *self.recorder.heard]]
            envelopes += itertools.islice(itertools.cycle(said), MAX_BATCH_MESSAGES - len(envelopes))
            yield pb.Batch(messages=_fit(envelopes)).SerializeToString(), len(envelopes)

    def _make_blob_requests(self) -> Iterator[bytes]:
        while True:
            for digest in [*self.recorder.blobs]:
                yield pb.BlobRequest(digest=digest).SerializeToString()
            yield pb.BlobRequest(digest=os.urandom(32)).SerializeToString()  # which nobody has

    def _make_status(self) -> Message:
        """It does not say that it contributes: it would be waited for, as any slow member is."""
        recorder = self.recorder
        status = Status(self._genesis.chain_id, recorder.height - 1, recorder.prev, height=recorder.height)
        return Message(MessageKind.STATUS, status_to_bytes(status))

    def _make_vote(self) -> Message:
        """One for each slot, so that it is no evidence."""
        view, phase = divmod(next(self._views), 2)
        return Message(MessageKind.VOTE, codec.encode_vote(self._sign_vote(Phase(1 + phase), view)))

    def _sign_vote(self, phase: Phase, view: int) -> Vote:
        return codec.sign_vote(
            self._key, self._genesis.chain_id, phase=phase, height=self.recorder.height, view=view, block_id=ZERO
        )

    def _make_contribution(self) -> Message:
        """The same one for as long as the height is: of a payload that nobody has."""
        signed = codec.sign_contribution(
            self._key,
            self._genesis.chain_id,
            height=self.recorder.height,
            prev=self.recorder.prev,
            weight=1,
            payloads=(PayloadRef(1, hashlib.sha256(b"nobody has it").digest(), 1000),),
            reveal=NO_REVEAL if self._genesis.protocol < FIRST_REVEALING else Reveal(ZERO, bytes(range(32))),
        )
        return Message(MessageKind.CONTRIBUTION, codec.encode_contribution(signed))

    # ---- invalid

    def _list_invalid(self) -> tuple[Sequence[Act], Sequence[Act]]:
        acts: list[Act] = []
        for make in (self._make_bad_signature, _make_garbage, _make_oversize, _make_too_large):
            acts += [lambda channel, make=make: self._push(channel, iter([make()]))] * STREAMS  # type: ignore[misc]
        acts += [lambda channel: self._ask("Blocks", os.urandom(64), channel)] * STREAMS
        acts += [lambda channel: self._pull(channel, iter([os.urandom(64)]))] * STREAMS
        return acts, [lambda channel: self._push(channel, iter([self._make_bad_signature()]))] * STREAMS

    def _make_bad_signature(self) -> tuple[bytes, int]:
        vote = codec.encode_vote(self._sign_vote(Phase.PREVOTE, next(self._views)))
        bad = Message(MessageKind.VOTE, vote[:-SIGNATURE_BYTES] + os.urandom(SIGNATURE_BYTES))
        return pb.Batch(messages=[to_pb(bad)] * MAX_BATCH_MESSAGES).SerializeToString(), MAX_BATCH_MESSAGES


def _fit(envelopes: list[pb.Envelope]) -> list[pb.Envelope]:
    """As many as go into a batch that is not too large."""
    sizes = itertools.accumulate(envelope.ByteSize() + 8 for envelope in envelopes)
    return [envelope for envelope, size in zip(envelopes, sizes, strict=True) if size <= CHUNK_BYTES]


def _make_garbage() -> tuple[bytes, int]:
    return os.urandom(4096), 1


def _make_oversize() -> tuple[bytes, int]:
    """Over what one message may have, in all."""
    return bytes(OVERSIZE_BYTES), 1


def _make_too_large() -> tuple[bytes, int]:
    """Over what its kind may have."""
    return pb.Batch(messages=[pb.Envelope(vote=bytes(MAX_MESSAGE_BYTES[MessageKind.BLOCK]))]).SerializeToString(), 1


async def _run(config_file: Path, kind: str) -> None:
    config = load_config(config_file)
    genesis, _ = load_genesis(config.federation_file)
    key = open_identity(config)
    victims = {peer: address for peer, address in config.network.get_addresses(genesis).items() if peer != key.id}
    flood = Flood(key, genesis, config.network.listen, victims)
    _tell({})
    threading.Thread(target=_end_with_input, args=(flood,), daemon=True).start()
    await flood.run(kind)


def _end_with_input(flood: Flood) -> None:
    """Ends the process, whatever its loop has in hand."""
    began_s = time.monotonic()
    sys.stdin.read()
    _tell({"seconds": time.monotonic() - began_s, **flood.describe()})
    os._exit(0)


def _tell(what: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.flooder", description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("kind", choices=KINDS)
    arguments = parser.parse_args()
    asyncio.run(_run(arguments.config, arguments.kind))


if __name__ == "__main__":
    main()
