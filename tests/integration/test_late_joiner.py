"""A member that comes when many rounds are over takes them from whoever has them, and believes nobody.

node0 and node1 hold a chain and can go on only with node2, which has nothing; node3 lies, or is not there. Nothing is
finalised before node2 has caught up, so a liar that could hold it up would hold up all.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from chain import codec
from chain.block import Certificate, Digest
from chain.signing import encode_id
from chain.store.sqlite import SqliteStore
from node.consensus.gossip import sync
from node.errors import NodeError
from node.p2p.refusals import Reason
from node.training.observer_trainer import ObserverTrainer
from support.data.chains import make_digest, make_keys
from support.data.synthetic import extend_chain
from support.faults.liar import Liar, flip, lying
from support.federation.cluster import INITIAL_MODEL, Cluster, Node, cluster
from support.federation.joining import make_checkpoint, start_joiner
from support.federation.virtual_time import run_virtual

HEIGHT = 96
BATCH, SLICE = 24, 6  # so that there are several of them
HOLDERS = ("node0", "node1")
LATE = "node2"
FOREVER_S = 1e6

Reply = list[tuple[bytes, bytes]]


@pytest.fixture(scope="module", autouse=True)
def _quick() -> Iterator[None]:
    """The machine stays up, whatever a test does to its processes; and replies are short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        patch.setattr(sync, "BATCH", BATCH)
        patch.setattr(sync, "SLICE", SLICE)
        patch.setattr(sync, "FULL_BYTES", 1 << 30)
        yield


def make_ledger(path: Path, height: int, **options: Any) -> Path:
    """What a member has that was there all the time."""

    async def get_genesis() -> Path:
        async with cluster(path, 4, start=(), **options) as net:
            with SqliteStore.open(path / "ledger", net.genesis) as store:
                store.put_blob(INITIAL_MODEL)
                extend_chain(store, net.genesis, [node.key for node in net.nodes.values()], height, variety=3)
        return path / "ledger"

    return run_virtual(get_genesis())


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_ledger(tmp_path_factory.mktemp("ledger"), HEIGHT)


@asynccontextmanager
async def holding(path: Path, ledger: Path, **options: object) -> AsyncIterator[Cluster]:
    """node0 and node1 run and hold the ledger; the others are down and have nothing."""
    async with cluster(path, 4, start=(), **options) as net:  # type: ignore[arg-type]  # passed on
        for name in HOLDERS:
            shutil.copytree(ledger, net[name].path)
            net.start(name)
        yield net


def check_chain(net: Cluster, name: str, height: int = HEIGHT) -> None:
    for at in range(1, height + 1):
        assert net[name].get_block(at).id == net["node0"].get_block(at).id


def read_replies(net: Cluster, first: int, count: int) -> Reply:
    """What an honest peer would say."""
    store = net["node0"].store
    assert store is not None
    return [(row.block, row.certificate) for row in store.read_rows(first, first + count - 1)]


def forge(net: Cluster, reply: Reply) -> Reply:
    """The same blocks, with one signature less than makes them final."""
    certificates = [codec.decode_certificate(certificate) for _, certificate in reply]
    few = [Certificate(one.view, one.signatures[: net.genesis.state.q - 1]) for one in certificates]
    return [(block, codec.encode_certificate(one)) for (block, _), one in zip(reply, few, strict=True)]


def invent(net: Cluster, liar: Liar, reply: Reply) -> Reply:
    """Other blocks, with certificates of the same votes."""
    invented = []
    for block_bytes, certificate in reply:
        block = codec.decode_block(net.genesis.chain_id, block_bytes)
        header = replace(block.header, miner=liar.key.id, aggregate=make_digest("forged"))
        forged = codec.make_block(net.genesis.chain_id, header, 0, block.body, liar.key)
        invented.append((codec.encode_block(forged), certificate))
    return invented


LIES: dict[str, tuple[Callable[[Cluster, Liar, int, int], Reply | None], Reason]] = {
    "one signature less than a quorum": (
        lambda net, liar, first, count: forge(net, read_replies(net, first, count)),
        Reason.CERTIFICATE,
    ),
    "blocks that nobody voted for": (
        lambda net, liar, first, count: invent(net, liar, read_replies(net, first, count)),
        Reason.WORK,
    ),
    "a good beginning, then rubbish": (
        lambda net, liar, first, count: [*read_replies(net, first, 10), (b"rubbish", b"rubbish")],
        Reason.BYTES,
    ),
    "a flipped bit": (
        lambda net, liar, first, count: [
            (flip(block, 8 * len(block) - 1), one) for block, one in read_replies(net, first, count)
        ],
        Reason.SIGNATURE,
    ),
    "blocks of other heights": (
        lambda net, liar, first, count: read_replies(net, first + 7, count),
        Reason.RULE,
    ),
    "nothing, whatever it said": (lambda net, liar, first, count: [], Reason.CLAIM),
    "a block at a time": (lambda net, liar, first, count: read_replies(net, first, 1), Reason.CLAIM),
    "no answer": (lambda net, liar, first, count: None, Reason.SLOW),
    "no answer any more": (
        lambda net, liar, first, count: read_replies(net, first, count) if first == 1 else None,
        Reason.SLOW,
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_peer_that_claims_more_than_it_has_is_asked_last_and_counted(tmp_path: Path, ledger: Path, lie: str) -> None:
    """It says that it is higher than all others, so it is asked first; what it does to that costs one answer's time.
    An honest answer takes longer than the first pause."""
    make_reply, reason = LIES[lie]

    async def story() -> None:
        async with holding(tmp_path, ledger, network={"latency_s": (0.15, 0.2)}) as net, lying(net, "node3") as liar:
            asked: list[int] = []

            async def answer(peer: bytes, first: int, count: int) -> Reply:
                if net[LATE].height < HEIGHT:
                    asked.append(first)
                reply = make_reply(net, liar, first, count)
                if reply is None:
                    await asyncio.sleep(FOREVER_S)
                return reply or []

            liar.on_blocks_request = answer  # type: ignore[method-assign]
            net.start(LATE)
            net.partition([LATE, "node3"], HOLDERS)
            await net.wait_for(lambda: net.id(LATE) in liar.transport.connected(), "node2 to be connected")
            liar.send(liar.make_status(head_height=2**62, head_id=make_digest("high")), LATE)
            await net.wait_for(lambda: bool(asked), "node2 to ask the liar")
            net.heal()
            began_s = net[LATE].clock.monotonic()
            await net.wait_for_height(HEIGHT, LATE)
            assert net[LATE].clock.monotonic() - began_s < sync.ANSWER_S + 5.0
            net.network.latency_s = (0.001, 0.002)  # the rest is about who was believed
            assert len(asked) <= 8  # while nobody else was there to be asked, and a few times after
            service = net[LATE].service
            assert service is not None
            assert service.get_refusals()[net.id("node3")][reason] >= 1
            await net.wait_for_height(HEIGHT + 2, LATE, *HOLDERS)
            check_chain(net, LATE)

    run_virtual(story())


def test_a_liar_is_not_waited_for_once_somebody_better_is_ahead(tmp_path: Path, ledger: Path) -> None:
    """It has been silent once, and is asked again as nobody else is there; then the honest come."""

    async def story() -> None:
        async with holding(tmp_path, ledger) as net, lying(net, "node3") as liar:
            asked_s: list[float] = []

            async def hang(peer: bytes, first: int, count: int) -> Reply:
                asked_s.append(net[LATE].clock.monotonic())
                await asyncio.sleep(FOREVER_S)
                return []

            liar.on_blocks_request = hang  # type: ignore[method-assign]
            net.start(LATE)
            net.partition([LATE, "node3"], HOLDERS)
            await net.wait_for(lambda: net.id(LATE) in liar.transport.connected(), "node2 to be connected")
            liar.send(liar.make_status(head_height=2**62, head_id=make_digest("high")), LATE)
            await net.wait_for(lambda: len(asked_s) == 2, "the liar to be asked again")
            net.heal()
            healed_s = net[LATE].clock.monotonic()
            await net.wait_for_height(HEIGHT, LATE)
            assert net[LATE].clock.monotonic() - healed_s < 5.0  # and not ANSWER_S

    run_virtual(story())


def test_a_liar_does_not_drag_out_the_way_to_a_checkpoint(tmp_path: Path, ledger: Path) -> None:
    """On that way nothing is adopted before a mark: a peer that gives a block at a time could take as long for each."""

    async def story() -> None:
        async with holding(tmp_path, ledger) as net, lying(net, "node3") as liar:
            asked: list[int] = []

            async def drip(peer: bytes, first: int, count: int) -> Reply:
                asked.append(first)
                await asyncio.sleep(sync.ANSWER_S / 2)
                return read_replies(net, first, 1)

            liar.on_blocks_request = drip  # type: ignore[method-assign]
            start_joiner(net, LATE, make_checkpoint(net, "node0", HEIGHT))
            net.partition([LATE, "node3"], HOLDERS)
            await net.wait_for(lambda: net.id(LATE) in liar.transport.connected(), "node2 to be connected")
            liar.send(liar.make_status(head_height=2**62, head_id=make_digest("high")), LATE)
            await net.wait_for(lambda: bool(asked), "node2 to ask the liar")
            net.heal()
            began_s = net[LATE].clock.monotonic()
            await net.wait_for_height(HEIGHT, LATE)
            assert net[LATE].clock.monotonic() - began_s < sync.ANSWER_S + 5.0

    run_virtual(story())


def test_old_blobs_that_are_served_wrong_are_counted_and_had_from_others(tmp_path: Path, ledger: Path) -> None:
    async def story() -> None:
        async with holding(tmp_path, ledger) as net, lying(net, "node3") as liar:
            source = net["node0"].store
            assert source is not None

            def serve(peer: bytes, digest: Digest, offset: int) -> bytes | None:
                return flip(source.get_blob(digest), 13)[offset:] if source.has_blob(digest) else None

            liar.serve = serve
            net.start(LATE)
            await net.wait_for_height(HEIGHT, LATE)
            store, service = net[LATE].store, net[LATE].service
            assert store is not None
            assert service is not None
            heights = [net["node0"].get_block(at) for at in range(1, HEIGHT + 1)]
            digests = {ref.digest for block in heights for one in block.contributions for ref in one.payloads}
            await net.wait_for(lambda: all(map(store.has_blob, digests)), "node2 to have every payload")
            assert service.get_refusals()[net.id("node3")][Reason.BLOB] >= 1
            await net.wait_for_height(HEIGHT + 2, LATE, *HOLDERS)

    run_virtual(story())


# Killed in the middle


class Killed(NodeError):
    """The process is gone, in the middle of a durable step."""


async def join_under_fire(net: Cluster, rng: Random, height: int) -> int:
    """Starts node2 again and again, each life ended at a random step of a random batch. How many it took."""
    lives, reached = 0, 0
    while reached < height:
        left = rng.randrange(1, 20)

        def strike(step: str) -> None:
            nonlocal left
            left -= step.startswith("append.")
            if left <= 0:  # the failure is looked for by who waits
                net.network.set_down(net.id(LATE))
                raise Killed(step)

        lives += 1
        net.network.set_up(net.id(LATE))
        net.start(LATE, faults=strike)
        task, store = net[LATE].task, net[LATE].store
        assert task is not None
        assert store is not None
        assert store.head_height >= reached  # it goes on from where it was
        await net.wait_for(lambda: task.done() or store.head_height >= height, "the end of a life")  # noqa: B023
        reached = store.head_height
        await net.crash(LATE)
        net[LATE].failure = None
    return lives


async def interrupt(path: Path, ledger: Path, height: int, seed: int) -> None:
    async with holding(path, ledger) as net:
        lives = await join_under_fire(net, Random(seed), height)
        assert lives > 2
        net.network.set_up(net.id(LATE))
        net.start(LATE)
        await net.wait_for_height(height + 2, LATE, *HOLDERS)
        check_chain(net, LATE, height)


def test_a_late_joiner_that_is_killed_at_any_batch_goes_on_from_there(tmp_path: Path, ledger: Path) -> None:
    run_virtual(interrupt(tmp_path, ledger, HEIGHT, seed=1))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_same_with_1200_rounds(tmp_path: Path, seed: int) -> None:
    run_virtual(interrupt(tmp_path, make_ledger(tmp_path / "made", 1200), 1200, seed))


def test_a_batch_is_appended_as_a_whole_or_not_at_all(tmp_path: Path, ledger: Path) -> None:
    """Killed before the commit nothing of it is there, after it all."""

    async def story() -> None:
        async with holding(tmp_path, ledger) as net:
            for step, left in (("append.written", 0), ("append.committed", SLICE)):

                def die(reached: str, step: str = step) -> None:
                    if reached == step:
                        raise Killed(step)

                net.start(LATE, faults=die)
                task = net[LATE].task
                assert task is not None
                await asyncio.wait({task}, timeout=60)
                await net.crash(LATE)
                net[LATE].failure = None
                with SqliteStore.open(net[LATE].path, net.genesis) as store:
                    assert store.head_height == left

    run_virtual(story())


# An observer


def test_an_observer_that_came_late_serves_a_member_that_comes_later(tmp_path: Path) -> None:
    """The member hears of nobody else until it has all that the observer has."""
    (key,) = make_keys(1, "observer")
    observers = [{"key": encode_id(key.id), "name": "observer"}]
    ledger = make_ledger(tmp_path / "made", HEIGHT, observers=observers)

    async def story() -> None:
        async with cluster(tmp_path, 4, start=(), observers=observers) as net:
            net.nodes["observer"] = Node("observer", key, tmp_path / "observer", ObserverTrainer())
            for name in HOLDERS:
                shutil.copytree(ledger, net[name].path)
                net.start(name)
            net.start("observer")
            await net.wait_for_height(HEIGHT, "observer")
            others = [name for name in net.nodes if name not in (LATE, "observer")]
            net.partition([LATE, "observer"], others)
            net.start(LATE)
            await net.wait_for_height(HEIGHT, LATE)
            store = net[LATE].store
            assert store is not None
            aggregate = net[LATE].get_block(HEIGHT).header.aggregate
            await net.wait_for(lambda: store.has_blob(aggregate), "the newest aggregate")
            net.heal()
            await net.wait_for_height(HEIGHT + 2, LATE, "observer", *HOLDERS)
            check_chain(net, LATE)
            check_chain(net, "observer")

    run_virtual(story())
