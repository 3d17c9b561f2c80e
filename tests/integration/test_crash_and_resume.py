"""Members that die at any instant and come back with what was durable: one chain, no second signature, progress.

The invariants are those of PROTOCOL §8. Everything that was ever sent is tapped, over all lives of all members.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, ParamSpec, TypeVar

import pytest

from chain import codec
from chain.audit import verify_chain
from chain.block import ZERO, Block, Contribution, Digest, Id, Phase
from chain.state import State
from chain.store.interface import STEPS
from ml import payload, specs
from node.config.genesis_file import get_genesis_spec
from node.consensus.height.actions import RoundPhase
from node.consensus.service import RoundService
from node.p2p.transport.base import Message, MessageKind
from support.data.blobs import is_held, lose_blob
from support.faults.doom import Killed
from support.faults.slow_disk import SlowDisk
from support.federation.cluster import Cluster, cluster
from support.federation.virtual_time import run_virtual
from support.federation.wiretap import TappedNetwork
from support.slow_rest import slow_after

P = ParamSpec("P")
T = TypeVar("T")

OTHERS = ("node1", "node2", "node3")
SLOW = {"difficulty": 2000, "min": 1, "max": 2**32, "target_ms": 200}  # 0.2 s at the cluster's hash rate


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine under the tests stays up: what a process wrote is there, synced or not."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def get_tap(net: Cluster) -> TappedNetwork:
    assert isinstance(net.network, TappedNetwork)
    return net.network


@asynccontextmanager
async def tapped(path: Path, n: int = 4, **options: Any) -> AsyncIterator[Cluster]:
    """A cluster whose every sent object is looked at: durable before it leaves, and one content per slot (I4)."""
    async with cluster(path, n, network_class=TappedNetwork, start=(), **options) as net:
        names = {node.key.id: name for name, node in net.nodes.items()}
        get_tap(net).watch = lambda sender, message: check_durable(net, names[sender], message)
        yield net
        get_tap(net).check()


def check_durable(net: Cluster, name: str, message: Message) -> None:
    """What a member sends of its own is in its store already."""
    store = net[name].store
    if store is None:
        return
    match message.kind:
        case MessageKind.CONTRIBUTION:
            contribution = codec.decode_contribution(message.data)
            assert store.get_contribution(contribution.height) == contribution
            parent = store.get_block(contribution.height - 1)
            assert parent is not None
            assert parent.block.id == contribution.prev
            assert all(store.has_blob(ref.digest) for ref in contribution.payloads)
        case MessageKind.BLOCK:
            block = codec.decode_block(net.genesis.chain_id, message.data)
            assert store.get_candidate(block.height) == block
        case MessageKind.VOTE:
            vote = codec.decode_vote(message.data)
            assert vote in store.get_votes(vote.height)
            if vote.phase is Phase.PRECOMMIT and vote.block_id != ZERO and store.head_height < vote.height:
                blocks, prevotes = store.get_justification(vote.height)
                assert vote.block_id in {block.id for block in blocks}
                justifying = [one for one in prevotes if (one.view, one.block_id) == (vote.view, vote.block_id)]
                assert len(justifying) >= net.genesis.state.q
                (locked,) = [block for block in blocks if block.id == vote.block_id]
                refs = [ref for contribution in locked.contributions for ref in contribution.payloads]
                assert all(store.has_blob(ref.digest) for ref in refs)


def check_chains(net: Cluster) -> None:
    """I1, I2 and I3, from the stores alone: one chain, with links, work, certificates and aggregates that hold."""
    spec = get_genesis_spec(net.genesis)
    for node in net.nodes.values():
        store = node.store
        assert store is not None

        def recompute(block: Block, state: State) -> Digest | None:
            digests = {ref.digest for contribution in block.contributions for ref in contribution.payloads}
            if not all(store.has_blob(digest) for digest in digests):  # noqa: B023  # called before the next turn
                return None
            authors = [
                specs.AuthorPayloads(
                    contribution.author,
                    contribution.weight,
                    {"prototypes": payload.decode_arrays(store.get_blob(contribution.payloads[0].digest), 1 << 20)},  # noqa: B023
                )
                for contribution in block.contributions
            ]
            data = specs.compute_aggregate(spec, block.height, authors, None)
            assert data is not None
            return hashlib.sha256(data).digest()

        report = verify_chain(net.genesis, store, recompute=recompute)
        assert report.ok, f"{node.name}: {report.fault}"
    net.check_agreement()


async def resume(net: Cluster, *names: str) -> None:
    """The crashed are back, level with the others, and their contributions are in a block."""
    height = max(node.height for node in net.nodes.values())
    await net.wait_for_height(height + 1)

    def contributes(name: str) -> bool:
        running = max(node.height for node in net.nodes.values())
        authors = {
            contribution.author
            for at in range(height + 1, running + 1)
            for contribution in (net["node1"].get_block(at).contributions if net["node1"].height >= at else ())
        }
        return net.id(name) in authors

    await net.wait_for(lambda: all(contributes(name) for name in names), f"a block with contributions of {names}")
    net.check_agreement()


# One member dies


def own_votes(service: RoundService) -> list[Phase]:
    machine = service.machine
    if machine is None:
        return []
    return [vote.phase for vote in machine.voting.get_votes() if vote.voter == service.signer.id]


INSTANTS: dict[str, Callable[[RoundService], bool]] = {
    "train": lambda service: service.machine is not None and service.machine.phase is RoundPhase.TRAIN,
    "exchange": lambda service: service.machine is not None and service.machine.phase is RoundPhase.COLLECT,
    "mine": lambda service: service.machine is not None and service.machine.phase is RoundPhase.MINE,
    "after its prevote": lambda service: own_votes(service) == [Phase.PREVOTE],
    "after its precommit": lambda service: Phase.PRECOMMIT in own_votes(service),
}


@pytest.mark.parametrize("instant", INSTANTS)
def test_a_member_that_dies_is_done_without_and_comes_back(tmp_path: Path, instant: str) -> None:
    async def story() -> None:
        async with tapped(tmp_path, train_s=0.1, pow=SLOW, network={"latency_s": (0.01, 0.03)}) as net:
            for name in net.nodes:
                net.start(name)
            await net.wait_for_height(1)
            service = net["node0"].service
            assert service is not None
            await net.wait_for(lambda: INSTANTS[instant](service), f"node0 to be at {instant}")
            await net.crash("node0")
            await net.wait_for_height(max(net[name].height for name in OTHERS) + 2, *OTHERS)
            net.start("node0")
            await resume(net, "node0")

    run_virtual(story())


@pytest.mark.parametrize("instant", INSTANTS)
def test_a_member_that_is_back_at_once_takes_up_the_same_height(tmp_path: Path, instant: str) -> None:
    async def story() -> None:
        async with tapped(tmp_path, train_s=0.1, pow=SLOW, network={"latency_s": (0.01, 0.03)}) as net:
            for name in net.nodes:
                net.start(name)
            await net.wait_for_height(1)
            for name in ("node0", "node2"):
                service = net[name].service
                assert service is not None
                await net.wait_for(lambda: INSTANTS[instant](service), f"{name} to be at {instant}")  # noqa: B023
                await net.crash(name)
                net.start(name)
            await resume(net, "node0", "node2")

    run_virtual(story())


NOT_OF_ROUNDS = ("create", "blobs", "evidence", "meta", "change", "approval", "readiness", "close")
DURABLE_STEPS = [step for step in STEPS if step.split(".")[0] not in NOT_OF_ROUNDS]


@pytest.mark.parametrize("step", DURABLE_STEPS)
def test_a_member_killed_at_a_durable_step_contradicts_nothing_and_comes_back(tmp_path: Path, step: str) -> None:
    async def story() -> None:
        async with tapped(tmp_path, pow=SLOW) as net:
            armed = False

            def die(reached: str) -> None:
                nonlocal armed
                if armed and reached == step:
                    armed = False
                    net.network.set_down(net.id("node0"))
                    raise Killed(step)

            for name in net.nodes:
                net.start(name, faults=die if name == "node0" else None)
            await net.wait_for_height(1)
            armed = True
            task = net["node0"].task
            assert task is not None
            done, _ = await asyncio.wait({task}, timeout=60)
            assert done, f"node0 never came to {step}"
            await net.crash("node0")
            net["node0"].failure = None
            net.network.set_up(net.id("node0"))
            net.start("node0")
            await resume(net, "node0")

    run_virtual(story())


def test_a_member_that_restarts_while_cut_off_waits_and_then_catches_up(tmp_path: Path) -> None:
    async def story() -> None:
        async with tapped(tmp_path, train_s=0.1) as net:
            for name in net.nodes:
                net.start(name)
            await net.wait_for_height(2)
            net.partition(["node0"], OTHERS)
            await net.crash("node0")
            net.start("node0")
            height = net["node0"].height
            await net.wait_for_height(height + 4, *OTHERS)
            assert net["node0"].height == height
            await net.crash("node0")
            net.start("node0")
            net.heal()
            await resume(net, "node0")
            check_chains(net)

    run_virtual(story())


# All die at once


async def crash_all(net: Cluster) -> None:
    """Power is lost: at one virtual instant nobody is there any more."""
    for name in net.nodes:
        net.network.set_down(net.id(name))
    for name in net.nodes:
        await net.crash(name)


def start_all(net: Cluster) -> None:
    for name in net.nodes:
        net.network.set_up(net.id(name))
        if net[name].task is None:
            net.start(name)


def test_a_height_finalises_after_all_lost_power_with_their_precommits_on_disk(tmp_path: Path) -> None:
    """Nobody has heard another's precommit yet, and the miner never comes back: the others' locks hold all it takes."""

    async def story() -> None:
        async with tapped(tmp_path, pow=SLOW, network={"latency_s": (0.01, 0.012)}) as net:
            start_all(net)
            await net.wait_for_height(1)

            def locked() -> list[Id]:
                services = [node.service for node in net.nodes.values()]
                voting = [service.machine.voting for service in services if service is not None and service.machine]
                return [one.lock[1] for one in voting if one.lock is not None]

            await net.wait_for(lambda: len(locked()) == 4, "all to be locked")
            assert len({node.height for node in net.nodes.values()}) == 1
            height = net["node0"].height + 1
            (block_id,) = set(locked())
            assert net["node0"].store is not None
            (block,) = net["node0"].store.get_justification(height)[0]
            await crash_all(net)
            survivors = [name for name in net.nodes if net.id(name) != block.header.miner]
            for name in survivors:
                net.network.set_up(net.id(name))
                net.start(name)
            await net.wait_for_height(height, *survivors)
            assert net[survivors[0]].get_block(height).id == block_id
            start_all(net)
            await resume(net, *net.nodes)

    run_virtual(story())


def test_what_was_trained_for_a_height_that_is_over_is_not_signed(tmp_path: Path) -> None:
    """The height is finalised by the others while node0's disk is still busy with what came before."""

    async def story() -> None:
        async with tapped(tmp_path) as net:
            for name in OTHERS:
                net.start(name)
            net.start("node0")
            service = net["node0"].service
            assert service is not None
            sign, holds, let_go = service.signer.sign_contribution, asyncio.Event(), asyncio.Event()

            async def sign_late(*given: Any, **options: Any) -> Contribution | None:
                holds.set()
                await let_go.wait()
                return await sign(*given, **options)

            service.signer.sign_contribution = sign_late  # type: ignore[method-assign]
            await net.wait_for(holds.is_set, "node0 to have trained")
            height = net["node0"].height + 1
            await net.wait_for_height(height)
            let_go.set()
            store = net["node0"].store
            assert store is not None
            await resume(net, "node0")
            assert store.get_contribution(height) is None

    run_virtual(story())


@pytest.mark.parametrize("seed", slow_after(2, range(8)))
def test_all_lose_power_again_and_again_and_the_chain_goes_on(tmp_path: Path, seed: int) -> None:
    async def story() -> None:
        rng = Random(seed)
        n = (4, 3, 1, 5)[seed % 4]
        async with tapped(tmp_path, n, seed=seed, pow=SLOW, train_s=0.03) as net:
            net.make_disk = lambda: SlowDisk(rng)
            heads = dict.fromkeys(net.nodes, 0)
            for _ in range(6):
                start_all(net)
                await asyncio.sleep(rng.uniform(0.0, 0.7))
                await crash_all(net)
            start_all(net)
            for name, node in net.nodes.items():
                assert node.height >= heads[name]
                heads[name] = node.height
            await resume(net, *net.nodes) if n > 1 else await net.wait_for_height(net["node0"].height + 2)
            check_chains(net)

    run_virtual(story())


# Everything at once


class Fate:
    """Kills each node at a durable step with a small probability, while `reigns`."""

    def __init__(self, net: Cluster, rng: Random, probability: float) -> None:
        self.net = net
        self.rng = rng
        self.probability = probability
        self.reigns = True
        self.kills = 0

    def start(self, name: str) -> None:
        """Boot a node under this fate; where it dies while booting, that was this life."""
        try:
            self.net.network.set_up(self.net.id(name))
            self.net.start(name, faults=lambda step: self.strike(name))
        except Killed:
            node = self.net[name]
            if node.store is not None:
                node.store.close()
            node.store = None

    def strike(self, name: str) -> None:
        if self.reigns and self.rng.random() < self.probability:
            self.kills += 1
            self.net.network.set_down(self.net.id(name))
            raise Killed(name)

    async def bury(self, heads: dict[str, int]) -> None:
        """Clear away those that died, and hold them to what they had finalised (I2, I7)."""
        for name, node in self.net.nodes.items():
            if node.service is not None:
                heads[name] = max(heads[name], node.height)
            if node.failure is not None:
                assert is_killed(node.failure), node.failure
                await self.net.crash(name)
                node.failure = None


def is_killed(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(is_killed(one) for one in error.exceptions)
    return isinstance(error, Killed)


async def live_dangerously(net: Cluster, rng: Random, fate: Fate, heads: dict[str, int], turns: int) -> None:
    names: Sequence[str] = list(net.nodes)
    for name in names:
        fate.start(name)
    for _ in range(turns):
        await asyncio.sleep(rng.expovariate(1 / 0.25))
        await fate.bury(heads)
        a, b = rng.sample(names, 2)
        match rng.randrange(7):
            case 0:
                await net.crash(a)
            case 1:
                net.cut(a, b)
            case 2:
                net.network.cut(net.id(a), net.id(b), one_way=True)
            case 3:
                side = rng.sample(names, rng.randrange(1, len(names)))
                net.partition(side, [name for name in names if name not in side])
            case 4:
                net.heal()
            case _:
                for name in names:
                    if net[name].task is None:
                        fate.start(name)
                        if net[name].store is not None:
                            assert net[name].height >= heads[name], f"the head of {name} went down"


@pytest.mark.parametrize("seed", slow_after(6, range(18)))
def test_one_chain_whatever_happens_and_progress_once_it_stops(tmp_path: Path, seed: int) -> None:
    async def story() -> None:
        rng = Random(1000 + seed)
        n = (4, 4, 3, 5, 4, 7)[seed % 6]
        weather = {"loss": rng.choice((0.0, 0.1, 0.3)), "duplicate": 0.1, "latency_s": (0.0, rng.choice((0.005, 0.05)))}
        difficulty = {"difficulty": 512, "min": 1, "max": 2**32, "target_ms": 50}
        async with tapped(tmp_path, n, seed=seed, network=weather, pow=difficulty) as net:
            net.make_disk = lambda: SlowDisk(rng, rng.choice((0.0, 0.002, 0.02)))
            for node in net.nodes.values():
                node.clock.skew_ms = rng.choice((0, 0, 0, 1500, -3000, 5000))
            heads = dict.fromkeys(net.nodes, 0)
            fate = Fate(net, rng, rng.choice((0.0, 0.002, 0.01)))
            await live_dangerously(net, rng, fate, heads, turns=16)
            fate.reigns = False
            await asyncio.sleep(0)
            await fate.bury(heads)
            net.heal()
            net.network.loss = 0.0
            start_all(net)
            height = max(node.height for node in net.nodes.values())
            await net.wait_for_height(height + 2, timeout_s=300)
            check_chains(net)

    run_virtual(story())


def test_members_that_hold_all_that_was_voted_on_need_nobody_for_the_aggregate(tmp_path: Path) -> None:
    """Whoever held it is gone for good, and the others heard of the block by its certificate alone."""

    async def story() -> None:
        async with cluster(tmp_path, 4) as net:
            await net.wait_for_height(3)
            aggregates = [net[name].get_block(net[name].height).header.aggregate for name in net.nodes]
            for name in net.nodes:
                await net.crash(name)
            held = [(node.path, digest) for node in net.nodes.values() for digest in {*aggregates}]
            lost = [(path, digest) for path, digest in held if is_held(path, digest)]
            assert lost
            for path, digest in lost:
                lose_blob(path, digest)
            for name in OTHERS:
                net.start(name)
            height = max(net[name].height for name in OTHERS)
            await net.wait_for_height(height + 2, *OTHERS)
            net.check_agreement()

    run_virtual(story())
