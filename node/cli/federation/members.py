"""`fednode members`: who decides and who reads, as the newest state of the federation has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.federation.peers import describe_reach
from node.cli.options import AsJson
from node.cli.output import print_facts, print_json, print_table, show_id, show_seconds
from node.cli.target import NodeConfigFile, Socket, make_listing, open_node
from node.errors import NotFound

if TYPE_CHECKING:
    from node.pb import admin_pb2 as pb


def register(app: typer.Typer) -> None:
    group = make_listing("Show who decides in the federation.", list_all)
    group.command("show")(show)
    app.add_typer(group, name="members")


def list_all(socket: Socket = None, config: NodeConfigFile = None, as_json: AsJson = False) -> None:
    """List members and observers.

    Example: fednode members list --config node.yaml
    """
    with open_node(socket, config) as node:
        reply = node.list_members()
    if as_json:
        print_json(reply)
        return
    has_own_names = any(member.HasField("display_name") for member in reply.members)
    rows = [
        (
            member.name,
            *([member.display_name or "-"] if has_own_names else []),
            show_id(member.id),
            str(member.seat),
            describe_origin(member),
            describe_state(member),
            str(member.height) if member.HasField("height") else "-",
        )
        for member in reply.members
    ]
    print_table(
        ("NAME", *(["CALLED HERE"] if has_own_names else []), "ID", ">SEAT", "MEMBER SINCE", "STATE", ">HEIGHT"), rows
    )
    print(f"\n{reply.quorum} of {len(reply.members)} decide; {reply.min_contributions} contribute to a round at least")
    if reply.observers:
        print()
        told = [(one.name, show_id(one.id), "up" if one.alive else "away") for one in reply.observers]
        print_table(("OBSERVER", "ID", "STATE"), told)


def show(
    which: Annotated[str, typer.Argument(metavar="NAME", help="A member's name, its id, or the beginning of one.")],
    socket: Socket = None,
    config: NodeConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show one member.

    Example: fednode members show hospital-b --config node.yaml
    """
    with open_node(socket, config) as node:
        member = find(node.list_members(), which)
    if as_json:
        print_json(member)
        return
    facts = [
        ("member", f"{member.name}{' (this node)' if member.me else ''}"),
        ("id", member.id),
        ("seat", str(member.seat)),
        ("since", describe_origin(member)),
        ("key since", "genesis" if not member.key_since else f"height {member.key_since}"),
        ("state", describe_state(member)),
    ]
    if member.HasField("display_name"):
        facts.insert(1, ("called here", member.display_name))
    if member.HasField("pardoned_at"):
        facts.append(("pardoned", f"at height {member.pardoned_at}"))
    if not member.me:
        facts.append(("address", member.address if member.HasField("address") else "none known: it dials"))
        facts.append(("heard of", f"{show_seconds(member.silent_s)} ago" if member.HasField("silent_s") else "never"))
    if member.HasField("height"):
        facts.append(("at height", str(member.height)))
    if member.HasField("clock_ahead_s"):
        ahead = member.clock_ahead_s
        facts.append(("clock", f"{abs(ahead):.3f} s {'ahead' if ahead > 0 else 'behind'}"))
    print_facts(facts)


def find(reply: pb.ListMembersReply, which: str) -> pb.MemberView:
    """Finds the member by its name, its id, or the beginning of its id. Raises NotFound."""
    found = [member for member in reply.members if which in (member.name, member.id)]
    if not found and len(which) >= 4:
        found = [member for member in reply.members if member.id.startswith(which)]
    if len(found) != 1:
        known = ", ".join(member.name for member in reply.members)
        raise NotFound(f"member {which!r}: expected the name or the id of one; there are {known}")
    return found[0]


def describe_origin(member: pb.MemberView) -> str:
    if not member.since:
        return "genesis"
    return f"height {member.since}, by change {member.change[:8]}"


def describe_state(member: pb.MemberView) -> str:
    state = "this node" if member.me else describe_reach(member)
    return f"{state}, suspended" if member.suspended else state
