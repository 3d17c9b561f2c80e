"""The bytes of every object, exactly as PROTOCOL §1 lays them out: fixed, big-endian, one encoding per object.

Lists carry a count and are sorted. A decoder checks length, ranges and order, so that `encode(decode(b)) == b` for
whatever it accepts; anything else is a DecodeError. What an object means is `chain.validation`'s business.

    Contribution  height u64 | prev 32 | author 32 | weight u32, its highest bit set where there is a measure
                  | count u8, since protocol 3 with its highest bit | since protocol 3: opened 32 | commitment 32
                  | if it measures: samples u32 | value u32 | count x (kind u8 | digest 32 | size u64) | sig 64
    Header        ver u16 | height u64 | prev 32 | body 32 | aggregate 32 | state_next 32 | miner 32
                  | start_ms u64 | time_ms u64 | difficulty u64                          194 B, 202 with nonce
    Body          kind u8 | 0: count u16 | contributions by author; 1: an approved change (`chain.approvals`)
    Block         header | nonce u64 | body | sig 64
    Vote          phase u8 | height u64 | view u32 | block id 32 | voter 32 | sig 64
    Certificate   view u32 | count u16 | count x (member index u16 | sig 64)
    Sealed header header | nonce u64 | sig 64
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from operator import attrgetter

from chain.approvals import encode_approved, read_approved
from chain.beacon import NO_REVEAL, Reveal
from chain.block import (
    Block,
    Body,
    Certificate,
    Contribution,
    Digest,
    Header,
    Id,
    Measure,
    PayloadRef,
    Phase,
    SealedHeader,
    Vote,
)
from chain.errors import DecodeError, EncodeError
from chain.layout import (
    MAX_HEIGHT,
    MAX_TIME_MS,
    MAX_U16,
    MAX_U32,
    MAX_U64,
    U8,
    U16,
    U64,
    WEIGHT_LIMIT,
    Error,
    Reader,
    check,
    check_size,
    read_all,
)
from chain.signing import SIGNATURE_BYTES, SigningKey, tag

SEAL_TAG = tag("seal")
BODY_TAG = tag("body")
CONTRIBUTION_TAG = tag("contribution")
BLOCK_TAG = tag("block")
VOTE_TAG = tag("vote")

HEADER_BYTES = 194
MAX_CONTRIBUTION_BYTES = 4096
MAX_BLOCK_BYTES = 256 * 1024
MAX_VOTE_BYTES = 512
MAX_CERTIFICATE_BYTES = 64 * 1024
SEALED_HEADER_BYTES = HEADER_BYTES + 8 + SIGNATURE_BYTES

ROUND_BODY, CHANGE_BODY, INPUTS_BODY, OPENINGS_BODY = range(4)  # the last two are reserved for masked sums

_CONTRIBUTION = struct.Struct(">Q32s32sIB")
_PAYLOAD = struct.Struct(">B32sQ")
_HEADER = struct.Struct(">HQ32s32s32s32s32sQQQ")
_VOTE = struct.Struct(">BQI32s32s")
_CERTIFICATE = struct.Struct(">IH")
_CERTIFICATE_ENTRY = struct.Struct(f">H{SIGNATURE_BYTES}s")

REVEALS = 0x80  # in the count of a contribution's payloads: it commits and opens
_REVEAL = struct.Struct(">32s32s")
MEASURES = 0x8000_0000  # in a contribution's weight: it measures the round before
_MEASURE = struct.Struct(">II")
MAX_PAYLOADS = (MAX_CONTRIBUTION_BYTES - _CONTRIBUTION.size - SIGNATURE_BYTES) // _PAYLOAD.size
MAX_PAYLOADS_REVEALING = MAX_PAYLOADS - -(-_REVEAL.size // _PAYLOAD.size)
MAX_PAYLOADS_MEASURING = (
    MAX_CONTRIBUTION_BYTES - _CONTRIBUTION.size - SIGNATURE_BYTES - _REVEAL.size - _MEASURE.size
) // _PAYLOAD.size
MAX_MEMBERS = (MAX_CERTIFICATE_BYTES - _CERTIFICATE.size) // _CERTIFICATE_ENTRY.size

# Contribution


def _check_contribution(c: Contribution, error: Error) -> None:
    check(error, "contribution height", c.height, 1, MAX_HEIGHT)
    check_size(error, "contribution prev", c.prev, 32)
    check_size(error, "contribution author", c.author, 32)
    check(error, "contribution weight", c.weight, 1, WEIGHT_LIMIT - 1)
    check(error, "number of payloads", len(c.payloads), 0, _count_payloads(c))
    for name in ("opened", "commitment"):
        check_size(error, f"contribution {name}", getattr(c, name), 32 if c.opened or c.commitment else 0)
    if c.measure is not None:
        check(error, "contribution measure: samples", c.measure.samples, 1, WEIGHT_LIMIT - 1)
        check(error, "contribution measure: value", c.measure.value, 0, MAX_U32)
    last_kind = 0
    for payload in c.payloads:
        check(error, "payload kind (sorted, one of each)", payload.kind, last_kind + 1, 255)
        check_size(error, "payload digest", payload.digest, 32)
        check(error, "payload size", payload.size, 1, MAX_U64)
        last_kind = payload.kind


def _count_payloads(c: Contribution) -> int:
    """Returns the most payloads for which there is room."""
    if c.measure is not None:
        return MAX_PAYLOADS_MEASURING
    return MAX_PAYLOADS_REVEALING if c.commitment else MAX_PAYLOADS


def contribution_fields(c: Contribution) -> bytes:
    """Returns the bytes that the author signs: everything but the signature."""
    _check_contribution(c, EncodeError)
    count = len(c.payloads) | (REVEALS if c.commitment else 0)
    weight = c.weight | (0 if c.measure is None else MEASURES)
    return b"".join(
        (
            _CONTRIBUTION.pack(c.height, c.prev, c.author, weight, count),
            c.opened,
            c.commitment,
            b"" if c.measure is None else _MEASURE.pack(c.measure.samples, c.measure.value),
            *(_PAYLOAD.pack(p.kind, p.digest, p.size) for p in c.payloads),
        )
    )


def encode_contribution(c: Contribution) -> bytes:
    check_size(EncodeError, "contribution signature", c.signature, SIGNATURE_BYTES)
    return contribution_fields(c) + c.signature


def _read_contribution(reader: Reader) -> Contribution:
    height, prev, author, weight, count = _CONTRIBUTION.unpack(reader.take(_CONTRIBUTION.size))
    reveal = Reveal(*_REVEAL.unpack(reader.take(_REVEAL.size))) if count & REVEALS else NO_REVEAL
    measure = Measure(*_MEASURE.unpack(reader.take(_MEASURE.size))) if weight & MEASURES else None
    count, weight = count & ~REVEALS, weight & ~MEASURES
    check(DecodeError, "number of payloads", count, 0, MAX_PAYLOADS)
    payloads = tuple(PayloadRef(*_PAYLOAD.unpack(reader.take(_PAYLOAD.size))) for _ in range(count))
    c = Contribution(height, prev, author, weight, payloads, reader.take(SIGNATURE_BYTES), *reveal, measure)
    _check_contribution(c, DecodeError)
    return c


def read_contribution_height(data: bytes) -> int:
    """Returns the height in the bytes of a contribution, without checking the rest; 0 if the bytes are too few."""
    return int(U64.unpack_from(data)[0]) if len(data) >= U64.size else 0


def read_vote_height(data: bytes) -> int:
    """Returns the height in the bytes of a vote, without checking the rest; 0 if the bytes are too few."""
    return int(U64.unpack_from(data, 1)[0]) if len(data) > U64.size else 0


def read_author(data: bytes) -> Id:
    """Returns the author of a contribution whose bytes were decoded before."""
    author: Id = _CONTRIBUTION.unpack_from(data)[2]
    return author


def decode_contribution(data: bytes) -> Contribution:
    return read_all("contribution", data, MAX_CONTRIBUTION_BYTES, _read_contribution)


def sign_contribution(
    key: SigningKey,
    chain_id: bytes,
    *,
    height: int,
    prev: Id,
    weight: int,
    payloads: Sequence[PayloadRef],
    reveal: Reveal = NO_REVEAL,
    measure: Measure | None = None,
) -> Contribution:
    """Returns a contribution signed by `key`; payloads are sorted by kind."""
    ordered = tuple(sorted(payloads, key=lambda payload: payload.kind))
    unsigned = Contribution(height, prev, key.id, weight, ordered, bytes(SIGNATURE_BYTES), *reveal, measure)
    return replace(unsigned, signature=key.sign(CONTRIBUTION_TAG, chain_id, contribution_fields(unsigned)))


# Header, seal, id


def _check_header(h: Header, error: Error) -> None:
    check(error, "header version", h.version, 1, MAX_U16)
    check(error, "header height", h.height, 0, MAX_HEIGHT)
    for name in ("prev", "body", "aggregate", "state_next", "miner"):
        check_size(error, f"header {name}", getattr(h, name), 32)
    check(error, "header start_ms", h.start_ms, 0, MAX_TIME_MS)
    check(error, "header time_ms", h.time_ms, 0, MAX_TIME_MS)
    check(error, "header difficulty", h.difficulty, 1, MAX_U64)


_get_header_fields = attrgetter(
    "version", "height", "prev", "body", "aggregate", "state_next", "miner", "start_ms", "time_ms", "difficulty"
)


def encode_header(h: Header) -> bytes:
    """Returns the 194 bytes that are sealed; the nonce is not among them."""
    _check_header(h, EncodeError)
    return _HEADER.pack(*_get_header_fields(h))


def _read_header(reader: Reader) -> Header:
    h = Header(*_HEADER.unpack(reader.take(_HEADER.size)))
    _check_header(h, DecodeError)
    return h


def decode_header(data: bytes) -> Header:
    return read_all("header", data, HEADER_BYTES, _read_header)


def compute_seal(chain_id: bytes, header: Header) -> bytes:
    """Returns the 32 bytes that mining hashes with each nonce, however long the header."""
    check_size(EncodeError, "chain id", chain_id, 32)
    return hashlib.sha256(SEAL_TAG + chain_id + encode_header(header)).digest()


def compute_block_id(seal: bytes, nonce: int) -> Id:
    check(EncodeError, "nonce", nonce, 0, MAX_U64)
    return hashlib.sha256(seal + U64.pack(nonce)).digest()


# Body and block


def _check_order(contributions: Sequence[Contribution], error: Error) -> None:
    check(error, "number of contributions", len(contributions), 0, MAX_MEMBERS)
    for before, after in pairwise(contributions):
        if before.author >= after.author:
            raise error(
                f"body: expected contributions sorted by author, one each, "
                f"got {before.author.hex()} before {after.author.hex()}"
            )


def _check_body(body: Body, error: Error) -> None:
    if body.change is None:
        _check_order(body.contributions, error)
    elif body.contributions:
        raise error("body: expected a change alone, got contributions beside it")


def encode_body(body: Body) -> bytes:
    _check_body(body, EncodeError)
    if body.change is not None:
        return U8.pack(CHANGE_BODY) + encode_approved(body.change)
    count = len(body.contributions)
    return b"".join((U8.pack(ROUND_BODY), U16.pack(count), *(encode_contribution(c) for c in body.contributions)))


def _read_body(reader: Reader) -> Body:
    kind = reader.number(U8)
    check(DecodeError, "kind of body", kind, ROUND_BODY, CHANGE_BODY)
    if kind == CHANGE_BODY:
        return Body(change=read_approved(reader))
    count = reader.number(U16)
    check(DecodeError, "number of contributions", count, 0, MAX_MEMBERS)
    body = Body(tuple(_read_contribution(reader) for _ in range(count)))
    _check_body(body, DecodeError)
    return body


def decode_body(data: bytes) -> Body:
    return read_all("body", data, MAX_BLOCK_BYTES, _read_body)


def compute_body_digest(body: Body) -> Digest:
    return hashlib.sha256(BODY_TAG + encode_body(body)).digest()


def encode_block(block: Block) -> bytes:
    check(EncodeError, "nonce", block.nonce, 0, MAX_U64)
    check_size(EncodeError, "block signature", block.signature, SIGNATURE_BYTES)
    data = b"".join((encode_header(block.header), U64.pack(block.nonce), encode_body(block.body), block.signature))
    if len(data) > MAX_BLOCK_BYTES:
        raise EncodeError(f"block: expected at most {MAX_BLOCK_BYTES} bytes, got {len(data)}")
    return data


def decode_block(chain_id: bytes, data: bytes) -> Block:
    """Returns the block with its id, which needs the chain id because the seal does."""
    reader = Reader("block", data, MAX_BLOCK_BYTES)
    header = _read_header(reader)
    nonce = reader.number(U64)
    body = _read_body(reader)
    signature = reader.take(SIGNATURE_BYTES)
    reader.end()
    return Block(header, nonce, body, signature, compute_block_id(compute_seal(chain_id, header), nonce))


def make_block(chain_id: bytes, header: Header, nonce: int, body: Body, key: SigningKey) -> Block:
    """Returns the miner's signed block for a nonce that was found, without checking its proof of work."""
    block_id = compute_block_id(compute_seal(chain_id, header), nonce)
    return Block(header, nonce, body, key.sign(BLOCK_TAG, chain_id, block_id), block_id)


def encode_sealed_header(sealed: Block | SealedHeader) -> bytes:
    """Returns the bytes of a block without its body."""
    check(EncodeError, "nonce", sealed.nonce, 0, MAX_U64)
    check_size(EncodeError, "block signature", sealed.signature, SIGNATURE_BYTES)
    return encode_header(sealed.header) + U64.pack(sealed.nonce) + sealed.signature


def decode_sealed_header(chain_id: bytes, data: bytes) -> SealedHeader:
    reader = Reader("sealed header", data, SEALED_HEADER_BYTES)
    header = _read_header(reader)
    nonce = reader.number(U64)
    signature = reader.take(SIGNATURE_BYTES)
    reader.end()
    return SealedHeader(header, nonce, signature, compute_block_id(compute_seal(chain_id, header), nonce))


# Vote and certificate


def _check_vote(vote: Vote, error: Error) -> None:
    check(error, "vote phase", vote.phase, Phase.PREVOTE, Phase.PRECOMMIT)
    check(error, "vote height", vote.height, 1, MAX_HEIGHT)
    check(error, "vote view", vote.view, 0, MAX_U32)
    check_size(error, "vote block id", vote.block_id, 32)
    check_size(error, "vote voter", vote.voter, 32)


def vote_fields(vote: Vote) -> bytes:
    """Returns the bytes that the voter signs: everything but the signature."""
    _check_vote(vote, EncodeError)
    return _VOTE.pack(vote.phase, vote.height, vote.view, vote.block_id, vote.voter)


def encode_vote(vote: Vote) -> bytes:
    check_size(EncodeError, "vote signature", vote.signature, SIGNATURE_BYTES)
    return vote_fields(vote) + vote.signature


def decode_vote(data: bytes) -> Vote:
    reader = Reader("vote", data, MAX_VOTE_BYTES)
    phase, height, view, block_id, voter = _VOTE.unpack(reader.take(_VOTE.size))
    signature = reader.take(SIGNATURE_BYTES)
    reader.end()
    check(DecodeError, "vote phase", phase, Phase.PREVOTE, Phase.PRECOMMIT)
    vote = Vote(Phase(phase), height, view, block_id, voter, signature)
    _check_vote(vote, DecodeError)
    return vote


def sign_vote(key: SigningKey, chain_id: bytes, *, phase: Phase, height: int, view: int, block_id: Id) -> Vote:
    unsigned = Vote(phase, height, view, block_id, key.id, bytes(SIGNATURE_BYTES))
    return Vote(phase, height, view, block_id, key.id, key.sign(VOTE_TAG, chain_id, vote_fields(unsigned)))


def _check_certificate(certificate: Certificate, error: Error) -> None:
    check(error, "certificate view", certificate.view, 0, MAX_U32)
    check(error, "number of certificate signatures", len(certificate.signatures), 1, MAX_MEMBERS)
    last = -1
    for index, signature in certificate.signatures:
        check(error, "certificate member index (sorted, one of each)", index, last + 1, MAX_U16)
        check_size(error, "certificate signature", signature, SIGNATURE_BYTES)
        last = index


def encode_certificate(certificate: Certificate) -> bytes:
    _check_certificate(certificate, EncodeError)
    return _CERTIFICATE.pack(certificate.view, len(certificate.signatures)) + b"".join(
        _CERTIFICATE_ENTRY.pack(index, signature) for index, signature in certificate.signatures
    )


def decode_certificate(data: bytes) -> Certificate:
    reader = Reader("certificate", data, MAX_CERTIFICATE_BYTES)
    view, count = _CERTIFICATE.unpack(reader.take(_CERTIFICATE.size))
    check(DecodeError, "number of certificate signatures", count, 1, MAX_MEMBERS)
    signatures = tuple(_CERTIFICATE_ENTRY.unpack(reader.take(_CERTIFICATE_ENTRY.size)) for _ in range(count))
    reader.end()
    certificate = Certificate(view, signatures)
    _check_certificate(certificate, DecodeError)
    return certificate
