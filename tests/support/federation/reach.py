"""Links that are never open, as between members that can both only dial out, and what each node then knows of whom."""

from __future__ import annotations

from collections.abc import Iterable

from node.consensus.service import RoundService
from support.federation.cluster import Cluster

# The links missing among four members. In each everybody reaches everybody through at most one other.
MISSING = {
    "two of four": [("node0", "node1")],
    "two pairs": [("node0", "node1"), ("node2", "node3")],
    "three of four": [("node0", "node1"), ("node0", "node2"), ("node1", "node2")],
}
HUB = "node3"  # of the star that is left where three of four can only dial out


def start_apart(net: Cluster, missing: Iterable[tuple[str, str]], *names: str) -> None:
    """Starts these nodes (by default all) with some links that are never there."""
    for a, b in missing:
        net.cut(a, b)
    for name in names or net.nodes:
        net.start(name)


def get_service(net: Cluster, name: str) -> RoundService:
    service = net[name].service
    assert service is not None
    return service


def get_relays(net: Cluster, name: str, other: str) -> set[str]:
    """Returns the members through which a node says that it reaches another."""
    return {relay.name for relay in get_service(net, name).peers.get_relays(net.id(other))}


def count_authors(net: Cluster, height: int) -> int:
    return len(net["node0"].get_block(height).contributions)


def count_messages(net: Cluster, kind: str) -> int:
    """Counts the messages of a kind that all nodes have pushed since they started."""
    count = 0
    for node in net.nodes.values():
        transport = net.network.find(node.key.id)
        assert transport is not None, f"{node.name} does not run"
        traffic = transport.counters().values()
        count += sum(counters.kinds[kind].messages_sent for counters in traffic if kind in counters.kinds)
    return count
