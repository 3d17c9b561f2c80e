"""`make bench-transfer`: heartbeats and votes beside a large blob on its way, on real processes.

Three members of four vote, as processes of their own; all of them are needed. The fourth is this process: it listens,
and pulls a large blob of the first, over and over, with the parts that a node pulls with. Everything is measured first
without a transfer and then beside it, over the same time:

  vote phase      seconds in the records of the three: each waits for the sender's votes
  round           seconds between blocks
  answer          of the sender to its operator, asked for its status ANSWERS_PER_S times a second
  heartbeat       there and back on a connection of its own, from the receiver to the sender
  votes' spread   at the receiver, between the first and the sender's vote of a height and phase: both ends' delay
  receiver's lag  of its event loop, looked at `bench_lag.LOOKS_PER_S` times a second
"""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc

from bench.tails import describe_tail, watch_loop
from bench.untrained import make_untrained_spec
from chain import codec
from chain.block import Digest, Id
from chain.store.blob_files import BlobFiles
from chain.store.sqlite import SqliteStore
from ml.payload import CHUNK_BYTES
from node.admin.client import AdminClient
from node.bench.figures import Report
from node.bench.fixtures import temporary_testnet
from node.clock import SystemClock
from node.config.identity import open_identity
from node.config.node_config import load_config
from node.errors import NodeError
from node.host.machine import get_machine
from node.host.procfs import MB
from node.offload import ThreadOffload
from node.p2p.tls import MutualTls
from node.p2p.transport.base import Message, MessageKind
from node.p2p.transport.calls import SERVICE
from node.p2p.transport.channel import Caller
from node.p2p.transport.rpc import RpcTransport
from node.payloads.fetcher import BlobFetcher
from node.payloads.partial_files import PartialFiles
from node.payloads.transfers import Transfers
from node.pb import peer_pb2 as pb
from node.testnet.cluster import LocalCluster, NodeProcess
from node.testnet.layout import Testnet
from support.federation.null_handler import NullHandler

VOTERS = 3
WARM_UP = 5  # blocks before anything is measured
TIMEOUT_S = 300.0
ANSWERS_PER_S = 20.0
HEARTBEATS_PER_S = 3.0  # no more are answered at once


def run_transfer_bench(*, mb: float, seconds: float, seed: int, report: Report) -> dict[str, Any]:
    """Figures without and beside the transfer. `seconds` are for each; one transfer is made in any case."""
    with temporary_testnet(make_untrained_spec(VOTERS + 1, seed)) as testnet:
        found = asyncio.run(_measure(testnet, round(mb * MB), seconds, report))
    alone, beside = found["alone"], found["beside"]
    return {
        "machine": get_machine(),
        "job": {"voters": VOTERS, "mb": mb, "seconds": seconds, "seed": seed, "method": "local"},
        **found,
        "ratio": {
            name: {key: beside[name][key] / max(alone[name][key], 1e-6) for key in ("median", "p99")} for name in alone
        },
    }


async def _measure(testnet: Testnet, size: int, seconds: float, report: Report) -> dict[str, Any]:
    async with LocalCluster(testnet) as cluster:
        *voters, fourth = cluster.processes
        await asyncio.gather(*(process.start() for process in voters))
        async with _receiving(testnet, fourth, voters[0]) as receiver:
            await cluster.wait_for_height(WARM_UP, TIMEOUT_S, [process.name for process in voters])
            report(f"rounds of {VOTERS} members without a transfer, for {seconds:g} s")
            alone = await _watch(voters, receiver, asyncio.sleep(seconds))
            blob = await asyncio.to_thread(_place_blob, voters[0], size)
            report(f"the same beside transfers of {size / MB:g} MB")
            transfers: list[float] = []
            beside = await _watch(voters, receiver, receiver.pull(blob, seconds, transfers))
    return {
        "alone": alone,
        "beside": beside,
        "transfers": {
            "count": len(transfers),
            "mb_per_s": {"median": size / MB / statistics.median(transfers), "min": size / MB / max(transfers)},
        },
    }


# ---- the blob


@dataclass(frozen=True, slots=True)
class _Blob:
    digest: Digest
    size: int
    chunk_digests: bytes


def _place_blob(sender: NodeProcess, size: int) -> _Blob:
    """Random bytes among the sender's blobs. Nothing on the chain names them; whoever asks for them gets them."""
    whole, chunk_digests, left = sha256(), b"", size
    files = BlobFiles(sender.node.data_dir, readonly=True, faults=None)
    with tempfile.NamedTemporaryFile(dir=files.blob_path(bytes(32)).parents[1], delete=False) as file:
        while left:
            chunk = os.urandom(min(CHUNK_BYTES, left))
            file.write(chunk)
            whole.update(chunk)
            chunk_digests += sha256(chunk).digest()
            left -= len(chunk)
    path = files.blob_path(whole.digest())
    path.parent.mkdir(exist_ok=True)
    Path(file.name).rename(path)
    return _Blob(whole.digest(), size, chunk_digests)


# ---- the receiver


class _VoteRecorder(NullHandler):
    """The times when votes came."""

    def __init__(self) -> None:
        self.votes: dict[tuple[int, int, int], dict[Id, float]] = {}  # by height, view and phase; when, by voter

    def on_message(self, peer: Id, message: Message) -> None:
        if message.kind is MessageKind.VOTE:
            vote = codec.decode_vote(message.data)
            slot = self.votes.setdefault((vote.height, vote.view, int(vote.phase)), {})
            slot.setdefault(vote.voter, time.monotonic())

    def get_spreads(self, sender: Id, since_s: float) -> list[float]:
        """By how much the sender's vote came after the first, where it was not the first; 0 where it was."""
        slots = [votes for votes in self.votes.values() if sender in votes and min(votes.values()) >= since_s]
        return [votes[sender] - min(votes.values()) for votes in slots if len(votes) == VOTERS]


@dataclass(slots=True)
class _Receiver:
    """The fourth member: what it pulls with, and a channel of its own for heartbeats."""

    recorder: _VoteRecorder
    fetcher: BlobFetcher
    store: SqliteStore
    sender: Id
    channel: grpc.aio.Channel

    async def pull(self, blob: _Blob, seconds: float, took: list[float]) -> None:
        """Once, and again for as long as `seconds` have not passed. `took` is told how long each transfer took."""
        until_s = time.monotonic() + seconds
        while not took or time.monotonic() < until_s:
            began_s = time.monotonic()
            async with asyncio.timeout(TIMEOUT_S):
                await self.fetcher.fetch_file(blob.digest, blob.size, blob.chunk_digests, [self.sender])
            took.append(time.monotonic() - began_s)
            await asyncio.to_thread(self.store.delete_blob, blob.digest)

    async def beat(self) -> None:
        await self.channel.unary_unary(f"/{SERVICE}/Hello", None, pb.HelloReply.FromString)(b"", timeout=TIMEOUT_S)


@asynccontextmanager
async def _receiving(testnet: Testnet, fourth: NodeProcess, sender: NodeProcess) -> AsyncIterator[_Receiver]:
    config = load_config(fourth.node.config_file)
    key = open_identity(config)
    addresses = config.network.get_addresses(testnet.genesis)
    peers = {peer: address for peer, address in addresses.items() if peer != key.id}
    store = SqliteStore.open(config.node.data_dir, testnet.genesis)
    bulk, disk = ThreadOffload("bulk"), ThreadOffload("disk")
    transport = RpcTransport(key, config.network.listen, peers, chain_id=testnet.genesis.chain_id)
    recorder, names = _VoteRecorder(), {member.key: member.name for member in testnet.genesis.state.members}
    fetcher = BlobFetcher(
        transport, store, disk, PartialFiles(store, bulk), Transfers(SystemClock(), lambda peer: names[peer])
    )
    sent_by = sender.node.key
    channel = Caller(key.id, MutualTls(key, peers)).open_channel(sent_by, peers[sent_by])
    running = asyncio.create_task(transport.run(recorder))
    try:
        yield _Receiver(recorder, fetcher, store, sent_by, channel)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await channel.close(None)
        store.close()
        bulk.close()
        disk.close()


# ---- watching


@dataclass(slots=True)
class _Seen:
    answers: list[float] = field(default_factory=list)
    heartbeats: list[float] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)


async def _watch(voters: Sequence[NodeProcess], receiver: _Receiver, work: Awaitable[None]) -> dict[str, Any]:
    """What is seen while `work` is done."""
    seen = _Seen()
    first = await _get_height(voters[0]) + 1
    since_s = time.monotonic()
    with AdminClient(voters[0].socket) as admin:
        watching = [
            asyncio.create_task(watch)
            for watch in (
                _time(lambda: asyncio.to_thread(admin.get_status), ANSWERS_PER_S, seen.answers),
                _time(receiver.beat, HEARTBEATS_PER_S, seen.heartbeats),
                watch_loop(seen.lags),
            )
        ]
        try:
            await work
            last = await _get_height(voters[0])
            if failed := next((task for task in watching if task.done()), None):
                failed.result()
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
    rounds = [await process.get_rounds() for process in voters]
    inside = [record for node in rounds for record in node if first <= record["round"] <= last]
    times = (await voters[0].get_block_times())[first - 1 : last]
    if len(times) < 2:
        raise NodeError(f"expected some rounds in that time, got {len(times)}; give it more --seconds")
    return {
        "vote_s": describe_tail([record["seconds"]["vote"] for record in inside]),
        "round_s": describe_tail([after - before for before, after in itertools.pairwise(times)]),
        "answer_s": describe_tail(seen.answers),
        "heartbeat_s": describe_tail(seen.heartbeats),
        "spread_s": describe_tail(receiver.recorder.get_spreads(receiver.sender, since_s)),
        "lag_s": describe_tail(seen.lags),
    }


async def _time(ask: Callable[[], Awaitable[object]], per_s: float, took: list[float]) -> None:
    """Asks so many times a second, or as often as there are answers."""
    while True:
        began_s = time.monotonic()
        await ask()
        took.append(time.monotonic() - began_s)
        await asyncio.sleep(max(0.0, 1 / per_s - took[-1]))


async def _get_height(process: NodeProcess) -> int:
    return int((await process.expect_status())["height"])
