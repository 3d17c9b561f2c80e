"""`fednode top`: a node, live in a terminal: the overview, the round in hand, the members, what happens."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.options import AsJson
from node.cli.target import NodeConfigFile, Socket

if TYPE_CHECKING:
    from rich.console import Console

    from node.admin.address import AdminAddress

DRAWN_S = 1.0  # at least so often: ages move on by themselves
SNAPSHOT_COLUMNS, SNAPSHOT_LINES = 120, 24  # of each view
ONCE = ("overview", "round", "members")


def register(app: typer.Typer) -> None:
    app.command("top")(show)


def show(
    socket: Socket = None,
    config: NodeConfigFile = None,
    interval_s: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.5, max=60, help="How often the node is asked.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one snapshot, and end.")] = False,
    as_json: AsJson = False,
) -> None:
    """Watch a node in a terminal.

    Keys 1 to 4, or Tab, go to the overview, the round in hand, the members and the events; arrows, Page Up and Page
    Down move in the last two; q ends. A node that goes away is asked again until it is back. Each state is a word and a
    shape besides its colour, and NO_COLOR leaves colours out. Where stdout or stdin is no terminal, or a dumb one, it
    prints one snapshot, as --once does. --json prints the record of fednode status.

    Examples: fednode top --config node.yaml, or fednode top --once --socket run/node.sock
    """
    from rich.console import Console

    from node.cli.target import find_socket

    place = find_socket(socket, config)
    if as_json:
        _print_status(place)
        return
    console = Console(highlight=False)
    if once or not (sys.stdin.isatty() and console.is_terminal and not console.is_dumb_terminal):
        _print_snapshot(place, console)
        return
    code = _watch(place, console, interval_s)
    if code:
        raise typer.Exit(code)


def _print_status(place: AdminAddress) -> None:
    from node.admin.json_view import to_json
    from node.cli.output import print_json
    from node.cli.target import open_place

    with open_place(place) as node:
        print_json(to_json(node.get_status()))


def _print_snapshot(place: AdminAddress, console: Console) -> None:
    """Overview, round and members below each other, as wide as the terminal."""
    from rich.text import Text

    from node.cli.target import open_place
    from node.cli.top.layout import Frame, cut
    from node.cli.top.snapshot import Snapshot, read_answers
    from node.cli.top.views import VIEWS, get_pen

    with open_place(place) as node:
        answers = read_answers(node)
    width = console.width if console.is_terminal or "COLUMNS" in os.environ else SNAPSHOT_COLUMNS
    frame = Frame(width, SNAPSHOT_LINES, get_pen(console.encoding))
    for i, view in enumerate(ONCE):
        if i:
            console.print()
        for line in VIEWS[view](answers, Snapshot(answers), frame):
            console.print(cut(line, width) if line.plain else Text(""), soft_wrap=True)


def _watch(place: AdminAddress, console: Console, interval_s: float) -> int:
    """Until a key or a signal ends it; the exit code."""
    from node.cli.top.feed import Feed
    from node.cli.top.layout import Frame, draw
    from node.cli.top.screen import Screen
    from node.cli.top.terminal import Ended, Terminal
    from node.cli.top.views import VIEWS, get_pen

    screen, pen, terminal = Screen(tuple(VIEWS)), get_pen(console.encoding), Terminal(console)
    try:
        with terminal.hearing(), Feed(place, interval_s, terminal.wake) as feed:
            terminal.run(
                lambda width, height: draw(
                    feed.snapshot, VIEWS, screen.view, Frame(width, height, pen, screen.scroll), time.monotonic()
                ),
                screen.on_key,
                DRAWN_S,
            )
    except KeyboardInterrupt:
        return 130
    except Ended as ended:
        return 128 + ended.number
    finally:
        terminal.close()
    return 0
