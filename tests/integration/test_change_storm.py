"""A member that opens all the changes it can, and throws garbage beside: it uses up its own share alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from chain.approvals import encode_approval, encode_proposal, sign_approval
from chain.changes.change import Change
from chain.changes.rules import SetRules
from chain.errors import InvalidChange
from chain.proposals import MAX_OPEN, MAX_OPEN_BYTES
from integration.test_change_attacks import HONEST, count_rows, make_proposal, wait_s
from node.p2p.transport.base import Message, MessageKind
from support.data.chains import make_digest
from support.faults.liar import Liar, lying
from support.federation.cluster import Cluster, cluster
from support.federation.proposing import approve, get_service, propose, wait_for_state
from support.federation.virtual_time import run_virtual


def make_rule(number: int) -> SetRules:
    return SetRules({"evidence_heights": (100, 101 + number)})


def storm(liar: Liar, turn: int) -> None:
    """Changes of its own, such of others that it has no word of, and consent to what there is not."""
    chain_id, genesis = liar.net.genesis.chain_id, liar.net.genesis.state
    change, message = make_proposal(liar, make_rule(turn % 40), span=2 + turn)
    liar.send(message)
    other = Change(change.kind, (change.by + 1) % genesis.n, change.made, change.first, change.expires)
    forged = sign_approval(liar.key, chain_id, other.compute_id(chain_id))
    liar.send(Message(MessageKind.PROPOSAL, encode_proposal(other.data, forged)))
    nothing = sign_approval(liar.key, chain_id, make_digest(f"nothing {turn}"))
    liar.send(Message(MessageKind.APPROVAL, encode_approval(nothing)))


def count_open(net: Cluster, name: str) -> Counter[int]:
    """By seat."""
    return Counter(proposal.change.by for proposal in get_service(net, name).proposals)


def test_each_member_has_its_share_of_open_changes_whatever_another_opens(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, start=HONEST, rounds=1) as net, lying(net, "node3") as liar:
            await net.wait_for_height(1, *HONEST)
            for turn in range(90):
                storm(liar, turn)
                await wait_s(net, 1.0)
            for place, name in enumerate(HONEST):
                for number in range(MAX_OPEN):
                    await propose(net, name, make_rule(place * MAX_OPEN + number))
                with pytest.raises(InvalidChange, match="at most 8"):
                    await propose(net, name, make_rule(99))
            for turn in range(90, 120):
                storm(liar, turn)
            await net.wait_for(
                lambda: all(count_open(net, name).total() == 4 * MAX_OPEN for name in HONEST), "all shares to be full"
            )
            for name in HONEST:
                assert set(count_open(net, name).values()) == {MAX_OPEN}
                assert count_rows(net, name) == 4 * MAX_OPEN
                total = sum(proposal.num_bytes for proposal in get_service(net, name).proposals)
                assert total <= 4 * MAX_OPEN_BYTES
            mine = [each for each in get_service(net, "node1").proposals if net.id("node1") in each.approvals]
            await approve(net, mine[0].id, "node0", "node2")
            await wait_for_state(net, "its rule", lambda state: mine[0].id in state.executed, *HONEST)
            assert not liar.is_refused_by("node0")
            await net.wait_for(lambda: all(count_rows(net, name) == 0 for name in HONEST), "no row to be left")
            net.check_agreement()

    run_virtual(story())
