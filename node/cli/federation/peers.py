"""`fednode peers`: the peers a node knows, their addresses, its connections to them, and those it refuses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.options import AsJson
from node.cli.output import print_facts, print_json, print_table, show_bytes, show_id, show_seconds
from node.cli.target import NodeConfigFile, Socket, make_listing, open_node

if TYPE_CHECKING:
    from node.pb import admin_pb2 as pb

_Which = Annotated[str, typer.Argument(metavar="ID|NAME", help="A peer's id or its name.")]


def register(app: typer.Typer) -> None:
    group = make_listing("Show a node's peers; dial, ban and forget them.", list_all)
    group.command("add")(add)
    group.command("remove")(remove)
    group.command("ban")(ban)
    group.command("unban")(unban)
    app.add_typer(group, name="peers")


def list_all(socket: Socket = None, config: NodeConfigFile = None, as_json: AsJson = False) -> None:
    """List the other members, and who else may connect.

    Example: fednode peers list --config node.yaml
    """
    with open_node(socket, config) as node:
        peers = node.list_peers()
    if as_json:
        print_json({"peers": peers})
        return
    rows = []
    for peer in peers:
        state = describe_reach(peer)
        if state == "up" and peer.abstains:
            state = "up, abstains"
        if peer.HasField("banned_s"):
            state = f"banned {show_seconds(peer.banned_s)}"
        rows.append(
            (
                peer.name,
                show_id(peer.id),
                peer.role,
                peer.address or "-",
                state,
                peer.direction or "-",
                peer.version or "-",
                str(peer.height) if peer.HasField("height") else "-",
                f"{show_seconds(peer.silent_s)} ago" if peer.HasField("silent_s") else "never",
                f"{peer.round_trip_s * 1000:.1f} ms" if peer.HasField("round_trip_s") else "-",
                show_bytes(peer.bytes_sent),
                show_bytes(peer.bytes_received),
                str(peer.dropped),
                str(peer.rejected + peer.refused),
            )
        )
    headings = (
        "NAME",
        "ID",
        "ROLE",
        "ADDRESS",
        "STATE",
        "BY",
        "RELEASE",
        ">HEIGHT",
        "HEARD OF",
        ">ROUND TRIP",
        ">SENT",
        ">RECEIVED",
        ">DROPPED",
        ">REJECTED",
    )
    print_table(headings, rows)
    if notes := [*describe_not_awaited(peers), *describe_clocks(peers), *describe_refusals(peers)]:
        print()
        print_facts(notes)


def add(
    place: Annotated[
        str, typer.Argument(metavar="ID@HOST:PORT", help="A member, by its id or name, and where it listens.")
    ],
    socket: Socket = None,
    config: NodeConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Dial a member at another address from now on. This node does so at once and after every restart.

    It counts before what the configuration and genesis say, and before what the member says itself. Who is a member,
    the federation says: fednode members.

    Example: fednode peers add node3@198.51.100.7:7063 -c node0.yaml
    """
    with open_node(socket, config) as node:
        peer = node.add_peer(place)
    _print_address(peer, as_json)


def remove(which: _Which, socket: Socket = None, config: NodeConfigFile = None, as_json: AsJson = False) -> None:
    """Forget the address that was added for a peer. The node dials the peer as configured again, or not at all.

    Example: fednode peers remove node3 -c node0.yaml
    """
    with open_node(socket, config) as node:
        peer = node.remove_peer(which)
    _print_address(peer, as_json)


def _print_address(peer: pb.PeerView, as_json: bool) -> None:
    if as_json:
        print_json(peer)
    elif peer.HasField("address"):
        why = "" if peer.added else ", as configured"
        print(f"{peer.name} {show_id(peer.id)} is dialled at {peer.address}{why}")
    else:
        print(f"{peer.name} {show_id(peer.id)} is not dialled; it has to dial this node")


def ban(
    which: _Which,
    minutes: Annotated[float, typer.Option("--minutes", metavar="M", help="For so long.")] = 60.0,
    socket: Socket = None,
    config: NodeConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Refuse a peer's connections for a while. The ban outlives restarts of this node.

    What it signed still counts where others relay it: this silences nobody, and cannot stop the federation.

    Example: fednode peers ban node2 --minutes 30 -c node0.yaml
    """
    with open_node(socket, config) as node:
        peer = node.ban_peer(which, minutes)
    if as_json:
        print_json(peer)
    else:
        print(f"{peer.name} {show_id(peer.id)} is refused for {show_seconds(peer.banned_s)}")


def unban(which: _Which, socket: Socket = None, config: NodeConfigFile = None, as_json: AsJson = False) -> None:
    """Let a banned peer connect again. It may have been banned by hand or for what it sent.

    Example: fednode peers unban node2 -c node0.yaml
    """
    with open_node(socket, config) as node:
        peer = node.unban_peer(which)
    if as_json:
        print_json(peer)
    else:
        print(f"{peer.name} {show_id(peer.id)} may connect")


def describe_reach(peer: pb.PeerView | pb.MemberView) -> str:
    """Returns how a peer is reached: `up`, `silent`, `away`, or through which members."""
    if not peer.connected:
        return f"through {', '.join(peer.through)}" if peer.through else "away"
    return "up" if peer.alive else "silent"


def describe_not_awaited(peers: Iterable[pb.PeerView]) -> list[tuple[str, str]]:
    """Returns whose contribution is not waited for, and why. Members that are away are left out, as they are shown
    already."""
    return [
        (f"not awaited {peer.name}", peer.not_awaited)
        for peer in peers
        if peer.HasField("not_awaited") and peer.connected and peer.alive
    ]


def describe_clocks(peers: Iterable[pb.PeerView]) -> list[tuple[str, str]]:
    """Returns whose clock is wrong."""
    from node.p2p.clock_skew import is_wrong

    return [
        (f"clock of {peer.name}", f"{abs(peer.clock_ahead_s):.1f} s {'ahead' if peer.clock_ahead_s > 0 else 'behind'}")
        for peer in peers
        if is_wrong(peer.clock_ahead_s)
    ]


def describe_refusals(peers: Iterable[pb.PeerView]) -> list[tuple[str, str]]:
    """Returns what was refused from each peer and why, and which peers were slowed down."""
    facts = []
    for peer in peers:
        if peer.not_taken:
            facts.append((f"not taken of {peer.name}", describe_not_taken(peer.not_taken)))
        if peer.waits:
            facts.append((f"let wait {peer.name}", f"{peer.waits} times, as it came too fast"))
    return facts


def describe_not_taken(counts: Mapping[str, int]) -> str:
    """Returns counts in words: `3 signature, 1 other height`, the most frequent first."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in ordered)
