"""A node without a vote: it follows, asks, and tells nothing but its status."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from chain.block import ZERO, Id, Phase
from chain.signing import encode_id
from node.p2p.refusals import Reason
from support.data.chains import make_digest, make_keys
from support.faults.liar import lying
from support.federation.cluster import Cluster, Node, ScriptedTrainer, cluster
from support.federation.virtual_time import run_virtual

MEMBERS = ("node0", "node1", "node2", "node3")


@asynccontextmanager
async def observed(path: Path, **options: object) -> AsyncIterator[Cluster]:
    """Four members that let an observer in, which is not started yet."""
    (key,) = make_keys(1, "observer")
    named = [{"key": encode_id(key.id), "name": "observer"}]
    async with cluster(path, 4, start=(), observers=named, **options) as net:  # type: ignore[arg-type]  # passed on
        net.nodes["observer"] = Node("observer", key, path / "observer", ScriptedTrainer(9))
        for name in MEMBERS:
            net.start(name)
        yield net


def is_refused(net: Cluster, peer: Id) -> bool:
    transports = [net.network.find(net.id(name)) for name in MEMBERS]
    return any(transport is not None and transport.bans.is_banned(peer) for transport in transports)


def test_an_observer_follows_and_is_never_refused(tmp_path: Path) -> None:
    """Loss makes the members lack what the observer holds; it must not push it to them."""

    async def story() -> None:
        async with observed(tmp_path, network={"loss": 0.2}) as net:
            await net.wait_for_height(2, *MEMBERS)
            net.start("observer")
            await net.wait_for_height(net["node0"].height + 6)
            net.check_agreement()
            assert not is_refused(net, net.id("observer"))
            trainer = net["observer"].trainer
            assert isinstance(trainer, ScriptedTrainer)
            assert trainer.trained == []

    run_virtual(story())


def test_an_observer_counts_for_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with observed(tmp_path) as net:
            net.start("observer")
            await net.wait_for_height(1)
            await net.crash("node2")
            await net.crash("node3")
            service = net["node0"].service
            assert service is not None
            await net.wait_for(lambda: service.stall is not None, "node0 to say that it is stalled")
            height = net["node0"].height
            await asyncio.sleep(30)
            assert net["node0"].height == height

    run_virtual(story())


def test_what_an_observer_pushes_is_left_out(tmp_path: Path) -> None:
    async def story() -> None:
        async with observed(tmp_path) as net, lying(net, "observer") as liar:
            liar.send(liar.make_vote(Phase.PREVOTE, ZERO), "node1")
            liar.send(liar.make_vote(Phase.PREVOTE, make_digest("rival")), "node1")
            node1 = net.network.find(net.id("node1"))
            assert node1 is not None
            await net.wait_for(
                lambda: node1.counters()[liar.key.id].refusals[Reason.OTHER_HEIGHT] == 2, "node1 to leave them out"
            )
            assert not liar.is_refused_by("node1")
            await net.wait_for_height(net["node0"].height + 2, *MEMBERS)
            assert not list(net["node1"].get_context().store.get_evidence())

    run_virtual(story())
