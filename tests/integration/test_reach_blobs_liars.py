"""Blobs of members out of reach, and one of those through whom they come that serves none: it is found out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from chain.block import Digest, Id
from node.consensus.service import RoundService
from node.p2p.transport.base import BlobNotYet
from support.federation.pulling import FEDPER, taking
from support.federation.reach import count_authors, get_service, start_apart
from support.federation.virtual_time import run_virtual

NUM_ROUNDS = 12


def run(story: Callable[[], Any]) -> None:
    run_virtual(story())


@pytest.mark.parametrize("liar", ["node2", "node3"])
def test_one_that_serves_nothing_of_others_holds_up_no_more_than_the_first_rounds(tmp_path: Path, liar: str) -> None:
    """node0 and node1 do not reach each other. Of the two that reach both, one takes requests and is silent."""

    async def story() -> None:
        async with taking(tmp_path, 4, {**FEDPER, "num_peers": 3}, rounds=NUM_ROUNDS, start=()) as fed:
            net = fed.net
            start_apart(net, [("node0", "node1")])
            service = get_service(net, liar)
            serve, asked = service.handler.on_blob_request, 0

            def is_own(digest: Digest) -> bool:
                blocks = [net[liar].get_block(at) for at in range(1, service.tip.height + 1)]
                mine = [one for block in blocks for one in block.contributions if one.author == net.id(liar)]
                if service.machine is not None and (open_ := service.machine.contributions.get(net.id(liar))):
                    mine.append(open_)  # others may have the block that it is in before
                return any(ref.digest == digest for one in mine for ref in one.payloads)

            async def be_silent(peer: Id, digest: Digest, offset: int) -> AsyncGenerator[bytes, None]:
                nonlocal asked
                if peer in (net.id("node0"), net.id("node1")) and not is_own(digest):
                    asked += 1
                    await asyncio.Event().wait()
                async for chunk in serve(peer, digest, offset):
                    yield chunk

            service.handler.on_blob_request = be_silent  # type: ignore[method-assign]  # it lies
            clock, ends_s = net["node0"].clock, []
            for height in range(1, NUM_ROUNDS + 1):
                await net.wait_for_height(height)
                ends_s.append(clock.monotonic())
            assert asked > 0
            assert [count_authors(net, height) for height in range(1, NUM_ROUNDS + 1)] == [4] * NUM_ROUNDS
            for height in range(1, NUM_ROUNDS):
                assert not any(fed.get_exchange(name, height).gone for name in net.nodes)
            took_s = sorted(after - before for before, after in pairwise(ends_s))
            collect_s = net.genesis.rules.waits.collect_s
            assert took_s[-3] < collect_s / 10  # each of the two was held up once
            assert took_s[-1] < collect_s

    run(story)


def test_two_that_promise_what_they_never_have_are_passed_by_in_time(tmp_path: Path) -> None:
    """node0 and node1 do not reach each other; the two that are asked first say that they will have it soon."""

    async def story() -> None:
        async with taking(tmp_path, 6, {**FEDPER, "num_peers": 5}, rounds=3, start=()) as fed:
            net, apart = fed.net, ("node0", "node1")
            start_apart(net, [apart])
            own: set[Digest] = set()
            for liar in ("node2", "node3"):
                promise_all(get_service(net, liar), {net.id(name) for name in apart}, own)
            await net.wait_for(lambda: all(3 in fed.trainers[name].taken for name in net.nodes), "round 3 to be taken")
            waited_s = net.genesis.rules.waits.collect_s / 2
            for height in range(1, 4):
                assert count_authors(net, height) == 6
                for name in apart:
                    assert not fed.get_exchange(name, height).gone
                    assert fed.get_record(name, height)["seconds"]["apply"] < waited_s
            assert len(own) == 3 * 2  # of three rounds what one of the two had for the other

    run(story)


def promise_all(liar: RoundService, askers: set[Id], promised: set[Digest]) -> None:
    """It says to these that it will have what it was asked for soon, of all that is not its own, and never has it."""
    serve, relayed = liar.handler.on_blob_request, liar.parts.payloads.relayed

    async def promise(peer: Id, digest: Digest, offset: int) -> AsyncGenerator[bytes, None]:
        if peer in askers and relayed.is_coming(peer, digest):
            promised.add(digest)
            raise BlobNotYet("soon")
        async for chunk in serve(peer, digest, offset):
            yield chunk

    liar.handler.on_blob_request = promise  # type: ignore[method-assign]  # it lies
