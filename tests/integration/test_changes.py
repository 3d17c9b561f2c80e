"""Changes of a federation, on virtual time: proposed, approved, made final, and in force from the next height."""

from __future__ import annotations

from pathlib import Path

import pytest

from chain.block import Answer
from chain.changes.members import RemoveMember
from chain.changes.rules import SetRules
from chain.changes.runs import EndRun, SetRounds
from chain.errors import InvalidChange
from node.errors import NotFound
from support.federation.cluster import cluster
from support.federation.proposing import (
    RULES,
    approve,
    check_chains,
    find_change_heights,
    get_open,
    get_seat,
    get_service,
    get_state,
    propose,
    wait_for_state,
    wait_until_open,
)
from support.federation.virtual_time import run_virtual


def test_a_change_that_a_quorum_approves_is_in_force_from_the_next_height_everywhere(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4) as net:
            await net.wait_for_height(2)
            change_id = await propose(net, "node0", RULES)
            await approve(net, change_id, "node1")
            await net.wait_for_height(net["node0"].height + 3)
            assert get_state(net, "node0").rules.keep_heights == 2  # two of four are not enough
            await approve(net, change_id, "node2")
            await wait_for_state(net, "the rule to be in force", lambda state: state.rules.keep_heights == 3)
            (height,) = find_change_heights(net, "node3")
            assert net["node3"].get_block(height).contributions == ()
            await net.wait_for_height(height + 3)
            assert all(get_open(net, name) == [] for name in net.nodes)
            check_chains(net)

    run_virtual(story())


def test_a_change_takes_a_height_and_no_round(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, rounds=6) as net:
            await net.wait_for_height(2)
            await approve(net, await propose(net, "node0", RULES), "node1", "node2")
            await net.wait_for(
                lambda: all(get_service(net, name).is_done for name in net.nodes), "the rounds to be over"
            )
            assert {net[name].height for name in net.nodes} == {7}
            check_chains(net)

    run_virtual(story())


def test_an_idle_federation_executes_a_change_and_goes_on_with_more_rounds(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, rounds=2) as net:
            await net.wait_for(
                lambda: all(get_service(net, name).is_done for name in net.nodes), "the rounds to be over"
            )
            assert get_service(net, "node0").stall is None
            await approve(net, await propose(net, "node1", SetRounds(1, 2, 4)), "node2", "node3")
            await net.wait_for_height(5)
            await net.wait_for(
                lambda: all(get_service(net, name).is_done for name in net.nodes), "them to be over again"
            )
            assert find_change_heights(net, "node0") == [3]
            assert len(net["node0"].get_block(4).contributions) >= 3
            check_chains(net)

    run_virtual(story())


def test_a_run_that_cannot_reach_its_contributions_is_ended(tmp_path: Path) -> None:
    """Two of four are paused, so that three contributions never come; they vote on."""

    async def story() -> None:
        async with cluster(tmp_path, 4) as net:
            await net.wait_for_height(1)
            for name in ("node2", "node3"):
                get_service(net, name).participation.is_paused = True
            await net.wait_for_height(2, "node0")
            await approve(net, await propose(net, "node0", EndRun(1)), "node1", "node2")
            await wait_for_state(net, "the run to be ended", lambda state: state.run.is_ended)
            assert all(get_service(net, name).is_done for name in net.nodes)
            check_chains(net)

    run_virtual(story())


def test_a_member_that_is_removed_counts_no_more_and_the_others_go_on(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4) as net:
            await net.wait_for_height(2)
            others = ("node0", "node1", "node2")
            await approve(net, await propose(net, "node0", RemoveMember(get_seat(net, "node3"))), "node1", "node2")
            await wait_for_state(net, "three members", lambda state: state.n == 3, *others)
            (height,) = find_change_heights(net, "node0")
            await net.wait_for_height(height + 3, *others)
            for later in range(height + 1, height + 4):
                block = net["node0"].get_block(later)
                authors = {contribution.author for contribution in block.contributions}
                assert net.id("node3") not in authors | {block.header.miner}
            check_chains(net)

    run_virtual(story())


def test_open_changes_outlive_a_crash_of_all(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4) as net:
            await net.wait_for_height(1)
            change_id = await propose(net, "node0", RULES)
            await approve(net, change_id, "node1")
            for name in list(net.nodes):
                await wait_until_open(net, change_id, name)
            for name in list(net.nodes):
                await net.crash(name)
            for name in list(net.nodes):
                net.start(name)
            await approve(net, change_id, "node2")
            await wait_for_state(net, "the rule to be in force", lambda state: state.rules.keep_heights == 3)
            assert len(find_change_heights(net, "node0")) == 1
            check_chains(net)

    run_virtual(story())


def test_a_node_that_was_away_hears_of_an_open_change_by_status(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, start=("node0", "node1", "node2")) as net:
            await net.wait_for_height(1, "node0", "node1", "node2")
            change_id = await propose(net, "node0", RULES)
            net.start("node3")
            await approve(net, change_id, "node3")
            await approve(net, change_id, "node1")
            await wait_for_state(net, "the rule to be in force", lambda state: state.rules.keep_heights == 3)
            check_chains(net)

    run_virtual(story())


def test_what_cannot_hold_is_refused_before_it_is_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4) as net:
            await net.wait_for_height(1)
            monkeypatch.setattr(get_service(net, "node0").signer, "sign_approval", None)  # to be called is an error
            with pytest.raises(InvalidChange, match="keep_heights in force: expected 5, got 2"):
                await propose(net, "node0", SetRules({"keep_heights": (5, 6)}))
            assert get_open(net, "node0") == []
            with pytest.raises(NotFound, match="no such change is open here"):
                await get_service(net, "node0").proposals.approve(bytes(32), Answer.YES)

    run_virtual(story())
