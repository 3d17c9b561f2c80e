"""A member that its operator has paused: it contributes nothing, everything else goes on; and the round after which a
node ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from chain.signing import encode_id
from chain.store.interface import StoredBlock
from node.admin.round_control import Control
from node.admin.shutdown import Deadline, Shutdown
from node.admin.wiring import make_view
from node.consensus.context import NodeContext
from node.consensus.height.participation import PAUSED
from node.consensus.service import RoundService
from node.consensus.wiring import make_round_service
from node.errors import InvalidRequest
from support.federation.asked import make_book, make_config, make_control
from support.federation.cluster import Cluster, ScriptedTrainer, cluster
from support.federation.virtual_time import run_virtual

NAMES = ("node0", "node1", "node2", "node3")


@dataclass
class Controlled:
    """A federation whose nodes can be told what an operator tells them."""

    net: Cluster
    trainers: Sequence[ScriptedTrainer]
    contexts: dict[str, NodeContext] = field(default_factory=dict)

    def start(self, name: str) -> None:
        def make_service(context: NodeContext) -> RoundService:
            self.contexts[name] = context
            return make_round_service(context)

        self.net.start(name, make_service)

    def get_service(self, name: str) -> RoundService:
        service = self.net[name].service
        assert service is not None
        return service

    def control(self, name: str, stopped: asyncio.Event | None = None) -> Control:
        service, context = self.get_service(name), self.contexts[name]
        view = make_view(service, context, make_config(Path("nowhere")), make_book())
        return make_control(context, service, view=view, book=make_book(), stopped=stopped)

    def read(self, height: int) -> StoredBlock:
        store = self.net["node0"].store
        stored = None if store is None else store.get_block(height)
        assert stored is not None
        return stored

    def get_authors(self, height: int, of: str = "node0") -> set[str]:
        authors = {contribution.author for contribution in self.net[of].get_block(height).contributions}
        return {name for name in NAMES if self.net.id(name) in authors}


@asynccontextmanager
async def controlled(path: Path, *, train_s: float = 0.02, **options: Any) -> AsyncIterator[Controlled]:
    trainers = [ScriptedTrainer(i, train_s) for i in range(4)]
    async with cluster(path, 4, start=(), trainers=trainers, **options) as net:
        there = Controlled(net, trainers)
        for name in NAMES:
            there.start(name)
        yield there


def test_a_paused_member_ends_its_round_and_then_contributes_nothing_and_goes_on_voting(tmp_path: Path) -> None:
    async def story() -> None:
        async with controlled(tmp_path) as there:
            net = there.net
            await net.wait_for_height(3)
            shown = await there.control("node3").pause_training()
            current = shown.round
            assert (shown.paused, shown.contributes) == (True, True)
            last = current + 10
            await net.wait_for_height(last)
            assert there.get_authors(current) == set(NAMES)
            times_ms = [net["node0"].get_block(height).header.time_ms for height in range(current, last + 1)]
            waits_ms = [after - before for before, after in pairwise(times_ms)]
            assert max(waits_ms) < 1000 * net.genesis.rules.waits.collect_s  # nobody waits for it, not even once
            for height in range(current + 1, last + 1):
                assert there.get_authors(height) == {"node0", "node1", "node2"}
            assert max(there.trainers[3].trained) == current
            assert max(there.trainers[3].applied) >= last - 1
            blocks = [there.read(height) for height in range(current + 1, last + 1)]
            index = net.genesis.state.member_ids.index(net.id("node3"))
            assert any(index in dict(stored.certificate.signatures) for stored in blocks if stored.certificate)
            assert any(stored.block.header.miner == net.id("node3") for stored in blocks)
            net.check_agreement()

    run_virtual(story())


def test_a_pause_outlives_a_restart_and_ends_by_the_operators_word_alone(tmp_path: Path) -> None:
    async def story() -> None:
        async with controlled(tmp_path) as there:
            net = there.net
            await net.wait_for_height(2)
            await there.control("node3").pause_training()
            assert (net["node3"].path / PAUSED).stat().st_mode & 0o777 == 0o600
            await net.crash("node3")
            await net.wait_for_height(4, "node0", "node1", "node2")
            there.start("node3")
            await net.wait_for_height(net["node0"].height + 4)
            shown = await there.control("node3").pause_training()
            assert (shown.paused, shown.contributes) == (True, False)
            assert there.get_authors(net["node0"].height) == {"node0", "node1", "node2"}

            shown = await there.control("node3").resume_training()
            assert (shown.paused, shown.contributes) == (False, True)
            assert shown == await there.control("node3").resume_training()
            assert not (net["node3"].path / PAUSED).exists()
            await net.wait_for(lambda: there.get_authors(net["node0"].height) == set(NAMES), "all four contribute")
            began_s, height = net["node0"].clock.monotonic(), net["node0"].height
            await net.wait_for_height(height + 5)
            assert all(there.get_authors(at) == set(NAMES) for at in range(height + 1, height + 6))
            assert net["node0"].clock.monotonic() - began_s < net.genesis.rules.waits.collect_s
            net.check_agreement()

    run_virtual(story())


def test_with_too_few_left_the_round_stands_until_one_resumes_in_its_midst(tmp_path: Path) -> None:
    async def story() -> None:
        async with controlled(tmp_path) as there:
            net = there.net
            await net.wait_for_height(2)
            for name in NAMES:
                await there.control(name).pause_training()
            height = max(node.height for node in net.nodes.values()) + 1
            await net.wait_for_height(height)
            await asyncio.sleep(60)
            assert net.check_agreement() == height
            for name in ("node2", "node0"):
                assert (await there.control(name).resume_training()).contributes
            await asyncio.sleep(60)
            assert net.check_agreement() == height
            stall = there.get_service("node0").stall
            assert stall is not None
            assert "contributions of node1 (paused), node3 (paused)" in stall
            await there.control("node1").resume_training()
            await net.wait_for_height(height + 5)
            assert there.get_authors(height + 1) == {"node0", "node1", "node2"}

    run_virtual(story())


def test_what_was_signed_before_the_pause_still_counts_after_a_restart(tmp_path: Path) -> None:
    """One whose contribution is out when it is paused and dies: it repeats it, and trains what it has not kept."""

    async def story() -> None:
        async with controlled(tmp_path) as there:
            net = there.net
            net.partition(["node3"], ["node0", "node1", "node2"])

            def has_contributed() -> bool:
                machine = there.get_service("node3").machine
                return machine is not None and net.id("node3") in machine.contributions

            await net.wait_for(has_contributed, "node3's own contribution")
            for name in ("node0", "node1", "node2"):
                await net.crash(name)
            await there.control("node3").pause_training()
            await net.crash("node3")
            net.heal()
            for name in NAMES:
                there.start(name)
            await net.wait_for_height(4)
            assert there.get_authors(1) == set(NAMES)
            assert there.get_authors(3) == {"node0", "node1", "node2"}
            assert there.trainers[3].trained == [1, 1]

    run_virtual(story())


def test_the_record_of_a_round_says_who_did_not_want_to_contribute(tmp_path: Path) -> None:
    async def story() -> None:
        async with controlled(tmp_path) as there:
            net = there.net
            await net.wait_for_height(1)
            await there.control("node3").pause_training()
            await net.wait_for_height(6)
            for name in ("node0", "node3"):
                store = net[name].store
                assert store is not None
                await net.wait_for(lambda store=store: store.get_round(5) is not None, "the record")  # type: ignore[misc]
                record = store.get_round(5)
                assert record is not None
                assert record["left_out"] == {encode_id(net.id("node3")): "it said that it would not contribute"}
            told = [event.data for event in there.get_service("node3").events.kept if event.kind == "operator"]
            assert told == [{"paused": True}]

    run_virtual(story())


# ---- after which round a node ends


def test_a_node_ends_once_the_round_is_final_with_everybody_and_contributes_to_none_after_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with controlled(tmp_path) as there:
            net = there.net
            await net.wait_for_height(2)
            service, stopped = there.get_service("node3"), asyncio.Event()
            shutdown = asyncio.create_task(Shutdown(service, stopped, Deadline(), lambda: None).run())
            control = there.control("node3", stopped)
            assert (await control.stop_after(99)).stops_after == 99
            withdrawn = await control.withdraw_stop()
            assert not withdrawn.HasField("stops_after")
            last = (await control.stop_after(net["node3"].height + 4)).stops_after
            await net.wait_for(stopped.is_set, "the end")
            assert net["node3"].height >= last
            assert all(node.height >= last for node in net.nodes.values())
            assert service.learner.applied >= last
            with pytest.raises(InvalidRequest, match="ending already"):
                await control.withdraw_stop()
            await net.wait_for_height(last + 2)
            assert there.get_authors(last) == set(NAMES)
            assert there.get_authors(last + 1) == {"node0", "node1", "node2"}
            shutdown.cancel()

    run_virtual(story())


def test_when_all_end_after_one_round_all_have_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with controlled(tmp_path, network={"loss": 0.2}) as there:
            net = there.net

            async def end(name: str) -> None:
                stopped = asyncio.Event()
                await there.control(name, stopped).stop_after(5)
                watching = asyncio.create_task(
                    Shutdown(there.get_service(name), stopped, Deadline(), lambda: None).run()
                )
                await stopped.wait()
                watching.cancel()
                heights[name] = net[name].height
                await net.crash(name)

            heights: dict[str, int] = {}
            endings = [asyncio.create_task(end(name)) for name in NAMES]
            await asyncio.wait(endings)
            assert heights == dict.fromkeys(NAMES, 5)

    run_virtual(story())


def test_a_round_that_is_over_or_never_comes_is_none_to_end_after(tmp_path: Path) -> None:
    async def story() -> None:
        async with controlled(tmp_path, rounds=3) as there:
            net, stopped = there.net, asyncio.Event()
            await net.wait_for_height(3)
            control = there.control("node0", stopped)
            with pytest.raises(InvalidRequest, match="round 2: expected one that is not over; round 3 is in hand"):
                await control.stop_after(2)
            with pytest.raises(InvalidRequest, match="round 4: expected at most 3"):
                await control.stop_after(4)
            stopping = asyncio.create_task(
                Shutdown(there.get_service("node0"), stopped, Deadline(), lambda: None).run()
            )
            await asyncio.sleep(60)
            assert not stopped.is_set()
            await control.stop_after(0)  # the set rounds are done
            await net.wait_for(stopped.is_set, "the end")
            stopping.cancel()

    run_virtual(story())
