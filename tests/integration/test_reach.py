"""Members that are not connected with each other take part in full through the others (PROTOCOL §7)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from chain.block import Id
from node.admin.wiring import make_view
from node.cli.federation.peers import describe_reach
from node.consensus.gossip.relay import Relay
from node.consensus.height.credit import FULL, PER_HEIGHT
from node.p2p.peers import Peer
from support.federation.asked import make_book, make_config
from support.federation.cluster import ScriptedTrainer, cluster
from support.federation.proposing import RULES, approve, check_chains, propose, wait_for_state
from support.federation.reach import (
    HUB,
    MISSING,
    count_authors,
    count_messages,
    get_relays,
    get_service,
    start_apart,
)
from support.federation.virtual_time import run_virtual

ALL = tuple(f"node{i}" for i in range(4))


def run(story: Callable[[], Any]) -> None:
    run_virtual(story())


# ---- rounds


@pytest.mark.parametrize("missing", MISSING.values(), ids=MISSING.keys())
def test_all_contribute_and_no_round_waits_for_whom_it_does_not_reach(
    tmp_path: Path, missing: list[tuple[str, str]]
) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, start=()) as net:
            start_apart(net, missing)
            clock, ends_s = net["node0"].clock, []
            for height in range(1, 11):
                await net.wait_for_height(height)
                ends_s.append(clock.monotonic())
            net.check_agreement()
            assert [count_authors(net, height) for height in range(1, 11)] == [4] * 10
            collect_s = net.genesis.rules.waits.collect_s
            assert max(after - before for before, after in pairwise(ends_s)) < collect_s / 2

    run(story)


def test_what_is_signed_goes_on_at_once_through_one_other(tmp_path: Path) -> None:
    """Each of the three leaves gets what the two others sign from the hub, each once."""

    async def story() -> None:
        async with cluster(tmp_path, 4, start=()) as net:
            start_apart(net, MISSING["three of four"])
            await net.wait_for_height(3)
            before = count_messages(net, "contribution")
            await net.wait_for_height(13)
            pushed = count_messages(net, "contribution") - before
            assert 10 * 12 - 6 <= pushed <= 11 * 12 + 6  # of four authors to three others each
            assert all(get_service(net, name).gossip.relay.num_passed_on == 0 for name in ALL if name != HUB)
            assert get_service(net, HUB).gossip.relay.num_passed_on > 0

    run(story)


def test_where_all_are_connected_there_is_not_one_message_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_off: list[Peer] = []
    look = Relay.list_cut_off

    def list_cut_off(relay: Relay, member: Id) -> list[Peer]:
        found = look(relay, member)
        cut_off.extend(found)
        return found

    async def story() -> None:
        async with cluster(tmp_path, 4, rounds=6) as net:
            await net.wait_for_height(6)
            assert not cut_off  # so that nothing is passed on, nor a status sent that would not be sent anyway
            assert count_messages(net, "contribution") == 6 * 4 * 3

    monkeypatch.setattr(Relay, "list_cut_off", list_cut_off)
    run(story)


def test_who_is_reached_through_others_is_not_taken_for_silent(tmp_path: Path) -> None:
    """Fewer than a quorum suffice, so that a round does not wait for whom nothing is heard of."""

    async def story() -> None:
        trainers = [ScriptedTrainer(i, train_s=0.02 if i in (2, 3) else 30.0) for i in range(4)]
        async with cluster(tmp_path, 4, trainers=trainers, start=(), min_contributions=2) as net:
            start_apart(net, MISSING["three of four"])
            await net.wait_for_height(1)
            assert net["node2"].clock.monotonic() > 30.0
            assert count_authors(net, 1) >= 3

    run(story)


# ---- who is in sight


def test_whom_others_hear_of_is_in_sight_and_the_node_says_through_whom(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, start=()) as net:
            start_apart(net, MISSING["three of four"])
            await net.wait_for_height(3)
            peers = get_service(net, "node0").peers
            assert peers.count_alive_members() == 4
            assert peers.describe_stall() is None
            assert get_relays(net, "node0", "node1") == get_relays(net, "node0", "node2") == {HUB}
            assert get_relays(net, "node0", HUB) == set()
            assert not peers.is_alive(net.id("node1"))
            view = make_view(get_service(net, "node0"), net["node0"].get_context(), make_config(tmp_path), make_book())
            shown = {peer.name: describe_reach(peer) for peer in view.list_peers().peers}
            assert shown == {"node1": "through node3", "node2": "through node3", "node3": "up"}
            members = (await view.federation.list_members()).members
            assert {member.name: list(member.through) for member in members if member.through} == {
                "node1": [HUB],
                "node2": [HUB],
            }
            await net.crash("node1")
            await net.wait_for(lambda: get_relays(net, "node0", "node1") == set(), "node1 to be out of sight")
            assert peers.count_alive_members() == 3
            await net.crash(HUB)
            await net.wait_for(lambda: peers.count_alive_members() == 1, "all to be out of sight")
            assert peers.describe_stall() == "1 of 4 members in sight, 3 needed; missing node1, node2, node3"

    run(story)


def test_a_clock_is_read_by_those_alone_that_hear_it_tick(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, start=()) as net:
            start_apart(net, MISSING["three of four"])
            await net.wait_for_height(3)
            assert set(get_service(net, "node0").clocks.get_skews_s()) == {net.id("node0"), net.id(HUB)}
            assert len(get_service(net, HUB).clocks.get_skews_s()) == 4

    run(story)


def test_who_abstains_is_not_waited_for_by_those_that_do_not_reach_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, start=()) as net:
            start_apart(net, MISSING["three of four"])
            await net.wait_for_height(2)
            service = get_service(net, "node0")
            service.participation.is_paused = True
            height = net["node0"].height + 2
            await net.wait_for_height(height)
            began_s = net["node0"].clock.monotonic()
            await net.wait_for_height(height + 5)
            assert {count_authors(net, at) for at in range(height + 1, height + 6)} == {3}
            assert net["node0"].clock.monotonic() - began_s < net.genesis.rules.waits.collect_s

    run(story)


def test_a_straggler_behind_another_is_awaited_again_once_it_is_at_work(tmp_path: Path) -> None:
    """It has been left out of the block before, so that it is its word alone that makes others wait for it."""

    async def story() -> None:
        trainers = [ScriptedTrainer(i, train_s=0.3 if i else 0.02) for i in range(4)]
        async with cluster(tmp_path, 4, trainers=trainers, start=()) as net:
            start_apart(net, MISSING["three of four"], "node1", "node2", "node3")
            await net.wait_for_height(3, "node1", "node2", "node3")
            trainers[0].train_s = 0.6
            net.start("node0")
            await net.wait_for(
                lambda: len(net["node1"].get_block(net["node1"].height).contributions) == 4, "node0 to contribute"
            )
            height = net["node1"].height
            await net.wait_for_height(height + 4)
            assert [len(net["node1"].get_block(at).contributions) for at in range(height, height + 5)] == [4] * 5

    run(story)


def test_who_makes_up_that_an_absent_member_works_costs_what_its_credit_pays_for(tmp_path: Path) -> None:
    """node0 is not there, and the hub says at every height that it hears it at work."""

    async def story() -> None:
        async with cluster(tmp_path, 4, start=(), train_s=0.5) as net:
            start_apart(net, MISSING["three of four"], "node1", "node2", HUB)
            liar, collect_s = get_service(net, HUB), net.genesis.rules.waits.collect_s
            index = net.genesis.state.index_of(net.id("node0"))
            assert index is not None
            reach, lie = liar.peers.get_reach, 1 << index

            def get_reach(height: int) -> tuple[int, int, int]:
                reaches, contributing, abstaining = reach(height)
                return reaches | lie, contributing | lie, abstaining

            liar.peers.get_reach = get_reach  # type: ignore[method-assign]  # it lies
            names = ("node1", "node2", HUB)
            began_s = net["node1"].clock.monotonic()
            await net.wait_for_height(12, *names)
            waited_s = net["node1"].clock.monotonic() - began_s
            assert waited_s < 12 * 0.7 + (FULL + 12 * PER_HEIGHT) * collect_s
            assert get_service(net, "node1").credits.get_waits(net.id("node0")) < FULL  # it did wait
            await net.wait_for_height(20, *names)
            net.check_agreement()

    run(story)


def test_one_word_that_a_member_contributes_counts_for_more_than_a_lie_that_it_does_not(tmp_path: Path) -> None:
    """node2 says of node1 that it abstains, and node3 tells node0 the truth."""

    async def story() -> None:
        async with cluster(tmp_path, 4, start=()) as net:
            start_apart(net, MISSING["two of four"])
            liar = get_service(net, "node2")
            index = net.genesis.state.index_of(net.id("node1"))
            assert index is not None
            reach, lie = liar.peers.get_reach, 1 << index

            def get_reach(height: int) -> tuple[int, int, int]:
                reaches, contributing, abstaining = reach(height)
                return reaches | lie, contributing & ~lie, abstaining | lie

            liar.peers.get_reach = get_reach  # type: ignore[method-assign]  # it lies
            await net.wait_for_height(10)
            assert [count_authors(net, height) for height in range(3, 11)] == [4] * 8

    run(story)


@pytest.mark.slow
def test_a_change_is_proposed_and_approved_by_members_that_do_not_reach_each_other(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, start=()) as net:
            start_apart(net, MISSING["three of four"])
            await net.wait_for_height(2)
            began_s = net["node0"].clock.monotonic()
            await approve(net, await propose(net, "node0", RULES), "node1", "node2")
            await wait_for_state(net, "the rule to be in force", lambda state: state.rules.keep_heights == 3)
            assert net["node0"].clock.monotonic() - began_s < 3.0
            check_chains(net)

    run(story)
