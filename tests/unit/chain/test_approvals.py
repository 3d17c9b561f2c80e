"""The bytes of consent: approvals, readiness and the body of a change block, each with one encoding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.approvals import (
    APPROVAL_BYTES,
    APPROVAL_TAG,
    CHANGE_TAG,
    MAX_CHANGE_BYTES,
    READINESS_BYTES,
    READINESS_TAG,
    approval_fields,
    compute_change_id,
    decode_approval,
    decode_readiness,
    encode_approval,
    encode_approved,
    encode_readiness,
    read_approved,
    readiness_fields,
    sign_approval,
    sign_readiness,
    verify_approval,
    verify_readiness,
)
from chain.block import Answer, Approval, ApprovedChange, Body, Phase, Readiness
from chain.codec import (
    BLOCK_TAG,
    BODY_TAG,
    CONTRIBUTION_TAG,
    MAX_BLOCK_BYTES,
    MAX_MEMBERS,
    SEAL_TAG,
    VOTE_TAG,
    contribution_fields,
    decode_body,
    encode_body,
    sign_contribution,
    sign_vote,
    vote_fields,
)
from chain.errors import ChainError, DecodeError, EncodeError, InvalidSignature
from chain.genesis import GENESIS_TAG
from chain.layout import MAX_HEIGHT, Reader
from chain.signing import compute_sign_bytes
from chain.state import STATE_TAG
from support.data.chains import make_digest, make_keys

KEY, OTHER = make_keys(2)
CHAIN = make_digest("a chain")
CHANGE_ID = make_digest("a change")
APPROVAL = sign_approval(KEY, CHAIN, CHANGE_ID)
READINESS = sign_readiness(KEY, CHAIN, CHANGE_ID, height=7, block_id=make_digest("block 7"))
SIGNATURE = bytes(range(64))
APPROVED = ApprovedChange(
    b"a change",
    ((0, Answer.YES, SIGNATURE), (2, Answer.YES_WITHOUT_TRAINING, SIGNATURE)),
    ((make_digest("a"), 7, make_digest("block 7"), SIGNATURE),),
)

digests = st.binary(min_size=32, max_size=32)
signatures = st.binary(min_size=64, max_size=64)
heights = st.integers(0, MAX_HEIGHT)
approvals = st.builds(Approval, digests, st.sampled_from(Answer), digests, signatures)
readiness = st.builds(Readiness, digests, digests, heights, digests, signatures)
answers = st.lists(
    st.tuples(st.integers(0, 2**16 - 1), st.sampled_from(Answer), signatures), max_size=4, unique_by=lambda a: a[0]
)
words = st.lists(st.tuples(digests, heights, digests, signatures), max_size=3, unique_by=lambda word: word[0])
bodies = st.builds(
    lambda change, given, ready: ApprovedChange(change, tuple(sorted(given)), tuple(sorted(ready))),
    st.binary(min_size=1, max_size=100),
    answers,
    words,
)


def decode_approved(data: bytes) -> ApprovedChange:
    reader = Reader("body", data, MAX_BLOCK_BYTES)
    approved = read_approved(reader)
    reader.end()
    return approved


def flips(data: bytes) -> list[bytes]:
    """`data` with each of its bits flipped, one at a time."""
    number = int.from_bytes(data, "big")
    return [(number ^ (1 << bit)).to_bytes(len(data), "big") for bit in range(8 * len(data))]


def is_refused(judge: Callable[[bytes], object], data: bytes) -> bool:
    try:
        judge(data)
    except ChainError:
        return True
    return False


# Round trips


@given(approvals)
def test_an_approval_is_read_back(approval: Approval) -> None:
    data = encode_approval(approval)
    assert len(data) == APPROVAL_BYTES == 32 + 1 + 32 + 64
    assert decode_approval(data) == approval


@given(readiness)
def test_readiness_is_read_back(ready: Readiness) -> None:
    data = encode_readiness(ready)
    assert len(data) == READINESS_BYTES == 32 + 32 + 8 + 32 + 64
    assert decode_readiness(data) == ready


@given(bodies)
def test_the_body_of_a_change_is_read_back(approved: ApprovedChange) -> None:
    assert decode_approved(encode_approved(approved)) == approved
    assert decode_body(encode_body(Body(change=approved))) == Body(change=approved)


@given(st.binary(max_size=300))
def test_other_bytes_have_one_meaning_or_none(data: bytes) -> None:
    for decode, encode in (
        (decode_approval, encode_approval),
        (decode_readiness, encode_readiness),
        (decode_approved, encode_approved),
        (decode_body, encode_body),
    ):
        try:
            value: Any = decode(data)
        except DecodeError:
            continue
        assert encode(value) == data


@pytest.mark.parametrize(
    ("decode", "data"),
    [
        (decode_approval, encode_approval(APPROVAL)),
        (decode_readiness, encode_readiness(READINESS)),
        (decode_approved, encode_approved(APPROVED)),
        (decode_body, encode_body(Body(change=APPROVED))),
    ],
)
def test_bytes_too_few_or_too_many_are_refused(decode: Callable[[bytes], object], data: bytes) -> None:
    for length in range(len(data)):
        with pytest.raises(DecodeError):
            decode(data[:length])
    with pytest.raises(DecodeError):
        decode(data + b"\0")


def test_an_answer_is_one_of_two() -> None:
    data = encode_approval(APPROVAL)
    for answer in (0, 3, 255):
        with pytest.raises(DecodeError, match="approval answer: expected 1 to 2"):
            decode_approval(data[:32] + bytes([answer]) + data[33:])
        with pytest.raises(EncodeError, match="approval answer"):
            encode_approval(replace(APPROVAL, answer=answer))  # type: ignore[arg-type]


def test_a_height_of_readiness_is_one_that_a_store_can_hold() -> None:
    data = encode_readiness(READINESS)
    with pytest.raises(DecodeError, match="readiness height"):
        decode_readiness(data[:64] + b"\x80" + bytes(7) + data[72:])


# Order


def test_answers_are_sorted_by_index_one_each() -> None:
    first, second = APPROVED.answers
    one = encode_approved(replace(APPROVED, answers=(first,)))
    entry = len(one) - len(encode_approved(replace(APPROVED, answers=())))
    good = encode_approved(APPROVED)
    at = 4 + len(APPROVED.change) + 2
    a, b = good[at : at + entry], good[at + entry : at + 2 * entry]
    for entries in (b + a, a + a, b + b):
        with pytest.raises(DecodeError, match="answer's member index"):
            decode_approved(good[:at] + entries + good[at + 2 * entry :])
    for wrong in ((second, first), (first, first)):
        with pytest.raises(EncodeError, match="answer's member index"):
            encode_approved(replace(APPROVED, answers=wrong))


def test_ready_keys_are_sorted_one_each() -> None:
    ready = tuple(sorted((make_digest(name), 7, make_digest("block 7"), SIGNATURE) for name in "ab"))
    good = encode_approved(replace(APPROVED, readiness=ready))
    entry = 32 + 8 + 32 + 64
    a, b = good[-2 * entry : -entry], good[-entry:]
    for entries in (b + a, a + a, b + b):
        with pytest.raises(DecodeError, match="ready keys sorted, one of each"):
            decode_approved(good[: -2 * entry] + entries)
    for wrong in (ready[::-1], ready[:1] * 2):
        with pytest.raises(EncodeError, match="ready keys sorted, one of each"):
            encode_approved(replace(APPROVED, readiness=wrong))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"change": b""}, "size of the change: expected 1 to"),
        ({"change": bytes(MAX_CHANGE_BYTES + 1)}, "size of the change"),
        ({"answers": ((0, Answer.YES, b""),)}, "answer's signature"),
        ({"answers": ((2**16, Answer.YES, SIGNATURE),)}, "member index"),
        ({"readiness": ((b"", 7, CHAIN, SIGNATURE),)}, "ready key"),
        ({"readiness": ((CHAIN, -1, CHAIN, SIGNATURE),)}, "height of readiness"),
        ({"readiness": ((CHAIN, 7, b"", SIGNATURE),)}, "block id of readiness"),
        ({"readiness": ((CHAIN, 7, CHAIN, b""),)}, "signature of readiness"),
        ({"readiness": tuple((i.to_bytes(32, "big"), 7, CHAIN, SIGNATURE) for i in range(1, 257))}, "ready keys"),
    ],
)
def test_a_body_that_does_not_fit_its_layout_is_not_encoded(change: dict[str, Any], what: str) -> None:
    with pytest.raises(EncodeError, match=what):
        encode_approved(replace(APPROVED, **change))


def test_the_largest_change_with_an_answer_of_every_member_fits_a_block() -> None:
    answers = tuple((i, Answer.YES, SIGNATURE) for i in range(MAX_MEMBERS))
    largest = ApprovedChange(bytes(MAX_CHANGE_BYTES), answers, APPROVED.readiness)
    assert len(encode_body(Body(change=largest))) < MAX_BLOCK_BYTES - 500
    assert decode_body(encode_body(Body(change=largest))).change == largest


def test_a_claimed_size_costs_nothing() -> None:
    for data in (b"\xff\xff\xff\xff", b"\0\0\0\1x\xff\xff", b"\0\0\0\1x\0\0\xff"):
        with pytest.raises(DecodeError):
            decode_approved(data)


# Signatures


def test_an_approval_of_which_any_bit_was_flipped_is_refused() -> None:
    verify_approval(CHAIN, APPROVAL)
    data = encode_approval(APPROVAL)
    assert all(is_refused(lambda bad: verify_approval(CHAIN, decode_approval(bad)), bad) for bad in flips(data))


def test_readiness_of_which_any_bit_was_flipped_is_refused() -> None:
    verify_readiness(CHAIN, READINESS)
    data = encode_readiness(READINESS)
    assert all(is_refused(lambda bad: verify_readiness(CHAIN, decode_readiness(bad)), bad) for bad in flips(data))


def test_consent_holds_for_its_chain_and_its_signer() -> None:
    with pytest.raises(InvalidSignature):
        verify_approval(make_digest("another chain"), APPROVAL)
    with pytest.raises(InvalidSignature):
        verify_approval(CHAIN, replace(APPROVAL, voter=OTHER.id))
    with pytest.raises(InvalidSignature):
        verify_readiness(make_digest("another chain"), READINESS)
    with pytest.raises(InvalidSignature):
        verify_readiness(CHAIN, replace(READINESS, key=OTHER.id))


def test_what_is_signed_for_one_kind_is_never_what_is_signed_for_another() -> None:
    vote = sign_vote(KEY, CHAIN, phase=Phase.PREVOTE, height=7, view=0, block_id=CHANGE_ID)
    contribution = sign_contribution(KEY, CHAIN, height=7, prev=CHANGE_ID, weight=1, payloads=())
    signed = {
        compute_sign_bytes(APPROVAL_TAG, CHAIN, approval_fields(APPROVAL)),
        compute_sign_bytes(READINESS_TAG, CHAIN, readiness_fields(READINESS)),
        compute_sign_bytes(VOTE_TAG, CHAIN, vote_fields(vote)),
        compute_sign_bytes(CONTRIBUTION_TAG, CHAIN, contribution_fields(contribution)),
        compute_sign_bytes(BLOCK_TAG, CHAIN, CHANGE_ID),
    }
    assert len({data[:16] for data in signed}) == len(signed) == 5
    swapped = Readiness(CHANGE_ID, KEY.id, 7, make_digest("block 7"), APPROVAL.signature)
    with pytest.raises(InvalidSignature):
        verify_readiness(CHAIN, swapped)


def test_every_tag_is_its_own() -> None:
    tags = [APPROVAL_TAG, READINESS_TAG, CHANGE_TAG, STATE_TAG, GENESIS_TAG, SEAL_TAG, BODY_TAG]
    tags += [CONTRIBUTION_TAG, BLOCK_TAG, VOTE_TAG]
    assert len(set(tags)) == len(tags)
    assert {len(tag) for tag in tags} == {16}


def test_the_id_of_a_change_depends_on_its_chain() -> None:
    ids = {compute_change_id(chain, data) for chain in (CHAIN, CHANGE_ID) for data in (b"a", b"b")}
    assert len(ids) == 4
