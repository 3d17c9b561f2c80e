"""The reasons for refusing something, in one word each. They are counted, and shown for peers and rounds (SECURITY §5).

Each reason counts against whoever is at fault. Bytes that their sender could have seen to be bad count against that
peer, whose connection is refused for a while. A broken rule counts against the member that signed it, whoever relayed
it, and costs only the refused object: votes go on. Too much of something is dropped, or waits. Other things merely come
at the wrong time, as happens among honest members too.
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
    # Bad at first sight: against the sender.
    BYTES = "bytes"  # no message, not the encoding of its kind, or an impossible request
    SIZE = "size"  # over the limit of its kind
    OTHER_CHAIN = "other_chain"
    STRANGER = "stranger"  # signed by a key that is no member
    WORK = "work"  # too little
    BODY = "body"  # not the one that the header commits to
    SIGNATURE = "signature"
    EVIDENCE = "evidence"  # proves nothing
    CERTIFICATE = "certificate"  # does not make its block final
    BLOB = "blob"  # bytes served that are not what was asked for
    CLAIM = "claim"  # claims to have blocks, and sends fewer

    # It breaks a rule: against its author.
    RULE = "rule"  # of the ledger: height, parent, difficulty, time, weight
    PAYLOAD = "payload"  # does not fit the method, or is not finite
    AGGREGATE = "aggregate"  # not what the contributions give
    CLOCK = "clock"  # a candidate from the future
    LEAVES_OUT = "leaves_out"  # a candidate without a contribution that was here in good time
    SIGNED_TWICE = "signed_twice"

    # Its model harms this node's own model: against its author, who may be honest.
    HARM = "harm"

    # It caused an unforeseen error: against the sender of the bytes.
    FAILED = "failed"

    # Too much, or too slow: against the sender.
    RATE = "rate"  # more of a kind than its share
    CALLS = "calls"  # more at once than its share
    SLOW = "slow"  # sends no request, does not read the answer, or does not answer
    REFUSED = "refused"  # came while it was refused

    # Not wanted now.
    OTHER_HEIGHT = "other_height"
    NO_ROOM = "no_room"  # its author's other objects fill the places

    @property
    def is_usual(self) -> bool:
        """Says whether the reason is no fault: a replay looks like a message that is late or early, and a member with
        other data may have a model that is of no use here."""
        return self in (Reason.OTHER_HEIGHT, Reason.NO_ROOM, Reason.HARM)


Refusals = Counter[Reason]


def count_faults(refusals: Mapping[Reason, int]) -> int:
    """Returns how many refusals were for a fault."""
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
