"""A status survives the wire, and nothing out of bounds comes off it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain.block import Phase
from chain.codec import MAX_MEMBERS
from node.p2p.status import (
    MAX_OPEN_TOLD,
    MAX_STATUS_BYTES,
    OpenChange,
    Status,
    StatusError,
    VoteBitmap,
    check_bounds,
    status_from_bytes,
    status_to_bytes,
)
from node.pb import peer_pb2 as pb

MEMBERS = 4
HASH = st.binary(min_size=32, max_size=32)
BITMAP = st.integers(0, 2**MEMBERS - 1)
STATUS = Status(
    chain_id=b"c" * 32,
    head_height=6,
    head_id=b"h" * 32,
    height=7,
    view=2,
    contributes=True,
    contributions=0b1011,
    candidates=(b"a" * 32, b"b" * 32),
    votes=(VoteBitmap(0, Phase.PREVOTE, 0b1111), VoteBitmap(0, Phase.PRECOMMIT, 0b0001)),
    open=(OpenChange(b"a" * 32, 0b0101), OpenChange(b"b" * 32, 0b0001, 0)),
    version="0.3.0",
    protocol=3,
    reaches=0b1110,
    contributing=0b0110,
    abstaining=0b1000,
)


def edit(**fields: Any) -> bytes:
    message = pb.Status.FromString(status_to_bytes(STATUS))
    changed = pb.Status(**fields)
    for name in fields:
        message.ClearField(name)
    message.MergeFrom(changed)
    return message.SerializeToString()


def test_a_status_survives_and_is_small() -> None:
    data = status_to_bytes(STATUS)
    assert status_from_bytes(data, MEMBERS) == STATUS
    assert len(data) < 300


def test_a_status_of_a_finished_federation_survives() -> None:
    status = Status(b"c" * 32, 30, b"h" * 32)
    assert status_from_bytes(status_to_bytes(status), MEMBERS) == status


@settings(deadline=None)
@given(
    st.builds(
        Status,
        chain_id=HASH,
        head_height=st.integers(0, 2**63 - 1),
        head_id=HASH,
        height=st.integers(0, 2**63 - 1),
        view=st.integers(0, 2**32 - 1),
        contributes=st.booleans(),
        abstains=st.booleans(),
        contributions=BITMAP,
        reaches=BITMAP,
        contributing=BITMAP,
        abstaining=BITMAP,
        candidates=st.sets(HASH, max_size=2 * MEMBERS).map(lambda ids: tuple(sorted(ids))),
        votes=st.dictionaries(
            st.tuples(st.integers(0, 2**32 - 1), st.sampled_from(Phase)), BITMAP, max_size=2 * MEMBERS
        ).map(lambda held: tuple(VoteBitmap(view, phase, held[view, phase]) for view, phase in sorted(held))),
        open=st.dictionaries(
            HASH, st.tuples(BITMAP, st.none() | st.integers(0, 2**63 - 2)), max_size=MAX_OPEN_TOLD
        ).map(lambda held: tuple(OpenChange(change_id, *held[change_id]) for change_id in sorted(held))),
    )
)
def test_every_status_in_range_survives(status: Status) -> None:
    assert status_from_bytes(status_to_bytes(status), MEMBERS) == status


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_arbitrary_bytes_give_a_status_or_a_status_error(data: bytes) -> None:
    try:
        status = status_from_bytes(data, MEMBERS)
    except StatusError:
        return
    assert status_from_bytes(status_to_bytes(status), MEMBERS) == status


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_flipped_byte_gives_a_status_or_a_status_error(position: int, value: int) -> None:
    data = bytearray(status_to_bytes(STATUS))
    data[position % len(data)] = value
    try:
        status = status_from_bytes(bytes(data), MEMBERS)
    except StatusError:
        return
    assert status_from_bytes(status_to_bytes(status), MEMBERS) == status


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\0" * (MAX_STATUS_BYTES + 1), "at most 65536 bytes"),
        (b"\xff\xff", "expected a status"),
        (edit(chain_id=b"c" * 31), "chain id: expected 32 bytes, got 31"),
        (edit(head_id=b"c" * 33), "head id: expected 32 bytes, got 33"),
        (edit(head_height=2**64 - 1), "head height: expected at most"),
        (edit(height=2**64 - 1), "height: expected at most"),
        (edit(contributions=b"\x10"), "bits of the bitmap of contributions: expected at most 4, got 5"),
        (edit(contributions=b"\x01\x01"), "bytes of the bitmap of contributions: expected at most 1, got 2"),
        (edit(contributions=b"\x00"), "no zero byte at the end"),
        (edit(reaches=b"\x10"), "bits of the bitmap of reaches: expected at most 4, got 5"),
        (edit(contributing=b"\x01\x01"), "bytes of the bitmap of contributing: expected at most 1, got 2"),
        (edit(abstaining=b"\x00"), "bitmap of abstaining: expected no zero byte at the end"),
        (edit(candidates=[b"a" * 31]), "candidate: expected 32 bytes"),
        (edit(candidates=[b"b" * 32, b"a" * 32]), "expected sorted ids"),
        (edit(candidates=[b"a" * 32, b"a" * 32]), "expected sorted ids, each once"),
        (edit(candidates=[bytes([i]) * 32 for i in range(9)]), "number of candidates: expected at most 8, got 9"),
        (edit(votes=[pb.VoteBitmap(phase=3)]), "phase: expected 1 or 2, got 3"),
        (edit(votes=[pb.VoteBitmap()]), "phase: expected 1 or 2, got 0"),
        (edit(votes=[pb.VoteBitmap(phase=2), pb.VoteBitmap(phase=1)]), "sorted, each once"),
        (
            edit(votes=[pb.VoteBitmap(view=i, phase=1) for i in range(43)]),
            "number of vote bitmaps: expected at most 42",
        ),
        (edit(votes=[pb.VoteBitmap(phase=1, members=b"\x20")]), "bits of the bitmap of votes"),
        (edit(version="3" * 33), "characters of the version: expected at most 32, got 33"),
        (edit(version="0.3\n"), "version: expected printable ASCII"),
        (edit(version="0.³"), "version: expected printable ASCII"),
        (edit(protocol=1 << 16), "protocol: expected at most 65535"),
        (edit(open=[pb.OpenChange(id=b"a" * 31)]), "open change: expected 32 bytes, got 31"),
        (edit(open=[pb.OpenChange()]), "open change: expected 32 bytes, got 0"),
        (edit(open=[pb.OpenChange(id=b"a" * 32, approvals=b"\x10")]), "bitmap of approvals: expected at most 4, got 5"),
        (edit(open=[pb.OpenChange(id=b"a" * 32, approvals=b"\x01\x01")]), "bytes of the bitmap of approvals"),
        (edit(open=[pb.OpenChange(id=b"a" * 32, approvals=b"\x00")]), "no zero byte at the end"),
        (edit(open=[pb.OpenChange(id=b"a" * 32, ready=2**64 - 1)]), "height of readiness: expected at most"),
        (edit(open=[pb.OpenChange(id=b"b" * 32), pb.OpenChange(id=b"a" * 32)]), "open changes: expected sorted ids"),
        (edit(open=[pb.OpenChange(id=b"a" * 32)] * 2), "open changes: expected sorted ids, each once"),
        (
            edit(open=[pb.OpenChange(id=bytes([i]) * 32) for i in range(MAX_OPEN_TOLD + 1)]),
            "number of open changes: expected at most 64, got 65",
        ),
    ],
)
def test_what_is_out_of_bounds_is_refused(data: bytes, text: str) -> None:
    with pytest.raises(StatusError, match=text):
        status_from_bytes(data, MEMBERS)


def test_unsorted_holdings_are_sorted_on_the_way_out() -> None:
    shuffled = replace(STATUS, candidates=STATUS.candidates[::-1], votes=STATUS.votes[::-1], open=STATUS.open[::-1])
    assert status_from_bytes(status_to_bytes(shuffled), MEMBERS) == STATUS


def test_approvals_of_more_than_there_are_members_are_told_by_nobody() -> None:
    """Of a status of this height: of others nobody here knows how many are members."""
    told = replace(STATUS, open=(OpenChange(b"a" * 32, 0b10000),))
    assert status_from_bytes(status_to_bytes(told)) == told
    check_bounds(told, 5)
    for wide in (replace(STATUS, reaches=16), replace(STATUS, contributing=16), replace(STATUS, abstaining=16)):
        with pytest.raises(StatusError, match="expected at most 4, got 5"):
            check_bounds(wide, 4)
    with pytest.raises(StatusError, match="bitmap of approvals: expected at most 4, got 5"):
        check_bounds(told, 4)


def test_a_status_of_as_many_members_and_changes_as_there_may_be_has_room() -> None:
    everybody = 2**MAX_MEMBERS - 1
    told = tuple(OpenChange(bytes([i]) * 32, everybody, 2**63 - 2) for i in range(MAX_OPEN_TOLD))
    votes = tuple(VoteBitmap(view, phase, everybody) for view in range(17) for phase in Phase)
    full = replace(STATUS, contributions=everybody, votes=votes, open=told)
    full = replace(full, reaches=everybody, contributing=everybody, abstaining=everybody)
    assert status_from_bytes(status_to_bytes(full)) == full
