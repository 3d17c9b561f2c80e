"""A network of nodes within one process: seeded latency, loss, duplication, reordering, cuts and partitions.

It uses asyncio's time alone, so it runs under a virtual-time loop, and under one seed two runs of the same
program see the same delays and losses.

    network = MemoryNetwork(seed=1, latency_s=(0.001, 0.02), loss=0.05)
    alice, bob = network.transport(ALICE), network.transport(BOB)
    network.cut(ALICE, BOB)
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping
from contextlib import aclosing
from functools import partial
from random import Random

from chain.block import Digest, Id
from node.boundary import Boundary
from node.p2p.admission import Admission, Role
from node.p2p.bans import Bans
from node.p2p.refusals import Reason
from node.p2p.transport.base import (
    BLOB,
    BLOCKS,
    FRAMING_BYTES,
    KIND_NAMES,
    MAX_BLOB_BYTES,
    MAX_BLOCKS_COUNT,
    BlobTooLong,
    Direction,
    Handler,
    Message,
    PeerFault,
    PeerUnavailable,
    TrafficCounters,
    TransportError,
    limit_blocks_reply,
    read_chunks,
    takes,
    validate_size,
)
from node.p2p.transport.outbox import STATUS_PER_S, Outbox
from node.p2p.transport.round_trips import RoundTrips

TICK_S = 1e-6  # the loop keeps no order among timers of the same instant


class MemoryNetwork:
    """The network between the transports made by `transport`. Any of them reaches any other while both run.

    `latency_s` bounds the uniform delay of each message, one way. Messages overtake each other unless `fifo`: then
    messages sent together also arrive together, as in a stream. `loss` and `duplicate` are probabilities per pushed
    message; a pull fails with probability `loss`. `notice_s` is the time until a node notices that a peer has come or
    gone.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        latency_s: tuple[float, float] = (0.0005, 0.002),
        loss: float = 0.0,
        duplicate: float = 0.0,
        fifo: bool = False,
        notice_s: float = 0.05,
        status_per_s: float = STATUS_PER_S,
    ) -> None:
        self.latency_s = latency_s
        self.loss = loss
        self.duplicate = duplicate
        self.fifo = fifo
        self.notice_s = notice_s
        self.status_per_s = status_per_s
        self.random = Random(seed)  # random numbers of a simulation, not of a secret
        self._clockwork = Random(seed)  # for requests and replies, so that delays of pushes do not depend on them
        self._transports: dict[Id, MemoryTransport] = {}
        self._cuts: set[tuple[Id, Id]] = set()
        self._down: set[Id] = set()

    def __repr__(self) -> str:
        return (
            f"MemoryNetwork(transports={len(self._transports)}, down={len(self._down)}, cuts={len(self._cuts)}, "
            f"loss={self.loss})"
        )

    def transport(self, me: Id) -> MemoryTransport:
        """Returns a new transport for `me`. An earlier one of the same id (before a restart) is unplugged."""
        transport = MemoryTransport(self, me)
        self._transports[me] = transport
        self.settle()
        return transport

    def cut(self, a: Id, b: Id, *, one_way: bool = False) -> None:
        """Cuts the link from `a` to `b`, and back unless `one_way`; messages on their way are lost.

        With a cut one way both still believe that they are connected, and pulls fail.
        """
        self._cuts.add((a, b))
        if not one_way:
            self._cuts.add((b, a))
        self.settle()

    def partition(self, *sides: Iterable[Id]) -> None:
        """Cuts every link between two different sides. Links within a side, and other cuts, stay as they are."""
        groups = [tuple(side) for side in sides]
        for i, left in enumerate(groups):
            for right in groups[i + 1 :]:
                for a in left:
                    for b in right:
                        self._cuts |= {(a, b), (b, a)}
        self.settle()

    def heal(self, a: Id | None = None, b: Id | None = None) -> None:
        """Mends the link between `a` and `b`; without arguments, every cut."""
        if a is None or b is None:
            self._cuts.clear()
        else:
            self._cuts -= {(a, b), (b, a)}
        self.settle()

    def set_down(self, peer: Id) -> None:
        """Unplugs `peer`: it and the others notice that the connections are gone. `set_up` plugs it in again."""
        self._down.add(peer)
        self.settle()

    def set_up(self, peer: Id) -> None:
        self._down.discard(peer)
        self.settle()

    def find(self, peer: Id) -> MemoryTransport | None:
        """Returns the running transport of `peer`, None where it is unplugged."""
        transport = self._transports.get(peer)
        return transport if transport is not None and transport.running and peer not in self._down else None

    def is_open(self, a: Id, b: Id) -> bool:
        """Says whether a message from `a` to `b` arrives now, loss apart."""
        return (a, b) not in self._cuts and self.find(a) is not None and self.find(b) is not None

    def is_linked(self, a: Id, b: Id) -> bool:
        """Says whether `a` has a connection to `b`: both run and admit each other, the link is not cut both ways, and
        `b` does not refuse `a`."""
        here, there = self.find(a), self.find(b)
        if here is None or there is None or ((a, b) in self._cuts and (b, a) in self._cuts):
            return False
        if not (here.wants(b) or there.wants(a)):
            return False
        return bool(here.get_role(b)) and bool(there.get_role(a)) and not there.bans.is_banned(a)

    def get_ids(self) -> tuple[Id, ...]:
        return tuple(self._transports)

    def settle(self) -> None:
        """Has every running node notice, a moment later, which peers came and went."""
        for transport in self._transports.values():
            transport.settle_later()

    def draw_delay_s(self) -> float:
        return self.random.uniform(*self.latency_s)

    def draw_round_trip_s(self) -> float:
        return self._clockwork.uniform(*self.latency_s) + self._clockwork.uniform(*self.latency_s)


class MemoryTransport:
    """One node's end of a MemoryNetwork. See `node.p2p.transport.base.Transport`."""

    def __init__(self, network: MemoryNetwork, me: Id) -> None:
        self._network = network
        self._me = me
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handler: Handler | None = None
        self._pending_calls: deque[Callable[[], None]] = deque()
        self._wake = asyncio.Event()
        self._up: dict[Id, MemoryTransport] = {}
        self._outboxes: dict[Id, Outbox] = {}
        self._drains: dict[Id, asyncio.TimerHandle] = {}  # when each outbox is emptied next
        self._last_arrival_s: dict[Id, float] = {}
        self._counters: dict[Id, TrafficCounters] = {}
        self._trips: dict[Id, RoundTrips] = {}
        self._roles: dict[Id, Role] | None = None  # None: everybody is a member
        self._kept: Collection[Id] | None = None  # members; None: all
        self._settles_s = float("-inf")  # when this end next checks who has come and gone
        self.addresses: dict[Id, str] = {}  # not dialled: peers are found by their ids
        self.bans = Bans(self._get_time_s)
        self.boundary = Boundary()

    def __repr__(self) -> str:
        return f"MemoryTransport({self._me.hex()[:8]}, running={self.running}, connected={len(self._up)})"

    @property
    def me(self) -> Id:
        return self._me

    @property
    def running(self) -> bool:
        return self._handler is not None

    def connected(self) -> frozenset[Id]:
        return frozenset(self._up)

    def directions(self) -> Mapping[Id, Direction]:
        return {peer: Direction.DIALLED if self._me < peer else Direction.ACCEPTED for peer in self._up}

    def counters(self) -> Mapping[Id, TrafficCounters]:
        return self._counters

    def round_trips(self) -> Mapping[Id, RoundTrips]:
        return self._trips

    def admit(self, admission: Admission) -> None:
        before, self._roles = self._roles, admission.get_roles()
        if self._roles != before:
            self._network.settle()

    def get_role(self, peer: Id) -> Role:
        """Returns the role of `peer` here; NONE for one that is not admitted."""
        return Role.MEMBER if self._roles is None else self._roles.get(peer, Role.NONE)

    def keep(self, members: Collection[Id] | None) -> None:
        self._kept = None if members is None else frozenset(members)
        self._network.settle()

    def wants(self, peer: Id) -> bool:
        """Says whether this end would dial `peer`."""
        return self._kept is None or peer in self._kept or not self.get_role(peer) & Role.MEMBER

    async def redial(self, peer: Id, address: str | None) -> None:
        if address is None:
            self.addresses.pop(peer, None)
        else:
            self.addresses[peer] = address

    async def run(self, handler: Handler) -> None:
        self._loop = asyncio.get_running_loop()
        self._handler = handler
        self._network.settle()
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._pending_calls:
                    self._pending_calls.popleft()()
        finally:
            self._handler = None
            self._pending_calls.clear()
            self._up.clear()
            self._outboxes.clear()
            self._network.settle()

    # Pushing

    def post(self, peer: Id, message: Message) -> None:
        validate_size(message)
        outbox = self._outboxes.get(peer)
        if outbox is None:
            self._get_counters(peer).dropped += 1
            return
        if not outbox.put(message):
            self._get_counters(peer).dropped += 1
        self._drain_later(peer, 0.0)

    def _drain_later(self, peer: Id, wait_s: float) -> None:
        if self._loop is None:
            return
        planned = self._drains.get(peer)
        if planned is not None:
            if planned.when() <= self._loop.time() + wait_s:
                return
            planned.cancel()  # only a status waits here, and nothing else waits behind it
        self._drains[peer] = self._loop.call_later(wait_s, self._drain, peer)

    def _drain(self, peer: Id) -> None:
        self._drains.pop(peer, None)
        outbox, there = self._outboxes.get(peer), self._up.get(peer)
        if outbox is None or there is None:
            return
        messages: list[Message] = []
        while (message := outbox.pop(self._get_time_s())) is not None:
            messages.append(message)
        if messages:
            self._send(there, messages)
        wait_s = outbox.get_wait_s(self._get_time_s())
        if wait_s is not None:
            self._drain_later(peer, wait_s)

    def _send(self, there: MemoryTransport, messages: Iterable[Message]) -> None:
        """Sends messages that arrive together."""
        network, arriving = self._network, list[Message]()
        self._get_counters(there.me).batches_sent += 1
        self._ask(there)
        for message in messages:
            self._get_counters(there.me).add_sent(KIND_NAMES[message.kind], len(message.data) + FRAMING_BYTES)
            copies = 2 if network.random.random() < network.duplicate else 1
            arriving += [message for _ in range(copies) if network.random.random() >= network.loss]
        if not self._network.fifo:
            for message in arriving:  # each copy has a delay of its own
                self._get_loop().call_at(self._draw_arrival_s(there.me), there.deliver, self._me, [message])
        elif arriving:
            self._get_loop().call_at(self._draw_arrival_s(there.me), there.deliver, self._me, arriving)

    def _ask(self, there: MemoryTransport) -> None:
        """Waits for a round trip, as a request sent now takes it: there is no queue at the other end."""
        trips = self._trips[there.me]
        if number := trips.take_question(self._get_time_s()):
            arrives_s = self._get_time_s() + self._network.draw_round_trip_s()
            self._get_loop().call_at(arrives_s, self._hear_answer, there.me, number, arrives_s)

    def _hear_answer(self, peer: Id, number: int, now_s: float) -> None:
        if self._network.is_open(self._me, peer) and self._network.is_open(peer, self._me) and peer in self._trips:
            self._trips[peer].on_answer(number, now_s)

    def _draw_arrival_s(self, peer: Id) -> float:
        """Returns when a message sent now arrives; on a fifo link, after everything earlier."""
        arrival_s = self._get_time_s() + self._network.draw_delay_s()
        if self._network.fifo:
            arrival_s = max(arrival_s, self._last_arrival_s.get(peer, 0.0) + TICK_S)
            self._last_arrival_s[peer] = arrival_s
        return arrival_s

    def deliver(self, sender: Id, messages: Iterable[Message]) -> None:
        """Delivers messages, if the link is still there and this end still plugged in."""
        if self._network.find(self._me) is self and self._network.is_open(sender, self._me):
            for message in messages:
                self._enqueue(partial(self._take, sender, message))

    def _take(self, sender: Id, message: Message) -> None:
        if not self.get_role(sender):
            return
        counters = self._get_counters(sender)
        if self.bans.is_banned(sender):
            counters.refusals[Reason.REFUSED] += 1
            return
        counters.add_received(KIND_NAMES[message.kind], len(message.data) + FRAMING_BYTES)
        try:
            if not takes(self.get_role(sender), message.kind):
                counters.refusals[Reason.OTHER_HEIGHT] += 1
                return
            with self.boundary.around(KIND_NAMES[message.kind], sender, passing=(PeerFault,)):
                self._get_handler().on_message(sender, message)
        except PeerFault as fault:
            self._refuse(sender, fault)

    def _refuse(self, peer: Id, fault: PeerFault) -> None:
        self._get_counters(peer).refusals[fault.reason] += 1
        refusal_s = self.bans.add_fault(peer)
        self._network.settle()
        self._get_loop().call_later(refusal_s, self._network.settle)

    # Coming and going

    def settle_later(self) -> None:
        if self._loop is None or self._handler is None:
            return
        at_s = self._loop.time() + self._network.notice_s
        if at_s != self._settles_s:  # one check serves all that start at the same time
            self._settles_s = at_s
            self._loop.call_at(at_s, self._enqueue, self._settle)

    def _settle(self) -> None:
        for peer in self._network.get_ids():
            if peer == self._me:
                continue
            there = self._network.find(peer) if self._network.is_linked(self._me, peer) else None
            was = self._up.get(peer)
            if was is not None and was is not there:
                del self._up[peer]
                self._get_counters(peer).dropped += self._outboxes.pop(peer).clear()
                with self.boundary.around("connection", peer):
                    self._get_handler().on_peer_down(peer)
            if there is not None and was is not there:
                self._up[peer] = there
                self._outboxes[peer] = Outbox(self._get_time_s(), status_per_s=self._network.status_per_s)
                self._trips.setdefault(peer, RoundTrips()).restart()
                with self.boundary.around("connection", peer):
                    self._get_handler().on_peer_up(peer)

    def _enqueue(self, call: Callable[[], None]) -> None:
        if self._handler is not None:
            self._pending_calls.append(call)
            self._wake.set()

    # Pulling

    async def request_blocks(self, peer: Id, first: int, count: int) -> list[tuple[bytes, bytes]]:
        await self._travel(self._me, peer, risky=True)
        there = self._reach(peer)
        blocks: list[tuple[bytes, bytes]] = []
        try:
            handler = there._get_handler()
            with there.boundary.around("blocks", self._me, passing=(PeerFault,)) as crossing:
                blocks = await handler.on_blocks_request(self._me, first, min(count, MAX_BLOCKS_COUNT))
        except PeerFault as fault:
            there._refuse(self._me, fault)
            raise PeerUnavailable("refused") from fault
        if crossing.failure is not None:
            raise PeerUnavailable("it failed") from crossing.failure
        blocks = limit_blocks_reply(blocks, count)
        size = FRAMING_BYTES + sum(len(block) + len(certificate) for block, certificate in blocks)
        there._get_counters(self._me).add_sent(BLOCKS, size)
        await self._travel(peer, self._me)
        self._get_counters(peer).add_received(BLOCKS, size)
        return blocks

    async def fetch_blob(
        self, peer: Id, digest: Digest, offset: int = 0, *, max_bytes: int = MAX_BLOB_BYTES
    ) -> AsyncGenerator[bytes, None]:
        await self._travel(self._me, peer, risky=True)
        there = self._reach(peer, reads_blobs=True)
        position = offset
        async with aclosing(read_chunks(there._get_handler(), self._me, digest, offset)) as chunks:
            try:
                with there.boundary.around(BLOB, self._me, passing=(TransportError,)) as crossing:
                    async for chunk in chunks:
                        there._get_counters(self._me).add_sent(BLOB, len(chunk) + FRAMING_BYTES)
                        await self._travel(peer, self._me)
                        position += len(chunk)
                        if position > max_bytes:
                            raise BlobTooLong(f"{position} bytes and more, {max_bytes} declared")
                        self._get_counters(peer).add_received(BLOB, len(chunk) + FRAMING_BYTES)
                        yield chunk
                        if self._network.find(peer) is not there:
                            raise PeerUnavailable("the peer went away")
                        self._reach(peer, reads_blobs=True)
                if crossing.failure is not None:
                    raise PeerUnavailable("it failed") from crossing.failure
            except PeerFault as fault:
                there._refuse(self._me, fault)
                raise PeerUnavailable("refused") from fault

    async def _travel(self, source: Id, target: Id, *, risky: bool = False) -> None:
        """Waits one way's delay. Raises PeerUnavailable if the link is cut now or then, or, where `risky`, by
        chance."""
        lost = risky and self._network.random.random() < self._network.loss
        await asyncio.sleep(self._network.draw_delay_s())
        if lost or not self._network.is_open(source, target):
            await asyncio.sleep(self._network.notice_s)
            raise PeerUnavailable("no answer")

    def _reach(self, peer: Id, *, reads_blobs: bool = False) -> MemoryTransport:
        there = self._network.find(peer)
        if there is None or there.bans.is_banned(self._me) or not self.get_role(peer):
            raise PeerUnavailable("refused")
        role = there.get_role(self._me)
        if not role or (reads_blobs and not role.may_read_blobs):
            raise PeerUnavailable("refused")
        return there

    # Small things

    def _get_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise PeerUnavailable("the transport is not running")
        return self._loop

    def _get_handler(self) -> Handler:
        if self._handler is None:
            raise PeerUnavailable("the transport is not running")
        return self._handler

    def _get_time_s(self) -> float:
        return 0.0 if self._loop is None else self._loop.time()

    def _get_counters(self, peer: Id) -> TrafficCounters:
        counters = self._counters.get(peer)
        if counters is None:
            counters = self._counters[peer] = TrafficCounters()
        return counters
