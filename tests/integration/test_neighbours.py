"""Many members, each connected with a few neighbours only: what is signed goes from one to the next.

Thirteen members stand for many, on as few rings as would leave them apart if anything went wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import pytest

from chain import codec
from chain.block import Digest, Id, Phase, Vote
from chain.codec import encode_vote
from chain.votes import VIEW_WINDOW
from node.consensus.context import NodeContext
from node.consensus.service import RoundService
from node.consensus.wiring import make_round_service
from node.p2p import overlay
from node.p2p.bundle import encode_bundle
from node.p2p.overlay import Overlay
from node.p2p.status import Status, VoteBitmap
from node.p2p.transport.base import Message, MessageKind
from support.federation.cluster import Cluster, cluster
from support.federation.pulling import UAPDFL, taking
from support.federation.reach import count_messages, get_service
from support.federation.virtual_time import run_virtual

N = 13
NAMES = [f"node{i}" for i in range(N)]
THIRD = (N - 1) // 3
TRAIN_S = 3.0  # so that there are not many rounds until all have their connections
MUCH_S = 0.5  # beyond training, for a round in which nobody waits for a status: it takes a third of that


@pytest.fixture(autouse=True)
def _few_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlay, "NUM_RINGS", 2)
    monkeypatch.setattr(overlay, "NUM_EAGER", 2)


@asynccontextmanager
async def neighbourhood(
    path: Path, *, seed: int = 0, start: Sequence[str] = NAMES, **more: Any
) -> AsyncIterator[Cluster]:
    async with cluster(path, N, seed=seed, start=[], **more) as net:
        net.mesh_max = 4
        for name in start:
            net.start(name)
        yield net


def choose_neighbours(net: Cluster, name: str) -> set[str]:
    """Whose neighbours these are while nobody is silent."""
    state = net.genesis.state
    drawn = set(Overlay(state.chain_id, state.member_ids, net.id(name)).choose(lambda _: False)[0])
    return {other for other in NAMES if net.id(other) in drawn}


def test_all_contribute_and_agree_though_each_is_connected_with_a_few_and_messages_are_lost(tmp_path: Path) -> None:
    async def story() -> None:
        async with neighbourhood(tmp_path, network={"loss": 0.05, "latency_s": (0.01, 0.03), "fifo": True}) as net:
            await net.wait_for_height(3)
            net.check_agreement()
            for name in NAMES:
                connected = get_service(net, name).peers.connected_members.bit_count()
                assert connected <= 2 * overlay.NUM_RINGS < N - 1
            for height in range(2, 4):
                assert len(net["node0"].get_block(height).contributions) == N
            assert count_messages(net, "vote") == 0  # they go in bundles, or not at all
            for name in NAMES:
                peers = get_service(net, name).peers
                assert all(peers.is_in_sight(net.id(other)) for other in NAMES if other != name)
                assert peers.count_alive_members() == N

    run_virtual(story())


def test_payloads_come_with_their_contributions_and_next_to_nobody_asks_for_them(tmp_path: Path) -> None:
    async def story() -> None:
        async with neighbourhood(tmp_path) as net:
            await net.wait_for_height(3)
            all_bytes = sum(ref.size for one in net["node0"].get_block(2).contributions for ref in one.payloads)
            pulled_bytes = sum(get_service(net, name).blobs.pulled_bytes for name in NAMES)
            assert pulled_bytes < 3 * N * all_bytes / 20  # of the first round some, before there are connections

    run_virtual(story())


@pytest.mark.parametrize("seed", range(4))
def test_heights_are_final_whichever_third_is_silent(tmp_path: Path, seed: int) -> None:
    async def story() -> None:
        silent = set(Random(seed).sample(NAMES, THIRD))
        here = [name for name in NAMES if name not in silent]
        async with neighbourhood(tmp_path, seed=seed, start=here, network={"loss": 0.01}) as net:
            await net.wait_for_height(3, *here)
            net.check_agreement()

    run_virtual(story())


@pytest.mark.slow
def test_a_member_whose_neighbours_are_all_silent_finds_others(tmp_path: Path) -> None:
    async def story() -> None:
        async with neighbourhood(tmp_path, start=[]) as net:
            silent = choose_neighbours(net, "node3")
            assert len(silent) <= THIRD
            here = [name for name in NAMES if name not in silent]
            for name in here:
                net.start(name)
            await net.wait_for_height(4, *here)
            assert net.id("node3") in {one.author for one in net["node3"].get_block(4).contributions}
            for name in silent:
                net.start(name)
            await net.wait_for_height(net["node3"].height + 2)
            await asyncio.sleep(2)
            linked = get_service(net, "node3").peers.connected_members.bit_count()
            assert linked <= 2 * overlay.NUM_RINGS  # those in between are let go again

    run_virtual(story())


@pytest.mark.slow
def test_where_few_accept_connections_the_others_hear_of_all_at_once_through_them(tmp_path: Path) -> None:
    """Those that can only dial out pass their silent neighbours over, up to one that accepts connections, and that has
    neighbours enough of its own."""

    async def story() -> None:
        async with neighbourhood(tmp_path, start=[], train_s=TRAIN_S) as net:
            for a, b in combinations(NAMES[2:], 2):
                net.cut(a, b)
            for name in NAMES:
                net.start(name)
            await net.wait_for(lambda: all(is_passed_over(net, name) for name in NAMES[2:]), "the ends of all walks")
            began, began_s = net["node0"].height, asyncio.get_running_loop().time()
            await net.wait_for_height(began + 4)
            assert asyncio.get_running_loop().time() - began_s < 4 * (TRAIN_S + MUCH_S)
            for height in range(began + 2, began + 5):
                assert len(net["node0"].get_block(height).contributions) == N

    run_virtual(story())


def is_passed_over(net: Cluster, name: str) -> bool:
    """Whether this node, which dials nobody but node0 and node1, has found these."""
    return get_service(net, name).peers.connected_members.bit_count() == 2


@pytest.mark.slow
def test_what_few_ask_for_is_not_pulled_by_everybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who lacks a blob pulls it for whoever asks; of those that would, two are asked at first."""
    monkeypatch.setattr(overlay, "NUM_RINGS", 4)
    names, last = [f"node{i}" for i in range(2 * N)], 2

    async def story() -> None:
        async with taking(tmp_path, len(names), UAPDFL, start=(), rounds=last) as fed:
            fed.net.mesh_max = 4
            for name in names:
                fed.net.start(name)
            await fed.net.wait_for(lambda: all(last in fed.trainers[name].taken for name in names), "the last round")
            num_wanted = num_held = 0
            for name in names:
                store, exchange = fed.net[name].store, fed.get_exchange(name, last)
                assert store is not None
                assert exchange.gone == frozenset()
                num_wanted += len(exchange.blobs)
                others = [offer for offer in exchange.offers if offer.author != fed.net.id(name)]
                num_held += sum(store.has_blob(offer.digests[kind]) for offer in others for kind in "gh")
            assert (
                num_held <= 4 * num_wanted
            )  # the one that wants it, two that pull it for that one, and some for these

    run_virtual(story())


def make_hoarder(context: NodeContext) -> RoundService:
    """It claims to hold everything, and passes on nothing but what it has signed itself."""
    service = make_round_service(context)
    spreading, gossip = service.gossip.spreading, service.gossip
    add, get_status = spreading.add, gossip.get_status

    def add_own(parts: Sequence[Message], digest: Digest | None = None, sender: Id | None = None) -> None:
        if sender is None:
            add(parts)

    def claim() -> Status:
        votes = tuple(VoteBitmap(view, phase, (1 << N) - 1) for view in range(2) for phase in Phase)
        return replace(get_status(), contributions=(1 << N) - 1, votes=votes)

    spreading.add = add_own  # type: ignore[method-assign]
    gossip.get_status = claim  # type: ignore[method-assign]
    gossip.on_status = lambda peer, status: None  # type: ignore[method-assign]  # it repairs nothing
    return service


@pytest.mark.parametrize("seed", range(4))
def test_a_third_that_claims_to_hold_all_and_passes_nothing_on_stops_nobody(tmp_path: Path, seed: int) -> None:
    async def story() -> None:
        hoarders = set(Random(seed).sample(NAMES, THIRD))
        async with neighbourhood(tmp_path, seed=seed, start=[], network={"loss": 0.01}) as net:
            for name in NAMES:
                net.start(name, make_hoarder if name in hoarders else None)
            await net.wait_for_height(3)
            net.check_agreement()

    run_virtual(story())


def test_a_neighbours_flood_costs_it_its_connection_and_no_author_its_place(tmp_path: Path) -> None:
    """What others have signed, again and again, with rubbish behind it; and at last a forged vote."""

    async def story() -> None:
        async with neighbourhood(tmp_path, seed=2) as net:
            await net.wait_for_height(1)
            hostile = get_service(net, "node0")
            post = net["node0"].get_context().transport.post
            flooded: list[int] = []

            def flood(peer: Id, message: Message) -> None:
                post(peer, message)
                if message.kind is not MessageKind.BUNDLE or hostile.machine is None:
                    return
                for contribution in hostile.machine.contributions.values():
                    rubbish = bytes(contribution.payloads[0].size)
                    parts = [
                        Message(MessageKind.CONTRIBUTION, codec.encode_contribution(contribution)),
                        Message(MessageKind.PAYLOAD, rubbish),
                    ]
                    post(peer, Message(MessageKind.BUNDLE, encode_bundle(parts)))
                    flooded.append(1)

            net["node0"].get_context().transport.post = flood  # type: ignore[method-assign]
            before = net["node1"].height
            await net.wait_for_height(before + 4)
            assert len(flooded) > 200
            for height in range(before + 2, before + 5):
                assert len(net["node1"].get_block(height).contributions) == N
            for name in NAMES[1:]:
                service = get_service(net, name)
                assert service.gossip.spreading.num_waiting <= 4 * N
                assert service.handler.num_kept <= 2 * N * (VIEW_WINDOW + 2)
            victim = next(name for name in NAMES[1:] if get_service(net, name).peers.is_connected(net.id("node0")))
            forged = Vote(Phase.PREVOTE, net[victim].height + 2, 0, bytes(32), net.id("node5"), bytes(64))
            post(
                net.id(victim),
                Message(MessageKind.BUNDLE, encode_bundle([Message(MessageKind.VOTE, encode_vote(forged))])),
            )
            bans = [end.bans for end in [net.network.find(net.id(victim))] if end is not None]
            await net.wait_for(lambda: bans[0].is_banned(net.id("node0")), f"{victim} refuses node0")

    run_virtual(story())
