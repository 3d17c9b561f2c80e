"""Changes of yesterday and guests of today: what has expired comes back by nobody, and who waits at the door gets no
further by pushing."""

from __future__ import annotations

from pathlib import Path

import pytest

from chain.approvals import encode_approval, encode_proposal, encode_readiness, sign_approval, sign_readiness
from chain.block import ApprovedChange, Body, Phase
from chain.changes.change import Change
from chain.changes.members import AddMember
from chain.changes.rules import SetRules
from integration.test_change_attacks import HONEST, count_rows, make_proposal, wait_s
from node.errors import NotFound
from node.p2p.transport.base import Message, MessageKind, PeerUnavailable
from support.data.chains import make_keys
from support.data.changes import approve as sign_answers
from support.data.changes import extend_with
from support.faults.liar import Liar, lying
from support.federation.cluster import Cluster, Node, ScriptedTrainer, cluster
from support.federation.proposing import (
    RULES,
    approve,
    check_chains,
    find_change_heights,
    get_open,
    get_service,
    get_state,
    propose,
    wait_for_state,
)
from support.federation.virtual_time import run_virtual

(NEW,) = make_keys(1, "newcomer")
ALL = (*HONEST, "node3")


@pytest.mark.parametrize("idle", [False, True])
def test_an_expired_change_is_approved_kept_and_executed_by_nobody(tmp_path: Path, idle: bool) -> None:
    """Its proposer sends it again and again, with approvals of a quorum that all came too late."""

    async def story() -> None:
        async with (
            cluster(tmp_path, 4, start=HONEST, rounds=2 if idle else 0, train_s=0.5) as net,
            lying(net, "node3") as liar,
        ):
            await net.wait_for_height(1, *HONEST)
            change, message = make_proposal(liar, RULES, span=3)
            change_id = change.compute_id(net.genesis.chain_id)
            liar.send(message)
            await approve(net, change_id, "node1")
            if idle:  # an idle chain grows by changes alone
                await net.wait_for_height(2, *HONEST)
                for value in (7, 8, 9):
                    other = await propose(net, "node0", SetRules({"waits.collect_s": (get_collect_s(net), value)}))
                    await approve(net, other, "node1", "node2")
                    await wait_for_state(net, "a rule", lambda state: state.rules.waits.collect_s == value, *HONEST)  # noqa: B023
            await net.wait_for_height(change.expires, *HONEST)
            await net.wait_for(lambda: not any(change_id in get_open(net, name) for name in HONEST), "it to expire")
            for name in HONEST:
                with pytest.raises(NotFound, match="no such change is open here"):
                    await get_service(net, name).proposals.approve(change_id)
            changes = find_change_heights(net, "node0")
            for _ in range(5):
                replay(net, liar, change, message)
                await wait_s(net, 1.0)
            for name in HONEST:
                assert change_id not in get_open(net, name)
                assert count_rows(net, name) == 0
                assert get_state(net, name).rules.keep_heights == net.genesis.rules.keep_heights
            assert find_change_heights(net, "node0") == changes
            rule = await propose(net, "node0", SetRules({"evidence_heights": (100, 101)}))
            await approve(net, rule, "node1", "node2")
            wanted = 101
            await wait_for_state(net, "another rule", lambda state: state.rules.evidence_heights == wanted, *HONEST)
            check_chains(net)

    run_virtual(story())


def get_collect_s(net: Cluster) -> float:
    return get_state(net, "node0").rules.waits.collect_s


def replay(net: Cluster, liar: Liar, change: Change, message: Message) -> None:
    """All that there is of a change: by itself, with approvals, and in a block."""
    chain_id, tip = net.genesis.chain_id, liar.tip
    keys = [net[name].key for name in ALL]
    liar.send(message)
    for key in keys:
        approval = sign_approval(key, chain_id, change.compute_id(chain_id))
        liar.send(Message(MessageKind.APPROVAL, encode_approval(approval)))
    body = Body(change=ApprovedChange(change.data, tuple(sign_answers(tip.state, change, keys))))
    time_ms = max(net["node0"].clock.now_ms(), tip.header.time_ms + 1)
    liar.send(extend_with(tip, body, liar.key, state_next=bytes(32), time_ms=time_ms, start_ms=time_ms))


def test_a_guest_that_pushes_all_it_can_stops_nothing_and_gets_no_blob(tmp_path: Path) -> None:
    """It was approved by all, and is not ready: votes, candidates and changes of its own are left out."""

    async def story() -> None:
        async with cluster(tmp_path, 4, train_s=1.0) as net:
            await net.wait_for_height(1)
            net.nodes["newcomer"] = Node("newcomer", NEW, tmp_path / "newcomer", ScriptedTrainer(9))
            change_id = await propose(net, "node0", AddMember(NEW.id, "newcomer"))
            await approve(net, change_id, "node1", "node2", "node3")
            async with lying(net, "newcomer") as guest:
                for round_ in range(40):
                    flood(net, guest, change_id, round_)
                    await wait_s(net, 0.1)
                blob = net["node0"].get_block(1).header.aggregate
                with pytest.raises(PeerUnavailable):
                    _ = [chunk async for chunk in guest.transport.fetch_blob(net.id("node0"), blob)]
                rule = await propose(net, "node1", RULES)
                await approve(net, rule, "node2", "node3")
                await wait_for_state(net, "the rule", lambda state: state.rules.keep_heights == 3, *ALL)
            height = net["node0"].height
            await net.wait_for_height(height + 3, *ALL)
            for name in ALL:
                assert get_open(net, name) == [change_id]
                assert get_state(net, name).n == 4
            for at in range(1, height + 1):
                block = net["node0"].get_block(at)
                assert NEW.id not in {block.header.miner, *(one.author for one in block.contributions)}
            net.check_agreement()

    run_virtual(story())


def flood(net: Cluster, guest: Liar, change_id: bytes, round_: int) -> None:
    chain_id, tip = net.genesis.chain_id, guest.tip
    guest.send(guest.make_contribution())
    for phase in Phase:
        guest.send(guest.make_vote(phase, tip.id, view=round_))
    own = Change(SetRules({"keep_heights": (2, 10 + round_)}), 0, tip.height, tip.height + 1, tip.height + 100)
    approval = sign_approval(guest.key, chain_id, own.compute_id(chain_id))
    guest.send(Message(MessageKind.PROPOSAL, encode_proposal(own.data, approval)))
    guest.send(Message(MessageKind.APPROVAL, encode_approval(sign_approval(guest.key, chain_id, change_id))))
    ahead = sign_readiness(guest.key, chain_id, change_id, height=tip.height + 50, block_id=bytes(32))
    guest.send(Message(MessageKind.READINESS, encode_readiness(ahead)))
