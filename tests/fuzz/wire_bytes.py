"""Messages of nodes about themselves, and the frames between a daemon and its worker."""

from __future__ import annotations

import socket
from dataclasses import replace

from chain.block import Phase
from fuzz.claims import Seeds, attempt, passes
from fuzz.federation import CANDIDATE, GENESIS, LIAR, ME, PARENT
from ml.specs import Offer
from node.p2p.status import Status, StatusError, VoteBitmap, status_from_bytes, status_to_bytes
from node.training.exchange import Exchange
from node.training.frames import Frame, FrameError, encode_frame, receive_frame


def make_statuses() -> Seeds:
    votes = (VoteBitmap(0, Phase.PREVOTE, 0b1111), VoteBitmap(9, Phase.PRECOMMIT, 0b0001))
    working = Status(GENESIS.chain_id, 0, PARENT.id, 1, 2, True, 0b1011, (CANDIDATE.id,), votes)
    return {
        "working": status_to_bytes(working),
        "reaching": status_to_bytes(replace(working, reaches=0b1110, contributing=0b0110, abstaining=0b1000)),
        "done": status_to_bytes(Status(GENESIS.chain_id, 2**63 - 1, CANDIDATE.id)),
    }


def check_status(data: bytes) -> bool:
    """Protobuf has many encodings of one message, so here it is the message that must stay the same."""
    status = attempt(lambda: status_from_bytes(data, GENESIS.state.n), StatusError)
    if status is None:
        return False
    assert status_from_bytes(status_to_bytes(status), GENESIS.state.n) == status
    return True


def make_frames() -> Seeds:
    offer = Offer(LIAR, 3, {"g": b"g" * 32})
    exchange = Exchange(beacon=PARENT.id, me=ME, offers=(offer,), gone=frozenset([LIAR]), blobs={b"g" * 32: b"blob"})
    frames = {
        "call": Frame({"call": "cancel", "number": 3}),
        "answer": Frame({"number": 1, "metrics": {"loss": float("nan")}}, {"model": b"bytes", "none": b""}),
        "exchange": Frame(exchange.to_header(), exchange.to_attachments()),
    }
    return {name: b"".join(encode_frame(frame)) for name, frame in frames.items()}


def _read_frame(data: bytes) -> Frame | None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(data)
        ours.shutdown(socket.SHUT_WR)
        return receive_frame(theirs, max_bytes=4096)


def check_frame(data: bytes) -> bool:
    """What the worker and its daemon read of each other, and what an exchange is made of."""
    frame = attempt(lambda: _read_frame(data), FrameError)
    if frame is None:
        return False
    written = b"".join(encode_frame(frame))
    again = _read_frame(written)
    assert again is not None
    assert b"".join(encode_frame(again)) == written
    passes(lambda: Exchange.from_frame(frame.header, frame.attachments), FrameError)
    return True
