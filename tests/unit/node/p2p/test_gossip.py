"""Gossip: a peer gets what it lacks, not from everybody who has it, and in the end from everybody."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chain.approvals import (
    decode_approval,
    decode_proposal,
    decode_readiness,
    encode_proposal,
    sign_approval,
    sign_readiness,
)
from chain.block import Contribution, Id, Phase, Vote
from chain.changes.base import Kind
from chain.changes.members import AddMember
from chain.changes.rules import SetRules
from chain.genesis import Genesis
from chain.proposals import MAX_OPEN, Proposal, Proposals
from chain.signing import SigningKey
from chain.tip import Tip
from node.consensus.gossip.gossip import MAX_GIVEN_PAUSE, Gossip, Position
from node.consensus.gossip.spreading import Spreading
from node.p2p.peers import Peers, compute_cycle
from node.p2p.status import MAX_OPEN_TOLD, OpenChange, Status, VoteBitmap, status_from_bytes, status_to_bytes
from node.p2p.transport.base import Message, MessageKind
from support.data.chains import make_contribution, make_genesis, make_keys
from support.data.changes import propose
from support.federation.virtual_time import run_virtual


class Posts:
    """A transport that keeps what is posted."""

    def __init__(self, me: Id) -> None:
        self.me = me
        self.posted: list[tuple[Id, Message]] = []

    def post(self, peer: Id, message: Message) -> None:
        self.posted.append((peer, message))


class Giver:
    """A member at height 1 that holds one contribution."""

    def __init__(self, genesis: Any, me: SigningKey, contribution: Contribution) -> None:
        machine = SimpleNamespace(
            height=1,
            contributions={contribution.author: contribution},
            candidates={},
            voting=SimpleNamespace(get_missing=lambda held: (), get_proof=lambda: self.proof),
        )
        self.proof: tuple[Vote, ...] = ()
        self.posts, self.now_s = Posts(me.id), 0.0
        clock = SimpleNamespace(monotonic=lambda: self.now_s)
        position = Position(Tip.at(genesis.state, [genesis.block0]), cast(Any, machine), contributes=True)
        self.peers = Peers(genesis.state, me.id, cast(Any, clock))
        self.gossip = Gossip(cast(Any, self.posts), self.peers, cast(Any, clock), lambda: position)
        self.gossip.on_held(contribution)
        self.now_s = 10.0

    def hear(self, peer: Id, status: Status) -> int:
        """How many objects it gives for this status."""
        before = len(self.posts.posted)
        self.gossip.on_status(peer, status)
        return len(self.posts.posted) - before


@pytest.mark.parametrize(
    ("n", "expected"),
    [(4, [3, 3]), (9, [4, 8, 8]), (16, [9, 15, 15]), (50, [17, 34, 49])],
)
def test_each_time_it_is_still_missing_twice_as_many_give_it(n: int, expected: list[int]) -> None:
    keys = sorted(make_keys(n), key=lambda key: key.id)
    genesis = make_genesis(keys)
    contribution = make_contribution(genesis, keys[5 % n], height=1)
    lacking = keys[5 % n - 1]  # the last in turn, were it to give
    status = Status(genesis.chain_id, 0, genesis.block0.id, height=1, view=0, contributes=True, contributions=0)
    givers = [Giver(genesis, key, contribution) for key in keys if key is not lacking]
    author = next(giver for giver in givers if giver.posts.me == contribution.author)
    for count in expected:
        assert sum(giver.hear(lacking.id, status) for giver in givers) == count
    assert len(author.posts.posted) == len(expected)


@pytest.mark.parametrize("turn", range(8))
def test_of_the_some_of_many_that_a_status_goes_to_two_or_three_give(turn: int) -> None:
    keys = sorted(make_keys(50), key=lambda key: key.id)
    genesis = make_genesis(keys)
    contribution = make_contribution(genesis, keys[20], height=1)
    status = Status(genesis.chain_id, 0, genesis.block0.id, height=1, view=0, contributes=True, contributions=0)
    told = [keys[i] for i in range(49) if (i - turn) % compute_cycle(50) == 0]
    assert 6 <= len(told) <= 7
    assert 2 <= sum(Giver(genesis, key, contribution).hear(keys[49].id, status) for key in told) <= 3


def test_a_guest_is_given_nothing_of_rounds() -> None:
    keys = sorted(make_keys(4), key=lambda key: key.id)
    genesis = make_genesis(keys)
    (guest,) = make_keys(1, "guest")
    giver = Giver(genesis, keys[0], make_contribution(genesis, keys[0], height=1))
    giver.peers.on_guests({guest.id: "guest"})
    status = Status(genesis.chain_id, 0, genesis.block0.id, height=1, view=0, contributes=True, contributions=0)
    assert [giver.hear(guest.id, status), giver.hear(keys[1].id, status)] == [0, 1]


def test_what_has_only_just_come_is_under_way_and_counts_as_no_turn() -> None:
    keys = sorted(make_keys(9), key=lambda key: key.id)
    genesis = make_genesis(keys)
    contribution = make_contribution(genesis, keys[0], height=1)
    status = Status(genesis.chain_id, 0, genesis.block0.id, height=1, view=0, contributes=True, contributions=0)
    author, far = (Giver(genesis, key, contribution) for key in (keys[0], keys[7]))
    for giver in (author, far):
        giver.now_s = 0.0
        assert [giver.hear(keys[8].id, status) for _ in range(3)] == [0, 0, 0]
        giver.now_s = 10.0
    assert [author.hear(keys[8].id, status), far.hear(keys[8].id, status)] == [1, 0]


def test_the_prevotes_behind_a_block_are_given_once_a_view_whatever_the_bitmap_says() -> None:
    keys = sorted(make_keys(4), key=lambda key: key.id)
    genesis = make_genesis(keys)
    contribution = make_contribution(genesis, keys[0], height=1)
    giver = Giver(genesis, keys[0], contribution)
    giver.proof = tuple(Vote(Phase.PREVOTE, 1, 2, b"b" * 32, key.id, bytes(64)) for key in keys[:3])

    def hear(view: int) -> int:
        held = (VoteBitmap(2, Phase.PREVOTE, 0b1111),)  # it has one of each, but of which block?
        status = Status(genesis.chain_id, 0, genesis.block0.id, height=1, view=view, contributions=1, votes=held)
        return giver.hear(keys[3].id, status)

    assert [hear(view) for view in (0, 2, 3, 3, 4, 4, 3)] == [0, 0, 3, 0, 3, 0, 0]


@pytest.mark.parametrize(("mesh_max", "told"), [(4, {1, 2, 3}), (3, {2})])
def test_a_vote_goes_to_all_in_a_mesh_and_to_neighbours_where_members_are_more(mesh_max: int, told: set[int]) -> None:
    keys = sorted(make_keys(4), key=lambda key: key.id)
    genesis = make_genesis(keys)
    posts = Posts(keys[0].id)
    transport = cast(Any, SimpleNamespace(me=posts.me, post=posts.post, connected=lambda: {k.id for k in keys[1:]}))
    clock = cast(Any, SimpleNamespace(monotonic=lambda: 0.0))
    position = Position(Tip.at(genesis.state, [genesis.block0]), None, contributes=False)

    async def story() -> None:
        peers, spreading = Peers(genesis.state, posts.me, clock, mesh_max), Spreading(transport, lambda: [keys[2].id])
        Gossip(transport, peers, clock, lambda: position, spreading).push_vote(
            Vote(Phase.PREVOTE, 1, 0, b"b" * 32, posts.me, bytes(64))
        )
        await asyncio.sleep(1)

    run_virtual(story())
    assert [peer for peer, _ in posts.posted] == [keys[i].id for i in sorted(told)]


# Open changes

KEYS = sorted(make_keys(4), key=lambda key: key.id)
GENESIS = make_genesis(KEYS)
TIP = Tip.at(GENESIS.state, [GENESIS.block0])
NEW = make_keys(1, "newcomer")[0]
RULES = SetRules({"keep_heights": (2, 3)})
STATUS_S = GENESIS.rules.waits.status_s


class Holder:
    """A member at height 1 that holds open changes, and nothing else."""

    def __init__(self, me: SigningKey, genesis: Genesis = GENESIS) -> None:
        self.genesis, self.tip = genesis, Tip.at(genesis.state, [genesis.block0])
        machine = SimpleNamespace(
            height=1,
            view=0,
            abstains=False,
            contributions={},
            candidates={},
            voting=SimpleNamespace(get_missing=lambda held: (), get_proof=lambda: (), get_bitmaps=lambda: ()),
        )
        self.proposals = Proposals(self.tip)
        self.posts, self.now_s = Posts(me.id), 10.0
        clock = SimpleNamespace(monotonic=lambda: self.now_s, now_ms=lambda: 0)
        self.gossip = Gossip(
            cast(Any, self.posts),
            Peers(self.tip.state, self.posts.me, cast(Any, clock)),
            cast(Any, clock),
            lambda: Position(self.tip, cast(Any, machine), True, self.proposals),
        )

    def propose(self, kind: Kind = RULES, *, proposer: SigningKey = KEYS[0], expires: int = 100) -> Proposal:
        index = self.tip.state.index_of(proposer.id)
        assert index is not None
        change = propose(kind, by=self.tip.state.members[index].seat, expires=expires)
        approval = sign_approval(proposer, self.genesis.chain_id, change.compute_id(self.genesis.chain_id))
        proposal = self.proposals.add(change.data, approval)
        assert proposal is not None
        return proposal

    def approve(self, proposal: Proposal, *keys: SigningKey) -> None:
        for key in keys:
            assert self.proposals.add_approval(sign_approval(key, self.genesis.chain_id, proposal.id))

    def hear(self, peer: SigningKey, *told: OpenChange, height: int = 1) -> list[Message]:
        """What it gives for a status that tells of these open changes."""
        before = len(self.posts.posted)
        status = Status(self.genesis.chain_id, 0, self.tip.id, height=height, open=told)
        self.gossip.on_status(peer.id, status)
        assert {peer.id} >= {receiver for receiver, _ in self.posts.posted[before:]}
        return [message for _, message in self.posts.posted[before:]]


def test_a_change_that_a_peer_lacks_is_given_with_its_proposers_approval() -> None:
    holder = Holder(KEYS[0])
    proposal = holder.propose()
    holder.approve(proposal, KEYS[1])
    (given,) = holder.hear(KEYS[3])
    assert given.kind is MessageKind.PROPOSAL
    data, approval = decode_proposal(given.data)
    assert (data, approval.voter) == (proposal.data, KEYS[0].id)
    assert given.data == encode_proposal(proposal.data, proposal.approvals[KEYS[0].id])


def test_of_a_change_that_a_peer_holds_it_is_given_the_approvals_that_it_lacks() -> None:
    holder = Holder(KEYS[0])
    proposal = holder.propose()
    holder.approve(proposal, KEYS[1], KEYS[2])
    given = holder.hear(KEYS[3], OpenChange(proposal.id, 0b0011))
    assert [(message.kind, decode_approval(message.data).voter) for message in given] == [
        (MessageKind.APPROVAL, KEYS[2].id)
    ]
    assert holder.hear(KEYS[3], OpenChange(proposal.id, 0b0111)) == []


def test_a_later_readiness_is_given_and_an_earlier_one_is_not() -> None:
    holder = Holder(KEYS[0])
    proposal = holder.propose(AddMember(NEW.id, "newcomer"))
    assert holder.hear(KEYS[3], OpenChange(proposal.id, 0b0001)) == []
    word = sign_readiness(NEW, GENESIS.chain_id, proposal.id, height=0, block_id=TIP.id)
    assert holder.proposals.add_readiness(word)
    (given,) = holder.hear(KEYS[3], OpenChange(proposal.id, 0b0001))
    assert (given.kind, decode_readiness(given.data)) == (MessageKind.READINESS, word)
    assert holder.hear(KEYS[2], OpenChange(proposal.id, 0b0001, 0)) == []
    assert holder.hear(KEYS[2], OpenChange(proposal.id, 0b0001, 9)) == []
    assert holder.hear(KEYS[3], OpenChange(proposal.id, 0b0001)) == []  # it has only just been given


@pytest.mark.parametrize("height", [0, 2])
def test_a_peer_at_another_height_is_given_no_change(height: int) -> None:
    holder = Holder(KEYS[0])
    holder.propose()
    assert holder.hear(KEYS[3], height=height) == []


def test_an_observer_gives_no_change() -> None:
    holder = Holder(NEW)
    holder.propose()
    assert holder.hear(KEYS[3]) == []


def test_changes_that_the_peer_alone_knows_are_nothing_to_give() -> None:
    assert Holder(KEYS[0]).hear(KEYS[3], *(OpenChange(bytes([i]) * 32, 0b1111, 5) for i in range(64))) == []


def test_a_change_is_given_by_a_few_first_and_then_by_everybody() -> None:
    keys = sorted(make_keys(9), key=lambda key: key.id)
    holders = [Holder(key, make_genesis(keys)) for key in keys[:-1]]
    for holder in holders:
        holder.propose(proposer=keys[0])
    counts = []
    for _ in range(3):
        for holder in holders:
            holder.now_s += 100 * STATUS_S
        counts.append(sum(len(holder.hear(keys[8])) for holder in holders))
    assert counts == [4, 8, 8]


def test_who_goes_on_to_lack_a_change_is_given_it_less_and_less_often() -> None:
    """It may have no room, or say whatever it likes: a change is large, and open for long."""
    holder = Holder(KEYS[0])
    for expires in range(10, 10 + MAX_OPEN):
        holder.propose(expires=expires)
    statuses = 1000
    counts = []
    for _ in range(statuses):
        counts.append(len(holder.hear(KEYS[3])))
        holder.now_s += STATUS_S / 4
    assert set(counts) == {0, MAX_OPEN}
    given = counts.count(MAX_OPEN)
    assert 5 <= given <= 7 + statuses / 4 / MAX_GIVEN_PAUSE
    assert len(holder.hear(KEYS[2])) == MAX_OPEN  # others are given them none the less
    holder.gossip.on_height()
    assert holder.hear(KEYS[3]) == []  # nor does another height begin it anew


def test_what_was_given_is_forgotten_with_the_change() -> None:
    holder = Holder(KEYS[0])
    proposal = holder.propose()
    holder.hear(KEYS[3])
    holder.gossip.on_height()
    assert holder.hear(KEYS[3]) == []  # while it is open
    closed, holder.proposals = holder.proposals, Proposals(holder.tip)
    holder.gossip.on_height()
    holder.proposals = closed
    (given,) = holder.hear(KEYS[3])
    assert decode_proposal(given.data)[0] == proposal.data


def test_a_change_that_has_only_just_come_is_under_way_to_others() -> None:
    holder = Holder(KEYS[1])
    proposal = holder.propose()
    holder.gossip.on_held(proposal.id)
    assert holder.hear(KEYS[3]) == []
    holder.now_s += 10.0
    assert len(holder.hear(KEYS[3])) == 1


def test_a_status_tells_of_open_changes_as_they_are_held() -> None:
    holder = Holder(KEYS[0])
    plain, joining = holder.propose(), holder.propose(AddMember(NEW.id, "newcomer"))
    holder.approve(plain, KEYS[3])
    holder.proposals.add_readiness(sign_readiness(NEW, GENESIS.chain_id, joining.id, height=0, block_id=TIP.id))
    told = {OpenChange(plain.id, 0b1001), OpenChange(joining.id, 0b0001, 0)}
    status = holder.gossip.get_status()
    assert set(status.open) == told
    assert set(status_from_bytes(status_to_bytes(status), 4).open) == told


def test_a_status_tells_of_no_more_changes_than_it_may() -> None:
    keys = sorted(make_keys(9), key=lambda key: key.id)
    holder = Holder(keys[0], make_genesis(keys))
    for key in keys:
        for expires in range(10, 10 + MAX_OPEN):
            holder.propose(proposer=key, expires=expires)
    status = holder.gossip.get_status()
    assert len(status.open) == MAX_OPEN_TOLD < len(holder.proposals)
    data = status_to_bytes(status)
    assert status_from_bytes(data, 9) == replace(status, open=tuple(sorted(status.open, key=lambda told: told.id)))
