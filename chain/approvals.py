"""The consent to a change, as bytes: approvals of members, readiness of new keys, and the body of a change block.

    Approval      change id 32 | answer u8 | voter 32 | sig 64
    Readiness     change id 32 | key 32 | height u64 | block id 32 | sig 64
    Proposal      the proposer's approval | change
    Change body   length u32 | change | count u16 x (member index u16 | answer u8 | sig 64), by index
                  | count u8 x (key 32 | height u64 | block id 32 | sig 64), by key

A body leaves out what the block says already: the id of its change, and the keys of members by their index
(FEDERATION §2).
"""

from __future__ import annotations

import hashlib
import struct

from chain.block import Answer, Approval, ApprovedChange, Digest, Id, Readiness
from chain.errors import DecodeError, EncodeError
from chain.layout import MAX_HEIGHT, MAX_U8, MAX_U16, U8, U16, U32, Error, Reader, check, check_size
from chain.signing import SIGNATURE_BYTES, SigningKey, tag, verify

CHANGE_TAG = tag("change")
APPROVAL_TAG = tag("approval")
READINESS_TAG = tag("readiness")

MAX_CHANGE_BYTES = 96 * 1024  # a run's schema may have 64 KiB

_APPROVAL = struct.Struct(">32sB32s")
_READINESS = struct.Struct(">32s32sQ32s")
_ANSWER = struct.Struct(f">HB{SIGNATURE_BYTES}s")
_READY = struct.Struct(f">32sQ32s{SIGNATURE_BYTES}s")

APPROVAL_BYTES = _APPROVAL.size + SIGNATURE_BYTES
READINESS_BYTES = _READINESS.size + SIGNATURE_BYTES
MAX_PROPOSAL_BYTES = APPROVAL_BYTES + MAX_CHANGE_BYTES


def compute_change_id(chain_id: Digest, change: bytes) -> Digest:
    return hashlib.sha256(CHANGE_TAG + chain_id + change).digest()


# Approval


def _check_approval(approval: Approval, error: Error) -> None:
    check_size(error, "approval change id", approval.change_id, 32)
    check(error, "approval answer", approval.answer, Answer.YES, Answer.YES_WITHOUT_TRAINING)
    check_size(error, "approval voter", approval.voter, 32)


def approval_fields(approval: Approval) -> bytes:
    """Returns the bytes that the voter signs: everything but the signature."""
    _check_approval(approval, EncodeError)
    return _APPROVAL.pack(approval.change_id, approval.answer, approval.voter)


def encode_approval(approval: Approval) -> bytes:
    check_size(EncodeError, "approval signature", approval.signature, SIGNATURE_BYTES)
    return approval_fields(approval) + approval.signature


def decode_approval(data: bytes) -> Approval:
    reader = Reader("approval", data, APPROVAL_BYTES)
    change_id, answer, voter = _APPROVAL.unpack(reader.take(_APPROVAL.size))
    signature = reader.take(SIGNATURE_BYTES)
    reader.end()
    return Approval(change_id, _read_answer(answer), voter, signature)


def _read_answer(code: int) -> Answer:
    check(DecodeError, "approval answer", code, Answer.YES, Answer.YES_WITHOUT_TRAINING)
    return Answer(code)


def sign_approval(key: SigningKey, chain_id: Digest, change_id: Digest, answer: Answer = Answer.YES) -> Approval:
    unsigned = Approval(change_id, answer, key.id, bytes(SIGNATURE_BYTES))
    return Approval(change_id, answer, key.id, key.sign(APPROVAL_TAG, chain_id, approval_fields(unsigned)))


def verify_approval(chain_id: Digest, approval: Approval) -> None:
    """Raises InvalidSignature unless the voter signed this answer to this change."""
    verify(approval.voter, approval.signature, APPROVAL_TAG, chain_id, approval_fields(approval))


# Readiness


def _check_readiness(readiness: Readiness, error: Error) -> None:
    check_size(error, "readiness change id", readiness.change_id, 32)
    check_size(error, "readiness key", readiness.key, 32)
    check(error, "readiness height", readiness.height, 0, MAX_HEIGHT)
    check_size(error, "readiness block id", readiness.block_id, 32)


def readiness_fields(readiness: Readiness) -> bytes:
    """Returns the bytes that the new key signs: everything but the signature."""
    _check_readiness(readiness, EncodeError)
    return _READINESS.pack(readiness.change_id, readiness.key, readiness.height, readiness.block_id)


def encode_readiness(readiness: Readiness) -> bytes:
    check_size(EncodeError, "readiness signature", readiness.signature, SIGNATURE_BYTES)
    return readiness_fields(readiness) + readiness.signature


def decode_readiness(data: bytes) -> Readiness:
    reader = Reader("readiness", data, READINESS_BYTES)
    change_id, key, height, block_id = _READINESS.unpack(reader.take(_READINESS.size))
    readiness = Readiness(change_id, key, height, block_id, reader.take(SIGNATURE_BYTES))
    reader.end()
    _check_readiness(readiness, DecodeError)
    return readiness


def sign_readiness(key: SigningKey, chain_id: Digest, change_id: Digest, *, height: int, block_id: Id) -> Readiness:
    unsigned = Readiness(change_id, key.id, height, block_id, bytes(SIGNATURE_BYTES))
    signature = key.sign(READINESS_TAG, chain_id, readiness_fields(unsigned))
    return Readiness(change_id, key.id, height, block_id, signature)


def verify_readiness(chain_id: Digest, readiness: Readiness) -> None:
    """Raises InvalidSignature unless the new key signed this readiness."""
    verify(readiness.key, readiness.signature, READINESS_TAG, chain_id, readiness_fields(readiness))


# A change with the approval of its proposer


def encode_proposal(change: bytes, approval: Approval) -> bytes:
    check(EncodeError, "size of the change", len(change), 1, MAX_CHANGE_BYTES)
    return encode_approval(approval) + change


def decode_proposal(data: bytes) -> tuple[bytes, Approval]:
    """Returns the change and the approval, without checking its signature. Raises DecodeError."""
    reader = Reader("proposal", data, MAX_PROPOSAL_BYTES)
    approval = decode_approval(reader.take(APPROVAL_BYTES))
    size = len(data) - APPROVAL_BYTES
    check(DecodeError, "size of the change", size, 1, MAX_CHANGE_BYTES)
    return reader.take(size), approval


# The body of a change block


def _check_approved(approved: ApprovedChange, error: Error) -> None:
    check(error, "size of the change", len(approved.change), 1, MAX_CHANGE_BYTES)
    check(error, "number of answers", len(approved.answers), 0, MAX_U16)
    last_index = -1
    for index, answer, signature in approved.answers:
        check(error, "answer's member index (sorted, one of each)", index, last_index + 1, MAX_U16)
        check(error, "answer", answer, Answer.YES, Answer.YES_WITHOUT_TRAINING)
        check_size(error, "answer's signature", signature, SIGNATURE_BYTES)
        last_index = index
    check(error, "number of ready keys", len(approved.readiness), 0, MAX_U8)
    last_key = b""
    for key, height, block_id, signature in approved.readiness:
        check_size(error, "ready key", key, 32)
        if key <= last_key:
            raise error(f"body: expected ready keys sorted, one of each, got {key.hex()} after {last_key.hex()}")
        check(error, "height of readiness", height, 0, MAX_HEIGHT)
        check_size(error, "block id of readiness", block_id, 32)
        check_size(error, "signature of readiness", signature, SIGNATURE_BYTES)
        last_key = key


def encode_approved(approved: ApprovedChange) -> bytes:
    _check_approved(approved, EncodeError)
    return b"".join(
        (
            U32.pack(len(approved.change)),
            approved.change,
            U16.pack(len(approved.answers)),
            *(_ANSWER.pack(*answer) for answer in approved.answers),
            U8.pack(len(approved.readiness)),
            *(_READY.pack(*ready) for ready in approved.readiness),
        )
    )


def read_approved(reader: Reader) -> ApprovedChange:
    """Reads the rest of a change block's body. Raises DecodeError."""
    size = reader.number(U32)
    check(DecodeError, "size of the change", size, 1, MAX_CHANGE_BYTES)
    change = reader.take(size)
    entries = [_ANSWER.unpack(reader.take(_ANSWER.size)) for _ in range(reader.number(U16))]
    answers = tuple((index, _read_answer(answer), signature) for index, answer, signature in entries)
    readiness = tuple(_READY.unpack(reader.take(_READY.size)) for _ in range(reader.number(U8)))
    approved = ApprovedChange(change, answers, readiness)
    _check_approved(approved, DecodeError)
    return approved
