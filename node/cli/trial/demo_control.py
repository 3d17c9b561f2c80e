"""`fednode demo ps|logs|down`: a demo that runs in another terminal, or has left its nodes behind."""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from node.cli.options import AsJson
from node.cli.output import print_json, print_table, show_id, show_number
from node.errors import NotFound

if TYPE_CHECKING:
    from node.testnet.running import Demo, DemoNode

FOLLOW_S = 0.2

_Directory = Annotated[
    Path | None,
    typer.Option("--dir", metavar="DIR", help="The demo in DIR, as with demo --keep DIR. By default the only one."),
]


def register(group: typer.Typer) -> None:
    group.command("ps")(list_nodes)
    group.command("logs")(show_logs)
    group.command("down")(stop)


def list_nodes(directory: _Directory = None, as_json: AsJson = False) -> None:
    """List the nodes of the demos on this machine. Demos with --keep are found by --dir.

    Example: fednode demo ps
    """
    from node.admin.json_view import to_json
    from node.testnet.running import find_demos, read_demo

    demos = [read_demo(directory)] if directory is not None else find_demos()
    asked = [(demo, node, node.get_status()) for demo in demos for node in demo.nodes]
    if as_json:
        nodes = [
            {
                "demo": str(demo.directory),
                "demo_pid": demo.pid,
                "name": node.name,
                "socket": str(node.socket),
                "log": str(node.log_file),
                "http": None if node.http is None else f"http://{node.http}",
                "status": None if status is None else to_json(status),
            }
            for demo, node, status in asked
        ]
        print_json({"nodes": nodes})
        return
    if not asked:
        print("fednode: no demo is running", file=sys.stderr)
        return
    rows = []
    for demo, node, status in asked:
        place = str(demo.directory) if demo.pid is not None else f"{demo.directory} (its demo is gone)"
        http = "-" if node.http is None else f"http://{node.http}"
        if status is None:
            rows.append((node.name, "-", "-", "-", "no answer", "-", http, place))
            continue
        accuracy = show_number(status.accuracy if status.HasField("accuracy") else None, 3)
        head = f"{status.height} {show_id(status.head)}"
        rows.append((node.name, str(status.pid), head, str(status.round), status.phase, accuracy, http, place))
    print_table(("NODE", ">PID", "HEAD", ">ROUND", "PHASE", ">ACCURACY", "HTTP", "DEMO"), rows)


def show_logs(
    name: Annotated[str | None, typer.Argument(metavar="[NODE]", help="Of this node alone.")] = None,
    tail: Annotated[int, typer.Option("--tail", metavar="N", min=0, help="The last N lines of each.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is new, until Ctrl-C.")] = False,
    directory: _Directory = None,
    as_json: AsJson = False,
) -> None:
    """Show the logs of a demo's nodes. Each line begins with the name of its node.

    Example: fednode demo logs node2 --follow
    """
    demo = _find_one(directory)
    nodes = [node for node in demo.nodes if name is None or node.name == name]
    if not nodes:
        raise NotFound(f"{demo.directory}: no node {name!r}; there are {', '.join(node.name for node in demo.nodes)}")
    with ExitStack() as logs:
        opened = [(node, logs.enter_context(_open_log(node))) for node in nodes]
        for node, log in opened:
            lines = log.readlines()
            for line in lines[len(lines) - min(tail, len(lines)) :]:
                _print_line(node, line, as_json)
        try:
            while follow:
                time.sleep(FOLLOW_S)
                for node, log in opened:
                    for line in log:
                        _print_line(node, line, as_json)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


def _open_log(node: DemoNode) -> TextIO:
    try:
        return node.log_file.open(encoding="utf-8", errors="replace")
    except FileNotFoundError as error:
        raise NotFound(f"{node.log_file}: no log, as {node.name} was not started") from error


def _print_line(node: DemoNode, line: str, as_json: bool) -> None:
    text = line.rstrip("\n")
    print(json.dumps({"node": node.name, "line": text}) if as_json else f"{node.name} | {text}", flush=True)


def stop(directory: _Directory = None, as_json: AsJson = False) -> None:
    """Stop a demo and its nodes. It does as Ctrl-C in the demo's terminal, and also ends the nodes of a demo that was
    killed.

    Example: fednode demo down
    """
    from node.testnet.running import end_demo

    demo = _find_one(directory)
    stopped = end_demo(demo)
    if as_json:
        print(json.dumps({"demo": str(demo.directory), "stopped": stopped}))
    else:
        print(f"{demo.directory}: stopped {', '.join(stopped) or 'nothing, as no node was running'}")


def _find_one(directory: Path | None) -> Demo:
    from node.testnet.running import find_demos, read_demo

    if directory is not None:
        return read_demo(directory)
    found = find_demos()
    if not found:
        raise NotFound("no demo is running; those with --keep DIR are found by --dir DIR")
    if len(found) > 1:
        raise typer.BadParameter(f"expected --dir DIR, as there are {', '.join(str(demo.directory) for demo in found)}")
    return found[0]
