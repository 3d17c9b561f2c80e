"""The in-process federation: members that train nothing, in one process. All that is left of a round is the work of the
ledger itself.

    async with in_process_federation(directory, 16, rounds=20) as federation:
        await federation.wait_for_height(20, timeout_s=60.0)

The members are real: their own keys, stores on disk and proof of work, in real time. Two parts are replaced: the
network is `support.federation.memory_transport`, and the trainer has nothing to learn and nothing to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from chain.genesis import Genesis
from chain.signing import SigningKey
from chain.store.sqlite import SqliteStore
from node.clock import SystemClock
from node.consensus.context import NodeContext
from node.consensus.service import RoundService
from node.consensus.wiring import make_round_service
from node.errors import NodeUnreachable
from node.offload import ThreadOffload
from node.runs.specs import RunSpecs
from node.training.observer_trainer import ObserverTrainer
from node.training.trainer import Trained
from support.data.synthetic import INITIAL_MODEL, make_genesis
from support.federation.inline import InlineMiner, InlineOffload
from support.federation.memory_transport import MemoryNetwork

LATENCY_S = (0.0005, 0.002)  # one way, as in the network of one building
POLL_S = 0.02


class IdleTrainer(ObserverTrainer):
    """A trainer of method `local` whose local phase ends at once and that learns nothing."""

    async def train(self, round_number: int, beacon: bytes, **options: Any) -> Trained:
        return Trained(1, {}, {})


@dataclass(frozen=True, slots=True)
class InProcessFederation:
    """The running services of the members, in the order of their keys."""

    services: tuple[RoundService, ...]
    contexts: tuple[NodeContext, ...]

    @property
    def height(self) -> int:
        """The height that every member has finalised."""
        return min(service.tip.height for service in self.services)

    def count_sent(self) -> dict[str, tuple[int, int]]:
        """Counts messages and bytes that all members have sent since the start, by kind."""
        counts: dict[str, tuple[int, int]] = {}
        for context in self.contexts:
            for counters in context.transport.counters().values():
                for kind, traffic in counters.kinds.items():
                    messages, num_bytes = counts.get(kind, (0, 0))
                    counts[kind] = (messages + traffic.messages_sent, num_bytes + traffic.bytes_sent)
        return counts

    async def get_rounds(self, first: int, last: int) -> list[Mapping[str, Any]]:
        """Returns the records of these heights of every member, as far as they are written."""
        read = [context.disk.run(_read_rounds, context.store, first, last) for context in self.contexts]
        return [record for records in await asyncio.gather(*read) for record in records]

    async def wait_for_height(self, height: int, timeout_s: float) -> None:
        """Waits until every member has finalised `height`. Raises NodeUnreachable."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.height < height:  # noqa: ASYNC110 - the sum of what many tasks do
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            at = sorted(service.tip.height for service in self.services)
            raise NodeUnreachable(
                f"height {height} was not reached within {timeout_s:g} s by {len(at)} members; they are at {at}"
            ) from None


def _read_rounds(store: SqliteStore, first: int, last: int) -> list[Mapping[str, Any]]:
    return [record for _, record in store.rounds(first, last)]


@asynccontextmanager
async def in_process_federation(
    directory: Path, num_nodes: int, *, rounds: int, difficulty: int, seed: int = 1
) -> AsyncIterator[InProcessFederation]:
    """Runs members with stores below `directory` until the context is left. An error in one of them is raised here."""
    keys = sorted((SigningKey.generate() for _ in range(num_nodes)), key=lambda key: key.id)
    genesis = make_genesis(keys, rounds=rounds, difficulty=difficulty, target_ms=50)
    network = MemoryNetwork(seed, latency_s=LATENCY_S)
    with ExitStack() as stack:
        contexts = tuple(_make_context(directory / key.id.hex()[:16], genesis, key, network, stack) for key in keys)
        services = tuple(make_round_service(context) for context in contexts)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(service.run()) for service in services]
            yield InProcessFederation(services, contexts)
            for task in tasks:
                task.cancel()


def _make_context(
    directory: Path, genesis: Genesis, key: SigningKey, network: MemoryNetwork, stack: ExitStack
) -> NodeContext:
    """Makes a member's context, with its store open and a thread for it until `stack` is closed."""
    store = SqliteStore.open(directory, genesis)
    stack.callback(store.close)
    store.put_blob(INITIAL_MODEL)
    disk = ThreadOffload("disk")
    stack.callback(disk.close)
    return NodeContext(
        genesis=genesis,
        runs=RunSpecs.load(store),
        key=key,
        store=store,
        transport=network.transport(key.id),
        trainer=IdleTrainer(),
        miner=InlineMiner(),
        clock=SystemClock(),
        disk=disk,
        arithmetic=InlineOffload(),
        bulk=InlineOffload(),
        random=Random(),
        approves_genesis=True,  # members have no samples here
    )
