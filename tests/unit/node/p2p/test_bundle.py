"""Bundles: what was put in comes out, and what no correct node sends is refused, whatever it claims to hold."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.boundary import Boundary
from node.p2p.bans import Bans
from node.p2p.bundle import MAX_PARTS, BundleError, count_parts, decode_bundle, encode_bundle
from node.p2p.transport.base import Message, MessageKind, TrafficCounters
from node.p2p.transport.rate_limits import Intake, RateLimits, to_pb
from node.pb import peer_pb2 as pb

VOTE = Message(MessageKind.VOTE, b"v" * 100)
CONTRIBUTION = Message(MessageKind.CONTRIBUTION, b"c" * 200)
PAYLOAD = Message(MessageKind.PAYLOAD, b"p" * 600)


def test_parts_come_out_as_they_were_put_in() -> None:
    parts = [VOTE, CONTRIBUTION, PAYLOAD, VOTE]
    data = encode_bundle(parts)
    assert count_parts(data) == 4
    assert [Message(kind, part) for kind, part in decode_bundle(data)] == parts


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "number of parts"),
        (b"\0\0", "number of parts"),
        ((MAX_PARTS + 1).to_bytes(2, "big") + bytes(9000), "number of parts"),
        (b"\0\2" + encode_bundle([VOTE])[2:], "before a part, got 0"),
        (encode_bundle([VOTE]) + b"x", "1 bytes more"),
        (encode_bundle([VOTE])[:-1], "over its limit, or over what is left"),
        (encode_bundle([Message(MessageKind.VOTE, b"v" * 513)]), "a vote of 513 bytes"),
        (encode_bundle([Message(MessageKind.VOTE, b"")]), "a vote of 0 bytes"),
        (encode_bundle([Message(MessageKind.STATUS, b"s")]), "got 1"),
        (encode_bundle([Message(MessageKind.BUNDLE, encode_bundle([VOTE]))]), "got 12"),
    ],
)
def test_what_is_no_bundle_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(BundleError, match=said):
        list(decode_bundle(data))


@given(st.binary(max_size=600))
def test_any_bytes_are_a_bundle_or_refused(data: bytes) -> None:
    try:
        parts = [Message(kind, part) for kind, part in decode_bundle(data)]
    except BundleError:
        return
    assert encode_bundle(parts) == data


class _Taker:
    def on_message(self, peer: bytes, message: Message) -> None:
        pass


def make_intake() -> Intake:
    limits = RateLimits(messages_per_s=10.0, messages_burst=100.0)
    return Intake(b"p" * 32, limits, Bans(lambda: 0.0), TrafficCounters(), boundary=Boundary(), clock=lambda: 0.0)


def test_each_part_of_a_bundle_counts_against_its_senders_share() -> None:
    intake, bundle = make_intake(), pb.Batch(messages=[to_pb(Message(MessageKind.BUNDLE, encode_bundle([VOTE] * 60)))])
    assert intake.take(bundle, cast(Any, _Taker())) == 0
    assert intake.take(bundle, cast(Any, _Taker())) > 2  # 122 of 100, at 10 a second


def test_a_claim_of_more_parts_than_there_may_be_counts_as_the_most() -> None:
    intake = make_intake()
    claims = pb.Batch(messages=[to_pb(Message(MessageKind.BUNDLE, b"\xff\xff" + bytes(100)))])
    assert intake.take(claims, cast(Any, _Taker())) == pytest.approx((MAX_PARTS + 1 - 100) / 10)
