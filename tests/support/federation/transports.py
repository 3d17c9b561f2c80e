"""Transports over real sockets on loopback, for tests: several nodes in one loop, each with a Recorder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

from chain.block import Id
from chain.signing import SigningKey
from node.boundary import UNFORESEEN
from node.p2p.admission import Admission
from node.p2p.bans import Bans
from node.p2p.transport.rate_limits import RateLimits
from node.p2p.transport.rpc import ConnectionLimits, RpcTransport
from support.federation.ports import find_free_ports
from support.federation.recording import Recorder, wait_until


class HandClock:
    """A clock that only a test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class RpcNode:
    key: SigningKey
    transport: RpcTransport
    recorder: Recorder
    clock: HandClock
    task: asyncio.Task[None] | None = None

    @property
    def id(self) -> Id:
        return self.key.id

    async def start(self) -> None:
        self.task = asyncio.create_task(self.transport.run(self.recorder))
        ready = asyncio.create_task(self.transport.ready())
        await asyncio.wait({self.task, ready}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self.task.done():
            self.task.result()

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
            self.task = None


@dataclass
class RpcNet:
    """Nodes with fixed ports, so that one may start after another has begun to dial it."""

    tls: Literal["mutual", "off"] = "mutual"
    limits: RateLimits = field(default_factory=RateLimits)
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    nodes: list[RpcNode] = field(default_factory=list)

    def build(
        self,
        key: SigningKey,
        listen: str,
        peers: dict[Id, str],
        *,
        members: Collection[Id] = (),
        observers: Collection[Id] = (),
        recorder: Recorder | None = None,
        proxy: str | None = None,
    ) -> RpcNode:
        clock = HandClock()
        transport = RpcTransport(
            key,
            listen,
            peers,
            proxy=proxy,
            admission=Admission(members, observers),
            tls=self.tls,
            limits=self.limits,
            connections=self.connections,
            bans=Bans(clock),
        )
        node = RpcNode(key, transport, recorder if recorder is not None else Recorder(), clock)
        self.nodes.append(node)
        return node

    def check_foreseen(self) -> None:
        """Checks that no transport's boundary caught an unforeseen error."""
        assert not any(node.transport.boundary.failures for node in self.nodes), UNFORESEEN

    async def stop(self) -> None:
        for node in self.nodes:
            await node.stop()


def make_keys(count: int) -> list[SigningKey]:
    """Makes the same keys each time, in the order of their ids."""
    keys = [SigningKey.from_private_bytes(bytes([i + 1]) * 32) for i in range(count)]
    return sorted(keys, key=lambda key: key.id)


@asynccontextmanager
async def rpc_net(
    count: int,
    *,
    tls: Literal["mutual", "off"] = "mutual",
    limits: RateLimits | None = None,
    start: Sequence[int] | None = None,
    diallers: Sequence[int] | None = None,
) -> AsyncIterator[RpcNet]:
    """Runs `count` members; those of `diallers` (by default all) know the others' addresses, and those of `start` (by
    default all) run and are connected."""
    net = RpcNet(tls, limits if limits is not None else RateLimits())
    keys = make_keys(count)
    addresses = {key.id: f"127.0.0.1:{port}" for key, port in zip(keys, find_free_ports(count), strict=True)}
    for i, key in enumerate(keys):
        known = addresses if diallers is None or i in diallers else {}
        net.build(key, addresses[key.id], known, members=addresses)
    running = [net.nodes[i] for i in (range(count) if start is None else start)]
    try:
        for node in running:
            await node.start()
        await wait_until(
            lambda: all(len(node.transport.connected()) == len(running) - 1 for node in running), "all connected"
        )
        yield net
        net.check_foreseen()
    finally:
        await net.stop()
