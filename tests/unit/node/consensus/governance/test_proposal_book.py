"""The book of open changes: what peers push is bounded by who sends it, and kept for as long as it is open."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chain.approvals import encode_approval, encode_proposal, encode_readiness, sign_approval, sign_readiness
from chain.block import Answer, Approval
from chain.changes.base import Kind
from chain.changes.change import Change
from chain.changes.members import RemoveMember, ReplaceKey
from chain.changes.rules import SetRules
from chain.changes.runs import EndRun
from chain.errors import InvalidChange, NotAMember
from chain.proposals import Proposals
from chain.signing import SigningKey
from chain.store.sqlite import SqliteStore
from node.boundary import Boundary
from node.consensus.governance.consent import Consent
from node.consensus.governance.proposals import READS_BURST, ProposalBook, load_proposals
from node.consensus.height.actions import ChangeCompleted
from node.consensus.height.current import CurrentRound, Posted
from node.consensus.signing.signer import Signer
from node.errors import InvalidRequest
from node.events import Events
from node.p2p.peers import Peer, Peers
from node.p2p.refusals import Reason
from node.p2p.transport.base import Message, MessageKind, PeerFault
from support.data.chains import make_genesis, make_keys
from support.data.changes import LivingChain, propose
from support.federation.inline import InlineOffload

KEYS = make_keys(4)
STRANGER = make_keys(1, "stranger")[0]
EASY = {"difficulty": 1, "min": 1, "max": 1, "target_ms": 100}
RULES = SetRules({"keep_heights": (2, 3)})


class Node:
    """Member 0 with a store and a book, at height 3. Its gossip only counts."""

    def __init__(self, path: Path) -> None:
        self.chain = LivingChain(make_genesis(KEYS, pow=EASY), [*KEYS, STRANGER])
        self.chain.add_rounds(3)
        self.now_s = 0.0
        self.clock = cast(Any, SimpleNamespace(monotonic=lambda: self.now_s, now_ms=lambda: 0))
        self.store = SqliteStore.open(path, self.chain.genesis)
        self.current = CurrentRound(self.chain.tip)
        self.peers = Peers(self.chain.tip.state, KEYS[0].id, self.clock)
        self.boundary = Boundary()
        self.book = self.make_book(Proposals(self.chain.tip))

    def make_book(self, proposals: Proposals) -> ProposalBook:
        gossip = SimpleNamespace(
            on_step=lambda: None,
            on_held=lambda key: None,
            push_proposal=lambda change, approval: None,
            push_approval=lambda approval: None,
        )
        disk, events = InlineOffload(), Events(self.clock)
        self.disk = InlineOffload()
        signer = Signer(KEYS[0], self.chain.genesis, self.store, disk, disk)
        return ProposalBook(
            self.current,
            proposals,
            signer,
            self.store,
            self.disk,
            consent=Consent(signer, self.store, disk, events, asks=True, approves_genesis=False),
            admissions=cast(Any, SimpleNamespace(on_changes=lambda: None)),
            gossip=cast(Any, gossip),
            peers=self.peers,
            events=events,
            clock=self.clock,
            boundary=self.boundary,
        )

    def watch(self, disk: Watched) -> None:
        """Has the book's writes go by way of `disk`."""
        self.disk.run = disk.run  # type: ignore[assignment,method-assign]

    def get_peer(self, i: int) -> Peer:
        peer = self.peers.get(KEYS[i].id)
        assert peer is not None
        return peer

    def make(self, kind: Kind = RULES, *, by: int = 1, **header: int) -> Change:
        return propose(kind, by=by, **{"made": 3} | header)

    def sign(self, change: Change, key: SigningKey, answer: Answer = Answer.YES) -> Approval:
        return sign_approval(key, self.chain.genesis.chain_id, change.compute_id(self.chain.genesis.chain_id), answer)

    def hear(self, sender: int, change: Change) -> bool:
        """A proposal with its proposer's approval. Whether it is open then."""
        approval = self.sign(change, KEYS[change.by])
        self.push(sender, MessageKind.PROPOSAL, encode_proposal(change.data, approval))
        return approval.change_id in [proposal.id for proposal in self.book]

    def push(self, sender: int, kind: MessageKind, data: bytes) -> None:
        self.book.on_message(self.get_peer(sender), Message(kind, data))

    def work(self) -> list[Posted]:
        """Does what is queued; gives the events for the height in hand."""

        async def work() -> list[Posted]:
            posted = []
            while self.current.num_waiting:
                match await self.current.next():
                    case Posted() as event:
                        posted.append(event)
                    case step:
                        await cast(Any, step)()
            return posted

        return asyncio.run(work())

    def grow(self, kind: Kind | None = None, rounds: int = 0) -> None:
        """The tip moves; what was queued before is still to be done."""
        if kind is not None:
            self.chain.add_change(kind)
        self.chain.add_rounds(rounds)
        self.current.tip = self.chain.tip
        asyncio.run(self.book.on_tip())


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    one = Node(tmp_path)
    yield one
    one.store.close()
    assert not one.boundary.failures


def test_nobody_uses_up_what_is_read_of_another_with_old_changes_of_its(node: Node) -> None:
    """Member 3 sends a change that member 1 made long ago again and again: what member 1 proposes now is read."""
    old = node.make(by=1, made=0, expires=2)
    for _ in range(100):
        node.hear(3, old)
    assert node.get_peer(3).refusals == {Reason.RULE: READS_BURST, Reason.RATE: 100 - READS_BURST}
    assert not node.get_peer(1).refusals
    assert node.hear(1, node.make(by=1))
    assert node.hear(2, node.make(EndRun(1), by=1))


def test_a_flood_of_changes_costs_its_sender_and_no_more_reads_than_its_share(node: Node) -> None:
    for height in range(4, 104):
        node.hear(3, node.make(by=3, first=height))
    assert len(node.store.get_changes()) == 0  # in its turn
    node.work()
    assert len(node.store.get_changes()) == 8
    assert node.get_peer(3).refusals[Reason.RATE] == 100 - READS_BURST
    assert node.hear(2, node.make(by=2))
    node.now_s = 1000.0
    assert not node.hear(3, node.make(by=3, first=103, expires=104))  # read, and no room for it


def test_what_was_executed_is_not_read_again(node: Node) -> None:
    executed = propose(RULES, made=3)
    node.grow(RULES)
    assert list(node.chain.tip.state.executed) == [executed.compute_id(node.chain.genesis.chain_id)]
    for _ in range(20):
        assert not node.hear(2, executed)
    assert node.get_peer(2).refusals == {Reason.OTHER_HEIGHT: 20}


def test_what_comes_for_changes_that_nobody_knows_is_dropped_and_leaves_nothing(node: Node) -> None:
    change = node.make()
    node.push(2, MessageKind.APPROVAL, encode_approval(node.sign(change, KEYS[2])))  # before the change itself
    node.push(2, MessageKind.APPROVAL, encode_approval(node.sign(change, STRANGER)))
    ready = sign_readiness(STRANGER, node.chain.genesis.chain_id, bytes(32), height=3, block_id=node.chain.tip.id)
    node.push(2, MessageKind.READINESS, encode_readiness(ready))
    assert node.current.num_waiting == 0
    assert node.hear(1, change)
    node.push(2, MessageKind.APPROVAL, encode_approval(node.sign(change, STRANGER)))
    assert node.get_peer(2).num_rejected == 1
    node.work()
    (stored,) = node.store.get_changes()
    assert [approval.voter for approval in stored.approvals] == [KEYS[1].id]


@pytest.mark.parametrize("size", [0, 1, 130, 137, 138, 200])
@pytest.mark.parametrize("kind", [MessageKind.PROPOSAL, MessageKind.APPROVAL, MessageKind.READINESS])
def test_bytes_of_nothing_are_their_senders_fault(node: Node, kind: MessageKind, size: int) -> None:
    with pytest.raises(PeerFault):
        node.push(2, kind, b"\1" * size)


def test_a_change_that_is_closed_before_it_is_written_leaves_no_row(node: Node) -> None:
    change = node.make(by=1, expires=4)
    assert node.hear(1, change)
    node.push(2, MessageKind.APPROVAL, encode_approval(node.sign(change, KEYS[2])))
    node.grow(rounds=1)  # it has expired
    assert node.work() == []
    assert node.store.get_changes() == ()
    assert not node.hear(1, change)
    assert node.work() == []


def test_how_a_change_ended_is_known_also_after_a_restart(node: Node) -> None:
    expired, superseded = node.make(EndRun(1), expires=4), node.make(RULES, by=2)
    for change in (expired, superseded):
        assert node.hear(change.by, change)
    node.work()
    node.grow(rounds=1)
    node.chain.add_change(RULES)
    node.grow()
    chain_id = node.chain.genesis.chain_id
    ended = dict(node.book.ended)
    assert ended[expired.compute_id(chain_id)] == "end_run, expired: it could stand up to height 4"
    assert ended[superseded.compute_id(chain_id)].startswith("set_rules, superseded: ")
    assert node.make_book(load_proposals(node.current, node.store)).ended == ended


def test_what_is_chosen_is_for_the_height_that_it_was_chosen_for(node: Node) -> None:
    """The tip has moved, and the book is yet to hear of it: an event for the new height would be mined there."""
    change = node.make()
    node.hear(1, change)
    for i in (2, 3):
        node.push(i, MessageKind.APPROVAL, encode_approval(node.sign(change, KEYS[i])))
    node.chain.add_change(RULES)
    node.current.tip = node.chain.tip
    posted = node.work()
    assert posted
    assert {event.height for event in posted if isinstance(event.event, ChangeCompleted)} == {4}


def test_what_was_closed_while_the_node_was_down_is_forgotten(node: Node) -> None:
    kept, closed = node.make(RemoveMember(3), by=1), node.make(RULES, by=2)
    for change in (kept, closed):
        assert node.hear(change.by, change)
    node.work()
    node.chain.add_change(RULES)
    node.current.tip = node.chain.tip
    assert [proposal.change for proposal in load_proposals(node.current, node.store)] == [kept]
    assert [stored.change for stored in node.store.get_changes()] == [kept.data]
    assert list(node.store.get_ended_changes()) == [closed.compute_id(node.chain.genesis.chain_id)]


def test_an_approval_of_one_who_has_left_does_not_cost_those_of_others(node: Node) -> None:
    change = node.make(RULES, by=1)
    node.hear(1, change)
    for i in (3, 2):
        node.push(i, MessageKind.APPROVAL, encode_approval(node.sign(change, KEYS[i])))
    node.work()
    node.chain.add_change(RemoveMember(seat_of(node, 3)))
    node.current.tip = node.chain.tip
    (proposal,) = load_proposals(node.current, node.store)
    assert set(proposal.approvals) == {KEYS[1].id, KEYS[2].id}


@pytest.mark.parametrize("leaves", [True, False])
def test_a_change_goes_with_the_key_that_proposed_it_here_and_after_a_restart(node: Node, leaves: bool) -> None:
    seat = seat_of(node, 3)
    change = node.make(RULES, by=seat)
    approval = sign_approval(KEYS[3], node.chain.genesis.chain_id, change.compute_id(node.chain.genesis.chain_id))
    node.push(3, MessageKind.PROPOSAL, encode_proposal(change.data, approval))
    node.work()
    node.chain.add_change(RemoveMember(seat) if leaves else ReplaceKey(seat, STRANGER.id))
    node.current.tip = node.chain.tip
    assert len(load_proposals(node.current, node.store)) == 0
    asyncio.run(node.book.on_tip())
    assert list(node.book) == []
    assert node.store.get_changes() == ()


def seat_of(node: Node, i: int) -> int:
    member = node.chain.tip.state.get_member(KEYS[i].id)
    assert member is not None
    return member.seat


def test_who_may_send_is_kept_of_members_alone(node: Node) -> None:
    for sender in (1, 2, 3):
        node.hear(sender, node.make(by=1))
        node.hear(sender, node.make(EndRun(1), by=3))
    assert node.book.num_shares == 2  # of 1, who was first with both
    node.grow(RemoveMember(seat_of(node, 3)))
    assert node.book.num_shares == 1


class Watched:
    """A disk that notes what is held while it writes, and may have the tip move meanwhile."""

    def __init__(self, node: Node, meanwhile: Kind | None = None) -> None:
        self.node, self.meanwhile = node, meanwhile
        self.held: list[int] = []

    async def run(self, work: Any, *args: Any) -> Any:
        self.held.append(sum(len(proposal.approvals) for proposal in self.node.book))
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            self.node.chain.add_change(meanwhile)
            self.node.current.tip = self.node.chain.tip
            await self.node.book.on_tip()
        return await InlineOffload().run(work, *args)


def test_what_this_node_signs_is_told_once_it_is_durable(node: Node) -> None:
    """Status tells of all that is held, and repairs it."""
    disk = Watched(node)
    node.watch(disk)
    change = node.make(by=1)
    node.hear(1, change)
    asyncio.run(node.book.approve(change.compute_id(node.chain.genesis.chain_id)))
    asyncio.run(node.book.propose(node.make(EndRun(1), by=0)))
    assert disk.held == [1, 2]
    assert sum(len(proposal.approvals) for proposal in node.book) == 3


def test_what_a_block_closes_while_it_is_written_leaves_no_row_but_the_own_answers(node: Node) -> None:
    change = node.make(by=1)
    node.hear(1, change)
    node.work()
    node.watch(Watched(node, RULES))
    asyncio.run(node.book.approve(change.compute_id(node.chain.genesis.chain_id)))
    node.watch(Watched(node, EndRun(1)))
    with pytest.raises(InvalidChange):
        asyncio.run(node.book.propose(propose(EndRun(1), by=0, made=4)))
    (rows,) = node.store.rows.connection.execute("SELECT count(*) FROM consent").fetchone()
    assert rows == len(node.store.get_own_answers()) == 2


def test_who_is_no_member_any_more_approves_nothing(node: Node) -> None:
    change = node.make(by=1)
    node.hear(1, change)
    node.grow(RemoveMember(seat_of(node, 0)))
    with pytest.raises(NotAMember):
        asyncio.run(node.book.approve(change.compute_id(node.chain.genesis.chain_id)))


@pytest.mark.parametrize(
    ("first", "then", "said"),
    [
        (Answer.YES, Answer.YES_WITHOUT_TRAINING, "approved it with training in it"),
        (Answer.YES_WITHOUT_TRAINING, Answer.YES, "approved it without training in it"),
    ],
)
def test_an_answer_that_was_told_stands_and_another_is_refused(
    node: Node, first: Answer, then: Answer, said: str
) -> None:
    """Else an operator believed that the site stays out of a run in which it trains."""
    change = node.make(by=1)
    node.hear(1, change)
    change_id = change.compute_id(node.chain.genesis.chain_id)
    asyncio.run(node.book.approve(change_id, first))
    with pytest.raises(InvalidRequest, match=said):
        asyncio.run(node.book.approve(change_id, then))
    proposal = asyncio.run(node.book.approve(change_id, first))
    assert proposal.approvals[KEYS[0].id].answer is first
