"""`make bench-virtual-ledger`: rounds of many members in virtual time, as if each had a machine of its own.

Members are real but for their surroundings: rounds, signatures, votes and stores are those of a node; training and
mining take virtual time, and the wires are in memory, with the delays and losses that are asked for. So seconds of a
round are virtual, and tell of waits and messages; CPU seconds are real, those of all members by their number, without
the search for a nonce. No member is ever overloaded: that is what such figures leave out.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from chain.codec import VOTE_TAG
from chain.signing import SigningKey, verify
from node.bench.figures import Report
from node.bench.fixtures import temporary_directory
from node.experiments.measured import describe_spread
from node.host.machine import get_machine
from node.p2p.overlay import MESH_MAX
from support.federation.cluster import Cluster, SleepyMiner, cluster
from support.federation.virtual_time import run_virtual

NUM_CHECKS = 500
WARM_UP = 2  # rounds before those that are measured
TRAIN_S = 0.2
MINE_S = 0.2  # until one of all finds a nonce, in the mean
HASHES = 64  # of all, until then
VIRTUAL_LIMIT_S = 36_000.0


@dataclass(frozen=True, slots=True)
class Weather:
    """The wires: `one_way_s` more or less `jitter_s`, a share `loss` of messages gone; so many members are `silent`."""

    profile: str = "wide"
    one_way_s: float = 0.025
    jitter_s: float = 0.010
    loss: float = 0.01
    silent: int = 0
    mesh_max: int = MESH_MAX


class _UnmeasuredMiner(SleepyMiner):
    """Adds the CPU time of all searches up: what they cost here is not what is asked."""

    cpu_s = 0.0

    async def mine(self, seal: bytes, difficulty: int, start_nonce: int, count: int) -> int | None:
        began_s = time.process_time()
        nonce = self.search(seal, difficulty, start_nonce, count)
        _UnmeasuredMiner.cpu_s += time.process_time() - began_s
        await self.rest(count if nonce is None else nonce - start_nonce + 1)
        return nonce


@dataclass(frozen=True, slots=True)
class _Sample:
    """When the first member has finalised a height: virtual time, CPU time, and what all have sent until then."""

    at_s: float
    cpu_s: float
    messages: Mapping[str, int]
    num_bytes: int
    writes: int

    @classmethod
    def take(cls, net: Cluster) -> _Sample:
        messages: Counter[str] = Counter()
        num_bytes = writes = 0
        for node in net.nodes.values():
            if node.context is not None:
                for counters in node.context.transport.counters().values():
                    writes += counters.batches_sent
                    for kind, traffic in counters.kinds.items():
                        messages[kind] += traffic.messages_sent
                        num_bytes += traffic.bytes_sent
        cpu_s = time.process_time() - _UnmeasuredMiner.cpu_s
        return cls(asyncio.get_running_loop().time(), cpu_s, messages, num_bytes, writes)


def time_check() -> float:
    """CPU seconds of one Ed25519 check here and now: the unit of what cannot be done without."""
    key = SigningKey.from_private_bytes(bytes(32))
    signature = key.sign(VOTE_TAG, bytes(32), b"vote")
    began_s = time.process_time()
    for _ in range(NUM_CHECKS):
        verify(key.id, signature, VOTE_TAG, bytes(32), b"vote")
    return (time.process_time() - began_s) / NUM_CHECKS


def run_virtual_ledger_bench(
    *, sizes: Sequence[int], rounds: int, weather: Weather, seed: int, report: Report
) -> dict[str, Any]:
    """Figures by number of members: seconds, CPU seconds and messages of a member's round."""
    logging.getLogger("node").addHandler(logging.NullHandler())  # what n members warn of is nobody's to read
    measured = {}
    for n in sizes:
        report(f"{n} members in virtual time")
        measured[str(n)] = run_virtual(_measure(n, rounds, weather, seed), VIRTUAL_LIMIT_S)
    return {
        "machine": get_machine(),
        "job": {"rounds": rounds, "warm_up": WARM_UP, "seed": seed, "train_s": TRAIN_S, **asdict(weather)},
        "members": measured,
    }


async def _measure(n: int, rounds: int, weather: Weather, seed: int) -> dict[str, Any]:
    delays_s = (weather.one_way_s - weather.jitter_s, weather.one_way_s + weather.jitter_s)
    started = [f"node{i}" for i in range(n - weather.silent)]
    with temporary_directory() as directory:
        async with cluster(
            directory,
            n,
            seed=seed,
            start=[],
            train_s=TRAIN_S,
            hash_rate=HASHES / MINE_S / len(started),
            profile=weather.profile,
            network={"latency_s": delays_s, "loss": weather.loss, "fifo": True},  # as a stream is
            pow={"difficulty": HASHES, "min": HASHES, "max": HASHES, "target_ms": int(1000 * MINE_S)},
        ) as net:
            net.make_miner = _UnmeasuredMiner
            net.mesh_max = weather.mesh_max
            for name in started:
                net.start(name)
            samples, before_s = [], time_check()
            for height in range(WARM_UP, WARM_UP + rounds + 1):
                await net.wait_for_first(height, VIRTUAL_LIMIT_S)
                samples.append(_Sample.take(net))
            await net.wait_for_height(WARM_UP + rounds - 1, *started, timeout_s=VIRTUAL_LIMIT_S)
            blocks = [net["node0"].get_block(height) for height in range(WARM_UP + 1, WARM_UP + rounds)]
    first, last = samples[0], samples[-1]
    num = rounds * len(started)
    return {
        "round_s": describe_spread([after.at_s - before.at_s for before, after in itertools.pairwise(samples)]),
        "cpu_s": (last.cpu_s - first.cpu_s) / num,
        "messages": sum(last.messages.values()) / num - sum(first.messages.values()) / num,
        "kinds": {kind: (count - first.messages.get(kind, 0)) / num for kind, count in sorted(last.messages.items())},
        "check_s": (before_s + time_check()) / 2,
        "writes": (last.writes - first.writes) / num,
        "bytes": (last.num_bytes - first.num_bytes) / num,
        "contributions": statistics.mean(len(block.contributions) for block in blocks) if blocks else None,
    }
