"""The reasons for refusing something, in one word each. They are counted, and shown for peers and rounds (SECURITY §5).

Each reason counts against whoever is at fault. A sender could have seen for itself that something is bad on its
face: this counts against the peer that sent it, whose connection is refused for a while. A broken rule counts
against the member that signed it, whoever relayed it, and costs only the refused thing itself: votes go on. Too much
of something is left out, or waits. And some things are merely not wanted at the time, as happens among honest
members too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum

from chain.errors import (
    ChainError,
    DecodeError,
    InvalidAggregate,
    InvalidBody,
    InvalidCertificate,
    InvalidEvidence,
    InvalidKey,
    InvalidSeal,
    InvalidSignature,
    NotAMember,
)


class Reason(StrEnum):
    # Bad on its face: against the sender.
    BYTES = "bytes"  # no message, no encoding of what it says it is, or an impossible request
    SIZE = "size"  # over the limit of its kind
    OTHER_CHAIN = "other_chain"
    STRANGER = "stranger"  # signed by who is no member
    WORK = "work"  # too little
    BODY = "body"  # not the one that the header commits to
    SIGNATURE = "signature"
    EVIDENCE = "evidence"  # proves nothing
    CERTIFICATE = "certificate"  # does not make its block final
    BLOB = "blob"  # bytes served that are not what was asked for
    CLAIM = "claim"  # says that it has blocks, and gives fewer

    # It breaks a rule: against its author.
    RULE = "rule"  # of the ledger: height, parent, difficulty, time, weight
    PAYLOAD = "payload"  # does not fit the method, or is not finite
    AGGREGATE = "aggregate"  # not what the contributions give
    CLOCK = "clock"  # a candidate from the future
    LEAVES_OUT = "leaves_out"  # a candidate without a contribution that was here in good time
    SIGNED_TWICE = "signed_twice"

    # Its model does harm to this node's own: against its author, though it may be honest.
    HARM = "harm"

    # It brought about an error that nobody foresaw: against whose bytes they were.
    FAILED = "failed"

    # Too much, or too slow: against the sender.
    RATE = "rate"  # more of a kind than its share
    CALLS = "calls"  # more at once than its share
    SLOW = "slow"  # asked for something and did not say what, does not read it, or does not answer
    REFUSED = "refused"  # came while it was refused

    # Not wanted now.
    OTHER_HEIGHT = "other_height"
    NO_ROOM = "no_room"  # others of its author's have the places there are

    @property
    def is_usual(self) -> bool:
        """Whether it is nothing to hold against anybody: a replay looks like what was late or early, and whose data are
        others may have a model that is of no use here."""
        return self in (Reason.OTHER_HEIGHT, Reason.NO_ROOM, Reason.HARM)


Refusals = Counter[Reason]


def count_faults(refusals: Mapping[Reason, int]) -> int:
    """All that should not have come."""
    return sum(count for reason, count in refusals.items() if not reason.is_usual)


_REASONS: Mapping[type[ChainError], Reason] = {
    DecodeError: Reason.BYTES,
    NotAMember: Reason.STRANGER,
    InvalidSeal: Reason.WORK,
    InvalidBody: Reason.BODY,
    InvalidKey: Reason.SIGNATURE,
    InvalidSignature: Reason.SIGNATURE,
    InvalidEvidence: Reason.EVIDENCE,
    InvalidCertificate: Reason.CERTIFICATE,
    InvalidAggregate: Reason.AGGREGATE,
}


def get_reason(error: ChainError) -> Reason:
    return _REASONS.get(type(error), Reason.RULE)
