"""A federation under faults for as many rounds as one has patience for, and what it takes while they pass.

    async with soaking(tmp_path, seed=1) as soak:
        for _ in range(40):
            await soak.go_on(50)  # rounds, with faults all along
            samples.append(await soak.sample())  # in a calm between them

Faults are drawn from the seed: crashes, cuts, partitions, bad weather, slow nodes, a member that lies. One member is
never restarted: what it keeps is what a node keeps that runs for long. Nothing of the harness itself grows, or it would
be taken for a leak.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Literal

from chain import codec
from chain.block import ZERO, Id, Phase
from chain.store.rows import Rows, connect
from ml.guard import OnRefused
from node.consensus.height.machine import RoundMachine
from node.p2p.transport.base import Message, MessageKind
from node.training.exchange import Exchange
from node.training.trainer import NOTHING_TAKEN
from support.data.chains import make_digest
from support.faults.liar import Liar, lying, make_arrays
from support.federation.cluster import Cluster, Node, ScriptedTrainer, cluster
from support.federation.memory_census import take_census
from support.federation.memory_transport import MemoryTransport
from support.federation.wiretap import SLOTLESS, TappedNetwork, TappedTransport, read_slot

# The difficulty is fixed, or it would rise with seven fast miners: mining matters here only for the time it takes.
WORK = {"difficulty": 256, "min": 256, "max": 256, "target_ms": 100}
NUM_NODES = 7
STEADY = "node0"  # never restarted
SHADY = "node6"  # lies now and then
TRAIN_S = 0.2
SLOW_TRAIN_S = 3.0
CALM: Mapping[str, Any] = {"loss": 0.0, "duplicate": 0.0, "latency_s": (0.0005, 0.002)}
PATIENCE_S = 8000.0  # twice the longest refusal of a peer that sent bad bytes
KEPT_HEIGHTS = 20  # heights that signatures are kept for: nobody signs for older ones any more
MB = 1e6


class ForgetfulTrainer(ScriptedTrainer):
    """Keeps only the newest of what it receives."""

    async def apply(
        self,
        height: int,
        aggregate: bytes | None,
        exchange: Exchange = NOTHING_TAKEN,
        on_refused: OnRefused | None = None,
    ) -> Mapping[str, float]:
        self.applied.clear()
        self.trained.clear()
        self.iterations.clear()
        return await super().apply(height, aggregate, exchange, on_refused)


class WatchedNetwork(TappedNetwork):
    """Notes who signs twice, except for the one that may, and forgets old slots."""

    def __init__(self, seed: int = 0, **weather: Any) -> None:
        super().__init__(seed, **weather)
        self.shady: Id | None = None

    def transport(self, me: Id) -> MemoryTransport:
        """Returns a new transport; it drops what a restarted node leaves behind."""
        transport = TappedTransport(self, me)
        self._transports[me] = transport
        self.settle()
        return transport

    def note(self, sender: Id, message: Message) -> None:
        if message.kind in SLOTLESS or message.data in self._seen:
            return
        if sender == self.shady or read_slot(message)[2] == self.shady:
            return
        super().note(sender, message)

    def forget(self, below: int) -> None:
        self._seen.clear()
        for slot in [slot for slot in self.slots if _get_height(slot) < below]:
            del self.slots[slot]


def _get_height(slot: Any) -> int:
    """Returns the height of ("contribution", height, author), ("candidate", height, miner) or (height, view, phase,
    voter); consent to a change has none."""
    height = slot[1] if isinstance(slot[0], str) else slot[0]
    return height if isinstance(height, int) else 0


@dataclass(frozen=True, slots=True)
class Sample:
    """The figures of all nodes of this process in a calm after `round`; figures of one node are those of `STEADY`.

    `blocks` are those of Python's allocator in use, which is exact, as RSS is not; `entries` is the steady node's
    census; `files` and `disk_mb` are of all data directories, `db_bytes` of the steady node's database with its log.
    """

    round: int
    seconds: float
    rss_mb: float
    blocks: int
    fds: int
    tasks: int
    timers: int
    files: int
    temporary: int
    disk_mb: float
    db_bytes: int
    wal_bytes: int
    entries: Mapping[str, int]

    def to_row(self) -> dict[str, float]:
        left_out = ("entries",)
        row = {name: getattr(self, name) for name in self.__slots__ if name not in left_out}
        return {**row, "entries": sum(self.entries.values())}


def compute_slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Computes the slope of the line through the points, by least squares."""
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread


def compute_slopes(samples: Sequence[Sample]) -> dict[str, float]:
    """Computes the increase of each figure a round."""
    rounds = [sample.round for sample in samples]
    rows = [sample.to_row() for sample in samples]
    return {name: compute_slope(rounds, [row[name] for row in rows]) for name in rows[0] if name != "round"}


def compute_growth(samples: Sequence[Sample]) -> dict[str, float]:
    """Computes the increase of entries a round, by collection of the steady node."""
    rounds = [sample.round for sample in samples]
    names = {name for sample in samples for name in sample.entries}
    return {name: compute_slope(rounds, [sample.entries.get(name, 0) for sample in samples]) for name in names}


def format_table(samples: Sequence[Sample]) -> str:
    """Formats a line for each sample."""
    lines = ["round  seconds  RSS MB   blocks  fds  tasks  timers   files  disk MB  db kB  wal kB  entries"]
    for one in samples:
        lines.append(
            f"{one.round:5}  {one.seconds:7.1f}  {one.rss_mb:6.1f}  {one.blocks:7}  {one.fds:3}  {one.tasks:5}"
            f"  {one.timers:6}  {one.files:6}  {one.disk_mb:7.1f}  {one.db_bytes / 1000:5.0f}"
            f"  {one.wal_bytes / 1000:6.0f}  {sum(one.entries.values()):7}"
        )
    return "\n".join(lines)


Fault = Literal["crash", "cut", "partition", "weather", "slow", "lie"]
FAULTS: tuple[Fault, ...] = ("crash", "crash", "cut", "partition", "weather", "slow", "lie")


@dataclass
class Soak:
    """Draws one fault after the other, several at a time, for as long as the test runs it."""

    net: Cluster
    rng: Random
    began_s: float = field(default_factory=time.monotonic)
    num_faults: Counter[str] = field(default_factory=Counter)
    checked: dict[str, int] = field(default_factory=dict)
    digests: bytearray = field(default_factory=bytearray)  # the ids of all blocks

    @property
    def others(self) -> list[str]:
        return [name for name in self.net.nodes if name != STEADY]

    # ---- faults

    async def go_on(self, rounds: int) -> None:
        """Runs until the steady node has finalised so many more rounds, with faults all along; then mends
        everything."""
        goal = self.net[STEADY].height + rounds
        faults = {asyncio.create_task(self._keep_failing(start_s)) for start_s in (0.0, 0.5, 1.0)}
        try:
            await self.net.wait_for(
                lambda: self.net[STEADY].height >= goal or any(task.done() for task in faults),
                f"height {goal} on {STEADY}",
                PATIENCE_S,
            )
        finally:
            for task in faults:
                task.cancel()
            ended = await asyncio.gather(*faults, return_exceptions=True)
        for error in ended:
            if not isinstance(error, asyncio.CancelledError):
                raise AssertionError("a fault went wrong") from error
        await self._calm_down()

    async def _keep_failing(self, start_s: float) -> None:
        await asyncio.sleep(start_s)
        while True:
            await asyncio.sleep(self.rng.expovariate(2.0))
            fault = self.rng.choice(FAULTS)
            self.num_faults[fault] += 1
            act: Callable[[], Awaitable[None]] = getattr(self, f"_{fault}")
            await act()

    async def _last(self, mean_s: float) -> None:
        await asyncio.sleep(min(self.rng.expovariate(1 / mean_s), 5 * mean_s))

    async def _crash(self) -> None:
        """Crashes up to f nodes, sometimes more: then nothing is finalised until they are back."""
        count = self.rng.choice((1, 1, 1, 2, 2, 4))
        names = [name for name in self.rng.sample(self.others, count) if self.net[name].task is not None]
        try:
            for name in names:
                await self.net.crash(name)
            await self._last(2.0)
        finally:
            for name in names:
                self._start(name)

    async def _cut(self) -> None:
        a, b = self.rng.sample([*self.net.nodes], 2)
        one_way = self.rng.random() < 0.5
        self.net.network.cut(self.net.id(a), self.net.id(b), one_way=one_way)
        await self._last(4.0)
        self.net.network.heal(self.net.id(a), self.net.id(b))

    async def _partition(self) -> None:
        names = self.rng.sample([*self.net.nodes], NUM_NODES)
        count = self.rng.randint(1, NUM_NODES // 2)
        self.net.partition(names[:count], names[count:])
        await self._last(3.0)
        self.net.heal()

    async def _weather(self) -> None:
        self._set_weather(
            {
                "loss": self.rng.choice((0.05, 0.2, 0.3)),
                "duplicate": 0.1,
                "latency_s": (0.0, self.rng.choice((0.02, 0.1, 0.2))),
            }
        )
        await self._last(4.0)
        self._set_weather(CALM)

    def _set_weather(self, weather: Mapping[str, Any]) -> None:
        for name, value in weather.items():
            setattr(self.net.network, name, value)

    async def _slow(self) -> None:
        trainer = self.net[self.rng.choice([*self.net.nodes])].trainer
        assert isinstance(trainer, ScriptedTrainer)
        trainer.train_s = SLOW_TRAIN_S
        await self._last(5.0)
        trainer.train_s = TRAIN_S

    async def _lie(self) -> None:
        """Sends some lies in a row in the place of the lying member. The honest node that takes over has to cope with
        that."""
        if self.net[SHADY].task is None:
            return
        await self.net.crash(SHADY)
        try:
            with suppress(AssertionError):  # the liar may be refused by all or cut off: then it sends to nobody
                async with asyncio.timeout(30.0), lying(self.net, SHADY) as liar:
                    for _ in range(self.rng.randint(1, 5)):
                        self._tell_a_lie(liar)
                        await self._last(0.3)
        except TimeoutError:
            pass
        finally:
            self._start(SHADY)

    def _tell_a_lie(self, liar: Liar) -> None:
        rng = self.rng
        rival = make_digest(f"{rng.random()}")
        value = rng.random()
        match rng.randrange(9):
            case 0:  # two contributions for one height
                liar.send(liar.make_contribution(make_arrays(value=value)))
                liar.send(liar.make_contribution(make_arrays(value=-value)))
            case 1:  # two votes for one slot
                liar.send(liar.make_vote(Phase.PREVOTE, ZERO))
                liar.send(liar.make_vote(Phase.PREVOTE, rival))
            case 2:  # votes of many views, for blocks that nobody has
                for view in range(rng.randrange(40)):
                    liar.send(liar.make_vote(rng.choice((Phase.PREVOTE, Phase.PRECOMMIT)), rival, view=view))
            case 3:  # a payload that nobody can fetch
                contribution = liar.make_contribution(make_arrays(value=value))
                liar.blobs.clear()
                liar.send(contribution)
            case 4:  # a payload that does not fit the schema, or holds no numbers
                liar.send(liar.make_contribution(make_arrays(dim=rng.choice((1, 9)), value=float("nan"))))
            case 5:  # something of every height but this one
                for height in (liar.height - 1, liar.height + 1, liar.height + 2, rng.randrange(2**32)):
                    liar.send(liar.make_vote(Phase.PREVOTE, rival, height=height))
                    liar.send(liar.make_contribution(make_arrays(value=value), height=height))
            case 6:  # a candidate with another aggregate than its contributions have
                liar.send(liar.make_candidate(liar.get_contributions().values(), aggregate=rival))
            case 7:  # a head that it cannot prove
                store = self.net[STEADY].store
                assert store is not None
                liar.blocks = lambda first, count: [
                    (codec.encode_block(one.block), codec.encode_certificate(one.certificate))
                    for one in store.blocks(first, first + count - 1)
                    if one.certificate is not None
                ]
                liar.send(liar.make_status(head_id=rival))
            case _:  # bytes that mean nothing, to one
                liar.send(Message(MessageKind.VOTE, rng.randbytes(80)), f"node{rng.randrange(NUM_NODES - 1)}")

    def _start(self, name: str) -> None:
        if self.net[name].task is None:
            self.net.start(name)

    # ---- the calm, and its measurements

    async def _calm_down(self) -> None:
        """Mends everything and waits until all nodes are up, on one height, and at work on the next."""
        self._set_weather(CALM)
        self.net.heal()
        for name, node in self.net.nodes.items():
            assert isinstance(node.trainer, ScriptedTrainer)
            node.trainer.train_s = TRAIN_S
            self._start(name)
        height = max(node.height for node in self.net.nodes.values())
        await self.net.wait_for_height(height + 2, timeout_s=PATIENCE_S)
        top = max(node.height for node in self.net.nodes.values()) + 1

        def is_level() -> bool:
            machines = [node.service.machine for node in self.net.nodes.values() if node.service is not None]
            return all(_has_begun(machine, top) for machine in machines)

        await self.net.wait_for(is_level, f"all to be at work on {top + 1}", PATIENCE_S)
        self.check()

    def check(self) -> None:
        """Checks I1, I2: all have one block a height, and it stays. I4: the honest sign nothing twice."""
        assert isinstance(self.net.network, WatchedNetwork)
        self.net.network.check()
        for name, node in self.net.nodes.items():
            for height in range(self.checked.get(name, 0) + 1, node.height + 1):
                block, at = node.get_block(height), 32 * (height - 1)
                if at == len(self.digests):
                    self.digests += block.id
                assert self.digests[at : at + 32] == block.id, f"two blocks at height {height}"
            self.checked[name] = node.height
        self.net.network.forget(self.net[STEADY].height - KEPT_HEIGHTS)

    def sample(self) -> Sample:
        service = self.net[STEADY].service
        assert service is not None
        loop = asyncio.get_running_loop()
        gc.collect()
        blocks = sys.getallocatedblocks()
        files, temporary, size = (sum(found) for found in zip(*map(_measure, self.net.nodes.values()), strict=True))
        wal = self.net[STEADY].path / "chain.db-wal"
        context = self.net[STEADY].get_context()
        rows = context.store.rows
        return Sample(
            round=self.net[STEADY].height,
            seconds=time.monotonic() - self.began_s,
            rss_mb=_read_rss_mb(),
            blocks=blocks,
            fds=len(os.listdir("/proc/self/fd")),
            tasks=len(asyncio.all_tasks()),
            timers=len(loop._scheduled),  # type: ignore[attr-defined]  # what call_later has put off
            files=files,
            temporary=temporary,
            disk_mb=size / MB,
            db_bytes=_read_size(rows),
            wal_bytes=wal.stat().st_size if wal.exists() else 0,
            entries=take_census(service, beyond=(self.net.network, context.genesis, context.trainer)),
        )


def _has_begun(machine: RoundMachine | None, height: int) -> bool:
    return machine is not None and machine.height == height and not machine.candidates


def _read_size(rows: Rows) -> int:
    """Returns the size of a database, with its write-ahead log."""
    pages, size = (int(rows.read(what, f"PRAGMA {what}")[0][0]) for what in ("page_count", "page_size"))
    return pages * size


def _measure(node: Node) -> tuple[int, int, int]:
    """Counts a data directory's files, its temporary ones, and bytes. One file at a time: a list of 100,000 paths would
    be the largest object in memory."""
    files = temporary = size = 0
    for directory, _, names in os.walk(node.path):
        for name in names:
            files += 1
            temporary += name.endswith((".tmp", ".part"))
            size += os.stat(os.path.join(directory, name)).st_size
    return files, temporary, size


def _read_rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MB


def connect_without_sync(database: Path, *, readonly: bool) -> sqlite3.Connection:
    """Connects as a store does, on a machine whose power never fails: without sync."""
    connection = connect(database, readonly=readonly)
    connection.execute("PRAGMA synchronous=OFF")
    return connection


@asynccontextmanager
async def soaking(path: Path, seed: int, **genesis: Any) -> AsyncIterator[Soak]:
    trainers = [ForgetfulTrainer(i, TRAIN_S) for i in range(NUM_NODES)]
    async with cluster(
        path,
        NUM_NODES,
        seed=seed,
        trainers=trainers,
        network=dict(CALM),
        network_class=WatchedNetwork,
        **{"pow": WORK, **genesis},
    ) as net:
        assert isinstance(net.network, WatchedNetwork)
        net.network.shady = net.id(SHADY)
        yield Soak(net, Random(seed))
