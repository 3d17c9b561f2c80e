"""Checks what peers push: sizes and layout first, then the signature, each object once (SECURITY §5)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from chain import codec, validation
from chain.block import Block, Contribution, Digest, Evidence, Id, Vote
from chain.errors import DecodeError, InvalidBody, InvalidKey, InvalidSeal, InvalidSignature, NotAMember
from chain.evidence import decode_evidence
from chain.pow import is_valid_work
from chain.state import State
from node.p2p.refusals import Reason, get_reason
from node.p2p.transport.base import Message, MessageKind, PeerFault
from node.p2p.transport.outbox import TokenBucket

SignedObject = Contribution | Block | Vote | Evidence

# Faults that the sender could have found itself, whatever its head.
PARENTLESS = (DecodeError, InvalidSignature, InvalidSeal, InvalidKey, InvalidBody, NotAMember)
MAX_KNOWN = 256  # objects remembered per signer; an honest one makes fewer in two heights (I6)

# Signatures checked per signer. An honest one makes a contribution, a candidate and the votes of a view or two in a
# height; a node that is behind receives votes of many views at once.
CHECKS_BURST = float(MAX_KNOWN)
CHECKS_PER_S = 64.0
CHECKS_PER_HEIGHT = 8.0


class Authenticator:
    """Decodes and authenticates objects, with cheap checks first. An object that was authenticated once is known by its
    digest and costs nothing again. The objects of one member cost no more than its share of checks, whoever sends them.

    Checks that depend on the parent (heights, links, difficulty) are left to the caller. `clock` returns seconds of any
    monotonic clock.
    """

    def __init__(self, state: State, clock: Callable[[], float]) -> None:
        self._state = state
        self._clock = clock
        # The height of each authentic object, by signer.
        self._opened: dict[Id, dict[Digest, int]] = {key: {} for key in state.member_ids}
        self._known: set[Digest] = set()  # the digests of all signers: every message asks for one
        self._checks = {key: TokenBucket(CHECKS_PER_S, CHECKS_BURST, clock()) for key in state.member_ids}

    def on_height(self, height: int, state: State) -> None:
        """Forgets objects below `height`, which will not come again or do not matter. `state` judges `height`."""
        now = self._clock()
        if state != self._state:
            self._opened = {key: self._opened.get(key, {}) for key in state.member_ids}
            fresh = {key: TokenBucket(CHECKS_PER_S, CHECKS_BURST, now) for key in state.member_ids}
            self._checks = {key: self._checks.get(key, bucket) for key, bucket in fresh.items()}
            self._state = state
        for signer, opened in self._opened.items():
            self._opened[signer] = {digest: at for digest, at in opened.items() if at >= height}
            self._checks[signer].give(now, CHECKS_PER_HEIGHT)
        self._known = set().union(*self._opened.values())

    def open(
        self,
        message: Message,
        *,
        first: int,
        last: int,
        has_room: Callable[[Contribution | Block | Vote], bool],
        digest: Digest | None = None,
    ) -> SignedObject | Reason | None:
        """Returns the object in `message`. Returns None if it is known already, or a Reason if it is not wanted now:
        its height is outside `first`..`last`, there is no room for it, or its signer has used up its share. `digest` is
        the digest of its bytes, if the caller knows it.

        Raises PeerFault if the bytes, the work or the signature are bad, or the signer is no member. Evidence is only
        decoded.
        """
        if digest is None:
            digest = hashlib.sha256(message.data).digest()
        if digest in self._known:
            return None
        try:
            opened = self._decode(message)
            if isinstance(opened, Evidence):
                return opened
            if not first <= opened.height <= last:
                return Reason.OTHER_HEIGHT
            author = get_signer(opened)
            signer = self._opened.get(author)
            if signer is None and opened.height > first:  # it may be a member by then: nobody's fault
                return Reason.STRANGER
            if signer is None:
                raise NotAMember(f"signer: expected one of {self._state.n} members, got a stranger")
            if not has_room(opened):
                return Reason.NO_ROOM
            if not self._may_check(author):
                return Reason.RATE
            self._authenticate(opened)
            self._checks[author].take(self._clock())  # forged objects do not count against its share
        except PARENTLESS as error:
            raise PeerFault(f"{message.kind.name.lower()}: {error}", get_reason(error)) from error
        while len(signer) >= MAX_KNOWN:
            oldest = next(iter(signer))  # it may be checked a second time, and no more
            del signer[oldest]
            self._known.discard(oldest)
        self._remember(opened, digest)
        return opened

    def _may_check(self, signer: Id) -> bool:
        return self._checks[signer].get_wait_s(self._clock()) <= 0

    def _decode(self, message: Message) -> SignedObject:
        match message.kind:
            case MessageKind.CONTRIBUTION:
                return codec.decode_contribution(message.data)
            case MessageKind.BLOCK:
                return codec.decode_block(self._state.chain_id, message.data)
            case MessageKind.VOTE:
                return codec.decode_vote(message.data)
            case MessageKind.EVIDENCE:
                return decode_evidence(message.data)
            case _:
                raise DecodeError(f"a {message.kind.name.lower()} is not an object of one height")

    def _authenticate(self, opened: Contribution | Block | Vote) -> None:
        match opened:
            case Contribution():
                validation.verify_contribution(self._state.chain_id, opened)
            case Vote():
                validation.verify_vote(self._state.chain_id, opened)
            case Block():
                if not is_valid_work(opened.id, max(opened.header.difficulty, self._state.rules.pow.min)):
                    raise InvalidSeal(f"work below the least difficulty, {self._state.rules.pow.min}")
                body = codec.compute_body_digest(opened.body)
                if opened.header.body != body:  # a peer can put any body behind a signed header
                    raise InvalidBody.differs("digest of the body", opened.header.body, body)
                validation.verify_block(self._state.chain_id, opened)

    def knows(self, digest: Digest) -> bool:
        """Says whether the object with this digest was authenticated before."""
        return digest in self._known

    def count_known(self) -> dict[Id, int]:
        """Returns the number of objects that are remembered, by signer."""
        return {signer: len(opened) for signer, opened in self._opened.items()}

    def add_own(self, contribution: Contribution) -> None:
        """Adds this node's own contribution, just signed, so that it is not verified again in the candidates of
        others."""
        self._remember(contribution, _compute_digest(contribution))

    def _remember(self, opened: Contribution | Block | Vote, digest: Digest) -> None:
        self._opened[get_signer(opened)][digest] = opened.height
        self._known.add(digest)

    def forget(self, opened: Contribution | Block | Vote) -> None:
        """Forgets an object for which there was no room, so that it may come again."""
        digest = _compute_digest(opened)
        self._opened[get_signer(opened)].pop(digest, None)
        self._known.discard(digest)

    def is_known(self, contribution: Contribution) -> bool:
        """Says whether exactly this contribution was authenticated before, so that its signature needs no second
        check."""
        return _compute_digest(contribution) in self._opened.get(contribution.author, ())


def get_signer(signed: Contribution | Block | Vote) -> Id:
    match signed:
        case Contribution():
            return signed.author
        case Block():
            return signed.header.miner
        case Vote():
            return signed.voter


def _compute_digest(signed: Contribution | Block | Vote) -> Digest:
    match signed:
        case Contribution():
            return hashlib.sha256(codec.encode_contribution(signed)).digest()
        case Block():
            return hashlib.sha256(codec.encode_block(signed)).digest()
        case Vote():
            return hashlib.sha256(codec.encode_vote(signed)).digest()
