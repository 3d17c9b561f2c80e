"""Changes as operators of a cluster bring them about: proposed at one node, approved at others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chain.audit import verify_chain
from chain.changes.base import Kind
from chain.changes.change import Change
from chain.changes.rules import SetRules
from chain.state import State
from node.consensus.service import RoundService
from support.federation.cluster import Cluster

RULES = SetRules({"keep_heights": (2, 3)})  # a change that has no effect on a test


def get_service(net: Cluster, name: str) -> RoundService:
    service = net[name].service
    assert service is not None
    return service


def get_state(net: Cluster, name: str) -> State:
    return get_service(net, name).tip.state


def get_seat(net: Cluster, name: str) -> int:
    member = net.genesis.state.get_member(net.id(name))
    assert member is not None
    return member.seat


def get_open(net: Cluster, name: str) -> list[bytes]:
    return [proposal.id for proposal in get_service(net, name).proposals]


async def propose(net: Cluster, name: str, kind: Kind, **header: int) -> bytes:
    """Proposes a change at this node, open for a hundred heights. Returns its id."""
    service = get_service(net, name)
    member = service.tip.state.get_member(net.id(name))
    assert member is not None
    made = service.tip.height
    fields: dict[str, Any] = {"first": made + 1, "expires": made + 100} | header
    proposal = await service.proposals.propose(Change(kind, member.seat, made, **fields))
    return proposal.id


async def wait_until_open(net: Cluster, change_id: bytes, name: str) -> None:
    await net.wait_for(lambda: change_id in get_open(net, name), f"the change to be open at {name}")


async def approve(net: Cluster, change_id: bytes, *names: str) -> None:
    """Approves the change at each of these nodes, as soon as the node has received it."""
    for name in names:
        await wait_until_open(net, change_id, name)
        await get_service(net, name).proposals.approve(change_id)


async def change(net: Cluster, kind: Kind) -> None:
    """Has the first of four propose a change, and two more approve it."""
    await approve(net, await propose(net, "node0", kind), "node1", "node2")


async def wait_for_state(net: Cluster, what: str, holds: Callable[[State], Any], *names: str) -> None:
    await net.wait_for(lambda: all(holds(get_state(net, name)) for name in names or net.nodes), what)


async def wait_until_over(net: Cluster) -> None:
    """Waits until the run in force is over at all running nodes."""
    running = [node for node in net.nodes.values() if node.service is not None]
    await net.wait_for(
        lambda: all(node.service is not None and node.service.is_done for node in running), "the rounds to be over"
    )


def find_change_heights(net: Cluster, name: str) -> list[int]:
    node = net[name]
    return [height for height in range(1, node.height + 1) if node.get_block(height).change is not None]


def check_chains(net: Cluster) -> None:
    """Checks that all nodes have the same chain, and that an audit that trusts only genesis finds it sound."""
    net.check_agreement()
    for node in net.nodes.values():
        if node.store is not None:
            report = verify_chain(net.genesis, node.store)
            assert report.ok, report.fault
