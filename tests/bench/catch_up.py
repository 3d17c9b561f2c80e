"""`make bench-catch-up`: what it takes a node that comes late to reach the others, who go on meanwhile.

Four real nodes and an observer; three of them hold a valid chain of so many rounds (`support.data.synthetic`) and go on
from there. The fourth comes with nothing; comes anew and is killed in the middle; comes anew while nobody but the
observer, which had come late itself, is there to ask; and comes back without its model. `fednode unsafe-reset` is how
it comes anew: what it signed stays, so that it cannot contradict itself.

Blocks per second are counted from when it hears of anybody until it holds the last of the rounds that were there; the
rest, until a block has its contribution, is the worker's start and a round.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chain.genesis import Genesis
from chain.signing import SigningKey, encode_id
from chain.store.sqlite import SqliteStore
from node.admin.client import AdminClient
from node.bench.figures import Report
from node.bench.fixtures import DIFFICULTY, temporary_testnet
from node.config.yaml_source import dump_yaml, read_yaml
from node.errors import NodeUnreachable
from node.host.machine import get_machine
from node.host.private_file import write_private
from node.host.procfs import read_cpu_s
from node.pb import admin_pb2 as pb
from node.testnet.cluster import NodeProcess
from node.testnet.layout import Testnet, TestnetNode, TestnetSpec
from node.testnet.ports import LOOPBACK, find_free_ports
from support.data.synthetic import make_chain

NUM_NODES = 4
LATE = "node3"
OBSERVER = "observer"
POLL_S = 0.01
TIMEOUT_S = 600.0
SETTINGS = ("local_iterations=1",)

Condition = Callable[[pb.NodeStatus], bool]


def run_catch_up_bench(*, rounds: int, seed: int, report: Report) -> dict[str, Any]:
    """Figures by name, in seconds, blocks and bytes."""
    key = SigningKey.generate()
    spec = TestnetSpec(
        method="dfpl",
        num_nodes=NUM_NODES,
        rounds=0,
        seed=seed,
        settings=SETTINGS,
        difficulty=DIFFICULTY,
        observers=name_observer(key),
    )
    with temporary_testnet(spec) as testnet:
        net = _Net(testnet, add_observer(testnet, key))
        report(f"making a chain of {rounds} rounds")
        make_chain(testnet, rounds, testnet.nodes[: NUM_NODES - 1])
        figures = asyncio.run(_run(net, rounds, report))
    return {"machine": get_machine(), "job": {"nodes": NUM_NODES, "rounds": rounds, "seed": seed}, **figures}


# ---- the federation


@dataclass(frozen=True, slots=True)
class _Net:
    testnet: Testnet
    observer: TestnetNode

    @property
    def late(self) -> TestnetNode:
        return next(node for node in self.testnet.nodes if node.name == LATE)


def name_observer(key: SigningKey) -> tuple[str, ...]:
    """As a federation's options name it."""
    return (f"{OBSERVER}={encode_id(key.id)}",)


def add_observer(testnet: Testnet, key: SigningKey) -> TestnetNode:
    """Writes the configuration of the observer that genesis names, and lets every member know where it is."""
    directory = testnet.directory
    write_private(directory / "keys" / f"{OBSERVER}.key", key.to_pem())
    address = f"{LOOPBACK}:{find_free_ports(1)[0]}"
    peers = []
    for node in testnet.nodes:
        config = _read(node.config_file)
        config["network"]["peers"].append(f"{encode_id(key.id)}@{address}")
        peers.append(f"{encode_id(node.key)}@{node.address}")
        node.config_file.write_text(dump_yaml(config), encoding="utf-8")
    first = _read(testnet.nodes[0].config_file)
    own = {
        **first,
        "node": {
            "name": OBSERVER,
            "identity_key_file": f"keys/{OBSERVER}.key",
            "data_dir": f"data/{OBSERVER}",
            "observer": True,
        },
        "network": {"listen": address, "tls": "mutual", "peers": peers},
        "admin": {"socket": str(Path(first["admin"]["socket"]).with_name(f"{OBSERVER}.sock"))},
    }
    file = directory / f"{OBSERVER}.yaml"
    file.write_text(dump_yaml(own), encoding="utf-8")
    return TestnetNode(OBSERVER, key.id, address, file, 0, 0, ())


def _read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = read_yaml(file).value
    return found


# ---- the run


async def _run(net: _Net, rounds: int, report: Report) -> dict[str, Any]:
    members = {node.name: NodeProcess(node) for node in net.testnet.nodes}
    late, others = members[LATE], [process for name, process in members.items() if name != LATE]
    observer = NodeProcess(net.observer)
    figures: dict[str, Any] = {}
    try:
        for process in others:
            await process.start()
        await _wait(others[0], lambda status: status.height > rounds)
        report(f"{LATE} comes with nothing")
        figures["joined"] = await _join(late, rounds, after=await _get_height(others[0]))
        report(f"{LATE} comes anew and is killed in the middle")
        await late.kill()
        _reset(net)
        figures["killed"] = await _join_in_two_lives(late, rounds, after=await _get_height(others[0]))
        report("the observer comes with nothing")
        figures["observer"] = await _join(observer, rounds)
        report(f"{LATE} comes anew and finds nobody but the observer")
        for process in (late, *others):
            await process.stop()
        _reset(net)
        head = await _get_height(observer)
        served = figures["served_by_observer"] = await _join(late, rounds)
        began_s = time.perf_counter()
        for process in others:
            await process.start()
        await _find_contribution(late, head + 1)  # at which it may have contributed before
        served["contributes_s"] = time.perf_counter() - began_s
        for what, keeps_newest in (("without_newest_checkpoint", True), ("without_model", False)):
            report(f"{LATE} comes back {what.replace('_', ' ')}")
            await late.kill()
            _lose_model(net, newest_only=keeps_newest)
            figures[what] = await _come_back(late, after=await _get_height(others[0]))
    finally:
        running = [process for process in (*members.values(), observer) if process.is_running]
        await asyncio.gather(*(process.stop() for process in running))
    return figures


async def _join(process: NodeProcess, rounds: int, *, after: int | None = None) -> dict[str, Any]:
    """Starts it with nothing and watches it until it holds `rounds` blocks, and then until it contributes to one above
    `after`, which it cannot have done before."""
    began_s = time.perf_counter()
    await process.start()
    figures = (await _watch(process, rounds)).describe(began_s)
    if after is not None:
        await _find_contribution(process, after)
        figures["contributes_s"] = time.perf_counter() - began_s
    return figures


async def _join_in_two_lives(process: NodeProcess, rounds: int, *, after: int) -> dict[str, Any]:
    """`kill -9` when it has half of them; where it stands then, and how it goes on."""
    await process.start()
    first = await _watch(process, rounds // 2)
    await process.kill()
    with SqliteStore.open(process.node.data_dir, first.genesis) as store:
        resumed = store.head_height
    return {"killed_at": first.height, "resumed_at": resumed, **await _join(process, rounds, after=after)}


async def _come_back(process: NodeProcess, *, after: int) -> dict[str, Any]:
    began_s = time.perf_counter()
    await process.start()
    await _wait(process, lambda status: status.ready)
    ready_s = time.perf_counter() - began_s
    height = await _find_contribution(process, after)
    return {"ready_s": ready_s, "contributes_s": time.perf_counter() - began_s, "height": height}


def _reset(net: _Net) -> None:
    data_dir = net.late.data_dir
    SqliteStore.reset(data_dir)
    shutil.rmtree(data_dir / "checkpoints", ignore_errors=True)


def _lose_model(net: _Net, *, newest_only: bool) -> None:
    checkpoints = [file for file in (net.late.data_dir / "checkpoints").rglob("*") if file.is_file()]
    checkpoints.sort(key=lambda file: file.stat().st_mtime)
    for file in checkpoints[-1:] if newest_only else checkpoints:
        file.unlink()


# ---- watching


@dataclass(frozen=True, slots=True)
class _Sample:
    """What the daemon said of itself, how long it took to say it, and what CPU it had used by then."""

    at_s: float
    took_s: float
    height: int
    sees_others: bool
    received: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class _Watched:
    samples: Sequence[_Sample]
    genesis: Genesis

    @property
    def height(self) -> int:
        return self.samples[-1].height

    def describe(self, began_s: float) -> dict[str, Any]:
        first = next(sample for sample in self.samples if sample.sees_others)
        before, *_ = self.samples
        last = self.samples[-1]
        blocks = last.height - before.height
        seconds = max(last.at_s - first.at_s, POLL_S)
        return {
            "blocks": blocks,
            "seconds": seconds,
            "blocks_per_s": blocks / seconds,
            "there_s": last.at_s - began_s,
            "cpu_s": last.cpu_s - before.cpu_s,
            "received_bytes": last.received - before.received,
            "slowest_answer_s": max(sample.took_s for sample in self.samples),
        }


async def _watch(process: NodeProcess, height: int) -> _Watched:
    """Until it holds `height`."""
    await _wait(process, lambda status: True)
    samples: list[_Sample] = []
    with AdminClient(process.socket) as admin:
        async with asyncio.timeout(TIMEOUT_S):
            while not samples or samples[-1].height < height:
                began_s = time.perf_counter()
                status = await asyncio.to_thread(admin.get_status)
                now_s = time.perf_counter()
                sees_others = any(peer.HasField("height") for peer in await asyncio.to_thread(admin.list_peers))
                samples.append(
                    _Sample(
                        at_s=now_s,
                        took_s=now_s - began_s,
                        height=status.height,
                        sees_others=sees_others or status.height > 0,
                        received=status.bytes_received,
                        cpu_s=read_cpu_s(status.pid),
                    )
                )
                await asyncio.sleep(POLL_S)
        return _Watched(samples, await asyncio.to_thread(lambda: admin.genesis))


async def _wait(process: NodeProcess, condition: Condition) -> pb.NodeStatus:
    """Until the node says so of itself. Raises NodeExited, or NodeUnreachable after TIMEOUT_S."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                if await process.get_status() is not None:
                    with suppress(NodeUnreachable):
                        status = await asyncio.to_thread(_read_status, process)
                        if condition(status):
                            return status
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise NodeUnreachable(f"{process.name} is not there yet\n{process.read_log_tail()}") from None


def _read_status(process: NodeProcess) -> pb.NodeStatus:
    with AdminClient(process.socket) as admin:
        return admin.get_status()


async def _get_height(process: NodeProcess) -> int:
    return (await _wait(process, lambda status: True)).height


async def _find_contribution(process: NodeProcess, after: int) -> int:
    """Waits until it holds a block above height `after` with its own contribution; that height."""

    def find(height: int) -> bool:
        with AdminClient(process.socket) as admin:
            return any(contribution.name == process.name for contribution in admin.get_block(height).contributions)

    height = after
    while True:
        height += 1
        await _wait(process, lambda status, wanted=height: status.height >= wanted)  # type: ignore[misc]  # its default binds the loop's
        if await asyncio.to_thread(find, height):
            return height
