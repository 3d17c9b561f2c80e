"""Every kind of change of the members and of runs, with all that die and with partitions while it is decided.

No fork, and it is in force in the end (FEDERATION §4, I16).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from chain.audit import verify_chain
from chain.changes.base import Kind
from chain.changes.members import RemoveMember, ReplaceKey
from support.faults.doom import Doom, Killed
from support.federation.cluster import Cluster
from support.federation.joining import add, growing
from support.federation.proposing import (
    approve,
    find_change_heights,
    get_service,
    get_state,
    propose,
    wait_for_state,
)
from support.federation.runs import SCHEMA, start_run
from support.federation.virtual_time import run_virtual

NODES = ("node0", "node1", "node2", "node3")


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine under the tests stays up: what a process wrote is there, synced or not."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


KINDS: dict[str, Callable[[Cluster], Kind]] = {
    "add": lambda net: add(net, "new"),
    "remove": lambda net: RemoveMember(find_seat(net, "node3")),
    "replace": lambda net: ReplaceKey(find_seat(net, "node3"), net.id("new")),
    "start a run": lambda net: start_run(get_state(net, "node0").run, rounds=0),
}


def find_seat(net: Cluster, name: str) -> int:
    member = get_state(net, "node0").get_member(net.id(name))
    assert member is not None
    return member.seat


@asynccontextmanager
async def facing(path: Path, what: str, step: str = "") -> AsyncIterator[tuple[Cluster, list[str], Doom]]:
    """Four members, of which two approve the change, whose rounds wait; the nodes that run, and what they may die of.
    One that comes runs already, one whose key is lost does not."""
    async with growing(path, 4, ["new"], schema=SCHEMA, train_s=0.05, start=()) as net:
        running = [*NODES[:3], "new" if what in ("add", "replace") else "node3"]
        running += ["node3"] if what == "add" else []
        doom = Doom(net, running, step)
        for name in (*NODES[:3], "node3"):
            net.start(name, faults=doom)
        await net.wait_for_height(2, *NODES)
        if what == "replace":
            await net.crash("node3")
        if "new" in running:
            net.start("new", faults=doom)
        for name in NODES[:3]:
            get_service(net, name).participation.is_paused = True
        await asyncio.sleep(5.0)
        yield net, running, doom


async def check_in_force(net: Cluster, what: str, change_id: bytes, running: Sequence[str]) -> None:
    """Executed once, at all who run, and rounds go on after it."""
    for name in NODES[:3]:
        get_service(net, name).participation.is_paused = False
        await get_service(net, name).resume()
    staying = [name for name in running if what != "remove" or name != "node3"]
    await wait_for_state(net, "the change", lambda state: change_id in state.executed, *staying)
    (height,) = find_change_heights(net, "node0")
    await net.wait_for_height(height + 3, *staying)
    net.check_agreement()
    for name in running:
        store = net[name].store
        assert store is not None
        report = verify_chain(net.genesis, store)
        assert report.ok, report.fault
    if what in ("add", "replace"):
        authors = set[bytes]()
        await net.wait_for_height(height + 6, *staying)
        for at in range(height + 1, height + 7):
            authors |= {contribution.author for contribution in net["node0"].get_block(at).contributions}
        assert net.id("new") in authors


async def propose_to_two(net: Cluster, what: str) -> bytes:
    """One yes is missing."""
    change_id = await propose(net, "node0", KINDS[what](net))
    await approve(net, change_id, "node1")
    await net.wait_for(lambda: get_service(net, "node2").proposals.get(change_id) is not None, "node2 to have it")
    if what in ("add", "replace"):
        await net.wait_for(lambda: is_ready(net, change_id), "the newcomer to stand ready")
    return change_id


def is_ready(net: Cluster, change_id: bytes) -> bool:
    proposals = [get_service(net, name).proposals.get(change_id) for name in NODES[:3]]
    return all(proposal is not None and proposal.readiness is not None for proposal in proposals)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["approval", "candidate", "justification", "vote", "append", "close"])
@pytest.mark.parametrize("what", KINDS)
def test_all_lose_power_at_the_height_of_a_change_and_it_is_in_force(tmp_path: Path, what: str, step: str) -> None:
    """At once, as the first of them comes to that step."""

    async def story() -> None:
        async with facing(tmp_path, what, f"{step}.committed") as (net, running, doom):
            change_id = await propose_to_two(net, what)
            doom.arm()
            with suppress(Killed):
                await get_service(net, "node2").proposals.approve(change_id)
            await doom.wait()
            doom.bring_back()
            await check_in_force(net, what, change_id, running)

    run_virtual(story())


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [-1.0, 0.01, 0.03, 0.06, 0.1])
@pytest.mark.parametrize("what", KINDS)
def test_two_and_two_that_are_parted_at_a_change_execute_it_once_they_are_together(
    tmp_path: Path, what: str, after_s: float
) -> None:
    """Before the last yes, so that it waits, or while it is decided. A newcomer is on the one side."""

    async def story() -> None:
        async with facing(tmp_path, what) as (net, running, _):
            change_id = await propose_to_two(net, what)
            other = [name for name in ("node2", "node3") if name in running]
            if after_s > 0:
                await get_service(net, "node2").proposals.approve(change_id)
                await asyncio.sleep(after_s)
            net.partition([name for name in running if name not in other], other)
            if after_s < 0:
                await get_service(net, "node2").proposals.approve(change_id)
            await asyncio.sleep(10.0)
            if after_s < 0:
                assert not any(change_id in get_state(net, name).executed for name in running)
            net.heal()
            await check_in_force(net, what, change_id, running)

    run_virtual(story())
