"""The checks of who reaches whom: which members could dial this node or be dialled, and by whom each connection of the
running node was made."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from chain.block import Id
from chain.signing import decode_id
from node.cli.doctor.findings import Finding, fail, ok, warn
from node.config.node_config import NodeConfig
from node.errors import NodeError
from node.p2p.proxy import ProxyFailed, reach_proxy

PROXY_S = 5.0
WAYS = {"dialled": "dialled from here", "accepted": "dialled from there"}


def read_connections(config: NodeConfig) -> dict[Id, str]:
    """Returns which side dialled each connection of the running node; empty where it does not answer."""
    from node.admin.client import AdminClient

    if config.admin.socket is None:
        return {}
    try:
        with AdminClient(config.admin.socket) as client:
            return {decode_id(peer.id): peer.direction for peer in client.list_peers() if peer.HasField("direction")}
    except NodeError:  # it is starting or ending: another check reports that
        return {}


def check_proxy(proxy: str | None) -> Iterator[Finding]:
    """Checks that the proxy through which peers are dialled accepts connections; addresses behind it are checked with
    the peers."""
    if proxy is None:
        return
    try:
        reach_proxy(proxy, PROXY_S).close()
    except ProxyFailed as error:
        yield fail("proxy", str(error), error.advice)
    else:
        yield ok("proxy", f"peers are dialled through {proxy}, which accepts connections")


def check_reach(
    members: Mapping[Id, str], answering: Collection[Id], connections: Mapping[Id, str]
) -> Iterator[Finding]:
    """Checks who can dial whom. `answering` are the members that accept connections, as far as this node can tell;
    itself among them where it listens."""
    ways = [
        f"{text}: {', '.join(names)}"
        for way, text in WAYS.items()
        if (names := [name for member, name in members.items() if connections.get(member) == way])
    ]
    if ways:
        yield ok("connections", "; ".join(ways))
    needed = (len(members) - 1) // 3 + 1
    accepting = [name for member, name in members.items() if member in answering]
    shown = f"{len(accepting)} of {len(members)} members accept connections, as far as this node can tell"
    if len(members) > 1 and len(accepting) < needed:
        yield warn(
            "reach",
            f"{shown}; {needed} are needed, which carry the others' votes even if the rest of them fail",
            "have more members open their port to the others, or see the peers above",
        )
    elif len(members) > 1:
        yield ok("reach", shown)
