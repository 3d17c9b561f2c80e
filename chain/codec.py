"""The bytes of every object, exactly as PROTOCOL §1 lays them out: fixed, big-endian, one encoding per object.

Lists carry a count and are sorted. A decoder checks length, ranges and order, so that `encode(decode(b)) == b` for
whatever it accepts; anything else is a DecodeError. What an object means is `chain.validation`'s business.

    Contribution  height u64 | prev 32 | author 32 | weight u32
                  | count u8 | count x (kind u8 | digest 32 | size u64) | sig 64
    Header        ver u16 | height u64 | prev 32 | body 32 | aggregate 32 | members_next 32 | miner 32
                  | start_ms u64 | time_ms u64 | difficulty u64                          194 B, 202 with nonce
    Body          count u16 | contributions by author | membership transactions u8, must be 0
    Block         header | nonce u64 | body | sig 64
    Vote          phase u8 | height u64 | view u32 | block id 32 | voter 32 | sig 64
    Certificate   view u32 | count u16 | count x (member index u16 | sig 64)
    Evidence      kind u8 | length u32 | first | length u32 | second
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from itertools import pairwise

from chain.block import (
    HEADER_VERSION,
    Block,
    Certificate,
    Contribution,
    Digest,
    Evidence,
    EvidenceKind,
    Header,
    Id,
    PayloadRef,
    Phase,
    Vote,
)
from chain.errors import ChainError, DecodeError, EncodeError
from chain.signing import SIGNATURE_BYTES, SigningKey, tag

SEAL_TAG = tag("seal")
BODY_TAG = tag("body")
MEMBERS_TAG = tag("members")
CONTRIBUTION_TAG = tag("contribution")
BLOCK_TAG = tag("block")
VOTE_TAG = tag("vote")

HEADER_BYTES = 194
MAX_CONTRIBUTION_BYTES = 4096
MAX_EVIDENCE_BYTES = 512 * 1024
MAX_BLOCK_BYTES = 256 * 1024 - 5  # two blocks and the frame around them are still evidence
MAX_VOTE_BYTES = 512
MAX_CERTIFICATE_BYTES = 64 * 1024

WEIGHT_LIMIT = 2**29  # a float32 times a smaller integer is exact in float64 (PROTOCOL §2)
MAX_HEIGHT = 2**63 - 1  # SQLite's integers are signed
MAX_TIME_MS = 253_402_300_799_999  # the end of the year 9999: every accepted time can be shown as a date
MAX_U16, MAX_U32, MAX_U64 = 2**16 - 1, 2**32 - 1, 2**64 - 1

_CONTRIBUTION = struct.Struct(">Q32s32sIB")
_PAYLOAD = struct.Struct(">B32sQ")
_HEADER = struct.Struct(">HQ32s32s32s32s32sQQQ")
_VOTE = struct.Struct(">BQI32s32s")
_U8, _U16, _U32, _U64 = struct.Struct(">B"), struct.Struct(">H"), struct.Struct(">I"), struct.Struct(">Q")
_CERTIFICATE = struct.Struct(">IH")
_CERTIFICATE_ENTRY = struct.Struct(f">H{SIGNATURE_BYTES}s")

MAX_PAYLOADS = (MAX_CONTRIBUTION_BYTES - _CONTRIBUTION.size - SIGNATURE_BYTES) // _PAYLOAD.size
MAX_MEMBERS = (MAX_CERTIFICATE_BYTES - _CERTIFICATE.size) // _CERTIFICATE_ENTRY.size

_Error = type[ChainError]


class _Reader:
    """Takes fields off a byte string from the left; DecodeError when it ends too soon or too late."""

    __slots__ = ("_at", "_data", "_what")

    def __init__(self, what: str, data: bytes, max_bytes: int) -> None:
        if len(data) > max_bytes:
            raise DecodeError(f"{what}: expected at most {max_bytes} bytes, got {len(data)}")
        self._what = what
        self._data = bytes(data)
        self._at = 0

    def take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            raise DecodeError(f"{self._what}: expected at least {end} bytes, got {len(self._data)}")
        piece = self._data[self._at : end]
        self._at = end
        return piece

    def number(self, layout: struct.Struct) -> int:
        value: int = layout.unpack(self.take(layout.size))[0]
        return value

    def end(self) -> None:
        if self._at != len(self._data):
            raise DecodeError(f"{self._what}: expected exactly {self._at} bytes, got {len(self._data)}")


def _check(error: _Error, what: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise error(f"{what}: expected {low} to {high}, got {value}")


def _check_size(error: _Error, what: str, value: bytes, size: int) -> None:
    if len(value) != size:
        raise error(f"{what}: expected {size} bytes, got {len(value)}")


# Contribution


def _check_contribution(c: Contribution, error: _Error) -> None:
    _check(error, "contribution height", c.height, 1, MAX_HEIGHT)
    _check_size(error, "contribution prev", c.prev, 32)
    _check_size(error, "contribution author", c.author, 32)
    _check(error, "contribution weight", c.weight, 1, WEIGHT_LIMIT - 1)
    _check(error, "number of payloads", len(c.payloads), 0, MAX_PAYLOADS)
    last_kind = 0
    for payload in c.payloads:
        _check(error, "payload kind (sorted, one of each)", payload.kind, last_kind + 1, 255)
        _check_size(error, "payload digest", payload.digest, 32)
        _check(error, "payload size", payload.size, 1, MAX_U64)
        last_kind = payload.kind


def contribution_fields(c: Contribution) -> bytes:
    """The bytes that the author signs: everything but the signature."""
    _check_contribution(c, EncodeError)
    return _CONTRIBUTION.pack(c.height, c.prev, c.author, c.weight, len(c.payloads)) + b"".join(
        _PAYLOAD.pack(p.kind, p.digest, p.size) for p in c.payloads
    )


def encode_contribution(c: Contribution) -> bytes:
    _check_size(EncodeError, "contribution signature", c.signature, SIGNATURE_BYTES)
    return contribution_fields(c) + c.signature


def _read_contribution(reader: _Reader) -> Contribution:
    height, prev, author, weight, count = _CONTRIBUTION.unpack(reader.take(_CONTRIBUTION.size))
    _check(DecodeError, "number of payloads", count, 0, MAX_PAYLOADS)
    payloads = tuple(PayloadRef(*_PAYLOAD.unpack(reader.take(_PAYLOAD.size))) for _ in range(count))
    c = Contribution(height, prev, author, weight, payloads, reader.take(SIGNATURE_BYTES))
    _check_contribution(c, DecodeError)
    return c


def decode_contribution(data: bytes) -> Contribution:
    reader = _Reader("contribution", data, MAX_CONTRIBUTION_BYTES)
    c = _read_contribution(reader)
    reader.end()
    return c


def sign_contribution(
    key: SigningKey, chain_id: bytes, *, height: int, prev: Id, weight: int, payloads: Sequence[PayloadRef]
) -> Contribution:
    """A contribution by `key`; payloads are put in the order of their kinds."""
    ordered = tuple(sorted(payloads, key=lambda payload: payload.kind))
    unsigned = Contribution(height, prev, key.id, weight, ordered, bytes(SIGNATURE_BYTES))
    signature = key.sign(CONTRIBUTION_TAG, chain_id, contribution_fields(unsigned))
    return Contribution(height, prev, key.id, weight, ordered, signature)


# Header, seal, id


def _check_header(h: Header, error: _Error) -> None:
    _check(error, "header version", h.version, HEADER_VERSION, HEADER_VERSION)
    _check(error, "header height", h.height, 0, MAX_HEIGHT)
    for name in ("prev", "body", "aggregate", "members_next", "miner"):
        _check_size(error, f"header {name}", getattr(h, name), 32)
    _check(error, "header start_ms", h.start_ms, 0, MAX_TIME_MS)
    _check(error, "header time_ms", h.time_ms, 0, MAX_TIME_MS)
    _check(error, "header difficulty", h.difficulty, 1, MAX_U64)


def encode_header(h: Header) -> bytes:
    """The 194 bytes that are sealed; the nonce is not among them."""
    _check_header(h, EncodeError)
    return _HEADER.pack(
        h.version,
        h.height,
        h.prev,
        h.body,
        h.aggregate,
        h.members_next,
        h.miner,
        h.start_ms,
        h.time_ms,
        h.difficulty,
    )


def _read_header(reader: _Reader) -> Header:
    h = Header(*_HEADER.unpack(reader.take(_HEADER.size)))
    _check_header(h, DecodeError)
    return h


def decode_header(data: bytes) -> Header:
    reader = _Reader("header", data, HEADER_BYTES)
    h = _read_header(reader)
    reader.end()
    return h


def compute_seal(chain_id: bytes, header: Header) -> bytes:
    """The 32 bytes that mining hashes with each nonce, however long the header."""
    _check_size(EncodeError, "chain id", chain_id, 32)
    return hashlib.sha256(SEAL_TAG + chain_id + encode_header(header)).digest()


def compute_block_id(seal: bytes, nonce: int) -> Id:
    _check(EncodeError, "nonce", nonce, 0, MAX_U64)
    return hashlib.sha256(seal + _U64.pack(nonce)).digest()


def compute_members_digest(members: Sequence[Id]) -> Digest:
    """The header's `members_next`: which keys, in order, may certify the next height."""
    return hashlib.sha256(MEMBERS_TAG + _U16.pack(len(members)) + b"".join(members)).digest()


# Body and block


def _check_order(contributions: Sequence[Contribution], error: _Error) -> None:
    _check(error, "number of contributions", len(contributions), 0, MAX_MEMBERS)
    for before, after in pairwise(contributions):
        if before.author >= after.author:
            raise error(
                f"body: expected contributions sorted by author, one each, "
                f"got {before.author.hex()} before {after.author.hex()}"
            )


def encode_body(contributions: Sequence[Contribution]) -> bytes:
    _check_order(contributions, EncodeError)
    return _U16.pack(len(contributions)) + b"".join(encode_contribution(c) for c in contributions) + _U8.pack(0)


def _read_body(reader: _Reader) -> tuple[Contribution, ...]:
    count = reader.number(_U16)
    _check(DecodeError, "number of contributions", count, 0, MAX_MEMBERS)
    contributions = tuple(_read_contribution(reader) for _ in range(count))
    _check_order(contributions, DecodeError)
    _check(DecodeError, "number of membership transactions", reader.number(_U8), 0, 0)
    return contributions


def decode_body(data: bytes) -> tuple[Contribution, ...]:
    reader = _Reader("body", data, MAX_BLOCK_BYTES)
    contributions = _read_body(reader)
    reader.end()
    return contributions


def compute_body_digest(contributions: Sequence[Contribution]) -> Digest:
    return hashlib.sha256(BODY_TAG + encode_body(contributions)).digest()


def encode_block(block: Block) -> bytes:
    _check(EncodeError, "nonce", block.nonce, 0, MAX_U64)
    _check_size(EncodeError, "block signature", block.signature, SIGNATURE_BYTES)
    data = b"".join(
        (encode_header(block.header), _U64.pack(block.nonce), encode_body(block.contributions), block.signature)
    )
    if len(data) > MAX_BLOCK_BYTES:
        raise EncodeError(f"block: expected at most {MAX_BLOCK_BYTES} bytes, got {len(data)}")
    return data


def decode_block(chain_id: bytes, data: bytes) -> Block:
    """The block and its id; the id needs the chain id because the seal does."""
    reader = _Reader("block", data, MAX_BLOCK_BYTES)
    header = _read_header(reader)
    nonce = reader.number(_U64)
    contributions = _read_body(reader)
    signature = reader.take(SIGNATURE_BYTES)
    reader.end()
    return Block(header, nonce, contributions, signature, compute_block_id(compute_seal(chain_id, header), nonce))


def make_block(
    chain_id: bytes, header: Header, nonce: int, contributions: Sequence[Contribution], key: SigningKey
) -> Block:
    """The miner's signed block for a nonce that was found; whether it is work enough is not looked at here."""
    block_id = compute_block_id(compute_seal(chain_id, header), nonce)
    return Block(header, nonce, tuple(contributions), key.sign(BLOCK_TAG, chain_id, block_id), block_id)


# Vote and certificate


def _check_vote(vote: Vote, error: _Error) -> None:
    _check(error, "vote phase", vote.phase, Phase.PREVOTE, Phase.PRECOMMIT)
    _check(error, "vote height", vote.height, 1, MAX_HEIGHT)
    _check(error, "vote view", vote.view, 0, MAX_U32)
    _check_size(error, "vote block id", vote.block_id, 32)
    _check_size(error, "vote voter", vote.voter, 32)


def vote_fields(vote: Vote) -> bytes:
    """The bytes that the voter signs: everything but the signature."""
    _check_vote(vote, EncodeError)
    return _VOTE.pack(vote.phase, vote.height, vote.view, vote.block_id, vote.voter)


def encode_vote(vote: Vote) -> bytes:
    _check_size(EncodeError, "vote signature", vote.signature, SIGNATURE_BYTES)
    return vote_fields(vote) + vote.signature


def decode_vote(data: bytes) -> Vote:
    reader = _Reader("vote", data, MAX_VOTE_BYTES)
    phase, height, view, block_id, voter = _VOTE.unpack(reader.take(_VOTE.size))
    signature = reader.take(SIGNATURE_BYTES)
    reader.end()
    _check(DecodeError, "vote phase", phase, Phase.PREVOTE, Phase.PRECOMMIT)
    vote = Vote(Phase(phase), height, view, block_id, voter, signature)
    _check_vote(vote, DecodeError)
    return vote


def sign_vote(key: SigningKey, chain_id: bytes, *, phase: Phase, height: int, view: int, block_id: Id) -> Vote:
    unsigned = Vote(phase, height, view, block_id, key.id, bytes(SIGNATURE_BYTES))
    return Vote(phase, height, view, block_id, key.id, key.sign(VOTE_TAG, chain_id, vote_fields(unsigned)))


def _check_certificate(certificate: Certificate, error: _Error) -> None:
    _check(error, "certificate view", certificate.view, 0, MAX_U32)
    _check(error, "number of certificate signatures", len(certificate.signatures), 1, MAX_MEMBERS)
    last = -1
    for index, signature in certificate.signatures:
        _check(error, "certificate member index (sorted, one of each)", index, last + 1, MAX_U16)
        _check_size(error, "certificate signature", signature, SIGNATURE_BYTES)
        last = index


def encode_certificate(certificate: Certificate) -> bytes:
    _check_certificate(certificate, EncodeError)
    return _CERTIFICATE.pack(certificate.view, len(certificate.signatures)) + b"".join(
        _CERTIFICATE_ENTRY.pack(index, signature) for index, signature in certificate.signatures
    )


def decode_certificate(data: bytes) -> Certificate:
    reader = _Reader("certificate", data, MAX_CERTIFICATE_BYTES)
    view, count = _CERTIFICATE.unpack(reader.take(_CERTIFICATE.size))
    _check(DecodeError, "number of certificate signatures", count, 1, MAX_MEMBERS)
    signatures = tuple(_CERTIFICATE_ENTRY.unpack(reader.take(_CERTIFICATE_ENTRY.size)) for _ in range(count))
    reader.end()
    certificate = Certificate(view, signatures)
    _check_certificate(certificate, DecodeError)
    return certificate


# Evidence

_EVIDENCE_MAX_BYTES = {
    EvidenceKind.CONTRIBUTION: MAX_CONTRIBUTION_BYTES,
    EvidenceKind.CANDIDATE: MAX_BLOCK_BYTES,
    EvidenceKind.VOTE: MAX_VOTE_BYTES,
}


def _check_evidence(evidence: Evidence, error: _Error) -> None:
    _check(error, "evidence kind", evidence.kind, EvidenceKind.CONTRIBUTION, EvidenceKind.VOTE)
    for data in (evidence.first, evidence.second):
        _check(error, "size of an object in evidence", len(data), 1, _EVIDENCE_MAX_BYTES[evidence.kind])
    if evidence.first >= evidence.second:
        raise error("evidence: expected two different objects, the smaller first, got them equal or swapped")


def make_evidence(first: Contribution | Block | Vote, second: Contribution | Block | Vote) -> Evidence:
    """Two signed objects of one kind, put in order. Whether they prove anything, `validate_evidence` says."""
    if isinstance(first, Contribution) and isinstance(second, Contribution):
        kind, a, b = EvidenceKind.CONTRIBUTION, encode_contribution(first), encode_contribution(second)
    elif isinstance(first, Block) and isinstance(second, Block):
        kind, a, b = EvidenceKind.CANDIDATE, encode_block(first), encode_block(second)
    elif isinstance(first, Vote) and isinstance(second, Vote):
        kind, a, b = EvidenceKind.VOTE, encode_vote(first), encode_vote(second)
    else:
        raise EncodeError.differs("evidence", "two objects of one kind", (type(first).__name__, type(second).__name__))
    evidence = Evidence(kind, min(a, b), max(a, b))
    _check_evidence(evidence, EncodeError)
    return evidence


def encode_evidence(evidence: Evidence) -> bytes:
    _check_evidence(evidence, EncodeError)
    return b"".join(
        (
            _U8.pack(evidence.kind),
            _U32.pack(len(evidence.first)),
            evidence.first,
            _U32.pack(len(evidence.second)),
            evidence.second,
        )
    )


def decode_evidence(data: bytes) -> Evidence:
    """The two objects as bytes; they are decoded and checked when the evidence is validated."""
    reader = _Reader("evidence", data, MAX_EVIDENCE_BYTES)
    kind = reader.number(_U8)
    _check(DecodeError, "evidence kind", kind, EvidenceKind.CONTRIBUTION, EvidenceKind.VOTE)
    first = reader.take(reader.number(_U32))
    second = reader.take(reader.number(_U32))
    reader.end()
    evidence = Evidence(EvidenceKind(kind), first, second)
    _check_evidence(evidence, DecodeError)
    return evidence
