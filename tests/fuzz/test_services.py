"""Every call of the peer and the admin service under hostile requests: a node in the middle of a round, real gRPC.

What is asked is made from the services' own descriptors, so that a new call or field is asked too. Whatever comes, the
call ends with a status that says whose fault it was, in few words; nothing is heard at the top as a failure; nothing is
left open; and an honest call is answered as before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chain import codec
from chain.block import ZERO, Body, Id, PayloadRef, Phase
from chain.evidence import encode_evidence, make_evidence
from chain.layout import MAX_HEIGHT, MAX_TIME_MS
from chain.signing import encode_id
from fuzz.array_bytes import make_arrays
from node.admin.server import MAX_REASON_CHARS
from node.consensus.gossip.authenticator import MAX_KNOWN
from node.consensus.gossip.gossip import MAX_HELD
from node.p2p.bans import Bans
from node.p2p.transport.base import TrafficCounters
from node.p2p.transport.calls import serve_calls
from node.p2p.transport.channel import PEER_KEY
from node.p2p.transport.rate_limits import Intake, RateLimits
from node.p2p.transport.sender import Sender
from node.p2p.transport.served_lines import ServedLines
from node.p2p.transport.server import PeerService, make_server
from node.p2p.transport.session import Session
from node.pb import admin_pb2, peer_pb2, peer_pb2_grpc
from support.faults.open_boundary import OpenBoundary
from support.federation.asked import Running, running
from support.federation.cluster import Node
from support.federation.recording import PATIENCE_S, wait_until
from support.federation.transports import HandClock

FINE = grpc.StatusCode
PEER = peer_pb2.DESCRIPTOR.services_by_name["Peer"]
ADMIN = admin_pb2.DESCRIPTOR.services_by_name["Admin"]
LIMITS = RateLimits(
    status_per_s=1e9,
    messages_per_s=1e9,
    messages_burst=1e9,
    bytes_per_s=1e12,
    streams_per_s=1e9,
    streams_burst=1e9,
    blocks_per_s=1e9,
    blocks_burst=1e9,
    blobs_per_s=1e9,
    blobs_burst=1e9,
)

# How a call may end: never with INTERNAL, which says that it was this node's fault.
PEER_ENDS = {
    FINE.OK,
    FINE.PERMISSION_DENIED,
    FINE.RESOURCE_EXHAUSTED,
    FINE.ABORTED,
    FINE.CANCELLED,
    FINE.FAILED_PRECONDITION,  # to be asked on a stream before there is one of messages
}
ADMIN_ENDS = {FINE.OK, FINE.INVALID_ARGUMENT, FINE.NOT_FOUND, FINE.RESOURCE_EXHAUSTED, FINE.CANCELLED}
ADMIN_ENDS |= {FINE.FAILED_PRECONDITION}  # a change that cannot hold

# What the caller's own library says, now and then, of a stream that ended while it still wrote: no answer of a node.
BROKEN_OFF = (FINE.INTERNAL, "Internal error from Core")
MAX_CALLS = 3

once = settings(derandomize=True, database=None, max_examples=20)
every_peer_call = pytest.mark.parametrize("method", [*PEER.methods], ids=lambda method: method.name)
every_admin_call = pytest.mark.parametrize("method", [*ADMIN.methods], ids=lambda method: method.name)


@dataclass
class Attacked:
    """A node that waits in its round for two members which are gone; the test has the key of one of them."""

    runner: asyncio.Runner
    one: Running
    node: Node
    liar: Node
    clock: HandClock
    intake: Intake
    peer: grpc.aio.Channel
    admin: grpc.aio.Channel
    failures: list[Exception] = field(default_factory=list)

    def call(self, method: MethodDescriptor, request: bytes) -> tuple[grpc.StatusCode, str]:
        """How a call with these bytes ends: by itself, or after the first answer where it would go on. Called again
        where the node's own word did not get through, so that it is the node which is judged."""
        for _ in range(MAX_CALLS):
            end = self.runner.run(self._call(method, request))
            if end != BROKEN_OFF:
                break
            self.forgive()
        return end

    async def _call(self, method: MethodDescriptor, request: bytes) -> tuple[grpc.StatusCode, str]:
        service = method.containing_service
        channel = self.peer if service is PEER else self.admin
        path = f"/{service.full_name}/{method.name}"
        metadata = ((PEER_KEY, encode_id(self.liar.key.id)),) if service is PEER else ()
        call: Any
        if method.client_streaming:
            call = channel.stream_stream(path, None, None)(None, metadata=metadata)
            with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):  # it has ended before it was heard
                await call.write(request)
                await call.done_writing()
        elif method.server_streaming:
            call = channel.unary_stream(path, None, None)(request, metadata=metadata)
        else:
            call = channel.unary_unary(path, None, None)(request, metadata=metadata)
        try:
            async with asyncio.timeout(PATIENCE_S):
                if method.name == "WatchEvents":  # has no end; what it refuses, it refuses at once
                    reading = asyncio.ensure_future(call.read())
                    await asyncio.wait({reading}, timeout=0.02)
                    call.cancel()
                    await asyncio.gather(reading, return_exceptions=True)
                elif method.server_streaming or method.client_streaming:
                    with suppress(grpc.aio.AioRpcError):
                        while isinstance(await call.read(), bytes):
                            pass
                else:
                    with suppress(grpc.aio.AioRpcError):
                        await call
                if not call.done():
                    call.cancel()
                return await call.code(), str(await call.details() or "")
        except TimeoutError:
            raise AssertionError(f"{method.name} had not ended after {PATIENCE_S:g} s") from None
        finally:
            call.cancel()

    def forgive(self) -> None:
        """Long enough later that the liar may call again."""
        self.clock.now_s += 1e6

    def check_still_well(self) -> None:
        """Nothing failed, nothing is left open, what is kept is bounded, and honest calls are answered."""
        self.runner.run(self._check_still_well())

    async def _check_still_well(self) -> None:
        service = self.node.service
        assert self.failures == []
        assert self.node.failure is None
        assert self.one.context.boundary.failures == {}
        assert service is not None
        assert service.machine is not None
        await wait_until(
            lambda: (self.intake.num_blob_streams, self.intake.num_blocks_requests) == (0, 0), "all calls closed"
        )
        n = self.one.net.genesis.state.n
        assert len(service.machine.contributions) <= n
        assert len(service.machine.candidates) <= 2 * n
        assert max(service.parts.gossip.authenticator.count_known().values()) <= MAX_KNOWN
        assert service.gossip.num_held <= MAX_HELD
        assert len(asyncio.all_tasks()) < 100
        self.forgive()
        stub = peer_pb2_grpc.PeerStub(self.peer)
        metadata = ((PEER_KEY, encode_id(self.liar.key.id)),)
        reply = await stub.Blocks(peer_pb2.BlocksRequest(first=1, count=1), metadata=metadata, timeout=PATIENCE_S)
        assert reply.blocks[0].block == codec.encode_block(self.node.get_block(1))
        status = await self.one.ask(lambda client: client.get_status())
        assert status.height == self.node.height


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            yield runner.run(stack.enter_async_context(attack(runner, tmp_path_factory.mktemp("attacked"))))
        finally:
            runner.run(stack.aclose())


@asynccontextmanager
async def attack(runner: asyncio.Runner, path: Path) -> AsyncIterator[Attacked]:
    async with running(path) as one:
        node, liar = one.net["node0"], one.net["node1"]
        await one.net.wait_for_height(2)
        await one.net.crash("node1")
        await one.net.crash("node2")
        assert node.service is not None
        clock, failures = HandClock(), list[Exception]()
        bans = Bans(clock)
        boundary = OpenBoundary()
        peer_id, counters = liar.key.id, TrafficCounters()
        intake = Intake(peer_id, LIMITS, bans, counters, boundary=boundary, clock=clock)
        session = Session(node.key.id, intake, Sender(counters, LIMITS), boundary)
        served = ServedLines(peer_id, LIMITS.max_lines)
        service = PeerService(
            node.service.handler,
            {peer_id: intake},
            {peer_id: session},
            {peer_id: served},
            bans,
            None,
            boundary,
            failures.append,
        )
        server = make_server(service, 64, 3, 5.0, max_connections=16)
        serve_calls(service, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with (
                grpc.aio.insecure_channel(f"127.0.0.1:{port}") as peer,
                grpc.aio.insecure_channel(f"unix:{one.path}") as admin,
            ):
                yield Attacked(runner, one, node, liar, clock, intake, peer, admin, failures)
        finally:
            await server.stop(None)


# ---- what is asked

numbers = st.sampled_from([0, 1, 2, 3, 20, 4096, 4097, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1])
texts = st.one_of(
    st.sampled_from(
        ["", "block", "0-0", "0-" + "9" * 20, "0-" + "9" * 5000, "00" * 32, "0 " * 32, "²" * 64, "x" * 20_000]
    ),
    st.text(max_size=20),
    st.text(max_size=3).map(lambda text: text * 3000),
)
floats = st.sampled_from([0.0, -1.0, 1e-300, 1.0, 1e300, float("nan"), float("inf"), float("-inf")])


def bytes_of(seeds: list[bytes]) -> st.SearchStrategy[bytes]:
    sound = st.sampled_from([*seeds, bytes(32), b""])
    bent = st.tuples(sound, st.integers(0, 400), st.binary(max_size=9)).map(
        lambda t: t[0][: t[1]] + t[2] + t[0][t[1] + 9 :]
    )
    return st.one_of(sound, bent, st.binary(max_size=40))


def messages(descriptor: Descriptor | None, seeds: list[bytes]) -> st.SearchStrategy[Message]:
    """Well-formed messages of a type, each field left out or at the edge of what it can hold."""
    assert descriptor is not None
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for entry in descriptor.fields:
        values = values_of(entry, seeds)
        fields[entry.name] = st.lists(values, max_size=6) if entry.is_repeated else values
    kind = GetMessageClass(descriptor)
    chosen = st.fixed_dictionaries({}, optional=fields)
    return chosen.map(lambda values: kind(**values))


def values_of(entry: FieldDescriptor, seeds: list[bytes]) -> st.SearchStrategy[Any]:
    match entry.type:
        case FieldDescriptor.TYPE_MESSAGE:
            return messages(entry.message_type, seeds)
        case FieldDescriptor.TYPE_BYTES:
            return bytes_of(seeds)
        case FieldDescriptor.TYPE_STRING:
            return texts
        case FieldDescriptor.TYPE_BOOL:
            return st.booleans()
        case FieldDescriptor.TYPE_DOUBLE:
            return floats
        case FieldDescriptor.TYPE_UINT32:
            return numbers.map(lambda n: n % 2**32)
        case FieldDescriptor.TYPE_UINT64:
            return numbers
    raise AssertionError(f"{entry.full_name}: no values for this type yet")


def make_lies(attacked: Attacked) -> list[bytes]:
    """What the liar can sign for the round in hand, or for another: sound of form, and of every kind."""
    genesis, key, height = attacked.one.net.genesis, attacked.liar.key, attacked.node.height + 1
    head = attacked.node.get_block(height - 1)

    def vote(phase: Phase, height: int, view: int, block_id: Id) -> bytes:
        signed = codec.sign_vote(key, genesis.chain_id, phase=phase, height=height, view=view, block_id=block_id)
        return codec.encode_vote(signed)

    def contribution(height: int, weight: int, *payloads: PayloadRef) -> bytes:
        signed = codec.sign_contribution(
            key, genesis.chain_id, height=height, prev=head.id, weight=weight, payloads=payloads
        )
        return codec.encode_contribution(signed)

    every_kind = [PayloadRef(kind, bytes([kind]) * 32, 2**64 - 1) for kind in range(1, codec.MAX_PAYLOADS)]
    blocks = []
    for time_ms, difficulty in ((head.header.time_ms + 1, 1), (MAX_TIME_MS, 2**64 - 1)):
        header = replace(
            head.header,
            height=height,
            prev=head.id,
            body=codec.compute_body_digest(Body()),
            miner=key.id,
            start_ms=0,
            time_ms=time_ms,
            difficulty=difficulty,
        )
        blocks.append(codec.encode_block(codec.make_block(genesis.chain_id, header, 0, Body(), key)))
    votes = [
        vote(phase, at, view, block_id)
        for phase in Phase
        for at in (height, height + 1, 1, MAX_HEIGHT)
        for view in (0, 9, 2**32 - 1)
        for block_id in (ZERO, b"b" * 32)
    ]
    contributions = [
        contribution(height, 1, *every_kind),
        contribution(height, 2**29 - 1),
        contribution(height + 1, 1, PayloadRef(1, b"d" * 32, 64)),
        contribution(height, 1, PayloadRef(1, b"d" * 32, 2**40)),
    ]
    pairs = ((contributions[0], contributions[1]), (votes[0], votes[1]))
    first, second = (codec.decode_contribution(data) for data in pairs[0])
    evidence = [encode_evidence(make_evidence(first, second))]
    return [*votes, *contributions, *blocks, *evidence]


def check_end(code: grpc.StatusCode, text: str, allowed: set[grpc.StatusCode]) -> None:
    assert code in allowed, f"{code.name}: {text}"
    assert len(text) <= MAX_REASON_CHARS


# ---- the claims


@every_peer_call
def test_a_hostile_member_gets_a_status_and_the_node_goes_on(attacked: Attacked, method: MethodDescriptor) -> None:
    lies = make_lies(attacked)

    @once
    @given(messages(method.input_type, lies))
    def check(request: Message) -> None:
        check_end(*attacked.call(method, request.SerializeToString()), PEER_ENDS)
        attacked.forgive()

    check()
    attacked.check_still_well()


def test_everything_a_liar_can_sign_at_once_is_bounded(attacked: Attacked) -> None:
    """Each of its objects in a batch of its own kind, and 200 votes for 200 blocks."""
    lies = make_lies(attacked)
    genesis, key, height = attacked.one.net.genesis, attacked.liar.key, attacked.node.height + 1
    flood = [
        codec.encode_vote(
            codec.sign_vote(
                key, genesis.chain_id, phase=Phase.PRECOMMIT, height=height, view=i, block_id=i.to_bytes(32, "big")
            )
        )
        for i in range(200)
    ]
    envelopes = [
        peer_pb2.Envelope(**{kind: data})
        for kind in ("contribution", "block", "vote", "evidence", "status")
        for data in lies
    ]
    envelopes += [peer_pb2.Envelope(vote=data) for data in flood]
    push = PEER.methods_by_name["Push"]
    for start in range(0, len(envelopes), 40):
        batch = peer_pb2.Batch(messages=envelopes[start : start + 40])
        check_end(*attacked.call(push, batch.SerializeToString()), PEER_ENDS)
        attacked.forgive()
    for envelope in envelopes[:20]:
        check_end(*attacked.call(push, peer_pb2.Batch(messages=[envelope]).SerializeToString()), PEER_ENDS)
        attacked.forgive()
    attacked.check_still_well()


@every_admin_call
def test_a_hostile_question_is_answered_or_refused(
    attacked: Attacked, method: MethodDescriptor, caplog: pytest.LogCaptureFixture
) -> None:
    @once
    @given(messages(method.input_type, list(make_arrays().values())))
    def check(request: Message) -> None:
        check_end(*attacked.call(method, request.SerializeToString()), ADMIN_ENDS)

    check()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
    attacked.check_still_well()


@pytest.mark.parametrize("method", [*PEER.methods, *ADMIN.methods], ids=lambda method: method.name)
def test_bytes_that_are_no_message_end_the_call_and_nothing_else(attacked: Attacked, method: MethodDescriptor) -> None:
    """A member that sends them is refused; what gRPC says of an operator's is its own."""
    allowed = PEER_ENDS if method.containing_service is PEER else ADMIN_ENDS | {FINE.UNKNOWN}

    @settings(once, max_examples=8)
    @given(st.binary(max_size=60))
    @example(b"\xff\xff\xff")
    def check(request: bytes) -> None:
        check_end(*attacked.call(method, request), allowed)
        attacked.forgive()

    check()
    attacked.check_still_well()
