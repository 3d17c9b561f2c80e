"""`fednode open`: the page of a node, in a browser, with a key to act by."""

from __future__ import annotations

import os
import sys
import webbrowser
from typing import Annotated

import typer

from node.cli.options import AsJson
from node.cli.output import print_json
from node.cli.target import NodeConfigFile, Socket, open_node


def register(app: typer.Typer) -> None:
    app.command("open")(open_page)


def open_page(
    read_only: Annotated[
        bool, typer.Option("--read-only", help="The page may look and not act: pause, approve, propose.")
    ] = False,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="ADDRESS", help="Where the browser finds it, if not where the node serves it."),
    ] = None,
    socket: Socket = None,
    config: NodeConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Open the page of a running node. The address is printed, and opened where there is a browser.

    Behind the # of the address stands a key that opens the page once, within five minutes. The page can act for this
    node by it: whoever has the address meanwhile can approve changes in its name. Look at the page without it, or say
    --read-only, where you only want to see.

    Examples: fednode open --config node.yaml, or where a port is forwarded fednode open --at http://localhost:8080
    """
    with open_node(socket, config) as node:
        given = node.open_page(read_only=read_only)
    address = f"{(at or given.address).rstrip('/')}/#key={given.key}"
    if as_json:
        print_json({"address": address, "role": given.role, "seconds": given.seconds})
        return
    print(address, flush=True)
    if _has_browser() and not webbrowser.open(address):
        print("fednode: no browser was found; open the address yourself", file=sys.stderr)


def _has_browser() -> bool:
    """Says whether a browser can show the page to somebody here; one in a terminal cannot."""
    is_shown = sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return is_shown and sys.stdout.isatty()
