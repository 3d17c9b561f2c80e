"""The bytes of every object: golden vectors, round trips, and that no other bytes are taken for them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain import codec
from chain.approvals import (
    APPROVAL_BYTES,
    APPROVAL_TAG,
    MAX_CHANGE_BYTES,
    READINESS_BYTES,
    READINESS_TAG,
    approval_fields,
    decode_approval,
    decode_readiness,
    encode_approval,
    encode_readiness,
    readiness_fields,
)
from chain.block import (
    ZERO,
    Answer,
    Approval,
    ApprovedChange,
    Block,
    Body,
    Certificate,
    Contribution,
    Evidence,
    EvidenceKind,
    Header,
    PayloadRef,
    Phase,
    Readiness,
    SealedHeader,
    Vote,
)
from chain.errors import DecodeError, EncodeError
from chain.evidence import MAX_EVIDENCE_BYTES, decode_evidence, encode_evidence, make_evidence
from chain.layout import MAX_HEIGHT, MAX_TIME_MS, MAX_U16, MAX_U32, MAX_U64, WEIGHT_LIMIT
from chain.signing import compute_sign_bytes, verify
from chain.state import State
from support.data.chain_vectors import compute_vectors, load_vectors, make_vector_chain
from support.data.chains import make_digest, make_keys

VECTORS = load_vectors()
CHAIN = make_digest("a chain")

# Strategies: well-formed objects whose signatures are arbitrary bytes

digests = st.binary(min_size=32, max_size=32)
signatures = st.binary(min_size=64, max_size=64)
heights = st.integers(1, MAX_HEIGHT)
times = st.integers(0, MAX_TIME_MS)
payload_lists = st.lists(
    st.builds(PayloadRef, st.integers(1, 255), digests, st.integers(1, MAX_U64)),
    max_size=4,
    unique_by=lambda payload: payload.kind,
).map(lambda payloads: tuple(sorted(payloads, key=lambda payload: payload.kind)))
contributions = st.builds(
    Contribution, heights, digests, digests, st.integers(1, WEIGHT_LIMIT - 1), payload_lists, signatures
)
answers = st.lists(
    st.tuples(st.integers(0, MAX_U16), st.sampled_from(Answer), signatures), max_size=3, unique_by=lambda a: a[0]
).map(lambda entries: tuple(sorted(entries)))
readiness_lists = st.lists(
    st.tuples(digests, st.integers(0, MAX_HEIGHT), digests, signatures), max_size=2, unique_by=lambda r: r[0]
).map(lambda entries: tuple(sorted(entries)))
rounds = st.lists(contributions, max_size=3, unique_by=lambda c: c.author).map(
    lambda body: Body(tuple(sorted(body, key=lambda c: c.author)))
)
changes = st.builds(ApprovedChange, st.binary(min_size=1, max_size=200), answers, readiness_lists).map(
    lambda approved: Body(change=approved)
)
bodies = rounds | changes
headers = st.builds(
    Header,
    version=st.integers(1, MAX_U16),
    height=st.integers(0, MAX_HEIGHT),
    prev=digests,
    body=digests,
    aggregate=digests,
    state_next=digests,
    miner=digests,
    start_ms=times,
    time_ms=times,
    difficulty=st.integers(1, MAX_U64),
)


def make_unsigned_block(header: Header, nonce: int, body: Body, signature: bytes) -> Block:
    block_id = codec.compute_block_id(codec.compute_seal(CHAIN, header), nonce)
    return Block(header, nonce, body, signature, block_id)


blocks = st.builds(make_unsigned_block, headers, st.integers(0, MAX_U64), bodies, signatures)
sealed_headers = st.builds(
    lambda block: SealedHeader(block.header, block.nonce, block.signature, block.id),
    st.builds(make_unsigned_block, headers, st.integers(0, MAX_U64), st.just(Body()), signatures),
)
approvals = st.builds(Approval, digests, st.sampled_from(Answer), digests, signatures)
readiness = st.builds(Readiness, digests, digests, st.integers(0, MAX_HEIGHT), digests, signatures)
votes = st.builds(Vote, st.sampled_from(Phase), heights, st.integers(0, MAX_U32), digests, digests, signatures)
certificates = st.builds(
    Certificate,
    st.integers(0, MAX_U32),
    st.lists(st.tuples(st.integers(0, MAX_U16), signatures), min_size=1, max_size=4, unique_by=lambda s: s[0]).map(
        lambda entries: tuple(sorted(entries))
    ),
)
evidences = st.builds(
    lambda kind, pair: Evidence(kind, min(pair), max(pair)),
    st.sampled_from(EvidenceKind),
    st.lists(st.binary(min_size=1, max_size=codec.SEALED_HEADER_BYTES), min_size=2, max_size=2, unique=True),
)


def decode_block(data: bytes) -> Block:
    return codec.decode_block(CHAIN, data)


def decode_sealed_header(data: bytes) -> SealedHeader:
    return codec.decode_sealed_header(CHAIN, data)


Codec = tuple[st.SearchStrategy[Any], Callable[[Any], bytes], Callable[[bytes], Any]]
CODECS: dict[str, Codec] = {
    "contribution": (contributions, codec.encode_contribution, codec.decode_contribution),
    "header": (headers, codec.encode_header, codec.decode_header),
    "sealed header": (sealed_headers, codec.encode_sealed_header, decode_sealed_header),
    "round body": (rounds, codec.encode_body, codec.decode_body),
    "change body": (changes, codec.encode_body, codec.decode_body),
    "approval": (approvals, encode_approval, decode_approval),
    "readiness": (readiness, encode_readiness, decode_readiness),
    "block": (blocks, codec.encode_block, decode_block),
    "vote": (votes, codec.encode_vote, codec.decode_vote),
    "certificate": (certificates, codec.encode_certificate, codec.decode_certificate),
    "evidence": (evidences, encode_evidence, decode_evidence),
}
every_kind = pytest.mark.parametrize("kind", CODECS)


# Golden vectors


@pytest.fixture(scope="module")
def computed() -> dict[str, str]:
    return compute_vectors(VECTORS["given"])


@pytest.mark.parametrize("name", VECTORS["hex"])
def test_golden_vector(name: str, computed: dict[str, str]) -> None:
    assert computed[name] == VECTORS["hex"][name], "a change is a fork: see chain_vectors.py"


def test_no_golden_vector_is_missing(computed: dict[str, str]) -> None:
    assert set(computed) == set(VECTORS["hex"])


def test_the_vectors_decode_to_what_made_them() -> None:
    genesis, _, block = make_vector_chain(VECTORS["given"])
    stored = {name: bytes.fromhex(text) for name, text in VECTORS["hex"].items()}
    assert codec.decode_block(genesis.chain_id, stored["block 1"]) == block
    assert codec.decode_block(genesis.chain_id, stored["block 0"]) == genesis.block0
    assert codec.decode_contribution(stored["contribution"]) == block.contributions[0]
    assert codec.decode_body(stored["body"]) == block.body
    change_body = codec.decode_body(stored["change body"])
    assert change_body.change is not None
    assert change_body.change.change == stored["change"]
    assert [(index, answer) for index, answer, _ in change_body.change.answers] == [(i, Answer.YES) for i in (0, 1, 3)]
    approval, ready = decode_approval(stored["approval"]), decode_readiness(stored["readiness"])
    assert (approval.change_id, ready.change_id) == (stored["change id"], stored["change id"])
    assert change_body.change.answers[0][2] == approval.signature
    assert change_body.change.readiness == ((ready.key, 1, block.id, ready.signature),)
    assert State.decode(genesis.chain_id, stored["state canonical"]) == genesis.state
    assert State.decode(genesis.chain_id, stored["state after the change"]).n == 5
    assert codec.decode_vote(stored["nil prevote"]).block_id == ZERO
    assert [index for index, _ in codec.decode_certificate(stored["certificate"]).signatures] == [0, 1, 3]


# Layouts by hand


def test_header_layout_by_hand() -> None:
    header = Header(1, 2, b"p" * 32, b"b" * 32, b"a" * 32, b"m" * 32, b"k" * 32, 3, 4, 5)
    data = codec.encode_header(header)
    u64 = [number.to_bytes(8, "big") for number in range(6)]
    assert (
        data == b"\0\1" + u64[2] + b"p" * 32 + b"b" * 32 + b"a" * 32 + b"m" * 32 + b"k" * 32 + u64[3] + u64[4] + u64[5]
    )
    assert len(data) == codec.HEADER_BYTES == 194
    seal = hashlib.sha256(b"fn1.seal".ljust(16, b"\0") + CHAIN + data).digest()
    assert codec.compute_seal(CHAIN, header) == seal
    block_id = hashlib.sha256(seal + bytes(7) + b"\7").digest()
    assert codec.compute_block_id(seal, 7) == block_id
    sealed = SealedHeader(header, 7, b"s" * 64, block_id)
    stated = data + bytes(7) + b"\7" + b"s" * 64
    assert codec.encode_sealed_header(sealed) == stated
    assert codec.encode_sealed_header(Block(header, 7, Body(), b"s" * 64, block_id)) == stated
    assert decode_sealed_header(stated) == sealed
    assert codec.SEALED_HEADER_BYTES == 194 + 8 + 64


def test_contribution_layout_by_hand() -> None:
    c = Contribution(
        1, b"p" * 32, b"a" * 32, 258, (PayloadRef(1, b"d" * 32, 3), PayloadRef(2, b"e" * 32, 4)), b"s" * 64
    )
    first, second = b"\1" + b"d" * 32 + bytes(7) + b"\3", b"\2" + b"e" * 32 + bytes(7) + b"\4"
    fields = bytes(7) + b"\1" + b"p" * 32 + b"a" * 32 + b"\0\0\1\2" + b"\2" + first + second
    assert codec.contribution_fields(c) == fields
    assert codec.encode_contribution(c) == fields + b"s" * 64
    body = b"\0" + b"\0\1" + fields + b"s" * 64
    assert codec.encode_body(Body((c,))) == body
    assert codec.compute_body_digest(Body((c,))) == hashlib.sha256(b"fn1.body".ljust(16, b"\0") + body).digest()


def test_vote_certificate_and_evidence_layouts_by_hand() -> None:
    vote = Vote(Phase.PRECOMMIT, 1, 3, b"b" * 32, b"v" * 32, b"s" * 64)
    fields = b"\2" + bytes(7) + b"\1" + b"\0\0\0\3" + b"b" * 32 + b"v" * 32
    assert codec.vote_fields(vote) == fields
    assert codec.encode_vote(vote) == fields + b"s" * 64
    certificate = Certificate(3, ((0, b"s" * 64), (258, b"t" * 64)))
    assert codec.encode_certificate(certificate) == b"\0\0\0\3\0\2" + b"\0\0" + b"s" * 64 + b"\1\2" + b"t" * 64
    evidence = Evidence(EvidenceKind.VOTE, b"a", b"bc")
    assert encode_evidence(evidence) == b"\3" + b"\0\0\0\1a" + b"\0\0\0\2bc"


def test_change_body_layout_by_hand() -> None:
    approved = ApprovedChange(
        b"{}",
        ((0, Answer.YES, b"s" * 64), (258, Answer.YES_WITHOUT_TRAINING, b"t" * 64)),
        ((b"k" * 32, 3, b"b" * 32, b"r" * 64),),
    )
    answers = b"\0\0" + b"\1" + b"s" * 64 + b"\1\2" + b"\2" + b"t" * 64
    ready = b"k" * 32 + bytes(7) + b"\3" + b"b" * 32 + b"r" * 64
    body = b"\1" + b"\0\0\0\2{}" + b"\0\2" + answers + b"\1" + ready
    assert codec.encode_body(Body(change=approved)) == body
    assert codec.decode_body(body) == Body(change=approved)
    digest = hashlib.sha256(b"fn1.body".ljust(16, b"\0") + body).digest()
    assert codec.compute_body_digest(Body(change=approved)) == digest


def test_approval_and_readiness_layouts_by_hand() -> None:
    approval = Approval(b"c" * 32, Answer.YES_WITHOUT_TRAINING, b"v" * 32, b"s" * 64)
    assert encode_approval(approval) == b"c" * 32 + b"\2" + b"v" * 32 + b"s" * 64
    ready = Readiness(b"c" * 32, b"k" * 32, 3, b"b" * 32, b"s" * 64)
    assert encode_readiness(ready) == b"c" * 32 + b"k" * 32 + bytes(7) + b"\3" + b"b" * 32 + b"s" * 64


# Properties


@every_kind
def test_encode_and_decode_are_inverse(kind: str) -> None:
    strategy, encode, decode = CODECS[kind]

    @settings(deadline=None, max_examples=60)
    @given(strategy)
    def check(value: Any) -> None:
        assert decode(encode(value)) == value

    check()


@every_kind
def test_decode_accepts_only_what_encode_gives(kind: str) -> None:
    strategy, encode, decode = CODECS[kind]

    @settings(deadline=None, max_examples=200)
    @given(strategy, st.data())
    def check(value: Any, data: st.DataObject) -> None:
        changed = bytearray(encode(value))
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, len(changed)))
            cut = data.draw(st.integers(0, 9))
            changed[at : at + cut] = data.draw(st.binary(max_size=9))
        try:
            decoded = decode(bytes(changed))
        except DecodeError:
            return
        assert encode(decoded) == bytes(changed)

    check()


@every_kind
def test_arbitrary_bytes_are_refused_or_decoded_and_nothing_else(kind: str) -> None:
    _, encode, decode = CODECS[kind]

    @settings(deadline=None, max_examples=200)
    @given(st.binary(max_size=400))
    def check(data: bytes) -> None:
        try:
            decoded = decode(data)
        except DecodeError:
            return
        assert encode(decoded) == data

    check()


@every_kind
def test_every_truncation_and_any_trailing_byte_is_refused(kind: str) -> None:
    strategy, encode, decode = CODECS[kind]

    @settings(deadline=None, max_examples=5)
    @given(strategy)
    def check(value: Any) -> None:
        data = encode(value)
        for end in range(len(data)):
            with pytest.raises(DecodeError):
                decode(data[:end])
        with pytest.raises(DecodeError):
            decode(data + b"\0")

    check()


# Ranges and order

C = Contribution(1, ZERO, b"a" * 32, 1, (PayloadRef(1, ZERO, 1),), bytes(64))
H = Header(1, 1, ZERO, ZERO, ZERO, ZERO, ZERO, 0, 0, 1)
V = Vote(Phase.PREVOTE, 1, 0, ZERO, ZERO, bytes(64))
CHANGE = Body(change=ApprovedChange(b"{}"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"height": 0}, "height: expected 1"),
        ({"height": 2**63}, "height"),
        ({"prev": b""}, "prev: expected 32 bytes, got 0"),
        ({"author": bytes(33)}, "author"),
        ({"weight": 0}, "weight: expected 1 to 536870911, got 0"),
        ({"weight": 2**29}, "weight: expected 1 to 536870911, got 536870912"),
        ({"payloads": (PayloadRef(0, ZERO, 1),)}, "kind"),
        ({"payloads": (PayloadRef(2, ZERO, 1), PayloadRef(1, ZERO, 1))}, "kind .sorted"),
        ({"payloads": (PayloadRef(1, ZERO, 1), PayloadRef(1, ZERO, 1))}, "kind .sorted"),
        ({"payloads": (PayloadRef(1, ZERO, 0),)}, "size"),
        ({"payloads": (PayloadRef(1, ZERO, 2**64),)}, "size"),
        ({"payloads": (PayloadRef(1, b"", 1),)}, "digest"),
        ({"payloads": tuple(PayloadRef(i, ZERO, 1) for i in range(1, 98))}, "number of payloads"),
        ({"signature": bytes(63)}, "signature"),
    ],
)
def test_a_contribution_out_of_range_is_not_encoded(change: dict[str, Any], message: str) -> None:
    with pytest.raises(EncodeError, match=message):
        codec.encode_contribution(replace(C, **change))


def test_the_largest_contribution_fits_its_limit() -> None:
    most = replace(C, payloads=tuple(PayloadRef(i, ZERO, 1) for i in range(1, codec.MAX_PAYLOADS + 1)))
    data = codec.encode_contribution(most)
    assert len(data) <= codec.MAX_CONTRIBUTION_BYTES < len(data) + 41
    assert codec.decode_contribution(data) == most


def test_a_contribution_without_payloads_is_well_formed() -> None:
    bare = replace(C, payloads=())
    assert codec.decode_contribution(codec.encode_contribution(bare)) == bare


@pytest.mark.parametrize(
    ("at", "patch", "message"),
    [
        (0, bytes(8), "height: expected 1"),
        (72, bytes(4), "weight"),
        (72, b"\x20\0\0\0", "weight"),
        (76, b"\x7f", "number of payloads: expected 0 to 96, got 127"),
        (76, b"\xff", "number of payloads: expected 0 to 96, got 127"),
        (77, b"\0", "kind"),
    ],
)
def test_a_contribution_out_of_range_is_not_decoded(at: int, patch: bytes, message: str) -> None:
    data = bytearray(codec.encode_contribution(C))
    data[at : at + len(patch)] = patch
    with pytest.raises(DecodeError, match=message):
        codec.decode_contribution(bytes(data))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 0}, "version"),
        ({"version": 2**16}, "version: expected 1 to 65535, got 65536"),
        ({"height": -1}, "height"),
        ({"miner": b"x"}, "miner: expected 32 bytes, got 1"),
        ({"time_ms": MAX_TIME_MS + 1}, "time_ms"),
        ({"start_ms": -1}, "start_ms"),
        ({"difficulty": 0}, "difficulty"),
        ({"difficulty": 2**64}, "difficulty"),
    ],
)
def test_a_header_out_of_range_is_not_encoded(change: dict[str, Any], message: str) -> None:
    with pytest.raises(EncodeError, match=message):
        codec.encode_header(replace(H, **change))


@pytest.mark.parametrize(
    ("at", "patch", "message"),
    [(0, b"\0\0", "version"), (2, b"\xff" * 8, "height"), (178, b"\xff" * 8, "time_ms"), (186, bytes(8), "difficulty")],
)
def test_a_header_out_of_range_is_not_decoded(at: int, patch: bytes, message: str) -> None:
    data = bytearray(codec.encode_header(H))
    data[at : at + len(patch)] = patch
    with pytest.raises(DecodeError, match=message):
        codec.decode_header(bytes(data))


def test_a_body_out_of_order_or_with_an_author_twice_is_refused() -> None:
    later = replace(C, author=b"b" * 32)
    one, two = codec.encode_contribution(C), codec.encode_contribution(later)
    assert codec.decode_body(b"\0\0\2" + one + two) == Body((C, later))
    for pair in (two + one, one + one):
        with pytest.raises(DecodeError, match="sorted by author"):
            codec.decode_body(b"\0\0\2" + pair)
    for contributions in ((later, C), (C, C)):
        with pytest.raises(EncodeError, match="sorted by author"):
            codec.encode_body(Body(contributions))


@pytest.mark.parametrize("kind", [codec.INPUTS_BODY, codec.OPENINGS_BODY, 4, 255])
def test_a_body_is_a_round_or_a_change(kind: int) -> None:
    """The kinds of masked sums are set aside, and not in use."""
    for rest in (b"\0\0", codec.encode_body(Body())[1:], codec.encode_body(CHANGE)[1:]):
        with pytest.raises(DecodeError, match=f"kind of body.*: expected 0 to 1, got {kind}"):
            codec.decode_body(bytes([kind]) + rest)


def test_a_body_is_never_both() -> None:
    with pytest.raises(EncodeError, match="a change alone, got contributions beside it"):
        codec.encode_body(replace(CHANGE, contributions=(C,)))


def test_a_change_body_out_of_order_is_refused() -> None:
    first, second = (0, Answer.YES, bytes(64)), (1, Answer.YES, bytes(64))
    early, late = (b"a" * 32, 1, ZERO, bytes(64)), (b"b" * 32, 1, ZERO, bytes(64))
    for answers, ready, message in (
        ((second, first), (), "member index .sorted"),
        ((first, first), (), "member index .sorted"),
        ((), (late, early), "ready keys sorted"),
        ((), (early, early), "ready keys sorted"),
    ):
        with pytest.raises(EncodeError, match=message):
            codec.encode_body(Body(change=ApprovedChange(b"{}", answers, ready)))
    head = b"\1" + b"\0\0\0\1x"
    pack_answer = [bytes([0, index, 1]) + bytes(64) for index in (0, 1)]
    pack_ready = [key + bytes(8) + ZERO + bytes(64) for key in (b"a" * 32, b"b" * 32)]
    codec.decode_body(head + b"\0\2" + b"".join(pack_answer) + b"\2" + b"".join(pack_ready))
    for entries in (pack_answer[::-1], pack_answer[:1] * 2):
        with pytest.raises(DecodeError, match=r"member index \(sorted"):
            codec.decode_body(head + b"\0\2" + b"".join(entries) + b"\0")
    for entries in (pack_ready[::-1], pack_ready[:1] * 2):
        with pytest.raises(DecodeError, match="ready keys sorted"):
            codec.decode_body(head + b"\0\0\2" + b"".join(entries))


@pytest.mark.parametrize("answer", [0, 3, 255])
def test_an_answer_is_one_of_two(answer: int) -> None:
    message = f"approval answer: expected 1 to 2, got {answer}"
    with pytest.raises(DecodeError, match=message):
        codec.decode_body(b"\1" + b"\0\0\0\1x" + b"\0\1" + b"\0\0" + bytes([answer]) + bytes(64) + b"\0")
    with pytest.raises(DecodeError, match=message):
        decode_approval(bytes(32) + bytes([answer]) + bytes(32 + 64))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"change": b""}, "size of the change"),
        ({"change": bytes(MAX_CHANGE_BYTES + 1)}, "size of the change"),
        ({"answers": ((-1, Answer.YES, bytes(64)),)}, "member index"),
        ({"answers": ((MAX_U16 + 1, Answer.YES, bytes(64)),)}, "member index"),
        ({"answers": ((0, 0, bytes(64)),)}, "answer: expected 1 to 2, got 0"),
        ({"answers": ((0, Answer.YES, b""),)}, "answer's signature"),
        ({"readiness": ((b"k", 1, ZERO, bytes(64)),)}, "ready key"),
        ({"readiness": ((ZERO, -1, ZERO, bytes(64)),)}, "height of readiness"),
        ({"readiness": ((ZERO, 2**63, ZERO, bytes(64)),)}, "height of readiness"),
        ({"readiness": ((ZERO, 1, b"", bytes(64)),)}, "block id of readiness"),
        ({"readiness": ((ZERO, 1, ZERO, b""),)}, "signature of readiness"),
    ],
)
def test_a_change_body_out_of_range_is_not_encoded(change: dict[str, Any], message: str) -> None:
    with pytest.raises(EncodeError, match=message):
        codec.encode_body(Body(change=replace(ApprovedChange(b"{}"), **change)))


def test_a_body_that_claims_more_than_there_can_be_is_refused_at_once() -> None:
    with pytest.raises(DecodeError, match="number of contributions"):
        codec.decode_body(b"\0\xff\xff")
    with pytest.raises(DecodeError, match="size of the change: expected 1 to 98304, got 98305"):
        codec.decode_body(b"\1" + (MAX_CHANGE_BYTES + 1).to_bytes(4, "big"))
    with pytest.raises(DecodeError, match="size of the change: expected 1 to 98304, got 0"):
        codec.decode_body(b"\1" + bytes(8))


def test_oversized_objects_are_refused_before_they_are_read() -> None:
    for decode, limit in (
        (codec.decode_contribution, codec.MAX_CONTRIBUTION_BYTES),
        (decode_block, codec.MAX_BLOCK_BYTES),
        (codec.decode_vote, codec.MAX_VOTE_BYTES),
        (codec.decode_body, codec.MAX_BLOCK_BYTES),
        (decode_sealed_header, codec.SEALED_HEADER_BYTES),
        (decode_approval, APPROVAL_BYTES),
        (decode_readiness, READINESS_BYTES),
        (codec.decode_certificate, codec.MAX_CERTIFICATE_BYTES),
        (decode_evidence, MAX_EVIDENCE_BYTES),
    ):
        with pytest.raises(DecodeError, match=f"expected at most {limit} bytes, got {limit + 1}"):
            decode(bytes(limit + 1))


def test_a_block_too_large_to_be_sent_is_not_encoded() -> None:
    payloads = tuple(PayloadRef(i, ZERO, 1) for i in range(1, 97))
    body = tuple(replace(C, author=i.to_bytes(32, "big"), payloads=payloads) for i in range(65))
    with pytest.raises(EncodeError, match=f"block: expected at most {codec.MAX_BLOCK_BYTES} bytes"):
        codec.encode_block(make_unsigned_block(H, 0, Body(body), bytes(64)))
    answers = tuple((i, Answer.YES, bytes(64)) for i in range(4000))
    with pytest.raises(EncodeError, match=f"block: expected at most {codec.MAX_BLOCK_BYTES} bytes"):
        codec.encode_block(make_unsigned_block(H, 0, Body(change=ApprovedChange(b"{}", answers)), bytes(64)))


def test_two_of_the_largest_objects_of_any_kind_fit_into_evidence_and_no_more() -> None:
    for kind, most in (
        (EvidenceKind.CONTRIBUTION, codec.MAX_CONTRIBUTION_BYTES),
        (EvidenceKind.CANDIDATE, codec.SEALED_HEADER_BYTES),
        (EvidenceKind.VOTE, codec.MAX_VOTE_BYTES),
    ):
        evidence = Evidence(kind, b"a" * most, b"b" * most)
        data = encode_evidence(evidence)
        assert len(data) <= MAX_EVIDENCE_BYTES
        assert decode_evidence(data) == evidence
        with pytest.raises(EncodeError, match=f"size of an object in evidence: expected 1 to {most}, got {most + 1}"):
            encode_evidence(replace(evidence, second=b"b" * (most + 1)))


def test_evidence_of_candidates_is_their_sealed_headers_whatever_they_held() -> None:
    payloads = tuple(PayloadRef(i, ZERO, 1) for i in range(1, 97))
    large = Body(tuple(replace(C, author=i.to_bytes(32, "big"), payloads=payloads) for i in range(60)))
    blocks = [make_unsigned_block(replace(H, body=body * 32), 0, large, bytes(64)) for body in (b"x", b"y")]
    evidence = make_evidence(*blocks)
    assert (evidence.first, evidence.second) == tuple(sorted(codec.encode_sealed_header(block) for block in blocks))
    assert len(encode_evidence(evidence)) == 9 + 2 * codec.SEALED_HEADER_BYTES
    with pytest.raises(EncodeError, match="equal"):  # a header commits to its body: the same one is no second statement
        make_evidence(blocks[0], replace(blocks[0], body=Body()))


def test_a_nonce_or_block_signature_out_of_range_is_not_encoded() -> None:
    block = make_unsigned_block(H, 0, Body(), bytes(64))
    with pytest.raises(EncodeError, match="nonce"):
        codec.encode_block(replace(block, nonce=2**64))
    with pytest.raises(EncodeError, match="nonce"):
        codec.encode_sealed_header(replace(block, nonce=2**64))
    with pytest.raises(EncodeError, match="signature"):
        codec.encode_sealed_header(replace(block, signature=b""))
    with pytest.raises(EncodeError, match="nonce"):
        codec.compute_block_id(ZERO, -1)
    with pytest.raises(EncodeError, match="signature"):
        codec.encode_block(replace(block, signature=b""))


def test_votes_out_of_range_are_refused() -> None:
    for change in ({"height": 0}, {"view": 2**32}, {"view": -1}, {"block_id": b""}, {"voter": b""}, {"signature": b""}):
        with pytest.raises(EncodeError):
            codec.encode_vote(replace(V, **change))
    data = codec.encode_vote(V)
    for phase in (0, 3, 255):
        with pytest.raises(DecodeError, match=f"phase: expected 1 to 2, got {phase}"):
            codec.decode_vote(bytes([phase]) + data[1:])
    with pytest.raises(DecodeError, match="height"):
        codec.decode_vote(data[:1] + bytes(8) + data[9:])


def test_certificates_are_sorted_and_not_empty() -> None:
    with pytest.raises(EncodeError, match="number of certificate signatures"):
        codec.encode_certificate(Certificate(0, ()))
    with pytest.raises(DecodeError, match="number of certificate signatures"):
        codec.decode_certificate(bytes(6))
    for entries in (((1, bytes(64)), (0, bytes(64))), ((1, bytes(64)), (1, bytes(64)))):
        with pytest.raises(EncodeError, match="sorted"):
            codec.encode_certificate(Certificate(0, entries))
    swapped = b"\0\0\0\0\0\2" + b"\0\1" + bytes(64) + b"\0\0" + bytes(64)
    with pytest.raises(DecodeError, match="sorted"):
        codec.decode_certificate(swapped)


def test_evidence_is_two_different_objects_the_smaller_first() -> None:
    for first, second in ((b"b", b"a"), (b"a", b"a"), (b"", b"a")):
        with pytest.raises(EncodeError):
            encode_evidence(Evidence(EvidenceKind.VOTE, first, second))
    with pytest.raises(DecodeError, match="kind"):
        decode_evidence(b"\4" + b"\0\0\0\1a" + b"\0\0\0\1b")
    with pytest.raises(DecodeError, match="smaller first"):
        decode_evidence(b"\3" + b"\0\0\0\1b" + b"\0\0\0\1a")
    with pytest.raises(DecodeError, match="at least"):
        decode_evidence(b"\3" + b"\xff\xff\xff\xff" + b"a")


# Signing


def test_make_evidence_orders_its_objects_and_takes_one_kind() -> None:
    other = replace(V, block_id=b"x" * 32)
    assert make_evidence(V, other) == make_evidence(other, V)
    assert make_evidence(V, other).kind is EvidenceKind.VOTE
    assert make_evidence(C, replace(C, weight=2)).kind is EvidenceKind.CONTRIBUTION
    block = make_unsigned_block(H, 0, Body(), bytes(64))
    assert make_evidence(block, replace(block, nonce=1)).kind is EvidenceKind.CANDIDATE
    with pytest.raises(EncodeError, match="two objects of one kind"):
        make_evidence(V, C)
    with pytest.raises(EncodeError, match="equal"):
        make_evidence(V, V)


def test_payloads_are_signed_in_the_order_of_their_kinds() -> None:
    (key,) = make_keys(1)
    payloads = [PayloadRef(2, ZERO, 1), PayloadRef(1, ZERO, 1)]
    c = codec.sign_contribution(key, CHAIN, height=1, prev=ZERO, weight=1, payloads=payloads)
    assert [payload.kind for payload in c.payloads] == [1, 2]
    verify(key.id, c.signature, codec.CONTRIBUTION_TAG, CHAIN, codec.contribution_fields(c))


@settings(deadline=None, max_examples=60)
@given(contributions, votes, digests, approvals, readiness)
def test_sign_bytes_of_two_objects_never_collide(
    c: Contribution, vote: Vote, block_id: bytes, approval: Approval, ready: Readiness
) -> None:
    signed = {
        compute_sign_bytes(codec.CONTRIBUTION_TAG, CHAIN, codec.contribution_fields(c)),
        compute_sign_bytes(codec.VOTE_TAG, CHAIN, codec.vote_fields(vote)),
        compute_sign_bytes(codec.BLOCK_TAG, CHAIN, block_id),
        compute_sign_bytes(APPROVAL_TAG, CHAIN, approval_fields(approval)),
        compute_sign_bytes(READINESS_TAG, CHAIN, readiness_fields(ready)),
    }
    assert len(signed) == 5
    both = {approval_fields(replace(approval, answer=answer)) for answer in Answer}
    assert len(both) == 2
    other = replace(vote, phase=Phase.PREVOTE if vote.phase is Phase.PRECOMMIT else Phase.PRECOMMIT)
    assert codec.vote_fields(other) != codec.vote_fields(vote)
