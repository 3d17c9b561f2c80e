"""Sources: who is asked for a blob, in which order, and who comes last since it has let this node wait in vain."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chain.block import Id
from node.p2p.transport.base import BlobNotFound, PeerUnavailable
from node.payloads.sources import AMENDS, IN_VAIN_S, LESS, Sources
from support.federation.virtual_time import run_virtual

AUTHOR, FIRST, SECOND, OTHER = (bytes([i]) * 32 for i in range(4))
PATIENCE_S = 8.0


def make_sources(*connected: Id) -> Sources:
    """FIRST and SECOND say that they are connected with AUTHOR."""
    transport = SimpleNamespace(connected=lambda: frozenset(connected))
    return Sources(cast(Any, transport), lambda author: [SECOND, FIRST])


async def ask(sources: Sources, peer: Id, error: BaseException | None = None, after_s: float = 0.0) -> float:
    """Returns how long the peer is waited for."""
    expected = () if error is None else (type(error),)
    with suppress(*expected), sources.asking(peer, [AUTHOR], PATIENCE_S) as limit_s:
        await asyncio.sleep(after_s)
        if error is not None:
            raise error
    return limit_s


def test_the_author_comes_first_or_else_those_that_reach_it() -> None:
    assert make_sources(OTHER, FIRST, SECOND, AUTHOR).order([AUTHOR]) == [AUTHOR, FIRST, SECOND, OTHER]
    assert make_sources(OTHER, FIRST, SECOND).order([AUTHOR]) == [SECOND, FIRST, OTHER]


@pytest.mark.parametrize(
    ("error", "after_s", "is_doubtful"),
    [
        (TimeoutError(), IN_VAIN_S, True),
        (TimeoutError(), 0.3, False),
        (PeerUnavailable("silent"), IN_VAIN_S, True),
        (PeerUnavailable("not connected"), 0.0, False),
        (asyncio.CancelledError(), IN_VAIN_S, True),
        (asyncio.CancelledError(), 0.0, False),
        (BlobNotFound("not here"), IN_VAIN_S, False),
    ],
)
def test_whoever_is_waited_for_in_vain_comes_last_until_it_has_made_amends(
    error: BaseException, after_s: float, *, is_doubtful: bool
) -> None:
    async def story() -> None:
        sources = make_sources(OTHER, FIRST, SECOND)
        assert await ask(sources, SECOND, error, after_s) == PATIENCE_S
        assert sources.order([AUTHOR]) == ([FIRST, OTHER, SECOND] if is_doubtful else [SECOND, FIRST, OTHER])
        for _ in range(AMENDS if is_doubtful else 0):
            assert sources.is_doubtful(SECOND, [AUTHOR])
            assert await ask(sources, SECOND) == LESS * PATIENCE_S
        assert not sources.is_doubtful(SECOND, [AUTHOR])

    run_virtual(story())


def test_an_author_is_asked_for_its_own_as_ever() -> None:
    async def story() -> None:
        sources = make_sources(AUTHOR, FIRST)
        assert await ask(sources, AUTHOR, TimeoutError(), IN_VAIN_S) == PATIENCE_S
        assert sources.order([AUTHOR]) == [AUTHOR, FIRST]
        assert await ask(sources, FIRST, TimeoutError(), IN_VAIN_S) == PATIENCE_S
        assert sources.order([FIRST]) == [FIRST, AUTHOR]
        assert not sources.is_doubtful(FIRST, [FIRST])

    run_virtual(story())
