"""The boundary around others' bytes: what it refuses, what it lets through, and what it says."""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import NoReturn

import pytest

from chain.errors import BlobMissing, DecodeError, SlotTaken, StoreCorrupted, StoreError, StoreFull
from node.boundary import UNFORESEEN, Boundary
from node.consensus.gossip.sync import ChainsDiverge
from node.consensus.height.halted import Halted
from support.data.chains import make_genesis, make_keys

PEER = b"p" * 32


def fail(error: BaseException) -> NoReturn:
    raise error


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("a bug"),
        AssertionError("of our own"),
        MemoryError(),
        RecursionError(),
        KeyError(250),
        DecodeError("that nobody caught"),
        BlobMissing("let go since"),
        SlotTaken("signed already", b"what was"),
        TimeoutError(),
        ConnectionResetError(),
        FileNotFoundError(errno.ENOENT, "no such file"),
        OSError(errno.EMFILE, "too many open files"),
        ExceptionGroup("two", [ValueError("one"), KeyError("other")]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_nobody_foresaw_is_refused_and_counted(error: Exception) -> None:
    boundary = Boundary()
    for _ in range(2):
        with boundary.around("vote", PEER) as crossing:
            raise error
        assert crossing.failure is error
    with boundary.around("audit"):
        raise error
    assert boundary.failures == {"vote": 2, "audit": 1}
    assert boundary.by_peer == {PEER: 2}


@pytest.mark.parametrize(
    "error",
    [
        StoreError("of any kind"),
        StoreCorrupted("block 3: a bad row"),
        StoreFull("the disk is full"),
        Halted("two blocks at one height"),
        OSError(errno.EIO, "input/output error"),
        OSError(errno.ENOSPC, "no space left on device"),
        PermissionError(errno.EACCES, "permission denied"),
        ExceptionGroup("two", [ValueError("one"), StoreFull("other")]),
        asyncio.CancelledError(),
        KeyboardInterrupt(),
        SystemExit(1),
    ],
    ids=lambda error: type(error).__name__,
)
def test_the_nodes_own_trouble_passes(error: BaseException) -> None:
    boundary = Boundary()
    with pytest.raises(type(error)) as caught, boundary.around("vote", PEER):
        raise error
    assert caught.value is error
    assert not boundary.failures
    assert not boundary.by_peer


def test_the_kinds_it_was_told_to_pass_pass() -> None:
    block = make_genesis(make_keys(1)).block0
    boundary = Boundary()
    with pytest.raises(ChainsDiverge), boundary.around("sync", PEER, passing=(ChainsDiverge,)):
        raise ChainsDiverge(block, block, None)  # type: ignore[arg-type]  # none is looked at
    assert not boundary.failures


def test_work_that_goes_well_leaves_no_failure() -> None:
    with Boundary().around("vote", PEER) as crossing:
        pass
    assert crossing.failure is None


def test_each_place_is_told_once_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """However many messages bring it about, and whoever sends them; another place or kind is told by itself."""
    boundary = Boundary()
    with caplog.at_level(logging.DEBUG):
        for peer in (PEER, b"q" * 32, None):
            for _ in range(10):
                with boundary.around("vote", peer):
                    fail(ValueError("text that differs each time"))
        with boundary.around("vote", PEER):
            fail(KeyError("another kind"))
        with boundary.around("block", PEER):
            fail(ValueError("in other work"))
        with boundary.around("vote", PEER):
            raise ValueError("in another line")
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [record.getMessage().split(":")[0] for record in errors] == [
        "vote of obyha4dq",
        "vote of obyha4dq",
        "block of obyha4dq",
        "vote of obyha4dq",
    ]
    assert all(UNFORESEEN in record.getMessage() for record in errors)
    assert all(record.exc_info is not None and record.exc_info[2] is not None for record in errors)
    assert len(caplog.records) == 33
    assert boundary.failures == {"vote": 32, "block": 1}
