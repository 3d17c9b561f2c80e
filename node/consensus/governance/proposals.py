"""The node's book of open changes: stores what members propose and approve, and chooses a change for the next block.

A change is sent with its proposer's approval; other approvals and the readiness are sent by themselves, and statuses
repair what is lost. This node approves a change only by `approve` and `propose`, which an operator calls (FEDERATION
§4, I14).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial

from chain.approvals import (
    compute_change_id,
    decode_approval,
    decode_proposal,
    decode_readiness,
    verify_approval,
)
from chain.block import Answer, Approval, ApprovedChange, Digest, Id, Readiness
from chain.changes.change import Change, read_change
from chain.changes.consent import Missing
from chain.changes.members import AddMember, RemoveMember, ReplaceKey
from chain.changes.rules import Upgrade
from chain.errors import ChainError, DecodeError, InvalidSignature, NotAMember
from chain.proposals import Closed, Proposal, Proposals
from chain.protocol import describe_spoken, speaks
from chain.state import State
from chain.store.consent_rows import MAX_ENDED
from chain.store.sqlite import SqliteStore
from node.boundary import Boundary
from node.clock import Clock
from node.consensus.gossip.gossip import Gossip
from node.consensus.governance.admissions import Admissions
from node.consensus.governance.consent import Consent, ExecutedChange
from node.consensus.governance.upgrade import describe_upgrade
from node.consensus.height import actions
from node.consensus.height.current import CurrentRound
from node.consensus.signing.signer import Signer
from node.errors import InvalidRequest, NotFound
from node.events import Events
from node.offload import Offload
from node.p2p.peers import Peer, Peers
from node.p2p.refusals import Reason, get_reason
from node.p2p.transport.base import Message, MessageKind, PeerFault
from node.p2p.transport.outbox import TokenBucket
from node.version import get_version

log = logging.getLogger(__name__)

# Reading a change takes time, so each member may send only so many of any one proposer: an honest one sends on what
# is open, and proposes a few a day. So no sender uses up another's share, not even with old changes of that proposer.
READS_BURST = 16.0
READS_PER_S = 0.1


class ProposalBook:
    """Keeps the open changes of one node. `disk` is the store's thread; `admissions` depend on what is open and
    approved here."""

    def __init__(
        self,
        current: CurrentRound,
        proposals: Proposals,
        signer: Signer,
        store: SqliteStore,
        disk: Offload,
        *,
        consent: Consent,
        admissions: Admissions,
        gossip: Gossip,
        peers: Peers,
        events: Events,
        clock: Clock,
        boundary: Boundary,
        is_ready: Callable[[Change], bool] = lambda change: True,
    ) -> None:
        self._current = current
        self._proposals = proposals
        self._is_ready = is_ready
        self._signer = signer
        self._store = store
        self._disk = disk
        self._consent = consent
        self._admissions = admissions
        self._gossip = gossip
        self._peers = peers
        self._events = events
        self._clock = clock
        self._boundary = boundary
        self._reads: dict[tuple[Id, Id], TokenBucket] = {}  # by sender and proposer, both members
        self._ended = store.get_ended_changes()

    def __repr__(self) -> str:
        return f"<ProposalBook: {self._proposals!r}>"

    def __iter__(self) -> Iterator[Proposal]:
        return iter(self._proposals)

    @property
    def num_shares(self) -> int:
        """Returns the number of pairs of a sender and a proposer whose share of reads is counted."""
        return len(self._reads)

    def get(self, change_id: Digest) -> Proposal | None:
        return self._proposals.get(change_id)

    @property
    def ended(self) -> Mapping[Digest, str]:
        """Says how changes ended that were open here, by id, as far as that is kept. A change that came again may be
        open."""
        return self._ended

    def list_known(self, digits: str) -> dict[Digest, str]:
        """Returns all changes whose id begins with these digits, each with a description of what became of it."""
        known = dict(self._ended)
        known |= {
            each.id: f"{each.kind.name}, executed: in block {each.height}" for each in self._consent.executed.values()
        }
        known |= {each.id: f"{each.change.kind.name}, open" for each in self}
        return {change_id: words for change_id, words in known.items() if change_id.hex().startswith(digits)}

    def find(self, digits: str) -> Proposal | ExecutedChange:
        """Returns the only change whose id begins with these digits and that can be approved: open, or in a block.
        Raises NotFound."""
        known = self.list_known(digits)
        for change_id in known:
            if (found := self._proposals.get(change_id) or self._consent.find(change_id)) is not None:
                return found
        names = ", ".join(proposal.id.hex()[:8] for proposal in self) or "none"
        words = "".join(f" ({each})" for each in known.values())
        raise NotFound(f"change {digits[:8]}: no such change is open here{words}. Open: {names}")

    def check(self, change: Change) -> State:
        """Returns the state that a change would lead to. Raises InvalidChange if it is not valid, or there is no room
        for it."""
        return self._proposals.check(change)

    def compute_missing(self, proposal: Proposal) -> Missing:
        """Returns what an open change still needs to be in the next block, apart from its height."""
        return self._proposals.compute_missing(proposal)

    @property
    def _chain_id(self) -> Digest:
        return self._current.tip.state.chain_id

    # ---- what peers push

    def on_message(self, sender: Peer, message: Message) -> None:
        """Accepts what is authentic and new. Raises PeerFault for a fault that the sender should have found."""
        try:
            match message.kind:
                case MessageKind.PROPOSAL:
                    self._on_proposal(sender, *decode_proposal(message.data))
                case MessageKind.APPROVAL:
                    self._on_approval(decode_approval(message.data))
                case _:
                    self._on_readiness(decode_readiness(message.data))
        except (DecodeError, InvalidSignature) as error:
            raise PeerFault(f"{message.kind.name.lower()}: {error}", get_reason(error)) from error
        except ChainError as error:  # it may be valid on another head
            sender.refusals[get_reason(error)] += 1
            log.debug("%s from %s refused: %s", message.kind.name.lower(), sender.name, error)

    def _on_proposal(self, sender: Peer, data: bytes, approval: Approval) -> None:
        """Accepts a change. Its signatures are checked only if it was not executed and is within the sender's share."""
        change_id = compute_change_id(self._chain_id, data)
        if self._proposals.get(change_id) is not None:
            return
        if change_id in self._current.tip.state.executed:
            sender.refusals[Reason.OTHER_HEIGHT] += 1
            return
        if approval.change_id != change_id:
            raise DecodeError.differs("change id of a proposal's approval", change_id, approval.change_id)
        if self._current.tip.state.index_of(approval.voter) is None:
            sender.refusals[Reason.STRANGER] += 1
            return
        if not self._may_read(sender.id, approval.voter):
            sender.refusals[Reason.RATE] += 1
            return
        verify_approval(self._chain_id, approval)
        proposal = self._proposals.add(data, approval)
        if proposal is not None:
            self._keep(proposal.id, partial(self._store.put_change, proposal.id, data, approval))
            self._tell_proposal(proposal)

    def knows(self, approval: Approval) -> bool:
        """Says whether exactly this approval is held, and so was verified."""
        return self._proposals.knows(approval)

    def _may_read(self, sender: Id, proposer: Id) -> bool:
        now_s = self._clock.monotonic()
        return self._reads.setdefault((sender, proposer), TokenBucket(READS_PER_S, READS_BURST, now_s)).take(now_s)

    def _on_approval(self, approval: Approval) -> None:
        if self._proposals.add_approval(approval):
            self._keep(approval.change_id, partial(self._store.put_approval, approval))
            self._tell_approval(approval)

    def _on_readiness(self, ready: Readiness) -> None:
        if self._proposals.add_readiness(ready):
            self._keep(ready.change_id, partial(self._store.put_readiness, ready))

    def _keep(self, change_id: Digest, put: Callable[[], None]) -> None:
        """Queues the write to the store; after it, a change that is complete goes into the next block."""
        self._current.call(partial(self._put, change_id, put))

    async def keep_readiness(self, ready: Readiness) -> bool:
        """Stores the readiness of this node's own new key. Returns whether it counts."""
        await self._disk.run(self._store.put_readiness, ready)
        if self._proposals.get(ready.change_id) is None:  # closed by a block that came in between
            await self._disk.run(self._store.drop_changes, [ready.change_id])
            return False
        try:
            is_news = self._proposals.add_readiness(ready)
        except ChainError:  # its block is too far below the head by now
            return False
        self.follow_up()
        return is_news

    async def _put(self, change_id: Digest, put: Callable[[], None]) -> None:
        if self._proposals.get(change_id) is None:  # closed since, and its rows are deleted
            return
        with self._boundary.around("proposals"):
            await self._disk.run(put)
        self.follow_up()

    def on_alive(self, key: Id) -> None:
        """Notes that a key which is no member's is alive again: a change that adds it may have waited for it."""
        if any(isinstance(each.change.kind, AddMember) and each.change.kind.key == key for each in self._proposals):
            self._try()

    def follow_up(self) -> None:
        """Puts a change into the next block if nothing is missing any more, after something has come in."""
        self._admissions.on_changes()
        self._gossip.on_step()
        self._try()

    def _try(self) -> None:
        """Puts a change into the next block if one is complete."""
        if (approved := self.choose()) is not None:
            self._current.post(self._proposals.height, actions.ChangeCompleted(approved))

    # ---- requests of this node's operator

    async def propose(self, change: Change) -> Proposal:
        """Signs a change, stores it and sends it. Raises ChainError with the reason if the change is not valid, and
        signs nothing."""
        self._require_checkpoint()
        _check_spoken(change)
        self._proposals.check(change)
        approval = self._signer.sign_approval(change.compute_id(self._chain_id), Answer.YES)
        checked = self._proposals.open(change.data, approval)
        if checked is None:
            raise InvalidRequest("this change is open already")
        await self._disk.run(partial(self._store.put_change, checked.id, checked.data, approval, is_own=True))
        try:  # only now, since a status lists all that is held
            proposal = self._proposals.add(change.data, approval)
        except ChainError:  # a block came in between
            await self._disk.run(self._store.drop_changes, [checked.id])
            raise
        if proposal is None:
            raise InvalidRequest("this change is open already")
        self._consent.note(approval)
        self._gossip.push_proposal(proposal.data, approval)
        self._tell_proposal(proposal)
        self.follow_up()
        return proposal

    async def approve(self, change_id: Digest, answer: Answer = Answer.YES) -> Proposal:
        """Signs this node's approval, stores it and sends it. An earlier answer to an open change stays, since the
        others have it. An answer after the change was executed only decides whether this site trains. Raises NotFound,
        NotAMember or InvalidRequest."""
        proposal = self.find(change_id.hex())
        self._require_checkpoint()
        if isinstance(proposal, Proposal):
            _check_spoken(proposal.change)
        if self._current.tip.state.index_of(self._signer.id) is None:
            raise NotAMember("approval: this node is no member, or no more")
        if not isinstance(proposal, Proposal):
            return await self._approve_executed(proposal, answer)
        if (held := proposal.approvals.get(self._signer.id)) is not None:
            _check_same_answer(change_id, held.answer, answer)
            return proposal
        approval = self._signer.sign_approval(change_id, answer)
        await self._disk.run(partial(self._store.put_approval, approval, is_own=True))
        self._consent.note(approval)
        if self._proposals.get(change_id) is None:  # closed by a block that came in between
            await self._disk.run(self._store.drop_changes, [change_id])
        elif self._proposals.add_approval(approval):
            self._gossip.push_approval(approval)
            self._tell_approval(approval)
            self.follow_up()
        return proposal

    async def _approve_executed(self, executed: ExecutedChange, answer: Answer) -> Proposal:
        """Signs and stores the approval of an executed change. It is not sent, since the others do not need it."""
        state = self._current.tip.state
        if self._consent.is_too_late(executed, state):
            raise InvalidRequest(
                f"change {executed.id.hex()[:8]}: its run has begun, and its method shares samples as it begins: "
                "only sites that approved it before train in it"
            )
        approval = self._signer.sign_approval(executed.id, answer)
        await self._disk.run(self._store.put_own_answer, approval)
        self._consent.note(approval)
        log.info("change %s approved after it was executed: it counts from the next round on", executed.id.hex()[:8])
        change = read_change(executed.data)
        return Proposal(executed.id, executed.data, change, state, {approval.voter: approval})

    def _require_checkpoint(self) -> None:
        if not self._signer.has_reached_checkpoint(self._current.tip.height):
            raise InvalidRequest("this node has not reached the checkpoint it joined by, and signs nothing before it")

    # ---- the chain grows

    async def on_tip(self) -> None:
        """Forgets the changes that are no longer open, and publishes that."""
        state = self._current.tip.state
        closed = self._proposals.on_tip(self._current.tip)
        self._reads = {pair: bucket for pair, bucket in self._reads.items() if None not in map(state.index_of, pair)}
        if closed:
            ends = {each.id: f"{each.change.kind.name}, {each.fate.value}: {each.why}" for each in closed}
            self._ended |= ends
            for oldest in list(self._ended)[:-MAX_ENDED]:
                del self._ended[oldest]
            with self._boundary.around("proposals"):
                await self._disk.run(self._store.end_changes, self._current.tip.height, ends)
        for each in closed:
            self._tell_closed(each)
        self._admissions.on_changes()

    def choose(self) -> ApprovedChange | None:
        """Returns the change that the next block may hold; None if none is complete."""
        return self._proposals.choose(self._peers.is_alive, self._is_ready)

    # ---- what is logged and published

    def _tell_proposal(self, proposal: Proposal) -> None:
        change = proposal.change
        self._gossip.on_held(proposal.id)
        proposer = self._current.tip.state.get_seat(change.by)
        name = f"seat {change.by}" if proposer is None else proposer.name
        log.info("change %s proposed by %s: %s", proposal.id.hex()[:8], name, change.kind.name)
        self._events.publish("proposal", change=proposal.id.hex(), what=change.kind.name, by=change.by)
        if (threat := self._describe_threat(change)) is not None:
            log.warning("change %s, proposed by %s, would %s", proposal.id.hex()[:8], name, threat)
        if (upgrade := describe_upgrade([proposal], self._peers, self._current.tip.state.q)) is not None:
            log.warning("%s", upgrade)

    def _describe_threat(self, change: Change) -> str | None:
        """Says what a change of another member would do to this node's seat, of which its operator may not know; None
        if nothing."""
        me, kind = self._current.tip.state.get_member(self._signer.id), change.kind
        if me is None or change.by == me.seat:
            return None
        match kind:
            case RemoveMember(seat=me.seat):
                what = "remove this node"
            case ReplaceKey(seat=me.seat):
                what = "give the seat of this node another key"
            case _:
                return None
        return f"{what}: if that is not as agreed, tell the others not to approve it"

    def _tell_approval(self, approval: Approval) -> None:
        self._gossip.on_held((approval.change_id, approval.voter))
        name = self._peers.get_name(approval.voter)
        log.info("change %s approved by %s", approval.change_id.hex()[:8], name)
        self._events.publish(
            "approval", change=approval.change_id.hex(), author=approval.voter.hex(), answer=int(approval.answer)
        )

    def _tell_closed(self, closed: Closed) -> None:
        fate = closed.fate.value
        log.info("change %s (%s) %s: %s", closed.id.hex()[:8], closed.change.kind.name, fate, closed.why)
        self._events.publish("change", change=closed.id.hex(), what=closed.change.kind.name, fate=fate, why=closed.why)


def _check_spoken(change: Change) -> None:
    """Raises InvalidRequest for a protocol that this release does not speak: the operator's own node would stop."""
    kind = change.kind
    if isinstance(kind, Upgrade) and not speaks(kind.protocol):
        raise InvalidRequest(
            f"protocol {kind.protocol}: this release, {get_version()}, speaks {describe_spoken()}; approve it once "
            "this node runs one that speaks it"
        )


def _check_same_answer(change_id: Digest, held: Answer, wanted: Answer) -> None:
    """Raises InvalidRequest if a node would change the answer that it has sent to an open change."""
    if held is not wanted:
        said = "without training in it" if held is Answer.YES_WITHOUT_TRAINING else "with training in it"
        raise InvalidRequest(
            f"change {change_id.hex()[:8]}: this site has approved it {said}, and while it is open that stands; once "
            "it is executed, say otherwise then, or have it proposed anew"
        )


def load_proposals(current: CurrentRound, store: SqliteStore) -> Proposals:
    """Returns the stored changes that are still open. The others are deleted."""
    proposals, chain_id = Proposals(current.tip), current.tip.state.chain_id
    ends: dict[Digest, str] = {}
    for stored in store.get_changes():
        try:
            first, *others = stored.approvals
            if proposals.add(stored.change, first) is None:  # made above this head: peers will send it again
                continue
        except (ChainError, ValueError) as error:  # the last block has closed it
            ends[compute_change_id(chain_id, stored.change)] = str(error)
            log.info("an open change was not taken up again: %s", error)
            continue
        for approval in others:
            with suppress(ChainError):  # its member has left
                proposals.add_approval(approval)
        if stored.readiness is not None:
            with suppress(ChainError):  # it is too old
                proposals.add_readiness(stored.readiness)
    store.end_changes(current.tip.height, ends)
    return proposals
