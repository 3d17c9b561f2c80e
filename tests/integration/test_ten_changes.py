"""A member that joins when the set of members has changed ten times: it trusts genesis and a checkpoint, and finds the
chain sound by genesis alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from chain.audit import verify_chain
from chain.block import Phase
from chain.changes.base import Kind
from chain.changes.change import read_change
from chain.changes.members import Pardon, RemoveMember, ReplaceKey
from chain.state import State
from node.consensus.signing.keys import make_rotation
from node.ledger.audit import run_audit
from support.data.chains import make_digest, make_keys
from support.faults.liar import lying
from support.federation.cluster import Cluster
from support.federation.joining import add, follow_keys, growing, make_checkpoint, start_joiner
from support.federation.proposing import find_change_heights, get_service, get_state, propose, wait_for_state
from support.federation.virtual_time import run_virtual

NEWCOMERS = ("a", "b", "c", "spare", "late")


async def agree(net: Cluster, kind: Kind, names: Iterable[str]) -> None:
    """Proposed by node0, and approved by these until it is executed."""
    change_id = await propose(net, "node0", kind)
    for name in names:
        service = get_service(net, name)
        await wait_until_held(net, change_id, name)
        if service.proposals.get(change_id) is not None:
            await service.proposals.approve(change_id)
    await wait_for_state(net, kind.name, lambda state: change_id in state.executed, "node0", *names)


async def wait_until_held(net: Cluster, change_id: bytes, name: str) -> None:
    service = get_service(net, name)
    await net.wait_for(
        lambda: service.proposals.get(change_id) is not None or change_id in service.tip.state.executed,
        f"the change to be known at {name}",
    )


def seat(net: Cluster, name: str) -> int:
    member = get_state(net, "node0").get_member(net.id(name))
    assert member is not None
    return member.seat


async def rotate(net: Cluster, name: str) -> None:
    (key,) = make_keys(1, "rotated")
    following = asyncio.create_task(follow_keys(net, name, key))
    service = get_service(net, name)
    service.signer.take_spare(key)
    await service.proposals.propose(make_rotation(service.tip, net.id(name), key.id))
    await wait_for_state(net, "the new key", lambda state: state.index_of(key.id) is not None, "node0")
    await asyncio.wait_for(following, 60)


async def lie(net: Cluster, name: str) -> None:
    """Signs twice for one slot, and is back with what its directory holds once it is suspended."""
    await net.crash(name)
    suspended: Callable[[State], bool] = lambda state: not state.is_active(net.id(name))  # noqa: E731
    async with lying(net, name) as liar:
        for what in ("one block", "another"):
            liar.send(liar.make_vote(Phase.PREVOTE, make_digest(what)))
        await wait_for_state(net, "it to be suspended", suspended, "node0")
    net.start(name)


async def change_ten_times(net: Cluster) -> None:
    await net.wait_for_height(2, "node0", "node1", "node2", "node3")
    net.start("a")
    await agree(net, add(net, "a"), ["node1", "node2", "node3"])
    net.start("b")
    await agree(net, add(net, "b"), ["node1", "node2", "node3", "a"])
    await rotate(net, "node1")
    await net.crash("node2")
    net.start("spare")
    await agree(net, ReplaceKey(seat(net, "node2"), net.id("spare")), ["node1", "node3", "a", "b"])
    await lie(net, "node3")
    await agree(net, Pardon(seat(net, "node3")), ["node1", "spare", "a", "b"])
    await agree(net, RemoveMember(seat(net, "a")), ["node1", "spare", "b", "node3"])
    net.start("c")
    await agree(net, add(net, "c"), ["node1", "spare", "b", "node3"])
    await agree(net, RemoveMember(seat(net, "b")), ["node1", "spare", "c", "node3"])
    await agree(net, RemoveMember(seat(net, "node3")), ["node1", "spare", "c"])


def list_kinds(net: Cluster, name: str) -> list[str]:
    changes = (net[name].get_block(height).change for height in find_change_heights(net, name))
    return [read_change(change.change).kind.name for change in changes if change is not None]


@pytest.mark.slow
def test_a_late_joiner_verifies_ten_changes_of_the_members_and_contributes(tmp_path: Path) -> None:
    async def story() -> None:
        async with growing(tmp_path, 4, NEWCOMERS) as net:
            await change_ten_times(net)
            members = ("node0", "node1", "spare", "c")
            assert list_kinds(net, "node0") == [
                *("add_member", "add_member", "replace_key", "replace_key", "convict", "pardon"),
                *("remove_member", "add_member", "remove_member", "remove_member"),
            ]
            await net.wait_for_height(net["node0"].height + 3, *members)
            start_joiner(net, "late", make_checkpoint(net, "node0"))
            await agree(net, add(net, "late"), ["node1", "spare", "c"])
            (*_, height) = find_change_heights(net, "node0")
            await net.wait_for_height(height + 6, *members, "late")
            store = net["late"].store
            assert store is not None
            report = verify_chain(net.genesis, store)
            assert report.ok, report.fault
            assert len(list_kinds(net, "late")) == 11
            for name in (*members, "late"):
                held = net[name].store
                assert held is not None
                deep = run_audit(net.genesis, held, deep=True)
                assert deep.ok, deep.fault
                assert held.get_state(height) == store.get_state(height)
            authors = set[bytes]()
            for at in range(height + 1, height + 7):
                authors |= {contribution.author for contribution in net["node0"].get_block(at).contributions}
            assert {net.id(name) for name in (*members, "late")} == authors
            net.check_agreement()

    run_virtual(story())
