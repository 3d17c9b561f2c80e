"""Frames between a daemon and its worker: their layout, both ends, and bytes that are refused."""

from __future__ import annotations

import asyncio
import json
import math
import os
import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.training.frames import (
    MAX_HEADER_BYTES,
    Frame,
    FrameError,
    await_frame,
    decode_header,
    decode_length,
    encode_frame,
    post_pieces,
    receive_frame,
    send_frame,
)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_a_frame_is_length_then_json_then_raw_bytes() -> None:
    (data,) = encode_frame(Frame({"call": "apply"}, {"a": b"xyz", "b": b""}))
    text = b'{"call":"apply","attachments":{"a":3,"b":0}}'
    assert data == len(text).to_bytes(4, "big") + text + b"xyz"


def test_long_attachments_are_not_copied() -> None:
    long = bytes(1 << 17)
    assert encode_frame(Frame({}, {"a": long}))[1] is long


@given(
    st.dictionaries(
        st.text(max_size=5), st.none() | st.integers() | st.text() | st.floats(allow_nan=False), max_size=4
    ),
    st.dictionaries(st.text(max_size=5), st.binary(max_size=40), max_size=3),
)
def test_what_is_sent_is_received(header: dict[str, object], attachments: dict[str, bytes]) -> None:
    header.pop("attachments", None)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send_frame(ours, Frame(header, attachments))
        send_frame(ours, Frame({"next": 1}))
        assert receive_frame(theirs) == Frame(header, attachments)
        assert receive_frame(theirs) == Frame({"next": 1})


def test_a_number_that_is_not_finite_passes(pair: tuple[socket.socket, socket.socket]) -> None:
    send_frame(pair[0], Frame({"loss": math.nan, "worst": math.inf}))
    frame = receive_frame(pair[1])
    assert frame is not None
    assert math.isnan(frame.header["loss"])
    assert frame.header["worst"] == math.inf


async def test_long_frames_pass_between_a_loop_and_a_thread_without_stopping_the_loop(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    ours.setblocking(False)
    data = os.urandom(8 << 20)

    def echo() -> None:
        frame = receive_frame(theirs)
        assert frame is not None
        send_frame(theirs, frame)

    thread = threading.Thread(target=echo)
    thread.start()
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    await post_pieces(ours, encode_frame(Frame({"call": "apply"}, {"aggregate": data, "short": b"12"})))
    before = turns
    assert await await_frame(ours) == Frame({"call": "apply"}, {"aggregate": data, "short": b"12"})
    assert turns - before >= 4
    counting.cancel()
    thread.join()


async def test_the_end_of_the_stream_is_no_frame(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    ours.setblocking(False)
    theirs.shutdown(socket.SHUT_WR)
    assert await await_frame(ours) is None
    ours.shutdown(socket.SHUT_WR)
    assert receive_frame(theirs) is None


@pytest.mark.parametrize("kept", [1, 3, 4, 10, -1])
async def test_a_frame_cut_short_is_refused_at_both_ends(pair: tuple[socket.socket, socket.socket], kept: int) -> None:
    ours, theirs = pair
    (data,) = encode_frame(Frame({"call": "train"}, {"a": b"12345"}))
    ours.sendall(data[:kept])
    ours.shutdown(socket.SHUT_WR)
    with pytest.raises(FrameError, match="closed after"):
        receive_frame(theirs)
    theirs.sendall(data[:kept])
    theirs.shutdown(socket.SHUT_WR)
    ours.setblocking(False)
    with pytest.raises(FrameError, match="closed after"):
        await await_frame(ours)


@pytest.mark.parametrize("length", [0, 1, MAX_HEADER_BYTES + 1, 2**32 - 1])
def test_a_header_of_an_impossible_length_is_refused(length: int) -> None:
    with pytest.raises(FrameError, match=f"got {length}"):
        decode_length(length.to_bytes(4, "big"))


@pytest.mark.parametrize(
    "header", [b"nothing", b"\xff\xfe", b"[]", b"{}", b'{"attachments":3}', b'{"attachments":{"a":-1}}']
)
def test_a_header_without_sizes_is_refused(header: bytes) -> None:
    with pytest.raises(FrameError):
        decode_header(header, 100)


def test_a_header_nested_without_end_is_refused() -> None:
    with pytest.raises(FrameError, match="expected a JSON object"):
        decode_header(b'{"attachments":{},"x":' + b"[" * 100_000, 100)


def test_sizes_are_refused_before_they_are_added() -> None:
    size = b"9" * 4300  # as many digits as a number may have; the sum would have one more, and could not be shown
    with pytest.raises(FrameError, match="attachment 'a': expected a size in bytes") as caught:
        decode_header(b'{"attachments":{"a":' + size + b',"b":' + size + b"}}", 100)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("size", [True, 1.0, "1", None])
def test_a_size_that_is_no_count_is_refused(size: object) -> None:
    with pytest.raises(FrameError, match="attachment 'a'"):
        decode_header(json.dumps({"attachments": {"a": size}}).encode(), 100)


def test_attachments_are_refused_by_their_sum_before_room_is_made() -> None:
    header = json.dumps({"attachments": {"a": 60, "b": 41}}).encode()
    with pytest.raises(FrameError, match="at most 100 bytes, got 101"):
        decode_header(header, 100)
    assert decode_header(header, 101) == ({}, {"a": 60, "b": 41})


def test_a_header_too_long_is_not_sent() -> None:
    with pytest.raises(FrameError, match="header too long"):
        encode_frame(Frame({"text": "x" * MAX_HEADER_BYTES}))
