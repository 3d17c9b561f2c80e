"""`fednode peers`: whom a node knows, and how it fares with them."""

from __future__ import annotations

import typer

from node.cli.options import AsJson, make_group
from node.cli.target import NodeConfigFile, Socket


def register(app: typer.Typer) -> None:
    group = make_group("Show whom a node knows, and how it fares with them.")
    group.callback(invoke_without_command=True, no_args_is_help=False)(list_by_default)
    group.command("list")(list_all)
    app.add_typer(group, name="peers")


def list_by_default(
    context: typer.Context, socket: Socket = None, config: NodeConfigFile = None, as_json: AsJson = False
) -> None:
    """Show whom a node knows, and how it fares with them."""
    if context.invoked_subcommand is None:
        list_all(socket, config, as_json)
    elif socket or config is not None or as_json:
        raise typer.BadParameter(
            f"expected options after the command, as in fednode peers {context.invoked_subcommand} --json", ctx=context
        )


def list_all(socket: Socket = None, config: NodeConfigFile = None, as_json: AsJson = False) -> None:
    """List the other members, and the observers that may connect."""
    from node.cli.output import print_json, print_table, show_bytes, show_id, show_seconds
    from node.cli.target import open_node
    from node.json_view import to_json

    with open_node(socket, config) as node:
        peers = node.list_peers()
    if as_json:
        print_json({"peers": [to_json(peer) for peer in peers]})
        return
    rows = []
    for peer in peers:
        state = "up" if peer.connected and peer.alive else "silent" if peer.connected else "away"
        rows.append(
            (
                peer.name,
                show_id(peer.id),
                peer.address or "-",
                state,
                str(peer.height) if peer.HasField("height") else "-",
                f"{show_seconds(peer.silent_s)} ago" if peer.HasField("silent_s") else "never",
                show_bytes(peer.bytes_sent),
                show_bytes(peer.bytes_received),
                str(peer.dropped),
                str(peer.rejected + peer.refused),
            )
        )
    headings = ("NAME", "ID", "ADDRESS", "STATE", ">HEIGHT", "HEARD OF", ">SENT", ">RECEIVED", ">DROPPED", ">REJECTED")
    print_table(headings, rows)
