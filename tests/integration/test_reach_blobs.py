"""Blobs of members that are not connected with whoever needs them: had through others, and gone with their height."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chain.signing import encode_id
from node.ledger.audit import run_audit
from support.federation.cluster import Cluster
from support.federation.pulling import FEDPER, UAPDFL, TakingCluster, taking
from support.federation.reach import HUB, MISSING, count_authors, get_service, start_apart
from support.federation.sharing import get_held, sharing
from support.federation.virtual_time import run_virtual

ALL = tuple(f"node{i}" for i in range(4))


def run(story: Callable[[], Any]) -> None:
    run_virtual(story())


def audit_all(net: Cluster) -> list[tuple[int, str]]:
    """The height and head that `chain verify --deep` finds on each node, where nothing is amiss."""
    found = []
    for name in net.nodes:
        store = net[name].store
        assert store is not None
        report = run_audit(net.genesis, store, deep=True)
        assert report.ok, report
        found.append((report.last, report.head))
    return found


@pytest.mark.parametrize("missing", MISSING.values(), ids=MISSING.keys())
@pytest.mark.parametrize("method", [UAPDFL, {**FEDPER, "num_peers": 3}], ids=["uapdfl", "fedper"])
def test_what_is_on_demand_is_had_through_the_others(
    tmp_path: Path, method: dict[str, Any], missing: list[tuple[str, str]]
) -> None:
    async def story() -> None:
        async with taking(tmp_path, 4, method, rounds=5, start=()) as fed:
            start_apart(fed.net, missing)
            await fed.wait_for_round(5)
            collect_s = fed.net.genesis.rules.waits.collect_s
            for height in range(1, 6):
                assert count_authors(fed.net, height) == 4
                for name in ALL:
                    exchange = fed.get_exchange(name, height)
                    assert exchange.gone == frozenset()
                    assert exchange.blobs.keys() == fed.get_wanted(name, height)
                    assert fed.get_record(name, height)["seconds"]["apply"] < collect_s / 2
            assert len(set(audit_all(fed.net))) == 1

    run(story)


def get_blobs_of_others(fed: TakingCluster, name: str, height: int) -> list[bool]:
    """For each payload on demand that another has offered at a height, whether a node holds it."""
    store = fed.net[name].store
    assert store is not None
    offers = [offer for offer in fed.get_exchange(name, height).offers if offer.author != fed.net.id(name)]
    return [store.has_blob(digest) for offer in offers for digest in offer.digests.values()]


def test_what_was_passed_on_goes_with_its_height(tmp_path: Path) -> None:
    """The hub pulls for itself what one of the others offers, and everything else for them."""

    async def story() -> None:
        async with taking(tmp_path, 4, {**FEDPER, "num_peers": 3}, rounds=8, start=()) as fed:
            start_apart(fed.net, MISSING["three of four"])
            await fed.wait_for_round(8)
            keep = fed.net.genesis.rules.keep_heights
            for height in range(1, 9):
                held = get_blobs_of_others(fed, HUB, height)
                assert all(held) if height > 8 - keep else not any(held)
            service = get_service(fed.net, HUB)
            assert not service.blobs.wanted

    run(story)


def test_what_one_does_not_need_itself_is_pulled_for_those_that_do(tmp_path: Path) -> None:
    """With one draw a member often takes of a peer that the hub does not take of."""

    async def story() -> None:
        async with taking(tmp_path, 4, {**FEDPER, "num_peers": 1}, rounds=6, start=()) as fed:
            start_apart(fed.net, MISSING["three of four"])
            await fed.wait_for_round(6)
            through = 0
            for height in range(1, 7):
                of_hub = fed.get_wanted(HUB, height)
                for name in ALL:
                    exchange = fed.get_exchange(name, height)
                    assert not exchange.gone
                    assert exchange.blobs.keys() == fed.get_wanted(name, height)
                    through += len(exchange.blobs.keys() - of_hub) if name != HUB else 0
            assert through > 0

    run(story)


def test_large_sets_come_through_the_others(tmp_path: Path) -> None:
    async def story() -> None:
        async with sharing(tmp_path, 4, start=()) as net:
            start_apart(net, MISSING["three of four"])
            await net.wait_for_height(1)
            assert count_authors(net, 1) == 4
            assert {name: get_held(net, name) for name in ALL} == {name: list(ALL) for name in ALL}
            await net.wait_for_height(3)
            assert [count_authors(net, height) for height in (1, 2, 3)] == [4, 4, 4]

    run(story)


def test_a_record_names_nobody_as_gone_that_is_only_out_of_reach(tmp_path: Path) -> None:
    async def story() -> None:
        async with taking(tmp_path, 4, UAPDFL, rounds=3, start=()) as fed:
            start_apart(fed.net, MISSING["three of four"])
            await fed.wait_for_round(3)
            others = {encode_id(fed.net.id(name)) for name in ALL}
            for name in ALL:
                assert all(others.isdisjoint(fed.get_record(name, height)["gone"]) for height in (1, 2, 3))

    run(story)
