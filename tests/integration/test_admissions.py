"""Admission that follows the state, on virtual time: who leaves is cut off and learns of it, and who joins waits at the
door of those whose operators let it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chain.approvals import encode_readiness, sign_readiness
from chain.block import ZERO, Phase
from chain.changes.members import AddMember, AddObserver, RemoveMember, RemoveObserver, ReplaceKey
from chain.codec import decode_block
from chain.signing import SigningKey
from chain.state import State
from node.consensus.governance import admissions
from node.p2p.admission import Role
from node.p2p.status import Status
from node.p2p.transport.base import Message, MessageKind, PeerUnavailable
from support.data.chains import make_keys
from support.faults.liar import Liar, lying
from support.federation.cluster import Cluster, Node, ScriptedTrainer, cluster
from support.federation.memory_transport import MemoryTransport
from support.federation.proposing import (
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
    wait_until_over,
)
from support.federation.virtual_time import run_virtual

STAYING = ("node0", "node1", "node2", "node3")
(NEW,) = make_keys(1, "newcomer")


def get_role(net: Cluster, name: str, key: SigningKey) -> Role:
    transport = net[name].get_context().transport
    assert isinstance(transport, MemoryTransport)
    return transport.get_role(key.id)


def are_connected(net: Cluster, one: str, other: str) -> bool:
    transport = net.network.find(net.id(one))
    return transport is not None and net.id(other) in transport.connected()


async def remove(net: Cluster, name: str) -> None:
    others = [each for each in net.nodes if each != name]
    change = await propose(net, others[0], RemoveMember(get_seat(net, name)))
    await approve(net, change, *others[1 : net.genesis.state.q])


def add(net: Cluster, name: str, key: SigningKey, path: Path) -> None:
    net.nodes[name] = Node(name, key, path / name, ScriptedTrainer(9))


async def stand_ready(net: Cluster, change_id: bytes, key: SigningKey, *names: str) -> None:
    """The readiness of a new key, by hand: its node does not speak of it yet."""
    tip = get_service(net, names[0]).tip
    ready = sign_readiness(key, tip.state.chain_id, change_id, height=tip.height, block_id=tip.id)
    for name in names:
        peer = next(peer for peer in get_service(net, name).peers if peer.is_member)
        message = Message(MessageKind.READINESS, encode_readiness(ready))
        get_service(net, name).proposals.on_message(peer, message)


def test_a_member_that_was_removed_is_told_so_and_counts_no_more(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 5) as net:
            await net.wait_for_height(2)
            await net.crash("node4")
            await remove(net, "node4")
            await wait_for_state(net, "four members", lambda state: state.n == 4, *STAYING)
            assert {get_role(net, name, net["node4"].key) for name in STAYING} == {Role.GUEST}
            net.start("node4")  # it believes to be a member still, and would contribute
            await net.wait_for(lambda: get_state(net, "node4").n == 4, "node4 to learn of it")
            assert not any(
                net.network.find(net.id(name)).bans.is_banned(net.id("node4"))  # type: ignore[union-attr]
                for name in STAYING
            )
            (height,) = find_change_heights(net, "node4")
            await net.wait_for_height(height + 5)
            for later in range(height + 1, height + 5):
                block = net["node0"].get_block(later)
                assert net.id("node4") not in {block.header.miner, *(each.author for each in block.contributions)}
            check_chains(net)

    run_virtual(story())


def test_late_votes_of_who_was_removed_are_left_out_and_it_may_ask_for_blocks_alone(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 5, start=STAYING) as net, lying(net, "node4") as liar:
            await net.wait_for_height(2, *STAYING)
            await remove(net, "node4")
            await wait_for_state(net, "four members", lambda state: state.n == 4, *STAYING)
            (height,) = find_change_heights(net, "node0")
            await net.wait_for_height(height, *STAYING)
            await wait_until_let_in(net, liar, "node0")
            liar.send(liar.make_vote(Phase.PREVOTE, ZERO), "node0")
            liar.send(liar.make_contribution(), "node0")
            await asyncio.sleep(0.5)
            peer = get_service(net, "node0").peers.get(liar.key.id)
            transport = net.network.find(net.id("node0"))
            assert peer is not None
            assert transport is not None
            assert sum(transport.counters()[liar.key.id].refusals.values()) >= 2
            assert not transport.bans.is_banned(liar.key.id)
            (block, _), *_ = await liar.transport.request_blocks(net.id("node0"), height, 1)
            assert decode_block(net.genesis.chain_id, block).change is not None
            aggregate = net["node0"].get_block(height).header.aggregate
            try:
                async for _ in liar.transport.fetch_blob(net.id("node0"), aggregate):
                    raise AssertionError("a guest reads a blob")
            except PeerUnavailable:
                pass

    run_virtual(story())


async def wait_until_let_in(net: Cluster, liar: Liar, name: str) -> None:
    await net.wait_for(lambda: net.id(name) in liar.transport.connected(), f"the liar to be let in by {name}")


def test_who_left_is_a_guest_for_a_while_also_after_a_restart_and_then_a_stranger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admissions, "FAREWELL_HEIGHTS", 12)

    async def story() -> None:
        async with cluster(tmp_path, 5) as net:
            await net.wait_for_height(2)
            await net.crash("node4")
            await remove(net, "node4")
            await wait_for_state(net, "four members", lambda state: state.n == 4, *STAYING)
            (height,) = find_change_heights(net, "node0")
            await net.crash("node0")
            net.start("node0")
            assert get_role(net, "node0", net["node4"].key) is Role.GUEST
            peer = get_service(net, "node0").peers.get(net.id("node4"))
            assert peer is not None
            assert (peer.name, peer.is_member) == ("node4", False)
            await net.wait_for_height(height + 13, *STAYING)
            assert {get_role(net, name, net["node4"].key) for name in STAYING} == {Role.NONE}
            await net.crash("node0")
            net.start("node0")
            assert get_role(net, "node0", net["node4"].key) is Role.NONE

    run_virtual(story())


def test_a_joiner_is_let_in_by_those_who_approved_and_joins_once_it_is_alive_there(tmp_path: Path) -> None:
    """The federation is idle, so nothing but the joiner's coming brings the change about."""

    async def story() -> None:
        async with cluster(tmp_path, 4, rounds=2) as net:
            await wait_until_over(net)
            add(net, "newcomer", NEW, tmp_path)
            change = await propose(net, "node0", AddMember(NEW.id, "newcomer"))
            assert get_role(net, "node0", NEW) is Role.GUEST
            await approve(net, change, "node1")
            await wait_until_open(net, change, "node2")
            assert [get_role(net, name, NEW) for name in STAYING] == [Role.GUEST, Role.GUEST, Role.NONE, Role.NONE]
            await approve(net, change, "node2", "node3")
            await stand_ready(net, change, NEW, *STAYING)
            await asyncio.sleep(30)
            assert get_state(net, "node0").n == 4  # complete, and nobody is there
            net.start("newcomer")
            await wait_for_state(net, "five members", lambda state: state.n == 5)
            assert {get_role(net, name, NEW) for name in STAYING} == {Role.MEMBER}
            check_chains(net)

    run_virtual(story())


def test_a_joiner_is_alive_to_those_alone_whose_operators_approved(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, rounds=2) as net:
            await wait_until_over(net)
            add(net, "newcomer", NEW, tmp_path)
            net.start("newcomer")
            change = await propose(net, "node0", AddMember(NEW.id, "newcomer"))
            await approve(net, change, "node1")
            peers = {name: get_service(net, name).peers for name in STAYING}
            await net.wait_for(lambda: peers["node0"].is_alive(NEW.id) and peers["node1"].is_alive(NEW.id), "it alive")
            await net.wait_for(lambda: net["newcomer"].height == 2, "it to have the chain")
            await asyncio.sleep(5)
            assert not peers["node2"].is_alive(NEW.id)
            assert not are_connected(net, "newcomer", "node3")
            assert change in get_open(net, "newcomer")  # it hears of what it is to be ready for

    run_virtual(story())


def test_a_joiner_is_let_in_after_a_restart_and_no_more_once_the_change_is_closed(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4) as net:
            await net.wait_for_height(2)
            await propose(net, "node0", AddMember(NEW.id, "newcomer"), expires=net["node0"].height + 6)
            await net.crash("node0")
            net.start("node0")
            assert get_role(net, "node0", NEW) is Role.GUEST
            await net.wait_for_height(net["node0"].height + 8)
            assert get_open(net, "node0") == []
            assert get_role(net, "node0", NEW) is Role.NONE

    run_virtual(story())


def test_a_rotation_lets_the_new_key_in_where_it_is_open_and_the_old_key_stays_a_guest(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4) as net:
            await net.wait_for_height(2)
            change = await propose(net, "node3", ReplaceKey(get_seat(net, "node3"), NEW.id))
            await wait_until_open(net, change, "node0")
            await net.wait_for(lambda: get_role(net, "node0", NEW) is Role.GUEST, "the new key to be let in")
            await stand_ready(net, change, NEW, *STAYING)

            def is_replaced(state: State) -> bool:
                return state.index_of(NEW.id) is not None

            await wait_for_state(net, "the new key to be in force", is_replaced, "node0", "node1", "node2")
            assert get_role(net, "node0", NEW) is Role.MEMBER
            assert get_role(net, "node0", net["node3"].key) is Role.GUEST

    run_virtual(story())


def test_observers_come_and_go_with_the_state(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, rounds=2) as net:
            await wait_until_over(net)
            add(net, "newcomer", NEW, tmp_path)
            net.start("newcomer")
            await asyncio.sleep(5)
            assert net["newcomer"].height == 0
            await approve(net, await propose(net, "node0", AddObserver(NEW.id, "archive")), "node1", "node2")
            await net.wait_for_height(3)
            assert {get_role(net, name, NEW) for name in STAYING} == {Role.OBSERVER}
            await approve(net, await propose(net, "node0", RemoveObserver(NEW.id)), "node1", "node2")
            await net.wait_for_height(4, *STAYING)
            await net.wait_for(lambda: not are_connected(net, "node0", "newcomer"), "the observer to be cut off")

    run_virtual(story())


def test_statuses_of_a_guest_that_is_alive_try_nothing_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, rounds=2) as net:
            await wait_until_over(net)
            add(net, "newcomer", NEW, tmp_path)
            change = await propose(net, "node0", AddMember(NEW.id, "newcomer"))
            await approve(net, change, "node1", "node2", "node3")
            async with lying(net, "newcomer") as guest:
                book = get_service(net, "node0").proposals
                tries: list[bytes] = []
                monkeypatch.setattr(book, "on_alive", tries.append)
                for _ in range(20):
                    guest.send(Status(net.genesis.chain_id, 0, net.genesis.block0.id), "node0")
                    await asyncio.sleep(0.2)
                assert tries == [NEW.id]

    run_virtual(story())
