"""Messages that a peer pushes, and blocks that it answers with, up to their effect on the current round."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from google.protobuf.message import DecodeError as NotProtobuf

from chain import codec, validation
from chain.approvals import encode_approval, encode_proposal, encode_readiness
from chain.block import Block, Certificate, Digest, Id, Phase
from chain.calendar import Calendar
from chain.errors import ChainError, DecodeError
from chain.proposals import MAX_OPEN, Proposals
from chain.store.sqlite import SqliteStore
from chain.tip import Tip
from fuzz.chain_bytes import (
    make_blocks,
    make_change_block,
    make_consent,
    make_contributions,
    make_evidences,
    make_hints,
    make_published,
    make_votes,
)
from fuzz.claims import Seeds, attempt, passes
from fuzz.federation import CANDIDATE, GENESIS, KEYS, LIAR, ME, PARENT, believing, sign_vote
from fuzz.wire_bytes import make_statuses
from node.consensus.gossip.authenticator import Authenticator
from node.consensus.gossip.awaiting import Awaiting
from node.consensus.gossip.evidence import EvidencePool
from node.consensus.gossip.gossip import Gossip, Position
from node.consensus.gossip.hints import AddressHints
from node.consensus.gossip.member_clocks import MemberClocks
from node.consensus.gossip.published import PublishedRounds
from node.consensus.gossip.serving import StoreServer
from node.consensus.gossip.sync import Sync
from node.consensus.gossip_parts import GossipParts
from node.consensus.governance.consent import Consent
from node.consensus.governance.proposals import ProposalBook
from node.consensus.handler import PeerHandler
from node.consensus.height import actions
from node.consensus.height.collecting import Collecting
from node.consensus.height.current import CurrentRound
from node.consensus.height.machine import RoundMachine
from node.consensus.signing.signer import Signer
from node.events import Events
from node.offload import Offload
from node.p2p.address_book import AddressBook
from node.p2p.bans import Bans
from node.p2p.delays import Delays
from node.p2p.peers import Peers
from node.p2p.transport.base import PeerFault, TrafficCounters
from node.p2p.transport.rate_limits import Intake, RateLimits
from node.payloads.pushed import MAX_PUSHED_BYTES, PushedPayloads
from node.payloads.waiting_blobs import WaitingBlobs
from node.pb import peer_pb2 as pb
from node.pb.common_pb2 import FinalisedBlock
from support.data.chains import make_certificate, make_chain
from support.faults.open_boundary import OpenBoundary

STATE = GENESIS.state


class Clock:
    def now_ms(self) -> int:
        return PARENT.header.time_ms + 2000

    def monotonic(self) -> float:
        return 0.0


class _Nowhere:
    """A store of what was proposed and approved that keeps nothing."""

    def put_change(self, *row: object) -> None: ...

    def put_approval(self, *row: object) -> None: ...

    def put_readiness(self, *row: object) -> None: ...

    def get_ended_changes(self) -> dict[Digest, str]:
        return {}


class Door:
    """A node's intake and all that it stands on, up to what its round decides; nothing is signed or stored."""

    def __init__(self) -> None:
        self.tip = Tip.at(STATE, [PARENT])
        collecting = Collecting(STATE, ME, awaited=STATE.member_ids)
        self.machine = RoundMachine(STATE, collecting, me=ME, height=1, parent_ms=GENESIS.block0.header.time_ms)
        self.accused: set[Id] = set()
        clock = Clock()
        self.machine.on(actions.Started(), self._now())
        peers = Peers(GENESIS.state, ME, clock)
        boundary = OpenBoundary()
        current = cast(CurrentRound, self)
        gossip = Gossip(cast(Any, self), peers, clock, self._get_position)
        sync = Sync(cast(Any, self), peers, lambda: self.tip, cast(Any, None), cast(Any, None), boundary)
        events = Events(clock)
        self.proposals = Proposals(self.tip)
        book = ProposalBook(
            current,
            self.proposals,
            cast(Signer, self),
            cast(SqliteStore, _Nowhere()),
            cast(Offload, None),
            consent=cast(Consent, None),
            admissions=cast(Any, None),
            gossip=gossip,
            peers=peers,
            events=events,
            clock=clock,
            boundary=boundary,
        )
        self.book = AddressBook(Path("nowhere"), {}, {})
        self.published = PublishedRounds(
            current,
            cast(Signer, self),
            cast(Any, None),
            cast(SqliteStore, None),
            cast(Offload, None),
            chain_id=GENESIS.chain_id,
            calendar=Calendar([(0, STATE)]),
            peers=peers,
            clock=clock,
            publish_from=None,
        )
        self.pushed = PushedPayloads(WaitingBlobs())
        parts = GossipParts(
            peers,
            Delays(dict, peers.count_liars),
            MemberClocks(current, ME, clock),
            Awaiting(STATE, ME, peers, events),
            cast(Any, None),
            gossip,
            cast(EvidencePool, self),
            Authenticator(STATE, clock.monotonic),
            AddressHints(
                self.book,
                cast(Signer, self),
                cast(Any, None),
                chain_id=GENESIS.chain_id,
                advertise=None,
                peers=peers,
                clock=clock,
                disk=cast(Offload, None),
            ),
            self.published,
            sync,
            cast(Any, None),
            cast(Any, None),
        )
        self.handler = PeerHandler(current, parts, book, self.pushed, cast(StoreServer, None), events, boundary)
        counters = TrafficCounters()
        self.intake = Intake(
            LIAR,
            RateLimits(),
            Bans(clock.monotonic),
            counters,
            boundary=boundary,
            clock=clock.monotonic,
        )

    me = id = ME

    def call(self, step: object) -> None:
        """What is to be made durable, in its turn: nowhere, here."""

    def post(self, to: int | Id, event: Any) -> None:
        """An event for the round in hand, or a message for a peer: this stands for both."""
        if isinstance(to, int):
            self.machine.on(event, self._now())

    def is_accused(self, author: Id, height: int) -> bool:
        return author in self.accused

    def on_evidence(self, evidence: object, author: Id, height: int) -> None:
        self.accused.add(author)
        self.machine.on(actions.Accused(author), self._now())

    def _get_position(self) -> Position:
        return Position(self.tip, self.machine, True)

    def _now(self) -> actions.Now:
        return actions.Now(0.0, Clock().now_ms())


def make_pushes() -> Seeds:
    votes = [pb.Envelope(vote=data) for data in make_votes().values()]
    more = [pb.Envelope(vote=sign_vote(Phase.PREVOTE, 0, CANDIDATE.id, voter)) for voter in (0, 2, 3)]
    contributions = [pb.Envelope(contribution=data) for data in make_contributions().values()]
    body = [pb.Envelope(contribution=codec.encode_contribution(c)) for c in CANDIDATE.contributions]
    block = [pb.Envelope(block=data) for data in make_blocks().values()]
    evidence = [pb.Envelope(evidence=data) for data in make_evidences().values()]
    status = [pb.Envelope(status=data) for data in make_statuses().values()]
    change, (first, *others), ready = make_consent()
    consent = [pb.Envelope(proposal=encode_proposal(change.data, first))]
    consent += [pb.Envelope(approval=encode_approval(approval)) for approval in others]
    consent += [pb.Envelope(readiness=encode_readiness(ready))]
    hints = [pb.Envelope(hint=data) for data in make_hints().values()]
    batches = {"votes": votes + more, "round": body + block[1:] + more, "lies": contributions + evidence}
    batches |= {"statuses": status + block[:1], "consent": consent, "hints": hints}
    batches["measures"] = [pb.Envelope(measures=data) for data in make_published().values()]
    blobs = [pb.Envelope(payload=bytes(size)) for size in (0, 1024)]
    batches["payloads"] = blobs[:1] + contributions + blobs
    return {name: b"\1" + pb.Batch(messages=batch).SerializeToString() for name, batch in batches.items()}


def check_push(data: bytes) -> bool:
    """Whatever a member pushes, in the bytes of a batch behind one of flags: 1 lets every signature pass, 2 also gives
    each block the digest of the body it has."""
    flags, data = data[0] if data else 0, data[1:]
    try:
        batch = pb.Batch.FromString(data)
    except NotProtobuf:
        return False
    if flags & 2:
        for envelope in batch.messages:
            if envelope.WhichOneof("body") == "block":
                envelope.block = mend_block(envelope.block)
    door = Door()
    with believing() if flags & 1 else nullcontext():
        taken = passes(lambda: door.intake.take(batch, door.handler), PeerFault)
        if taken:
            door.handler.release()
    for kind in (door.machine.contributions, door.machine.candidates, door.accused):
        assert len(kind) <= 2 * STATE.n
    assert len(door.proposals) <= MAX_OPEN * STATE.n
    assert len(door.book.get_hints()) <= STATE.n
    assert len(door.published.list_newest()) <= STATE.n
    assert door.pushed.held_bytes <= 2 * STATE.n * MAX_PUSHED_BYTES
    return taken


def mend_block(data: bytes) -> bytes:
    """The block with the digest of its own body, on our parent, where these bytes are a block at all."""
    try:
        block = codec.decode_block(GENESIS.chain_id, data)
    except DecodeError:
        return data
    body = codec.compute_body_digest(block.body)
    return codec.encode_block(replace(block, header=replace(block.header, body=body, difficulty=1)))


def make_replies() -> Seeds:
    change = make_change_block()
    return {
        "two": b"\1" + _encode_reply(make_chain(GENESIS, KEYS, 2)),
        "change": b"\0" + _encode_reply([(change, make_certificate(GENESIS, change, KEYS))]),
        "none": b"\0",
    }


def _encode_reply(chain: Sequence[tuple[Block, Certificate]]) -> bytes:
    entries = [
        FinalisedBlock(block=codec.encode_block(block), certificate=codec.encode_certificate(certificate))
        for block, certificate in chain
    ]
    return pb.BlocksReply(blocks=entries).SerializeToString()


def check_reply(data: bytes) -> bool:
    """The blocks a peer answers with, one after the other, flags as above: taken if all of them hold."""
    flags, data = data[0] if data else 0, data[1:]
    try:
        reply = pb.BlocksReply.FromString(data)
    except NotProtobuf:
        return False
    tip = Tip.at(STATE, [PARENT])
    with believing() if flags & 1 else nullcontext():
        for entry in reply.blocks:
            data = mend_block(entry.block) if flags & 2 else entry.block
            block = attempt(lambda: follow(tip, data, entry.certificate), ChainError)  # noqa: B023
            if block is None:
                return False
            tip = tip.extend(block)
    return True


def follow(tip: Tip, block_bytes: bytes, certificate_bytes: bytes) -> Block:
    """As sync does."""
    block = codec.decode_block(GENESIS.chain_id, block_bytes)
    certificate = codec.decode_certificate(certificate_bytes)
    validation.validate_candidate(tip, block)
    validation.validate_certificate(tip.state, block.id, block.height, certificate)
    return block
