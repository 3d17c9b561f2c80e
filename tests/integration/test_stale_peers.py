"""UA-PDFL with staleness: who is in no block any more is drawn for some rounds, if its blobs can be had."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from chain.block import Id, Phase
from ml.payload import Arrays, decode_arrays
from ml.specs import MethodSpec
from node.admin.offline import OfflineNode
from node.admin.wiring import make_view
from node.consensus.context import NodeContext
from node.consensus.service import RoundService
from node.consensus.wiring import make_round_service
from node.ledger.audit import run_audit
from node.p2p.transport.base import PeerUnavailable
from support.data.chains import make_digest
from support.faults.liar import lying
from support.federation.asked import make_book, make_config
from support.federation.proposing import wait_for_state
from support.federation.pulling import UAPDFL, Stingy, TakingCluster, taking
from support.federation.virtual_time import run_virtual

pytestmark = pytest.mark.slow

STALENESS = 3
METHOD = {**UAPDFL, "num_peers": 3, "dropout": False, "staleness": STALENESS}
OTHERS = ("node0", "node1", "node2")
NEVER_S = 1e6


def run(story: Callable[[], Any]) -> None:
    run_virtual(story())


def get_aggregate(fed: TakingCluster, height: int) -> Arrays:
    store = fed.net["node0"].store
    assert store is not None
    data = store.get_blob(fed.net["node0"].get_block(height).header.aggregate)
    return decode_arrays(data, len(data))


def list_stale(fed: TakingCluster, height: int) -> list[tuple[Id, int]]:
    return list(fed.trainers["node0"].spec.list_stale(get_aggregate(fed, height)))


async def fall_silent(fed: TakingCluster, after: int) -> int:
    """node3 trains for ever from here on. The last height whose block it is in, once all have applied the next."""
    await fed.wait_for_round(after)
    fed.trainers["node3"].train_s = NEVER_S
    last = after
    while True:
        await fed.wait_for_round(last + 1, *OTHERS)
        if fed.get_offer("node3", last + 1) is None:
            return last
        last += 1


def check_audit(fed: TakingCluster, name: str, height: int) -> None:
    store = fed.net[name].store
    assert store is not None
    report = run_audit(fed.net.genesis, store, deep=True, require_all=True)
    assert report.ok, report
    assert report.recomputed >= height


def test_who_falls_silent_is_taken_from_until_its_last_contribution_is_too_old(tmp_path: Path) -> None:
    async def story() -> None:
        async with taking(tmp_path, 4, METHOD) as fed:
            spec, gone = fed.trainers["node0"].spec, fed.net.id("node3")
            last = await fall_silent(fed, 2)
            offered = fed.get_offer("node3", last)
            assert offered is not None
            await fed.wait_for_round(last + STALENESS + 1, *OTHERS)
            for height in range(last + 1, last + STALENESS + 2):
                is_stale = height <= last + STALENESS
                assert list_stale(fed, height) == ([(gone, height - last)] if is_stale else [])
                for name in OTHERS:
                    exchange = fed.get_exchange(name, height)
                    assert [offer.author for offer in exchange.offers].count(gone) == is_stale
                    assert not exchange.gone
                    assert (offered.digests["g"] in exchange.blobs) == is_stale
                    if is_stale:
                        assert exchange.offers[-1] == offered
                        assert exchange.blobs.keys() == get_wanted(spec, fed, name, height)
            assert fed.get_exchange("node3", last + 1).blobs == {}  # it is no author of the block itself
            fed.net.check_agreement()
            check_audit(fed, "node0", last + STALENESS + 1)

    def get_wanted(spec: MethodSpec, fed: TakingCluster, name: str, height: int) -> set[bytes]:
        exchange = fed.get_exchange(name, height)
        aggregate = get_aggregate(fed, height)
        return set(spec.wanted(height, exchange.beacon, exchange.me, exchange.offers, aggregate))

    run(story)


def test_who_comes_back_is_in_the_block_and_stale_no_more(tmp_path: Path) -> None:
    async def story() -> None:
        async with taking(tmp_path, 4, METHOD) as fed:
            await fed.wait_for_round(2)
            fed.trainers["node3"].train_s = 3.0  # too long for some rounds, and then not
            await fed.net.wait_for(lambda: fed.net["node0"].height > 2 and is_stale_now(fed), "node3 to be late")
            fed.trainers["node3"].train_s = 0.02
            late = fed.net["node0"].height
            await fed.net.wait_for(lambda: is_back(fed, late), "node3 to be back")
            back = next(height for height in count(late + 1) if fed.get_offer("node3", height) is not None)
            assert list_stale(fed, back) == []
            await fed.wait_for_round(back, *OTHERS)
            check_audit(fed, "node0", back)

    def is_stale_now(fed: TakingCluster) -> bool:
        return bool(list_stale(fed, fed.net["node0"].height))

    def is_back(fed: TakingCluster, late: int) -> bool:
        head = fed.net["node0"].height
        return any(fed.get_offer("node3", height) is not None for height in range(late + 1, head + 1))

    run(story)


def test_a_dead_members_blobs_are_had_of_those_who_pulled_them(tmp_path: Path) -> None:
    async def story() -> None:
        async with taking(tmp_path, 4, METHOD) as fed:
            last = await fall_silent(fed, 2)
            offered = fed.get_offer("node3", last)
            assert offered is not None
            await fed.net.crash("node3")
            await fed.wait_for_round(last + STALENESS, *OTHERS)
            for name in OTHERS:
                assert offered.digests["g"] in fed.get_exchange(name, last + STALENESS).blobs

    run(story)


def test_a_dead_member_whose_blobs_nobody_has_is_not_used_and_holds_nobody_up(tmp_path: Path) -> None:
    class Selfish(Stingy):
        async def serve(self, data: bytes) -> AsyncGenerator[bytes, None]:
            raise PeerUnavailable("busy")
            yield data

    async def story() -> None:
        async with taking(tmp_path, 4, METHOD, start=OTHERS) as fed:
            fed.net.start("node3", Selfish)
            last = await fall_silent(fed, 2)
            await fed.net.crash("node3")
            head = fed.net["node0"].height
            await fed.wait_for_round(max(head, last + STALENESS) + 1, *OTHERS)
            gone, collect_s = fed.net.id("node3"), fed.net.genesis.rules.waits.collect_s
            for height in range(last + 1, last + STALENESS + 1):
                assert list_stale(fed, height) == [(gone, height - last)]
                for name in OTHERS:
                    exchange = fed.get_exchange(name, height)
                    assert exchange.gone == {gone}
                    assert exchange.blobs  # of the others
                    assert fed.get_record(name, height)["seconds"]["apply"] < collect_s
            assert not fed.get_exchange("node0", last + STALENESS + 1).gone
            fed.net.check_agreement()

    run(story)


def test_a_suspended_member_is_not_drawn_though_its_entry_is_carried_on(tmp_path: Path) -> None:
    async def story() -> None:
        async with taking(tmp_path, 4, {**METHOD, "staleness": 50}) as fed:
            net, liar_id = fed.net, fed.net.id("node3")
            await fed.wait_for_round(2)
            await net.crash("node3")
            async with lying(net, "node3") as liar:
                for what in ("one block", "another"):
                    liar.send(liar.make_vote(Phase.PREVOTE, make_digest(what)), *OTHERS)
                await wait_for_state(net, "node3 to be suspended", lambda state: not state.is_active(liar_id), *OTHERS)
            height = net["node0"].height + 2
            await net.wait_for_height(height + 1, *OTHERS)
            assert [author for author, _ in list_stale(fed, height)] == [liar_id]
            last = max(fed.trainers["node0"].taken)
            exchange = fed.get_exchange("node0", last)
            assert len(exchange.offers) == 3
            assert liar_id not in [offer.author for offer in exchange.offers]
            await net.crash("node0")
            with OfflineNode(net["node0"].path) as offline:
                shown = offline.get_round(height)
            assert [sorted(node.peers) for node in shown.peering.nodes] == [
                sorted({*OTHERS} - {node.name}) for node in shown.peering.nodes
            ]

    run(story)


def test_blobs_are_kept_while_they_may_be_drawn_and_then_go_also_after_a_restart(tmp_path: Path) -> None:
    async def story() -> None:
        async with taking(tmp_path, 4, METHOD) as fed:
            await fed.wait_for_round(4)
            digest = next(offer.digests["g"] for offer in fed.get_exchange("node0", 4).offers[-1:])
            author = fed.get_exchange("node0", 4).offers[-1].author
            name = next(name for name in fed.net.nodes if fed.net.id(name) != author)
            held: dict[int, bool] = {}

            def is_at(height: int) -> bool:
                store = fed.net[name].store
                assert store is not None
                held[store.head_height] = store.has_blob(digest)
                return store.head_height >= height

            await fed.net.wait_for(lambda: is_at(4 + STALENESS), "the last height at which it may be drawn")
            await fed.net.crash(name)  # with the block among those it no longer looks at for their age alone
            fed.net.start(name)
            await fed.net.wait_for(lambda: is_at(4 + STALENESS + 4), "some more heights")
            assert held[4 + STALENESS]
            assert all(there for height, there in held.items() if height <= 4 + STALENESS)
            assert not held[max(held)]

    run(story)


def test_a_late_member_recomputes_what_was_carried_without_having_been_there(tmp_path: Path) -> None:
    """Of seven, five of whom make a block."""

    async def story() -> None:
        early = tuple(f"node{i}" for i in range(5))
        async with taking(tmp_path, 7, METHOD, start=(*early, "node5")) as fed:
            await fed.wait_for_round(2, *early)
            fed.trainers["node5"].train_s = NEVER_S
            await fed.net.wait_for(lambda: bool(list_stale(fed, fed.net["node0"].height)), "node5 to be stale")
            await fed.net.wait_for_height(fed.net["node0"].height + STALENESS, *early)
            fed.net.start("node6")

            def is_in() -> bool:
                return fed.get_offer("node6", fed.net["node0"].height) is not None

            await fed.net.wait_for(is_in, "node6 to join in")
            store = fed.net["node6"].store
            assert store is not None
            await fed.net.wait_for(lambda: not run_audit(fed.net.genesis, store, deep=True).not_held, "all blobs")
            check_audit(fed, "node6", 2 + STALENESS)

    run(story)


def test_a_round_is_explained_with_the_round_that_a_stale_peer_is_of(tmp_path: Path) -> None:
    async def story() -> None:
        contexts: list[NodeContext] = []

        def make_service(context: NodeContext) -> RoundService:
            contexts.append(context)
            return make_round_service(context)

        async with taking(tmp_path, 4, METHOD, start=("node1", "node2", "node3")) as fed:
            fed.net.start("node0", make_service)
            last = await fall_silent(fed, 2)
            service = fed.net["node0"].service
            assert service is not None
            shown = await make_view(service, contexts[0], make_config(tmp_path), make_book()).get_round(last + 1)
            assert sorted(node.name for node in shown.peering.nodes) == list(OTHERS)
            for node in shown.peering.nodes:
                assert sorted(node.peers) == sorted({*OTHERS, f"node3 (of round {last})"} - {node.name})
                assert len(node.divergences) == 3
            await fed.net.crash("node0")
            with OfflineNode(fed.net["node0"].path) as offline:
                assert offline.get_round(last + 1).peering == shown.peering

    run(story)
