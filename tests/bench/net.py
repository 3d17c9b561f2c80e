"""`make bench-net`: what two members on one machine say to each other, over the transport of real nodes.

The other end is a process of its own (`bench.net_peer`). Votes go there and back, each checked at both ends as
nodes check them; a blob is pulled; connections are made anew. Limits of what a peer may send are lifted, as they would
be all there is to see. The baseline is gRPC under the same TLS between the same two processes, in turn with ours, and
nothing around it: bytes echoed on one stream, chunks sent, one call on a new connection.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import grpc

from bench.net_peer import BARE, End
from bench.tails import describe_tail
from chain.block import ZERO, Id
from node.bench.figures import Report
from node.errors import NodeError
from node.experiments.measured import describe_spread
from node.host.child import make_command
from node.host.machine import get_machine
from node.host.procfs import MB
from node.p2p.tls import MutualTls, get_server_name
from node.p2p.transport.base import Message, MessageKind
from node.p2p.transport.calls import SERVICE
from node.p2p.transport.channel import Caller
from node.p2p.transport.rate_limits import RateLimits
from node.pb import peer_pb2 as pb
from node.testnet.ports import LOOPBACK, find_free_ports
from support.federation.null_handler import NullHandler

TESTS = Path(__file__).parents[1]
WINDOW = 64  # messages under way at once, where their number counts
TIMEOUT_S = 120.0
WARM_UP = 50  # messages


def run_net_bench(
    *, messages: int, mb: float, connections: int, repeats: int, seed: int, report: Report
) -> dict[str, Any]:
    """Figures by name, in seconds, messages and MB a second. `messages`, the blob of `mb` and `connections` are of each
    of `repeats` rounds of either end. Raises NodeError when the ends do not come together."""
    return asyncio.run(_run(messages, round(mb * MB), connections, repeats, seed, report))


async def _run(
    messages: int, blob_bytes: int, connections: int, repeats: int, seed: int, report: Report
) -> dict[str, Any]:
    async with _connected(seed, blob_bytes) as (ours, bare):
        report("round trips of one message")
        trips = await _in_turn(ours, bare, repeats, lambda end: _time_each(end.exchange, messages))
        report(f"messages, {WINDOW} under way")
        rates = await _in_turn(ours, bare, repeats, lambda end: _time_once(end.exchange_many, messages))
        report(f"a blob of {blob_bytes / MB:g} MB")
        pulls = await _in_turn(ours, bare, repeats, lambda end: _time_once(end.pull, blob_bytes))
        report("connections")
        connects = await _in_turn(ours, bare, repeats, lambda end: _time_each(end.connect, connections))
        message_bytes = len(ours.end.vote.data)
    return {
        "machine": get_machine(),
        "job": {
            "messages": messages,
            "message_bytes": message_bytes,
            "window": WINDOW,
            "mb": blob_bytes / MB,
            "connections": connections,
            "repeats": repeats,
            "seed": seed,
            "messages_per_s_allowed": RateLimits().messages_per_s,
        },
        "round_trip_s": compare_delays(*trips),
        "messages_per_s": compare_rates(messages, *rates),
        "blob_mb_per_s": compare_rates(blob_bytes / MB, *pulls),
        "connect_s": compare_delays(*connects),
    }


# ---- the two ends as they are measured


class _Measured(Protocol):
    async def exchange(self) -> None:
        """One message there, and its answer."""

    async def exchange_many(self, count: int) -> None:
        """So many, WINDOW under way at once."""

    async def pull(self, num_bytes: int) -> None:
        """The whole blob. Raises NodeError if it is of another size."""

    async def connect(self) -> None:
        """A new connection, from nothing to the answer of its first call."""


class _Answers(NullHandler):
    """Counts and checks them."""

    def __init__(self, end: End) -> None:
        self.count = 0
        self.came = asyncio.Event()
        self._end = end

    def on_message(self, peer: Id, message: Message) -> None:
        if message.kind is MessageKind.VOTE:
            self._end.check(message)
            self.count += 1
            self.came.set()


class _Ours:
    """The transport of a node."""

    def __init__(self, end: End) -> None:
        self.end = end
        self.answers = _Answers(end)
        tls = end.transport.tls
        assert tls is not None
        self.tls: MutualTls = tls
        self._caller = Caller(end.key.id, tls)

    async def exchange(self) -> None:
        await self._exchange(1, 1)

    async def exchange_many(self, count: int) -> None:
        await self._exchange(count, WINDOW)

    async def _exchange(self, count: int, window: int) -> None:
        answers, posted = self.answers, 0
        before = answers.count
        while (answered := answers.count - before) < count:
            answers.came.clear()
            while posted < count and posted - answered < window:
                self.end.transport.post(self.end.peer, self.end.vote)
                posted += 1
            await answers.came.wait()

    async def pull(self, num_bytes: int) -> None:
        chunks = self.end.transport.fetch_blob(self.end.peer, ZERO, max_bytes=num_bytes)
        _validate_size(sum([len(chunk) async for chunk in chunks]), num_bytes)

    async def connect(self) -> None:
        channel = self._caller.open_channel(self.end.peer, self.end.peer_address)
        try:
            await channel.unary_unary(f"/{SERVICE}/Hello", None, pb.HelloReply.FromString)(b"", timeout=TIMEOUT_S)
        finally:
            await channel.close(None)


class _Bare:
    """gRPC and TLS alone, to the same process."""

    def __init__(self, ours: _Ours, address: str) -> None:
        self._data = ours.end.vote.data
        self._peer = ours.end.peer
        self._tls = ours.tls
        self._address = address
        self._channel = self._open_channel()
        self._call: Any = self._channel.stream_stream(f"/{BARE}/Echo", None, None)(None)

    def _open_channel(self) -> grpc.aio.Channel:
        options = [
            ("grpc.ssl_target_name_override", get_server_name(self._peer)),
            ("grpc.use_local_subchannel_pool", 1),  # or a channel would take over another one's connection
        ]
        return grpc.aio.secure_channel(self._address, self._tls.make_channel_credentials(self._peer), options=options)

    async def close(self) -> None:
        self._call.cancel()
        await self._channel.close(None)

    async def exchange(self) -> None:
        await self._call.write(self._data)
        await self._call.read()

    async def exchange_many(self, count: int) -> None:
        room = asyncio.Semaphore(WINDOW)

        async def write() -> None:
            for _ in range(count):
                await room.acquire()
                await self._call.write(self._data)

        writing = asyncio.create_task(write())
        for _ in range(count):
            await self._call.read()
            room.release()
        await writing

    async def pull(self, num_bytes: int) -> None:
        call: Any = self._channel.unary_stream(f"/{BARE}/Blob", None, None)(b"")
        _validate_size(sum([len(chunk) async for chunk in call]), num_bytes)

    async def connect(self) -> None:
        channel = self._open_channel()
        try:
            await channel.unary_unary(f"/{BARE}/Hello", None, None)(b"", timeout=TIMEOUT_S)
        finally:
            await channel.close(None)


def _validate_size(got: int, expected: int) -> None:
    if got != expected:
        raise NodeError(f"the blob: expected {expected} bytes, got {got}")


@asynccontextmanager
async def _connected(seed: int, blob_bytes: int) -> AsyncIterator[tuple[_Ours, _Bare]]:
    """Both, once messages come and go."""
    ports = find_free_ports(2)
    ours = _Ours(End(0, seed, ports))
    arguments = [str(number) for number in (seed, ports[1], ports[0], blob_bytes)]
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = await asyncio.create_subprocess_exec(
        *make_command("bench.net_peer", *arguments), stdin=PIPE, stdout=PIPE, env={**os.environ, "PYTHONPATH": path}
    )
    running = asyncio.create_task(ours.end.transport.run(ours.answers))
    try:
        assert process.stdout is not None
        async with asyncio.timeout(TIMEOUT_S):
            line = await process.stdout.readline()
            if not line:
                raise NodeError(f"the other end has ended with exit code {await process.wait()}")
            bare = _Bare(ours, f"{LOOPBACK}:{json.loads(line)['bare_port']}")
            await _come_together(ours, running)
            for end in (ours, bare):
                await end.exchange_many(WARM_UP)
        try:
            yield ours, bare
        finally:
            await bare.close()
    except TimeoutError:
        raise NodeError(f"one end has waited for the other for {TIMEOUT_S:g} s") from None
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _come_together(ours: _Ours, running: asyncio.Task[None]) -> None:
    """Both dial; an answer is there once both have come through."""
    while ours.answers.count == 0:
        if running.done():
            running.result()
        ours.end.transport.post(ours.end.peer, ours.end.vote)
        await asyncio.sleep(0.05)
    while True:  # answers that are still on their way are nobody's
        seen = ours.answers.count
        await asyncio.sleep(0.1)
        if ours.answers.count == seen:
            return


# ---- measuring


async def _in_turn(
    ours: _Measured, bare: _Measured, repeats: int, measure: Callable[[_Measured], Awaitable[list[float]]]
) -> tuple[list[float], list[float]]:
    """Seconds, of ours and of the bare one."""
    our_s: list[float] = []
    bare_s: list[float] = []
    for _ in range(repeats):
        our_s += await measure(ours)
        bare_s += await measure(bare)
    return our_s, bare_s


async def _time_each(act: Callable[[], Awaitable[None]], count: int) -> list[float]:
    took = []
    for _ in range(count):
        took += await _time_once(lambda _: act(), 0)
    return took


async def _time_once(act: Callable[[int], Awaitable[None]], amount: int) -> list[float]:
    began_s = time.perf_counter()
    async with asyncio.timeout(TIMEOUT_S):
        await act(amount)
    return [time.perf_counter() - began_s]


def compare_delays(our_s: Sequence[float], bare_s: Sequence[float]) -> dict[str, Any]:
    """`ratio`: how many times as long ours takes."""
    ours, bare = describe_tail(our_s), describe_tail(bare_s)
    return {"ours": ours, "bare": bare, "ratio": {key: ours[key] / bare[key] for key in ("median", "p99")}}


def compare_rates(amount: float, our_s: Sequence[float], bare_s: Sequence[float]) -> dict[str, Any]:
    """The same of so much at once, a second."""
    return {
        "ours": describe_spread([amount / took_s for took_s in our_s]),
        "bare": describe_spread([amount / took_s for took_s in bare_s]),
        "ratio": describe_spread([ours / bare for ours, bare in zip(our_s, bare_s, strict=True)]),
    }
